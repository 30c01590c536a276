"""Which server a connection goes to, asked only when an error has to be explained."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.client.connect.link import ANY_STATUS, NodeLink
from penstock.errors import Error, UnsupportedServer
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Version

__all__ = ["Server", "ask_server", "explain_lack", "unsupported"]

_SHOWN = {Dialect.TAP: "TAP", Dialect.UPR_DRAFT: "UPR draft", Dialect.UPR: "UPR", Dialect.DCP: "DCP"}

_GROUPS = {Dialect.TAP: "tap", Dialect.DCP: "dcp"}
"""The statistics group of a dialect, which an engine with the dialect has."""


class Server(NamedTuple):
    """What a server reports about itself.

    Attributes:
        version: its answer to VERSION, empty if it has none.
        engine: the statistic ep_version, which every Couchbase and Membase has; empty for a bare memcached.
        dialects: those with a statistics group of their own, which are TAP and DCP.
    """

    version: str = ""
    engine: str = ""
    dialects: frozenset[Dialect] = frozenset()

    @property
    def name(self) -> str:
        """The product and its release, as in an error message."""
        if "penstock" in self.version:
            return f"Penstock {self.version.rpartition('-')[2]}"
        product = "Couchbase" if self.engine else "memcached"
        for version in (self.engine, self.version):
            if release := re.search(r"\d+\.\d+(\.\d+)*", version):
                return f"{product} {release[0]}"
        return f"{product} of unknown version"


async def ask_server(link: NodeLink, timeout: float) -> Server:
    """Return what the server reports about itself; what it does not report, or fails to report, is left empty."""
    try:
        reply = await link.request(Version(), timeout, accept=ANY_STATUS)
        version = reply.value.decode("ascii", "replace") if reply.specific == Status.SUCCESS else ""
        stats = await link.stats("", timeout, optional=True)
        groups = {dialect: await link.stats(group, timeout, optional=True) for dialect, group in _GROUPS.items()}
    except Error:  # whatever goes wrong now, the error that is being explained is the one to raise
        return Server()
    return Server(
        version, stats.get("ep_version", ""), frozenset(dialect for dialect, found in groups.items() if found)
    )


def explain_lack(peer: str, server: Server, wanted: Dialect) -> str:
    """Return the sentence for a server that does not have a dialect.

    Args:
        peer: host and port of the server.
    """
    if wanted in server.dialects:
        return f"{peer} is {server.name} and refuses {_SHOWN[wanted]} for this bucket; expected one with change streams"
    lack = f"{peer} is {server.name}, which has no {_SHOWN[wanted]}"
    if Dialect.DCP in server.dialects and wanted is not Dialect.DCP:
        return f"{lack}: try protocol=dcp"
    if Dialect.TAP in server.dialects and wanted is not Dialect.TAP:
        return f"{lack}: try protocol=tap, which all but pipelines and streaming queries can use"
    return f"{lack}; expected a server with change streams, as Couchbase 3.0 or newer"


async def unsupported(link: NodeLink, wanted: Dialect, timeout: float) -> UnsupportedServer:
    """Return the error for a server that refused a dialect."""
    return UnsupportedServer(explain_lack(link.peer, await ask_server(link, timeout), wanted))
