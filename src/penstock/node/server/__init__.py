"""The running node: its ports, its connections, and the table from request to handler.

In: what alone knows all other packages. Out: what a single request does.
"""
