"""The output of one connection: sends long replies in slices, without copying them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from penstock.wire.codec.frame import Buffer

_SLICE: Final = 512 * 1024
"""Bytes that the transport gets before other connections have their turn. Encrypting them takes half a millisecond."""


class OutputBuffer:
    """Sends bytes, and keeps the rest of long replies until the transport takes it.

    A transport copies all bytes that the peer does not take at once. Therefore it gets slices only. The rest is kept as
    views, which pin a segment of the log until they are sent.

    Args:
        loop: the event loop.
        transport: gets the slices.
        on_drained: called when the transport has got everything.

    Attributes:
        pending_bytes: bytes that the transport has not got yet.
        written_bytes: all bytes of the connection so far, with the pending ones.
        is_full: whether the transport's buffer is above its limit.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, on_drained: Callable[[], None]
    ) -> None:
        self.pending_bytes = 0
        self.written_bytes = 0
        self.is_full = False
        self._loop = loop
        self._transport = transport
        self._on_drained = on_drained
        self._pieces: deque[memoryview] = deque()
        self._turn: asyncio.Handle | None = None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer's system has not taken yet."""
        return self._transport.get_write_buffer_size() + self.pending_bytes

    def write(self, data: Buffer) -> None:
        """Send bytes at once, or after the pending pieces."""
        if self.pending_bytes:
            self.send((data,))
        else:
            self.written_bytes += len(data)
            self._transport.write(data)

    def send(self, pieces: Iterable[Buffer]) -> None:
        """Send pieces after the pending ones, from the next turn on, without joining them."""
        for piece in pieces:
            if piece:
                self._pieces.append(memoryview(piece))  # slices of a view copy nothing
                self.pending_bytes += len(piece)
                self.written_bytes += len(piece)
        self.schedule_send()

    def schedule_send(self) -> None:
        """Send the next slice in a turn of its own, unless the transport's buffer is full."""
        if self._turn is None and not self.is_full:
            self._turn = self._loop.call_soon(self._send_slice)

    def flush(self) -> None:
        """Give all pending pieces to the transport, before it is closed."""
        self._write_pieces(self.pending_bytes)
        self.clear()

    def clear(self) -> None:
        """Drop the pending pieces."""
        self._pieces.clear()
        self.pending_bytes = 0
        if self._turn is not None:
            self._turn.cancel()

    def _send_slice(self) -> None:
        self._turn = None
        if self._transport.is_closing():
            self.clear()
            return
        self._write_pieces(_SLICE)
        if self.pending_bytes:
            self.schedule_send()
        elif not self.is_full:
            self._on_drained()

    def _write_pieces(self, room: int) -> None:
        while self._pieces and room > 0:
            piece = self._pieces.popleft()
            if len(piece) > room:
                self._pieces.appendleft(piece[room:])
                piece = piece[:room]
            room -= len(piece)
            self.pending_bytes -= len(piece)
            self._transport.write(piece)
