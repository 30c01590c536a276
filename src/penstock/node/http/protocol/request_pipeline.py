"""The requests of one HTTP connection: read in order, also if they are pipelined, and served one at a time."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import h11

from penstock.node.http.protocol.exchange import Exchange, get_reason_phrase, make_scope
from penstock.node.http.protocol.request_reader import MAX_HEAD_BYTES, RequestEvent, RequestReader, RequestRefused
from penstock.node.http.protocol.response_output import ResponseOutput
from penstock.node.transport.deadline_timer import DeadlineTimer

_KEEP_ALIVE_SECONDS = 60.0
_MAX_UNREAD_BODY: Final = 64 * 1024


class PipelineServer(Protocol):
    """The server of a pipeline.

    Attributes:
        seconds: within which a request must be complete.
    """

    seconds: float

    @property
    def stopping(self) -> bool:
        """Whether the server stops."""

    def run(self, exchange: Exchange) -> None:
        """Let the application serve a request."""

    def report_refused(self, address: str, reason: str) -> None:
        """Log a refused request."""


class PipelineConnection(Protocol):
    """The connection of a pipeline.

    Attributes:
        address: the client's IP address; empty if unknown.
        scheme: `http` or `https`.
        eof: the client sends nothing more.
    """

    address: str
    scheme: str
    eof: bool

    @property
    def transport(self) -> asyncio.Transport:
        """The event loop's transport."""

    @property
    def output(self) -> ResponseOutput:
        """Writes responses."""

    @property
    def deadline(self) -> DeadlineTimer:
        """Aborts the connection."""

    def end(self) -> None:
        """Close the connection once all output was written."""


class RequestPipeline:
    """Reads requests and lets the application serve them. One is served at a time; the others wait as bytes.

    Attributes:
        exchange: the current request with its response; None before the first one.
        ended: nothing more is read or served.
    """

    def __init__(self, connection: PipelineConnection, server: PipelineServer) -> None:
        self.exchange: Exchange | None = None
        self.ended = False
        self._connection = connection
        self._server = server
        self._reader = RequestReader()
        self._request_began = True

    @property
    def buffered_bytes(self) -> int:
        """Bytes of later requests that wait for the end of the current one."""
        return self._reader.buffered_bytes

    @property
    def is_discarding(self) -> bool:
        """Whether bytes of the client are discarded: no further request is served."""
        exchange = self.exchange
        return self.ended or (exchange is not None and exchange.request_complete and not exchange.keep_alive)

    def receive(self, data: memoryview) -> None:
        """Read requests from received bytes."""
        if self.is_discarding:
            return
        if not self._request_began:
            self._request_began = True
            self._connection.deadline.set(self._server.seconds)
        self._reader.feed(data)
        self._advance()

    def update_reading(self) -> None:
        """Pause or resume reading: there must be room for more bytes."""
        transport = self._connection.transport
        if self._connection.eof or transport.is_closing():
            return
        unread = 0 if self.exchange is None else len(self.exchange.unread)
        if not self.is_discarding and (self._reader.buffered_bytes >= MAX_HEAD_BYTES or unread >= _MAX_UNREAD_BODY):
            transport.pause_reading()
        else:
            transport.resume_reading()

    def exchange_finished(self) -> None:
        """Continue after a complete response."""
        assert self.exchange is not None
        self.exchange.unread.clear()
        if not self.exchange.keep_alive or self.exchange.protocol.our_state is not h11.DONE:
            self._connection.end()
        else:
            self._advance()

    def _advance(self) -> None:
        try:
            while not self.ended and (event := self._next_event()) is not None:
                self._handle_event(event)
        except RequestRefused as refused:
            self._refuse(refused)
        self.update_reading()

    def _next_event(self) -> RequestEvent | None:
        exchange = self.exchange
        if exchange is None or not exchange.request_complete:
            return self._reader.next_event()
        if not exchange.response_complete:
            return None
        self.exchange = None
        self._reader.finish()
        self._request_began = self._reader.buffered_bytes > 0
        self._connection.deadline.set(self._server.seconds if self._request_began else _KEEP_ALIVE_SECONDS)
        return self._reader.next_event()

    def _handle_event(self, event: RequestEvent) -> None:
        if isinstance(event, h11.Request):
            self._serve(event)
            return
        assert self.exchange is not None
        if isinstance(event, h11.Data):
            self.exchange.receive_body(event.data)
            return
        self._connection.deadline.cancel()
        self.exchange.receive_end()

    def _serve(self, request: h11.Request) -> None:
        assert self._reader.exchange is not None
        connection = self._connection
        scope = make_scope(request, connection.transport, connection.scheme)
        # Programs disagree most about the end of a chunked body, so no bytes behind it are read as a request.
        is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
        keep_alive = not (is_chunked or self._server.stopping)
        self.exchange = Exchange(connection.output, self, self._reader.exchange, scope, keep_alive=keep_alive)
        self._server.run(self.exchange)

    def _refuse(self, refused: RequestRefused) -> None:
        self._server.report_refused(self._connection.address, str(refused))
        if self.exchange is not None and not self.exchange.response_complete:  # its body is invalid
            self.exchange.disconnect()
            return
        if self.exchange is None:
            self._connection.output.write(_make_refusal(refused))
        self._connection.end()


def _make_refusal(refused: RequestRefused) -> bytes:
    """Return the response to a refused request."""
    response = h11.Connection(h11.SERVER)
    body = f"{refused}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    status, reason = refused.status, get_reason_phrase(refused.status)
    head = response.send(h11.Response(status_code=status, headers=headers, reason=reason)) or b""
    return head + (response.send(h11.Data(data=body)) or b"")
