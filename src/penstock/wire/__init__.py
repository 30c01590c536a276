"""The protocol family as data: bytes <-> messages <-> Arrow columns.

Sans-IO: no sockets, no asyncio, no clocks, no randomness. Importing it declares every message of every dialect.
"""

from penstock.wire import collections, dcp, kv, login, observe, session, subdoc, tap, upr, upr_draft

__all__ = ["collections", "dcp", "kv", "login", "observe", "session", "subdoc", "tap", "upr", "upr_draft"]
