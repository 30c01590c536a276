"""How a bridge stores what arrives: in slices of some milliseconds, and as soon as the bucket takes changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from penstock.client.feeds.deliveries import Delivery
from penstock.errors import OutOfMemory, StatusError, TemporaryFailure
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.mirror.vbucket_copies import VbucketCopies
from penstock.wire.columns.run_decoder import changes_of

__all__ = ["DeliveryWriter"]

logger = logging.getLogger("penstock.node")

_REFUSALS = (TemporaryFailure, OutOfMemory)
"""The errors of a bucket that takes no changes for the moment."""

_SLICE_SECONDS = 0.005
_SLICE_ROWS = 256  # a millisecond: changes_of 1.5 us a row, apply 2.3 us
_REFUSED_SECONDS = 0.25


class DeliveryWriter:
    """Writes deliveries to the copies of a bucket, without holding the event loop.

    While the bucket refuses changes, because its disk is full for instance, what has arrived waits, and the upstream is
    asked for no more.
    """

    def __init__(self, served: ServedBucket, copies: VbucketCopies, upstream: object) -> None:
        """upstream: its name in messages."""
        self._served = served
        self._copies = copies
        self._upstream = upstream
        self._is_refused = False
        self._time = asyncio.get_running_loop().time
        self._slice_began = self._time()

    async def write(self, delivery: Delivery) -> None:
        """Store all that has arrived, unless other vbuckets are to be asked for, and wake what waits for changes."""
        copies, content, vbuckets = self._copies, delivery.content, self._served.store.vbuckets
        rows = len(content) if isinstance(content, list) else content.num_rows
        for number, log in delivery.logs.items():
            vbucket = vbuckets[number]
            await self.do(number, partial(copies.move, vbucket, vbucket.changes.high_seqno, log))
        for at in range(0, rows, _SLICE_ROWS):
            if copies.restart.is_set():
                return
            part = content[at : at + _SLICE_ROWS]
            for change in part if isinstance(part, list) else changes_of(part):
                while change.vbucket in copies.mirrored:  # as `do`; a call for every change costs
                    try:
                        copies.store(change, delivery)
                        self._is_refused = False
                        break
                    except _REFUSALS as error:
                        await self._wait(error)
            await self.breathe()
        for number, position in delivery.positions.items():
            await self.do(number, partial(copies.complete, vbuckets[number], position.snap_start))
        for vbucket in copies.take_event_receivers():
            await self.do(vbucket.id, partial(copies.take_manifest, vbucket))
        self._served.notify()
        await self.breathe()

    async def do(self, number: int, work: Callable[[], object]) -> None:
        """Do something to a vbucket as long as it is mirrored, again and again while its bucket refuses that."""
        while number in self._copies.mirrored:
            try:
                work()
                break
            except _REFUSALS as error:
                await self._wait(error)

    async def breathe(self) -> None:
        """Let others have the event loop, if they have waited for long."""
        if self._time() - self._slice_began > _SLICE_SECONDS:
            self._served.notify()
            await asyncio.sleep(0)
            self._slice_began = self._time()

    async def _wait(self, error: StatusError) -> None:
        """Wait a little, until the bucket may take changes again."""
        if not self._is_refused:
            logger.warning("bucket %s takes nothing from %s: %s", self._served.store.name, self._upstream, error)
        self._is_refused = True
        self._served.notify()
        await asyncio.sleep(_REFUSED_SECONDS)
        self._slice_began = self._time()
