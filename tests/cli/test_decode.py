"""`penstock decode`: every kind of input, every dialect, and malformed bytes."""

import io
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.capture import packets
from penstock.cli.capture.frame_text import (
    CapturedBytes,
    FrameSlice,
    FrameSplitter,
    detect_format,
    make_peekable,
    read_hex,
    read_lines,
    read_raw,
)
from penstock.cli.capture.packets import MAX_HELD, StreamDirection, read_packets
from penstock.errors import UsageError
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.cluster import ClustermapChanged
from penstock.wire.messages.dcp import DcpReply, Mutation, Open, SnapshotMarker, StreamReq
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import Hello, Noop, Reply, Set, pack_failover_log, pack_features, pack_key_list
from penstock.wire.messages.sasl import SaslAuth
from penstock.wire.messages.subdoc import (
    LookupReply,
    MultiLookup,
    SubdocMutation,
    pack_lookup_results,
    pack_lookup_specs,
)
from penstock.wire.messages.tap import TapConnect, TapMutation
from penstock.wire.messages.upr import UprSnapshotStart, UprStreamReq
from penstock.wire.messages.upr_draft import DraftOk, DraftStreamReq
from tests.patience import PATIENCE
from tests.strategies import messages

CAPTURES = sorted((Path(__file__).parents[1] / "captures").glob("*.json"))

CAS = 2**63
CONVERSATION: list[tuple[str, Any]] = [
    ("C", Open(opaque=1, flags=1, key=b"tail")),
    ("S", DcpReply(opaque=1)),
    ("C", StreamReq(vbucket=7, opaque=0x2D, start_seqno=0, end_seqno=2**64 - 1)),
    ("S", (DcpReply(opaque=0x2D, value=pack_failover_log([(9, 0)])), Opcode.DCP_STREAM_REQ)),
    ("S", SnapshotMarker(vbucket=7, opaque=0x2D, start_seqno=0, end_seqno=3, flags=5)),
    ("S", Mutation(vbucket=7, opaque=45, by_seqno=3, rev_seqno=1, cas=CAS, key=b"beer", value=b'{"a":1}', datatype=1)),
]  # fmt: skip


def encode_message(message) -> bytes:
    """Return the bytes of a message. If several opcodes share its type, it is given as (message, opcode)."""
    of, opcode = message if isinstance(message, tuple) else (message, None)
    data: bytes = of.encode(opcode)
    return data


BYTES = {sender: b"".join(encode_message(message) for at, message in CONVERSATION if at == sender) for sender in "CS"}
CAPTURE = json.dumps(
    {"frames": [{"dir": sender, "hex": encode_message(message).hex(), "t": 0.5} for sender, message in CONVERSATION]}
)
LINES = [
    ">        0 DCP_OPEN                     vb 0        opaque 0x1 flags=PRODUCER key=tail",
    "<        0 DCP_OPEN reply               SUCCESS     opaque 0x1",
    ">       36 DCP_STREAM_REQ               vb 7        opaque 0x2d end_seqno=2^64-1",
    "<       24 DCP_STREAM_REQ reply         SUCCESS     opaque 0x2d failover_log=[vbuuid 9 seqno 0]",
    "<       64 DCP_SNAPSHOT_MARKER          vb 7        opaque 0x2d end_seqno=3 flags=MEMORY|CHECKPOINT",
    "<      108 DCP_MUTATION                 vb 7        opaque 0x2d cas=9223372036854775808 datatype=JSON "
    'by_seqno=3 rev_seqno=1 key=beer value=7 bytes: {"a":1}',
]


def test_conversation_is_printed_with_one_line_for_each_message(run):
    code, out, err = run("decode", "-", stdin=CAPTURE.encode())
    assert (code, err) == (0, "")
    assert out.splitlines() == LINES


def test_json_has_every_field(run, tmp_path):
    file = tmp_path / "capture.json"
    file.write_text(CAPTURE)
    done = run("decode", file, "--json")
    assert done.code == 0
    mutation = done.json_lines[-1]
    assert mutation == {
        **{"dir": "S", "t": 0.5, "offset": 108, "dialect": "dcp", "name": "DCP_MUTATION", "reply": False, "bytes": 66},
        **{"magic": 0x80, "opcode": 0x57, "vbucket": 7, "opaque": 0x2D, "cas": str(CAS), "datatype": ["JSON"]},
        "fields": {
            **{"by_seqno": 3, "rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nmeta": 0, "nru": 0},
        },
        "key": "beer",
        "value": '{"a":1}',
    }
    assert done.json_lines[3]["fields"] == {"failover_log": [{"vbuuid": "9", "seqno": 0}]}
    assert done.json_lines[3]["status"] == "SUCCESS"
    assert done.json_lines[4]["fields"]["flags"] == ["MEMORY", "CHECKPOINT"]


DURABLE = RequestInfos(Durability(DurabilityLevel.PERSIST_TO_MAJORITY, 2500), preserve_ttl=True)
COMMANDS = [
    (Hello(key=b"me", value=pack_features([0x12, 0x99])), "features=[COLLECTIONS, 153] key=me"),
    (SaslAuth(key=b"PLAIN", value=b"\0joe\0pencil"), "value_bytes=11 key=PLAIN"),
    (
        Set(key=b"k", framing=pack_request_infos(DURABLE)),
        "durability=level PERSIST_TO_MAJORITY timeout_ms 2500 preserve_ttl=true key=k",
    ),
    (
        (SubdocMutation.for_path(b"a.b", b"1", key=b"k", flags=1), Opcode.SUBDOC_COUNTER),
        "path_length=3 flags=MKDIR_P path=a.b content=1 key=k",
    ),
    (
        MultiLookup(key=b"k", value=pack_lookup_specs([(0xC5, 4, b"_a"), (0, 0, b"")])),
        "operations=[opcode SUBDOC_GET flags XATTR path _a, opcode GET] key=k",
    ),
    (
        (LookupReply(value=pack_lookup_results([(0, b"1"), (0xC0, b"")])), Opcode.SUBDOC_MULTI_LOOKUP),
        "results=[status SUCCESS value 1, status SUBDOC_PATH_ENOENT]",
    ),
    ((Reply(value=pack_key_list([b"a", b"\xff"])), Opcode.GET_KEYS), "keys=[key a, key 0xff]"),
    (ClustermapChanged(epoch=1, revision=2, key=b"beer"), "epoch=1 revision=2 key=beer"),
]


@pytest.mark.parametrize(("message", "expected"), COMMANDS, ids=[expected for _, expected in COMMANDS])
def test_commands_are_decoded(run, message, expected):
    done = run("decode", stdin=encode_message(message))
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f" opaque 0x0 {expected}\n")
    (row,) = run("decode", "--json", stdin=encode_message(message)).json_lines
    assert {word.partition("=")[0] for word in expected.split() if "=" in word} <= row["fields"].keys() | {"key"}
    assert "pencil" not in json.dumps(row)


NOOP = Noop(opaque=7).encode()
NOOP_LINE = "         0 NOOP                         vb 0        opaque 0x7"

HEX = [
    NOOP.hex(),
    NOOP.hex().upper(),
    NOOP.hex(" "),
    NOOP.hex(",", 4),
    NOOP.hex(":"),
    " ".join(f"0x{byte:02x}" for byte in NOOP),
    NOOP.hex("\n", 8),
    NOOP.hex()[:5] + "\n" + NOOP.hex()[5:],
    "00000000  80 0a 00 00 00 00 00 00  00 00 00 00 00 00 00 07  |................|\n"
    "00000010  00 00 00 00 00 00 00 00                           |........|\n00000018\n",
    "00000000: 800a 0000 0000 0000 0000 0000 0000 0007  ................\n"
    "00000010: 0000 0000 0000 0000                      ..3 ba..\n",
    "0000   80 0a 00 00 00 00 00 00 00 00 00 00 00 00 00 07   ................\n"
    "0010   00 00 00 00 00 00 00 00   ab cd ef",
]  # fmt: skip


@pytest.mark.parametrize("text", HEX)
def test_hex_is_read_in_every_usual_notation(run, text):
    assert run("decode", stdin=text.encode()) == (0, f"{NOOP_LINE}\n", "")


def test_hex_is_read_from_the_command_line(run):
    assert run("decode", *NOOP.hex(" ").split()).out == f"{NOOP_LINE}\n"
    assert run("decode", NOOP.hex(" ")).out == f"{NOOP_LINE}\n"


def test_raw_bytes_are_read(run, tmp_path):
    file = tmp_path / "frames"
    file.write_bytes(NOOP * 2)
    lines = run("decode", file).lines
    assert lines == [NOOP_LINE, NOOP_LINE.replace("        0", "       24", 1)]


DIALECTS = [
    (TapConnect(flags=2, key=b"n"), TapMutation(key=b"k", engine_private=bytes(7) + b"\x03\x01"), "tap", "rev_seqno=3"),
    (UprStreamReq(start_seqno=0, end_seqno=1), UprSnapshotStart(), "upr", "UPR_SNAPSHOT_START"),
    (DraftStreamReq(start_seqno=0, end_seqno=1), DraftOk(), "upr-draft", "DRAFT_OK"),
]


@pytest.mark.parametrize(("first", "then", "dialect", "expected"), DIALECTS)
def test_each_connection_is_decoded_in_its_own_dialect(run, first, then, dialect, expected):
    frames = [
        {"dir": sender, "hex": message.encode().hex(), "conn": 1} for sender, message in (("C", first), ("S", then))
    ]
    frames.append({"dir": "S", "hex": UprSnapshotStart().encode().hex(), "conn": 2})
    out = run("decode", "-", stdin=json.dumps(frames).encode())
    assert out.code == 0
    assert expected in out.lines[1]
    assert out.lines[2].startswith("2 <        0 DCP_GET_FAILOVER_LOG")
    assert {row.get("dialect") for row in run("decode", "--json", stdin=json.dumps(frames).encode()).json_lines} == {
        dialect,
        None,
    }


def test_the_dialect_can_be_chosen(run):
    text = UprSnapshotStart().encode().hex()
    assert "DCP_GET_FAILOVER_LOG" in run("decode", text).out
    assert "UPR_SNAPSHOT_START" in run("decode", text, "--dialect", "upr").out
    draft = run("decode", DraftOk(vbucket=3).encode().hex(), "--dialect", "upr-draft", "--json").json
    assert (draft["dialect"], draft["name"], draft["vbucket"]) == ("upr-draft", "DRAFT_OK", 3)


# Errors


def test_malformed_message_is_reported_in_its_place_and_the_next_one_follows(run):
    wrong = bytes.fromhex("80500001040000000000000500000000000000000000000000000000") + b"n"
    unfitting = bytes.fromhex("8054000a0000000000000000000000020000000000000000")
    code, out, err = run("decode", (NOOP + wrong + unfitting + NOOP).hex())
    assert code == 1
    assert err == "penstock: 2 of 4 messages could not be decoded\n"
    _, first, second, last = out.splitlines()
    assert first.endswith("byte 24: DCP_OPEN: extras of 4 bytes, expected 8")
    assert second.endswith("byte 53: DCP_GET_FAILOVER_LOG: extras of 0 and key of 10 bytes in a body of 0")
    assert last.split()[:2] == ["77", "NOOP"]


def test_json_has_errors_as_fields(run):
    done = run("decode", "--json", (NOOP + b"\x99" * 30).hex())
    assert done.code == 1
    assert done.json_lines[1] == {
        "offset": 24,
        "error": "byte 24: first byte of a frame is 0x99, not a known magic",
    }


def test_decoding_continues_after_garbage_at_an_empty_line(run):
    text = f"{NOOP.hex()}\nff00ff00{NOOP.hex()}\n\n{NOOP.hex()}\n"
    done = run("decode", stdin=text.encode())
    assert done.code == 1
    assert [line.split()[:2] for line in done.lines] == [["0", "NOOP"], ["24", "byte"], ["52", "NOOP"]]


def test_incomplete_frame_is_reported(run):
    done = run("decode", (NOOP + Set(key=b"k", value=b"v").encode()[:-1]).hex())
    assert done.code == 1
    assert done.lines[1].endswith("byte 24: frame of 33 bytes, expected 34")


def test_a_frame_beyond_the_limit_is_never_waited_for(run):
    done = run("decode", "80010000000000007fffffff000000000000000000000000")
    assert done.code == 1
    assert "limit 31457280" in done.out


WRONG = [
    ("", 1, "the input has no message"),
    ("80 0a 0", 2, "an odd number of hex digits, the last one is '0'"),
    ("80 0a\nhello", 2, "line 2: 'h' is no hex digit"),
    ("00000000  80 0a 00 00\n*\n00000010", 2, "line 2: '*', expected offset 00000004"),
    ("{", 2, "not JSON"),
    ("{}", 2, "expected an object with a list of frames"),
    ('[{"hex": 1}]', 2, "frame 1 is not an object with bytes in hex"),
    ('[{"hex": "zz"}]', 2, "frame 1: non-hexadecimal"),
    ("[" * 100_000, 2, "not JSON"),
]


@pytest.mark.parametrize(("text", "code", "reason"), WRONG, ids=[reason for _, _, reason in WRONG])
def test_invalid_input_is_reported(run, text, code, reason):
    done = run("decode", stdin=text.encode())
    assert done.code == code
    assert reason in done.err
    assert done.err.count("\n") == 1


def test_invalid_packet_capture_is_refused(run):
    done = run("decode", stdin=bytes.fromhex("d4c3b2a1") + b"nonsense")
    assert done.code == 2
    assert "not a packet capture that can be read" in done.err
    huge = bytes.fromhex("0a0d0d0a 1c000000 4d3c2b1a 01000000ffffffffffffffff 1c000000 01000000 ffffff7f")
    assert "limit 16777216" in run("decode", stdin=huge).err


def test_argument_that_is_neither_a_file_nor_hex_is_refused(run, tmp_path):
    assert run("decode", "missing.bin").err == "penstock: 'missing.bin' is neither an existing file nor bytes in hex\n"
    assert run("decode", "80", "0g").code == 2
    done = run("decode", tmp_path)
    assert (done.code, done.err) == (2, f"penstock: {tmp_path} is a directory, expected a file of frames\n")


def test_frame_cannot_send_control_sequences_to_the_terminal(run):
    out = run("decode", Set(key=b"\x1b[2J", value=b"\x1b]0;x\x07").encode().hex()).out
    assert "\x1b" not in out
    assert "key=\\x1b[2J" in out
    assert "key=0xff" in run("decode", Set(key=b"\xff").encode().hex()).out


@pytest.mark.process
def test_closed_output_pipe_is_no_error(tmp_path):
    file = tmp_path / "frames"
    file.write_bytes(NOOP * 50_000)
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "decode", str(file)], stdout=writing, stderr=subprocess.PIPE
    ) as process:
        os.close(writing)
        with open(reading, encoding="utf-8") as lines:
            assert "NOOP" in lines.readline()
        _, err = process.communicate(timeout=PATIENCE)
    assert err == b""


# Components


@given(st.lists(messages(), min_size=1, max_size=5), st.lists(st.integers(1, 60), min_size=1))
def test_frames_are_the_same_however_they_arrive(drawn, sizes):
    data = b"".join(message.encode(code) for _, code, message in drawn)
    whole = list(FrameSplitter().feed(CapturedBytes(data)))
    assert len(whole) == len(drawn)
    splitter = FrameSplitter()
    found: list[FrameSlice] = []
    at = 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        found += splitter.feed(CapturedBytes(data[at : at + size]))
        at += size
    assert found + list(splitter.end()) == whole


@given(st.lists(st.binary(max_size=50)), st.booleans())
def test_no_bytes_break_the_splitter(pieces, may_begin):
    splitter = FrameSplitter()
    for piece in pieces:
        for cut in splitter.feed(CapturedBytes(piece, may_begin=may_begin)):
            assert (cut.frame is None) == bool(cut.fault)
    list(splitter.end())


@given(st.binary(max_size=200))
def test_any_input_is_read_or_refused(data):
    source = make_peekable(io.BytesIO(data))
    shape = detect_format(source)
    assert shape in ("hex", "json", "raw", "pcap")
    with suppress(UsageError):
        read = read_hex(read_lines(source), "x") if shape == "hex" else read_raw(source)
        assert all(isinstance(chunk, CapturedBytes) for chunk in read)


def test_very_long_line_is_read_in_pieces():
    pieces = list(read_hex(read_lines(io.BytesIO(b"80" * 3_000_000)), "x"))
    assert len(pieces) == 6
    assert sum(len(piece.data) for piece in pieces) == 3_000_000


# Packets


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
    chunks = [chunk for at, piece in segments for chunk in direction.add_segment((begin + 1 + at) % 2**32, piece, 0.0)]
    assert b"".join(chunk.data for chunk in chunks) == data
    assert not any(chunk.missing for chunk in chunks)


def test_missing_segment_is_given_up_at_a_limit_or_once_it_is_acknowledged():
    direction = StreamDirection("C", "x")
    direction.start(0)
    assert not list(direction.add_segment(11, b"b", 0.0))
    assert not list(direction.receive_acknowledgement(1))
    assert [(chunk.data, chunk.missing) for chunk in direction.receive_acknowledgement(12)] == [(b"b", 10)]
    piece = bytes(MAX_HELD // 4)
    held = [chunk for at in range(5) for chunk in direction.add_segment(20 + at * len(piece), piece, 0.0)]
    assert [chunk.missing for chunk in held] == [8, 0, 0, 0, 0]


def test_number_of_segments_that_wait_for_a_missing_one_is_limited(monkeypatch):
    most = 100
    monkeypatch.setattr(packets, "MAX_WAITING", most)
    direction = StreamDirection("C", "x")
    direction.start(0)
    found = [chunk for at in range(most + 1) for chunk in direction.add_segment(2 + at, b"b", 0.0)]
    assert [chunk.missing for chunk in found] == [1, *[0] * most]
    assert not direction.held


CLIENT, SERVER = (b"\x7f\0\0\1", 50000), (b"\x7f\0\0\1", 11210)


def packet(sender: str, flags: int, sequence: int, data: bytes = b"", *, link=dpkt.ethernet.Ethernet) -> bytes:
    source, target = (CLIENT, SERVER) if sender == "C" else (SERVER, CLIENT)
    tcp = dpkt.tcp.TCP(sport=source[1], dport=target[1], seq=sequence % 2**32, flags=flags, data=data)
    ip = dpkt.ip.IP(src=source[0], dst=target[0], p=dpkt.ip.IP_PROTO_TCP, data=tcp)
    ip.len = len(ip)
    return bytes(link(src=b"\0" * 6, dst=b"\0" * 6, type=0x0800, data=ip)) if link else bytes(ip)


def make_packets(**options) -> list[bytes]:
    """Return the packets of the conversation, cut into segments; the server's sequence numbers wrap."""
    sequence = {"C": 1000, "S": 2**32 - 50}
    found = [packet("C", 0x02, 999, **options), packet("S", 0x12, 2**32 - 51, **options)]
    for sender, message in CONVERSATION:
        data = encode_message(message)
        for at in range(0, len(data), 40):
            found.append(packet(sender, 0x18, sequence[sender], data[at : at + 40], **options))
            sequence[sender] += len(data[at : at + 40])
    return found


def write_capture(packets: list[bytes], writer=dpkt.pcap.Writer, **options) -> bytes:
    file = io.BytesIO()
    capture = writer(file, **options)
    for number, each in enumerate(packets):
        capture.writepkt(each, ts=number)
    return file.getvalue()


@pytest.mark.parametrize(
    "capture",
    [
        write_capture(make_packets()),
        write_capture(make_packets(), dpkt.pcapng.Writer),
        write_capture(make_packets(link=None), linktype=dpkt.pcap.DLT_RAW),
        write_capture([each for twice in make_packets() for each in (twice, twice)]),
        write_capture(make_packets()[2:]),
        write_capture([b"", b"\0" * 20, *make_packets()]),
    ],
    ids=["pcap", "pcapng", "raw ip", "all twice", "without the handshake", "other packets"],
)
def test_packets_are_decoded(run, capture):
    done = run("decode", stdin=capture)
    assert (done.code, done.err) == (0, "")
    assert done.lines == [f"127.0.0.1:50000 {line}" for line in LINES]


def test_packets_of_other_ports_are_skipped(run):
    capture = write_capture(make_packets())
    assert run("decode", "--port", "11210", stdin=capture).code == 0
    assert run("decode", "--port", "50001", stdin=capture).err == "penstock: the input has no message\n"


def test_connection_of_another_protocol_is_skipped(run):
    other = [packet("C", 0x18, 1, b"GET / HTTP/1.1\r\n\r\n"), packet("S", 0x18, 1, b"HTTP/1.1 200 OK\r\n\r\n")]
    assert run("decode", stdin=write_capture(other)).code == 1
    done = run("decode", "--port", "11210", stdin=write_capture(other))
    assert "first byte of a frame is 0x47" in done.out


def test_lost_packet_is_reported_and_the_next_message_is_found(run):
    packets = make_packets()
    marker = next(n for n, each in enumerate(packets) if encode_message(CONVERSATION[4][1])[:24] in each)
    done = run("decode", stdin=write_capture(packets[:marker] + packets[marker + 1 :]))
    assert done.code == 1
    assert "<       64 byte 64: 40 bytes are missing from 64 on" in done.out
    assert "DCP_MUTATION" in done.lines[-1]


def test_unknown_link_type_is_refused(run):
    done = run("decode", stdin=write_capture(make_packets(), linktype=105))
    assert done.code == 2
    assert "link type 105, expected Ethernet" in done.err


@given(st.binary(max_size=300))
def test_no_packet_breaks_the_reader(data):
    for writer in (dpkt.pcap.Writer, dpkt.pcapng.Writer):
        list(read_packets(make_peekable(io.BytesIO(write_capture([data, data[20:]], writer))), "x"))
    for header in (write_capture([]), write_capture([], dpkt.pcapng.Writer)):
        with suppress(UsageError):
            list(read_packets(make_peekable(io.BytesIO(header + data)), "x"))


# Recorded conversations

MALFORMED = (
    *("crash_", "dcp_bad_", "tap_bad_", "dcpcons_marker_ext19", "dcpcons_mut_"),
    "dcpcons_streamreq_reply_success_badflog",
)
"""Prefixes of the names of captures that are malformed on purpose."""


@pytest.mark.parametrize("capture", CAPTURES, ids=[path.stem for path in CAPTURES])
def test_every_recorded_frame_is_decoded(run, capture):
    frames = json.loads(capture.read_text())["frames"]
    done = run("decode", capture, "--json")
    assert len(done.lines) == len(frames)
    errors = [row["error"] for row in done.json_lines if "error" in row]
    assert done.code == bool(errors)
    assert not errors or capture.stem.startswith(MALFORMED), errors
