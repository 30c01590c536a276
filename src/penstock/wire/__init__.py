"""The protocol family as data: bytes <-> messages <-> Arrow columns.

Sans-IO: no sockets, no asyncio, no clocks, no randomness. The import declares every message of every dialect.
"""

from penstock.wire import messages

__all__ = ["ORDER", "messages"]

ORDER = ("codec", "values", "messages", "columns", "protocol")
"""The packages: each imports only those before it."""
