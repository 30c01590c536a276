"""The replicas that the map of a bucket names: they are placed on nodes, and kept up to date."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.node_failover import read_copies, read_report
from penstock.client.cluster.replica_choice import ReplicaReport
from penstock.client.cluster.vbucket_mover import release_strays
from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.map_layout import MapLayout, MapVersion, find_next_version, read_map_layout
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replica_consumers import find_consumers
from penstock.client.replication.replication_progress import ReplicationProgress
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.client.topology.balance_plan import plan_replicas
from penstock.errors import ConnectionClosed, Error, OperationTimeout
from penstock.wire.codec.constants import Dialect, VbucketState

logger = logging.getLogger("penstock.client")

_POLL_SECONDS = 0.5
_COPY_POLL_SECONDS = 0.1
_STREAM_POLL_SECONDS = 0.05
_MAP_SECONDS = 5.0
"""Time for the answer of a node about its map. The others may know it too."""

Replicas = Mapping[Endpoint, frozenset[int]]
"""Node -> the vbuckets that have a replica there."""


def list_replicas(layout: MapLayout, *, tls: bool) -> dict[Endpoint, frozenset[int]]:
    """Return the vbuckets whose replicas belong on each node. A vbucket needs an owner."""
    found: dict[Endpoint, set[int]] = {}
    for vbucket, (owner, *places) in enumerate(layout.chains):
        for place in places:
            if NO_NODE not in (owner, place):
                found.setdefault(layout.nodes[place].get_endpoint(tls=tls), set()).add(vbucket)
    return {endpoint: frozenset(vbuckets) for endpoint, vbuckets in found.items()}


@dataclass(slots=True)
class _NodeCopy:
    """The replication to one node.

    Attributes:
        vbuckets: the vbuckets whose replicas it keeps.
        replicator: replicates them; None while it connects.
        progress: its last progress.
        task: runs it.
    """

    vbuckets: frozenset[int]
    replicator: Replicator | None = None
    progress: ReplicationProgress | None = None
    task: asyncio.Task[None] | None = None

    def add(self, vbuckets: frozenset[int]) -> None:
        """Replicate more vbuckets, without an interruption of the others."""
        self.vbuckets = vbuckets
        if self.replicator is not None:
            self.replicator.add_vbuckets(vbuckets)

    async def stop(self) -> None:
        """End the replication."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class MapReplication:
    """Keeps the replicas of the newest map up to date, while it is entered. Nodes that do not answer are tried again.

    A replica that another program replicates is left to it, and tried again until that program has ended.
    """

    def __init__(
        self,
        address: Address,
        report: Callable[[int, int], None] = lambda running, lag: None,
        planned: Replicas | None = None,
    ) -> None:
        """Create a replication without connections.

        Args:
            address: the bucket, at any of its nodes.
            report: called with the number of running replicas, and the changes that they lack, several times a second.
            planned: the replicas to keep instead of those of the map, until `adopt_map`.
        """
        self._address = address
        self._report = report
        self._controls: dict[Endpoint, NodeControl] = {}
        self._version: MapVersion = (0, 0)
        self._layout = MapLayout((), ())
        self._planned = planned
        self._failure: Exception | None = None  # of a planned replica
        self._copies: dict[Endpoint, _NodeCopy] = {}

    async def __aenter__(self) -> Self:
        """Start the replication."""
        self._running = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        for copy in self._copies.values():
            await copy.stop()
        for control in self._controls.values():
            await control.close()

    async def wait(self) -> None:
        """Wait until the task is cancelled: a replication has no end. Raises the error of a node without TLS."""
        await self._running

    async def copy_replicas(self, replicas: Replicas, are_complete: Callable[[], Awaitable[bool]]) -> None:
        """Keep planned replicas from now on, and wait until they are complete. Another program may fill some of them.

        Args:
            replicas: the replicas.
            are_complete: returns whether they are complete.

        Raises:
            Unreachable: a node did not serve for as long as the option retrySeconds.
            UsageError: a node has one of the vbuckets active.
        """
        self._planned, self._failure = replicas, None
        while not await are_complete():
            await asyncio.wait({self._running}, timeout=_COPY_POLL_SECONDS)
            if self._running.done():
                await self._running
            if self._failure is not None:
                raise self._failure

    def adopt_map(self, layout: MapLayout) -> None:
        """Keep the replicas of the map from now on. The layout is that of the newest map, which was just published."""
        self._layout, self._planned = layout, None

    async def _run(self) -> None:
        while True:
            await self._read_maps()
            await self._follow_map()
            found = [copy.progress for copy in self._copies.values() if copy.progress is not None]
            self._report(sum(each.running for each in found), sum(each.lag for each in found))
            await asyncio.sleep(_POLL_SECONDS)

    # The map

    def _list_nodes(self) -> list[Endpoint]:
        nodes = [node.get_endpoint(tls=self._address.tls) for node in self._layout.nodes]
        return list(dict.fromkeys((*nodes, *self._address.hosts)))

    async def _read_maps(self) -> None:
        """Adopt the newest map that a node has."""
        await asyncio.gather(*map(self._read_map, self._list_nodes()))

    async def _read_map(self, endpoint: Endpoint) -> None:
        control = self._controls.setdefault(endpoint, NodeControl(self._address.with_retries(0.0), endpoint))
        try:
            async with asyncio.timeout(_MAP_SECONDS):
                document = await control.read_map()
            layout = read_map_layout(document, endpoint)
        except (OSError, Error):
            return  # the others may answer
        version = find_next_version([document])
        if version > self._version:
            self._version, self._layout = version, layout

    # The replications of the nodes

    async def _follow_map(self) -> None:
        """Start, restart and stop the replications of nodes. Raises an unexpected error of one."""
        wanted = list_replicas(self._layout, tls=self._address.tls) if self._planned is None else self._planned
        for endpoint, copy in tuple(self._copies.items()):
            assert copy.task is not None
            if copy.task.done():
                copy.task.result()  # raises an error that no new attempt would end
            if copy.task.done() or copy.vbuckets - wanted.get(endpoint, frozenset()):
                await copy.stop()
                del self._copies[endpoint]
        for endpoint, vbuckets in wanted.items():
            copy = self._copies.setdefault(endpoint, _NodeCopy(vbuckets))
            copy.add(vbuckets)
            if copy.task is None:
                copy.task = asyncio.get_running_loop().create_task(self._replicate(endpoint, copy))

    async def _replicate(self, target: Endpoint, copy: _NodeCopy) -> None:
        def report(progress: ReplicationProgress) -> None:
            copy.progress = progress

        address, is_planned = self._address, self._planned is not None
        if not is_planned:  # no stream may end because a node of other streams is away for long
            address = address.with_retries(math.inf)
        options = ReplicationOptions(vbuckets=sorted(copy.vbuckets), protocol=Dialect.DCP, keeps_active=True)
        source, place = replace(address, hosts=tuple(self._list_nodes())), replace(address, hosts=(target,))
        try:
            async with Replicator(source, place, options) as copy.replicator:
                copy.replicator.add_vbuckets(copy.vbuckets)  # those that were added while it connected
                await copy.replicator.run(report)
        except (OSError, Error) as error:
            logger.warning("replicas on %s:%d: %s", *target, error)
            if is_planned:
                self._failure = error


class ReplicaGoals:
    """The changes that owners had at the last reading, and whether all replicas have them."""

    def __init__(self, publisher: MapPublisher, layout: MapLayout, vbuckets: Collection[int]) -> None:
        """Create goals without a reading.

        Args:
            publisher: has the controls of the nodes.
            layout: the owners and replicas.
            vbuckets: those whose replicas count. Each has an owner.
        """
        self._publisher = publisher
        self._layout = layout
        self._vbuckets = vbuckets
        self._owned: dict[int, ReplicaReport] = {}

    async def read(self) -> None:
        """Read the changes that the owners have.

        Raises:
            ConnectionClosed: an owner has begun a new branch since the last reading. It has restarted, and may have
                lost changes, and the replication chains that it was sent.
        """
        found: dict[int, ReplicaReport] = {}
        for place, endpoint in enumerate(self._publisher.list_endpoints(self._layout)):
            found |= await self._read(endpoint, {vb for vb in self._vbuckets if self._layout.chains[vb][0] == place})
        for vbucket, owner in found.items():
            known = self._owned.get(vbucket, owner).failover_log[0]
            if owner.failover_log[0] != known:
                raise ConnectionClosed(
                    f"the owner of vbucket {vbucket} has begun branch {owner.failover_log[0].vbuuid}, expected "
                    f"{known.vbuuid} until its replicas are complete"
                )
        self._owned = found

    async def are_reached(self) -> bool:
        """Return whether all replicas have the changes that the owners had at the last reading, on disk too."""
        results = await asyncio.gather(*map(self._has_stored, range(len(self._layout.nodes))))
        return all(results)

    async def _has_stored(self, place: int) -> bool:
        vbuckets = {vb for vb in self._vbuckets if place in self._layout.chains[vb][1:]}
        endpoint = self._publisher.list_endpoints(self._layout)[place]
        copies = await self._read(endpoint, vbuckets, VbucketState.REPLICA)
        return copies.keys() == vbuckets and all(copy.has_stored(self._owned[vb]) for vb, copy in copies.items())

    async def _read(
        self, endpoint: Endpoint, vbuckets: Collection[int], state: VbucketState = VbucketState.ACTIVE
    ) -> dict[int, ReplicaReport]:
        """Return the reports of a node about those of the vbuckets that it has in a state."""
        if not vbuckets:
            return {}
        control = self._publisher.get_control(endpoint)
        report = await read_report(control)
        return await read_copies(control, report, {vb for vb in vbuckets if report.has(vb, state)})


async def place_replicas(
    publisher: MapPublisher, replication: MapReplication, count: int, leaving: Collection[Endpoint] = ()
) -> None:
    """Give each vbucket replicas on other nodes than its owner, evenly, and publish the map once they are complete.

    An acknowledged durable write is on a majority of the former chain, but a failover asks the new one. So all replicas
    of a vbucket whose chain changes get all changes of their owner first, those that were in the former chain too.
    While the map changes, durable writes need both chains.

    Args:
        publisher: the newest map of the bucket.
        replication: copies the replicas that are missing, and keeps those of the map then.
        count: replicas of each vbucket.
        leaving: nodes that have no replicas afterwards.

    Raises:
        UsageError: there are too few nodes, or a node has changes of its own.
        Unreachable: a node did not serve for as long as the option retrySeconds.
    """
    before = publisher.layout
    gone = [before.require_node(endpoint) for endpoint in leaving]
    after = before.set_replicas(plan_replicas(before.chains, len(before.nodes), count, gone))
    wanted = list_replicas(after, tls=publisher.tls)
    for endpoint in wanted:
        await release_strays(publisher, publisher.get_control(endpoint))
    changed = frozenset(
        vb for vb, chain in enumerate(after.chains) if chain != before.chains[vb] and chain[0] != NO_NODE
    )
    copied = {endpoint: vbuckets & changed for endpoint, vbuckets in wanted.items() if vbuckets & changed}
    goals = ReplicaGoals(publisher, after, changed)
    await goals.read()
    await replication.copy_replicas(copied, goals.are_reached)
    both = {vb: dict.fromkeys((tuple(before.list_copies(vb)), tuple(after.list_names(vb)))) for vb in changed}
    await _set_chains(publisher, after, {vb: [*chains] for vb, chains in both.items()})
    await goals.read()  # the last writes that needed the former chain alone
    await replication.copy_replicas(copied, goals.are_reached)
    await goals.read()
    await publisher.publish(after)
    await set_map_chains(publisher)
    replication.adopt_map(after)
    for endpoint in publisher.list_endpoints(after):
        await _delete_other_replicas(publisher.get_control(endpoint), wanted.get(endpoint, frozenset()))


async def set_map_chains(publisher: MapPublisher) -> None:
    """Give the owners the replication chains of the newest map. They may have others since a rebalance was killed."""
    layout = publisher.layout
    await _set_chains(publisher, layout, {vb: [layout.list_names(vb)] for vb in range(len(layout.chains))})


async def _set_chains(
    publisher: MapPublisher, layout: MapLayout, chains: Mapping[int, Sequence[Sequence[str | None]]]
) -> None:
    """Set replication chains of vbuckets at their owners."""
    for place, endpoint in enumerate(publisher.list_endpoints(layout)):
        mine = {vb: chains[vb] for vb in layout.list_owned(place) if vb in chains}
        await publisher.get_control(endpoint).set_chains(mine, VbucketState.ACTIVE)


async def _delete_other_replicas(node: NodeControl, kept: frozenset[int]) -> None:
    """Delete the replicas that the map does not name, once no stream fills them, which would create them again.

    A program that keeps the replicas of the map ends these streams when it has read the new map.

    Raises:
        OperationTimeout: a stream does not end.
    """
    states = await node.read_states()
    vbuckets = {vb for vb, state in states.items() if state is VbucketState.REPLICA} - kept
    for _ in range(round(node.address.options.operation_timeout / _STREAM_POLL_SECONDS) + 1):
        if not await find_consumers(node, vbuckets):
            await node.delete_vbuckets(vbuckets)
            return
        await asyncio.sleep(_STREAM_POLL_SECONDS)
    host, port = node.endpoint
    raise OperationTimeout(f"a stream still fills replicas on {host}:{port}, expected its end after the new map")
