"""Packet captures (pcap, pcapng): the bytes of their TCP connections, each direction in order.

dpkt reads files and packets. This module puts the TCP segments in order.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli.capture.frame_text import CapturedBytes, is_probably_frame
from penstock.errors import UsageError

if TYPE_CHECKING:
    from dpkt.tcp import TCP

__all__ = ["StreamDirection", "read_packets"]

USUAL_PORTS = (11210, 11209, 11211)
MAX_BLOCK = 16 * 1024 * 1024
"""Bytes of one packet or block of a capture file."""
MAX_HELD = 4 * 1024 * 1024
"""Bytes of a direction that are buffered while an earlier segment is missing."""
MAX_WAITING = 4096
"""Buffered segments of a direction; the limit bounds the time of a search among them."""
MAX_DIRECTIONS = 20_000
"""Tracked directions; above this number the oldest direction is closed."""

_RAW = {12, 14, 101}

TH_SYN, TH_RST, TH_ACK = 0x02, 0x04, 0x10

PacketEndpoint = tuple[bytes, int]
"""Address and port."""


class TcpSegment(NamedTuple):
    """A captured TCP segment.

    Attributes:
        time: Unix time in seconds.
    """

    time: float
    source: PacketEndpoint
    target: PacketEndpoint
    tcp: TCP


@dataclass(slots=True)
class StreamDirection:
    """One direction of a TCP connection: takes segments in any order, and yields their bytes in order.

    Attributes:
        next: the next sequence number, or None before the first segment.
        held: segments that came too early: sequence number -> bytes and time.
        is_protocol: whether the bytes are frames of the protocol; None before the first bytes.
    """

    sender: str
    connection: str
    next: int | None = None
    held: dict[int, tuple[bytes, float]] = field(default_factory=dict)
    is_protocol: bool | None = None

    def start(self, sequence: int) -> None:
        """Start at the sequence number of a SYN."""
        if self.next != sequence + 1 & 0xFFFFFFFF:
            self.next, self.is_protocol = sequence + 1 & 0xFFFFFFFF, None
            self.held.clear()

    def add_segment(self, sequence: int, data: bytes, time: float) -> Iterator[CapturedBytes]:
        """Yield the bytes that a segment completes. Repeated bytes are dropped, early segments are buffered."""
        if self.next is None:
            self.next = sequence
        longest = self.held.get(sequence, (b"", 0.0))[0]
        if len(data) > len(longest):
            self.held[sequence] = (data, time)
        yield from self._take_in_order()
        if len(self.held) > MAX_WAITING or sum(len(data) for data, _ in self.held.values()) > MAX_HELD:
            yield from self.skip_gap()

    def receive_acknowledgement(self, sequence: int) -> Iterator[CapturedBytes]:
        """Yield the bytes after gaps before a number that the other end acknowledged: the gaps were not captured."""
        while self.next is not None and self.held and _compute_distance(sequence, self.next) > 0:
            yield from self.skip_gap()

    def skip_gap(self) -> Iterator[CapturedBytes]:
        """Skip the missing bytes before the first buffered segment.

        Yields:
            The buffered bytes after the gap.
        """
        if self.next is None or not self.held:
            return
        first = min(self.held, key=lambda sequence: _compute_distance(sequence, self.next or 0))
        missing, self.next = _compute_distance(first, self.next), first
        yield from self._take_in_order(missing)

    def _take_in_order(self, missing: int = 0) -> Iterator[CapturedBytes]:
        while self.held and self.next is not None:
            here = min(self.held, key=lambda sequence: _compute_distance(sequence, self.next or 0))
            late = -_compute_distance(here, self.next)
            if late < 0:
                return
            data, time = self.held.pop(here)
            data = data[late:]
            if data:
                self.next = self.next + len(data) & 0xFFFFFFFF
                yield CapturedBytes(data, self.sender, self.connection, time, may_begin=True, missing=missing)
                missing = 0


def _compute_distance(sequence: int, reference: int) -> int:
    """Return how far a sequence number is ahead of a reference, modulo 2^32; negative if it is behind."""
    return (sequence - reference + 0x80000000 & 0xFFFFFFFF) - 0x80000000


def read_packets(source: io.BufferedReader, name: str, ports: Collection[int] = ()) -> Iterator[CapturedBytes]:
    """Yield the bytes of the connections in a packet capture.

    Args:
        source: the capture.
        name: its name, for errors.
        ports: server ports; empty: all connections whose first bytes look like a frame.

    Raises:
        UsageError: the file is no capture, or its link type is not supported.
    """
    connections = _CapturedConnections(ports)
    for segment in _read_segments(source, name):
        if not ports or segment.source[1] in ports or segment.target[1] in ports:
            yield from connections.add_segment(segment)
    yield from connections.end()


class _CapturedConnections:
    def __init__(self, ports: Collection[int]) -> None:
        self._ports = ports
        self._directions: dict[tuple[PacketEndpoint, PacketEndpoint], StreamDirection] = {}

    def add_segment(self, segment: TcpSegment) -> Iterator[CapturedBytes]:
        tcp, there, back = segment.tcp, (segment.source, segment.target), (segment.target, segment.source)
        if there not in self._directions:
            self._add_connection(segment)
        while len(self._directions) > MAX_DIRECTIONS:
            yield from self._finish(next(iter(self._directions)))
        syn = bool(tcp.flags & TH_SYN)
        if syn:
            self._directions[there].start(tcp.seq)
        if tcp.data:
            yield from self._filter_protocol(
                there, self._directions[there].add_segment(tcp.seq + syn, bytes(tcp.data), segment.time)
            )
        if tcp.flags & TH_ACK and back in self._directions:
            yield from self._filter_protocol(back, self._directions[back].receive_acknowledgement(tcp.ack))
        if tcp.flags & TH_RST:
            yield from self._finish(there)
            yield from self._finish(back)

    def end(self) -> Iterator[CapturedBytes]:
        for way in list(self._directions):
            yield from self._finish(way)

    def _add_connection(self, segment: TcpSegment) -> None:
        from_client = _is_from_client(segment, self._ports)
        address, port = segment.source if from_client else segment.target
        label = f"{ip_address(address)}:{port}" if len(address) == 4 else f"[{ip_address(address)}]:{port}"
        self._directions[segment.source, segment.target] = StreamDirection("C" if from_client else "S", label)
        self._directions.setdefault(
            (segment.target, segment.source), StreamDirection("S" if from_client else "C", label)
        )

    def _filter_protocol(
        self, way: tuple[PacketEndpoint, PacketEndpoint], chunks: Iterator[CapturedBytes]
    ) -> Iterator[CapturedBytes]:
        """Yield the chunks of a direction if its first bytes look like the protocol."""
        direction = self._directions[way]
        for chunk in chunks:
            if direction.is_protocol is None:
                direction.is_protocol = bool(self._ports) or is_probably_frame(chunk.data)
            if direction.is_protocol:
                yield chunk

    def _finish(self, way: tuple[PacketEndpoint, PacketEndpoint]) -> Iterator[CapturedBytes]:
        direction = self._directions.get(way)
        if direction is None:
            return
        while direction.held:
            yield from self._filter_protocol(way, direction.skip_gap())
        del self._directions[way]
        if direction.is_protocol:
            yield CapturedBytes(b"", direction.sender, direction.connection, closed=True)


def _is_from_client(segment: TcpSegment, ports: Collection[int]) -> bool:
    """Return whether the source of a connection's first segment is the client."""
    if segment.tcp.flags & TH_SYN:
        return not segment.tcp.flags & TH_ACK
    source, target = segment.source[1], segment.target[1]
    for known in (ports, USUAL_PORTS):
        if (source in known) != (target in known):
            return target in known
    return source > target


def _read_segments(source: io.BufferedReader, name: str) -> Iterator[TcpSegment]:
    """Yield the TCP segments of a file; other packets are skipped."""
    import dpkt

    try:
        file = _BoundedFile(source)
        ng = source.peek(4)[:4] == b"\x0a\x0d\x0d\x0a"
        packets = (dpkt.pcapng if ng else dpkt.pcap).Reader(file)
        link = packets.datalink()
        for time, data in packets:
            try:
                packet = _parse_packet(link, data)
            except (dpkt.Error, ValueError, IndexError):
                continue  # truncated by the snap length, or malformed
            if packet is None:
                raise UsageError(f"{name}: link type {link}, expected Ethernet, Linux cooked, loopback or raw IP")
            tcp = getattr(packet, "data", None)
            if isinstance(packet, dpkt.ip.IP | dpkt.ip6.IP6) and isinstance(tcp, dpkt.tcp.TCP):
                yield TcpSegment(float(time), (packet.src, tcp.sport), (packet.dst, tcp.dport), tcp)
    except (dpkt.Error, ValueError) as error:
        raise UsageError(f"{name}: not a packet capture that can be read: {error}") from error


def _parse_packet(link: int, data: bytes) -> Any:
    """Return the network packet in a captured packet; None for a link type that is not supported."""
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


class _BoundedFile:
    """A file for dpkt with a limit for each read: dpkt trusts the lengths of blocks in the file."""

    def __init__(self, source: io.BufferedReader) -> None:
        self._source = source
        self.name = "capture"

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_BLOCK:
            raise ValueError(f"a block of {size} bytes, limit {MAX_BLOCK}")
        return self._source.read(size)
