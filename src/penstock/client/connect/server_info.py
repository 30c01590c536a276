"""Product and version of a server, requested only to explain an error."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.client.connect.node_link import ANY_STATUS, NodeLink
from penstock.errors import Error, UnsupportedServer
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import CloseProducer, Version

_DIALECT_NAMES = {Dialect.TAP: "TAP", Dialect.UPR_DRAFT: "UPR draft", Dialect.UPR: "UPR", Dialect.DCP: "DCP"}

_STATS_GROUPS = {Dialect.TAP: "tap", Dialect.DCP: "dcp"}
"""The statistics group of each dialect that has one. An engine without the dialect does not have the group."""


class ServerInfo(NamedTuple):
    """The product, version and dialects of a server.

    Attributes:
        version: its answer to VERSION; empty if it has none.
        engine: the statistic ep_version of Couchbase and Membase; empty for memcached without an engine.
        dialects: the dialects whose statistics group it has: TAP and DCP.
    """

    version: str = ""
    engine: str = ""
    dialects: frozenset[Dialect] = frozenset()

    @property
    def is_penstock(self) -> bool:
        """Whether the server is a node of Penstock."""
        return "penstock" in self.version

    @property
    def name(self) -> str:
        """The product and its release, for error messages."""
        if self.is_penstock:
            return f"Penstock {self.version.rpartition('-')[2]}"
        product = "Couchbase" if self.engine else "memcached"
        for version in (self.engine, self.version):
            if release := re.search(r"\d+\.\d+(\.\d+)*", version):
                return f"{product} {release[0]}"
        return f"{product} of unknown version"


async def request_server_info(link: NodeLink, timeout: float) -> ServerInfo:
    """Return product, version and dialects of a server. Missing answers leave the fields empty."""
    try:
        reply = await link.request(Version(), timeout, accept=ANY_STATUS)
        version = reply.value.decode("ascii", "replace") if reply.specific == Status.SUCCESS else ""
        stats = await link.request_stats("", timeout, optional=True)
        groups = {
            dialect: await link.request_stats(group, timeout, optional=True) for dialect, group in _STATS_GROUPS.items()
        }
    except Error:  # the caller explains an earlier error, which a failure here must not replace
        return ServerInfo()
    return ServerInfo(
        version, stats.get("ep_version", ""), frozenset(dialect for dialect, found in groups.items() if found)
    )


async def close_producers(link: NodeLink, name: str, timeout: float) -> None:
    """Close the change-stream connections that have a name at a node. Also raises the errors of `request`.

    Args:
        link: a connection to the node.
        name: the name.
        timeout: seconds for an answer.

    Raises:
        UnsupportedServer: the server is no node of Penstock. Other servers have another command under this opcode.
    """
    server = await request_server_info(link, timeout)
    if not server.is_penstock:
        raise UnsupportedServer(
            f"{link.peer} is {server.name}, which closes no connection of another program; expected a node of Penstock"
        )
    await link.request(CloseProducer(key=name.encode()), timeout)


def describe_missing_dialect(peer: str, server: ServerInfo, wanted: Dialect) -> str:
    """Return the sentence for a server that does not have a dialect.

    Args:
        peer: host and port of the server.
        server: its product, version and dialects.
        wanted: the dialect.
    """
    if wanted in server.dialects:
        refused = _DIALECT_NAMES[wanted]
        return f"{peer} is {server.name} and refuses {refused} for this bucket; expected one with change streams"
    lack = f"{peer} is {server.name}, which has no {_DIALECT_NAMES[wanted]}"
    if Dialect.DCP in server.dialects and wanted is not Dialect.DCP:
        return f"{lack}: try protocol=dcp"
    if Dialect.TAP in server.dialects and wanted is not Dialect.TAP:
        return f"{lack}: try protocol=tap, which all but pipelines and streaming queries can use"
    return f"{lack}; expected a server with change streams, as Couchbase 3.0 or newer"


async def make_unsupported_error(link: NodeLink, wanted: Dialect, timeout: float) -> UnsupportedServer:
    """Return the error for a server that refused a dialect."""
    return UnsupportedServer(describe_missing_dialect(link.peer, await request_server_info(link, timeout), wanted))
