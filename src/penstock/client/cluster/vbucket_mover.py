"""Moves of active vbuckets between nodes while clients use them, in two phases as ns_server does it.

First the target becomes a replica, which takes most of the time while clients go on. Then it takes the vbucket over:
the source sends the last changes, stops to serve, and hands the ownership to the target. All nodes get the new map.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from penstock.client.cluster.copy_check import check_takeovers, compare_copies
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.node_failover import read_report
from penstock.client.cluster.replica_choice import is_replaced
from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.connect.retry import is_retriable, run_with_retry
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.relays.node_relay import TAKEOVER, DcpNodeRelay, ReplicaBusy, make_relay_prefix
from penstock.client.replication.map_layout import MapLayout
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replica_consumers import close_consumer, find_consumers
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.client.replication.stored_copies import wait_until_stored
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.errors import ConnectionClosed, Error, KeyExists, OperationTimeout, UsageError
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.flags import StreamFlag

_TAKEOVER_SECONDS = 300.0
"""Time for one takeover after the replica has caught up."""

_POLL_SECONDS = 0.05
_BUSY_SECONDS = 0.005
"""Time between two requests of a takeover: less than another program needs to connect again."""


class MovedVbucket(NamedTuple):
    """A vbucket that has moved.

    Attributes:
        vbucket: its number.
        source: the former owner.
        target: the owner.
        seconds: duration of the takeover, in which clients may be refused.
    """

    vbucket: int
    source: Endpoint
    target: Endpoint
    seconds: float


class Place(Enum):
    """The owner of a vbucket in a map, as a move sees it. A node that stands alone lists no owner of a dead vbucket."""

    SOURCE = "source"
    TARGET = "target"
    NONE = "none"
    OTHER = "other"


class MoveStep(Enum):
    """The next step of a move, by the states that an earlier command may have left.

    Attributes:
        MOVE: the move begins.
        SETTLE: the source has stopped serving, and the target may not own the vbucket yet.
        FINISH: the target owns the vbucket, but not all nodes know.
        DONE: the move has ended.
        REFUSE: the source has no vbucket to move.
    """

    MOVE = "move"
    SETTLE = "settle"
    FINISH = "finish"
    DONE = "done"
    REFUSE = "refuse"


def find_step(
    source: VbucketState | None, target: VbucketState | None, mapped: Place, *, has_same_history: bool
) -> MoveStep:
    """Return the next step of a move.

    Args:
        source: state of the vbucket at its owner; None: it is missing.
        target: state of the vbucket at the node that it moves to.
        mapped: its owner in the newest map.
        has_same_history: whether the target has the newest branch of the source.
    """
    if source is VbucketState.ACTIVE:
        return MoveStep.MOVE
    if source is None:
        is_done = mapped is Place.TARGET and target is VbucketState.ACTIVE
        return MoveStep.DONE if is_done else MoveStep.REFUSE
    if source is not VbucketState.DEAD or mapped is Place.OTHER:
        return MoveStep.REFUSE
    if target in (VbucketState.PENDING, VbucketState.REPLICA):
        return MoveStep.SETTLE
    return MoveStep.FINISH if target is VbucketState.ACTIVE and has_same_history else MoveStep.REFUSE


class VbucketMover:
    """Moves vbuckets of one bucket.

    Args:
        publisher: the newest map of the bucket.
        address: the bucket; its options and credentials are used for all nodes.
        report: called after each move.
    """

    def __init__(
        self, publisher: MapPublisher, address: Address, report: Callable[[MovedVbucket], None] = lambda moved: None
    ) -> None:
        """Create a mover without connections."""
        self._publisher = publisher
        self._address = address
        self._report = report

    async def move(self, vbuckets: Collection[int], source: Endpoint, target: Endpoint) -> None:
        """Move vbuckets from one node to another, also if an earlier command was killed meanwhile.

        Args:
            vbuckets: vbuckets that the source owns, or has just handed over.
            source: their owner.
            target: another node of the publisher's map.

        Raises:
            UnsupportedServer: a node has no DCP.
            UsageError: a node is not in the map, the source does not have a vbucket active, or the target has changes
                of its own.
            KeyExists: a node has a newer map with other places of vbuckets, from another orchestrator.
            ConnectionClosed: a connection was lost during a takeover. The source owns the vbucket again.
        """
        for endpoint in (source, target):
            self._publisher.layout.require_node(endpoint)
        old, new = self._publisher.get_control(source), self._publisher.get_control(target)
        left = await self._repair(sorted(vbuckets), old, new)
        if not left:
            return
        for node in (old, new):
            await check_takeovers(node)
        await release_strays(self._publisher, new)
        await self._release_replicas(left, old, new)
        options = ReplicationOptions(vbuckets=left, protocol=Dialect.DCP, until_caught_up=True)
        async with Replicator(old.address, new.address, options) as replicator:
            await replicator.run()
        for vbucket in left:
            await self._take_over(vbucket, old, new)

    async def _repair(self, vbuckets: Sequence[int], old: NodeControl, new: NodeControl) -> list[int]:
        """Finish the moves that an earlier command has left in the middle. Returns the vbuckets to move from the start.

        Raises:
            UsageError: neither node has a vbucket active.
        """
        found = await self._plan_moves(vbuckets, old, new)
        for vbucket in (vb for vb, step in found.items() if step is MoveStep.SETTLE):
            await self._settle(vbucket, old, new, make_relay_prefix(old.endpoint, new.address, TAKEOVER))
        found |= await self._plan_moves([vb for vb, step in found.items() if step is MoveStep.SETTLE], old, new)
        for vbucket in (vb for vb, step in found.items() if step is MoveStep.FINISH):
            await self._finish(vbucket, old, new)
        return [vbucket for vbucket, step in found.items() if step is MoveStep.MOVE]

    async def _plan_moves(self, vbuckets: Sequence[int], old: NodeControl, new: NodeControl) -> dict[int, MoveStep]:
        states, targets = await old.read_states(), await new.read_states()
        both = [vb for vb in vbuckets if states.get(vb) is VbucketState.DEAD and vb in targets]
        logs, target_logs = await old.read_failover_logs(both), await new.read_failover_logs(both)
        steps = {
            vb: find_step(
                states.get(vb),
                targets.get(vb),
                self._find_place(vb, old, new),
                has_same_history=vb in logs and logs[vb][0].vbuuid in {entry.vbuuid for entry in target_logs[vb]},
            )
            for vb in vbuckets
        }
        for vbucket in (vb for vb, step in steps.items() if step is MoveStep.REFUSE):
            state = states.get(vbucket)
            found = "missing" if state is None else state.name.lower()
            raise UsageError(f"vbucket {vbucket} is {found} at {format_endpoint(*old.endpoint)}, expected active")
        return steps

    def _find_place(self, vbucket: int, old: NodeControl, new: NodeControl) -> Place:
        layout = self._publisher.layout
        places = {
            layout.require_node(old.endpoint): Place.SOURCE,
            layout.require_node(new.endpoint): Place.TARGET,
            NO_NODE: Place.NONE,
        }
        return places.get(layout.chains[vbucket][0], Place.OTHER)

    async def _release_replicas(self, vbuckets: Sequence[int], old: NodeControl, new: NodeControl) -> None:
        """Take the vbuckets from the replicas of the target, so that a running replication ends their streams.

        The map keeps the empty place: the target may have acknowledged durable writes that the other replicas lack.
        """
        layout = self._publisher.layout
        target = layout.require_node(new.endpoint)
        released = [vb for vb in vbuckets if target in layout.chains[vb][1:]]
        if released:
            after = layout.empty_places(released, target)
            await old.set_chains({vb: [after.list_copies(vb)] for vb in released}, VbucketState.ACTIVE)
            await self._publisher.publish(after)

    async def _take_over(self, vbucket: int, old: NodeControl, new: NodeControl) -> None:
        """Take one vbucket over, publish the map, and delete the vbucket at its former owner."""
        clock = asyncio.get_running_loop().time
        started = clock()
        chain = {vbucket: [self._place(vbucket, new).list_copies(vbucket)]}
        await new.set_chains(chain, VbucketState.REPLICA)  # for the first writes after the takeover
        await run_with_retry(lambda: self._run_takeover(vbucket, old, new), old.address, lambda: True)
        await self._finish(vbucket, old, new, started)

    def _place(self, vbucket: int, owner: NodeControl) -> MapLayout:
        """Return the layout with an owner of a vbucket."""
        layout = self._publisher.layout
        return layout.set_owners({vbucket: layout.require_node(owner.endpoint)})

    async def _finish(self, vbucket: int, old: NodeControl, new: NodeControl, started: float | None = None) -> None:
        """Publish the map with the new owner. Delete the vbucket at its former owner once it is on the other disk."""
        clock = asyncio.get_running_loop().time
        started = clock() if started is None else started
        while not await self._publish_owner(vbucket, old, new):
            pass
        self._report(MovedVbucket(vbucket, old.endpoint, new.endpoint, clock() - started))
        await wait_until_stored(vbucket, old, new)
        await old.delete_vbuckets([vbucket])

    async def _publish_owner(self, vbucket: int, old: NodeControl, new: NodeControl) -> bool:
        """Publish the newest map with the new owner. Return whether no other program has placed vbuckets meanwhile."""
        known, layout = self._publisher.layout, self._place(vbucket, new)
        # Once more after the takeover, for servers that refuse the chain of a replica.
        await new.set_chains({vbucket: [layout.list_copies(vbucket)]}, VbucketState.ACTIVE)
        try:
            await self._publisher.publish(layout, new.endpoint)
        except KeyExists:
            if self._publisher.layout is known or self._find_place(vbucket, old, new) is Place.OTHER:
                raise
            return False
        return True

    async def _run_takeover(self, vbucket: int, old: NodeControl, new: NodeControl) -> None:
        ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

        def end(number: int, reason: Exception) -> None:
            if number == vbucket and not ended.done():
                ended.set_result(reason)

        async def check(number: int) -> None:
            try:
                await relay.relay.wait_handled(new.address.options.operation_timeout)
                if not ended.done():  # the target has refused no message
                    await compare_copies(number, old, new)
            except (OSError, Error) as error:
                end(number, error)
            if ended.done():
                raise ended.result()

        layout = self._publisher.layout
        name = layout.nodes[layout.require_node(new.endpoint)].address
        relay = await DcpNodeRelay.open(
            old.address,
            old.endpoint,
            new.address,
            end,
            consumer_name=name,
            purpose=TAKEOVER,
            before_takeover=check,
        )
        closing = asyncio.ensure_future(relay.wait_closed())
        try:
            await request_takeover(relay, vbucket, new)
            await asyncio.wait({ended, closing}, timeout=_TAKEOVER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            await relay.relay.close()
            await self._settle(vbucket, old, new, relay.name)
        if (await new.read_states()).get(vbucket) is not VbucketState.ACTIVE:
            reason = ended.result() if ended.done() else OperationTimeout("the takeover did not end")
            if not is_retriable(reason, has_served=True):
                raise reason
            raise ConnectionClosed(f"vbucket {vbucket} was not taken over: {reason}")

    async def _settle(self, vbucket: int, old: NodeControl, new: NodeControl, name: str) -> None:
        """Give the vbucket back to its owner if the takeover has not ended.

        Args:
            vbucket: the vbucket.
            old: its owner.
            new: the node that takes it over.
            name: the name of the takeover's connections, or its beginning.
        """
        if (await new.read_states()).get(vbucket) is VbucketState.ACTIVE:
            return
        # The target may still read the message that makes the vbucket active. Then both would own it.
        await wait_until_closed(new, name)
        if (await new.read_states()).get(vbucket) is VbucketState.ACTIVE:
            return
        await new.set_states([vbucket], VbucketState.REPLICA)
        await old.set_chains({vbucket: [self._place(vbucket, old).list_copies(vbucket)]}, VbucketState.ACTIVE)


async def release_strays(publisher: MapPublisher, node: NodeControl) -> None:
    """End that a node has vbuckets active or dead that belong to others.

    A new bucket has all vbuckets active: they are unused, and deleted. A node that was failed over has the branch of
    before, and one that has handed a vbucket over has the owner's: these become replicas. Each is dead first, so that
    no client writes to it and no stream fills it while it is compared.

    Args:
        publisher: the newest map of the bucket.
        node: the node.

    Raises:
        UsageError: such a vbucket has changes that its owner does not have. It stays dead, and keeps them.
        KeyExists: the node has a newer map with other places: it may own the vbucket since a failover.
    """
    layout = publisher.layout
    owned = layout.list_owned(layout.require_node(node.endpoint))
    states = (await read_report(node)).states
    active, dead = (
        {vb for vb, found in states.items() if found is state}.difference(owned)
        for state in (VbucketState.ACTIVE, VbucketState.DEAD)
    )
    if not active and not dead:
        return
    await publisher.adopt_map(node.endpoint)
    await node.set_states(active, VbucketState.DEAD)
    report = await read_report(node)
    filled = {vb for vb in active | dead if report.is_filled(vb)}
    replaced = await _find_replaced(publisher, node, filled, report.seqnos)
    for vbucket in sorted(filled - replaced):
        owner = layout.chains[vbucket][0]
        if owner != NO_NODE:
            with suppress(UsageError):  # the owner does not have its changes
                await wait_until_stored(vbucket, node, publisher.get_control(publisher.list_endpoints(layout)[owner]))
                replaced.add(vbucket)
    await node.set_states(replaced, VbucketState.REPLICA)
    await node.delete_vbuckets((active | dead) - filled)
    kept = sorted(filled - replaced)
    if kept:
        raise UsageError(
            f"{format_endpoint(*node.endpoint)} has changes of its own in vbuckets {format_ranges(kept, ', ')}, which "
            "belong to other nodes, expected none; they are kept, in state dead. `penstock replicate` from their "
            "owners loses them"
        )


async def _find_replaced(
    publisher: MapPublisher, node: NodeControl, vbuckets: Collection[int], seqnos: Mapping[int, int]
) -> set[int]:
    """Return the vbuckets whose owners in the map are on a later branch of the node's history.

    Args:
        publisher: the newest map of the bucket.
        node: the node.
        vbuckets: vbuckets of the node that belong to others.
        seqnos: high seqnos of the node.
    """
    layout = publisher.layout
    filled = [vb for vb in vbuckets if seqnos.get(vb) and layout.chains[vb][0] != NO_NODE]
    logs, found = await node.read_failover_logs(filled), set()
    for place, endpoint in enumerate(publisher.list_endpoints(layout)):
        mine = [vb for vb in filled if layout.chains[vb][0] == place]
        owner = publisher.get_control(endpoint)
        states = await owner.read_states() if mine else {}
        active = [vb for vb in mine if states.get(vb) is VbucketState.ACTIVE]
        later = await owner.read_failover_logs(active) if active else {}
        found |= {vb for vb, log in later.items() if is_replaced(logs[vb], seqnos[vb], log)}
    return found


async def request_takeover(relay: DcpNodeRelay, vbucket: int, node: NodeControl) -> None:
    """Request the stream that takes a vbucket over.

    Another program may fill the replica. Its connection to the node is closed, since a node accepts one stream of each
    vbucket. The takeover gets the stream at once, while the other program still connects again.

    Args:
        relay: the relay of the takeover.
        vbucket: the vbucket.
        node: the node that takes it over.

    Raises:
        UsageError: the node cannot close the other connection.
        OperationTimeout: the other connection does not end.
        Error: the node refuses the stream.
    """
    closed: set[str] = set()
    for _ in range(round(node.address.options.operation_timeout / _BUSY_SECONDS) + 1):
        refusal = (await relay.add_streams([vbucket], StreamFlag.TAKEOVER))[vbucket]
        if refusal is None:
            return
        if not isinstance(refusal, ReplicaBusy):
            raise refusal
        names = await find_consumers(node, [vbucket]) - closed
        for name in names:
            await close_consumer(node, name)
        closed |= names
        if not names:
            await asyncio.sleep(_BUSY_SECONDS)
    raise OperationTimeout(f"{node.address} does not end the connections {', '.join(sorted(closed))}")


async def wait_until_closed(node: NodeControl, name: str) -> None:
    """Wait until a node has ended the change-stream connections whose names begin so. Raises OperationTimeout."""
    prefix = f"eq_dcpq:{name}:"
    for _ in range(round(node.address.options.operation_timeout / _POLL_SECONDS) + 1):
        if not any(stat.startswith(prefix) for stat in await node.read_stats("dcp")):
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise OperationTimeout(f"{node.address} does not end the connection {name}")
