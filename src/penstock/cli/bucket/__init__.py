"""Commands that read and write a bucket: documents, changes, workloads.

In: commands that need a connection string. Out: administration of a node.
"""
