"""The orchestrator of a bucket of a test's cluster: it works on the cluster map, and keeps the replicas up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

from penstock.client.blocking import LoopThread
from penstock.client.cluster.cluster_file import BucketEntry, ClusterFile
from penstock.client.cluster.orchestrator import Orchestrator
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.pytest.proxied_node import PenstockNode
from penstock.wire.codec.constants import Dialect

T = TypeVar("T")

_CALL_SECONDS = 120.0


class BucketOrchestration:
    """The orchestrator of one bucket, with the definition of the cluster in memory.

    Attributes:
        bucket: the bucket in the definition.
        members: the nodes of the cluster map.
    """

    def __init__(
        self,
        bucket: BucketEntry,
        members: Sequence[PenstockNode],
        loop: LoopThread,
        routes: Mapping[Endpoint, Endpoint],
    ) -> None:
        """Create an orchestrator without connections.

        Args:
            bucket: the bucket in the definition.
            members: the nodes of the cluster map.
            loop: the thread in which it works.
            routes: host and port of the proxy of a node -> those of the node itself.
        """
        self.bucket = bucket
        self.members = [*members]
        self._loop = loop
        self._routes = routes
        self._streams: asyncio.Task[None] | None = None
        self._lock = Lock()

    def run(
        self, work: Callable[[Orchestrator], Coroutine[Any, Any, object]], nodes: Sequence[PenstockNode] | None = None
    ) -> None:
        """Run work of an orchestrator. One runs at a time.

        Args:
            work: the work.
            nodes: the nodes of its definition; None: the members.
        """
        with self._lock:
            self._call(work(Orchestrator(self._make_definition(nodes))))

    def copy(self, vbuckets: Sequence[int], target: PenstockNode) -> None:
        """Copy vbuckets to a node, with all changes that they have now."""

        async def replicate() -> None:
            definition = self._make_definition()
            name, options = self.bucket.name, _make_copy_options(vbuckets)
            source, copies = definition.make_address(name), definition.make_address(name, [target.entry])
            async with Replicator(source, copies, options) as replicator:
                await replicator.run()

        with self._lock:
            self._call(replicate())

    def start_streams(self) -> None:
        """Keep the replicas that the cluster map names up to date from now on."""

        async def start() -> asyncio.Task[None]:
            keeping = Orchestrator(self._make_definition()).run(lambda bucket, running, lag: None)
            return asyncio.get_running_loop().create_task(keeping)

        self._streams = self._call(start())

    def stop_streams(self) -> None:
        """End the streams to the replicas."""
        streams, self._streams = self._streams, None

        async def stop(task: asyncio.Task[None]) -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        if streams is not None:
            self._call(stop(streams))

    def _make_definition(self, nodes: Sequence[PenstockNode] | None = None) -> ClusterFile:
        entries = tuple(node.entry for node in (self.members if nodes is None else nodes))
        return ClusterFile("the cluster of the test", entries, (self.bucket,), routes=self._routes)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.start(work).result(_CALL_SECONDS)


def _make_copy_options(vbuckets: Sequence[int]) -> ReplicationOptions:
    return ReplicationOptions(vbuckets=vbuckets, protocol=Dialect.DCP, until_caught_up=True, overwrite=True)
