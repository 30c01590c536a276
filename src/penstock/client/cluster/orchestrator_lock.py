"""The lock of an orchestrator: named connections to the nodes, which other orchestrators see.

A node lists its DCP connections with their names. So a lock needs nothing of the node, and ends with its process. An
orchestrator connects first and looks for others then: of two that start at once, at least one sees the other.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, make_unique_suffix, open_session
from penstock.client.connect.handshake import DOCUMENTS
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.replication.node_control import NodeControl
from penstock.errors import ConnectionClosed, Unreachable, UsageError
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.messages.dcp import Open

__all__ = ["LockRole", "OrchestratorLock"]

_PREFIX = "penstock-orchestrator"
_STAT_PREFIX = "eq_dcpq:"
_POLLS, _POLL_SECONDS = 20, 0.1
"""A node needs a moment to see that a killed program has closed its connection."""


class LockRole(Enum):
    """Work for a bucket, which is done by one program at a time.

    Attributes:
        MAP: changes the map and the states of vbuckets.
        STREAMS: keeps the streams to the replicas that the map names.
    """

    MAP = "map"
    STREAMS = "streams"


class OrchestratorLock:
    """The connections of one program, by which others know that it does the work of a role."""

    def __init__(self, address: Address, role: LockRole) -> None:
        """Create a lock that is not held anywhere.

        Args:
            address: the bucket; its options and credentials are used for all nodes.
            role: the work.
        """
        self._address = replace(address, options=replace(address.options, retry_seconds=0.0))
        self._prefix = f"{_PREFIX}:{role.value}:"
        self._name = f"{self._prefix}{socket.gethostname()[:64]}:{os.getpid()}:{make_unique_suffix()}"
        self._sessions: dict[Endpoint, ClientSession] = {}

    async def take(self, endpoints: Sequence[Endpoint]) -> None:
        """Hold the lock at these nodes. Nodes that do not answer are left out, those that hold it already stay.

        Raises:
            UsageError: another program holds it at a node. Then this program holds it nowhere.
        """
        try:
            for endpoint in endpoints:
                held = self._sessions.get(endpoint)
                if held is None or held.link.closed.done():
                    await self._take_at(endpoint)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Release the lock."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.link.close()

    async def _take_at(self, endpoint: Endpoint) -> None:
        address = replace(self._address, hosts=(endpoint,))
        try:
            session = self._sessions[endpoint] = await open_session(address, DOCUMENTS)
            request = Open(key=self._name.encode(), flags=OpenFlag.PRODUCER)
            await session.link.request(request, address.options.connect_timeout)
            async with NodeControl(address) as control:
                await self._wait_until_alone(control)
        except (OSError, Unreachable, ConnectionClosed):
            return

    async def _wait_until_alone(self, control: NodeControl) -> None:
        other = await self._find_other(control)
        for _ in range(_POLLS):
            if other is None:
                return
            await asyncio.sleep(_POLL_SECONDS)
            other = await self._find_other(control)
        if other is not None:
            host, process = other.removeprefix(self._prefix).split(":")[:2]
            raise UsageError(
                f"process {process} of {host} drives {control.address.bucket!r} at "
                f"{format_endpoint(*control.endpoint)}, expected one orchestrator at a time"
            )

    async def _find_other(self, control: NodeControl) -> str | None:
        """Return the name of another program's lock at a node."""
        stats = await control.read_stats("dcp", optional=True)
        start = _STAT_PREFIX + self._prefix
        names = (name.removeprefix(_STAT_PREFIX).rpartition(":")[0] for name in stats if name.startswith(start))
        return next((name for name in names if name.count(":") == self._name.count(":") and name != self._name), None)
