"""Moves of active vbuckets by the product's mover. Its command may be killed, and is then started again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.replication.map_layout import read_map_layout
from penstock.client.replication.node_control import NodeControl
from penstock.errors import Error
from penstock.wire.codec.constants import VbucketState
from tests.simulation.cluster import SimulatedNode
from tests.simulation.orchestrator import Orchestrator
from tests.simulation.promises import Promises
from tests.simulation.virtual_loop import Process

__all__ = ["move_vbucket"]

_PATIENCE_SECONDS = 10.0
_RETRY_SECONDS = 0.2
_MOST_RUNS = 3
_FAILURES = (OSError, Error, TimeoutError)


async def move_vbucket(
    orchestrator: Orchestrator, promises: Promises, vbucket: int, target: int, kills: Sequence[float]
) -> None:
    """Move a vbucket to another node, if that has a replica. A move that fails leaves the vbucket where it was.

    Args:
        orchestrator: has the map. Nothing else changes the vbucket meanwhile.
        promises: expects the writes of the vbucket on its new owner.
        vbucket: the vbucket.
        target: number of the new owner.
        kills: seconds after which the command is killed, for each run that is.
    """
    place = orchestrator.map[vbucket]
    is_known = orchestrator.applied[place.owner] >= place.revision
    if orchestrator.moving or not is_known or not orchestrator.can_own(vbucket, target):
        return
    source, nodes = place.owner, orchestrator.cluster.nodes
    former, process, branch = nodes[source].process, nodes[target].process, _read_branch(nodes[source], vbucket)
    orchestrator.begin_move(vbucket)
    try:
        is_complete = await _run_commands(orchestrator, vbucket, source, target, kills)
        has_moved = is_complete or await _settle(orchestrator, vbucket, target, process)
    finally:
        orchestrator.end_move(vbucket)
    if has_moved:
        if process.is_alive:
            promises.move(vbucket, source, target, is_complete=is_complete)
        if not former.is_alive and _read_branch(nodes[target], vbucket) != branch:
            promises.forget_lost(vbucket, source, target)
        promises.forget_copies(vbucket, source)
        orchestrator.change_owner(vbucket, target)
    else:
        promises.forget_copies(vbucket, target)


def _read_branch(node: SimulatedNode, vbucket: int) -> int | None:
    """Return the newest vbuuid of a vbucket; None: it has none. A crash of the owner changes it."""
    log = () if node.node is None else node.vbuckets[vbucket].history.failover_log
    return log[0].vbuuid if log else None


async def _run_commands(
    orchestrator: Orchestrator, vbucket: int, source: int, target: int, kills: Sequence[float]
) -> bool:
    """Run the command until it ends. Return whether it has moved the vbucket."""
    for seconds in (*kills, *[None] * _MOST_RUNS):
        with suppress(*_FAILURES):
            async with asyncio.timeout(seconds):
                await _run_mover(orchestrator, vbucket, source, target)
            return True
        await asyncio.sleep(_RETRY_SECONDS)
    return False


async def _run_mover(orchestrator: Orchestrator, vbucket: int, source: int, target: int) -> None:
    address = orchestrator.make_address(source, _PATIENCE_SECONDS)
    publisher = MapPublisher(address)
    try:
        for node in range(len(orchestrator.cluster.nodes)):
            await publisher.load(orchestrator.get_endpoint(node))
        mover = VbucketMover(publisher, address)
        await mover.move([vbucket], orchestrator.get_endpoint(source), orchestrator.get_endpoint(target))
    finally:
        await publisher.close()


async def _settle(orchestrator: Orchestrator, vbucket: int, target: int, process: Process) -> bool:
    """Return whether the target is the owner. If not, delete its copy, so that it cannot become the owner any more.

    The mover publishes the map before it deletes the vbucket of the source. Without that map, a target that has
    restarted is no owner: the state on its disk may be of an earlier revision.
    """
    endpoint = orchestrator.get_endpoint(target)
    while True:
        with suppress(*_FAILURES):
            async with NodeControl(orchestrator.make_address(target)) as control:
                layout = read_map_layout(await control.read_map(), endpoint)
                if layout.chains[vbucket][0] == layout.find_node(endpoint):
                    return True
                if (await control.read_states()).get(vbucket) is VbucketState.ACTIVE and process.is_alive:
                    return True
                await control.delete_vbuckets([vbucket])
                return False
        await asyncio.sleep(_RETRY_SECONDS)
