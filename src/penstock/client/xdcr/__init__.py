"""XDCR: continuous replication from one bucket to another, which resolves conflicts with its own versions.

In: the choice of changes, checkpoints, and the replication itself. Out: bulk writes (penstock.client.documents).
"""
