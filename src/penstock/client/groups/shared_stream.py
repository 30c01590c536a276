"""The changes of a member's share of a bucket. The stream starts again whenever the share changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.client.bucket import Bucket
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.groups.group_session import GroupSession
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.positions.server_checks import check_positions
from penstock.client.signals.stream_counts import StreamCounts
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.stream_choice import ChangeOptions, FirstStart


class SharedStream:
    """Delivers the changes of the vbuckets that the member of a group holds, and follows its share.

    The share only changes between deliveries, when the caller has processed all earlier ones.

    Args:
        bucket: the connected bucket.
        group: the name of the group.
        start: where to start a vbucket that the group has never read.
        lease_seconds: as in GroupSession.
        options: as in Bucket.stream.
        before_change: is awaited before the member gives vbuckets away, to commit their positions.
        after_change: is called with the positions of the new share.

    Attributes:
        counts: as of ChangeStream, for all streams of the member.
    """

    def __init__(
        self,
        bucket: Bucket,
        group: str,
        *,
        start: FirstStart,
        lease_seconds: float,
        options: ChangeOptions,
        before_change: Callable[[], Awaitable[None]],
        after_change: Callable[[Mapping[int, Position]], None],
    ) -> None:
        self._bucket = bucket
        self._group = group
        self._start = start
        self._options = options
        self._before_change = before_change
        self._after_change = after_change
        self._session = GroupSession(bucket, group, lease_seconds)
        self.counts = StreamCounts()
        self._stream: ChangeStream | None = None
        self._coming: asyncio.Task[None] | None = None
        """Ends when the stream has a delivery, and the share has not changed."""
        self._positions: dict[int, Position] = {}
        self._unprocessed: list[Delivery] = []
        """Deliveries that the caller has, and has not acknowledged."""
        self._processed = asyncio.Event()
        self._is_closed = False

    @property
    def positions(self) -> dict[int, Position]:
        """The positions of the share after the deliveries that the caller has got."""
        return dict(self._positions if self._stream is None else self._stream.positions)

    @property
    def bucket_uuid(self) -> str:
        """The uuid of the bucket, see ChangeStream."""
        return "" if self._stream is None else self._stream.bucket_uuid

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that were received, and that the caller has not processed yet."""
        return 0 if self._stream is None else self._stream.queued_bytes

    @property
    def missing(self) -> tuple[int, ...]:
        """The vbuckets of the share that wait for their nodes."""
        return () if self._stream is None else self._stream.missing

    async def open(self) -> None:
        """Join the group, and claim the share that no other member reads. After an error, the caller calls `close`."""
        await self._session.open()
        await self._change_share()

    async def close(self) -> None:
        """Close the stream, and leave the group. The caller commits before."""
        self._is_closed = True
        try:
            await self._stop()
        finally:
            await self._session.close()

    async def commit(self, saved: SavedPositions) -> None:
        """Save the positions of the share. Vbuckets that another member has claimed are left out, and are lost."""
        try:
            await self._session.member.commit(saved)
        finally:
            self._session.update_changed()

    def expect_delivery(self) -> asyncio.Future[None]:
        """Return a future that is done once `hand_out` has a delivery: the same one, unless the share changes."""
        coming, is_current = self._coming, self._is_closed or self._session.is_current
        if coming is None or (coming.done() and not is_current and coming.exception() is None):
            # Changes that arrived before the share changed come again in the next stream, if it still has them.
            coming = self._coming = asyncio.create_task(self._prepare_delivery())
        return coming

    def hand_out(self) -> Delivery | None:
        """Return the delivery after `expect_delivery` is done; None after `close`.

        The caller acknowledges it later. Raises the errors of ChangeStream and Consumer.
        """
        coming, self._coming = self._coming, None
        assert coming is not None
        if self._is_closed or coming.cancelled():
            return None
        coming.result()
        assert self._stream is not None
        delivery = self._stream.hand_out()
        if delivery is None:
            self._is_closed = True
        else:
            self._unprocessed.append(delivery)
        return delivery

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge a delivery that the caller has processed."""
        self._unprocessed = [each for each in self._unprocessed if each is not delivery]
        self._processed.set()
        if self._stream is not None:
            self._stream.acknowledge(delivery)

    async def find_lost_share(self) -> bool:
        """Return whether others have taken over vbuckets that this member has not given away, as after a pause."""
        await self._session.refresh()
        return self._session.member.has_lost

    async def rewind(self, positions: Mapping[int, Position]) -> None:
        """Go back to positions: the caller does not process the deliveries after them, which come again."""
        self._unprocessed.clear()
        self._positions.update(positions)
        await self._stop()

    async def _stop(self) -> None:
        """Close the stream, and stop to wait for its next delivery."""
        (coming, self._coming), (stream, self._stream) = (self._coming, None), (self._stream, None)
        if coming is not None:
            coming.cancel()
        if stream is not None:
            await stream.close()
        if coming is not None:
            await asyncio.wait([coming])

    async def _prepare_delivery(self) -> None:
        """Wait until the stream of the share has a delivery, and follow the share.

        Before the share changes, this waits until each earlier delivery is acknowledged. It goes on if the caller is
        cancelled: a claim whose answer is lost would leave a vbucket without a position.
        """
        while not self._is_closed:
            await self._session.refresh()
            stream = self._stream
            if self._session.changed.is_set() or (stream is None and self._session.member.held):
                await self._wait_until_processed()
                await self._before_change()
                await self._change_share()
            elif stream is None:
                await self._session.changed.wait()
            elif await self._await_delivery(stream):
                return

    async def _wait_until_processed(self) -> None:
        while self._unprocessed:
            self._processed.clear()
            await self._processed.wait()

    async def _await_delivery(self, stream: ChangeStream) -> bool:
        """Return whether the stream has a delivery, and the share has not changed before."""
        coming = stream.expect_delivery()
        share_change = asyncio.create_task(self._session.changed.wait())
        waited: list[asyncio.Future[Any]] = [coming, share_change]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            share_change.cancel()
            await asyncio.gather(share_change, return_exceptions=True)
        if coming.done():
            # After a pause of the process, other members may have claimed the vbuckets of this delivery.
            await self._session.refresh()
        return coming.done() and not self._session.changed.is_set()

    async def _change_share(self) -> None:
        """Hand over, claim, and start a stream of the new share."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._positions = dict(stream.positions)
            await stream.close()
        member = self._session.member
        member.drop_lost()
        await self._session.beat()
        claimed = await member.claim(self._find_start)
        self._positions = {vb: each for vb, each in self._positions.items() if vb in member.held}
        self._positions |= {} if claimed is None else claimed.by_vbucket
        self._after_change(self._positions)
        if member.held:
            self._stream = await self._bucket.stream(self._positions, None, sorted(member.held), **self._options)
            self._stream.counts.continue_from(self.counts)
            self.counts = self._stream.counts
        self._session.update_changed()

    async def _find_start(self, saved: SavedPositions | None, absent: Sequence[int]) -> SavedPositions:
        """Check saved positions; add those of vbuckets without one."""
        is_first = saved is None
        if saved is None:
            found = await self._bucket.cluster()
            saved = SavedPositions(
                bucket=found.bucket or self._bucket.address.bucket, uuid=found.uuid, vbuckets=found.vbuckets
            )
        else:
            await check_positions(self._bucket, saved, f"group:{self._group}")
        if not absent or (self._start == "beginning" and not is_first):
            return saved
        # At the first start of the group, this also checks whether the selected collections exist.
        first = await self._bucket.stream(self._start, None, absent, **self._options)
        return replace(saved, by_vbucket={**saved.by_vbucket, **first.positions})
