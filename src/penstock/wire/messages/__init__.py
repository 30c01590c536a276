"""The messages of every family: one class is one layout.

In: declarations, the parts of their values, names for people. Out: what a client or a node does with a message.
"""

from penstock.wire.messages import cluster, collections, dcp, kv, observe, sasl, subdoc, tap, upr, upr_draft

__all__ = ["cluster", "collections", "dcp", "kv", "observe", "sasl", "subdoc", "tap", "upr", "upr_draft"]
