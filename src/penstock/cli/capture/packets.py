"""Packet captures (pcap, pcapng): the bytes of their TCP connections, each direction in its order.

Files and packets are read by dpkt; putting the segments in order is done here.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli.capture.frame_text import CapturedBytes, looks_like_a_frame
from penstock.errors import UsageError

if TYPE_CHECKING:
    from dpkt.tcp import TCP

__all__ = ["Direction", "read_packets"]

USUAL_PORTS = (11210, 11209, 11211)
MAX_BLOCK = 16 * 1024 * 1024
"""Bytes of one packet or block of a capture file."""
MAX_HELD = 4 * 1024 * 1024
"""Bytes of a direction that are kept while an earlier segment is waited for."""
MAX_WAITING = 4096
"""And segments: each is looked at for each that comes."""
MAX_DIRECTIONS = 20_000
"""The oldest are forgotten beyond."""

_RAW = {12, 14, 101}

TH_SYN, TH_RST, TH_ACK = 0x02, 0x04, 0x10

Endpoint = tuple[bytes, int]
"""Address and port."""


class TcpSegment(NamedTuple):
    """A TCP segment as it was captured. time: epoch seconds."""

    time: float
    source: Endpoint
    target: Endpoint
    tcp: TCP


@dataclass(slots=True)
class Direction:
    """What one end of a connection sends: segments in, bytes in their order out.

    next: the sequence number that comes next, None before the first segment. held: segments that came too early.
    taken: whether this is the protocol, None while nothing says so.
    """

    sender: str
    connection: str
    next: int | None = None
    held: dict[int, tuple[bytes, float]] = field(default_factory=dict)
    taken: bool | None = None

    def begin(self, sequence: int) -> None:
        """Take the number of a SYN."""
        if self.next != sequence + 1 & 0xFFFFFFFF:
            self.next, self.taken = sequence + 1 & 0xFFFFFFFF, None
            self.held.clear()

    def segment(self, sequence: int, data: bytes, time: float) -> Iterator[CapturedBytes]:
        """Give what a segment completes; what came before is dropped, and what came too early waits."""
        if self.next is None:
            self.next = sequence
        longest = self.held.get(sequence, (b"", 0.0))[0]
        if len(data) > len(longest):
            self.held[sequence] = (data, time)
        yield from self._in_order()
        if len(self.held) > MAX_WAITING or sum(len(data) for data, _ in self.held.values()) > MAX_HELD:
            yield from self.skip()

    def acknowledged(self, sequence: int) -> Iterator[CapturedBytes]:
        """The other end has everything before this number: what is not here by now will not come."""
        while self.next is not None and self.held and _ahead(sequence, self.next) > 0:
            yield from self.skip()

    def skip(self) -> Iterator[CapturedBytes]:
        """Give up on what is missing before the first segment that is held."""
        if self.next is None or not self.held:
            return
        first = min(self.held, key=lambda sequence: _ahead(sequence, self.next or 0))
        missing, self.next = _ahead(first, self.next), first
        yield from self._in_order(missing)

    def _in_order(self, missing: int = 0) -> Iterator[CapturedBytes]:
        while self.held and self.next is not None:
            here = min(self.held, key=lambda sequence: _ahead(sequence, self.next or 0))
            late = -_ahead(here, self.next)
            if late < 0:
                return
            data, time = self.held.pop(here)
            data = data[late:]
            if data:
                self.next = self.next + len(data) & 0xFFFFFFFF
                yield CapturedBytes(data, self.sender, self.connection, time, may_begin=True, missing=missing)
                missing = 0


def _ahead(sequence: int, of: int) -> int:
    """Return how far a sequence number is ahead of another, which is negative if it is behind."""
    return (sequence - of + 0x80000000 & 0xFFFFFFFF) - 0x80000000


def read_packets(source: io.BufferedReader, name: str, ports: Collection[int] = ()) -> Iterator[CapturedBytes]:
    """Give the bytes of all connections to these ports; without ports, of those whose first bytes look like a frame.

    Raises UsageError for a file that is no capture, or one of a kind of network that is not known here.
    """
    connections = _Connections(ports)
    for segment in _segments(source, name):
        if not ports or segment.source[1] in ports or segment.target[1] in ports:
            yield from connections.segment(segment)
    yield from connections.end()


class _Connections:
    def __init__(self, ports: Collection[int]) -> None:
        self._ports = ports
        self._directions: dict[tuple[Endpoint, Endpoint], Direction] = {}

    def segment(self, segment: TcpSegment) -> Iterator[CapturedBytes]:
        tcp, there, back = segment.tcp, (segment.source, segment.target), (segment.target, segment.source)
        if there not in self._directions:
            self._enter(segment)
        while len(self._directions) > MAX_DIRECTIONS:
            yield from self._finish(next(iter(self._directions)))
        syn = bool(tcp.flags & TH_SYN)
        if syn:
            self._directions[there].begin(tcp.seq)
        if tcp.data:
            yield from self._taken(there, self._directions[there].segment(tcp.seq + syn, bytes(tcp.data), segment.time))
        if tcp.flags & TH_ACK and back in self._directions:
            yield from self._taken(back, self._directions[back].acknowledged(tcp.ack))
        if tcp.flags & TH_RST:
            yield from self._finish(there)
            yield from self._finish(back)

    def end(self) -> Iterator[CapturedBytes]:
        for way in list(self._directions):
            yield from self._finish(way)

    def _enter(self, segment: TcpSegment) -> None:
        from_client = _from_client(segment, self._ports)
        address, port = segment.source if from_client else segment.target
        label = f"{ip_address(address)}:{port}" if len(address) == 4 else f"[{ip_address(address)}]:{port}"
        self._directions[segment.source, segment.target] = Direction("C" if from_client else "S", label)
        self._directions.setdefault((segment.target, segment.source), Direction("S" if from_client else "C", label))

    def _taken(self, way: tuple[Endpoint, Endpoint], chunks: Iterator[CapturedBytes]) -> Iterator[CapturedBytes]:
        """Give the chunks of a direction that speaks the protocol, as its first bytes show."""
        direction = self._directions[way]
        for chunk in chunks:
            if direction.taken is None:
                direction.taken = bool(self._ports) or looks_like_a_frame(chunk.data)
            if direction.taken:
                yield chunk

    def _finish(self, way: tuple[Endpoint, Endpoint]) -> Iterator[CapturedBytes]:
        direction = self._directions.get(way)
        if direction is None:
            return
        while direction.held:
            yield from self._taken(way, direction.skip())
        del self._directions[way]
        if direction.taken:
            yield CapturedBytes(b"", direction.sender, direction.connection, closed=True)


def _from_client(segment: TcpSegment, ports: Collection[int]) -> bool:
    """Whether the source of a connection's first segment is the client."""
    if segment.tcp.flags & TH_SYN:
        return not segment.tcp.flags & TH_ACK
    source, target = segment.source[1], segment.target[1]
    for known in (ports, USUAL_PORTS):
        if (source in known) != (target in known):
            return target in known
    return source > target


def _segments(source: io.BufferedReader, name: str) -> Iterator[TcpSegment]:
    """Give each TCP segment of a file; what is no such is passed over."""
    import dpkt

    try:
        file = _Bounded(source)
        ng = source.peek(4)[:4] == b"\x0a\x0d\x0d\x0a"
        packets = (dpkt.pcapng if ng else dpkt.pcap).Reader(file)
        link = packets.datalink()
        for time, data in packets:
            try:
                packet = _network(link, data)
            except (dpkt.Error, ValueError, IndexError):
                continue  # cut short by the snap length, or not of this kind
            if packet is None:
                raise UsageError(f"{name}: link type {link}, expected Ethernet, Linux cooked, loopback or raw IP")
            tcp = getattr(packet, "data", None)
            if isinstance(packet, dpkt.ip.IP | dpkt.ip6.IP6) and isinstance(tcp, dpkt.tcp.TCP):
                yield TcpSegment(float(time), (packet.src, tcp.sport), (packet.dst, tcp.dport), tcp)
    except (dpkt.Error, ValueError) as error:
        raise UsageError(f"{name}: not a packet capture that can be read: {error}") from error


def _network(link: int, data: bytes) -> Any:
    """Return the network packet in a captured one, None for a link type that is not known."""
    import dpkt

    if link in _RAW:
        return dpkt.ip6.IP6(data) if data[0] >> 4 == 6 else dpkt.ip.IP(data)
    carriers = {
        dpkt.pcap.DLT_EN10MB: dpkt.ethernet.Ethernet,
        dpkt.pcap.DLT_LINUX_SLL: dpkt.sll.SLL,
        dpkt.pcap.DLT_LINUX_SLL2: dpkt.sll2.SLL2,
        dpkt.pcap.DLT_NULL: dpkt.loopback.Loopback,
        dpkt.pcap.DLT_LOOP: dpkt.loopback.Loopback,
    }
    return carriers[link](data).data if link in carriers else None


class _Bounded:
    """A file for dpkt, which reads as many bytes as a block says that it has."""

    def __init__(self, source: io.BufferedReader) -> None:
        self._source = source
        self.name = "capture"

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_BLOCK:
            raise ValueError(f"a block of {size} bytes, limit {MAX_BLOCK}")
        return self._source.read(size)
