"""TLS on a connection that was accepted: decrypts for a protocol, encrypts what the protocol writes.

asyncio's own (`ssl=` of its servers, `start_tls`) sets 256 KiB aside for each connection as long as it lasts, and has
no option for it: four thousand silent peers were 1.2 GiB. Here a connection has the buffers of OpenSSL alone, and not
even these before its ClientHello is there. Ciphertext is read into a buffer that all connections share, and decrypted
right into the buffer of the protocol.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, cast

__all__ = ["READ_BYTES", "Encrypted"]

READ_BYTES: Final = 128 * 1024
"""Bytes of one read; OpenSSL keeps as much for a connection that is busy."""

_WRITE_BYTES: Final = 128 * 1024  # encrypted at once
_HANDSHAKE: Final = 0x16  # the first byte of a record with a ClientHello
_MAX_HELLO: Final = 4096  # bytes that are kept of one; with a post-quantum key share it has 1.8 KiB
_RECORD_HEAD: Final = 5  # bytes; the last two are the length of the record (RFC 8446, section 5.1)


class HandshakeWatch(Protocol):
    """Bounds how many handshakes there may be, and for how long.

    Attributes:
        read_buffer: shared by all connections: each read is used up before the next.
    """

    loop: asyncio.AbstractEventLoop
    read_buffer: memoryview

    def connected(self, connection: Encrypted) -> None: ...
    def begun(self, connection: Encrypted) -> None: ...
    def done(self, connection: Encrypted, *, certified: bool) -> None: ...
    def lost(self, connection: Encrypted) -> None: ...


class Encrypted(asyncio.BufferedProtocol):
    """One connection with TLS. The protocol inside is made when the handshake is done.

    Args:
        handshakes: bounds how many handshakes there may be, and for how long.
        make: makes the protocol that gets the bytes in clear.
        new_context: returns the context to use.
    """

    def __init__(
        self,
        handshakes: HandshakeWatch,
        make: Callable[[], asyncio.BaseProtocol],
        new_context: Callable[[], ssl.SSLContext],
    ) -> None:
        self.host = ""
        self._handshakes = handshakes
        self._make = make
        self._new_context = new_context
        self._transport: asyncio.Transport
        self._hello = b""  # the bytes so far, before there is an SSL object
        self._incoming = self._outgoing = cast(ssl.MemoryBIO, None)
        self._ssl: ssl.SSLObject | None = None
        self._inner: asyncio.BufferedProtocol | None = None
        self._paused = False
        self._eof = False
        self._ended = False

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        self.host = "" if peername is None else peername[0]
        self._handshakes.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._handshakes.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        received = self._handshakes.read_buffer[:nbytes]
        if self._inner is not None:
            self._incoming.write(received)
            self._read()
        elif self._ssl is not None:
            self._incoming.write(received)
            self._shake()
        else:
            self._hello += received
            if _is_complete(self._hello):
                self._begin()

    def eof_received(self) -> bool:
        """End the connection, unless the protocol inside still has something to send."""
        self._finish()
        return self._inner is not None and not self._ended

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._handshakes.lost(self)
        inner, self._inner, self._ssl = self._inner, None, None  # what refers to itself would stay for a while
        if inner is not None:
            inner.connection_lost(exc)

    def abort(self) -> None:
        self._ended = True
        self._transport.abort()

    # The handshake

    def _begin(self) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = self._new_context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(self._hello)
        self._hello = b""
        self._handshakes.begun(self)
        if not self._ended:
            self._shake()

    def _shake(self) -> None:
        assert self._ssl is not None
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, OSError):  # what went wrong is the peer's business; OpenSSL has an alert for it
            self._flush()
            self._ended = True
            self._transport.close()
            return
        self._flush()
        self._inner = cast(asyncio.BufferedProtocol, self._make())
        self._handshakes.done(self, certified=bool(self._ssl.getpeercert()))
        self._inner.connection_made(_ClearTransport(self, self._transport, self._ssl))
        self._read()

    # Once it is done

    def _read(self) -> None:
        """Decrypt what has come, until the protocol inside wants no more."""
        while self._ssl is not None and self._inner is not None and not self._paused and not self._ended:
            buffer = memoryview(self._inner.get_buffer(-1))
            filled, finished = self._decrypt(self._ssl, buffer)
            if filled:
                self._inner.buffer_updated(filled)
            if finished:
                self._finish()
            if filled < len(buffer):
                return

    def _decrypt(self, tls: ssl.SSLObject, buffer: memoryview) -> tuple[int, bool]:
        """Fill a buffer as far as possible; return how far, and whether nothing more can follow."""
        filled = 0
        try:
            while filled < len(buffer):
                count = tls.read(len(buffer) - filled, buffer[filled:])  # of a record at most
                if not count:
                    return filled, True
                filled += cast(int, count)
        except ssl.SSLWantReadError:
            if self._outgoing.pending:
                self._flush()  # a key update, for instance
        except ssl.SSLError:
            self._flush()
            return filled, True
        return filled, False

    def _finish(self) -> None:
        """The peer sends no more, or nothing that can be read. TLS cannot be closed by halves."""
        if self._inner is not None and not self._ended and not self._eof:
            self._eof = True
            if not self._inner.eof_received():
                self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._ssl is None or self._ended:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._ssl.write(rest[:_WRITE_BYTES]) :]
                if self._outgoing.pending >= _WRITE_BYTES:
                    self._flush()
        except ssl.SSLError:
            self.abort()
            return
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def close(self) -> None:
        """Tell the peer that this is the end, and close when all is sent."""
        if self._ended or self._ssl is None:
            return
        self._ended = True
        with suppress(ssl.SSLError):  # the peer's part is not waited for
            self._ssl.unwrap()
        self._flush()
        self._transport.close()

    def pause_reading(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
            self._handshakes.loop.call_soon(self._read)  # what was received before


class _ClearTransport(asyncio.Transport):
    """What the protocol inside sees."""

    def __init__(self, connection: Encrypted, transport: asyncio.Transport, tls: ssl.SSLObject) -> None:
        super().__init__()
        self._connection = connection
        self._transport = transport
        self._tls = tls
        self.write = connection.write  # type: ignore[method-assign]  # without a call in between
        self.close = connection.close  # type: ignore[method-assign]
        self.abort = connection.abort  # type: ignore[method-assign]
        self.pause_reading = connection.pause_reading  # type: ignore[method-assign]
        self.resume_reading = connection.resume_reading  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_write_buffer_size = transport.get_write_buffer_size  # type: ignore[method-assign]
        self.get_write_buffer_limits = transport.get_write_buffer_limits  # type: ignore[method-assign]
        self.set_write_buffer_limits = transport.set_write_buffer_limits  # type: ignore[method-assign]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._tls.getpeercert()
        if name == "ssl_object":
            return self._tls
        return self._transport.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        return False


def _is_complete(hello: bytes) -> bool:
    """Has the first record of a client arrived? A long one, and what is no record, is OpenSSL's to judge."""
    size = _RECORD_HEAD + int.from_bytes(hello[3:5], "big")
    return len(hello) >= _RECORD_HEAD and (hello[0] != _HANDSHAKE or len(hello) >= size or size > _MAX_HELLO)
