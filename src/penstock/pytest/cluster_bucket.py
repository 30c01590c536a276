"""A bucket on the nodes of a test's cluster: moves, failover, rollback, deletion, and creation under its old name."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence

from penstock.client.blocking import LoopThread
from penstock.client.cluster.cluster_file import BucketEntry
from penstock.client.cluster.node_failover import FailoverResult
from penstock.client.discovery.endpoint import Endpoint
from penstock.errors import OperationTimeout, UsageError
from penstock.names import quote_part
from penstock.node import Node
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.pytest.bucket_orchestration import BucketOrchestration
from penstock.pytest.proxied_node import PenstockNode
from penstock.wire.codec.constants import VbucketState

_REPLICA_SECONDS = 120.0
_POLL_SECONDS = 0.02


class PenstockBucket:
    """A bucket on all nodes of a cluster, which the orchestrator of `penstock cluster` drives.

    Methods block until the change is done, and may be called from any thread. They reach the nodes without the proxies,
    so injected faults do not hinder them.

    Attributes:
        name: the name of the bucket.
        vbuckets: the number of its vbuckets.
        nodes: the nodes of the cluster.
    """

    def __init__(
        self,
        name: str,
        vbuckets: int,
        nodes: Sequence[PenstockNode],
        loop: LoopThread,
        *,
        routes: Mapping[Endpoint, Endpoint],
        replicas: int = 0,
    ) -> None:
        """Create a bucket that exists on no node yet. `create` creates it.

        Args:
            name: the name of the bucket.
            vbuckets: the number of its vbuckets, a power of two.
            nodes: the nodes of the cluster, all of them running.
            loop: the thread of the orchestrator.
            routes: host and port of the proxy of a node -> those of the node itself.
            replicas: the number of copies of each vbucket that are kept up to date.
        """
        self.name = name
        self.vbuckets = vbuckets
        self.nodes = nodes
        bucket = BucketEntry(name=name, vbuckets=vbuckets, replicas=replicas)
        self._orchestration = BucketOrchestration(bucket, nodes, loop, routes)

    @property
    def url(self) -> str:
        """The connection string, with the proxies of all nodes."""
        hosts = ",".join(f"{node.place.host}:{node.place.kv}" for node in self.nodes)
        return f"couchbase://{hosts}/{quote_part(self.name)}"

    def create(self) -> None:
        """Create the bucket on all nodes, with a new uuid, and spread its vbuckets and replicas over them."""
        # With one uuid from the beginning: a client that follows the bucket would else take it for several new ones.
        orchestration, uuid = self._orchestration, secrets.token_hex(16)
        replicas = orchestration.bucket.replicas
        spec = BucketSpec(name=self.name, vbuckets=self.vbuckets, replicas=replicas, uuid=uuid)
        for node in self.nodes:
            node.run(node.node.buckets.create(spec))
        orchestration.members = [*self.nodes]
        if len(self.nodes) > 1:  # a node that stands alone has all vbuckets, and a map of its own
            orchestration.run(lambda orchestrator: orchestrator.apply(lambda difference: None))
        if replicas:
            orchestration.start_streams()

    def delete(self) -> None:
        """Delete the bucket on all nodes that run. A bucket that does not exist stays so."""
        self.stop_streams()
        for node in self._list_running():
            if node.call(lambda running: self.name in running.buckets):
                node.run(node.node.buckets.delete(self.name))

    def stop_streams(self) -> None:
        """End the streams that keep replicas up to date."""
        self._orchestration.stop_streams()

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
            if vbucket in self._read_seqnos(node, VbucketState.ACTIVE):
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
        target = self._find_node(to)
        if {self._require_owner(vbucket) for vbucket in wanted} <= {target}:
            return
        orchestration = self._orchestration
        if target not in orchestration.members:
            orchestration.members.append(target)
        orchestration.run(lambda orchestrator: orchestrator.move(orchestration.bucket, wanted, target.entry.name))

    def remove_node(self, index: int) -> None:
        """Move the vbuckets of a node to the other nodes of the cluster map, and take the node off the map.

        Args:
            index: the number of the node. `move` brings it back.

        Raises:
            UsageError: the map has no other node.
        """
        leaving = self._find_node(index)
        members = self._orchestration.members
        if members == [leaving]:
            raise UsageError(f"node {index} is the only one of bucket {self.name!r}, expected others")
        if leaving in members:
            self._orchestration.run(lambda orchestrator: orchestrator.remove(leaving.entry.name))
            members.remove(leaving)

    def replicate(self) -> None:
        """Copy each vbucket to the next running node of the cluster map, with all changes that it has now.

        Later changes are on no replica: a failover loses them. In a bucket with replicas, the method waits until they
        have all changes of now.

        Raises:
            UsageError: only one node of the map runs.
        """
        running = [node for node in self._orchestration.members if node.is_running]
        if len(running) == 1:
            raise UsageError(f"only node {running[0].index} of the map runs, expected a second node for the replicas")
        if self._orchestration.bucket.replicas:
            self._wait_for_replicas(running)
            return
        for place, source in enumerate(running):
            if active := self._read_seqnos(source, VbucketState.ACTIVE):
                self._orchestration.copy([*active], running[(place + 1) % len(running)])

    def _wait_for_replicas(self, nodes: Sequence[PenstockNode]) -> None:
        """Wait until the replicas on some nodes have all changes that their owners have now."""
        wanted = {vb: seqno for node in nodes for vb, seqno in self._read_seqnos(node, VbucketState.ACTIVE).items()}

        def is_behind(node: PenstockNode) -> bool:
            replicas = self._read_seqnos(node, VbucketState.REPLICA)
            return any(seqno < wanted.get(vb, 0) for vb, seqno in replicas.items())

        deadline = time.monotonic() + _REPLICA_SECONDS
        while any(map(is_behind, nodes)):
            if time.monotonic() >= deadline:
                raise OperationTimeout(f"replicas of bucket {self.name!r} lack changes after {_REPLICA_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)

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
        orchestration, found = self._orchestration, list[FailoverResult]()
        rest = [node for node in orchestration.members if node.is_running and node is not lost]
        if not rest:
            raise UsageError(f"node {index} is the only one that runs, expected others with its replicas")

        def report(bucket: str, result: FailoverResult) -> None:
            found.append(result)

        orchestration.run(
            lambda orchestrator: orchestrator.fail_over(lost.entry.name, report, may_lose=True, rebalances=False),
            [*rest, lost],
        )
        orchestration.members = rest
        lost.is_failed_over = not found[0].is_reachable
        return found[0]

    def _list_running(self) -> list[PenstockNode]:
        found = [node for node in self.nodes if node.is_running]
        if not found:
            raise UsageError(f"all {len(self.nodes)} nodes are stopped, expected a running one")
        return found

    def _read_seqnos(self, node: PenstockNode, state: VbucketState) -> dict[int, int]:
        """Return the high seqnos of the vbuckets that a node has in a state."""

        def read(running: Node) -> dict[int, int]:
            vbuckets = running.buckets[self.name].store.vbuckets
            return {each.id: each.changes.high_seqno for each in vbuckets if each.history.state is state}

        return node.call(read)

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
