"""The listener for HTTP: uvicorn's protocol on the node's own event loop, with a bound to all that a peer can hold.

A request has to be whole some seconds after its first byte, head and body; what is sent has to be taken; there are so
many connections at most. uvicorn itself bounds the size of a head and how long an idle connection is kept.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.errors import Error
from penstock.node.http.app import make_app
from penstock.node.login.access import Access

if TYPE_CHECKING:
    from penstock.node.server import Listener, Node

__all__ = ["MAX_CONNECTIONS", "MAX_HEAD_BYTES", "REQUEST_SECONDS", "HttpServer"]

MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 16 * 1024
REQUEST_SECONDS = 20.0
_KEEP_ALIVE_SECONDS = 60
_UNREAD_SECONDS = 30.0  # for the peer to take something of what is sent to it
_GOODBYE_SECONDS = 1.0  # for requests that are being served when the node stops

# uvicorn warns of every request that is none; whoever sends such a thing must not fill the log.
_logger = logging.getLogger("penstock.node.http.uvicorn")
_logger.setLevel(logging.ERROR)


class HttpServer:
    """One for all ports that a node has for HTTP. To be made, and used, on the event loop's thread.

    servers: of asyncio. accesses: who may come in, by scheme. stopping: no stream goes on. streams: what wakes each of
    them. seconds: that a request may take. most: connections that there may be at once.
    """

    def __init__(self, node: Node, *, seconds: float = REQUEST_SECONDS, most: int = MAX_CONNECTIONS) -> None:
        self.node = node
        self.stopping = False
        self.seconds = seconds
        self.most = most
        self.accesses: dict[str, Access] = {}
        self.streams: set[asyncio.Event] = set()
        self.state = ServerState()
        self.config = Config(
            make_app(self),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self.config.load()
        self.servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int, listener: Listener) -> int:
        """Take a port, 0 for any, to serve it once the server is started, and return its number. Raises Error."""

        def make() -> _Protocol:
            return _Protocol(self)

        factory = make if listener.tls is None else self.node.handshakes.encrypted(make, listener.tls)
        try:
            server = await self.node.loop.create_server(factory, host, port, start_serving=False)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            option = "http_port" if listener.tls is None else "https_port"
            raise Error(
                f"cannot listen on {host} port {port} for management: {why}; another {option} can be chosen, 0 for any"
            ) from error
        self.servers.append(server)
        self.accesses["http" if listener.tls is None else "https"] = listener.access
        number: int = server.sockets[0].getsockname()[1]
        return number

    async def close(self) -> None:
        """Stop listening, end streams, and give other requests that are being served a second."""
        self.stopping = True
        for server in self.servers:
            server.close()
        for protocol in self._protocols():
            protocol.finish()
        self.wake()
        if self.state.tasks:
            await asyncio.wait(set(self.state.tasks), timeout=_GOODBYE_SECONDS)
        for protocol in self._protocols():
            protocol.transport.abort()
        if self.state.tasks:
            await asyncio.wait(set(self.state.tasks), timeout=_GOODBYE_SECONDS)
        for server in self.servers:
            await server.wait_closed()

    def wake(self) -> None:
        """Let all streams look whether they have come to their end: the node stops, or a bucket is deleted."""
        for stream in tuple(self.streams):
            stream.set()

    def _protocols(self) -> list[_Protocol]:
        return [protocol for protocol in self.state.connections if isinstance(protocol, _Protocol)]


class _Protocol(H11Protocol):
    def __init__(self, http: HttpServer) -> None:
        super().__init__(http.config, http.state, {}, http.node.loop)
        self.logger = _logger
        self._http = http
        self._late: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state["certificate"] = transport.get_extra_info("peercert")
        cast(socket.socket, transport.get_extra_info("socket")).setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._http.stopping or len(self.connections) > self._http.most:
            transport.abort()
            return
        self._watch_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def _watch_request(self) -> None:
        """See to it that a request that has begun is whole in time; one that is costs its sender nothing more."""
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            if self._late is None:
                self._late = self.loop.call_later(self._http.seconds, self.transport.abort)
        else:
            self._forget_request()

    def _forget_request(self) -> None:
        _cancel(self._late)
        self._late = None

    def on_response_complete(self) -> None:
        # What follows on this connection has not begun yet; until it does, uvicorn's own time is counted.
        self._forget_request()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._watch_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stuck)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._late, self._stuck)
        self._unset_keepalive_if_required()

    def finish(self) -> None:
        """End the connection once it is answered."""
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.close()
        else:
            cycle.keep_alive = False


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
