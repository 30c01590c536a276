"""The history of a vbucket: branches, snapshots, rollback, system events.

In: changes by seqno. Out: documents by key.
"""
