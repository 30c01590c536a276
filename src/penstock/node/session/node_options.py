"""What a node can be told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.client.connect.address import Address, dialect_of, parse_address
from penstock.errors import UsageError
from penstock.node.buckets.flusher import PERSISTENCE_TIMEOUT
from penstock.node.buckets.upkeep import PAGER_SECONDS
from penstock.node.cluster.topology import NodePlace, Topology
from penstock.store.definition.bucket_settings import Settings
from penstock.wire.codec.constants import Dialect

__all__ = ["DEFAULT_PORT", "HTTPS_PORT", "HTTP_PORT", "IDLE_TIMEOUT", "PINS", "NodeOptions"]

DEFAULT_PORT = 11210
HTTP_PORT, HTTPS_PORT = 8091, 18091
IDLE_TIMEOUT = 360.0

PINS: dict[str, tuple[Dialect, bool]] = {
    **{dialect.value: (dialect, False) for dialect in Dialect},
    "dcp-prototype": (Dialect.DCP, True),
}
"""What a listener may be pinned to: a dialect, and whether mutations have the form of the collections prototype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """host: the address to listen on. port: 0 picks a free one.

    idle_timeout: seconds that a consumer may leave a NOOP unanswered, or, where its dialect has none, may take nothing
    of what is to be sent. A client may take nothing of a large reply for as long. pin: one of PINS; None: the first
    change-stream request of each connection decides its dialect. follow: the connection string of a bucket, or its
    address where one has to log in, which the node then has as well, kept like it by a Bridge; protocol: the dialect to
    follow in, if the string does not say it.

    http_port: for management over HTTP; None: HTTP_PORT if port is DEFAULT_PORT, else any that is free. https_port: the
    same with TLS, where there is that. nodes: all nodes that the buckets are on, in the same order for each of them;
    empty: this one alone. this_node: its place among them.

    data_dir: where the buckets are kept, each in a directory of its own; what is there is read before the node listens.
    None: in memory, gone with the node. settings: of each bucket that does not say it otherwise. pager_seconds: from
    one search for expired documents to the next. persistence_timeout: seconds that a request waits for the disk.

    users: the file of those who may come in; None: without, the node is for this machine alone. certificate, key: files
    in PEM, with which there is TLS, on tls_port (0 picks one, None: no such listener). client_ca: a file with those
    whose certificates log their owners in; None: nobody's does. mechanisms, tls_mechanisms: those that a login may use
    without TLS and with it; None: all that are safe there. allow_plain: passwords may be sent without TLS.

    login_timeout: seconds in which a connection must log in, where that is asked for. frame_timeout: seconds in which a
    frame that has begun must end. most_connections: how many there may be at once.

    Raises UsageError for a combination that cannot be.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    idle_timeout: float = IDLE_TIMEOUT
    http_port: int | None = None
    https_port: int | None = None
    nodes: Sequence[NodePlace] = ()
    this_node: int = 0
    pin: str | None = None
    follow: str | Address | None = None
    protocol: str | None = None
    data_dir: str | os.PathLike[str] | None = None
    settings: Settings | None = None
    pager_seconds: float = PAGER_SECONDS
    persistence_timeout: float = PERSISTENCE_TIMEOUT
    users: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    client_ca: str | os.PathLike[str] | None = None
    tls_port: int | None = None
    mechanisms: Sequence[str] | None = None
    tls_mechanisms: Sequence[str] | None = None
    allow_plain: bool = False
    login_timeout: float = 30.0
    frame_timeout: float = 120.0
    most_connections: int = 60_000

    def __post_init__(self) -> None:
        for port in (self.port, self.tls_port, self.http_port, self.https_port):
            if port is not None and not 0 <= port <= 65535:
                raise UsageError(f"port {port}: expected 0 to 65535")
        if self.pin is not None and self.pin not in PINS:
            raise UsageError(f"pin {self.pin!r}: expected {', '.join(PINS)}")
        if self.protocol is not None and self.follow is None:
            raise UsageError(
                f"protocol {self.protocol!r} with nothing to follow; what a listener is held to is its pin"
            )
        if (self.certificate is None) != (self.key is None):
            raise UsageError("a certificate and its key: expected both or neither")
        if self.certificate is not None and self.tls_port is None:
            raise UsageError("a certificate without a port for TLS: expected a port, 0 for any that is free")
        if self.https_port is not None and self.certificate is None:
            raise UsageError("a port for HTTPS without a certificate: expected a certificate and its key")
        if self.tls_port is not None and self.certificate is None:
            raise UsageError("a port for TLS without a certificate: expected a certificate and its key")
        if self.client_ca is not None and self.certificate is None:
            raise UsageError("certificates of clients without one of the node: expected a certificate and its key")

    @property
    def upstream(self) -> Address | None:
        """The bucket to follow, and the dialect to ask in. Raises UsageError."""
        if self.follow is None:
            return None
        address = parse_address(self.follow) if isinstance(self.follow, str) else self.follow
        if self.protocol is None:
            return address
        return replace(address, options=replace(address.options, protocol=dialect_of(self.protocol)))

    @property
    def topology(self) -> Topology:
        """Raises UsageError for nodes that cannot be together."""
        return Topology(tuple(self.nodes) or (NodePlace(),), self.this_node)

    def management_port(self, *, tls: bool) -> int:
        """Return the port to have for HTTP, 0 for any that is free."""
        wanted, usual = (self.https_port, HTTPS_PORT) if tls else (self.http_port, HTTP_PORT)
        if wanted is not None:
            return wanted
        return usual if self.port == DEFAULT_PORT else 0
