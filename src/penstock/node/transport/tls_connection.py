"""TLS on an accepted connection: decrypts for a protocol, and encrypts its output.

asyncio's own TLS (`ssl=` of its servers, `start_tls`) allocates 256 KiB for each connection, and has no option for
that: four thousand silent peers were 1.2 GiB. Here, a connection has only the buffers of OpenSSL, and not even these
before its ClientHello. All connections read ciphertext into one shared buffer. It is decrypted into the buffer of the
protocol.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, cast

READ_BYTES: Final = 128 * 1024
"""Bytes of one read. OpenSSL keeps as much for a busy connection."""

_WRITE_BYTES: Final = 128 * 1024  # encrypted at once. It bounds OpenSSL's buffer.
_HANDSHAKE: Final = 0x16  # the first byte of a record with a ClientHello.
_MAX_HELLO: Final = 4096  # most bytes of a ClientHello that are kept; with a post-quantum key share it has 1.8 KiB.
_RECORD_HEAD: Final = 5  # its last two bytes are the length of the record (RFC 8446, section 5.1)


class HandshakeWatch(Protocol):
    """Limits the number of TLS handshakes, and their time.

    Attributes:
        loop: the event loop.
        read_buffer: the read buffer of all connections. Each read is processed before the next one.
    """

    loop: asyncio.AbstractEventLoop
    read_buffer: memoryview

    def add_connection(self, connection: TlsConnection) -> None:
        """Register a connection that has sent nothing yet."""

    def start_handshake(self, connection: TlsConnection) -> None:
        """Note that a connection has sent its ClientHello."""

    def finish_handshake(self, connection: TlsConnection, *, certified: bool) -> None:
        """Note that a handshake is finished."""

    def remove_connection(self, connection: TlsConnection) -> None:
        """Forget a connection that was lost."""


class TlsConnection(asyncio.BufferedProtocol):
    """One connection with TLS. Its inner protocol is made after the handshake.

    Args:
        handshakes: limits the number of handshakes, and their time.
        make_protocol: makes the inner protocol, which gets the decrypted bytes.
        new_context: returns the context of the handshake.
    """

    def __init__(
        self,
        handshakes: HandshakeWatch,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        new_context: Callable[[], ssl.SSLContext],
    ) -> None:
        self.host = ""
        self._handshakes = handshakes
        self._make_protocol = make_protocol
        self._new_context = new_context
        self._transport: asyncio.Transport
        self._hello = b""  # received bytes, until the SSL object is made
        self._incoming = self._outgoing = cast(ssl.MemoryBIO, None)
        self._ssl: ssl.SSLObject | None = None
        self._inner: asyncio.BufferedProtocol | None = None
        self._paused = False
        self._eof = False
        self._ended = False

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection. The handshake starts with the client's first bytes."""
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        self.host = "" if peername is None else peername[0]
        self._handshakes.add_connection(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the shared read buffer."""
        return self._handshakes.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt the received bytes, or continue the handshake with them."""
        received = self._handshakes.read_buffer[:nbytes]
        if self._inner is not None:
            self._incoming.write(received)
            self._read_plaintext()
        elif self._ssl is not None:
            self._incoming.write(received)
            self._continue_handshake()
        else:
            self._hello += received
            if _is_hello_complete(self._hello):
                self._start_handshake()

    def eof_received(self) -> bool:
        """End the connection, unless the inner protocol still has something to send.

        Returns:
            Whether the transport stays open.
        """
        self._handle_eof()
        return self._inner is not None and not self._ended

    def pause_writing(self) -> None:
        """Pause the output of the inner protocol."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Resume the output of the inner protocol."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end of the connection to the inner protocol."""
        self._ended = True
        self._handshakes.remove_connection(self)
        inner, self._inner, self._ssl = (
            self._inner,
            None,
            None,
        )  # breaks a reference circle, which the garbage collector would find late
        if inner is not None:
            inner.connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once, without a TLS closing alert."""
        self._ended = True
        self._transport.abort()

    # The handshake

    def _start_handshake(self) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = self._new_context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(self._hello)
        self._hello = b""
        self._handshakes.start_handshake(self)
        if not self._ended:
            self._continue_handshake()

    def _continue_handshake(self) -> None:
        assert self._ssl is not None
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, OSError):  # not logged: OpenSSL has an alert that informs the peer
            self._flush()
            self._ended = True
            self._transport.close()
            return
        self._flush()
        self._inner = cast(asyncio.BufferedProtocol, self._make_protocol())
        self._handshakes.finish_handshake(self, certified=bool(self._ssl.getpeercert()))
        self._inner.connection_made(_PlaintextTransport(self, self._transport, self._ssl))
        self._read_plaintext()

    # After the handshake

    def _read_plaintext(self) -> None:
        """Decrypt the received bytes until the inner protocol pauses."""
        while self._ssl is not None and self._inner is not None and not self._paused and not self._ended:
            buffer = memoryview(self._inner.get_buffer(-1))
            filled, finished = self._decrypt(self._ssl, buffer)
            if filled:
                self._inner.buffer_updated(filled)
            if finished:
                self._handle_eof()
            if filled < len(buffer):
                return

    def _decrypt(self, tls: ssl.SSLObject, buffer: memoryview) -> tuple[int, bool]:
        """Fill a buffer with decrypted bytes as far as possible.

        Returns:
            The number of bytes, and whether no more can follow.
        """
        filled = 0
        try:
            while filled < len(buffer):
                count = tls.read(len(buffer) - filled, buffer[filled:])  # returns at most one record
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

    def _handle_eof(self) -> None:
        """Pass the end of the input to the inner protocol. TLS cannot be closed in one direction only."""
        if self._inner is not None and not self._ended and not self._eof:
            self._eof = True
            if not self._inner.eof_received():
                self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt bytes and send them."""
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
        """Send the closing alert, and close the connection once all bytes are sent."""
        if self._ended or self._ssl is None:
            return
        self._ended = True
        with suppress(ssl.SSLError):  # the peer's closing alert is not awaited
            self._ssl.unwrap()
        self._flush()
        self._transport.close()

    def pause_reading(self) -> None:
        """Stop reading."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
            self._handshakes.loop.call_soon(self._read_plaintext)  # bytes that were received before the pause


class _PlaintextTransport(asyncio.Transport):
    """The transport of the inner protocol."""

    def __init__(self, connection: TlsConnection, transport: asyncio.Transport, tls: ssl.SSLObject) -> None:
        super().__init__()
        self._connection = connection
        self._transport = transport
        self._tls = tls
        self.write = connection.write  # type: ignore[method-assign]  # saves a call
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


def _is_hello_complete(hello: bytes) -> bool:
    """Return whether the first record of a client is complete. OpenSSL judges long records and other bytes."""
    size = _RECORD_HEAD + int.from_bytes(hello[3:5], "big")
    return len(hello) >= _RECORD_HEAD and (hello[0] != _HANDSHAKE or len(hello) >= size or size > _MAX_HELLO)
