"""Commands that run and administer a node: serve, users, certificates, statistics, data files.

In: administration. Out: documents and changes.
"""
