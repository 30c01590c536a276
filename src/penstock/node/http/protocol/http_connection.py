"""A connection for HTTP: what is read from its socket, when no more is read, and how it ends.

Each wait has a limit. A request has to be whole some seconds after its first byte, head and body. An idle connection
ends. A client has to go on reading what is sent to it. One request is served at a time; behind it only as much is read
as one head may have, so the number of pipelined requests that wait is bounded too. Behind the last request of a
connection everything is read and thrown away, so that its client is seen to leave.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, Protocol, cast

from penstock.node.http.protocol.request_pipeline import PipelineServer, RequestPipeline
from penstock.node.http.protocol.response_output import ResponseOutput
from penstock.node.transport.deadline_timer import DeadlineTimer

__all__ = ["ConnectionHost", "HttpConnection"]

_LINGER_SECONDS = 1.0  # for the client to close first
_SYSTEM_BYTES: Final = 64 * 1024  # sent by the system; with its usual megabytes, a slow client seems to read nothing


class ConnectionHost(PipelineServer, Protocol):
    """The server of a connection.

    Attributes:
        read_buffer: shared by all connections: each read is used up before the next.
    """

    read_buffer: memoryview

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def enter(self, connection: HttpConnection) -> bool:
        """Add a connection; False if there is no room for it."""

    def leave(self, connection: HttpConnection) -> None: ...


class HttpConnection(asyncio.BufferedProtocol):
    """One connection of an HTTP client.

    Attributes:
        transport: of the event loop.
        address: the client's IP address, empty if it is unknown.
        scheme: `http` or `https`.
        eof: the client sends nothing more.
        pipeline: its requests.
        output: takes its responses.
        deadline: aborts the connection.
    """

    transport: asyncio.Transport
    output: ResponseOutput
    deadline: DeadlineTimer

    def __init__(self, server: ConnectionHost, scheme: str) -> None:
        self.address = ""
        self.scheme = scheme
        self.pipeline = RequestPipeline(self, server)
        self._server = server
        self.eof = False
        self._closer = DeadlineTimer(server.loop, self._close)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self.transport = cast(asyncio.Transport, transport)
        self.output = ResponseOutput(server.loop, self.transport)
        self.deadline = DeadlineTimer(server.loop, self.transport.abort)
        peername = transport.get_extra_info("peername")
        self.address = "" if peername is None else peername[0]
        connected = cast(socket.socket, transport.get_extra_info("socket"))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SYSTEM_BYTES)
        if server.enter(self):
            self.deadline.set(server.seconds)
        else:
            self.transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.pipeline.receive(self._server.read_buffer[:nbytes])

    def eof_received(self) -> bool:
        """Let a request that was received whole be answered; TLS cannot be closed by halves."""
        self.eof = True
        exchange = self.pipeline.exchange
        if exchange is None or exchange.response_complete or self.pipeline.ended or self.scheme == "https":
            return False
        exchange.disconnect()
        return True

    def pause_writing(self) -> None:
        self.output.pause()

    def resume_writing(self) -> None:
        self.output.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pipeline.ended = True
        self.deadline.cancel()
        self._closer.cancel()
        self.output.stop()
        if self.pipeline.exchange is not None:
            self.pipeline.exchange.disconnect()
        self._server.leave(self)

    # The end

    def finish(self) -> None:
        """End the connection once its request was answered."""
        exchange = self.pipeline.exchange
        if exchange is None or exchange.response_complete:
            self.transport.close()
        else:
            exchange.keep_alive = False

    def end(self) -> None:
        """Close the connection once all was written. What the client still sends is thrown away.

        The client closes first, if it does so soon: else the system answers what it still sends with a reset, and that
        may overtake the response. TLS has no half-close, so there this is for clients in the middle of a request.
        """
        self.pipeline.ended = True
        if self.transport.is_closing():
            return
        exchange = self.pipeline.exchange
        is_complete = exchange is not None and exchange.request_complete
        if self.eof or (is_complete and not self.transport.can_write_eof()):
            self._close()
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.deadline.cancel()
        self._closer.set(_LINGER_SECONDS)
        self.pipeline.update_reading()

    def _close(self) -> None:
        self.deadline.cancel()
        self._closer.cancel()
        self.output.close()
