"""A connection for HTTP: reads requests, has the application serve them in order, and writes the responses.

Each wait has a limit. A request has to be whole some seconds after its first byte, head and body. An idle connection
ends. A client has to go on reading what is sent to it. One request is served at a time; behind it only as much is read
as one head may have, so the number of pipelined requests that wait is bounded too. Behind the last request of a
connection everything is read and thrown away, so that its client is seen to leave.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

import h11

from penstock.node.http.exchange import Exchange, make_scope, reason_phrase
from penstock.node.http.request_reader import MAX_HEAD_BYTES, RequestEvent, RequestReader, RequestRefused

__all__ = ["HttpConnection"]

_KEEP_ALIVE_SECONDS = 60.0
_UNREAD_SECONDS = 30.0  # within which the client has to read some of what is sent to it
_LINGER_SECONDS = 1.0  # for the client to close first
_SYSTEM_BYTES = 64 * 1024  # sent by the system; with its usual megabytes, a slow client seems to read nothing
_MAX_UNREAD_BODY = 64 * 1024


class ConnectionHost(Protocol):
    """The server of a connection."""

    seconds: float
    read_buffer: memoryview

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def stopping(self) -> bool: ...

    def enter(self, connection: HttpConnection) -> bool:
        """Add a connection; False if there is no room for it."""

    def leave(self, connection: HttpConnection) -> None: ...
    def run(self, exchange: Exchange) -> None: ...
    def report_refused(self, connection: HttpConnection, reason: str) -> None: ...


class HttpConnection(asyncio.BufferedProtocol):
    """One connection of an HTTP client.

    Attributes:
        transport: of the event loop.
        address: the client's IP address, empty if it is unknown.
    """

    transport: asyncio.Transport

    def __init__(self, server: ConnectionHost, scheme: str) -> None:
        self.address = ""
        self._server = server
        self._scheme = scheme
        self._reader = RequestReader()
        self._exchange: Exchange | None = None
        self._request_began = True
        self._ended = False  # nothing more is read or served
        self._eof = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        self.address = "" if peername is None else peername[0]
        connected = cast(socket.socket, transport.get_extra_info("socket"))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SYSTEM_BYTES)
        if self._server.enter(self):
            self._abort_after(self._server.seconds)
        else:
            self.transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._reads_to_discard:
            return
        if not self._request_began:
            self._request_began = True
            self._abort_after(self._server.seconds)
        self._reader.feed(self._server.read_buffer[:nbytes])
        self._advance()

    def eof_received(self) -> bool:
        """Let a request that was received whole be answered; TLS cannot be closed by halves."""
        self._eof = True
        exchange = self._exchange
        if exchange is None or exchange.response_complete or self._ended or self._scheme == "https":
            return False
        exchange.disconnect()
        return True

    def pause_writing(self) -> None:
        self._writable.clear()
        self._watch_client()

    def resume_writing(self) -> None:
        self._writable.set()
        if not self.transport.is_closing():
            _cancel(self._stuck)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        _cancel(self._deadline, self._stuck)
        self._writable.set()
        if self._exchange is not None:
            self._exchange.disconnect()
        self._server.leave(self)

    @property
    def buffered(self) -> int:
        """Return how many bytes of later requests wait for the current one to be answered."""
        return self._reader.buffered

    @property
    def _reads_to_discard(self) -> bool:
        """Tell whether nothing that the client still sends is read as a request."""
        exchange = self._exchange
        return self._ended or (exchange is not None and exchange.request_complete and not exchange.keep_alive)

    # What exchanges call

    def write(self, data: bytes | None) -> None:
        if data and not self.transport.is_closing():
            self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read enough of what was written; if it does not, the connection ends."""
        await self._writable.wait()

    def update_reading(self) -> None:
        """Read more only while there is room for it, or none is needed."""
        if self._eof or self.transport.is_closing():
            return
        unread = 0 if self._exchange is None else len(self._exchange.unread)
        if not self._reads_to_discard and (self._reader.buffered >= MAX_HEAD_BYTES or unread >= _MAX_UNREAD_BODY):
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def exchange_finished(self) -> None:
        """Go on after a response that was written."""
        assert self._exchange is not None
        self._exchange.unread.clear()
        if not self._exchange.keep_alive or self._exchange.protocol.our_state is not h11.DONE:
            self._end()
        else:
            self._advance()

    # What the server calls

    def finish(self) -> None:
        """End the connection once its request was answered."""
        if self._exchange is None or self._exchange.response_complete:
            self.transport.close()
        else:
            self._exchange.keep_alive = False

    # Requests

    def _advance(self) -> None:
        try:
            while not self._ended and (event := self._next_event()) is not None:
                self._take(event)
        except RequestRefused as refused:
            self._refuse(refused)
        self.update_reading()

    def _next_event(self) -> RequestEvent | None:
        exchange = self._exchange
        if exchange is None or not exchange.request_complete:
            return self._reader.next_event()
        if not exchange.response_complete:
            return None
        self._exchange = None
        self._reader.finish()
        self._request_began = self._reader.buffered > 0
        self._abort_after(self._server.seconds if self._request_began else _KEEP_ALIVE_SECONDS)
        return self._reader.next_event()

    def _take(self, event: RequestEvent) -> None:
        if isinstance(event, h11.Request):
            self._serve(event)
            return
        assert self._exchange is not None
        if isinstance(event, h11.Data):
            self._exchange.receive_body(event.data)
            return
        _cancel(self._deadline)
        self._exchange.receive_end()

    def _serve(self, request: h11.Request) -> None:
        assert self._reader.exchange is not None
        scope = make_scope(request, self.transport, self._scheme)
        # Programs disagree most about the end of a chunked body: so nothing behind it is read as a request.
        is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
        keep_alive = not (is_chunked or self._server.stopping)
        self._exchange = Exchange(self, self._reader.exchange, scope, keep_alive=keep_alive)
        self._server.run(self._exchange)

    def _refuse(self, refused: RequestRefused) -> None:
        self._server.report_refused(self, str(refused))
        if self._exchange is not None:  # its body is invalid
            if self._exchange.response_complete:
                self._end()
            else:
                self._exchange.disconnect()
            return
        response = h11.Connection(h11.SERVER)
        body = f"{refused}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        status, reason = refused.status, reason_phrase(refused.status)
        self.write(response.send(h11.Response(status_code=status, headers=headers, reason=reason)))
        self.write(response.send(h11.Data(data=body)))
        self._end()

    # The end

    def _end(self) -> None:
        """Close the connection once all was written. What the client still sends is thrown away.

        The client closes first, if it does so soon: else the system answers what it still sends with a reset, and that
        may overtake the response. TLS has no half-close, so there this is for clients in the middle of a request.
        """
        self._ended = True
        if self.transport.is_closing():
            return
        is_complete = self._exchange is not None and self._exchange.request_complete
        if self._eof or (is_complete and not self.transport.can_write_eof()):
            self._close()
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        _cancel(self._deadline)
        self._deadline = self._server.loop.call_later(_LINGER_SECONDS, self._close)
        self.update_reading()

    def _close(self) -> None:
        self.transport.close()
        _cancel(self._deadline)
        self._watch_client()

    def _watch_client(self) -> None:
        """End the connection once the client has read nothing for some time of what is sent to it."""
        _cancel(self._stuck)
        unsent = self.transport.get_write_buffer_size()
        self._stuck = self._server.loop.call_later(_UNREAD_SECONDS, self._check_client, unsent)

    def _check_client(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() < unsent:
            self._watch_client()
        else:
            self.transport.abort()

    def _abort_after(self, seconds: float) -> None:
        _cancel(self._deadline)
        self._deadline = self._server.loop.call_later(seconds, self.transport.abort)


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
