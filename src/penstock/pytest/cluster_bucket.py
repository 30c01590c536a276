"""A bucket on the nodes of a test's cluster: moves, failover, rollback, deletion, and creation under its old name."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from penstock.client.blocking import LoopThread
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.node_failover import FailoverResult, fail_over
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.connect.address import parse_address
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.map_layout import MapNode
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.errors import UsageError
from penstock.names import quote_part
from penstock.node import Node
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.pytest.proxied_node import PenstockNode
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, VbucketState

__all__ = ["PenstockBucket"]

T = TypeVar("T")

_CALL_SECONDS = 120.0


class PenstockBucket:
    """A bucket on all nodes of a cluster.

    Methods block until the change is done, and may be called from any thread. They reach the nodes without the proxies,
    so injected faults do not hinder them.

    Attributes:
        name: the name of the bucket.
        vbuckets: the number of its vbuckets.
        nodes: the nodes of the cluster.
    """

    def __init__(self, name: str, vbuckets: int, nodes: Sequence[PenstockNode], loop: LoopThread) -> None:
        """Create a bucket that exists on no node yet. `create` creates it.

        Args:
            name: the name of the bucket.
            vbuckets: the number of its vbuckets, a power of two.
            nodes: the nodes of the cluster, all of them running.
            loop: the thread that moves vbuckets.
        """
        self.name = name
        self.vbuckets = vbuckets
        self.nodes = nodes
        self._loop = loop

    @property
    def url(self) -> str:
        """The connection string, with the proxies of all nodes."""
        hosts = ",".join(f"{node.place.host}:{node.place.kv}" for node in self.nodes)
        return f"couchbase://{hosts}/{quote_part(self.name)}"

    def create(self) -> None:
        """Create the bucket on all nodes, with a new uuid."""
        spec = BucketSpec(name=self.name, vbuckets=self.vbuckets, uuid=secrets.token_hex(16))
        for node in self.nodes:
            node.run(node.node.buckets.create(spec))

    def delete(self) -> None:
        """Delete the bucket on all nodes that run. A bucket that does not exist stays so."""
        for node in self._list_running():
            if node.call(lambda running: self.name in running.buckets):
                node.run(node.node.buckets.delete(self.name))

    def recreate(self) -> None:
        """Delete the bucket, and create an empty one of the same name with a new uuid."""
        self.delete()
        self.create()

    # Vbuckets

    def find_owner(self, vbucket: int) -> int | None:
        """Return the number of the node where a vbucket is active; None if it is on no running node."""
        if not 0 <= vbucket < self.vbuckets:
            raise UsageError(f"vbucket {vbucket} of bucket {self.name!r}, expected 0 to {self.vbuckets - 1}")
        for node in self._list_running():
            if vbucket in self._list_active(node):
                return node.index
        return None

    def rollback(self, vbucket: int, seqno: int) -> int:
        """Lose the changes of a vbucket above a seqno, as a failover to a replica without them does.

        Args:
            vbucket: the vbucket. It begins a new branch.
            seqno: the last seqno to keep.

        Returns:
            The seqno at which the rollback ended: 0 if a needed version no longer exists.

        Raises:
            UsageError: no running node has the vbucket active.
        """
        owner = self._require_owner(vbucket)

        def roll_back(node: Node) -> int:
            served = node.buckets[self.name]
            found = served.store.vbuckets[vbucket]
            end = found.rollback(min(seqno, found.changes.high_seqno))
            for state in (VbucketState.REPLICA, VbucketState.ACTIVE):
                found.set_state(state)
                served.report_event(found, VbucketEvent.STATE_CHANGED)
            return end

        return owner.call(roll_back)

    def move(self, vbuckets: int | Iterable[int], to: int) -> None:
        """Move vbuckets to a node, as a rebalance does. A node that left the cluster map returns to it.

        Args:
            vbuckets: one or more vbuckets. Those that are on the node already stay there.
            to: the number of the node.

        Raises:
            UsageError: a vbucket is active on no running node, or the node is stopped.
        """
        wanted = [vbuckets] if isinstance(vbuckets, int) else sorted(set(vbuckets))
        by_owner: dict[int, list[int]] = {}
        for vbucket in wanted:
            by_owner.setdefault(self._require_owner(vbucket).index, []).append(vbucket)
        by_owner.pop(to, None)
        target = self._find_node(to).endpoint

        async def run(publisher: MapPublisher) -> None:
            publisher.layout = publisher.layout.add_nodes([MapNode(target, {"kv": target[1]})])
            mover = VbucketMover(publisher, parse_address(self._make_direct_url(target)))
            for owner, each in by_owner.items():
                await mover.move(each, self.nodes[owner].endpoint, target)

        if by_owner:
            self._orchestrate(run)

    def remove_node(self, index: int) -> None:
        """Move the vbuckets of a node to the other nodes of the cluster map in turn, and take the node off the map.

        Args:
            index: the number of the node. `move` brings it back.

        Raises:
            UsageError: the map has no other node.
        """
        leaving = self._find_node(index)

        async def remove(publisher: MapPublisher) -> None:
            layout = publisher.layout
            at = layout.require_node(leaving.endpoint)
            others = [node.endpoint for node in layout.nodes if node.endpoint != leaving.endpoint]
            if not others:
                raise UsageError(f"node {index} is the only one of bucket {self.name!r}, expected others")
            mover = VbucketMover(publisher, parse_address(self._make_direct_url(leaving.endpoint)))
            for turn, vbucket in enumerate(layout.list_owned(at)):
                await mover.move([vbucket], leaving.endpoint, others[turn % len(others)])
            await publisher.publish(publisher.layout.remove_node(leaving.endpoint), removed=[leaving.endpoint])

        self._orchestrate(remove)

    def replicate(self) -> None:
        """Copy each vbucket to the next running node of the cluster map, with all changes that it has now.

        Later changes are on no replica: a failover loses them.

        Raises:
            UsageError: only one node of the map runs.
        """

        async def replicate(publisher: MapPublisher) -> None:
            mapped = {node.endpoint for node in publisher.layout.nodes}
            running = [node for node in self._list_running() if node.endpoint in mapped]
            if len(running) == 1:
                raise UsageError(
                    f"only node {running[0].index} of the map runs, expected a second node for the replicas"
                )
            for place, source in enumerate(running):
                if active := self._list_active(source):
                    await self._replicate(active, source.endpoint, running[(place + 1) % len(running)].endpoint)

        self._orchestrate(replicate)

    async def _replicate(self, vbuckets: Sequence[int], source: Endpoint, target: Endpoint) -> None:
        old, new = (parse_address(self._make_direct_url(each)) for each in (source, target))
        options = ReplicationOptions(vbuckets=vbuckets, protocol=Dialect.DCP, until_caught_up=True, overwrite=True)
        async with Replicator(old, new, options) as replicator:
            await replicator.run()

    def fail_over(self, index: int) -> FailoverResult:
        """Promote the best replica of each vbucket of a node, and take the node off the cluster map.

        Args:
            index: the number of the node, which may run or be stopped.

        Returns:
            The vbuckets that were promoted, and those that no other node has.

        Raises:
            UsageError: no other node is left.
        """
        lost = self._find_node(index, may_be_stopped=True)
        rest = [node.endpoint for node in self._list_running() if node is not lost]
        if not rest:
            raise UsageError(f"node {index} is the only one that runs, expected others with its replicas")
        address = parse_address(self._make_direct_url(rest[0]))
        result = self._orchestrate(
            lambda publisher: fail_over(publisher, lost.endpoint, address, may_lose=True), without=lost
        )
        lost.is_failed_over = not result.is_reachable
        return result

    # The orchestrator

    def _orchestrate(self, work: Callable[[MapPublisher], Awaitable[T]], *, without: PenstockNode | None = None) -> T:
        """Return the result of work with the newest map of the running nodes."""

        async def run() -> T:
            async with self._publishing(without) as publisher:
                return await work(publisher)

        return self._loop.start(run()).result(_CALL_SECONDS)

    @asynccontextmanager
    async def _publishing(self, without: PenstockNode | None) -> AsyncGenerator[MapPublisher, None]:
        endpoints = {node.endpoint: (node.place.host, node.place.kv) for node in self.nodes}
        running = [node for node in self._list_running() if node is not without]
        newest = max(running, key=self._read_map_version)  # a node that has left the map does not learn later ones
        publisher = MapPublisher(parse_address(self._make_direct_url(newest.endpoint)), endpoints)
        try:
            await publisher.load(newest.endpoint)
            yield publisher
        finally:
            await publisher.close()

    def _read_map_version(self, node: PenstockNode) -> tuple[int, int]:
        return node.call(lambda running: running.buckets[self.name].cluster_map.version)

    def _make_direct_url(self, endpoint: Endpoint) -> str:
        """Return the connection string of one node without its proxy. It ignores the map, which names the proxies."""
        return f"couchbase://{endpoint[0]}:{endpoint[1]}/{quote_part(self.name)}?vbucketCount={self.vbuckets}"

    def _list_running(self) -> list[PenstockNode]:
        found = [node for node in self.nodes if node.is_running]
        if not found:
            raise UsageError(f"all {len(self.nodes)} nodes are stopped, expected a running one")
        return found

    def _list_active(self, node: PenstockNode) -> list[int]:
        def is_active(vbucket: Vbucket) -> bool:
            return vbucket.history.state is VbucketState.ACTIVE

        return node.call(
            lambda running: [each.id for each in running.buckets[self.name].store.vbuckets if is_active(each)]
        )

    def _require_owner(self, vbucket: int) -> PenstockNode:
        owner = self.find_owner(vbucket)
        if owner is None:
            raise UsageError(f"vbucket {vbucket} of bucket {self.name!r} is active on no running node")
        return self.nodes[owner]

    def _find_node(self, index: int, *, may_be_stopped: bool = False) -> PenstockNode:
        if not 0 <= index < len(self.nodes):
            raise UsageError(f"node {index} of a cluster of {len(self.nodes)}, expected 0 to {len(self.nodes) - 1}")
        node = self.nodes[index]
        if not node.is_running and not may_be_stopped:
            raise UsageError(f"node {index} is stopped, expected a running one")
        return node
