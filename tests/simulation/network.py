"""Simulated network: connections with delays, torn segments, partitions and resets, as asyncio's transports."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any
from zlib import crc32

from tests.simulation.virtual_loop import PROCESS, Process, VirtualLoop

_END, _RESET = object(), object()
_FIRST_PORT = 40_000


class Link:
    """The path between two hosts.

    Attributes:
        random: random numbers of the delays and of the sizes of segments.
        delay: shortest delay of a segment, in seconds.
        window: bytes that a connection holds between the two hosts.
        is_cut: whether segments wait until the link is healed.
        transports: the open connections.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.delay = random.choice((0.0001, 0.001, 0.02))
        self.window = random.choice((200, 4_000, 64_000))
        self.tears = random.random() < 0.5
        self.is_cut = False
        self.transports: dict[SimulatedTransport, None] = {}
        self._healed = asyncio.Event()

    def choose_delay(self) -> float:
        """Return the delay of a segment."""
        return self.delay * (1 + self.random.random())

    def choose_size(self, nbytes: int) -> int:
        """Return the number of bytes of the next segment, of those that wait."""
        return self.random.randint(1, nbytes) if self.tears and self.random.random() < 0.3 else nbytes

    def cut(self) -> None:
        """Hold all segments from now on."""
        self.is_cut = True
        self._healed.clear()

    def heal(self) -> None:
        """Deliver the held segments."""
        self.is_cut = False
        self._healed.set()
        for transport in tuple(self.transports):
            transport.schedule_arrival()

    async def pass_over(self) -> None:
        """Wait as long as a segment takes."""
        await asyncio.sleep(self.choose_delay())
        while self.is_cut:
            await self._healed.wait()


class _Socket:
    """Takes the options that the product sets on sockets."""

    def setsockopt(self, *_: object) -> None:
        pass


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. It keeps the contract of asyncio's transports of sockets.

    Attributes:
        process: the process of this end.
        peer: the other end.
    """

    peer: SimulatedTransport

    def __init__(self, network: Network, process: Process, link: Link, name: str, peername: tuple[str, int]) -> None:
        super().__init__({"socket": _Socket(), "peername": peername})
        self.process = process
        self.name = name
        self._network = network
        self._loop = network.loop
        self._link = link
        self._protocol: Any = None
        self._unsent = bytearray()
        self._limits = 16_384, 65_536
        self._in_flight = 0
        self._segments: deque[tuple[float, object]] = deque()
        """Sent to the peer, with times of arrival."""
        self._arrival: asyncio.TimerHandle | None = None
        self._arrived: deque[object] = deque()
        self._reads = True
        self._has_paused_writing = self._closing = self._ended = False
        link.transports[self] = None

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Connect the transport with its protocol."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._schedule_read()

    # asyncio.Transport

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        found: asyncio.BaseProtocol = self._protocol
        return found

    def is_reading(self) -> bool:
        return self._reads and not self._closing

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._reads and not self._closing:
            self._reads = True
            self._schedule_read()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._limits

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = high if high is not None else 65_536 if low is None else 4 * low
        self._limits = high // 4 if low is None else low, high
        self._update_writing()

    def write(self, data: Any) -> None:
        if self._closing or not self.process.is_alive:
            return
        self._unsent += data
        self._send()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._end(None, _END)

    def abort(self) -> None:
        self.reset(None)

    # Sending

    def reset(self, error: Exception | None, *, silent: bool = False) -> None:
        """End the connection at once. The peer gets a reset, unless `silent` is set."""
        self._closing = True
        self._unsent.clear()
        self._end(error, None if silent else _RESET)

    def _end(self, error: Exception | None, last: object) -> None:
        if self._ended:
            return
        self._ended = True
        self._arrived.clear()
        if last is not None:
            if last is _RESET and self._link.random.random() < 0.5:
                self._segments.clear()  # a reset overtakes data
            self._enqueue(last)
        self._loop.call_soon(self._lose, error, context=self.process.context)

    def _lose(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)
        if not self._segments:
            self._link.transports.pop(self, None)

    def _send(self) -> None:
        room = self._link.window - self._in_flight
        while self._unsent and room > 0:
            data = bytes(self._unsent[: self._link.choose_size(min(room, len(self._unsent)))])
            del self._unsent[: len(data)]
            self._in_flight += len(data)
            room -= len(data)
            self._network.record(self.name, len(data), crc32(data))
            self._enqueue(data)
        self._update_writing()
        if self._closing and not self._unsent:
            self._end(None, _END)

    def _update_writing(self) -> None:
        low, high = self._limits
        if not self._has_paused_writing and len(self._unsent) > high:
            self._has_paused_writing = True
            self._protocol.pause_writing()
        elif self._has_paused_writing and len(self._unsent) <= low:
            self._has_paused_writing = False
            self._protocol.resume_writing()

    def _enqueue(self, segment: object) -> None:
        due = self._loop.time() + self._link.choose_delay()
        self._segments.append((max(due, self._segments[-1][0] if self._segments else 0.0), segment))
        self.schedule_arrival()

    def schedule_arrival(self) -> None:
        """Let the oldest segment arrive at its time, unless the link is cut."""
        if self._arrival is None and self._segments and not self._link.is_cut:
            when = max(self._segments[0][0], self._loop.time())
            self._arrival = self._loop.call_at(when, self._arrive, context=self.peer.process.context)

    def _arrive(self) -> None:
        self._arrival = None
        if self._link.is_cut or not self._segments:
            return
        _, segment = self._segments.popleft()
        self.peer._receive(segment)
        if self._ended and not self._segments:
            self._link.transports.pop(self, None)
        self.schedule_arrival()

    def _send_rest(self) -> None:
        if not self._ended:
            self._send()

    # Receiving

    def _receive(self, segment: object) -> None:
        if self._ended:
            if isinstance(segment, bytes):
                self._enqueue(_RESET)
            return
        self._arrived.append(segment)
        if len(self._arrived) == 1:
            self._read()

    def _schedule_read(self) -> None:
        if self._arrived:
            self._loop.call_soon(self._read, context=self.process.context)

    def _read(self) -> None:
        if not self._arrived or self._ended or self._protocol is None:
            return
        segment = self._arrived[0]
        if segment is _RESET:
            self.reset(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), silent=True)
        elif self._reads and not self._closing:
            self._arrived.popleft()
            if isinstance(segment, bytes):
                self._deliver(segment)
            elif not self._protocol.eof_received():
                self.close()
            self._schedule_read()

    def _deliver(self, data: bytes) -> None:
        """Give the protocol as much as it takes at once, and keep the rest."""
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            buffer = memoryview(self._protocol.get_buffer(-1))
            nbytes = min(len(buffer), len(data))
            assert nbytes, "get_buffer returned an empty buffer"
            buffer[:nbytes] = data[:nbytes]
            if nbytes < len(data):
                self._arrived.appendleft(data[nbytes:])
            self._protocol.buffer_updated(nbytes)
        else:
            nbytes = len(data)
            self._protocol.data_received(data)
        sender = self.peer
        sender._in_flight -= nbytes
        if sender._unsent:
            self._loop.call_soon(sender._send_rest, context=sender.process.context)


class _Acceptor:
    """Accepts the connections of one port of a simulated machine."""

    def __init__(self, network: Network, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.process = PROCESS.get()
        self.port = port or next(number for number in range(_FIRST_PORT, 65536) if (host, number) not in network.bound)
        if (host, self.port) in network.bound:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self.is_listening = False
        self.factory = factory
        self._network = network
        self._place = host, self.port
        network.bound[self._place] = self

    def start(self) -> None:
        self.is_listening = True

    async def close(self) -> None:
        self.is_listening = False
        self._network.bound.pop(self._place, None)

    def accept(self, transport: SimulatedTransport) -> None:
        transport.begin(self.factory())


class Network:
    """All hosts and links.

    Attributes:
        loop: the event loop.
        bound: the ports that are taken.
        silent_hosts: machines without power, and events of its return; their connections end only then.
    """

    def __init__(self, loop: VirtualLoop, seed: object, record: Callable[[str, int, int], None]) -> None:
        self.loop = loop
        self.bound: dict[tuple[str, int], _Acceptor] = {}
        self.silent_hosts: dict[str, asyncio.Event] = {}
        self.record = record
        self._seed = seed
        self._links: dict[tuple[str, str], Link] = {}
        self._connections = 0
        loop.connect = self.connect

    def find_link(self, one: str, other: str) -> Link:
        """Return the link between two hosts."""
        low, high = sorted((one, other))
        if (low, high) not in self._links:
            self._links[low, high] = Link(Random(f"{self._seed} {low} {high}"))
        return self._links[low, high]

    def list_links(self) -> list[tuple[tuple[str, str], Link]]:
        """Return all links between hosts that have been used, by their hosts."""
        return sorted(self._links.items())

    def bind(self, _: object, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]) -> _Acceptor:
        """Bind a port, for the machine of a node."""
        return _Acceptor(self, host, port, factory)

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        """Open a connection."""
        process = PROCESS.get()
        link = self.find_link(process.host, host)
        await link.pass_over()
        if host in self.silent_hosts:
            await self.silent_hosts[host].wait()
        acceptor = self.bound.get((host, port))
        if acceptor is None or not acceptor.is_listening or not acceptor.process.is_alive:
            await link.pass_over()
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port}: connection refused")
        self._connections += 1
        number = self._connections
        near = SimulatedTransport(self, process, link, f"{number}>{host}", (host, port))
        far = SimulatedTransport(self, acceptor.process, link, f"{number}<{host}", (process.host, 50_000 + number))
        near.peer, far.peer = far, near
        self.loop.call_soon(acceptor.accept, far, context=acceptor.process.context)
        protocol = factory()
        near.begin(protocol)
        return near, protocol

    def end_process(self, process: Process, *, silent: bool) -> None:
        """End the connections and ports of a process that has died.

        Args:
            process: the process.
            silent: peers notice nothing until the host is back.
        """
        if silent:
            self.silent_hosts[process.host] = asyncio.Event()
        for place in [place for place, acceptor in self.bound.items() if acceptor.process is process]:
            del self.bound[place]
        if not silent:
            self._reset_connections(process)

    def restore_host(self, process: Process) -> None:
        """Let the peers of a dead process notice its end, since its machine is back."""
        if process.host in self.silent_hosts:
            self.silent_hosts.pop(process.host).set()
        self._reset_connections(process)

    def _reset_connections(self, process: Process) -> None:
        for _, link in self.list_links():
            for transport in tuple(link.transports):
                if transport.process is process:
                    transport.reset(None)

    def reset_link(self, link: Link) -> None:
        """Reset all connections of a link, at both ends."""
        for transport in tuple(link.transports):
            transport.reset(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), silent=True)
