"""A TCP proxy between clients and a server, which injects faults into their connections."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Self, TypeVar

from penstock.client.blocking import LoopThread

T = TypeVar("T")

_CHUNK = 64 * 1024
_CONNECT_SECONDS = 10.0
_CALL_SECONDS = 30.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose close sends RST, as the end of a killed process on a lost machine does."""


class ProxySide(Enum):
    """A side of a proxied connection."""

    CLIENT = "client"
    SERVER = "server"


class FaultFlow:
    """The faults that hold for all bytes of a proxy. It belongs to the proxy's event loop.

    Attributes:
        delay: seconds that each read waits before it is passed on.
        single_bytes: number of bytes that are still passed on one by one, in both directions together.
        open: by the side that bytes go to: set unless the proxy is a black hole for them.
        refuses: whether new connections are reset at once.
    """

    def __init__(self) -> None:
        self.open = {side: asyncio.Event() for side in ProxySide}
        self.heal()

    def heal(self) -> None:
        """End all faults."""
        self.delay, self.single_bytes, self.refuses = 0.0, 0, False
        for each in self.open.values():
            each.set()

    def split(self, data: bytes) -> list[bytes]:
        """Return the pieces in which data is passed on."""
        alone = min(self.single_bytes, len(data))
        self.single_bytes -= alone
        pieces = [data[at : at + 1] for at in range(alone)]
        return [*pieces, data[alone:]] if alone < len(data) else pieces


class ProxiedConnection:
    """A client's connection and the connection to the server. It belongs to the proxy's event loop.

    Attributes:
        lag: seconds that each read of this connection waits.
        sockets: the sockets by side; the server's socket is missing until it is connected.
        pumps: by the side that bytes go to, the task that passes them on.
    """

    def __init__(self, client: socket.socket, flow: FaultFlow) -> None:
        self.lag = 0.0
        self.sockets = {ProxySide.CLIENT: client}
        self.pumps: dict[ProxySide, asyncio.Task[None]] = {}
        self._flow = flow

    async def run(self, target: tuple[str, int]) -> None:
        """Connect to the server, and pass bytes on until both directions have ended."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                server = self.sockets[ProxySide.SERVER] = _make_socket()
                await loop.sock_connect(server, target)
            for to, source in ((ProxySide.CLIENT, server), (ProxySide.SERVER, self.sockets[ProxySide.CLIENT])):
                self.pumps[to] = loop.create_task(self._pump(source, self.sockets[to], self._flow.open[to]))
            # A direction that `half_close` has ended is cancelled, which is no exception here.
            await asyncio.wait(self.pumps.values(), return_when=asyncio.FIRST_EXCEPTION)
            if any(pump.done() and not pump.cancelled() and pump.exception() for pump in self.pumps.values()):
                self.reset()
        except (OSError, TimeoutError):
            self.reset()
        finally:
            await self._end_pumps()

    async def _end_pumps(self) -> None:
        for pump in self.pumps.values():
            pump.cancel()
        if self.pumps:
            await asyncio.wait(self.pumps.values())

    async def _pump(self, source: socket.socket, sink: socket.socket, is_open: asyncio.Event) -> None:
        loop, flow = asyncio.get_running_loop(), self._flow
        while data := await loop.sock_recv(source, _CHUNK):
            if seconds := max(flow.delay, self.lag):
                await asyncio.sleep(seconds)
            for piece in flow.split(data):
                await is_open.wait()
                await loop.sock_sendall(sink, piece)
                await asyncio.sleep(0)  # so that the other side may read a single byte
        with suppress(OSError):  # the other side may have ended the connection
            sink.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Let the sockets send RST when they are closed."""
        for each in self.sockets.values():
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    def close(self) -> None:
        """Close the sockets, after the end of `run`."""
        for each in self.sockets.values():
            each.close()

    def half_close(self, side: ProxySide) -> None:
        """End the direction to a side, which reads the end of the stream. The other direction stays open."""
        pump = self.pumps.get(side)
        if pump is not None and not pump.done():
            pump.cancel()
            with suppress(OSError):  # the side may have ended the connection
                self.sockets[side].shutdown(socket.SHUT_WR)


def _make_socket() -> socket.socket:
    made = socket.socket()
    _prepare(made)
    return made


def _prepare(made: socket.socket) -> None:
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a single byte leaves at once


class FaultProxy:
    """A TCP proxy on a port of 127.0.0.1, with faults on demand. A context manager.

    Every method may be called from any thread. Faults that last end with `heal`.

    Attributes:
        target: host and port of the server. Connections that are made later go there.
        port: the proxy's port, which stays the same for its whole life.
        accepted: the number of connections that clients have made.
    """

    def __init__(self, target: tuple[str, int], loop: LoopThread, port: int = 0) -> None:
        """Create a proxy whose port is bound. It listens once it is entered.

        Args:
            target: host and port of the server.
            loop: the thread that passes the bytes on. Several proxies may share it.
            port: the port to bind; 0: a free one.
        """
        self.target = target
        self.accepted = 0
        self._loop = loop
        self._listener = _make_socket()
        self._listener.bind(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._flow = self._call(FaultFlow)
        self._connections: dict[asyncio.Task[None], ProxiedConnection] = {}

    def __enter__(self) -> Self:
        self._call(self._start)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.start(self._stop()).result(_CALL_SECONDS)
        self._listener.close()

    @property
    def open_connections(self) -> int:
        """The number of connections that are open now."""
        return self._call(lambda: len(self._connections))

    def cut(self) -> None:
        """Reset all connections. New connections work."""
        self._call(self._cut)

    def half_close(self, side: ProxySide = ProxySide.CLIENT) -> None:
        """End one direction of all connections.

        Args:
            side: the side that reads the end of the stream. It can still send.
        """
        self._call(lambda: self._half_close(side))

    def delay(self, seconds: float) -> None:
        """Delay all bytes, of present and later connections, until `heal`."""
        self._call(lambda: setattr(self._flow, "delay", seconds))

    def reorder(self, seconds: float) -> None:
        """Delay the bytes of present connections, so that later connections overtake them. `heal` ends it."""
        self._call(lambda: self._set_lag(seconds))

    def single_bytes(self, count: int = 4096) -> None:
        """Pass the next bytes on one by one.

        Args:
            count: the number of bytes, of all connections and both directions together.
        """
        self._call(lambda: setattr(self._flow, "single_bytes", count))

    def black_hole(self, to: ProxySide | None = None) -> None:
        """Pass nothing on until `heal`. Connections stay open, and new ones are accepted. No byte is lost.

        Args:
            to: the side that gets nothing; None: both sides.
        """
        for side in ProxySide if to is None else (to,):
            self._call(self._flow.open[side].clear)

    def refuse(self) -> None:
        """Reset all connections, and each new connection until `heal`: the server seems to be down."""
        self._call(lambda: setattr(self._flow, "refuses", True))
        self.cut()

    def heal(self) -> None:
        """End all faults that last. Bytes that a black hole holds are passed on."""
        self._call(self._heal)

    # On the event loop

    def _call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return self._loop.start(run()).result(_CALL_SECONDS)

    def _start(self) -> None:
        self._listener.listen(128)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # the client has ended the connection already
        _prepare(client)
        self.accepted += 1
        connection = ProxiedConnection(client, self._flow)
        if self._flow.refuses:
            connection.reset()
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(connection.run(self.target))
        self._connections[task] = connection
        # The sockets are closed here, because a task may be cancelled before it begins.
        task.add_done_callback(lambda done: self._connections.pop(done).close())

    async def _stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        tasks = [*self._connections]
        self._cut()
        if tasks:
            await asyncio.wait(tasks)

    def _cut(self) -> None:
        for task, connection in self._connections.items():
            connection.reset()
            task.cancel()

    def _half_close(self, side: ProxySide) -> None:
        for connection in self._connections.values():
            connection.half_close(side)

    def _set_lag(self, seconds: float) -> None:
        for connection in self._connections.values():
            connection.lag = seconds

    def _heal(self) -> None:
        self._flow.heal()
        self._set_lag(0.0)
