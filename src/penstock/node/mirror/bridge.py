"""The bridge: a bucket whose vbuckets are copies of another node's, kept up to date in one dialect, served in all.

Where to go on is not remembered but read from the store, anew for each connection: it ends with the last complete
snapshot of each vbucket, and with the part of it that the upstream's failover log shares. So whatever happens to a
connection, to the upstream or to a vbucket here is dealt with in one way: follow again. One of several nodes of the
upstream is the exception: its vbuckets wait for it, and go on from where they stopped, while the others go on.

TAP knows neither seqnos nor branches. The copies then have their own, and every connection begins with nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from penstock.client.bucket import Bucket
from penstock.client.connect.address import Address, MissingVbuckets
from penstock.client.connect.retry import LONGEST_DELAY, Retry, is_lasting
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.feed import Feed, StreamTarget
from penstock.client.feeds.selection import Selection
from penstock.client.feeds.stream_position import BEGINNING, Position
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.dialect_check import check_dialect
from penstock.client.tap.tap_feed import TapFeed
from penstock.errors import (
    CannotApplyManifest,
    Error,
    OrderViolation,
    OutOfMemory,
    OutOfRange,
    StatusError,
    TemporaryFailure,
    Unreachable,
    UsageError,
)
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.mirror.arrived_row import arrived
from penstock.store.documents.vbucket import LAST_SEQNO, Vbucket
from penstock.store.history.failover_log import FailoverLog, branch_at, sanitised
from penstock.store.history.rollback import common_seqno
from penstock.wire.codec.constants import MAX_SEQNO, Dialect, VbucketState
from penstock.wire.columns.run_decoder import changes_of
from penstock.wire.columns.schema import Change, Event

__all__ = ["Bridge", "Upstream", "find_upstream"]

logger = logging.getLogger("penstock.node")

FOLLOWED = frozenset((VbucketState.REPLICA, VbucketState.PENDING))
"""The states of a vbucket that takes changes from elsewhere."""

REFUSALS = (TemporaryFailure, OutOfMemory)
"""What a bucket says while it takes no changes."""

_SLICE_SECONDS = 0.005
_SLICE_ROWS = 256  # a millisecond: changes_of 1.5 us a row, apply 2.3 us
_REFUSED_SECONDS = 0.25


class Upstream(NamedTuple):
    """A bucket to follow, and how many vbuckets it has."""

    address: Address
    vbuckets: int


async def find_upstream(address: Address) -> Upstream:
    """Connect to a bucket to learn its shape.

    Raises Unreachable if it does not serve within `retry_seconds`, UsageError for a bucket or server that cannot be
    followed, RemoteProtocolError for a peer that speaks another protocol.
    """
    async with Bucket(address) as bucket:
        if bucket.vbuckets & (bucket.vbuckets - 1):
            raise UsageError(f"{address} has {bucket.vbuckets} vbuckets, expected a power of two")
        await check_dialect(address, address.options.protocol)
        return Upstream(address, bucket.vbuckets)


class Bridge:
    """Keeps a served bucket like the one at an address.

    dialect: in which the upstream is asked. task: runs until `stop`, or ends with the Error that no retry mends.
    changes, rollbacks, connections: how many there were; a flush counts as a rollback.

    A bucket in which nothing was ever stored becomes a replica; one that was kept on disk is followed where it was one.
    While the bucket refuses changes, because its disk is full for instance, what has arrived waits, and the upstream
    is asked for no more. Raises UsageError for a bucket of which nothing is a replica.
    """

    def __init__(self, served: ServedBucket, address: Address) -> None:
        self.address = address
        self.dialect = address.options.protocol
        self.changes = self.rollbacks = self.connections = 0
        self._served = served
        self._vbuckets = served.store.vbuckets
        # Each try is one of its own, since where it begins depends on what the one before has left. But single nodes
        # of several are waited for within a try, without limit.
        options = replace(address.options, retry_seconds=0, missing_vbuckets=MissingVbuckets.SKIP)
        self._upstream = Bucket(replace(address, options=options))
        self._stream: ChangeStream | None = None
        self._followed: set[int] = set()
        self._incomplete: dict[int, bool] = {}
        """Vbuckets inside a snapshot, and whether it leaves seqnos out, whose changes it may hide."""
        self._told: set[int] = set()  # vbuckets with system events that the bucket has not been asked about
        self._again = asyncio.Event()
        self._is_own_event = False
        self._loop = asyncio.get_running_loop()
        self._away = Retry(math.inf, self._loop.time)
        self._deleted = Retry(address.options.retry_seconds, self._loop.time)
        self._opened_at = math.inf
        self._slice_began = self._loop.time()
        if all(vbucket.state is VbucketState.ACTIVE and not vbucket.high_seqno for vbucket in self._vbuckets):
            for vbucket in self._vbuckets:
                vbucket.set_state(VbucketState.REPLICA)
            served.notify()
        if not any(vbucket.state in FOLLOWED for vbucket in self._vbuckets):
            name = served.store.name
            raise UsageError(f"bucket {name} cannot follow {address}: none of its vbuckets is a replica or pending")
        self._is_refused = False
        served.bridge = self
        served.listeners.add(self)
        self.task = self._loop.create_task(self._run())
        self.task.add_done_callback(_log_end)

    async def stop(self) -> None:
        self._served.listeners.discard(self)
        self.task.cancel()
        await asyncio.wait([self.task])
        await self._upstream.close()

    @property
    def is_connected(self) -> bool:
        return self._stream is not None and self._stream.is_connected

    def stats(self) -> Iterator[tuple[str, object]]:
        """The group `follow` of STAT."""
        yield "url", str(self.address)
        yield "dialect", self.dialect.value
        yield "connected", str(self.is_connected).lower()
        yield "connections", self.connections
        yield "vbuckets", len(self._followed)
        yield "changes", self.changes
        yield "rollbacks", self.rollbacks
        yield "queued_bytes", self._stream.queued_bytes if self._stream else 0
        for vbucket in self._vbuckets:
            if vbucket.id in self._followed:
                yield f"vb_{vbucket.id}:seqno", vbucket.high_seqno
                yield f"vb_{vbucket.id}:whole_seqno", vbucket.whole_seqno

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Follow other vbuckets than before, or one again that was emptied by others."""
        if self._is_own_event:
            return
        is_followed = vbucket.state in FOLLOWED
        is_emptied = is_followed and event is not VbucketEvent.STATE_CHANGED
        if is_followed == (vbucket.id in self._followed) and not is_emptied:
            return
        self._followed.discard(vbucket.id)
        if is_followed or self.dialect is not Dialect.TAP:  # TAP would send all others anew
            self._again.set()

    # Connections

    async def _run(self) -> None:
        try:
            while True:
                await self._try()
        except Error as error:
            raise Error(f"cannot follow {self.address} any more: {error}") from error

    async def _try(self) -> None:
        """Follow until something fails, and wait before the next attempt.

        An upstream that is away is waited for without limit: the copies here are served meanwhile. An upstream that is
        there without its bucket is given `retry_seconds`: it has restarted and is not ready, or the bucket was deleted.
        """
        try:
            await self._follow()
        except (OSError, Error) as error:
            cause = error.__cause__ if isinstance(error, Unreachable) and error.__cause__ is not None else error
            assert isinstance(cause, Exception)
            logger.info("%s: %s", self.address, cause)
            if isinstance(cause, OrderViolation) and cause.begins_again:
                await self._begin_again()
            if self._loop.time() - self._opened_at > LONGEST_DELAY:
                self._away.succeeded()
            if is_lasting(cause):
                delay = self._deleted.next_delay(cause, self.address)
            else:
                self._deleted.succeeded()
                delay = self._away.next_delay(cause, self.address)
            await asyncio.sleep(delay)

    async def _begin_again(self) -> None:
        """Empty every copy: the upstream was flushed, and would accept positions of its old history."""
        for number in sorted(self._followed):
            await self._do(number, partial(self._move, self._vbuckets[number], 0, ()))

    async def _follow(self) -> None:
        """Follow over one connection, until it ends or other vbuckets are to be followed."""
        self._again.clear()
        self._opened_at = math.inf
        stream: ChangeStream | None = None
        closing: asyncio.Task[None] | None = None
        try:
            feed = await self._feed()
            if not self._followed:
                await self._again.wait()
            if self._again.is_set():
                return
            upstream = self._upstream
            stream = self._stream = ChangeStream(upstream.address, feed, item_counts=upstream.reports.item_counts)
            closing = self._loop.create_task(self._close_again(stream))
            self._opened_at = self._loop.time()
            self.connections += 1
            while (delivery := await stream.next_delivery()) is not None:
                await self._take(delivery)
        finally:
            self._stream = None
            if closing is not None:
                closing.cancel()
            if stream is not None:
                await stream.close()

    async def _close_again(self, stream: ChangeStream) -> None:
        await self._again.wait()
        await stream.close()

    async def _feed(self) -> ConsumerFeed:
        """Return what to ask the upstream for, after having gone back to what is shared with it."""
        options, count = self.address.options, len(self._vbuckets)
        window = options.flow_control_bytes
        logs: dict[int, FailoverLog] = {}
        if self.dialect is Dialect.TAP:
            await self._check_upstream()
        else:
            logs = await self._upstream.failover_logs(range(count))
        self._incomplete.clear()
        self._followed = {vbucket.id for vbucket in self._vbuckets if vbucket.state in FOLLOWED}
        wanted: dict[int, StreamTarget] = {}
        for number in sorted(self._followed):
            vbucket = self._vbuckets[number]
            if self.dialect is Dialect.TAP:
                await self._do(number, partial(self._move, vbucket, 0, ()))
            else:
                await self._do(number, partial(self._reconcile, vbucket, logs[number]))
                if number in self._followed:
                    wanted[number] = StreamTarget(position=_position(vbucket, logs[number]))
            await self._breathe()
        if self.dialect is Dialect.TAP:
            return TapFeed(count, self._followed, window=window)
        is_dcp = self.dialect is Dialect.DCP
        return Feed(
            count,
            wanted,
            window=window,
            dialect=self.dialect,
            every_move=True,
            selection=Selection() if is_dcp else None,
            xattrs=is_dcp,
        )

    async def _check_upstream(self) -> None:
        """Connect and close: before the copies are emptied, there has to be something to fill them from."""
        await self._upstream.connect()
        await self._upstream.close()

    # What arrives

    async def _take(self, delivery: Delivery) -> None:
        """Store what has arrived, in slices, and tell those who wait for it."""
        content = delivery.content
        rows = len(content) if isinstance(content, list) else content.num_rows
        for number, log in delivery.logs.items():
            vbucket = self._vbuckets[number]
            await self._do(number, partial(self._move, vbucket, vbucket.high_seqno, log))
        for at in range(0, rows, _SLICE_ROWS):
            if self._again.is_set():
                return
            part = content[at : at + _SLICE_ROWS]
            for change in part if isinstance(part, list) else changes_of(part):
                while change.vbucket in self._followed:  # as `_do`; a call for every change costs
                    try:
                        self._store(change, delivery)
                        break
                    except REFUSALS as error:
                        await self._wait(error)
            await self._breathe()
        for number, position in delivery.positions.items():
            await self._do(number, partial(self._complete, self._vbuckets[number], position.snap_start))
        await self._learn()
        self._served.notify()
        await self._breathe()

    async def _do(self, number: int, work: Callable[[], object]) -> None:
        """Do something to a vbucket as long as it is followed, again and again while its bucket refuses that."""
        while number in self._followed:
            try:
                work()
                break
            except REFUSALS as error:
                await self._wait(error)

    async def _wait(self, error: StatusError) -> None:
        """Wait a little, until the bucket may take changes again."""
        if not self._is_refused:
            logger.warning("bucket %s takes nothing from %s: %s", self._served.store.name, self.address, error)
        self._is_refused = True
        self._served.notify()
        await asyncio.sleep(_REFUSED_SECONDS)
        self._slice_began = self._loop.time()

    def _store(self, change: Change, delivery: Delivery) -> None:
        """Store one change, or go back where it is a rollback."""
        vbucket = self._vbuckets[change.vbucket]
        if change.event == Event.ROLLBACK:
            self._move(vbucket, change.seqno or 0, delivery.logs.get(vbucket.id, ()))
            if vbucket.high_seqno != change.seqno:  # it went back further, and the stream would leave out changes
                self._follow_again(vbucket)
            return
        event, key, value, flags, datatype, is_told = arrived(change)
        seqno = change.seqno
        if seqno is not None:
            if seqno <= vbucket.high_seqno:  # others have written here
                self._move(vbucket, 0, ())
                self._follow_again(vbucket)
                return
            self._complete(vbucket, delivery.positions[vbucket.id].snap_start, before=seqno)
            is_gap = seqno != vbucket.high_seqno + 1
            self._incomplete[vbucket.id] = self._incomplete.get(vbucket.id, False) or is_gap
        vbucket.apply(
            event,
            key,
            value,
            cas=change.cas or vbucket.max_cas + 1,
            rev_seqno=change.rev_seqno or 1,
            seqno=seqno,
            snapshot_end=None if seqno is None else LAST_SEQNO,
            flags=flags,
            expiry=change.expiry or 0,
            lock_time=change.lock_time or 0,
            datatype=datatype,
            delete_time=change.delete_time or 0,
        )
        self.changes += 1
        self._is_refused = False
        if is_told:
            self._told.add(vbucket.id)
        self._served.changed.add(vbucket.id)

    def _follow_again(self, vbucket: Vbucket) -> None:
        """Take nothing more of what arrives for a vbucket, and begin another try from what it has now."""
        self._followed.discard(vbucket.id)
        self._again.set()

    async def _learn(self) -> None:
        """Let the bucket have the scopes and collections that a vbucket has been told of.

        The events of a change of the manifest all say the one before, but for the last: so it is there as a whole.
        """
        told, self._told = self._told, set()
        for number in told:
            vbucket = self._vbuckets[number]
            if (vbucket.manifest_uid or 0) > self._served.store.manifest.uid:
                await self._do(number, partial(self._take_manifest, vbucket))

    def _take_manifest(self, vbucket: Vbucket) -> None:
        self._served.changed.add(vbucket.id)
        try:
            self._served.change_manifest(vbucket.manifest())
        except (OutOfRange, CannotApplyManifest) as error:
            logger.warning("bucket %s keeps its own collections: %s", self._served.store.name, error)

    def _complete(self, vbucket: Vbucket, end: int, before: int = MAX_SEQNO) -> None:
        """End the snapshot that a vbucket is in if it has come to its end, and if the next change lies behind that."""
        if vbucket.high_seqno == end < before and vbucket.id in self._incomplete:
            vbucket.end_snapshot(hides=self._incomplete.pop(vbucket.id))
            self._served.changed.add(vbucket.id)

    async def _breathe(self) -> None:
        """Let others have the event loop, if they have waited for long."""
        if self._loop.time() - self._slice_began > _SLICE_SECONDS:
            self._served.notify()
            await asyncio.sleep(0)
            self._slice_began = self._loop.time()

    # Histories

    def _reconcile(self, vbucket: Vbucket, log: FailoverLog) -> None:
        """Go back to the last complete snapshot that the upstream of this failover log has as well."""
        common = common_seqno(vbucket.failover_log, vbucket.high_seqno, log)
        self._move(vbucket, min(common, vbucket.whole_seqno), log)

    def _move(self, vbucket: Vbucket, seqno: int, log: FailoverLog) -> None:
        """Go back to a seqno, and take over the upstream's failover log if that is known; tell it if it can be noticed.

        Where a vbucket cannot end at the seqno, it goes back further.
        """
        whole, before = vbucket.whole_seqno, vbucket.failover_log
        try:
            if seqno < vbucket.high_seqno:
                vbucket.rollback(seqno)
                self._incomplete.pop(vbucket.id, None)
            if log and log[0].vbuuid and sanitised(log) != vbucket.failover_log:
                vbucket.set_failover_log(log)
        finally:  # the second may be refused after the first was not
            if vbucket.whole_seqno < whole:
                self.rollbacks += 1
                logger.info("vbucket %d of %s: back from %d to %d", vbucket.id, self.address, whole, vbucket.high_seqno)
                self._tell(vbucket, VbucketEvent.STATE_CHANGED if vbucket.high_seqno else VbucketEvent.FLUSHED)
            elif vbucket.failover_log != before:
                self._tell(vbucket, VbucketEvent.STATE_CHANGED)

    def _tell(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        self._is_own_event = True
        try:
            self._served.tell(vbucket, event)
        finally:
            self._is_own_event = False
        self._served.changed.add(vbucket.id)


def _position(vbucket: Vbucket, log: FailoverLog) -> Position:
    """Return where to go on with a vbucket that has nothing but what the upstream of this failover log has.

    It knows no older end: a producer that refuses even this one has lost its history, and the vbucket begins anew.
    """
    seqno = vbucket.high_seqno
    if not seqno:
        return BEGINNING
    return Position(seqno=seqno, vbuuid=branch_at(log, seqno).vbuuid, snap_start=seqno, snap_end=seqno)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s", error, exc_info=None if isinstance(error, Error) else error)
