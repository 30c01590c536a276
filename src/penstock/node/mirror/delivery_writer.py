"""Stores the changes that a bridge receives, in slices of some milliseconds, with retries while the bucket is full."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from penstock.client.feeds.deliveries import Delivery
from penstock.errors import OutOfMemory, StatusError, TemporaryFailure
from penstock.node.buckets.received_manifest import adopt_manifest
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.mirror.vbucket_copies import VbucketCopies
from penstock.wire.columns.run_decoder import list_changes

logger = logging.getLogger("penstock.node")

_REFUSALS = (TemporaryFailure, OutOfMemory)
"""The errors of a bucket that accepts no changes for the moment."""

_SLICE_SECONDS = 0.005
_SLICE_ROWS = 256  # a millisecond: list_changes 1.5 us a row, apply 2.3 us
_REFUSED_SECONDS = 0.25


class DeliveryWriter:
    """Writes deliveries to the copies of a bucket, without blocking the event loop.

    While the bucket refuses changes, for instance because its disk is full, received changes wait. Flow control then
    stops
    the upstream.
    """

    def __init__(self, served: ServedBucket, copies: VbucketCopies, upstream: object) -> None:
        """Make a writer.

        Args:
            served: the bucket.
            copies: its mirrored vbuckets.
            upstream: the upstream's name in messages.
        """
        self._served = served
        self._copies = copies
        self._upstream = upstream
        self._is_refused = False
        self._time = asyncio.get_running_loop().time
        self._slice_began = self._time()

    async def write(self, delivery: Delivery) -> None:
        """Store a delivery and wake streams that wait for changes; stop early if other vbuckets must be requested."""
        copies, content, vbuckets = self._copies, delivery.content, self._served.store.vbuckets
        rows = len(content) if isinstance(content, list) else content.num_rows
        for number, log in delivery.logs.items():
            vbucket = vbuckets[number]
            await self.retry_while_refused(number, partial(copies.roll_back, vbucket, vbucket.changes.high_seqno, log))
        for at in range(0, rows, _SLICE_ROWS):
            if copies.restart.is_set():
                return
            part = content[at : at + _SLICE_ROWS]
            for change in part if isinstance(part, list) else list_changes(part):
                while change.vbucket in copies.mirrored:  # `retry_while_refused` inlined: a call a change costs time
                    try:
                        copies.store_change(change, delivery)
                        self._is_refused = False
                        break
                    except _REFUSALS as error:
                        await self._wait_after_refusal(error)
            await self.yield_if_due()
        for number, position in delivery.positions.items():
            await self.retry_while_refused(
                number, partial(copies.complete_snapshot, vbuckets[number], position.snap_start)
            )
        for vbucket in copies.take_event_receivers():
            await self.retry_while_refused(vbucket.id, partial(adopt_manifest, self._served, vbucket))
        self._served.notify()
        await self.yield_if_due()

    async def retry_while_refused(self, number: int, work: Callable[[], object]) -> None:
        """Call a function that changes a vbucket until its bucket accepts the change.

        It is not called again once the vbucket is no longer mirrored.
        """
        while number in self._copies.mirrored:
            try:
                work()
                break
            except _REFUSALS as error:
                await self._wait_after_refusal(error)

    async def yield_if_due(self) -> None:
        """Let other tasks run if this one has used its slice."""
        if self._time() - self._slice_began > _SLICE_SECONDS:
            self._served.notify()
            await asyncio.sleep(0)
            self._slice_began = self._time()

    async def _wait_after_refusal(self, error: StatusError) -> None:
        """Wait until the bucket may accept changes again."""
        if not self._is_refused:
            logger.warning("bucket %s refuses changes of %s: %s", self._served.store.name, self._upstream, error)
        self._is_refused = True
        self._served.notify()
        await asyncio.sleep(_REFUSED_SECONDS)
        self._slice_began = self._time()
