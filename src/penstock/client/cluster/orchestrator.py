"""The orchestrator of a cluster's file: it gives nodes the buckets, users and replicas that it declares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace

from penstock.client.cluster.balance_moves import plan_moves
from penstock.client.cluster.cluster_file import BucketEntry, ClusterFile, NodeEntry, read_password
from penstock.client.cluster.map_publisher import MapPublisher, open_map
from penstock.client.cluster.map_replication import MapReplication, list_replicas, place_replicas
from penstock.client.cluster.node_failover import FailoverResult, fail_over
from penstock.client.cluster.node_pages import NodePages
from penstock.client.cluster.orchestrator_lock import LockRole, OrchestratorLock
from penstock.client.cluster.replica_choice import NodeReport
from penstock.client.cluster.vbucket_mover import MovedVbucket, VbucketMover
from penstock.client.cluster.vbucket_rows import VbucketRow, make_vbucket_rows
from penstock.client.connect.address import Address
from penstock.client.connect.tls_context import make_tls_context
from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.replication.node_control import NodeControl
from penstock.client.topology.balance_plan import plan_replicas
from penstock.errors import Error, UsageError

__all__ = ["ClusterDifference", "Orchestrator"]


@dataclass(frozen=True, slots=True)
class ClusterDifference:
    """A difference between the file and the nodes.

    Attributes:
        subject: the bucket, user or node.
        found: the present state.
        expected: the state that the file declares.
    """

    subject: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.found}, expected {self.expected}"


class Orchestrator:
    """Drives the nodes of a file. Each method does its work on all buckets of the file, one after the other."""

    def __init__(self, file: ClusterFile, report: Callable[[str, MovedVbucket], None] = lambda bucket, moved: None):
        """Create an orchestrator without connections.

        Args:
            file: the wanted state.
            report: called after each move, with the name of the bucket.
        """
        self._file = file
        self._report = report

    async def apply(self, report: Callable[[ClusterDifference], None], *, changes: bool = True) -> int:
        """Give the nodes the buckets, users and replicas of the file. A second call finds no difference.

        Args:
            report: called with each difference, before it is removed.
            changes: remove the differences; otherwise they are only reported. Places of vbuckets can be compared only
                once all nodes have the bucket.

        Returns:
            The number of differences.

        Raises:
            UsageError: a difference needs a person: another number of vbuckets, or a node that is in the map alone.
        """
        found = 0

        def note(difference: ClusterDifference) -> None:
            nonlocal found
            found += 1
            report(difference)

        missing = set()
        for node in self._file.nodes:
            missing |= await self._apply_to_node(node, note, changes=changes)
        for bucket in self._file.buckets:
            if changes or bucket.name not in missing:
                await self._place(bucket, note, changes=changes)
        return found

    async def rebalance(self, report: Callable[[ClusterDifference], None]) -> None:
        """Spread vbuckets and replicas evenly over the nodes of the file. Raises the errors of `apply`."""
        for bucket in self._file.buckets:
            await self._place(bucket, report, changes=True)

    async def remove(self, name: str) -> None:
        """Move the vbuckets and replicas of a node to the others, and take it out of the maps.

        Args:
            name: host and port of a node of the file.

        Raises:
            UsageError: too few nodes remain for the replicas, or the file does not have the node.
        """
        node = self._file.find_node(name)
        rest = self._file.without(node)
        for bucket in self._file.buckets:
            if bucket.replicas >= len(rest.nodes):
                raise UsageError(f"{bucket.replicas} replicas of {bucket.name}, expected fewer than {len(rest.nodes)}")
        for bucket in self._file.buckets:
            async with self._open_map(bucket, self._file) as publisher:
                address = self._file.make_address(bucket.name)
                await self._move_all(publisher, address, bucket, [node])
                await publisher.publish(publisher.layout.remove_node(node.endpoint), removed=[node.endpoint])

    async def fail_over(self, name: str, *, may_lose: bool, rebalances: bool) -> dict[str, FailoverResult]:
        """Promote the copies of a lost node's vbuckets.

        Args:
            name: host and port of a node of the file.
            may_lose: promote also copies whose promotion may lose acknowledged changes.
            rebalances: give the vbuckets their replicas back on the remaining nodes.

        Returns:
            The results by bucket.

        Raises:
            UsageError: a promotion may lose changes, or no other node remains.
        """
        node = self._file.find_node(name)
        rest, results = self._file.without(node), {}
        for bucket in self._file.buckets:
            async with self._open_map(bucket, rest) as publisher:
                address = rest.make_address(bucket.name)
                results[bucket.name] = await fail_over(publisher, node.endpoint, address, may_lose=may_lose)
                if rebalances:
                    fewer = replace(bucket, replicas=min(bucket.replicas, len(rest.nodes) - 1))
                    await self._move_all(publisher, address, fewer)
        return results

    async def run(self, report: Callable[[str, int, int], None]) -> None:
        """Keep the replicas that the maps name up to date, until the task is cancelled.

        Args:
            report: called several times a second with the bucket, its running replicas, and the changes they lack.

        Raises:
            UsageError: another program does the same.
        """
        async with AsyncExitStack() as stack:
            kept = []
            for bucket in self._file.buckets:
                address = self._file.make_address(bucket.name)
                lock = OrchestratorLock(address, LockRole.STREAMS)
                stack.push_async_callback(lock.close)
                await lock.take([node.endpoint for node in self._file.nodes])

                def note(running: int, lag: int, name: str = bucket.name) -> None:
                    report(name, running, lag)

                kept.append(await stack.enter_async_context(MapReplication(address, note)))
            async with asyncio.TaskGroup() as group:
                for each in kept:
                    group.create_task(each.wait())

    async def read_rows(self, bucket: BucketEntry) -> list[VbucketRow]:
        """Return the vbuckets of a bucket, as its nodes report them.

        Raises:
            Error, OSError: no node answers.
        """
        address = self._make_impatient(self._file.make_address(bucket.name))
        publisher, failure = MapPublisher(address), None
        try:
            for node in self._file.nodes:
                try:
                    await publisher.load(node.endpoint)
                except (OSError, Error) as error:
                    failure = error
            if not publisher.layout.chains and failure is not None:
                raise failure
            controls = [publisher.get_control(each) for each in publisher.list_endpoints(publisher.layout)]
            reports = await asyncio.gather(*map(_read_report, controls))
            return make_vbucket_rows(publisher.layout, reports)
        finally:
            await publisher.close()

    def _make_impatient(self, address: Address) -> Address:
        return replace(address, options=replace(address.options, retry_seconds=0.0))

    def _open_map(self, bucket: BucketEntry, file: ClusterFile) -> AbstractAsyncContextManager[MapPublisher]:
        return open_map(file.make_address(bucket.name), [node.endpoint for node in file.nodes])

    async def _apply_to_node(
        self, node: NodeEntry, note: Callable[[ClusterDifference], None], *, changes: bool
    ) -> set[str]:
        """Create the buckets and users of a node. Return the buckets that it lacked."""
        options = self._file.make_address("default", (node,)).options
        tls = make_tls_context(options) if node.url.startswith("couchbases:") else None
        pages = NodePages(node.http_endpoint, self._file.login, tls, options.retry_seconds)
        present, missing = await pages.read_buckets(), set()
        for bucket in self._file.buckets:
            expected, found = f"{bucket.vbuckets} vbuckets", present.get(bucket.name)
            if found is None:
                missing.add(bucket.name)
                note(ClusterDifference(f"bucket {bucket.name} at {node.name}", "missing", expected))
                if changes:
                    await pages.create_bucket(bucket.name, bucket.vbuckets, bucket.replicas)
            elif found != bucket.vbuckets:
                raise UsageError(f"bucket {bucket.name} at {node.name}: {found} vbuckets, expected {bucket.vbuckets}")
        users = await pages.read_users() if self._file.users else {}
        for user in self._file.users:
            roles = users.get(user.name)
            if roles != frozenset(user.roles):
                shown = "missing" if roles is None else f"roles {', '.join(sorted(roles))}"
                expected = f"roles {', '.join(user.roles)}"
                note(ClusterDifference(f"user {user.name} at {node.name}", shown, expected))
                if changes:
                    await pages.put_user(read_password(self._file, user), user.roles)
        return missing

    async def _place(self, bucket: BucketEntry, note: Callable[[ClusterDifference], None], *, changes: bool) -> None:
        """Spread the vbuckets and replicas of a bucket over the nodes of the file."""
        async with self._open_map(bucket, self._file) as publisher:
            layout = publisher.layout
            endpoints = {node.endpoint for node in self._file.nodes}
            alone = [at for at in publisher.list_endpoints(layout) if at not in endpoints]
            if alone:
                raise UsageError(
                    f"the map of {bucket.name} has node {format_endpoint(*alone[0])}, expected the nodes of "
                    f"{self._file.path}: add it there, or use `penstock cluster remove` or `penstock cluster failover`"
                )
            differs = False
            moves = plan_moves(publisher)
            if moves:
                differs = True
                count = sum(len(each.vbuckets) for each in moves)
                note(ClusterDifference(f"bucket {bucket.name}", f"{count} vbuckets to move", "an even spread"))
            after = layout.set_replicas(plan_replicas(layout.chains, len(layout.nodes), bucket.replicas))
            if not moves and list_replicas(after, tls=publisher.tls) != list_replicas(layout, tls=publisher.tls):
                differs = True
                found = f"{sum(place >= 0 for chain in layout.chains for place in chain[1:])} replicas"
                note(ClusterDifference(f"bucket {bucket.name}", found, f"{bucket.replicas} of each vbucket, evenly"))
            if changes and differs:
                await self._move_all(publisher, self._file.make_address(bucket.name), bucket)

    async def _move_all(
        self, publisher: MapPublisher, address: Address, bucket: BucketEntry, leaving: list[NodeEntry] | None = None
    ) -> None:
        """Spread vbuckets and replicas over the nodes of a map that do not leave it."""
        gone = [node.endpoint for node in leaving or ()]
        mover = VbucketMover(publisher, address, lambda moved: self._report(bucket.name, moved))
        for moves in plan_moves(publisher, gone):
            await mover.move(*moves)
        async with MapReplication(address, planned={}) as replication:
            await place_replicas(publisher, replication, bucket.replicas, gone)


async def _read_report(control: NodeControl) -> NodeReport | None:
    """Return the vbuckets of a node; None if it does not answer."""
    try:
        return NodeReport(await control.read_states(), await control.read_seqnos())
    except (OSError, Error):
        return None
