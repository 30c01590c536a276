"""Writes the responses of one HTTP connection, with a limit to the time in which its client must read them."""

from __future__ import annotations

import asyncio

from penstock.node.transport.unread_watch import UnreadWatch

_UNREAD_SECONDS = 30.0  # within which the client must read some bytes


class ResponseOutput:
    """Writes responses, and aborts the connection of a client that does not read them.

    Attributes:
        written_bytes: bytes that were written so far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self.written_bytes = 0
        self._transport = transport
        self._writable = asyncio.Event()
        self._writable.set()
        self._watch = UnreadWatch(loop, _UNREAD_SECONDS, self, lambda _: transport.abort())

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the operating system has not taken yet."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Write a part of a response; nothing if the connection is closing."""
        if data and not self._transport.is_closing():
            self.written_bytes += len(data)
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read enough; if it does not, the connection ends."""
        await self._writable.wait()

    def pause(self) -> None:
        """Let `drain` wait: the transport's buffer is full."""
        self._writable.clear()
        self._watch.start()

    def resume(self) -> None:
        """Let `drain` continue: the transport's buffer has room."""
        self._writable.set()
        if not self._transport.is_closing():
            self._watch.stop()

    def close(self) -> None:
        """Close the connection once the client has read all that was written."""
        self._transport.close()
        self._watch.start()

    def stop(self) -> None:
        """Let all waits end: the connection is lost."""
        self._watch.stop()
        self._writable.set()
