"""Clusters of nodes for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from penstock.client.blocking import LoopThread
from penstock.client.discovery.endpoint import Endpoint
from penstock.errors import UsageError
from penstock.pytest.cluster_bucket import PenstockBucket
from penstock.pytest.proxied_node import PenstockNode

MOST_NODES = 8
_BUCKET_NUMBERS = count(1)


class PenstockCluster:
    """Nodes in this process, each behind a proxy, that share the vbuckets of their buckets.

    Attributes:
        nodes: the nodes.
    """

    def __init__(
        self, nodes: tuple[PenstockNode, ...], vbuckets: int, loop: LoopThread, routes: Mapping[Endpoint, Endpoint]
    ) -> None:
        """Create a cluster of nodes that run.

        Args:
            nodes: the nodes.
            vbuckets: vbuckets of each bucket.
            loop: the thread of the proxies and of the orchestrator.
            routes: host and port of the proxy of a node -> those of the node itself.
        """
        self.nodes = nodes
        self._vbuckets = vbuckets
        self._loop = loop
        self._routes = routes
        self._buckets: list[PenstockBucket] = []

    @classmethod
    @contextmanager
    def running(cls, nodes: int, directory: Path, vbuckets: int = 16) -> Iterator[PenstockCluster]:
        """Run a cluster while the `with` block lasts.

        Args:
            nodes: the number of nodes, up to 8.
            directory: an existing directory for their data.
            vbuckets: vbuckets of each bucket, a power of two.

        Yields:
            The cluster, without a bucket for tests.

        Raises:
            UsageError: a number is out of range.
        """
        if not 1 <= nodes <= MOST_NODES:
            raise UsageError(f"a cluster of {nodes} nodes, expected 1 to {MOST_NODES}")
        with ExitStack() as stack:
            loop, routes = stack.enter_context(LoopThread("penstock-faults")), dict[Endpoint, Endpoint]()
            made = tuple(
                stack.enter_context(PenstockNode(index, directory / f"node-{index}", vbuckets, loop, routes))
                for index in range(nodes)
            )
            for node in made:
                node.start()
            cluster = cls(made, vbuckets, loop, routes)
            try:
                yield cluster
            finally:
                for bucket in cluster._buckets:
                    bucket.stop_streams()

    @property
    def url(self) -> str:
        """The connection string without a bucket, with the proxies of all nodes."""
        return "couchbase://" + ",".join(f"{node.place.host}:{node.place.kv}" for node in self.nodes)

    @property
    def bucket(self) -> PenstockBucket:
        """The first bucket that a test has created here. Raises UsageError if there is none."""
        if not self._buckets:
            raise UsageError("the cluster has no bucket, expected `create_bucket` before")
        return self._buckets[0]

    def create_bucket(self, name: str | None = None, vbuckets: int | None = None, replicas: int = 0) -> PenstockBucket:
        """Create a bucket on all nodes.

        Args:
            name: None: a name that no other bucket of this process has.
            vbuckets: a power of two; None: as many as the cluster's buckets have.
            replicas: the number of copies of each vbucket that are kept up to date.

        Returns:
            The bucket.
        """
        chosen = f"bucket-{next(_BUCKET_NUMBERS)}" if name is None else name
        bucket = PenstockBucket(
            chosen, vbuckets or self._vbuckets, self.nodes, self._loop, routes=self._routes, replicas=replicas
        )
        bucket.create()
        self._buckets.append(bucket)
        return bucket

    def delete_bucket(self, bucket: PenstockBucket) -> None:
        """Delete a bucket of `create_bucket` on all nodes. Stopped nodes are started: they have it on disk."""
        self.reset()
        bucket.delete()
        self._buckets.remove(bucket)

    def reset(self) -> None:
        """End all faults, and start stopped nodes."""
        self.heal()
        for node in self.nodes:
            node.start()

    def heal(self) -> None:
        """End the faults of all proxies that last."""
        for node in self.nodes:
            node.proxy.heal()
