"""Reports of a change stream or a consumer: asks the bucket for its seqnos, and compares them with the positions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from penstock.client.connect.address import Address
from penstock.client.feeds.collection_selection import CollectionSelection
from penstock.client.feeds.stream_position import Position
from penstock.client.signals.consumer_report import ConsumerReport, VbucketLag
from penstock.client.signals.lag_samples import LagSamples
from penstock.client.signals.stream_counts import StreamCounts
from penstock.errors import Error


class ReportedState(NamedTuple):
    """The figures of a change stream or a consumer.

    Attributes:
        counts: the counts since the beginning.
        positions: vbucket -> position.
        queued_bytes: bytes that were received, and are not processed.
        missing: vbuckets that wait for their node.
    """

    counts: StreamCounts
    positions: Mapping[int, Position]
    queued_bytes: int
    missing: tuple[int, ...]


class SeqnoSource(Protocol):
    """The bucket of a stream."""

    @property
    def address(self) -> Address:
        """The address of the bucket."""

    async def high_seqnos(self, selection: CollectionSelection | None) -> dict[int, int]:
        """Return the newest seqno of each vbucket, in the selected collections."""


class ConsumerReporter:
    """Makes reports of one stream. It keeps the last report, for rates, and samples of seqnos, for lags in seconds.

    Args:
        bucket: reports its newest seqnos. If it does not within operationTimeout, a report has the last known seqnos.
        read_state: returns the figures of the stream.
        selection: the collections of the stream; None: the whole bucket. The lag counts changes of these alone:
            Couchbase 7.x sends nothing about later changes of others, so a position never passes them.
    """

    def __init__(
        self,
        bucket: SeqnoSource,
        read_state: Callable[[], ReportedState],
        selection: CollectionSelection | None = None,
    ) -> None:
        self._bucket = bucket
        self._selection = selection
        self._read_state = read_state
        self._samples = LagSamples()
        self._high_seqnos: Mapping[int, int] = {}
        self._seqnos_at = 0.0
        self._before = (time.monotonic(), replace(read_state().counts))

    async def report(self) -> ConsumerReport:
        """Return the state now. Nodes that do not answer raise no error."""
        try:
            async with asyncio.timeout(self._bucket.address.options.operation_timeout):
                self._high_seqnos = await self._bucket.high_seqnos(self._selection)
        except (Error, OSError, TimeoutError):
            pass
        else:
            self._seqnos_at = time.time()
        state, now = self._read_state(), time.monotonic()
        (before, earlier), counts = self._before, replace(state.counts)
        self._before = (now, counts)
        seconds = max(now - before, 1e-9)
        return ConsumerReport(
            bucket=self._bucket.address.bucket,
            at=time.time(),
            counts=counts,
            changes_per_second=(counts.changes - earlier.changes) / seconds,
            bytes_per_second=(counts.received_bytes - earlier.received_bytes) / seconds,
            lags=self._find_lags(state, now),
            seqnos_at=self._seqnos_at,
            buffered_bytes=state.queued_bytes,
            missing=state.missing,
        )

    def _find_lags(self, state: ReportedState, now: float) -> dict[int, VbucketLag]:
        highs, samples = self._high_seqnos, self._samples
        seqnos = {vb: position.seqno for vb, position in state.positions.items() if vb in highs}
        samples.add(now, highs, seqnos)
        return {
            vb: VbucketLag(seqno, highs[vb], samples.find_lag(now, vb, seqno, highs[vb]))
            for vb, seqno in seqnos.items()
        }
