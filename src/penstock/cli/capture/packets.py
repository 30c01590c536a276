"""Packet captures: the bytes of their TCP connections, each direction in order."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address

from penstock.cli.capture.capture_files import read_capture
from penstock.cli.capture.frame_text import CapturedBytes, is_probably_frame
from penstock.cli.capture.tcp_segments import (
    TH_ACK,
    TH_FIN,
    TH_RST,
    TH_SYN,
    NoSegment,
    PacketEndpoint,
    TcpSegment,
    read_segment,
)
from penstock.errors import UsageError

USUAL_PORTS = (11210, 11209, 11211)
MAX_HELD = 4 * 1024 * 1024
"""Bytes of a direction that are buffered while an earlier segment is missing."""
MAX_WAITING = 4096
"""Buffered segments of a direction; the limit bounds the time of a search among them."""
MAX_OVERDUE = 16
"""Acknowledgements after which a missing segment that was acknowledged is given up."""
MAX_DIRECTIONS = 20_000
"""Tracked directions; above this number the oldest direction is closed."""
_LATE_BYTES = 1 << 24
"""How far behind the end of a closed direction a segment counts as a repetition: windows are smaller."""

_NO_FRAME = "directions of connections that do not begin with a frame"


@dataclass(slots=True)
class StreamDirection:
    """One direction of a TCP connection: takes segments in any order, and yields their bytes in order.

    Attributes:
        next: the next sequence number, or None before the first segment.
        first: the sequence number of the first byte; None before the first segment.
        end: the sequence number after the last byte; None before a FIN.
        acknowledged: the newest number that the other end acknowledged.
        held: segments that came too early: sequence number -> bytes and time.
        overdue: acknowledgements since the other end acknowledged a missing segment.
        is_protocol: whether the bytes are frames of the protocol; None before the first bytes.
        is_closed: no more bytes are expected.
        joins: whether the capture begins within a connection of a usual port: a frame may begin later.
        skipped: bytes before that frame.
    """

    sender: str
    connection: str
    next: int | None = None
    first: int | None = None
    end: int | None = None
    acknowledged: int | None = None
    held: dict[int, tuple[bytes, float | None]] = field(default_factory=dict)
    overdue: int = 0
    is_protocol: bool | None = None
    is_closed: bool = False
    joins: bool = False
    skipped: int = 0

    def start(self, sequence: int) -> None:
        """Start at the sequence number of the first byte, if the direction has not started."""
        if self.next is None:
            self.next = self.first = sequence

    def add_segment(self, sequence: int, data: bytes, time: float | None) -> Iterator[CapturedBytes]:
        """Yield the bytes that a segment completes. Repeated bytes are dropped, early segments are buffered."""
        self.start(sequence)
        longest = self.held.get(sequence, (b"", 0.0))[0]
        if len(data) > len(longest):
            self.held[sequence] = (data, time)
        yield from self._take_in_order()
        if len(self.held) > MAX_WAITING or sum(len(data) for data, _ in self.held.values()) > MAX_HELD:
            yield from self.skip_gap()

    def receive_acknowledgement(self, sequence: int) -> Iterator[CapturedBytes]:
        """Yield the bytes after gaps before a number that the other end acknowledged: the gaps were not captured.

        A capture may have an acknowledgement a little before its segments, so some more are awaited.
        """
        if self.acknowledged is None or _compute_distance(sequence, self.acknowledged) > 0:
            self.acknowledged = sequence
        if self.next is None or not self.held or _compute_distance(self.acknowledged, self.next) <= 0:
            self.overdue = 0
            return
        self.overdue += 1
        while self.overdue > MAX_OVERDUE and self.held and _compute_distance(self.acknowledged, self.next) > 0:
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

    def is_complete(self) -> bool:
        """Return whether the bytes up to a FIN were yielded, or were acknowledged without being captured."""
        if self.end is None or self.next is None or self.held:
            return False
        seen = self.next
        if self.acknowledged is not None and _compute_distance(self.acknowledged, seen) > 0:
            seen = self.acknowledged
        return _compute_distance(self.end, seen) <= 0

    def finish(self) -> Iterator[CapturedBytes]:
        """Yield the buffered bytes. Then yield the number of bytes that are missing at the end, if there are some."""
        while self.held:
            yield from self.skip_gap()
        if self.next is None:
            return
        ends = [_compute_distance(self.end, self.next)] if self.end is not None else []
        if self.acknowledged is not None and self.end is None:
            ends.append(_compute_distance(self.acknowledged, self.next) - 1)  # perhaps of a FIN that was not captured
        if (missing := max(ends, default=0)) > 0:
            yield CapturedBytes(b"", self.sender, self.connection, missing=missing)

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


def read_packets(
    source: io.BufferedReader, name: str, left_out: Counter[str], ports: Collection[int] = ()
) -> Iterator[CapturedBytes]:
    """Yield the bytes of the connections in a packet capture.

    Args:
        source: the capture.
        name: its name, for errors.
        left_out: counts the packets and connections that are left out, by their reason.
        ports: server ports; empty: all connections whose first bytes look like a frame.

    Raises:
        UsageError: the file is no capture, or is damaged. Bytes before the damage are yielded before.
    """
    connections = _CapturedConnections(ports, left_out)
    damage: UsageError | None = None
    try:
        for packet in read_capture(source, name):
            try:
                segment = read_segment(packet)
            except NoSegment as reason:
                left_out[f"packets {reason}"] += 1
                continue
            if not ports or segment.source[1] in ports or segment.target[1] in ports:
                yield from connections.add_segment(segment)
            else:
                left_out["packets of other ports"] += 1
    except UsageError as error:
        damage = error
    yield from connections.end()
    if damage is not None:
        raise damage


Way = tuple[PacketEndpoint, PacketEndpoint]


class _CapturedConnections:
    """The connections of a capture. A new SYN begins another connection, also between known endpoints."""

    def __init__(self, ports: Collection[int], left_out: Counter[str]) -> None:
        self._ports = ports
        self._left_out = left_out
        self._directions: dict[Way, StreamDirection] = {}

    def add_segment(self, segment: TcpSegment) -> Iterator[CapturedBytes]:
        there, back = (segment.source, segment.target), (segment.target, segment.source)
        if self._begins_connection(segment):
            yield from self._finish(there)
            yield from self._finish(back)
            self._add_connection(segment)
        while len(self._directions) > MAX_DIRECTIONS:
            source, target = next(iter(self._directions))
            for way in ((source, target), (target, source)):
                yield from self._finish(way)
                self._directions.pop(way, None)
        yield from self._filter_protocol(there, self._take_segment(segment))
        if segment.flags & TH_ACK and not self._directions[back].is_closed:
            yield from self._filter_protocol(back, self._directions[back].receive_acknowledgement(segment.acknowledged))
            yield from self._close_complete(back)
        yield from self._close_complete(there)
        if segment.flags & TH_RST:
            yield from self._finish(there)
            yield from self._finish(back)

    def end(self) -> Iterator[CapturedBytes]:
        for way in list(self._directions):
            yield from self._finish(way)

    def _begins_connection(self, segment: TcpSegment) -> bool:
        """Return whether a segment is not of the known connection between its endpoints."""
        known = self._directions.get((segment.source, segment.target))
        if known is None:
            return True
        if segment.flags & TH_SYN:
            if known.is_closed and known.next == known.first:  # refused before; some systems try again with the number
                return True
            return known.first not in (None, segment.sequence + 1 & 0xFFFFFFFF)
        if not known.is_closed or not segment.size or known.next is None:
            return False
        return not -_LATE_BYTES < _compute_distance(segment.sequence, known.next) <= 0

    def _take_segment(self, segment: TcpSegment) -> Iterator[CapturedBytes]:
        """Yield the bytes that a segment completes in its direction."""
        direction = self._directions[segment.source, segment.target]
        if direction.is_closed:
            return
        begin = segment.sequence + bool(segment.flags & TH_SYN) & 0xFFFFFFFF
        if segment.flags & TH_SYN:
            direction.start(begin)
        if len(segment.data) < segment.size:
            self._left_out["ends of packets that the capture cut off"] += 1
        if segment.data and not segment.flags & TH_RST:  # the data of a reset is a message for people
            yield from direction.add_segment(begin, segment.data, segment.time)
        if segment.flags & TH_FIN:
            direction.start(begin)
            direction.end = begin + segment.size & 0xFFFFFFFF

    def _close_complete(self, way: Way) -> Iterator[CapturedBytes]:
        if self._directions[way].is_complete():
            yield from self._finish(way)

    def _add_connection(self, segment: TcpSegment) -> None:
        from_client = _is_from_client(segment, self._ports)
        address, port = segment.source if from_client else segment.target
        label = f"{ip_address(address)}:{port}" if len(address) == 4 else f"[{ip_address(address)}]:{port}"
        sender, receiver = "CS" if from_client else "SC"
        port_known = segment.source[1] in USUAL_PORTS or segment.target[1] in USUAL_PORTS
        joins = port_known and not segment.flags & TH_SYN
        for way, name in (((segment.source, segment.target), sender), ((segment.target, segment.source), receiver)):
            self._directions.pop(way, None)  # the newest direction comes last
            self._directions[way] = StreamDirection(name, label, joins=joins)

    def _filter_protocol(self, way: Way, chunks: Iterator[CapturedBytes]) -> Iterator[CapturedBytes]:
        """Yield the chunks of a direction if its first bytes look like the protocol."""
        direction = self._directions[way]
        for chunk in chunks:
            if direction.is_protocol is None and (self._ports or is_probably_frame(chunk.data)):
                direction.is_protocol = True
                chunk = chunk._replace(missing=chunk.missing + direction.skipped)
            elif direction.is_protocol is None and direction.joins:
                direction.skipped += chunk.missing + len(chunk.data)
            elif direction.is_protocol is None:
                direction.is_protocol = False
                self._left_out[_NO_FRAME] += 1
            if direction.is_protocol:
                yield chunk

    def _finish(self, way: Way) -> Iterator[CapturedBytes]:
        """Yield the rest of a direction, and close it. Repetitions of its segments may still follow."""
        direction = self._directions.get(way)
        if direction is None or direction.is_closed:
            return
        direction.is_closed = True
        if direction.is_protocol is not None or direction.held:
            yield from self._filter_protocol(way, direction.finish())
        if direction.is_protocol:
            yield CapturedBytes(b"", direction.sender, direction.connection, closed=True)
        elif direction.is_protocol is None and direction.skipped:
            self._left_out[_NO_FRAME] += 1


def _is_from_client(segment: TcpSegment, ports: Collection[int]) -> bool:
    """Return whether the source of a connection's first segment is the client."""
    if segment.flags & TH_SYN:
        return not segment.flags & TH_ACK
    source, target = segment.source[1], segment.target[1]
    for known in (ports, USUAL_PORTS):
        if (source in known) != (target in known):
            return target in known
    return source > target
