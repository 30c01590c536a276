"""Requests that wait for their replies, each known by its opaque."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.frame import OPAQUE_AT, U32, Frame, opcode_name
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Magic
from penstock.wire.codec.statuses import Status

__all__ = ["MAX_STATS", "MAX_STAT_BYTES", "PendingCall", "PendingCalls"]

MAX_STATS: Final = 1 << 20
"""Statistics of one answer: a bucket with 65,536 vbuckets has up to nine of each in the group `vbucket-seqno`."""

MAX_STAT_BYTES: Final = 128 * 1024 * 1024
"""Bytes of the names and texts in one answer."""

_OPAQUES = 0x7FFF_FFFF
_NONE = Frame(Magic.RESPONSE, 0)


class PendingCall:
    """Requests sent together, under opaques from `first` on, and the replies that have come.

    Attributes:
        opcode: of the first request.
        collected: frames in front of the last one, where an answer has several; None where it has one.
        collected_bytes: of their keys and values.
    """

    __slots__ = ("collected", "collected_bytes", "done", "first", "missing", "opcode", "replies")

    def __init__(self, first: int, requests: Sequence[Request], done: asyncio.Future[None], *, collect: bool) -> None:
        self.first = first
        self.missing = len(requests)
        self.opcode = requests[0].opcode
        self.done = done
        self.replies: list[Frame] = [_NONE] * len(requests)
        self.collected: list[Frame] | None = [] if collect else None
        self.collected_bytes = 0

    def encode(self, requests: Sequence[Request]) -> bytearray:
        """Return the requests' bytes, under the opaques from `first` on."""
        frames = [request.encode() for request in requests]
        data, offset = bytearray().join(frames), OPAQUE_AT
        for opaque, frame in enumerate(frames, self.first):
            U32.pack_into(data, offset, opaque)
            offset += len(frame)
        return data

    def take(self, frame: Frame) -> bool:
        """Take a reply; return whether its request is answered with that.

        Raises RemoteProtocolError for an answer of several frames that is too large.
        """
        if self.collected is not None and frame.specific == Status.SUCCESS and frame.key:
            self.collected_bytes += len(frame.key) + len(frame.value)
            if len(self.collected) >= MAX_STATS or self.collected_bytes > MAX_STAT_BYTES:
                raise RemoteProtocolError(
                    f"the answer to {opcode_name(self.opcode)} is too large: {len(self.collected) + 1} entries of "
                    f"{self.collected_bytes} bytes without an end, limits {MAX_STATS} and {MAX_STAT_BYTES}"
                )
            self.collected.append(frame)
            return False
        self.replies[frame.opaque - self.first] = frame
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(None)
        return True


class PendingCalls:
    """The calls of one connection, and the opaques that are free."""

    def __init__(self) -> None:
        self._by_opaque: dict[int, PendingCall] = {}
        self._next_opaque = 1

    def take_opaque(self, count: int = 1, least: int = 0) -> int:
        """Return the first of `count` opaques in a row, not below `least`, that no other request under way has."""
        self._next_opaque = max(self._next_opaque, least)
        if self._next_opaque + count > _OPAQUES:
            self._next_opaque = 1
        first = self._next_opaque
        self._next_opaque += count
        return first

    def expect(self, call: PendingCall) -> None:
        """Expect the replies of a call."""
        self._by_opaque.update(dict.fromkeys(range(call.first, call.first + call.missing), call))

    def answer(self, frame: Frame) -> bool:
        """Take a reply to one of the requests; False for any other frame.

        Raises RemoteProtocolError for an answer of several frames that is too large.
        """
        call = self._by_opaque.get(frame.opaque) if frame.magic == Magic.RESPONSE else None
        if call is None:
            return False
        if call.take(frame):
            del self._by_opaque[frame.opaque]
        return True

    def take_unanswered(self) -> list[PendingCall]:
        """Return the calls whose replies will not come."""
        waiting, self._by_opaque = self._by_opaque, {}
        return [call for call in {*waiting.values()} if not call.done.done()]
