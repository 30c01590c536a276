"""Bytes that one connection sends: replies that are too long for the buffer of a transport go in slices."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from penstock.node.answers import Answer, Pieces
from penstock.wire.codec.frame import Buffer

__all__ = ["Outflow"]

_SLICE: Final = 512 * 1024
"""Bytes that are given to the transport before others have their turn. With TLS they take half a millisecond."""


class Outflow:
    """Sends bytes, and holds those that the transport has yet to get.

    A transport copies what the peer does not take at once. So it gets slices, and the rest stays where it is: a view
    of the log pins its segment until it is sent.

    Args:
        loop: the event loop.
        transport: gets the slices.
        drained: called when everything was given to the transport.

    Attributes:
        nbytes: bytes that the transport did not get yet.
        written: bytes that were sent so far, with those that wait.
        is_full: the transport's buffer is above its limit.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, drained: Callable[[], None]
    ) -> None:
        self.nbytes = 0
        self.written = 0
        self.is_full = False
        self._loop = loop
        self._transport = transport
        self._drained = drained
        self._pieces: deque[memoryview] = deque()
        self._turn: asyncio.Handle | None = None

    @property
    def unsent(self) -> int:
        """Return how many bytes the peer's system has yet to take."""
        return self._transport.get_write_buffer_size() + self.nbytes

    def write(self, data: Buffer) -> None:
        """Send this at once, or behind all that waits."""
        if self.nbytes:
            self._add((data,))
        else:
            self.written += len(data)
            self._transport.write(data)

    def send(self, replies: Iterable[Answer]) -> None:
        """Send replies behind all that waits, beginning at the next turn, without putting their pieces together."""
        for reply in replies:
            self._add(reply.parts if isinstance(reply, Pieces) else (reply,))

    def _add(self, pieces: Iterable[Buffer]) -> None:
        for piece in pieces:
            if piece:
                self._pieces.append(memoryview(piece))
                self.nbytes += len(piece)
                self.written += len(piece)
        self.send_soon()

    def send_soon(self) -> None:
        """Go on, unless the transport's buffer is full."""
        if self._turn is None and not self.is_full:
            self._turn = self._loop.call_soon(self._take_turn)

    def finish(self) -> None:
        """Give everything to the transport: it is about to be closed."""
        self._send(self.nbytes)
        self.clear()

    def clear(self) -> None:
        """Forget what was not sent."""
        self._pieces.clear()
        self.nbytes = 0
        if self._turn is not None:
            self._turn.cancel()

    def _take_turn(self) -> None:
        self._turn = None
        if self._transport.is_closing():
            self.clear()
            return
        self._send(_SLICE)
        if self.nbytes:
            self.send_soon()
        elif not self.is_full:
            self._drained()

    def _send(self, room: int) -> None:
        while self._pieces and room > 0:
            piece = self._pieces.popleft()
            if len(piece) > room:
                self._pieces.appendleft(piece[room:])
                piece = piece[:room]
            room -= len(piece)
            self.nbytes -= len(piece)
            self._transport.write(piece)
