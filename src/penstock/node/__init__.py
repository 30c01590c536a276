"""The embedded node: listeners, key-value commands and change-stream producers over the store."""

from typing import TYPE_CHECKING

from penstock.lazy_names import make_lazy_names

if TYPE_CHECKING:
    from penstock.node.server.node import Node

__all__ = ["ORDER", "Node"]

ORDER = (
    "transport",
    "auth",
    "cluster",
    "tap_state",
    "sync_writes",
    "timing",
    "buckets",
    "session",
    "streams",
    "dialects",
    "replication",
    "tap",
    "stats",
    "commands",
    "mirror",
    "http",
    "server",
)
"""The packages: each knows those before it."""

__getattr__, __dir__ = make_lazy_names(globals(), {"Node": "penstock.node.server.node"})
