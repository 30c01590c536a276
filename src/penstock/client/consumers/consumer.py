"""A consumer: reads the changes of a bucket from its saved positions, and commits its positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, Self, Unpack

import pyarrow as pa

from penstock.client.bucket import Bucket
from penstock.client.consumers.commit_policy import CommitPolicy
from penstock.client.consumers.own_documents import is_own_key, remove_own_documents
from penstock.client.consumers.progress import ConsumerProgress
from penstock.client.consumers.sharing_check import check_sharing
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.groups.shared_stream import SharedStream
from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.positions.server_checks import check_positions
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.stream_choice import ChangeOptions, Stop, choose_dialect
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
        start: where to start without saved positions, as in Bucket.stream.
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
        start: Literal["beginning", "now"] = "beginning",
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
        self._start: Literal["beginning", "now"] = start
        self._stop = stop
        self._vbuckets = vbuckets
        self._policy = commit or CommitPolicy()
        self._options = options
        self._stream: ChangeStream | SharedStream | None = None
        self._saved = SavedPositions(bucket="", uuid="", vbuckets=0)
        self._progress = ConsumerProgress({}, 0.0)
        self._commit_lock = asyncio.Lock()

    @property
    def positions(self) -> dict[int, Position]:
        """The positions that a commit would save now: vbucket -> position."""
        return self._progress.find_positions()

    @property
    def committed(self) -> SavedPositions:
        """The positions of the last commit."""
        return self._saved

    @property
    def missing(self) -> tuple[int, ...]:
        """The vbuckets that wait for their nodes, see ChangeStream.missing."""
        return () if self._stream is None else self._stream.missing

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None and self._policy.is_automatic and (self._progress.processed or self._progress.has_moved):
                await self._commit(include_current=False)
        finally:
            await self.close()

    async def open(self) -> None:
        """Read the positions, check them, and prepare the stream."""
        found = await self._bucket.cluster()
        self._saved = SavedPositions(
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
        share, count = self._share, self._saved.vbuckets
        vbuckets = self._vbuckets if share is None else range(share[0], count, share[1])
        self._saved = saved or self._saved
        self._stream = await self._bucket.stream(start, self._stop, vbuckets, **self._options)
        self._progress = ConsumerProgress(self._stream.positions, asyncio.get_running_loop().time())
        if start == "now":
            await self.commit()  # a crash before the first commit must not skip the changes until the restart

    async def _commit_before_change(self) -> None:
        """Commit before the share changes, unless the caller commits by hand: then its last commit counts."""
        if self._policy.is_automatic:
            await self._commit(include_current=True)

    def _begin_share(self, positions: Mapping[int, Position]) -> None:
        """Begin at the positions of a new share."""
        self._saved = replace(self._saved, by_vbucket=dict(positions))
        self._progress = ConsumerProgress(positions, asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Close the stream, without a commit."""
        if self._stream is not None:
            await self._stream.close()

    async def commit(self) -> None:
        """Save the positions after the change or the batch that the caller has now. Concurrent commits wait."""
        await self._commit(include_current=True)

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield changes as objects."""
        while (delivery := await self._take_delivery()) is not None:
            progress = self._progress
            for change in delivery.changes:
                progress.hand_out(1)
                if not is_own_key(change.key):
                    yield change
                    progress.count_processed(1)
                    if self._is_due():
                        await self._commit(include_current=True)

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield changes as pyarrow.RecordBatch with CHANGE_SCHEMA."""
        while (delivery := await self._take_delivery()) is not None:
            batch = remove_own_documents(delivery.batch)
            self._progress.hand_out(len(delivery.batch))
            if batch.num_rows:
                yield batch
                self._progress.count_processed(batch.num_rows)

    async def _take_delivery(self) -> Delivery | None:
        """Return the next delivery; None after the end. Commits by time while it waits."""
        if self._stream is None:
            raise UsageError("the consumer is not open; use it as `async with Consumer(...) as consumer`")
        self._progress.finish_delivery(self._stream.positions)
        if self._is_due():
            await self._commit(include_current=True)
        coming = asyncio.ensure_future(self._stream.next_delivery())
        try:
            while not (await asyncio.wait([coming], timeout=self._find_wait()))[0]:
                self._progress.finish_delivery(self._stream.positions)
                if self._is_due():
                    await self._commit(include_current=True)
            delivery = coming.result()
        finally:
            if not coming.done():
                coming.cancel()
                with suppress(asyncio.CancelledError):
                    await coming
        if delivery is None:
            self._progress.finish_delivery(self._stream.positions)
        else:
            self._progress.begin_delivery(delivery)
        return delivery

    def _is_due(self) -> bool:
        progress = self._progress
        elapsed = asyncio.get_running_loop().time() - progress.committed_at
        has_moved = not progress.processed and progress.has_moved  # compared only while no change arrives
        return self._policy.is_due(progress.processed, has_moved=has_moved, elapsed=elapsed)

    def _find_wait(self) -> float | None:
        """Return the seconds to wait for a delivery before a commit may be due; None: any time."""
        progress, policy = self._progress, self._policy
        wait = policy.find_wait(progress.processed, has_moved=progress.has_moved)
        if wait is None:
            return policy.idle_seconds  # a position may move meanwhile
        return max(progress.committed_at + wait - asyncio.get_running_loop().time(), 0.0)

    async def _commit(self, *, include_current: bool) -> None:
        async with self._commit_lock:
            progress = self._progress
            mark = progress.make_mark(include_current=include_current)
            # A running stream reads a recreated bucket after a rollback to 0, and its positions are then that bucket's.
            uuid = "" if self._stream is None else self._stream.bucket_uuid
            saved = SavedPositions(
                bucket=self._saved.bucket,
                uuid=uuid or self._saved.uuid,
                vbuckets=self._saved.vbuckets,
                by_vbucket={**self._saved.by_vbucket, **mark.positions},
                notes=self._saved.notes,
            )
            if isinstance(self._stream, SharedStream):
                await self._stream.commit(saved)
            elif self._store is not None:
                await self._store.write(saved)
            self._saved = saved
            progress.record_commit(mark, asyncio.get_running_loop().time())
