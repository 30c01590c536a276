"""The dialect of a connection: detected from its first change-stream request, or set by its listener."""

from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.node import Node
from penstock.node.session.node_options import PINS
from penstock.wire.codec.constants import MAX_SEQNO, Dialect
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode, UprOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Mutation, Open, PrototypeMutation, SnapshotMarker, StreamReq
from penstock.wire.messages.kv import Noop, Set
from penstock.wire.messages.tap import TapConnect
from penstock.wire.messages.upr import UprGetFailoverLog, UprStreamReq, UprStreamStart
from penstock.wire.messages.upr_draft import DraftGetFailoverLog, DraftMalformed, DraftOk, DraftStreamReq
from penstock.wire.protocol.dialect_detection import detect_dialect
from tests.node.wire_client import as_bytes, connected

S = Status
ASK: dict[str, Any] = {"start_seqno": 0, "end_seqno": MAX_SEQNO}

FIRST: dict[Dialect, list[Message]] = {
    Dialect.TAP: [TapConnect(), TapConnect(flags=0)],
    Dialect.UPR_DRAFT: [DraftStreamReq(**ASK), DraftStreamReq(**ASK, reserved=0, key=b"g"), DraftGetFailoverLog()],
    Dialect.UPR: [UprStreamReq(**ASK), UprStreamReq(**ASK, key=b"g"), UprGetFailoverLog()],
    Dialect.DCP: [Open(key=b"name", flags=OpenFlag.PRODUCER), Open(key=b"name")],
}
ROWS = [(dialect, message) for dialect, messages in FIRST.items() for message in messages]


def list_dialects(node) -> list[Dialect]:
    dialects = node.call(lambda: [connection.session.dialect for connection in node.connections.open_connections])
    return [dialect for dialect in dialects if dialect is not None]


@pytest.mark.parametrize(("dialect", "message"), ROWS)
def test_first_request_decides_the_dialect(node, client, dialect, message):
    client.send(message, Noop())
    client.skip_to(opcode=Opcode.NOOP)
    assert list_dialects(node) == [dialect]
    assert client.set(b"k", b"v").specific == S.SUCCESS
    assert client.get(b"k").value == b"v"


@pytest.mark.parametrize(("dialect", "message"), ROWS)
def test_detect_dialect_agrees_with_the_node(dialect, message):
    frame = message._frame(message.opcode)
    assert detect_dialect(frame) == dialect


UNDECIDED = [
    ("a short OPEN", Frame(Magic.REQUEST, 0x50, key=b"k", extras=bytes(4)), S.EINVAL),
    ("an OPEN without a name", Frame(Magic.REQUEST, 0x50, extras=bytes(8)), S.EINVAL),
    ("UPR's stream request with a value", Frame(Magic.REQUEST, 0x50, extras=bytes(40), value=b"v"), S.EINVAL),
    ("ADD_STREAM", Frame(Magic.REQUEST, 0x51, extras=bytes(4)), S.EINVAL),
    ("DCP's stream request", Frame(Magic.REQUEST, 0x53, extras=bytes(48)), S.EINVAL),
    ("a SET without extras", Frame(Magic.REQUEST, 0x01, key=b"k"), S.EINVAL),
    ("a SET of JSON without a key", Frame(Magic.REQUEST, 0x01, datatype=1, extras=bytes(8)), S.EINVAL),
    ("a SET of JSON", Set(key=b"k", value=b"{}", datatype=1), S.EINVAL),  # JSON was not agreed on
    ("a draft request without a kind", Frame(Magic.REQUEST, 0x01), S.EINVAL),
]


@pytest.mark.parametrize(("case", "message", "status"), UNDECIDED, ids=[row[0] for row in UNDECIDED])
def test_other_requests_decide_no_dialect(node, client, case, message, status):
    assert client.status(message) == status
    assert list_dialects(node) == []
    assert client.status(UprGetFailoverLog()) == S.SUCCESS


DRAFTLIKE = [
    Frame(Magic.REQUEST, 0x01, datatype=3),
    Frame(Magic.REQUEST, 0x01, datatype=1, extras=bytes(31)),
    Frame(Magic.REQUEST, 0x01, datatype=2, key=b"k"),
    Frame(Magic.REQUEST, 0x01, datatype=0xFF, extras=bytes(40), key=b"k", value=b"v"),
]


@pytest.mark.parametrize("frame", DRAFTLIKE)
def test_draft_request_is_answered_in_the_draft_form(client, frame):
    client.send(frame)
    assert decode_frame(client.receive(), Dialect.UPR_DRAFT) == DraftMalformed()
    assert client.status(Noop()) == S.SUCCESS


OTHERS = [(mine, message) for mine in (Dialect.UPR, Dialect.DCP) for other, message in ROWS if other is not mine]


@pytest.mark.parametrize(("mine", "message"), OTHERS)
def test_request_of_another_dialect_is_refused(client, mine, message):
    assert client.status(FIRST[mine][0]) == S.SUCCESS
    client.send(message._replace(opaque=77) if isinstance(message, Frame) else as_bytes(message)[:12] + b"\0\0\0\x4d")
    client.send(as_bytes(message)[16:])
    frame = client.skip_to(opaque=77)
    assert (frame.magic, frame.specific) == (Magic.RESPONSE, S.EINVAL)
    assert client.status(Noop()) == S.SUCCESS


def test_json_documents_are_stored_beside_every_dialect(client):
    client.open()
    stored = client.set(b"k", b"{}", datatype=1)
    assert (stored.specific, client.get(b"k").value) == (S.SUCCESS, b"{}")


@pytest.mark.parametrize("pin", [None, *PINS])
def test_listener_can_be_pinned(pin):
    dialect = PINS[pin][0] if pin else None
    with Node.running(vbuckets=4, pin=pin) as node:
        for other, message in ROWS:
            with connected(node) as client:
                assert client.set(b"k", b"v").specific == S.SUCCESS
                client.send(message)
                if dialect is Dialect.TAP and other in {Dialect.UPR, Dialect.DCP}:
                    assert client.ended()
                    continue
                client.send(Noop())
                client.skip_to(opcode=Opcode.NOOP)
                assert (dialect or other) in list_dialects(node)
                producers = node.call(lambda: {key for key, _ in node.buckets["default"].endpoints})
                assert producers <= ({other} if dialect in {None, other} else set())


def test_draft_listener_answers_an_unknown_kind_with_malformed():
    with Node.running(vbuckets=4, pin="upr-draft") as node, connected(node) as client:
        client.send(Frame(Magic.REQUEST, 0x01, opaque=0x0A))
        assert decode_frame(client.receive(), Dialect.UPR_DRAFT) == DraftMalformed(opaque=0x0A)
        client.send(DraftStreamReq(**ASK, opaque=1))
        assert decode_frame(client.receive(), Dialect.UPR_DRAFT) == DraftOk(opaque=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pin": "udp"}, r"pin 'udp': expected tap, .*, dcp-prototype"),
        ({"protocol": "tap"}, "protocol 'tap' without a bucket to follow; to serve only one dialect, use pin"),
    ],
)
def test_unknown_pin_and_protocol_without_follow_are_refused(options, message):
    with pytest.raises(UsageError, match=message), Node.running(**options):
        pytest.fail("the node started")


def test_prototype_listener_sends_prototype_mutations():
    with Node.running(vbuckets=4, pin="dcp-prototype") as node, connected(node) as client:
        for number in range(100):
            client.set(b"%d" % number, b"value")
        client.delete(b"0")
        client.open().control("connection_buffer_size", "200")
        client.stream(end=101)
        marker = client.message()
        assert isinstance(marker, SnapshotMarker)
        changes: list[Message] = []
        while len(changes) < 100:
            changes.append(client.message())
            client.acknowledge(1000)
        first = changes[0]
        assert first == PrototypeMutation(
            opaque=first.opaque, cas=first.cas, key=b"1", value=b"value", by_seqno=2, rev_seqno=1
        )
        assert [type(change) for change in changes[:99]] == [PrototypeMutation] * 99
        assert not isinstance(changes[99], Mutation)


def test_two_dialects_stream_at_once(node, client):
    with connected(node) as dcp, connected(node) as upr:
        dcp.open().stream()
        assert upr.status(UprStreamReq(**ASK)) == S.SUCCESS
        assert decode_frame(upr.receive(), Dialect.UPR) == UprStreamStart()
        client.set(b"k", b"v")
        assert (dcp.message().end_seqno, dcp.message().key) == (1, b"k")
        assert [upr.receive().opcode for _ in range(3)] == [
            UprOpcode.UPR_SNAPSHOT_START,
            UprOpcode.UPR_MUTATION,
            UprOpcode.UPR_SNAPSHOT_END,
        ]


def test_dcp_stream_request_needs_open_on_a_pinned_listener():
    with Node.running(vbuckets=4, pin="dcp") as node, connected(node) as client:
        assert client.status(StreamReq(**ASK)) == S.EINVAL
        assert client.status(UprGetFailoverLog()) == S.EINVAL
        client.open().stream()
