"""`penstock decode`: every kind of input, every dialect, and malformed bytes."""

import io
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        (
            b"\xff\xfe8\x000\x00",
            "byte 1, 0xff, begins the byte order mark of UTF-16; expected frames, or text in UTF-8",
        ),
        (b"\x1f\x8b\x08", "standard input is compressed with gzip, expected frames; decompress it first"),
    ],
)
def test_input_of_another_kind_is_refused(run, begin, reason):
    done = run("decode", stdin=begin)
    assert done.code == 2
    assert reason in done.err


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
    with suppress(UsageError):
        shape = detect_format(source, "x")
        assert shape in ("hex", "json", "raw", "pcap")
        read = read_hex(read_lines(source), "x") if shape == "hex" else read_raw(source)
        assert all(isinstance(chunk, CapturedBytes) for chunk in read)


def test_very_long_line_is_read_in_pieces():
    pieces = list(read_hex(read_lines(io.BytesIO(b"80" * 3_000_000)), "x"))
    assert len(pieces) == 6
    assert sum(len(piece.data) for piece in pieces) == 3_000_000


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
