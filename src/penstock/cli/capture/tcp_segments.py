"""TCP segments in captured packets: headers of links, IP and TCP.

Sources: the list of link types of tcpdump.org, RFC 791, RFC 8200, RFC 9293.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from penstock.cli.capture.capture_files import CapturedPacket

TH_FIN, TH_SYN, TH_RST, TH_ACK = 0x01, 0x02, 0x04, 0x10

PacketEndpoint = tuple[bytes, int]
"""Address and port."""

_IPV4, _IPV6 = 0x0800, 0x86DD
_VLANS = {0x8100, 0x88A8, 0x9100}
_TCP_PROTOCOL, _FRAGMENT = 6, 44
_IPV6_OPTIONS = {0, 43, 60, 135, 139, 140}
"""Extension headers whose second byte is their length in units of 8 bytes, without the first unit."""
_FAMILIES = {2: _IPV4, 10: _IPV6, 24: _IPV6, 28: _IPV6, 30: _IPV6}
"""Address family of a loopback header -> type of the packet. IPv6 has another number in each system."""
_TCP_HEADER = struct.Struct(">HHIIBB")
_TCP_BYTES = 20


class TcpSegment(NamedTuple):
    """A captured TCP segment.

    Attributes:
        time: Unix time in seconds; None without one.
        flags: the flags of the header.
        data: the captured bytes of the payload.
        size: the size of the payload; larger than `data` if the capture has only a part of it.
    """

    time: float | None
    source: PacketEndpoint
    target: PacketEndpoint
    sequence: int
    acknowledged: int
    flags: int
    data: bytes
    size: int


class NoSegment(Exception):
    """The reason why a packet has no segment. Never leaves this folder."""


def read_segment(packet: CapturedPacket) -> TcpSegment:
    """Return the TCP segment of a packet.

    Raises:
        NoSegment: it has none.
    """
    if packet.link is None:
        raise NoSegment("of interfaces that the capture does not describe")
    if packet.link not in _LINKS:
        raise NoSegment(f"of link type {packet.link}; expected Ethernet, Linux cooked, loopback or raw IP")
    data = packet.data
    try:
        kind, at = _LINKS[packet.link](data)
        while kind in _VLANS:
            kind, at = _read_u16(data, at + 2), at + 4
        if kind == _IPV4:
            return _read_ipv4(packet, at)
        if kind == _IPV6:
            return _read_ipv6(packet, at)
    except (IndexError, struct.error):
        raise NoSegment("with an incomplete or invalid header") from None
    raise NoSegment("without TCP")


def _read_u16(data: bytes, at: int) -> int:
    return int(struct.unpack_from(">H", data, at)[0])


def _read_ipv4(packet: CapturedPacket, at: int) -> TcpSegment:
    data = packet.data
    head, total = (data[at] & 0xF) * 4, _read_u16(data, at + 2)
    if data[at] >> 4 != 4 or head < 20:
        raise IndexError
    if data[at + 9] != _TCP_PROTOCOL:
        raise NoSegment("without TCP")
    if _read_u16(data, at + 6) & 0x3FFF:
        raise NoSegment("with fragments of IP, which are not put together")
    # 0: the network card divides the packet after it was captured.
    end = at + total if total else len(data)
    return _read_tcp(packet, at + head, end, data[at + 12 : at + 16], data[at + 16 : at + 20])


def _read_ipv6(packet: CapturedPacket, at: int) -> TcpSegment:
    data = packet.data
    size, kind, head = _read_u16(data, at + 4), data[at + 6], at + 40
    if data[at] >> 4 != 6:
        raise IndexError
    while kind in _IPV6_OPTIONS or kind == _FRAGMENT:
        if kind == _FRAGMENT and _read_u16(data, head + 2) & 0xFFF9:
            raise NoSegment("with fragments of IP, which are not put together")
        kind, head = data[head], head + 8 + (0 if kind == _FRAGMENT else data[head + 1] * 8)
    if kind != _TCP_PROTOCOL:
        raise NoSegment("without TCP")
    end = at + 40 + size if size else len(data)
    return _read_tcp(packet, head, end, data[at + 8 : at + 24], data[at + 24 : at + 40])


def _read_tcp(packet: CapturedPacket, at: int, end: int, source: bytes, target: bytes) -> TcpSegment:
    """Return a segment, whose header begins at `at` and whose payload ends at `end`."""
    source_port, target_port, sequence, acknowledged, offset, flags = _TCP_HEADER.unpack_from(packet.data, at)
    head = (offset >> 4) * 4
    size = end - at - head
    if head < _TCP_BYTES or size < 0:
        raise IndexError
    data = packet.data[at + head : end]
    if not packet.is_cut and len(data) < size:  # the header is wrong, or the packet is
        raise IndexError
    there, back = (source, source_port), (target, target_port)
    return TcpSegment(packet.time, there, back, sequence, acknowledged, flags, data, size)


def _find_raw(data: bytes) -> tuple[int, int]:
    return (_IPV6 if data[0] >> 4 == 6 else _IPV4), 0


def _find_loopback(data: bytes) -> tuple[int, int]:
    """Return type and begin of the packet. The family has the byte order of the machine that made the capture."""
    (family,) = struct.unpack_from(">I", data)
    (swapped,) = struct.unpack_from("<I", data)
    return _FAMILIES.get(min(family, swapped), 0), 4


_LINKS: dict[int, Callable[[bytes], tuple[int, int]]] = {
    0: _find_loopback,
    1: lambda data: (_read_u16(data, 12), 14),  # Ethernet
    12: _find_raw,
    14: _find_raw,
    101: _find_raw,
    108: _find_loopback,
    113: lambda data: (_read_u16(data, 14), 16),  # Linux cooked
    228: lambda data: (_IPV4, 0),
    229: lambda data: (_IPV6, 0),
    276: lambda data: (_read_u16(data, 0), 20),  # Linux cooked, version 2
}
"""Link type -> function from a packet to the type and the begin of the packet in it."""
