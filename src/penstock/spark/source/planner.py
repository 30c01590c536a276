"""Requests that planning needs: histories, high seqnos, statistics and collections of the bucket."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.feeds.collection_selection import KnownCollections, parse_manifest
from penstock.client.streams.dialect_check import check_dialect
from penstock.client.streams.stream_choice import choose_mitigation
from penstock.client.topology.persisted_seqnos import HeldSeqno
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import UsageError
from penstock.spark.source.limits.row_counts import BucketRowCounter
from penstock.wire.codec.constants import Dialect

_CHECK_SECONDS, _WATCH_SECONDS = 0.2, 0.02
"""The shortest times between two requests of an idle query: for failover logs, and for all high seqnos."""

_ROUND_SECONDS = 5.0
"""The time in which an idle query compares the failover logs of all vbuckets, a part of them at each trigger."""

_ESTIMATE_SECONDS = 10.0
"""The time after which the estimated size of a change is computed again."""

ASSUMED_BYTES = 1024
"""The size of a change if the statistics of a node allow no estimate."""

_SIZE_STATISTICS = (
    ("ep_log_live_bytes", "curr_items_tot"),
    ("vb_active_itm_memory_uncompressed", "vb_active_curr_items"),
    ("vb_active_itm_memory", "vb_active_curr_items"),
    ("bytes", "curr_items"),
)
"""Statistics of bytes with those of the documents that they belong to.

The first row is from Penstock's node, the others are from kv_engine, newest first."""


def estimate_bytes_per_change(stats: Mapping[str, int]) -> int:
    """Return the estimated mean size of a change in bytes, at least 1.

    Args:
        stats: names of statistics with values, added up over all nodes.
    """
    for of_bytes, of_items in _SIZE_STATISTICS:
        nbytes, items = stats.get(of_bytes, 0), stats.get(of_items, 0)
        if nbytes and items:
            return -(-nbytes // items)
    return ASSUMED_BYTES


def count_due_logs(vbuckets: int, seconds: float) -> int:
    """Return the number of failover logs to compare now, so that a round through all takes _ROUND_SECONDS.

    Args:
        vbuckets: the number of all vbuckets.
        seconds: the time since the last comparison.
    """
    return min(vbuckets, math.ceil(vbuckets * seconds / _ROUND_SECONDS))


class Planner:
    """The state of a bucket, read over connections that open at the first request.

    Methods raise the errors of the same methods of Bucket, and UsageError for a vbucket that the bucket does not have.

    Attributes:
        last_infos: the result of the last `read_infos`, by vbucket.
    """

    def __init__(self, address: Address, vbuckets: Sequence[int] | None = None) -> None:
        self._loop = LoopThread("penstock-planner").__enter__()
        self._bucket = Bucket(address)
        self._vbuckets = vbuckets
        self._checked_at = 0.0
        self._checked_vbuckets: frozenset[int] = frozenset()
        self._log_round: deque[int] = deque()
        self._bytes_per_change, self._estimated_at = ASSUMED_BYTES, -_ESTIMATE_SECONDS
        self._counter: BucketRowCounter | None = None
        self.last_infos: dict[int, VbucketInfo] = {}

    @property
    def cluster(self) -> ClusterMap:
        """The current cluster map."""
        return self._loop.run(self._bucket.cluster())

    @property
    def vbuckets(self) -> Sequence[int]:
        """The vbuckets of the read: the selected ones, or all.

        Raises:
            UsageError: a selected vbucket is not in the bucket.
        """
        count = self.cluster.vbuckets
        if self._vbuckets is not None and self._vbuckets[-1] >= count:
            raise UsageError(f"option vbuckets has {self._vbuckets[-1]}, expected numbers below the bucket's {count}")
        return range(count) if self._vbuckets is None else self._vbuckets

    def read_collections(self) -> KnownCollections | None:
        """Return the collections in the newest manifest of the nodes; None if they do not support collections."""
        manifests = self._loop.run(self._bucket.node_reports.manifests())
        return max(map(parse_manifest, manifests), key=lambda each: each.uid, default=None)

    def check_dialect(self, dialect: Dialect) -> None:
        """Raise UnsupportedServer if the server does not stream changes in this dialect, UsageError for its options."""
        choose_mitigation({}, self._bucket.address.options, dialect)
        self._loop.run(check_dialect(self._bucket.address, dialect))

    def read_infos(
        self, vbuckets: Sequence[int] | None = None, settled_vbuckets: Collection[int] | None = None
    ) -> dict[int, VbucketInfo]:
        """Return a consistent view of the vbuckets: failover logs, high seqnos and purge seqnos.

        The option missingVbuckets decides about vbuckets that no node serves: the call waits for them, or omits them.

        Args:
            vbuckets: the vbuckets to read; None for all of the read.
            settled_vbuckets: vbuckets whose purge seqno does not matter unless their failover log or high seqno changed
                since the last call. None: all are read completely.

        Returns:
            The view by vbucket.
        """
        wanted = self.vbuckets if vbuckets is None else vbuckets
        self._checked_vbuckets = frozenset(wanted)
        known, unsure = ({}, set()) if settled_vbuckets is None else (self.last_infos, {*wanted} - {*settled_vbuckets})
        self.last_infos = self._loop.run(self._read_infos(wanted, known, unsure))
        self._log_round = deque(self.last_infos)
        self._checked_at = time.monotonic()
        return self.last_infos

    async def _read_infos(
        self, wanted: Sequence[int], known: Mapping[int, VbucketInfo], unsure: Collection[int]
    ) -> dict[int, VbucketInfo]:
        infos = await self._bucket.vbucket_infos(wanted, known, unsure)
        if not self._bucket.address.options.mitigate_rollback:
            return infos
        held = {
            vb: HeldSeqno(info.vbuuid, info.high_seqno)
            for vb, info in infos.items()
            if info.safe_seqno is None or info.safe_seqno < info.high_seqno
        }
        safe = await self._bucket.reports.safe_seqnos(held)
        found = {vb: each.persisted_seqno for vb, each in safe.items() if each.vbuuid == held[vb].vbuuid}
        return infos | {vb: replace(infos[vb], safe_seqno=found.get(vb, 0)) for vb in held}

    def is_unchanged(self) -> bool:
        """Return whether high seqnos and failover logs equal those of the last `read_infos`.

        A lost change shows in the high seqno, or at last in the failover log, if new changes have taken the lost
        seqnos. Logs need a request each, so a call compares a part of them, see _ROUND_SECONDS. Without a trigger
        interval, Spark asks every 10 ms. So within _CHECK_SECONDS of the last check this call waits and watches the
        high seqnos.
        """
        return self._loop.run(self._check_unchanged())

    async def _check_unchanged(self) -> bool:
        expected = {vbucket: info.end_seqno for vbucket, info in self.last_infos.items()}
        while await self._read_high_seqnos() == expected:
            idle = time.monotonic() - self._checked_at
            if idle < _CHECK_SECONDS:
                await asyncio.sleep(min(_CHECK_SECONDS - idle, _WATCH_SECONDS))
                continue
            due = count_due_logs(len(self._log_round), idle)
            logs = await self._bucket.failover_logs([*islice(self._log_round, due)])
            self._log_round.rotate(-due)
            self._checked_at = time.monotonic()
            return all(self.last_infos[vbucket].failover_log == log for vbucket, log in logs.items())
        return False

    async def _read_high_seqnos(self) -> dict[int, int]:
        found = await self._bucket.high_seqnos()
        return {vb: seqno for vb, seqno in found.items() if vb in self._checked_vbuckets}

    def estimate_bytes_per_change(self) -> int:
        """Return the estimated mean size of a change in bytes, at most _ESTIMATE_SECONDS old."""
        if time.monotonic() - self._estimated_at >= _ESTIMATE_SECONDS:
            self._bytes_per_change = estimate_bytes_per_change(self._loop.run(self._bucket.total_stats()))
            self._estimated_at = time.monotonic()
        return self._bytes_per_change

    def get_row_counter(self, dialect: Dialect, collection_ids: tuple[int, ...] | None) -> BucketRowCounter:
        """Return a counter of the rows that are left to read.

        Args:
            dialect: the dialect of the streams.
            collection_ids: the ids of the selected collections; None if all are selected.
        """
        if self._counter is None or self._counter.collection_ids != collection_ids:
            self._counter = BucketRowCounter(self._loop, self._bucket, dialect, collection_ids)
        return self._counter

    def close(self) -> None:
        """Close the connections and end the thread of the event loop."""
        self._loop.run(self._bucket.close())
        self._loop.__exit__(None, None, None)
