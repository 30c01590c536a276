"""Packet captures: link types, files, and the connections in them."""

import io
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.capture import packets
from penstock.cli.capture.capture_files import read_capture
from penstock.cli.capture.frame_text import make_peekable
from penstock.cli.capture.packets import MAX_HELD, MAX_OVERDUE, StreamDirection, read_packets
from penstock.errors import UsageError
from tests.cli.captures import (
    ACK,
    FIN,
    LINKS,
    RAW,
    RST,
    SYN,
    Conversation,
    make_block,
    make_interface,
    make_ip,
    make_old_packet,
    make_packet,
    make_section,
    make_simple_packet,
    write_pcap,
    write_pcapng,
)
from tests.cli.test_decode import CONVERSATION, LINES, encode_message

RECORDED = Path(__file__).parents[1] / "captures" / "packets"
FRAMES = [(sender, encode_message(message)) for sender, message in CONVERSATION]


def make_conversation(**options) -> Conversation:
    """Return the conversation, cut into segments."""
    found = Conversation(**options)
    found.open()
    for sender, data in FRAMES:
        found.send(sender, data)
    return found


def label(lines, client="127.0.0.1:50000"):
    return [f"{client} {line}" for line in lines]


def read(capture: bytes, ports=()) -> tuple[dict[tuple[str, str], bytes], Counter[str]]:
    """Return the bytes of each direction, and the counts of packets that were left out."""
    found: dict[tuple[str, str], bytes] = {}
    left_out: Counter[str] = Counter()
    for chunk in read_packets(make_peekable(io.BytesIO(capture)), "x", left_out, ports):
        found[chunk.connection, chunk.sender] = found.get((chunk.connection, chunk.sender), b"") + chunk.data
    return found, left_out


# Segments of a direction


@given(
    st.binary(min_size=1, max_size=200),
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(0, 199), st.integers(1, 60)), max_size=20),
    st.randoms(use_true_random=False),
)
def test_segments_in_any_order_and_more_than_once_make_the_same_bytes(data, begin, again, chance):
    segments = [(at, data[at : at + 7]) for at in range(0, len(data), 7)]
    segments += [(at, data[at : at + size]) for at, size in again if at < len(data)]
    chance.shuffle(segments)
    direction = StreamDirection("C", "x")
    direction.start(begin)
    chunks = [chunk for at, piece in segments for chunk in direction.add_segment((begin + at) % 2**32, piece, 0.0)]
    assert b"".join(chunk.data for chunk in chunks) == data
    assert not any(chunk.missing for chunk in chunks)


def test_missing_segment_is_given_up_at_a_limit_or_once_it_is_acknowledged():
    direction = StreamDirection("C", "x")
    direction.start(1)
    assert not list(direction.add_segment(11, b"b", 0.0))
    assert not list(direction.receive_acknowledgement(1))
    assert not [chunk for _ in range(MAX_OVERDUE) for chunk in direction.receive_acknowledgement(12)]
    assert [(chunk.data, chunk.missing) for chunk in direction.receive_acknowledgement(12)] == [(b"b", 10)]
    piece = bytes(MAX_HELD // 4)
    held = [chunk for at in range(5) for chunk in direction.add_segment(20 + at * len(piece), piece, 0.0)]
    assert [chunk.missing for chunk in held] == [8, 0, 0, 0, 0]


def test_number_of_segments_that_wait_for_a_missing_one_is_limited(monkeypatch):
    most = 100
    monkeypatch.setattr(packets, "MAX_WAITING", most)
    direction = StreamDirection("C", "x")
    direction.start(1)
    found = [chunk for at in range(most + 1) for chunk in direction.add_segment(2 + at, b"b", 0.0)]
    assert [chunk.missing for chunk in found] == [1, *[0] * most]
    assert not direction.held


# Files and link types


@pytest.mark.parametrize(("link", "wrap"), LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("address", ["127.0.0.1", "2001:db8::1"])
def test_packets_of_each_link_type_are_decoded(run, link, wrap, address):
    conversation = make_conversation(client=(address, 50000), server=(address, 11210))
    shown = f"[{address}]:50000" if ":" in address else f"{address}:50000"
    for write in (write_pcap, write_pcapng):
        done = run("decode", stdin=write(map(wrap, conversation.packets), link))
        assert (done.code, done.err) == (0, "")
        assert done.lines == label(LINES, shown)


IP = make_conversation().packets
FRAMED = [LINKS["ethernet"][1](packet) for packet in IP]
HALF = len(IP) // 2
COOKED = [LINKS["cooked"][1](packet) for packet in IP]
FILES = {
    "pcap of another byte order": write_pcap(FRAMED, order=">"),
    "pcap with nanoseconds": write_pcap(FRAMED, is_nano=True),
    "pcap with nanoseconds of another byte order": write_pcap(FRAMED, is_nano=True, order=">"),
    "pcap with the size of a checksum": write_pcap(FRAMED, 1 | 0x1400_0000),
    "pcapng of another byte order": write_pcapng(FRAMED, order=">"),
    "simple packets": make_section() + make_interface(1) + b"".join(map(make_simple_packet, FRAMED)),
    "old packets": make_section() + make_interface(1) + b"".join(map(make_old_packet, FRAMED)),
    "two interfaces": make_section()
    + make_interface(113)
    + make_interface(1)
    + b"".join(make_packet((COOKED, FRAMED)[n % 2][n], n % 2) for n in range(len(IP))),
    "two sections": write_pcapng(FRAMED[:HALF], order=">") + write_pcapng(IP[HALF:], RAW, order="<"),
    "interface after packets": make_section()
    + make_interface(1)
    + b"".join(map(make_packet, FRAMED[:HALF]))
    + make_interface(RAW)
    + b"".join(make_packet(packet, 1) for packet in IP[HALF:]),
    "other blocks": make_section()
    + make_block(4, b"names")
    + make_interface(1)
    + make_block(0xBAD, b"12345")
    + b"".join(make_packet(packet) + make_block(0x7777, b"") for packet in FRAMED)
    + make_block(5, bytes(12)),
    "all twice": write_pcap([each for packet in FRAMED for each in (packet, packet)]),
    "all twice, one after the other": write_pcap(FRAMED + FRAMED),
    "without the handshake": write_pcap(FRAMED[2:]),
    "with options of IP": write_pcap([packet[:20] for packet in IP], RAW)[:24]
    + write_pcap(
        [bytes([0x46]) + p[1:2] + struct.pack(">H", len(p) + 4) + p[4:20] + bytes(4) + p[20:] for p in IP], RAW
    )[24:],
    "divided after the capture": write_pcap([packet[:2] + b"\0\0" + packet[4:] for packet in IP], RAW),
}


@pytest.mark.parametrize("capture", FILES.values(), ids=FILES)
def test_packets_of_each_file_are_decoded(run, capture):
    done = run("decode", stdin=capture)
    assert (done.code, done.err) == (0, "")
    assert done.lines == label(LINES)


def test_times_have_the_unit_of_the_interface():
    def list_times(capture):
        return [packet.time for packet in read_capture(io.BytesIO(capture), "x")]

    assert list_times(write_pcap([b"a", b"b"])) == [5e-6, 1 + 5e-6]
    assert list_times(write_pcap([b"a"], is_nano=True, order=">")) == [5e-9]
    for order in "<>":
        for unit, offset, expected in ((6, 0, 2.5), (9, 0, 0.0025), (0x80 | 20, 0, 2_500_000 / 2**20), (6, -3, -0.5)):
            options = struct.pack(f"{order}HHBxxxHHqHH", 9, 1, unit, 14, 8, offset, 0, 0)
            blocks = make_interface(1, options, order=order) + make_packet(b"a", time=2_500_000, order=order)
            assert list_times(make_section(order) + blocks) == pytest.approx([expected])
    assert list_times(make_section() + make_interface(1) + make_simple_packet(b"a")) == [None]


def extend(*headers: tuple[int, bytes]) -> bytes:
    """Return extension headers of IPv6: the kind of the header after each, and its content after two bytes."""
    return b"".join(bytes([kind, len(content) // 8]) + content for kind, content in headers)


def test_extension_headers_are_skipped(run):
    conversation = Conversation(client=("::1", 50000), server=("::1", 11210))
    options = extend((43, bytes(6)), (60, bytes(14)), (44, bytes(6)), (6, bytes(6)))
    conversation.add("C", SYN, options=options)
    for sender, data in FRAMES:
        conversation.add(sender, ACK, data, options=options)
    done = run("decode", stdin=write_pcap(conversation.packets, RAW))
    assert (done.code, done.err) == (0, "")
    assert done.lines == label(LINES, "[::1]:50000")


@pytest.mark.parametrize(
    ("others", "link", "reason"),
    [
        ([make_ip("10.0.0.1", "10.0.0.2", bytes(8), protocol=17)], RAW, "packets without TCP: 1"),
        ([make_ip("::1", "::2", bytes(8), protocol=17)], RAW, "packets without TCP: 1"),
        ([make_ip("10.0.0.1", "10.0.0.2", bytes(20), fragment=0x2000)] * 2, RAW, "with fragments of IP"),
        ([make_ip("10.0.0.1", "10.0.0.2", bytes(20), fragment=3)], RAW, "with fragments of IP"),
        (
            [make_ip("::1", "::2", bytes(20), options=extend((44, bytes(6)), (6, b"\0\1" + bytes(4))))],
            RAW,
            "fragments of IP",
        ),
        (
            [b"", b"\x45", b"\x60" + bytes(5) + b"\6" + bytes(40)],
            RAW,
            "packets with an incomplete or invalid header: 3",
        ),
        ([b"\x80\x0a" * 30], 105, "packets of link type 105; expected Ethernet"),
    ],
)
def test_packets_that_are_left_out_are_counted(run, others, link, reason):
    blocks = [make_interface(RAW), make_interface(link), *(make_packet(each, 1) for each in others)]
    capture = make_section() + b"".join([*blocks, *map(make_packet, IP)])
    done = run("decode", stdin=capture)
    assert (done.code, done.lines) == (0, label(LINES))
    assert reason in done.err
    assert f": {len(others)} left out" in done.err


def test_interface_without_description_is_counted(run):
    done = run("decode", stdin=make_section() + make_packet(FRAMED[0]))
    assert done.code == 1
    assert "packets of interfaces that the capture does not describe: 1 left out" in done.err
    assert "the input has no message" in done.err


def test_packets_of_other_ports_are_left_out(run):
    assert run("decode", "--port", "11210", stdin=write_pcap(FRAMED)).code == 0
    done = run("decode", "--port", "50001", stdin=write_pcap(FRAMED))
    assert f"packets of other ports: {len(FRAMED)} left out" in done.err
    assert "the input has no message" in done.err


def test_connection_of_another_protocol_is_left_out(run):
    other = Conversation()
    other.open()
    other.add("C", ACK, b"GET / HTTP/1.1\r\n\r\n")
    other.add("S", ACK, b"HTTP/1.1 200 OK\r\n\r\n")
    done = run("decode", stdin=write_pcap(other.packets, RAW))
    assert done.code == 1
    assert "directions of connections that do not begin with a frame: 2 left out" in done.err
    done = run("decode", "--port", "11210", stdin=write_pcap(other.packets, RAW))
    assert "first byte of a frame is 0x47" in done.out


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (bytes.fromhex("d4c3b2a1") + b"nonsense", "not a packet capture that can be read: a file header of 12 bytes"),
        (write_pcap([]) + bytes(8) + b"\xff" * 8, "byte 24: a packet of 4294967295 bytes, limit 16777216"),
        (make_section()[:8] + bytes(20), "byte 0: the byte order magic is 0x00000000"),
        (make_section() + struct.pack("<II", 1, 0x7FFFFFFF), "byte 28: a block of 2147483647 bytes, limit 16777216"),
        (make_section() + make_block(6, b"1234"), "byte 28: a block of type 6 and 16 bytes, too short"),
        (
            make_section() + make_block(9, b"1234")[:-4] + bytes(4),
            "byte 28: a block of 16 bytes that ends with the length 0",
        ),
    ],
)
def test_damaged_file_is_refused_after_its_messages(run, capture, reason):
    done = run("decode", stdin=capture)
    assert (done.code, reason in done.err) == (2, True)
    if len(capture) > 28:
        more = write_pcapng(FRAMED) if capture[:4] == b"\x0a\x0d\x0d\x0a" else write_pcap(FRAMED)
        done = run("decode", stdin=more + capture[28 if more[0] == 0x0A else 24 :])
        assert (done.code, done.lines) == (2, label(LINES))


@pytest.mark.parametrize("write", [write_pcap, write_pcapng])
def test_capture_that_was_not_written_to_its_end_has_the_messages_before(run, write):
    done = run("decode", stdin=write(FRAMED)[:-10])
    assert done.lines[:-1] == label(LINES[:-1])
    assert done.code == 1
    assert "expected 56" in done.lines[-1] or "frame of" in done.lines[-1]


# Connections


@pytest.mark.parametrize("name", ["two-interfaces", "all-twice"])
def test_connections_of_a_recorded_capture_are_apart(run, name):
    """Two connections between the same ports, recorded with tcpdump: on Ethernet and on Linux cooked v2, and merged."""
    done = run("decode", RECORDED / f"{name}.pcapng")
    assert done.code == 1
    assert [" ".join(line.split()[1:4]) for line in done.lines] == [
        "> 0 NOOP",
        "< 0 NOOP",
        "> 24 SET",
        "< 24 SET",
        "> 58 byte",
        "> 0 NOOP",
        "< 0 NOOP",
        "> 24 NOOP",
        "< 24 NOOP",
        "> 48 DCP_OPEN",
        "< 48 DCP_OPEN",
    ]
    assert "byte 58: frame of 50 bytes, expected 102" in done.lines[4]


def test_new_connection_between_the_same_endpoints_is_another_one(run):
    first = make_conversation()
    first.add("S", ACK, FRAMES[-1][1][:50])
    for end in (first.close, lambda: first.add("C", RST | ACK), lambda: None):
        before = list(first.sent)
        end()
        second = make_conversation(sequence={"C": 50_000, "S": 70_000})
        done = run("decode", stdin=write_pcap(first.packets + second.packets, RAW))
        assert done.code == 1
        assert done.lines[: len(LINES)] == done.lines[len(LINES) + 1 :] == label(LINES)
        assert "frame of 50 bytes, expected" in done.lines[len(LINES)]
        first.sent = before
        first.sequence = {"C": 999 + 1 + sum(len(d) for s, d in FRAMES if s == "C"), "S": first.sequence["S"]}


def test_repetitions_after_the_end_are_no_new_connection(run):
    conversation = make_conversation()
    conversation.close()
    done = run("decode", stdin=write_pcap(conversation.packets + conversation.packets[2:], RAW))
    assert (done.code, done.err, done.lines) == (0, "", label(LINES))


def test_refused_connection_may_be_tried_again_with_the_same_number(run):
    refused = Conversation()
    refused.add("C", SYN)
    refused.add("S", RST | ACK)
    done = run("decode", stdin=write_pcap(refused.packets + make_conversation().packets, RAW))
    assert (done.code, done.lines) == (0, label(LINES))


def test_connection_between_the_endpoints_of_a_closed_one_needs_no_handshake(run):
    first = make_conversation()
    first.close()
    second = make_conversation(sequence={"C": 2**31, "S": 2**30})
    done = run("decode", stdin=write_pcap(first.packets + second.packets[2:], RAW))
    assert (done.code, done.lines) == (0, label(LINES * 2))


def test_end_before_its_last_segments_waits_for_them(run):
    conversation = make_conversation()
    conversation.add("S", FIN | ACK)
    *others, last, end = conversation.packets
    done = run("decode", stdin=write_pcap([*others, end, last], RAW))
    assert (done.code, done.lines) == (0, label(LINES))


@given(st.randoms(use_true_random=False))
def test_packets_a_few_places_too_early_or_late_are_put_in_order(chance):
    """Also acknowledgements before the segments that they acknowledge."""
    places = sorted(range(len(IP)), key=lambda number: number + chance.random() * 8 if number > 1 else number)
    assert read(write_pcap([IP[number] for number in places], RAW)) == read(write_pcap(IP, RAW))


def test_lost_packet_is_reported_and_the_next_message_is_found(run):
    marker = next(n for n, each in enumerate(IP) if FRAMES[4][1][:24] in each)
    done = run("decode", stdin=write_pcap(IP[:marker] + IP[marker + 1 :], RAW))
    assert done.code == 1
    assert "<       64 byte 64: 40 bytes are missing from 64 on" in done.out
    assert "DCP_MUTATION" in done.lines[-1]


@pytest.mark.parametrize("end", ["FIN", "acknowledged"])
def test_lost_last_packet_is_reported(run, end):
    conversation = Conversation()
    conversation.open()
    conversation.send(*FRAMES[0], size=1000)
    conversation.send(*FRAMES[1], size=1000)
    conversation.add("S", ACK, bytes(50))
    del conversation.sent[-1]
    conversation.add(*("S", FIN | ACK) if end == "FIN" else ("C", ACK))
    done = run("decode", stdin=write_pcap(conversation.packets, RAW))
    assert (done.code, len(done.lines)) == (1, 3)
    assert f"{50 if end == 'FIN' else 49} bytes are missing from {len(FRAMES[1][1])} on" in done.lines[-1]


def test_packets_that_the_capture_cut_off_are_gaps(run):
    conversation = Conversation()
    conversation.open()
    for sender, data in FRAMES:
        conversation.send(sender, data, size=1000)
    done = run("decode", stdin=write_pcap(conversation.packets, RAW, limit=100))
    assert done.code == 1
    assert "ends of packets that the capture cut off: 2 left out" in done.err
    assert sum("bytes are missing" in line or "frame of" in line for line in done.lines) == 2


def test_interleaved_connections_are_separate(run):
    ports = (50000, 50001, 50002)
    each = [make_conversation(client=("127.0.0.1", port)).packets for port in ports]
    done = run("decode", stdin=write_pcap([packet for row in zip(*each, strict=True) for packet in row], RAW))
    assert done.code == 0
    for port in ports:
        client = f"127.0.0.1:{port}"
        assert [line for line in done.lines if line.startswith(client)] == label(LINES, client)


def test_capture_that_begins_within_a_message_finds_the_next_one(run):
    conversation = Conversation()
    for sender, data in (("S", b"\x01" * 30), ("C", b"\x02" * 30), *FRAMES):
        conversation.send(sender, data)
    done = run("decode", stdin=write_pcap(conversation.packets, RAW))
    assert done.code == 1
    assert sum("30 bytes are missing from 0 on" in line for line in done.lines) == 2
    assert sum("DCP" in line for line in done.lines) == len(LINES)


def test_oldest_connection_is_closed_at_a_limit(monkeypatch, run):
    monkeypatch.setattr(packets, "MAX_DIRECTIONS", 2)
    each = [make_conversation(client=("127.0.0.1", port)).packets for port in (50000, 50001)]
    done = run("decode", stdin=write_pcap([*each[0], *each[1]], RAW))
    assert (done.code, len(done.lines)) == (0, 2 * len(LINES))
    assert run("decode", stdin=write_pcap([p for row in zip(*each, strict=True) for p in row], RAW)).code in (0, 1)


# Any bytes


@given(st.binary(max_size=300), st.sampled_from([*LINKS.values()]))
def test_no_packet_breaks_the_reader(data, link):
    for write in (write_pcap, write_pcapng):
        read(write([data, link[1](data or b"\0"), data[20:]], link[0]))


@given(st.data())
def test_no_file_breaks_the_reader(data):
    """Captures with changed, lost and repeated bytes are read, or refused with the documented error."""
    capture = bytearray(data.draw(st.sampled_from([*FILES.values()])))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(capture) - 1))
        size = data.draw(st.integers(0, 40))
        capture[at : at + size] = data.draw(st.binary(max_size=40))
    with suppress(UsageError):
        read(bytes(capture), data.draw(st.sampled_from([(), (11210,)])))
