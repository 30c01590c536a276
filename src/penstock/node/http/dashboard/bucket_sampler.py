"""Samples a bucket for all viewers of the dashboard together, and keeps its counters of the last ten minutes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from penstock.client.dashboard.bucket_totals import make_rate_point
from penstock.client.dashboard.dashboard_document import RatePoint
from penstock.client.dashboard.lag_clock import LagClock
from penstock.node.buckets.served_bucket import BucketEndpoint, ServedBucket
from penstock.node.http.dashboard.bucket_sample import BucketSample, gather_sample
from penstock.node.session.node_services import NodeServices
from penstock.node.stats.collection_stats import count_items

SECONDS: Final = 1.0
"""The shortest time between two samples."""

_LARGEST_SHARE = 0.02
"""The part of a processor that sampling may take: after a costly sample, the next one is later."""

_POINTS: Final = 600
_COLLECTION_SECONDS = 5.0
_MAX_COLLECTIONS = 100


class BucketSampler:
    """Takes at most one sample a second, however many viewers there are; none without a viewer.

    Attributes:
        points: the counters of the samples, oldest first.
        items: documents of the first collections, by id.
        seconds: seconds between two samples.
    """

    def __init__(self, node: NodeServices, bucket: ServedBucket) -> None:
        self.points: deque[RatePoint] = deque(maxlen=_POINTS)
        self.items: dict[int, int] = {}
        self.seconds = SECONDS
        self._node = node
        self._bucket = bucket
        self._lags = LagClock[BucketEndpoint]()
        self._lock = asyncio.Lock()
        self._newest: BucketSample | None = None
        self._due_at = self._items_due_at = 0.0

    @property
    def bucket(self) -> ServedBucket:
        """The bucket."""
        return self._bucket

    async def take_sample(self) -> BucketSample:
        """Return the newest sample, after taking one if it is due."""
        async with self._lock:
            loop, newest = self._node.loop, self._newest
            began = loop.time()
            if newest is not None and began < self._due_at:
                return newest
            newest = self._newest = await gather_sample(self._node, self._bucket, self._lags)
            if began >= self._items_due_at:
                self._items_due_at = began + _COLLECTION_SECONDS
                await self._count_items()
            self.points.append(make_rate_point(newest.at, [newest.stats], newest.vbuckets))
            self.seconds = max(SECONDS, newest.cost / _LARGEST_SHARE)
            # A viewer whose timer is a little early gets a new sample nevertheless.
            self._due_at = began + 0.9 * self.seconds
            return newest

    async def _count_items(self) -> None:
        manifest = self._bucket.store.manifests.current
        self.items = {}
        for collection in list(manifest.collections.values())[:_MAX_COLLECTIONS]:
            self.items[collection.id] = count_items(self._bucket, collection)
            await asyncio.sleep(0)


class SamplerList:
    """The samplers of the buckets that were looked at."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._samplers: dict[str, BucketSampler] = {}

    def find(self, bucket: ServedBucket) -> BucketSampler:
        """Return the sampler of a bucket. Samplers of deleted buckets are forgotten."""
        self._samplers = {name: one for name, one in self._samplers.items() if not one.bucket.is_deleted}
        name = bucket.store.name
        if name not in self._samplers or self._samplers[name].bucket is not bucket:
            self._samplers[name] = BucketSampler(self._node, bucket)
        return self._samplers[name]
