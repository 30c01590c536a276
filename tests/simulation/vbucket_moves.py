"""Moves of active vbuckets to other nodes by takeover, as an orchestrator drives them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

from penstock.client.connect.address import parse_address
from penstock.client.replication.node_control import NodeControl
from penstock.errors import Error, TemporaryFailure
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import StreamFlag
from tests.simulation.orchestrator import Orchestrator
from tests.simulation.promises import Promises
from tests.simulation.virtual_loop import Process

__all__ = ["move_vbucket"]

_RETRY_SECONDS = 0.2
_MOST_TRIES = 5


async def move_vbucket(orchestrator: Orchestrator, promises: Promises, vbucket: int, target: int) -> None:
    """Move a vbucket to another node, if that has a replica. A move that fails leaves the vbucket where it was.

    Nothing else changes the vbucket meanwhile. After a takeover that was cut off, only the target knows whether it
    is the owner.
    """
    place = orchestrator.map[vbucket]
    if not orchestrator.can_own(vbucket, target) or orchestrator.applied[place.owner] < place.revision:
        return
    process = orchestrator.cluster.nodes[target].process
    orchestrator.begin_move(vbucket)
    try:
        await _take_over(orchestrator, place.owner, target, vbucket)
        has_moved = await _settle(orchestrator.make_url(target), vbucket, process)
    finally:
        orchestrator.end_move(vbucket)
    if has_moved:
        promises.move(vbucket, place.owner, target)
        orchestrator.change_owner(vbucket, target)
    else:
        promises.forget_copies(vbucket, target)
    for node in (place.owner, target):
        orchestrator.forget(orchestrator.cluster.nodes[node])


async def _take_over(orchestrator: Orchestrator, source: int, target: int, vbucket: int) -> None:
    """Let the target take the vbucket over. Return when the stream or a connection has ended."""
    for number in count(1):
        try:
            await orchestrator.relay(source, target, [vbucket], StreamFlag.TAKEOVER)
        except TemporaryFailure:  # the connection of the replica's stream has not ended yet
            if number < _MOST_TRIES:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
        except (OSError, Error, TimeoutError):
            pass
        return


async def _settle(url: str, vbucket: int, process: Process) -> bool:
    """Return whether the target is the owner. If not, delete its copy, so that it cannot become the owner any more.

    A target that has restarted is not: the state on its disk may be of an earlier revision.
    """
    while True:
        with suppress(OSError, Error, TimeoutError):
            async with NodeControl(parse_address(url)) as control:
                if (await control.read_states()).get(vbucket) is VbucketState.ACTIVE and process.is_alive:
                    return True
                await control.delete_vbuckets([vbucket])
                return False
        await asyncio.sleep(_RETRY_SECONDS)
