"""The settings of one port of the node."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.node.auth import ListenerAccess, ServerTls
from penstock.wire.codec.constants import Dialect


@dataclass(frozen=True, slots=True)
class Listener:
    """A port of the node, as its connections see it.

    Attributes:
        access: the rules of logins on this port.
        dialect: the dialect of all its change streams; None: each connection chooses.
        prototype: whether mutations have the form of DCP's collections prototype.
        tls: the TLS of the port, None for a port without encryption.
    """

    access: ListenerAccess
    dialect: Dialect | None = None
    prototype: bool = False
    tls: ServerTls | None = None
