"""The store: a bucket's vbuckets, change log, snapshots, failover logs and rollback decisions.

All calls are synchronous. Time and identifiers come in as arguments: the store reads no clock and draws no random
numbers.
"""

__all__ = ["ORDER"]

ORDER = ("definition", "log", "disk", "history", "documents", "subdoc", "recovery", "bucket")
"""The packages: each knows those before it."""
