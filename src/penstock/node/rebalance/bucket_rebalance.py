"""The rebalance of one bucket: its vbuckets move, and its replicas are placed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Self

from penstock.client.connect.address import Address
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.balance_moves import BalanceMoves, plan_moves
from penstock.client.replication.map_publisher import MapPublisher
from penstock.client.replication.map_replication import MapReplication, place_replicas
from penstock.client.replication.vbucket_mover import MovedVbucket, VbucketMover
from penstock.node.rebalance.rebalance_progress import RebalanceProgress

__all__ = ["BucketRebalance"]

_VBUCKETS_AT_ONCE = 16
"""Vbuckets that move before a stop is noticed."""


class BucketRebalance:
    """Balances the vbuckets of a bucket as `penstock move --balance` does. Enter it to read the map.

    Args:
        address: the bucket at a node of the cluster, with a login of an administrator.
        replicas: replicas of each vbucket.
        names: host and port of each node -> its name.
        leaving: the nodes that have no vbuckets and replicas afterwards.
        progress: gets the steps.
    """

    def __init__(
        self,
        address: Address,
        replicas: int,
        names: Mapping[Endpoint, str],
        leaving: Collection[Endpoint],
        progress: RebalanceProgress,
    ) -> None:
        self._address = address
        self._replicas = replicas
        self._names = names
        self._leaving = leaving
        self._progress = progress
        self._publisher = MapPublisher(address)
        self._moves: list[BalanceMoves] = []

    async def __aenter__(self) -> Self:
        """Read the map, and plan the moves.

        Returns:
            The rebalance.
        """
        await self._publisher.load(self._address.hosts[0])
        self._moves = plan_moves(self._publisher, self._leaving)
        for vbuckets, source, target in self._moves:
            self._progress.plan((self._names[source], self._names[target]), len(vbuckets))
        self._progress.plan(self._names.values())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._publisher.close()

    async def move_vbuckets(self, is_stopped: Callable[[], bool]) -> None:
        """Move the vbuckets. A stop is noticed between moves, so that each vbucket has one owner in the map.

        Args:
            is_stopped: whether the moves that are left are not wanted any more.
        """
        mover = VbucketMover(self._publisher, self._address, self._count_moved)
        for vbuckets, source, target in self._moves:
            for start in range(0, len(vbuckets), _VBUCKETS_AT_ONCE):
                if is_stopped():
                    return
                await mover.move(vbuckets[start : start + _VBUCKETS_AT_ONCE], source, target)

    def _count_moved(self, moved: MovedVbucket) -> None:
        self._progress.complete((self._names[moved.source], self._names[moved.target]))

    async def place_replicas(self) -> None:
        """Place the replicas, complete at this moment. Nothing keeps them up to date from then on."""
        async with MapReplication(self._address, planned={}) as replication:
            await place_replicas(self._publisher, replication, self._replicas, self._leaving)
        self._progress.complete(self._names.values())
