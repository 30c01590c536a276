"""Readable descriptions of frames, and the detection of dialects."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.codec.constants import Dialect, DurabilityLevel
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.frame import Frame, cut_frame
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import DraftCode, Opcode, UprOpcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.messages.cluster import ClustermapChanged, ServerReply
from penstock.wire.messages.dcp import (
    CacheTransfer,
    CloseStream,
    DcpGetFailoverLog,
    DcpReply,
    Mutation,
    Open,
    SnapshotMarker,
    StreamReq,
    SystemEvent,
)
from penstock.wire.messages.dcp_values import (
    CachedDocument,
    pack_cached_documents,
    pack_framing,
    pack_stream_id,
    pack_xattrs,
)
from penstock.wire.messages.describe import (
    CONTENT_READERS,
    describe_frame,
    find_code,
    find_enum,
    format_number,
    guess_dialect,
    list_wire_fields,
)
from penstock.wire.messages.frame_info import (
    Durability,
    RequestInfos,
    ResponseInfos,
    pack_duration,
    pack_request_infos,
    pack_response_infos,
)
from penstock.wire.messages.kv import (
    CountReply,
    Get,
    Hello,
    Observed,
    ObserveSeqno,
    Reply,
    Set,
    pack_failover_log,
    pack_key_list,
    pack_vb_seqnos,
)
from penstock.wire.messages.sasl import SaslAuth, SaslListMechs, SaslReply, SaslStep
from penstock.wire.messages.subdoc import (
    LookupReply,
    MultiLookup,
    MultiMutation,
    MutationReply,
    SubdocLookup,
    SubdocMutation,
    pack_lookup_results,
    pack_lookup_specs,
    pack_mutation_results,
    pack_mutation_specs,
)
from penstock.wire.messages.system_event import CreatedCollection, pack_system_event
from penstock.wire.messages.tap import (
    TapCheckpointStart,
    TapCommandReply,
    TapConnect,
    TapDelete,
    TapMutation,
    TapOpaqueMessage,
    TapOptions,
    TapVbucketSet,
)
from penstock.wire.messages.upr import UprFailoverLogReply, UprGetFailoverLog, UprMutation, UprStreamReply, UprStreamReq
from penstock.wire.messages.upr_draft import (
    DraftFailoverLog,
    DraftGetFailoverLog,
    DraftMutation,
    DraftNoRequest,
    DraftStreamReq,
)
from penstock.wire.protocol.dialect_detection import detect_dialect
from tests.strategies import FORMS, frames, messages

LOG = pack_failover_log([(7, 5), (9, 0)])
ENTRIES = {"failover_log": [{"vbuuid": 7, "seqno": 5}, {"vbuuid": 9, "seqno": 0}]}


def frame_of(message: Message, opcode: Opcode | None = None) -> Frame:
    return cut_frame(memoryview(message.encode(opcode)), 0)


FIRST = [
    (Open(key=b"n"), Dialect.DCP),
    (UprStreamReq(start_seqno=0, end_seqno=1), Dialect.UPR),
    (UprGetFailoverLog(), Dialect.UPR),
    (DraftStreamReq(start_seqno=0, end_seqno=1, key=b"group"), Dialect.UPR_DRAFT),
    (DraftStreamReq(start_seqno=0, end_seqno=1, reserved=0), Dialect.UPR_DRAFT),
    (DraftGetFailoverLog(vbucket=3), Dialect.UPR_DRAFT),
    (TapConnect(key=b"n"), Dialect.TAP),
    (TapConnect(flags=2), Dialect.TAP),
    (Set(key=b"k", value=b"{}", datatype=1), None),
    (Set(key=b"k", value=b"x", datatype=2), None),
    (Get(key=b"k"), None),
    (StreamReq(start_seqno=0, end_seqno=1), None),
    (DcpGetFailoverLog(), None),
    (DraftNoRequest(), None),
    (DcpReply(), None),
    (TapMutation(key=b"k"), None),
]


@pytest.mark.parametrize(("message", "dialect"), FIRST)
def test_first_request_decides_dialect(message, dialect):
    assert detect_dialect(frame_of(message)) == dialect


def test_set_without_extras_is_not_draft_request():
    assert detect_dialect(Frame(0x80, Opcode.SET, datatype=2, key=b"k")) is None


@given(frames())
def test_only_requests_decide_dialect(frame):
    if frame.magic != 0x80:
        assert detect_dialect(frame) is None


@pytest.mark.parametrize(
    ("message", "dialect"),
    [
        (Mutation(by_seqno=1, key=b"k"), Dialect.DCP),
        (UprMutation(by_seqno=1, key=b"k"), Dialect.UPR),
        (DraftMutation(by_seqno=1, key=b"k"), Dialect.UPR_DRAFT),
        (TapMutation(key=b"k"), Dialect.DCP),
        (Get(key=b"k"), Dialect.DCP),
    ],
)
def test_dialect_of_single_frame_is_guessed(message, dialect):
    assert guess_dialect(frame_of(message)) == dialect


OPTIONS = TapOptions(flags=0x1C5, backfill=9, vbuckets=(1, 2), checkpoints=((1, 44),), closed_only=True)

INSIDE = [
    (DcpReply(value=LOG), Opcode.DCP_STREAM_REQ, "DCP_STREAM_REQ", ENTRIES),
    (DcpReply(), Opcode.DCP_STREAM_REQ, "DCP_STREAM_REQ", {}),
    (
        DcpReply(status=Status.ROLLBACK, value=bytes(7) + b"\x05"),
        Opcode.DCP_STREAM_REQ,
        "DCP_STREAM_REQ",
        {"rollback_seqno": 5},
    ),
    (DcpReply(value=LOG), Opcode.DCP_GET_FAILOVER_LOG, "DCP_GET_FAILOVER_LOG", ENTRIES),
    (UprFailoverLogReply(value=LOG), None, "UPR_GET_FAILOVER_LOG", ENTRIES),
    (UprStreamReply(status=Status.ROLLBACK, rollback_seqno=5), None, "UPR_STREAM_REQ", {"rollback_seqno": 5}),
    (UprStreamReply(status=Status.ROLLBACK, value=bytes(8)), None, "UPR_STREAM_REQ", {"rollback_seqno": 0}),
    (DraftFailoverLog(value=LOG), None, "DRAFT_FAILOVER_LOG", ENTRIES),
    (DraftFailoverLog(), None, "DRAFT_NOT_MY_VBUCKET", {}),
    (
        Reply(value=pack_vb_seqnos([(0, 5), (3, 2**64 - 1)])),
        Opcode.GET_ALL_VB_SEQNOS,
        "GET_ALL_VB_SEQNOS",
        {"seqnos": [{"vbucket": 0, "seqno": 5}, {"vbucket": 3, "seqno": 2**64 - 1}]},
    ),
    (Hello(value=bytes.fromhex("00040999")), None, "HELLO", {"features": ["MUTATION_SEQNO", 0x999]}),
    (ObserveSeqno(value=bytes(7) + b"\x01"), None, "OBSERVE_SEQNO", {"vbuuid": 1}),
    (
        Reply(value=Observed(1, 2, 3, 4).pack()),
        Opcode.OBSERVE_SEQNO,
        "OBSERVE_SEQNO",
        Observed(1, 2, 3, 4)._asdict(),
    ),
    (CountReply(value=bytes(7) + b"\x0b"), Opcode.DECREMENTQ, "DECREMENTQ", {"number": 11}),
    (
        Reply(value=pack_key_list([b"a", b"bc"])),
        Opcode.GET_KEYS,
        "GET_KEYS",
        {"keys": [{"key": b"a"}, {"key": b"bc"}]},
    ),
    (SubdocLookup.for_path(b"a.b", key=b"k"), None, "SUBDOC_GET", {"path": b"a.b", "flags": (), "doc_flags": None}),
    (
        SubdocMutation.for_path(b"_a", b"1", key=b"k", flags=5, doc_flags=2),
        Opcode.SUBDOC_COUNTER,
        "SUBDOC_COUNTER",
        {"path": b"_a", "content": b"1", "flags": ("MKDIR_P", "XATTR"), "doc_flags": ("ADD",)},
    ),
    (
        MultiLookup(key=b"k", value=pack_lookup_specs([(0xC5, 4, b"_a"), (0, 0, b"")])),
        None,
        "SUBDOC_MULTI_LOOKUP",
        {
            "operations": [
                {"opcode": "SUBDOC_GET", "flags": ("XATTR",), "path": b"_a"},
                {"opcode": "GET", "flags": (), "path": b""},
            ]
        },
    ),
    (
        MultiMutation(key=b"k", value=pack_mutation_specs([(0xC8, 0, b"a", b"1")])),
        None,
        "SUBDOC_MULTI_MUTATION",
        {"operations": [{"opcode": "SUBDOC_DICT_UPSERT", "flags": (), "path": b"a", "value": b"1"}]},
    ),
    (
        LookupReply(status=0xCC, value=pack_lookup_results([(0, b"1"), (0xC0, b"")])),
        Opcode.SUBDOC_MULTI_LOOKUP,
        "SUBDOC_MULTI_LOOKUP",
        {"results": [{"status": "SUCCESS", "value": b"1"}, {"status": "SUBDOC_PATH_ENOENT", "value": b""}]},
    ),
    (
        MutationReply(status=0xCC, value=pack_mutation_results([(1, 0xC0, b"")])),
        Opcode.SUBDOC_MULTI_MUTATION,
        "SUBDOC_MULTI_MUTATION",
        {"results": [{"operation": 1, "status": "SUBDOC_PATH_ENOENT", "value": b""}]},
    ),
    (TapCommandReply(value=bytes(7) + b"\x09"), None, "LAST_CLOSED_CHECKPOINT", {"checkpoint_id": 9}),
    (
        TapConnect(flags=0x1C5, value=OPTIONS.pack()),
        None,
        "TAP_CONNECT",
        {
            "flags": ("BACKFILL", "LIST_VBUCKETS", "CHECKPOINT", "REGISTERED_CLIENT", "FIX_FLAG_BYTEORDER"),
            "backfill": 9,
            "vbuckets": (1, 2),
            "checkpoints": [{"vbucket": 1, "checkpoint_id": 44}],
            "closed_only": True,
        },
    ),
    (TapMutation(key=b"k", engine_private=bytes(7) + b"\x03\x02"), None, "TAP_MUTATION", {"rev_seqno": 3, "nru": 2}),
    (TapMutation(key=b"k", engine_private=bytes(7) + b"\x03"), None, "TAP_MUTATION", {"rev_seqno": 3}),
    (TapDelete(key=b"k", engine_private=bytes(7) + b"\x03"), None, "TAP_DELETE", {"rev_seqno": 3}),
    (TapOpaqueMessage(engine_private=bytes(3) + b"\x08"), None, "TAP_OPAQUE", {"command": "CLOSE_BACKFILL"}),
    (TapOpaqueMessage(engine_private=bytes(3) + b"\x63"), None, "TAP_OPAQUE", {"command": 99}),
    (TapVbucketSet(engine_private=bytes(3) + b"\x03"), None, "TAP_VBUCKET_SET", {"state": "PENDING"}),
    (
        TapCheckpointStart(engine_private=bytes(8), value=bytes(7) + b"\x05"),
        None,
        "TAP_CHECKPOINT_START",
        {"max_deleted_rev_seqno": 0, "checkpoint_id": 5},
    ),
]


@pytest.mark.parametrize(("message", "opcode", "name", "expected"), INSIDE)
def test_values_and_private_data_are_described(message, opcode, name, expected):
    frame = frame_of(message, opcode)
    found = describe_frame(frame, guess_dialect(frame) if name.startswith("DCP") else dialect_of(message))
    assert (found.name, found.fault) == (name, None)
    assert expected.items() <= found.fields.items()
    assert "value" not in found.parts
    assert "engine_private" not in found.parts


def dialect_of(message: Message) -> Dialect:
    kinds = {UprOpcode: Dialect.UPR, DraftCode: Dialect.UPR_DRAFT}
    return kinds.get(type(message.opcode), Dialect.DCP)


def test_request_has_vbucket_and_reply_has_status():
    asked = describe_frame(frame_of(Mutation(vbucket=7, by_seqno=1, key=b"k", value=b"v", datatype=3)), Dialect.DCP)
    assert (asked.vbucket, asked.status, asked.reply) == (7, None, False)
    assert asked.datatype == ("JSON", "SNAPPY")
    assert asked.parts == {"key": b"k", "value": b"v"}
    found = describe_frame(frame_of(DcpReply(status=0x99)), Dialect.DCP)
    assert (found.vbucket, found.status, found.reply) == (None, "status 0x99", True)


def test_draft_reply_has_vbucket():
    found = describe_frame(frame_of(DraftMutation(vbucket=12, by_seqno=1, key=b"k")), Dialect.UPR_DRAFT)
    assert (found.vbucket, found.status, found.reply, found.datatype) == (12, None, True, ())


def test_malformed_frame_has_fault_and_parts():
    found = describe_frame(Frame(0x80, Opcode.DCP_OPEN, extras=b"abcd", key=b"n"), Dialect.DCP)
    assert found.fault == "DCP_OPEN: extras of 4 bytes, expected 8"
    assert found.parts == {"extras": b"abcd", "key": b"n"}
    assert not found.fields
    cut = describe_frame(frame_of(DcpReply(value=LOG[:-1]), Opcode.DCP_STREAM_REQ), Dialect.DCP)
    assert cut.fault == "failover log of 31 bytes, expected a multiple of 16"
    assert cut.parts == {"value": LOG[:-1]}


def test_undeclared_command_is_unknown():
    found = describe_frame(Frame(0x80, 0xEE, 4, extras=b"\0\0\0\1"), Dialect.DCP)
    assert (found.name, found.unknown, found.fault, found.vbucket) == ("opcode 0xee", True, None, 4)
    asked = describe_frame(Frame(0x82, Opcode.GET_FAILOVER_LOG), Dialect.DCP)
    assert (asked.name, asked.unknown, asked.fault) == ("server opcode 0x96", True, None)


@given(frames(), st.sampled_from(Dialect))
def test_any_frame_can_be_described(frame, dialect):
    found = describe_frame(frame, dialect)
    assert found.name
    assert (found.status is None) == (found.vbucket is not None)
    guess_dialect(frame)


@given(messages())
def test_every_message_has_its_own_name_and_fields(drawn):
    dialect, code, message = drawn
    frame = cut_frame(memoryview(message.encode(code)), 0)
    found = describe_frame(frame, dialect)
    assert find_code(frame, dialect) == code
    assert not found.unknown
    if found.fault is None:
        assert {field.name for field in list_wire_fields(type(message))} <= found.fields.keys()


def test_attributes_of_uncompressed_values_are_described():
    value = pack_xattrs({"_sync": b"{}"}, b"body")
    plain = describe_frame(frame_of(Mutation(by_seqno=1, key=b"k", value=value, datatype=4)), Dialect.DCP)
    assert plain.fields["xattrs"] == {"_sync": b"{}"}
    assert plain.parts == {"key": b"k", "value": b"body"}
    for datatype in (0, 6):
        other = describe_frame(frame_of(Mutation(by_seqno=1, key=b"k", value=value, datatype=datatype)), Dialect.DCP)
        assert other.parts["value"] == value
    broken = describe_frame(frame_of(Mutation(by_seqno=1, key=b"k", value=value[:5], datatype=4)), Dialect.DCP)
    assert broken.fault is not None


def test_the_stream_id_of_framing_extras():
    found = describe_frame(frame_of(CloseStream(framing=pack_stream_id(9))), Dialect.DCP)
    assert (found.fields["stream_id"], found.parts) == (9, {})
    other = pack_framing([(2, b"\0\1"), (9, b"x")])
    assert describe_frame(frame_of(CloseStream(framing=other)), Dialect.DCP).parts == {"framing": other}


def test_refused_operations_have_no_results():
    refused = LookupReply(status=Status.KEY_ENOENT, value=b"{}")
    found = describe_frame(frame_of(refused, Opcode.SUBDOC_MULTI_LOOKUP), Dialect.DCP)
    assert (found.fault, found.parts) == (None, {"value": b"{}"})


def test_request_framing_extras_are_described():
    infos = RequestInfos(Durability(DurabilityLevel.MAJORITY, 9000), preserve_ttl=True, impersonate="joe")
    found = describe_frame(frame_of(Set(key=b"k", framing=pack_request_infos(infos))), Dialect.DCP)
    assert found.fields == {
        "flags": 0,
        "expiry": 0,
        "durability": {"level": "MAJORITY", "timeout_ms": 9000},
        "preserve_ttl": True,
        "impersonate": "joe",
    }
    assert found.parts == {"key": b"k"}
    wrong = describe_frame(frame_of(Set(key=b"k", framing=b"\x11\x07")), Dialect.DCP)
    assert wrong.fault == "framing extras: durability level 7, expected 1 to 3"


def test_reply_framing_extras_are_described():
    found = describe_frame(frame_of(CountReply(status=1, framing=pack_duration(100))), Dialect.DCP)
    assert (found.fields["server_us"], found.parts) == (99.9, {})
    units = pack_response_infos(ResponseInfos(read_units=1, throttle_us=0.5))
    found = describe_frame(frame_of(CountReply(status=1, framing=units)), Dialect.DCP)
    assert (found.fields["read_units"], found.fields["throttle_us"]) == (1, 0.5)
    unknown = pack_framing([(0, b"\0\1"), (9, b"x")])
    assert describe_frame(frame_of(CountReply(status=1, framing=unknown)), Dialect.DCP).parts == {"framing": unknown}


SECRET = b"\0user\0pencil"
LOGINS = [
    frame_of(SaslAuth(key=b"PLAIN", value=SECRET)),
    frame_of(SaslStep(key=b"PLAIN", value=SECRET)),
    frame_of(SaslReply(value=SECRET), Opcode.SASL_AUTH),
    frame_of(SaslReply(value=SECRET, status=Status.AUTH_CONTINUE), Opcode.SASL_STEP),
    Frame(0x80, Opcode.SASL_AUTH, extras=b"PLAIN", value=SECRET),
    Frame(0x80, Opcode.SASL_STEP, key=b"PLAIN" + SECRET, cas=1),
    Frame(0x80, Opcode.SASL_AUTH, extras=SECRET),
    Frame(0x08, Opcode.SASL_AUTH, framing=SECRET, key=b"PLAIN"),
]


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("frame", LOGINS)
def test_secrets_are_not_shown(frame, dialect):
    found = describe_frame(frame, dialect)
    assert "pencil" not in str(found)
    assert any(name.endswith("_bytes") for name in found.fields)
    if found.fault is None:
        assert found.fields == {"value_bytes": len(SECRET)}
        assert found.parts.keys() <= {"key"}


def test_mechanisms_are_shown():
    assert describe_frame(frame_of(SaslReply(value=b"PLAIN")), Dialect.DCP).parts == {"value": b"PLAIN"}
    assert describe_frame(frame_of(SaslListMechs()), Dialect.DCP).fields == {}


def test_server_requests_and_their_answers_are_described():
    asked = describe_frame(frame_of(ClustermapChanged(epoch=1, revision=2, key=b"beer")), Dialect.DCP)
    assert (asked.name, asked.reply, asked.unknown) == ("CLUSTERMAP_CHANGE_NOTIFICATION", False, False)
    assert (asked.fields, asked.parts) == ({"epoch": 1, "revision": 2}, {"key": b"beer"})
    events = describe_frame(frame_of(ServerReply(status=4)), Dialect.UPR_DRAFT)
    assert (events.name, events.reply, events.status) == ("CLUSTERMAP_CHANGE_NOTIFICATION", True, "EINVAL")


def test_system_events_and_cached_documents():
    packed = pack_system_event(0, CreatedCollection(2, 0, 8, "ales"), as_table=True)
    event = SystemEvent(by_seqno=1, event=0, version=packed.version, key=packed.key, value=packed.value)
    found = describe_frame(frame_of(event), Dialect.DCP)
    assert (found.fields["event"], found.fields["collection_id"], found.parts) == (
        "COLLECTION_BEGIN",
        8,
        {"key": b"ales"},
    )
    document = CachedDocument(b"\0k", b"v", by_seqno=3)
    cached = describe_frame(frame_of(CacheTransfer(value=pack_cached_documents([document]))), Dialect.DCP)
    assert cached.fields == {"documents": [document._asdict()]}


def test_flags_and_enums_have_names():
    assert format_number(SnapshotFlag, 0x45) == ("MEMORY", "CHECKPOINT", "0x40")
    assert format_number(SnapshotFlag, 0) == ()
    assert format_number(StreamEndReason, 2) == "STATE_CHANGED"
    assert format_number(StreamEndReason, 77) == 77


def test_field_docs_name_enums():
    assert find_enum("a SnapshotFlag; and more") is SnapshotFlag
    assert find_enum("how many times the document changed") is None
    marker = next(field for field in list_wire_fields(SnapshotMarker) if field.name == "flags")
    assert find_enum(marker.metadata["doc"]) is SnapshotFlag


def test_enums_in_field_docs_exist():
    for _, _, layout in FORMS:
        for field in list_wire_fields(layout.cls):
            named_so = re.match(r"an? ([A-Z][a-z]+(?:[A-Z][a-z]+)+)", field.metadata["doc"])
            assert named_so is None or find_enum(field.metadata["doc"]) is not None, field


def test_every_reader_has_declared_message():
    declared = {(layout.cls.magic, code) for _, code, layout in FORMS}
    assert CONTENT_READERS.keys() <= declared
