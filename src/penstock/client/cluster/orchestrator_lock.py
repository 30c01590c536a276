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
from functools import partial
from types import TracebackType
from typing import Never, Self

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, make_unique_suffix, open_session
from penstock.client.connect.handshake import DOCUMENTS
from penstock.client.connect.node_link import UNKNOWN_COMMAND_STATUSES
from penstock.client.connect.retry import is_retriable, run_with_retry
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replica_consumers import list_connections
from penstock.errors import Error, Unreachable, UsageError
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.messages.dcp import Open

_POLLS, _POLL_SECONDS = 20, 0.1
"""A node needs a moment to see that a killed program has closed its connection."""
_HOLD_SECONDS = 1.0
"""Time between two attempts to hold the lock at nodes that have restarted."""


class LockRole(Enum):
    """Work for a bucket, which is done by one program at a time.

    Attributes:
        MAP: changes the map and the states of vbuckets.
        STREAMS: keeps the streams to the replicas that the map names.
    """

    MAP = "map"
    STREAMS = "streams"


class OrchestratorLock:
    """The connections of one program, by which others know that it does the work of a role. Leaving it releases it."""

    def __init__(self, address: Address, role: LockRole) -> None:
        """Create a lock that is not held anywhere.

        Args:
            address: the bucket; its options and credentials are used for all nodes.
            role: the work.
        """
        self._address = address
        self._prefix = f"penstock-orchestrator:{role.value}:"
        self._name = f"{self._prefix}{socket.gethostname()[:64]}:{os.getpid()}:{make_unique_suffix()}"
        self._sessions: dict[Endpoint, ClientSession] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions.values():
            await session.link.close()

    async def take(self, endpoints: Sequence[Endpoint]) -> None:
        """Hold the lock at these nodes.

        Raises:
            UsageError: another program holds it at a node.
            Error, OSError: a node does not answer for as long as the option retrySeconds.
        """
        for endpoint in endpoints:
            await run_with_retry(partial(self._take_at, endpoint), replace(self._address, hosts=(endpoint,)))

    async def take_reachable(self, endpoints: Sequence[Endpoint]) -> None:
        """Hold the lock at those of the nodes that answer.

        Raises:
            UsageError: another program holds it at a node.
        """
        for endpoint in endpoints:
            try:
                await self._take_at(endpoint)
            except (OSError, Error) as error:
                if not isinstance(error, Unreachable) and not is_retriable(error, has_served=True):
                    raise

    async def hold(self, endpoints: Sequence[Endpoint]) -> Never:
        """Take the lock again at nodes that have restarted, until the task is cancelled.

        Raises:
            UsageError: as in `take`.
        """
        while True:
            await asyncio.sleep(_HOLD_SECONDS)
            await self.take_reachable(endpoints)

    async def _take_at(self, endpoint: Endpoint) -> None:
        """Take the lock at a node, unless it is held there. A node without DCP has none."""
        held = self._sessions.get(endpoint)
        if held is not None and not held.link.closed.done():
            return
        address = replace(self._address, hosts=(endpoint,)).with_retries(0.0)
        session = await open_session(address, DOCUMENTS)
        try:
            request = Open(key=self._name.encode(), flags=OpenFlag.PRODUCER)
            await session.link.request(request, address.options.connect_timeout, accept=UNKNOWN_COMMAND_STATUSES)
            await self._check_others(address)
        except BaseException:  # a lock that is taken by half is none
            await session.link.close()
            raise
        self._sessions[endpoint] = session

    async def _check_others(self, address: Address) -> None:
        """Raise UsageError if another program holds the lock at a node, and does not release it in a moment."""
        async with NodeControl(address) as control:
            for _ in range(_POLLS):
                other = await self._find_other(control)
                if not other:
                    return
                await asyncio.sleep(_POLL_SECONDS)
        host, process, _ = other.removeprefix(self._prefix).rsplit(":", 2)
        raise UsageError(
            f"process {process} of {host} drives {address.bucket!r} at {format_endpoint(*control.endpoint)}, "
            "expected one orchestrator at a time"
        )

    async def _find_other(self, control: NodeControl) -> str:
        """Return the name of another program's lock at a node; empty if there is none."""
        names = list_connections(await control.read_stats("dcp", optional=True))
        return next((name for name in names if name.startswith(self._prefix) and name != self._name), "")
