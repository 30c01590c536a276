"""A connection for HTTP: it reads a socket, pauses reading, and ends.

Each wait has a limit. A request must be complete some seconds after its first byte. An idle connection ends. A client
must keep reading its responses. One request is served at a time. Behind it, at most the bytes of one head are read, so
the number of waiting pipelined requests is limited too. After the last request of a connection, all further bytes are
read and discarded, so that the end of the client is noticed.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, Protocol, cast

from penstock.node.http.protocol.request_pipeline import PipelineServer, RequestPipeline
from penstock.node.http.protocol.response_output import ResponseOutput
from penstock.node.transport.deadline_timer import DeadlineTimer

_LINGER_SECONDS = 1.0  # for the client to close first
_SYSTEM_BYTES: Final = 64 * 1024  # send buffer; with the usual megabytes, a slow client seems to read nothing


class ConnectionHost(PipelineServer, Protocol):
    """The server of a connection.

    Attributes:
        read_buffer: shared by all connections: each read is used up before the next.
    """

    read_buffer: memoryview

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the server."""

    def add_connection(self, connection: HttpConnection) -> bool:
        """Add a connection; False if there is no room for it."""

    def remove_connection(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""


class HttpConnection(asyncio.BufferedProtocol):
    """One connection of an HTTP client.

    Attributes:
        transport: the event loop's transport.
        address: the client's IP address; empty if unknown.
        scheme: `http` or `https`.
        eof: the client sends nothing more.
        pipeline: its requests.
        output: writes its responses.
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

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the first request; abort if the server has no room."""
        server = self._server
        self.transport = cast(asyncio.Transport, transport)
        self.output = ResponseOutput(server.loop, self.transport)
        self.deadline = DeadlineTimer(server.loop, self.transport.abort)
        peername = transport.get_extra_info("peername")
        self.address = "" if peername is None else peername[0]
        connected = cast(socket.socket, transport.get_extra_info("socket"))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SYSTEM_BYTES)
        if server.add_connection(self):
            self.deadline.set(server.seconds)
        else:
            self.transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the shared read buffer."""
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read requests from the buffer."""
        self.pipeline.receive(self._server.read_buffer[:nbytes])

    def eof_received(self) -> bool:
        """Keep the connection open for the response to a complete request. TLS has no half-close.

        Returns:
            True: the transport stays open for writing.
        """
        self.eof = True
        exchange = self.pipeline.exchange
        if exchange is None or exchange.response_complete or self.pipeline.ended or self.scheme == "https":
            return False
        exchange.disconnect()
        return True

    def pause_writing(self) -> None:
        """Let responses wait until the client reads."""
        self.output.pause()

    def resume_writing(self) -> None:
        """Let responses continue."""
        self.output.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers and report the end to the application."""
        self.pipeline.ended = True
        self.deadline.cancel()
        self._closer.cancel()
        self.output.stop()
        if self.pipeline.exchange is not None:
            self.pipeline.exchange.disconnect()
        self._server.remove_connection(self)

    # The end

    def finish(self) -> None:
        """End the connection once its request was answered."""
        exchange = self.pipeline.exchange
        if exchange is None or exchange.response_complete:
            self.transport.close()
        else:
            exchange.keep_alive = False

    def end(self) -> None:
        """Close the connection once all output was written. Bytes that the client still sends are discarded.

        The client should close first: otherwise the system answers its bytes with a reset, which may overtake the
        response.
        TLS has no half-close, so there only a client in the middle of a request is waited for.
        """
        self.pipeline.ended = True
        if self.transport.is_closing():
            return
        exchange = self.pipeline.exchange
        is_complete = exchange is not None and exchange.request_complete
        if self.eof or (is_complete and not self.transport.can_write_eof()):
            self._close()
            return
        try:
            if self.transport.can_write_eof():
                self.transport.write_eof()
        except OSError:  # the client has reset the connection, and the transport has not noticed that yet
            self._close()
            return
        self.deadline.cancel()
        self._closer.set(_LINGER_SECONDS)
        self.pipeline.update_reading()

    def _close(self) -> None:
        self.deadline.cancel()
        self._closer.cancel()
        self.output.close()
