"""The documents of a bucket beside a cluster, for the threads of a server of pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.client.bucket import Bucket
from penstock.client.dashboard.chain_rows import make_chain_rows
from penstock.client.dashboard.dashboard_document import DashboardDocument
from penstock.client.dashboard.document_view import DocumentView
from penstock.client.dashboard.live_tail import TailList, read_newest
from penstock.client.dashboard.shown_change import TailRequest
from penstock.client.dashboard.stats_sampler import StatsSampler
from penstock.errors import UsageError

T = TypeVar("T")

_VBUCKET = re.compile(r"/vbuckets/(\d{1,5})(/changes)?", re.ASCII)


class BucketSource:
    """Makes the documents of one bucket.

    Args:
        bucket: the connected bucket.
        loop: the running event loop of the bucket.
        idle_seconds: a tail ends if its viewer asks for nothing for so long; None: the default.
    """

    page = "index.html"

    def __init__(self, bucket: Bucket, loop: asyncio.AbstractEventLoop, *, idle_seconds: float | None = None) -> None:
        self._bucket = bucket
        self._sampler = StatsSampler(bucket)
        self._loop = loop
        self._tails = TailList(bucket) if idle_seconds is None else TailList(bucket, idle_seconds)

    async def close(self) -> None:
        """End all tails. Runs on the event loop of the bucket."""
        await self._tails.close()

    def open_stream(self) -> BucketStream:
        """Return the documents for a new viewer."""
        return BucketStream(self, self._sampler)

    def find_detail(self, path: str) -> Any | None:
        """Return the details of a vbucket, its newest changes, or the chains of all vbuckets; None for another path."""
        prefix = f"/buckets/{self._bucket.address.bucket}"
        if path == f"{prefix}/chains":
            sample = self.run(self._sampler.take_sample())
            return {"rows": make_chain_rows(self._bucket.address.bucket, sample.report)}
        found = _VBUCKET.fullmatch(path.removeprefix(prefix)) if path.startswith(prefix) else None
        if found is None or int(found[1]) >= self._bucket.vbuckets:
            return None
        if found[2]:
            return self.run(read_newest(self._bucket, int(found[1])))
        return self.run(self._sampler.read_vbucket(int(found[1])))

    def answer_post(self, path: str, body: bytes) -> Any | None:
        """Return the changes of a tail; None for another path. Raises UsageError for an invalid request."""
        if path != f"/buckets/{self._bucket.address.bucket}/changes":
            return None
        try:
            wanted = msgspec.json.decode(body, type=TailRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"the body is not as expected: {error}") from None
        return self.run(self._tails.read(wanted))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class BucketStream:
    """The documents for one viewer: the first one is complete, later ones have only the vbuckets that changed."""

    def __init__(self, source: BucketSource, sampler: StatsSampler) -> None:
        self._source = source
        self._sampler = sampler
        self._view = DocumentView()

    def make_next(self) -> tuple[DashboardDocument, float]:
        """Return the next document, and the seconds until the one after it."""
        sample, is_new = self._source.run(self._sampler.take_sample()), self._view.is_new
        vbuckets, points = self._view.take_new(sample.rows, [*self._sampler.points], sample.document.at)
        seconds = self._sampler.seconds
        return replace(sample.document, complete=is_new, vbuckets=vbuckets, points=points, seconds=seconds), seconds
