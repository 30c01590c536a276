"""A consumer: reads the changes of a bucket from its saved positions, and commits its positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self, Unpack

import pyarrow as pa

from penstock.client.bucket import Bucket
from penstock.client.consumers.commit_policy import CommitPolicy
from penstock.client.consumers.handled_stream import HandledStream
from penstock.client.consumers.handler_failures import DeadLetterSink, HandlerRetry
from penstock.client.consumers.handler_run import Handler, HandlerRun
from penstock.client.consumers.own_documents import is_own_key, remove_own_documents
from penstock.client.consumers.position_committer import PositionCommitter
from penstock.client.consumers.sharing_check import check_sharing
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.groups.shared_stream import SharedStream
from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.positions.server_checks import check_positions
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.stream_choice import ChangeOptions, FirstStart, Start, Stop, choose_dialect
from penstock.errors import UsageError
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import Change

__all__ = ["Consumer"]


class Consumer:
    """Reads changes from the saved positions of a store, and commits its positions there.

        async with penstock.connect(url) as bucket:
            async with Consumer(bucket, FilePositions("beer.json")) as consumer:
                async for change in consumer.changes():
                    print(change.key)

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
        options: as in Bucket.stream; TAP has no positions.

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
        **options: Unpack[ChangeOptions],
    ) -> None:
        if choose_dialect(options, bucket.address.options) is Dialect.TAP:
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
        self._options = options
        self._stream: ChangeStream | SharedStream | None = None
        self._committer = PositionCommitter(
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
            before_change=self._commit_before_change,
            after_change=self._begin_share,
        )
        self._stream = stream
        await stream.open()

    async def _open_alone(self, store: PositionStore) -> None:
        saved = await store.read()
        if saved is not None:
            await check_positions(self._bucket, saved, str(store))
        start = self._start if saved is None else saved.by_vbucket
        self._stream = await self._start_stream(start)
        self._committer.begin(saved or self._committer.saved, self._stream.positions)
        if saved is None and self._start != "beginning":
            await self.commit()  # a crash before the first commit must not skip the changes until the restart

    async def _commit_before_change(self) -> None:
        """Commit before the share changes, unless the caller commits by hand: then its last commit counts."""
        if self._committer.is_automatic:
            await self._committer.commit()

    def _begin_share(self, positions: Mapping[int, Position]) -> None:
        """Begin at the positions of a new share."""
        self._committer.begin(replace(self._committer.saved, by_vbucket=dict(positions)), positions)

    async def close(self) -> None:
        """Close the stream, without a commit."""
        if self._stream is not None:
            await self._stream.close()

    async def commit(self) -> None:
        """Save the positions after the change or the batch that the caller has now. Concurrent commits wait."""
        await self._committer.commit()

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield changes as objects. A later call goes on after the last change that this one has yielded."""
        stream, committer = await self._continue_stream(), self._committer
        while (delivery := await self._take_delivery(stream)) is not None:
            for change in delivery.changes:
                committer.progress.hand_out(1)
                if not is_own_key(change.key):
                    yield change
                    committer.progress.count_processed(1)
                    await committer.commit_if_due()

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield changes as pyarrow.RecordBatch with CHANGE_SCHEMA."""
        stream, committer = await self._continue_stream(), self._committer
        while (delivery := await self._take_delivery(stream)) is not None:
            batch = remove_own_documents(delivery.batch)
            committer.progress.hand_out(len(delivery.batch))
            if batch.num_rows:
                yield batch
                committer.progress.count_processed(batch.num_rows)

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
        source = HandledStream(await self._continue_stream(), self._committer)
        retry = retry or HandlerRetry()
        await HandlerRun(source, handler, concurrency=concurrency, retry=retry, dead_letters=dead_letters).run()

    async def _continue_stream(self) -> ChangeStream | SharedStream:
        """Return the stream. It starts again if an earlier call has ended before all its changes were processed."""
        stream, progress = self._stream, self._committer.progress
        if stream is None:
            raise UsageError("the consumer is not open; use it as `async with Consumer(...) as consumer`")
        if progress.is_within_delivery:
            progress.drop_delivery()
            if isinstance(stream, SharedStream):
                await stream.rewind(progress.find_positions())
            else:
                await stream.close()
                self._stream = stream = await self._start_stream(progress.find_positions())
        return stream

    async def _start_stream(self, start: Start) -> ChangeStream:
        share = self._share
        vbuckets = self._vbuckets if share is None else range(share[0], self._committer.saved.vbuckets, share[1])
        return await self._bucket.stream(start, self._stop, vbuckets, **self._options)

    async def _take_delivery(self, stream: ChangeStream | SharedStream) -> Delivery | None:
        """Return the next delivery; None after the end. Commits by time while it waits."""
        committer = self._committer
        committer.progress.finish_delivery(stream.positions)
        await committer.commit_if_due()
        coming = asyncio.ensure_future(stream.next_delivery())
        try:
            while not coming.done():
                await committer.wait([coming], lambda: committer.progress.finish_delivery(stream.positions))
            delivery = coming.result()
        finally:
            if not coming.done():
                coming.cancel()
                with suppress(asyncio.CancelledError):
                    await coming
        if delivery is None:
            committer.progress.finish_delivery(stream.positions)
        else:
            committer.progress.begin_delivery(delivery)
        return delivery

    async def _write_positions(self, saved: SavedPositions) -> None:
        if isinstance(self._stream, SharedStream):
            await self._stream.commit(saved)
        elif self._store is not None:
            await self._store.write(saved)
