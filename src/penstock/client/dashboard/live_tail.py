"""Live tails of a bucket for viewers of its dashboard: a change stream each, while the viewer asks for changes."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from penstock.client.bucket import Bucket
from penstock.client.dashboard.shown_change import MAX_CHANGES, NEWEST_CHANGES, TailRequest, describe_change
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.filters.filter_control import parse_filter_setting
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.stream_choice import ChangeOptions, Start
from penstock.errors import Error, UsageError
from penstock.store.history.failover_log import find_branch
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.run_decoder import list_changes
from penstock.wire.columns.schema import Change, Event

logger = logging.getLogger("penstock.client")

IDLE_SECONDS: Final = 10.0
"""A tail ends if its viewer asks for nothing for so long. The page asks each second while it is visible."""

MAX_TAILS: Final = 16
"""Tails at once. Each has its own streams."""

MAX_GAP: Final = 100_000
"""Changes of an outage that a tail reads, to show the newest of them. After a longer gap it begins now."""

_SHOWN_EVENTS = frozenset({Event.MUTATION, Event.DELETION, Event.EXPIRATION})


class TailList:
    """The tails of all viewers. All methods run on the event loop of the bucket.

    Args:
        bucket: the connected bucket.
        idle_seconds: a tail ends if its viewer asks for nothing for so long.
        max_gap: as MAX_GAP.
    """

    def __init__(self, bucket: Bucket, idle_seconds: float = IDLE_SECONDS, max_gap: int = MAX_GAP) -> None:
        self._bucket = bucket
        self._max_gap = max_gap
        self._idle_seconds = idle_seconds
        self._tails: dict[int, _LiveTail] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    async def read(self, wanted: TailRequest) -> dict[str, Any]:
        """Return the changes since the last answer, and the positions for the next request.

        The positions are the number of the tail, and the number of its last change. A request without them begins a
        tail, and so does one whose tail has ended. A tail whose stream has failed continues at the positions of the
        stream, once the bucket answers again.

        Raises:
            UsageError: the filter is invalid, or there are too many tails.
            Error, OSError: the bucket does not answer.
        """
        number, seen = wanted.positions if len(wanted.positions) == 2 else (0, 0)
        tail = self._tails.get(number)
        if tail is None or not tail.has_same_filter(wanted):
            number, seen, tail = await self._begin(wanted)
        self._stop_timer(number)  # while the bucket is asked, the viewer waits
        try:
            await tail.resume()
        finally:
            self._start_timer(number)
        changes, skipped, newest = tail.take(seen)
        return {"positions": [number, newest], "changes": changes, "skipped": skipped}

    async def close(self) -> None:
        """End all tails."""
        for number in [*self._tails]:
            await self._end(number)

    async def _begin(self, wanted: TailRequest) -> tuple[int, int, _LiveTail]:
        if len(self._tails) >= MAX_TAILS:
            raise UsageError(f"{MAX_TAILS} tails are running already")
        stream = await _open_stream(self._bucket, wanted, "now")
        number = secrets.randbits(52)  # JavaScript has no larger integers
        tail = self._tails[number] = _LiveTail(self._bucket, wanted, stream, self._max_gap)
        return number, 0, tail

    def _start_timer(self, number: int) -> None:
        """End a tail after some seconds, unless its viewer asks again."""
        self._stop_timer(number)
        if number in self._tails:
            loop = asyncio.get_running_loop()
            self._timers[number] = loop.call_later(self._idle_seconds, lambda: loop.create_task(self._end(number)))

    def _stop_timer(self, number: int) -> None:
        if (timer := self._timers.pop(number, None)) is not None:
            timer.cancel()

    async def _end(self, number: int) -> None:
        self._stop_timer(number)
        tail = self._tails.pop(number, None)
        if tail is not None:
            await tail.close()


class _LiveTail:
    """One tail: keeps the newest changes of a stream until its viewer has asked for later ones.

    Args:
        bucket: the bucket.
        wanted: the request that began it.
        stream: the stream.
        max_gap: as MAX_GAP.
    """

    def __init__(self, bucket: Bucket, wanted: TailRequest, stream: ChangeStream, max_gap: int) -> None:
        self._bucket = bucket
        self._wanted = wanted
        self._stream = stream
        self._max_gap = max_gap
        self._resuming = asyncio.Lock()
        self._has_failed = False
        self._changes: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MAX_CHANGES)
        """The newest changes with their numbers."""
        self._newest = 0
        self._reading = asyncio.create_task(self._read())

    async def resume(self) -> None:
        """Continue after a failure of the stream, at its positions. Raises Error or OSError without an answer."""
        async with self._resuming:
            if not self._has_failed:
                return
            positions = self._stream.positions
            gap = _count_gap(positions, await self._bucket.high_seqnos())
            is_long = gap > self._max_gap
            self._stream = await _open_stream(self._bucket, self._wanted, "now" if is_long else positions or "now")
            self._newest += gap if is_long else 0
            self._has_failed = False
            self._reading = asyncio.create_task(self._read())

    def has_same_filter(self, wanted: TailRequest) -> bool:
        """Return whether a request has the filter of this tail."""
        mine, other = self._wanted, wanted
        return (mine.vbuckets, mine.collections, mine.filter_key, mine.filter_value) == (
            other.vbuckets,
            other.collections,
            other.filter_key,
            other.filter_value,
        )

    def take(self, seen: int) -> tuple[list[dict[str, Any]], int, int]:
        """Return the changes after number `seen`, how many more there were, and the number of the newest one."""
        found = [change for number, change in self._changes if number > seen]
        return found, max(self._newest - seen, 0) - len(found), self._newest

    async def close(self) -> None:
        """End the stream."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._stream.close()

    async def _read(self) -> None:
        try:
            while (delivery := await self._stream.next_delivery()) is not None:
                for change in self._choose_newest(delivery):
                    if change.event in _SHOWN_EVENTS:
                        self._newest += 1
                        self._changes.append((self._newest, describe_change(change)))
        except (Error, OSError) as error:
            logger.info("a live tail was interrupted: %s", error)
            await self._stream.close()
            self._has_failed = True

    def _choose_newest(self, delivery: Delivery) -> list[Change]:
        """Return the newest changes of a delivery. The others are counted: to decode them would be in vain."""
        content = delivery.content
        left_out = max(len(content) - MAX_CHANGES, 0)
        self._newest += left_out
        return content[left_out:] if isinstance(content, list) else list_changes(content.slice(left_out))


def _count_gap(seen: Mapping[int, Position], seqnos: Mapping[int, int]) -> int:
    """Return the changes behind positions, at most. A vbucket below its position has begun another history."""
    ends = ((seqnos[vbucket], position.seqno) for vbucket, position in seen.items() if vbucket in seqnos)
    return sum(end - start if end >= start else end for end, start in ends)


async def _open_stream(bucket: Bucket, wanted: TailRequest, start: Start) -> ChangeStream:
    return await bucket.stream(start, None, wanted.vbuckets or None, **_choose_options(bucket, wanted))


async def read_newest(bucket: Bucket, vbucket: int) -> dict[str, Any]:
    """Return the newest changes of a vbucket, each document once. Raises the errors of Bucket.stream and ChangeStream.

    Args:
        bucket: the bucket.
        vbucket: the number of the vbucket.
    """
    info = (await bucket.vbucket_infos([vbucket]))[vbucket]
    seqno = max(info.high_seqno - NEWEST_CHANGES, info.purge_seqno, 0)  # below the purge seqno a producer rolls back
    found: list[Change] = []
    if info.high_seqno:
        vbuuid = find_branch(info.failover_log, seqno).vbuuid if seqno else 0
        start = {vbucket: Position(seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno)}
        options = _choose_options(bucket, TailRequest()) | {"rollback": "fail"}
        async with await bucket.stream(start, {vbucket: info.high_seqno}, [vbucket], **options) as stream:
            found = [change async for change in stream.changes() if change.event in _SHOWN_EVENTS][-NEWEST_CHANGES:]
    return {"vbucket": vbucket, "changes": [describe_change(each) for each in found], "skipped": seqno}


def _choose_options(bucket: Bucket, wanted: TailRequest) -> ChangeOptions:
    """Return the options of a stream with the filter of a request. Raises UsageError for an invalid one."""
    texts = {"key": wanted.filter_key, "value": wanted.filter_value}
    given = {name: text for name, text in texts.items() if text}
    if given:  # the limits are those of a node: no viewer can make the filter slow
        parse_filter_setting(json.dumps(given).encode())
    options: ChangeOptions = {"filter_key": given.get("key"), "filter_value": given.get("value")}
    if wanted.collections:
        options["collections"] = wanted.collections
    if bucket.address.options.protocol is Dialect.DCP:
        options["xattrs"] = True
    return options
