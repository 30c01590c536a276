"""Packet captures made of bytes: TCP conversations, their headers, and the files that hold them."""

import struct
from dataclasses import dataclass, field
from ipaddress import ip_address

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
ETHERNET, RAW = 1, 101


@dataclass
class Conversation:
    """A TCP connection: each method adds a packet of IP.

    Attributes:
        sequence: the next sequence number of each side; they may wrap.
        sent: (sender, packet) of each packet.
    """

    client: tuple[str, int] = ("127.0.0.1", 50000)
    server: tuple[str, int] = ("127.0.0.1", 11210)
    sequence: dict[str, int] = field(default_factory=lambda: {"C": 999, "S": 2**32 - 51})
    sent: list[tuple[str, bytes]] = field(default_factory=list)

    def add(self, sender: str, flags: int, data: bytes = b"", **changes) -> bytes:
        source, target = (self.client, self.server) if sender == "C" else (self.server, self.client)
        sequence, other = self.sequence[sender], self.sequence["S" if sender == "C" else "C"]
        acknowledged = other if flags & ACK else 0
        tcp = make_tcp(source[1], target[1], flags, sequence, acknowledged, data)
        found = make_ip(source[0], target[0], tcp, **changes)
        self.sequence[sender] += len(data) + bool(flags & SYN) + bool(flags & FIN)
        self.sent.append((sender, found))
        return found

    def open(self) -> None:
        self.add("C", SYN)
        self.add("S", SYN | ACK)

    def send(self, sender: str, data: bytes, size: int = 40) -> None:
        for at in range(0, len(data), size):
            self.add(sender, ACK, data[at : at + size])

    def close(self) -> None:
        self.add("C", FIN | ACK)
        self.add("S", FIN | ACK)
        self.add("C", ACK)

    @property
    def packets(self) -> list[bytes]:
        return [packet for _, packet in self.sent]


def make_tcp(source: int, target: int, flags: int, sequence: int, acknowledged: int, data: bytes) -> bytes:
    numbers = sequence % 2**32, acknowledged % 2**32
    return struct.pack(">HHIIBBHHH", source, target, *numbers, 5 << 4, flags, 0xFFFF, 0, 0) + data


def make_ip(
    source: str, target: str, payload: bytes, *, protocol=6, fragment=0, total: int | None = None, options: bytes = b""
) -> bytes:
    """Return a packet of IP. Options are those of IPv4, or extension headers whose first one is a hop-by-hop header."""
    there, back = ip_address(source).packed, ip_address(target).packed
    if len(there) == 16:
        size = len(options) + len(payload) if total is None else total
        return struct.pack(">IHBB", 6 << 28, size, 0 if options else protocol, 64) + there + back + options + payload
    words = 5 + len(options) // 4
    size = words * 4 + len(payload) if total is None else total
    head = struct.pack(">BBHHHBBH", 4 << 4 | words, 0, size, 0, fragment, 64, protocol, 0)
    return head + there + back + options + payload


def get_type(packet: bytes) -> int:
    return 0x86DD if packet[0] >> 4 == 6 else 0x0800


LINKS = {
    "ethernet": (ETHERNET, lambda ip: bytes(12) + struct.pack(">H", get_type(ip)) + ip),
    "vlan": (ETHERNET, lambda ip: bytes(12) + struct.pack(">HHH", 0x8100, 7, get_type(ip)) + ip),
    "vlan in vlan": (ETHERNET, lambda ip: bytes(12) + struct.pack(">HHHHH", 0x88A8, 7, 0x8100, 8, get_type(ip)) + ip),
    "with a checksum": (ETHERNET, lambda ip: bytes(12) + struct.pack(">H", get_type(ip)) + ip + b"\x80\x50\0\0"),
    "raw": (RAW, lambda ip: ip),
    "raw of OpenBSD": (14, lambda ip: ip),
    "cooked": (113, lambda ip: bytes(14) + struct.pack(">H", get_type(ip)) + ip),
    "cooked 2": (276, lambda ip: struct.pack(">H", get_type(ip)) + bytes(18) + ip),
    "loopback": (0, lambda ip: struct.pack("<I", 2 if ip[0] >> 4 == 4 else 30) + ip),
    "loopback of another byte order": (0, lambda ip: struct.pack(">I", 2 if ip[0] >> 4 == 4 else 24) + ip),
    "loopback of OpenBSD": (108, lambda ip: struct.pack(">I", 2 if ip[0] >> 4 == 4 else 24) + ip),
}
"""Name -> link type, and function from a packet of IP to that of the link."""


def write_pcap(packets, link=ETHERNET, *, order="<", is_nano=False, limit=65535) -> bytes:
    magic = 0xA1B23C4D if is_nano else 0xA1B2C3D4
    found = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, limit, link)
    for number, packet in enumerate(packets):
        kept = packet[:limit]
        found += struct.pack(f"{order}IIII", number, 5, len(kept), len(packet)) + kept
    return found


def make_block(kind: int, body: bytes, order="<") -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(f"{order}I", len(body) + 12)
    return struct.pack(f"{order}I", kind) + size + body + size


def make_section(order="<") -> bytes:
    return make_block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def make_interface(link: int, options=b"", *, limit=0, order="<") -> bytes:
    return make_block(1, struct.pack(f"{order}HHI", link, 0, limit) + options, order)


def make_packet(packet: bytes, interface=0, *, time=0, order="<") -> bytes:
    sizes = len(packet), len(packet)
    head = struct.pack(f"{order}IIIII", interface, time >> 32, time & 0xFFFFFFFF, *sizes)
    return make_block(6, head + packet, order)


def make_old_packet(packet: bytes, order="<") -> bytes:
    return make_block(2, struct.pack(f"{order}HHIIII", 0, 0, 0, 0, len(packet), len(packet)) + packet, order)


def make_simple_packet(packet: bytes, order="<", limit=0) -> bytes:
    return make_block(3, struct.pack(f"{order}I", len(packet)) + packet[: limit or None], order)


def write_pcapng(packets, link=ETHERNET, order="<") -> bytes:
    blocks = (make_packet(packet, order=order) for packet in packets)
    return make_section(order) + make_interface(link, order=order) + b"".join(blocks)
