"""The options of a node, which are also those of `penstock serve`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.client.connect.address import Address, parse_address, parse_dialect
from penstock.errors import UsageError
from penstock.options import BOOLEAN, FILE, INTEGER, PORT, TEXT, nonempty, one_of, option, text_list
from penstock.wire.codec.constants import Dialect

if TYPE_CHECKING:  # the command line imports this module for its options: importing the store would slow it down
    from penstock.node.cluster.own_map import NodePlace
    from penstock.node.transport.machine import Machine
    from penstock.store.definition.bucket_settings import BucketSettings

DEFAULT_PORT = 11210
HTTP_PORT, HTTPS_PORT = 8091, 18091

PINS: dict[str, tuple[Dialect, bool]] = {
    **{dialect.value: (dialect, False) for dialect in Dialect},
    "dcp-prototype": (Dialect.DCP, True),
}
"""Dialects that a listener may be pinned to, and whether mutations have the form of the collections prototype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The options of a node. Options of `penstock serve` are declared with their help texts.

    Attributes:
        follow: a connection string, or an address if the client has to log in.
        place: the addresses in the cluster map, where they are not those of the node: those of a proxy, for example. A
            port of 0 is the node's own.
        settings: default settings of the buckets.
        machine: the machine that the node runs on; None: this machine.
        idle_timeout: seconds that a consumer may leave a NOOP unanswered. A consumer without NOOPs, or a client of a
            large reply, may read nothing for as long.
        takeover_seconds: seconds of a takeover after which its vbucket refuses writes, so that it can end. Source:
            kv_engine, dcp_takeover_max_time.
        pager_seconds: seconds from one search for expired documents to the next. Source: kv_engine exp_pager_stime.
        persistence_timeout: seconds that a request waits for the disk.
        login_timeout: seconds in which a connection must log in, if a login is needed.
        frame_timeout: seconds in which a frame must end after its first byte.
        most_connections: most simultaneous connections.

    Raises:
        UsageError: options that exclude each other.
    """

    host: str = option(nonempty(metavar="ADDRESS"), "a loopback address to listen on", default="127.0.0.1")
    port: int = option(PORT, "0 picks a free one", default=DEFAULT_PORT)
    buckets: Sequence[str] | None = option(
        text_list(), "name of a bucket; may be repeated", default=None, shown="default", flag="--bucket"
    )
    vbuckets: int = option(INTEGER, "vbuckets of each bucket; a power of two up to 65536", default=1024)
    pin: str | None = option(
        one_of(*PINS), "serve only this dialect; default: detect the dialect of each connection", default=None
    )
    follow: str | Address | None = option(nonempty(metavar="URL"), "mirror this bucket of another node", default=None)
    protocol: str | None = option(
        TEXT, "the dialect of --follow: tap, upr-draft, upr or dcp; default: dcp", default=None
    )
    http_port: int | None = option(
        PORT,
        "HTTP port for management; 0 picks a free one",
        default=None,
        shown=f"{HTTP_PORT}, 0 with --port 0",
    )
    users: str | os.PathLike[str] | None = option(
        FILE,
        "users file, maintained with `penstock user`; default: no login",
        default=None,
        environment="PENSTOCK_USERS",
    )
    tls_port: int | None = option(PORT, "TLS port; 0 picks a free one", default=None, shown="none")
    https_port: int | None = option(
        PORT,
        "HTTPS port for management; 0 picks a free one",
        default=None,
        shown=f"{HTTPS_PORT} with port {DEFAULT_PORT}, else a free one",
    )
    certificate: str | os.PathLike[str] | None = option(
        FILE, "certificate of the node, PEM", default=None, flag="--tls-cert"
    )
    key: str | os.PathLike[str] | None = option(
        FILE, "private key of the certificate, PEM", default=None, flag="--tls-key"
    )
    client_ca: str | os.PathLike[str] | None = option(
        FILE,
        "CA of client certificates, PEM; clients with such a certificate need no password",
        default=None,
        flag="--tls-client-ca",
    )
    mechanisms: Sequence[str] | None = option(
        text_list(),
        "SASL mechanism on ports without TLS; may be repeated",
        default=None,
        shown="all that are safe",
        flag="--mechanism",
    )
    tls_mechanisms: Sequence[str] | None = option(
        text_list(),
        "SASL mechanism on ports with TLS; may be repeated",
        default=None,
        shown="all",
        flag="--tls-mechanism",
    )
    allow_plain: bool = option(
        BOOLEAN, "allow PLAIN without TLS, for old clients; the network can read the passwords", default=False
    )
    data_dir: str | os.PathLike[str] | None = option(
        nonempty(metavar="DIR", is_path=True),
        "directory of the buckets",
        default=None,
        shown="in memory",
    )
    place: NodePlace | None = None
    settings: BucketSettings | None = None
    machine: Machine | None = None
    idle_timeout: float = 360.0
    takeover_seconds: float = 60.0
    pager_seconds: float = 600.0
    persistence_timeout: float = 30.0
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
                f"protocol {self.protocol!r} without a bucket to follow; to serve only one dialect, use pin"
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
            raise UsageError("a CA of client certificates without a certificate: expected a certificate and its key")

    @property
    def upstream(self) -> Address | None:
        """The address of the bucket to follow, with its dialect; None without `follow`. Raises UsageError."""
        if self.follow is None:
            return None
        address = parse_address(self.follow) if isinstance(self.follow, str) else self.follow
        if self.protocol is None:
            return address
        return replace(address, options=replace(address.options, protocol=parse_dialect(self.protocol)))

    def management_port(self, *, tls: bool) -> int:
        """Return the port for HTTP, or for HTTPS with `tls`; 0 for any free one."""
        wanted, usual = (self.https_port, HTTPS_PORT) if tls else (self.http_port, HTTP_PORT)
        if wanted is not None:
            return wanted
        return usual if self.port == DEFAULT_PORT else 0
