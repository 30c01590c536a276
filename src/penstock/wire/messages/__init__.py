"""The messages of every family: one class is one layout.

Belongs here: declarations, the parts of their values, names for people. Does not: actions of clients and nodes.
"""

from penstock.wire.messages import cluster, collections, dcp, kv, observe, sasl, subdoc, tap, upr, upr_draft

__all__ = ["cluster", "collections", "dcp", "kv", "observe", "sasl", "subdoc", "tap", "upr", "upr_draft"]
