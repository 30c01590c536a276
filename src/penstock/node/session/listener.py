"""A port of the node, as its connections know it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.node.auth import Access, ServerTls
from penstock.wire.codec.constants import Dialect

__all__ = ["Listener"]


@dataclass(frozen=True, slots=True)
class Listener:
    """What a connection has come in by. dialect: the one that it is pinned to, None for none. prototype: mutations are
    sent as the collections prototype of DCP did. access: who may do that, and how they log in. tls: what encrypts the
    bytes, None if nothing does.
    """

    access: Access
    dialect: Dialect | None = None
    prototype: bool = False
    tls: ServerTls | None = None
