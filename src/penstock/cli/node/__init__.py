"""Commands on a node: serve, users, certificates, statistics, its files.

In: administration. Out: documents.
"""
