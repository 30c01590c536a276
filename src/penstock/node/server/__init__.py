"""The running node: its ports, its connections, and the table from request to handler.

In: code that knows all other packages. Out: the handling of single requests.
"""
