"""Requests that wait for their replies, matched by opaque."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.client.connect.peer_forms import limit_datatype
from penstock.errors import RemoteProtocolError
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import OPAQUE_AT, U32, Frame, name_opcode
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Magic
from penstock.wire.codec.statuses import Status

MAX_STATS: Final = 1 << 20
"""Statistics in one answer: `vbucket-seqno` has up to nine for each of 65,536 vbuckets."""

MAX_STAT_BYTES: Final = 128 * 1024 * 1024
"""Bytes of names and texts in one answer."""

_MAX_OPAQUE = 0x7FFF_FFFF
_NO_REPLY = Frame(Magic.RESPONSE, 0)


class PendingCall:
    """Requests that are sent together, with consecutive opaques, and their replies.

    Attributes:
        first_opaque: the opaque of the first request.
        missing_replies: the number of requests without a reply.
        opcode: the opcode of the first request.
        done: a future that is done when all replies have arrived.
        replies: the replies in the order of the requests.
        collected: the frames before the last frame of an answer with several frames; None: one frame for each request.
        collected_bytes: bytes of their keys and values.
    """

    __slots__ = ("collected", "collected_bytes", "done", "first_opaque", "missing_replies", "opcode", "replies")

    def __init__(self, first: int, requests: Sequence[Request], done: asyncio.Future[None], *, collect: bool) -> None:
        self.first_opaque = first
        self.missing_replies = len(requests)
        self.opcode = requests[0].opcode
        self.done = done
        self.replies: list[Frame] = [_NO_REPLY] * len(requests)
        self.collected: list[Frame] | None = [] if collect else None
        self.collected_bytes = 0

    def encode(self, requests: Sequence[Request], granted: Datatype) -> bytearray:
        """Return the bytes of the requests with their opaques.

        Args:
            requests: the requests.
            granted: the datatype bits that both sides may send.
        """
        if not granted & Datatype.JSON:
            requests = [limit_datatype(request, granted) for request in requests]
        frames = [request.encode() for request in requests]
        data, offset = bytearray().join(frames), OPAQUE_AT
        for opaque, frame in enumerate(frames, self.first_opaque):
            U32.pack_into(data, offset, opaque)
            offset += len(frame)
        return data

    def add_reply(self, frame: Frame) -> bool:
        """Add a reply.

        Args:
            frame: the reply.

        Returns:
            Whether the request has all of its replies now.

        Raises:
            RemoteProtocolError: an answer of several frames is too large.
        """
        if self.collected is not None and frame.specific == Status.SUCCESS and frame.key:
            self.collected_bytes += len(frame.key) + len(frame.value)
            if len(self.collected) >= MAX_STATS or self.collected_bytes > MAX_STAT_BYTES:
                raise RemoteProtocolError(
                    f"the answer to {name_opcode(self.opcode)} is too large: {len(self.collected) + 1} entries of "
                    f"{self.collected_bytes} bytes without an end, limits {MAX_STATS} and {MAX_STAT_BYTES}"
                )
            self.collected.append(frame)
            return False
        self.replies[frame.opaque - self.first_opaque] = frame
        self.missing_replies -= 1
        if not self.missing_replies and not self.done.done():
            self.done.set_result(None)
        return True


class PendingCalls:
    """The pending calls of one connection, and the next unused opaque."""

    def __init__(self) -> None:
        self._by_opaque: dict[int, PendingCall] = {}
        self._next_opaque = 1

    @property
    def count(self) -> int:
        """The number of requests without a complete reply."""
        return len(self._by_opaque)

    def allocate_opaque(self, count: int = 1, least: int = 0) -> int:
        """Return the first of `count` consecutive unused opaques, at least `least`."""
        self._next_opaque = max(self._next_opaque, least)
        if self._next_opaque + count > _MAX_OPAQUE:
            self._next_opaque = 1
        first = self._next_opaque
        self._next_opaque += count
        return first

    def register(self, call: PendingCall) -> None:
        """Register a call for its replies."""
        self._by_opaque.update(dict.fromkeys(range(call.first_opaque, call.first_opaque + call.missing_replies), call))

    def dispatch_reply(self, frame: Frame) -> bool:
        """Pass a reply to its call; return False for any other frame.

        Raises RemoteProtocolError for an answer of several frames that is too large.
        """
        call = self._by_opaque.get(frame.opaque) if frame.magic == Magic.RESPONSE else None
        if call is None:
            return False
        if call.add_reply(frame):
            del self._by_opaque[frame.opaque]
        return True

    def remove_unanswered(self) -> list[PendingCall]:
        """Remove and return all calls without complete replies: the connection has ended."""
        waiting, self._by_opaque = self._by_opaque, {}
        return [call for call in {*waiting.values()} if not call.done.done()]
