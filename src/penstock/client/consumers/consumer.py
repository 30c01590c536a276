"""A consumer: reads the changes of a bucket from its saved positions, and commits its positions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Self, Unpack

import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.client.bucket import Bucket
from penstock.client.consumers.commit_policy import CommitPolicy
from penstock.client.consumers.committer import Committer
from penstock.client.consumers.delivery_span import start_delivery_span
from penstock.client.consumers.handler_failures import DeadLetterSink, HandlerRetry
from penstock.client.consumers.handlers import Handler, HandlerRun
from penstock.client.consumers.hidden_changes import HiddenChanges
from penstock.client.consumers.intake import Intake
from penstock.client.consumers.sharing_check import check_sharing
from penstock.client.feeds.resume_policy import RollbackPolicy
from penstock.client.feeds.stream_position import Position
from penstock.client.finished_work import finish_within
from penstock.client.groups.shared_stream import SharedStream
from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.positions.server_checks import check_positions
from penstock.client.resumed_items import ResumedItems
from penstock.client.signals.consumer_report import ConsumerReport
from penstock.client.signals.consumer_reporter import ConsumerReporter, ReportedState
from penstock.client.signals.served_reports import serve_reports
from penstock.client.signals.stream_counts import StreamCounts
from penstock.client.signals.web_listener import WebListener
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.stream_choice import (
    ChangeOptions,
    FirstStart,
    Stop,
    choose_content,
    choose_dialect,
    choose_rollback,
)
from penstock.errors import UsageError
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import Change

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

_CLOSE_SECONDS = 5.0
"""The longest time in which a cancelled caller ends its commit, and leaves its group."""


@check_arguments
class Consumer:
    """Reads changes from the saved positions of a store, and commits its positions there.

        async with penstock.connect(url) as bucket:
            async with Consumer(bucket, FilePositions("beer.json")) as consumer:
                async for change in consumer.changes():
                    print(change.key)

    A caller may be cancelled at any time, such as by `asyncio.timeout` around a loop that polls. A later call goes on
    after the last change that it got: nothing is lost, and a commit that has begun goes on.

    A change is processed when the caller requests the next one. The policy commits processed changes by count and by
    time. `commit()` also counts the change, or the batch, that the caller has at that moment. After a crash, exactly
    the changes after the last commit come again. Changes of Penstock's own documents are not delivered.

    Consumers can share a bucket. With `group`, each of them reads a part of the vbuckets; if one joins, leaves or dies,
    the others change their parts. With `share`, the parts are fixed. docs/howto/groups.md explains both.

    `async with` opens the consumer: it reads the positions and checks that they belong to the bucket. At the end, it
    commits the processed changes, unless the block raised an error or the policy is BY_HAND.

    Entering, reading and committing raise the errors of Bucket.stream and of ChangeStream, and these:

    - PositionOfOtherBucket: the positions belong to another bucket, or to a deleted one of the same name.
    - PositionAhead: a position is newer than the newest change of the server.
    - PositionsUnreadable: the store has something else, or a newer version.
    - PositionsChanged: another program has written into the document with the positions. In a group, the consumer
      logs a warning instead, and does not read the vbucket any more.

    Args:
        bucket: the connected bucket.
        store: keeps the positions; None in a group, which keeps them in documents of the bucket.
        group: the name of the group in which the consumer reads a part of the bucket. It has no end: stop is None.
        share: (number, count): read the vbuckets that are `number` modulo `count`. Each consumer has its own store.
        lease_seconds: a member of a group is dead after this time without a sign of life.
        start: where to start without saved positions: "beginning", "now" or a time, as in Bucket.stream.
        stop: as in Bucket.stream.
        vbuckets: as in Bucket.stream. Saved positions of other vbuckets are kept.
        commit: when to commit; BY_HAND: only by `commit()`.
        metrics_port: serves metrics for Prometheus on this port of 127.0.0.1, at /metrics, and whether the consumer is
            ready, at /readyz; 0: any free port.
        meter: reports metrics to this meter of OpenTelemetry; needs the extra `opentelemetry`.
        options: as in Bucket.stream; TAP has no positions.

    Attributes:
        metrics_port: the port that serves metrics, while the consumer is open.

    Raises:
        UsageError: the dialect is TAP, or arguments exclude each other.
    """

    def __init__(
        self,
        bucket: Bucket,
        store: PositionStore | None = None,
        *,
        group: str | None = None,
        share: tuple[int, int] | None = None,
        lease_seconds: float = 15.0,
        start: FirstStart = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        commit: CommitPolicy | None = None,
        metrics_port: int | None = None,
        meter: Meter | None = None,
        **options: Unpack[ChangeOptions],
    ) -> None:
        dialect = choose_dialect(options, bucket.address.options)
        if dialect is Dialect.TAP:
            raise UsageError("TAP has no positions, so a consumer cannot save them; expected dcp, upr or upr-draft")
        check_sharing(store, group, share, vbuckets=vbuckets, stop=stop, lease_seconds=lease_seconds)
        self._bucket = bucket
        self._store = store
        self._group = group
        self._share = share
        self._lease_seconds = lease_seconds
        self._start: FirstStart = start
        self._stop = stop
        self._vbuckets = vbuckets
        # The stream delivers all rollbacks: between the changes of a delivery they move positions back.
        has_hidden = choose_rollback(options, Dialect.DCP) is RollbackPolicy.RESUME
        self._hidden = HiddenChanges(has_rollbacks=has_hidden)
        self._options: ChangeOptions = {**options, "rollback": RollbackPolicy.DELIVER} if has_hidden else options
        self.metrics_port = metrics_port
        self._meter = meter
        self._stream: ChangeStream | SharedStream | None = None
        self._intake: Intake | None = None
        self._start_span = partial(start_delivery_span, bucket.address.bucket, group)
        self._selection = choose_content(options, bucket.address.options, dialect).selection
        self._reporter = ConsumerReporter(bucket, self._read_state, self._selection)
        self._served = AsyncExitStack()
        self._committer = Committer(
            bucket.address,
            commit or CommitPolicy(),
            self._write_positions,
            lambda: "" if self._stream is None else self._stream.bucket_uuid,
        )

    @property
    def positions(self) -> dict[int, Position]:
        """The positions that a commit would save now: vbucket -> position."""
        return self._committer.progress.find_positions()

    @property
    def committed(self) -> SavedPositions:
        """The positions of the last commit."""
        return self._committer.saved

    @property
    def missing(self) -> tuple[int, ...]:
        """The vbuckets that wait for their nodes, see ChangeStream.missing."""
        return () if self._stream is None else self._stream.missing

    async def report(self) -> ConsumerReport:
        """Return lag, rates and counts. The lag is that of `positions`, the rates are since the last report.

        It asks the bucket for its newest seqnos. Nodes that do not answer raise no error.
        """
        return await self._reporter.report()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None and self._committer.has_uncommitted:
                await self._committer.commit(include_current=False)
        finally:
            await self.close()

    async def open(self) -> None:
        """Read the positions, check them, and prepare the stream."""
        reporter = ConsumerReporter(self._bucket, self._read_state, self._selection)
        listener = None if self.metrics_port is None else WebListener(self.metrics_port)
        serving = serve_reports(reporter, listener, meter=self._meter)
        self.metrics_port = await self._served.enter_async_context(serving)
        try:
            await self._open_stream()
        except BaseException:
            await self.close()
            raise

    async def _open_stream(self) -> None:
        found = await self._bucket.cluster()
        self._committer.saved = SavedPositions(
            bucket=found.bucket or self._bucket.address.bucket, uuid=found.uuid, vbuckets=found.vbuckets
        )
        if self._store is None:
            await self._open_group()
        else:
            await self._open_alone(self._store)

    async def _open_group(self) -> None:
        stream = SharedStream(
            self._bucket,
            self._group or "",
            start=self._start,
            lease_seconds=self._lease_seconds,
            options=self._options,
            before_change=self._committer.commit_before_change,
            after_change=self._committer.begin_share,
        )
        self._stream, self._intake = stream, Intake(stream, self._committer, self._hidden, self._start_span)
        await stream.open()

    async def _open_alone(self, store: PositionStore) -> None:
        saved = await store.read()
        if saved is not None:
            await check_positions(self._bucket, saved, str(store))
        start = self._start if saved is None else saved.by_vbucket
        share = self._share
        vbuckets = self._vbuckets if share is None else range(share[0], self._committer.saved.vbuckets, share[1])
        stream = await self._bucket.stream(start, self._stop, vbuckets, **self._options)
        self._stream, self._intake = stream, Intake(stream, self._committer, self._hidden, self._start_span)
        self._committer.begin(saved or self._committer.saved, stream.positions)
        if saved is None and self._start != "beginning":
            await self.commit()  # a crash before the first commit must not skip the changes until the restart

    async def close(self) -> None:
        """Close the stream, without a commit. If the caller is cancelled, this still takes up to five seconds."""
        await finish_within(_CLOSE_SECONDS, self._close())

    async def _close(self) -> None:
        try:
            await self._served.aclose()
            await self._committer.settle()
        finally:
            if self._stream is not None:
                await self._stream.close()

    async def commit(self) -> None:
        """Save the positions after the change or the batch that the caller has now. Concurrent commits wait.

        If the caller is cancelled, the commit goes on.
        """
        await self._committer.commit()

    def changes(self) -> AsyncGenerator[Change, None]:
        """Return the changes as objects. A later call goes on after the last change that this one has handed out."""
        return ResumedItems(self._find_intake().hand_out_changes)

    def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Return the changes as pyarrow.RecordBatch with CHANGE_SCHEMA, and go on as `changes` does."""
        return ResumedItems(self._find_intake().hand_out_batches)

    async def handle(
        self,
        handler: Handler,
        *,
        concurrency: int = 16,
        retry: HandlerRetry | None = None,
        dead_letters: DeadLetterSink | None = None,
    ) -> None:
        """Call a handler for each change until the stream ends, several at a time.

        The changes of one document are handled in order, one at a time. A rollback, a flush or a collection event waits
        for all earlier changes of its vbucket, and the later ones wait for it. Commits contain only changes before
        which no change is unfinished. While handlers are busy, the producer sends no more than the flow control window.

        Args:
            handler: processes one change: an async function, or a plain function, which runs in a thread.
            concurrency: the number of handlers at a time.
            retry: the attempts for a change whose handler raised an error; None: the defaults of HandlerRetry.
            dead_letters: receives the changes whose handler failed in every attempt, such as a DeadLetterLog. None:
                the handler's error ends this call. Handlers that still run are cancelled; a thread ends by itself. A
                later call goes on at the oldest change that is not finished.

        Raises:
            UsageError: the concurrency is below 1, or the consumer is not open.
        """
        intake = self._find_intake()
        await intake.resume()
        run = HandlerRun(
            intake,
            self._committer,
            handler,
            concurrency=concurrency,
            retry=retry or HandlerRetry(),
            dead_letters=dead_letters,
        )
        await run.run()

    def _find_intake(self) -> Intake:
        if self._intake is None:
            raise UsageError("the consumer is not open; use it as `async with Consumer(...) as consumer`")
        return self._intake

    def _read_state(self) -> ReportedState:
        if self._stream is None:
            return ReportedState(StreamCounts(), {}, 0, ())
        return ReportedState(self._stream.counts, self.positions, self._stream.queued_bytes, self._stream.missing)

    async def _write_positions(self, saved: SavedPositions) -> None:
        if isinstance(self._stream, SharedStream):
            await self._stream.commit(saved)
        elif self._store is not None:
            await self._store.write(saved)
