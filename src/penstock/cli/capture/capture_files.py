"""Files of packet captures (pcap and pcapng): the packets in them, each with the link type of its interface.

Sources: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng, which require that blocks of unknown types are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct, error
from typing import BinaryIO, NamedTuple

from penstock.errors import UsageError

MAX_BLOCK = 16 * 1024 * 1024
"""Bytes of one packet or block of a capture file."""

PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
PCAP_MAGICS = {
    bytes.fromhex("a1b2c3d4"): (">", 1e6),
    bytes.fromhex("d4c3b2a1"): ("<", 1e6),
    bytes.fromhex("a1b23c4d"): (">", 1e9),
    bytes.fromhex("4d3cb2a1"): ("<", 1e9),
}
"""First bytes -> byte order, and the units of time in a second."""

_BYTE_ORDERS = {bytes.fromhex("1a2b3c4d"): ">", bytes.fromhex("4d3c2b1a"): "<"}
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_LEAST_SECTION = 28
_TIME_UNIT, _TIME_OFFSET = 9, 14
"""Options of an interface."""


class CapturedPacket(NamedTuple):
    """A packet of a capture.

    Attributes:
        link: the link type of its interface; None if the file does not describe the interface.
        time: Unix time in seconds; None without one.
        data: the captured bytes.
        is_cut: whether the capture has only a part of the packet.
    """

    link: int | None
    time: float | None
    data: bytes
    is_cut: bool = False


def read_capture(source: BinaryIO, name: str) -> Iterator[CapturedPacket]:
    """Yield the packets of a capture. A last packet of which a part is missing is not yielded.

    Args:
        source: the file.
        name: its name, for errors.

    Raises:
        UsageError: the file is no capture, or is damaged.
    """
    magic = source.read(4)
    if magic == PCAPNG_MAGIC:
        yield from _NgReader(source, name).read_packets()
    elif magic in PCAP_MAGICS:
        yield from _read_pcap(source, name, *PCAP_MAGICS[magic])
    else:
        raise UsageError(f"{name}: not a packet capture: it begins with 0x{magic.hex()}, expected pcap or pcapng")


def _read_pcap(source: BinaryIO, name: str, order: str, rate: float) -> Iterator[CapturedPacket]:
    head = source.read(20)
    if len(head) < 20:
        raise UsageError(f"{name}: not a packet capture that can be read: a file header of {4 + len(head)} bytes")
    link = Struct(f"{order}I").unpack_from(head, 16)[0] & 0xFFFF  # the other bits describe a checksum
    record, place = Struct(f"{order}IIII"), 24
    while len(head := source.read(record.size)) == record.size:
        seconds, fraction, size, original = record.unpack(head)
        if size > MAX_BLOCK:
            raise UsageError(f"{name}: byte {place}: a packet of {size} bytes, limit {MAX_BLOCK}; the file is damaged")
        data = source.read(size)
        if len(data) < size:
            return
        yield CapturedPacket(link, seconds + fraction / rate, data, size < original)
        place += record.size + size


@dataclass(slots=True)
class _Interface:
    """An interface of a section.

    Attributes:
        snap_length: greatest number of captured bytes of a packet; 0: no limit.
        rate: units of time in a second.
        offset: seconds that are added to each time.
    """

    link: int
    snap_length: int
    rate: float = 1e6
    offset: int = 0


@dataclass(slots=True)
class _NgReader:
    """Reads the blocks of a pcapng file. Each section has its own byte order and interfaces."""

    source: BinaryIO
    name: str
    order: str = "<"
    interfaces: list[_Interface] = field(default_factory=list)

    def read_packets(self) -> Iterator[CapturedPacket]:
        head, place = PCAPNG_MAGIC + self.source.read(4), 0
        while len(head) == 8:
            kind, body, size = self._read_block(head, place)
            if body is None:  # the end of the file is missing
                return
            try:
                packet = self._read_packet(kind, body)
            except error:
                raise self._make_error(place, f"a block of type {kind} and {size} bytes, too short") from None
            if packet is not None:
                yield packet
            place += size
            head = self.source.read(8)

    def _read_block(self, head: bytes, place: int) -> tuple[int, bytes | None, int]:
        """Return type, body and size of the block with these first bytes; no body if the file ends within it."""
        body = b""
        if head[:4] == PCAPNG_MAGIC:  # reads the same in both byte orders
            body = self.source.read(4)
            if body not in _BYTE_ORDERS:
                raise self._make_error(place, f"the byte order magic is 0x{body.hex()}")
            self.order, self.interfaces = _BYTE_ORDERS[body], []
        kind, size = Struct(f"{self.order}II").unpack(head)
        if not (_LEAST_SECTION if body else 12) <= size <= MAX_BLOCK:
            raise self._make_error(place, f"a block of {size} bytes, limit {MAX_BLOCK}")
        body += self.source.read(size - 8 - len(body))
        if len(body) < size - 8:
            return kind, None, size
        if (again := Struct(f"{self.order}I").unpack(body[-4:])[0]) != size:
            raise self._make_error(place, f"a block of {size} bytes that ends with the length {again}")
        return kind, body[:-4], size

    def _make_error(self, place: int, fault: str) -> UsageError:
        return UsageError(f"{self.name}: byte {place}: {fault}; the file is damaged")

    def _read_packet(self, kind: int, body: bytes) -> CapturedPacket | None:
        """Return the packet of a block; None for a block of another kind."""
        if kind == _INTERFACE:
            self.interfaces.append(self._read_interface(body))
        if kind == _SIMPLE_PACKET:
            (original,) = Struct(f"{self.order}I").unpack_from(body)
            limit = self.interfaces[0].snap_length if self.interfaces else 0
            return self._make_packet(0, None, body[4:], min(original, limit or original), original)
        if kind in (_PACKET, _OLD_PACKET):
            shape = f"{self.order}IIIII" if kind == _PACKET else f"{self.order}HxxIIII"
            number, high, low, size, original = Struct(shape).unpack_from(body)
            return self._make_packet(number, high << 32 | low, body[20:], size, original)
        return None

    def _make_packet(self, number: int, time: int | None, data: bytes, size: int, original: int) -> CapturedPacket:
        known = self.interfaces[number] if number < len(self.interfaces) else None
        seconds = None if known is None or time is None else time / known.rate + known.offset
        return CapturedPacket(None if known is None else known.link, seconds, data[:size], size < original)

    def _read_interface(self, body: bytes) -> _Interface:
        link, snap_length = Struct(f"{self.order}HxxI").unpack_from(body)
        found, head, at = _Interface(link, snap_length), Struct(f"{self.order}HH"), 8
        while at + head.size <= len(body):
            code, size = head.unpack_from(body, at)
            value = body[at + head.size :][:size]
            if code == _TIME_UNIT and value:
                found.rate = 2.0 ** (value[0] & 0x7F) if value[0] & 0x80 else 10.0 ** value[0]
            elif code == _TIME_OFFSET and len(value) == 8:
                (found.offset,) = Struct(f"{self.order}q").unpack(value)
            at += head.size + size + -size % 4
        return found
