"""The orchestrator of a cluster's file: it gives nodes the buckets, users and replicas that it declares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.client.cluster.balance_moves import BalanceMoves, plan_moves
from penstock.client.cluster.cluster_differences import (
    ClusterDifference,
    compare_bucket,
    compare_places,
    compare_user,
)
from penstock.client.cluster.cluster_file import BucketEntry, ClusterFile, NodeEntry, read_password
from penstock.client.cluster.map_delivery import keep_maps_new
from penstock.client.cluster.map_publisher import MapPublisher, open_map
from penstock.client.cluster.map_replication import MapReplication, place_replicas, set_map_chains
from penstock.client.cluster.node_failover import FailoverResult, fail_over, read_report
from penstock.client.cluster.node_pages import NodePages
from penstock.client.cluster.orchestrator_lock import LockRole, OrchestratorLock
from penstock.client.cluster.owner_repair import find_idle, restore_owners
from penstock.client.cluster.replica_choice import NodeReport
from penstock.client.cluster.vbucket_mover import MovedVbucket, VbucketMover, release_strays
from penstock.client.cluster.vbucket_rows import VbucketRow, find_strays, make_vbucket_rows
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.replication.node_control import NodeControl, check_identities
from penstock.client.replication.node_identity import NodeIdentity, check_identity
from penstock.client.topology.balance_plan import check_replicas, plan_balance
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.errors import Error, UsageError

_IDENTITY_SECONDS = 5.0
"""Time between two checks of the identities of nodes while replicas are kept."""


class Orchestrator:
    """Drives the nodes of a file. Each method does its work on all buckets of the file, one after the other."""

    def __init__(
        self, file: ClusterFile, report: Callable[[str, MovedVbucket], None] = lambda bucket, moved: None
    ) -> None:
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
        nodes = {
            node: NodePages(self._file.make_address("default", [node]), node.http_endpoint) for node in self._file.nodes
        }
        await _check_pages(nodes)
        found, missing = 0, set()
        for node, pages in nodes.items():
            lacking = await self._apply_buckets(node, pages, report, changes=changes)
            missing |= lacking
            found += len(lacking) + await self._apply_users(node, pages, report, changes=changes)
        for bucket in self._file.buckets:
            if changes or bucket.name not in missing:
                found += await self._place(bucket, report, changes=changes)
        return found

    async def rebalance(self, report: Callable[[ClusterDifference], None]) -> None:
        """Spread vbuckets and replicas evenly over the nodes of the file. Raises the errors of `apply`."""
        for bucket in self._file.buckets:
            await self._place(bucket, report, changes=True)

    async def move(self, bucket: BucketEntry, vbuckets: Collection[int], name: str) -> None:
        """Move vbuckets of a bucket to a node, and give each vbucket its replicas again.

        Args:
            bucket: a bucket of the file.
            vbuckets: their numbers. Those that the node owns stay there.
            name: host and port of a node of the file.

        Raises:
            UsageError: the file does not have the node, or a vbucket has no owner.
        """
        target = self._file.find_node(name).endpoint
        async with self._open_map(bucket, self._file) as publisher:
            await publisher.add_node(target)
            layout, endpoints = publisher.layout, publisher.list_endpoints(publisher.layout)
            by_owner: dict[int, list[int]] = {}
            for vbucket in sorted({*vbuckets}):
                by_owner.setdefault(layout.chains[vbucket][0], []).append(vbucket)
            if NO_NODE in by_owner:
                raise UsageError(f"vbuckets {format_ranges(by_owner[NO_NODE], ', ')} have no owner, expected one")
            by_owner.pop(layout.require_node(target), None)
            moves = [BalanceMoves(found, endpoints[owner], target) for owner, found in by_owner.items()]
            await self._move(publisher, bucket, moves)

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
            check_replicas(bucket.replicas, len(rest.nodes))
        for bucket in self._file.buckets:
            async with self._open_map(bucket, self._file) as publisher:
                check_replicas(bucket.replicas, len(publisher.layout.remove_node(node.endpoint).nodes))
                await self._move_all(publisher, bucket, [node.endpoint])
                await publisher.publish(publisher.layout.remove_node(node.endpoint), removed=[node.endpoint])

    async def fail_over(
        self, name: str, report: Callable[[str, FailoverResult], None], *, may_lose: bool, rebalances: bool
    ) -> None:
        """Promote the copies of a lost node's vbuckets.

        Args:
            name: host and port of a node of the file.
            report: called with the name of each bucket, once its copies are promoted.
            may_lose: promote also copies whose promotion may lose acknowledged changes.
            rebalances: give the vbuckets their replicas back on the remaining nodes.

        Raises:
            UsageError: a promotion may lose changes of a bucket, which stays as it is. Or no other node remains.
        """
        node = self._file.find_node(name)
        rest = self._file.without(node)
        for bucket in self._file.buckets:
            async with self._open_map(bucket, rest) as publisher:
                try:
                    result = await fail_over(
                        publisher, node.endpoint, rest.make_address(bucket.name), may_lose=may_lose
                    )
                except UsageError as error:
                    raise UsageError(f"bucket {bucket.name}: {error}") from error
                report(bucket.name, result)
                if rebalances:
                    most = len(publisher.layout.nodes) - 1
                    await self._move_all(publisher, replace(bucket, replicas=min(bucket.replicas, most)))

    async def run(self, report: Callable[[str, int, int], None]) -> None:
        """Keep the replicas that the maps name up to date, and the maps of nodes that return, until it is cancelled.

        Args:
            report: called several times a second with the bucket, its running replicas, and the changes they lack.

        Raises:
            UsageError: another program does the same, or two nodes run on copies of one data directory.
        """
        endpoints = [node.endpoint for node in self._file.nodes]
        quick = self._file.make_address(self._file.buckets[0].name).with_retries(0.0)
        async with AsyncExitStack() as stack:
            controls = [NodeControl(quick, endpoint) for endpoint in endpoints]
            for control in controls:
                stack.push_async_callback(control.close)
            await check_identities(controls)
            kept: list[Callable[[], Coroutine[Any, Any, None]]] = [partial(_watch_identities, controls)]
            for bucket in self._file.buckets:
                address = self._file.make_address(bucket.name)
                lock = await stack.enter_async_context(OrchestratorLock(address, LockRole.STREAMS))
                await lock.take_reachable(endpoints)

                def note(running: int, lag: int, name: str = bucket.name) -> None:
                    report(name, running, lag)

                replication = await stack.enter_async_context(MapReplication(address, note))
                kept += [partial(lock.hold, endpoints), replication.wait, partial(keep_maps_new, address, endpoints)]
            await _run_all(kept)

    async def read_rows(self, bucket: BucketEntry) -> list[VbucketRow]:
        """Return the vbuckets of a bucket, as its nodes report them.

        Raises:
            UsageError: two nodes run on copies of one data directory, or two addresses lead to one node.
            Error, OSError: no node answers.
        """
        publisher, failure = MapPublisher(self._file.make_address(bucket.name).with_retries(0.0)), None
        try:
            for node in self._file.nodes:
                try:
                    await publisher.load(node.endpoint)
                except (OSError, Error) as error:
                    failure = error
            await check_identities(publisher.get_control(node.endpoint) for node in self._file.nodes)
            if not publisher.layout.chains and failure is not None:
                raise failure
            reports = await asyncio.gather(*map(_try_report, _list_controls(publisher)))
            return make_vbucket_rows(bucket.name, publisher.layout, reports)
        finally:
            await publisher.close()

    def _open_map(self, bucket: BucketEntry, file: ClusterFile) -> AbstractAsyncContextManager[MapPublisher]:
        return open_map(file.make_address(bucket.name), [node.endpoint for node in file.nodes])

    async def _apply_buckets(
        self, node: NodeEntry, pages: NodePages, report: Callable[[ClusterDifference], None], *, changes: bool
    ) -> set[str]:
        """Create the buckets that a node lacks, and return their names."""
        present, missing = await pages.read_buckets(), set()
        for bucket in self._file.buckets:
            difference = compare_bucket(bucket, node.name, present)
            if difference is not None:
                missing.add(bucket.name)
                report(difference)
                if changes:
                    await pages.create_bucket(bucket.name, bucket.vbuckets, bucket.replicas)
        return missing

    async def _apply_users(
        self, node: NodeEntry, pages: NodePages, report: Callable[[ClusterDifference], None], *, changes: bool
    ) -> int:
        """Create and change the users of a node. Return the number of differences."""
        present, found = await pages.read_users() if self._file.users else {}, 0
        for user in self._file.users:
            login = read_password(self._file, user)
            difference = compare_user(user, node.name, present)
            if difference is None and not await pages.has_login(login):
                difference = ClusterDifference(
                    f"user {user.name} at {node.name}", "another password", "that of its file"
                )
            if difference is not None:
                found += 1
                report(difference)
                if changes:
                    await pages.put_user(login, user.roles)
        return found

    async def _place(self, bucket: BucketEntry, report: Callable[[ClusterDifference], None], *, changes: bool) -> int:
        """Spread the vbuckets and replicas of a bucket over the nodes of the file.

        Returns:
            The number of differences.
        """
        async with self._open_map(bucket, self._file) as publisher:
            self._check_nodes(bucket, publisher.list_endpoints(publisher.layout))
            for node in self._file.nodes:
                await publisher.add_node(node.endpoint)
            reports = await asyncio.gather(*map(read_report, _list_controls(publisher)))
            # Each node of a new bucket has all vbuckets: they are no difference of their own.
            strays = find_strays(publisher.layout, reports) if publisher.has_shared_map else [set() for _ in reports]
            idle = find_idle(publisher.layout, reports) if publisher.has_shared_map else set()
            found = compare_places(bucket, publisher.layout, strays, idle)
            for difference in found:
                report(difference)
            if changes and found:
                if idle:
                    await restore_owners(publisher)
                if not publisher.has_shared_map and not any(map(_has_changes, reports)):
                    await _spread_empty(publisher)
                for control in _list_controls(publisher):
                    await release_strays(publisher, control)
                if not publisher.has_shared_map:  # replicas are copied from the owners that the nodes' map names
                    await publisher.publish(publisher.layout)
                await self._move_all(publisher, bucket)
            elif changes and publisher.has_shared_map:
                await set_map_chains(publisher)
            return len(found)

    def _check_nodes(self, bucket: BucketEntry, mapped: Iterable[Endpoint]) -> None:
        """Raise UsageError if a map has a node that the file does not have."""
        known = {node.endpoint for node in self._file.nodes}
        other = next((endpoint for endpoint in mapped if endpoint not in known), None)
        if other is not None:
            raise UsageError(
                f"the map of {bucket.name} has node {format_endpoint(*other)}, expected the nodes of "
                f"{self._file.path}: add it there, or use `penstock cluster remove` or `penstock cluster failover`"
            )

    async def _move_all(self, publisher: MapPublisher, bucket: BucketEntry, leaving: Collection[Endpoint] = ()) -> None:
        """Spread vbuckets and replicas over the nodes of a map that do not leave it."""
        await self._move(publisher, bucket, plan_moves(publisher, leaving), leaving)

    async def _move(
        self,
        publisher: MapPublisher,
        bucket: BucketEntry,
        moves: Iterable[BalanceMoves],
        leaving: Collection[Endpoint] = (),
    ) -> None:
        """Move vbuckets, and give each vbucket its replicas on nodes that do not leave the map."""
        address = self._file.make_address(bucket.name)
        mover = VbucketMover(publisher, address, lambda moved: self._report(bucket.name, moved))
        for each in moves:
            await mover.move(*each)
        async with MapReplication(address, planned={}) as replication:
            await place_replicas(publisher, replication, bucket.replicas, leaving)


async def _check_pages(nodes: Mapping[NodeEntry, NodePages]) -> None:
    """Raise UsageError if two nodes of a file are the same, or run on copies of one data directory."""
    known: dict[str, NodeIdentity] = {}
    for node, pages in nodes.items():
        if identity := await pages.read_identity():
            check_identity(node.name, identity, known)
            known[node.name] = identity


async def _watch_identities(controls: Sequence[NodeControl]) -> None:
    """Check the identities of nodes again and again: a node may restart on a copy. Raises UsageError."""
    while True:
        await asyncio.sleep(_IDENTITY_SECONDS)
        await check_identities(controls)


async def _run_all(works: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run works together. The failure of one ends the others, and is raised."""
    tasks = [asyncio.ensure_future(work()) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _list_controls(publisher: MapPublisher) -> list[NodeControl]:
    return [publisher.get_control(endpoint) for endpoint in publisher.list_endpoints(publisher.layout)]


async def _spread_empty(publisher: MapPublisher) -> None:
    """Give each node its share of a new bucket's vbuckets by a map alone, without moves."""
    layout = publisher.layout
    moves = plan_balance([chain[0] for chain in layout.chains], len(layout.nodes))
    await publisher.publish(layout.set_owners({move.vbucket: move.target for move in moves}))


def _has_changes(report: NodeReport) -> bool:
    return any(map(report.is_filled, report.seqnos))


async def _try_report(control: NodeControl) -> NodeReport | None:
    """Return the vbuckets of a node; None if it does not answer."""
    try:
        return await read_report(control)
    except (OSError, Error):
        return None
