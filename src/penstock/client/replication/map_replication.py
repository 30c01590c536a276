"""The replicas that the map of a bucket names: they are placed on nodes, and kept up to date."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import NO_NODE, Endpoint
from penstock.client.replication.balance_plan import plan_replicas
from penstock.client.replication.map_layout import MapLayout, find_next_version, read_map_layout
from penstock.client.replication.map_publisher import MapPublisher
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replication_progress import ReplicationProgress
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.errors import Error
from penstock.wire.codec.constants import Dialect, VbucketState

__all__ = ["MapReplication", "list_replicas", "place_replicas"]

logger = logging.getLogger("penstock.client")

_POLL_SECONDS = 0.5
_MAP_SECONDS = 5.0


def list_replicas(layout: MapLayout) -> dict[int, frozenset[int]]:
    """Return the vbuckets whose replicas belong on a node, by the index of the node. A vbucket needs an owner."""
    found: dict[int, set[int]] = {}
    for vbucket, (owner, *places) in enumerate(layout.chains):
        for place in places:
            if NO_NODE not in (owner, place):
                found.setdefault(place, set()).add(vbucket)
    return {place: frozenset(vbuckets) for place, vbuckets in found.items()}


async def place_replicas(publisher: MapPublisher, address: Address, count: int) -> None:
    """Give each vbucket replicas on other nodes than its owner, evenly, and publish the map once they are complete.

    Args:
        publisher: the newest map of the bucket.
        address: the bucket; its options and credentials are used for all nodes.
        count: replicas of each vbucket.

    Raises:
        UsageError: there are too few nodes.
    """
    before = publisher.layout
    after = before.set_replicas(plan_replicas(before.chains, len(before.nodes), count))
    nodes, old, new = publisher.list_endpoints(after), list_replicas(before), list_replicas(after)
    for place, vbuckets in new.items():
        missing = sorted(vbuckets - old.get(place, frozenset()))
        if missing:
            options = ReplicationOptions(vbuckets=missing, protocol=Dialect.DCP, until_caught_up=True)
            async with _make_replicator(address, nodes, nodes[place], options) as replicator:
                await replicator.run()
    for place, endpoint in enumerate(nodes):
        chains = {vbucket: after.list_names(vbucket) for vbucket in after.list_owned(place)}
        await publisher.get_control(endpoint).set_chains(chains, VbucketState.ACTIVE)
    await publisher.publish(after)
    for place, vbuckets in old.items():
        await publisher.get_control(nodes[place]).delete_vbuckets(vbuckets - new.get(place, frozenset()))


def _make_replicator(
    address: Address, nodes: list[Endpoint], target: Endpoint, options: ReplicationOptions
) -> Replicator:
    return Replicator(replace(address, hosts=tuple(nodes)), replace(address, hosts=(target,)), options)


class MapReplication:
    """Keeps the replicas of the newest map up to date. Nodes that do not answer are tried again.

    Args:
        address: the bucket, at any of its nodes.
        report: called with the number of running replicas, and the changes that they lack, several times a second.
    """

    def __init__(self, address: Address, report: Callable[[int, int], None] = lambda running, lag: None) -> None:
        self._address = address
        self._report = report
        self._controls: dict[Endpoint, NodeControl] = {}
        self._version = (0, 0)
        self._layout: MapLayout | None = None
        self._wanted: dict[Endpoint, frozenset[int]] = {}
        self._running: dict[Endpoint, asyncio.Task[None]] = {}
        self._progress: dict[Endpoint, tuple[int, int]] = {}

    async def run(self) -> None:
        """Replicate until the task is cancelled."""
        try:
            while True:
                await self._read_maps()
                await self._follow_map()
                self._report(*map(sum, zip((0, 0), *self._progress.values(), strict=True)))
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            for control in self._controls.values():
                await control.close()

    def _list_nodes(self) -> list[Endpoint]:
        if self._layout is None:
            return list(self._address.hosts)
        return [node.get_endpoint(tls=self._address.tls) for node in self._layout.nodes]

    async def _read_maps(self) -> None:
        """Adopt the newest map that a node has."""
        nodes = dict.fromkeys((*self._list_nodes(), *self._address.hosts))
        await asyncio.gather(*map(self._read_map, nodes))

    async def _read_map(self, endpoint: Endpoint) -> None:
        options = replace(self._address.options, retry_seconds=0.0)
        address = replace(self._address, options=options)
        control = self._controls.setdefault(endpoint, NodeControl(address, endpoint))
        try:
            async with asyncio.timeout(_MAP_SECONDS):
                document = await control.read_map()
            layout = read_map_layout(document, endpoint)
        except (OSError, Error):
            return  # the others may answer
        version = find_next_version([document])
        if version > self._version:
            self._version, self._layout = version, layout

    async def _follow_map(self) -> None:
        """Start, restart and stop the replications of nodes."""
        nodes = self._list_nodes()
        places = {} if self._layout is None else list_replicas(self._layout)
        wanted = {nodes[place]: vbuckets for place, vbuckets in places.items()}
        for endpoint, task in tuple(self._running.items()):
            if wanted.get(endpoint) != self._wanted[endpoint] or task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del self._running[endpoint]
                self._progress.pop(endpoint, None)
        for endpoint in wanted.keys() - self._running.keys():
            self._wanted[endpoint] = wanted[endpoint]
            self._running[endpoint] = asyncio.get_running_loop().create_task(
                self._replicate(endpoint, nodes, wanted[endpoint])
            )

    async def _replicate(self, target: Endpoint, nodes: list[Endpoint], vbuckets: frozenset[int]) -> None:
        def report(progress: ReplicationProgress) -> None:
            self._progress[target] = (progress.running, progress.lag)

        options = ReplicationOptions(vbuckets=sorted(vbuckets), protocol=Dialect.DCP, keeps_active=True)
        try:
            async with _make_replicator(self._address, nodes, target, options) as replicator:
                await replicator.run(report)
        except (OSError, Error) as error:
            logger.warning("replicas on %s:%d: %s", *target, error)
