"""Live tails of a bucket for viewers of its dashboard: a change stream each, while the viewer asks for changes."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from penstock.client.bucket import Bucket
from penstock.client.dashboard.shown_change import MAX_CHANGES, NEWEST_CHANGES, TailRequest, describe_change
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.filters.filter_control import parse_filter_setting
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.stream_choice import ChangeOptions
from penstock.errors import Error, UsageError
from penstock.store.history.failover_log import find_branch
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.run_decoder import list_changes
from penstock.wire.columns.schema import Change, Event

__all__ = ["TailList", "read_newest"]

IDLE_SECONDS: Final = 10.0
"""A tail ends if its viewer asks for nothing for so long. The page asks each second while it is visible."""

MAX_TAILS: Final = 16
"""Tails at once. Each has its own streams."""

_SHOWN_EVENTS = frozenset({Event.MUTATION, Event.DELETION, Event.EXPIRATION})


class TailList:
    """The tails of all viewers. All methods run on the event loop of the bucket.

    Args:
        bucket: the connected bucket.
        idle_seconds: a tail ends if its viewer asks for nothing for so long.
    """

    def __init__(self, bucket: Bucket, idle_seconds: float = IDLE_SECONDS) -> None:
        self._bucket = bucket
        self._idle_seconds = idle_seconds
        self._tails: dict[int, _LiveTail] = {}

    async def read(self, wanted: TailRequest) -> dict[str, Any]:
        """Return the changes since the last answer, and the positions for the next request.

        The positions are the number of the tail, and the number of its last change. A request without them begins a
        tail, and so does one whose tail has ended.

        Raises:
            UsageError: the filter is invalid, or there are too many tails.
            Error, OSError: the bucket does not answer.
        """
        number, seen = wanted.positions if len(wanted.positions) == 2 else (0, 0)
        tail = self._tails.get(number)
        if tail is None or not tail.has_same_filter(wanted):
            number, seen, tail = await self._begin(wanted)
        if tail.failure is not None:
            await self._end(number)
            raise tail.failure
        changes, skipped, newest = tail.take(seen)
        return {"positions": [number, newest], "changes": changes, "skipped": skipped}

    async def close(self) -> None:
        """End all tails."""
        for number in [*self._tails]:
            await self._end(number)

    async def _begin(self, wanted: TailRequest) -> tuple[int, int, _LiveTail]:
        if len(self._tails) >= MAX_TAILS:
            raise UsageError(f"{MAX_TAILS} tails are running already")
        stream = await self._bucket.stream(
            "now", None, wanted.vbuckets or None, **_choose_options(self._bucket, wanted)
        )
        number = secrets.randbits(52)  # JavaScript has no larger integers
        loop = asyncio.get_running_loop()
        tail = self._tails[number] = _LiveTail(
            wanted, stream, self._idle_seconds, lambda: loop.create_task(self._end(number))
        )
        return number, 0, tail

    async def _end(self, number: int) -> None:
        tail = self._tails.pop(number, None)
        if tail is not None:
            await tail.close()


class _LiveTail:
    """One tail: keeps the newest changes of a stream until its viewer has asked for later ones.

    Args:
        wanted: the request that began it.
        stream: the stream.
        idle_seconds: the longest time between two requests.
        end: called after a longer time.

    Attributes:
        failure: why the stream has ended.
    """

    def __init__(
        self, wanted: TailRequest, stream: ChangeStream, idle_seconds: float, end: Callable[[], object]
    ) -> None:
        self.failure: Error | OSError | None = None
        self._wanted = wanted
        self._stream = stream
        self._idle_seconds, self._end = idle_seconds, end
        self._changes: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MAX_CHANGES)
        """The newest changes with their numbers."""
        self._newest = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(idle_seconds, end)
        self._reading = self._loop.create_task(self._read())

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
        self._timer.cancel()
        self._timer = self._loop.call_later(self._idle_seconds, self._end)
        found = [change for number, change in self._changes if number > seen]
        return found, max(self._newest - seen, 0) - len(found), self._newest

    async def close(self) -> None:
        """End the stream."""
        self._timer.cancel()
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        await self._stream.close()

    async def _read(self) -> None:
        try:
            while (delivery := await self._stream.next_delivery()) is not None:
                for change in self._choose_newest(delivery):
                    if change.event in _SHOWN_EVENTS:
                        self._newest += 1
                        self._changes.append((self._newest, describe_change(change)))
        except (Error, OSError) as error:
            self.failure = error

    def _choose_newest(self, delivery: Delivery) -> list[Change]:
        """Return the newest changes of a delivery. The others are counted: to decode them would be in vain."""
        content = delivery.content
        left_out = max(len(content) - MAX_CHANGES, 0)
        self._newest += left_out
        return content[left_out:] if isinstance(content, list) else list_changes(content.slice(left_out))


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
