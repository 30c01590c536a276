"""A bucket's history: vbuckets, change log, snapshots, failover log and the rollback decision.

Plain synchronous calls. Time and identifiers come in as arguments, so nothing here reads a clock or rolls dice.
"""

__all__ = ["ORDER"]

ORDER = ("definition", "log", "disk", "history", "documents", "subdoc", "recovery", "bucket")
"""The packages: each knows those before it."""
