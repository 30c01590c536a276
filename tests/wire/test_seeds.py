"""The frames drawn in the specifications, and one test for each erratum about bytes.

Tests of errata begin with the erratum's number; its letter is that of seed_frames.py. The tests' names describe the
errata. NOT_HERE has the errata without a test, with the reasons.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.store.history.failover_log import sanitise_log
from penstock.wire.codec.constants import MAX_SEQNO, Dialect, VbucketState
from penstock.wire.codec.flags import SnapshotFlag, TapConnectFlag, TapFlag
from penstock.wire.codec.frame import HEADER_BYTES, Frame, cut_frame, join_frame
from penstock.wire.codec.layout import Code, Message, decode_frame, find_forms
from penstock.wire.codec.opcodes import DraftCode, Magic, Opcode, UprOpcode
from penstock.wire.codec.statuses import Status, StreamEndReason, UprEndReason
from penstock.wire.messages import dcp, dcp_values, kv, tap, upr, upr_draft
from penstock.wire.values.collection_key import pack_collection_id, split_collection_key
from tests.strategies import messages
from tests.wire.datagram import Datagram, cut_datagram
from tests.wire.seed_frames import SEEDS, Seed

SEED = {seed.id: seed for seed in SEEDS}
SHARED = Path(__file__).parents[3] / "shared" / "golden" / "seed-frames.json"


def cut(data: bytes) -> Frame:
    return cut_frame(memoryview(data), 0)


def refused(frame: Frame, dialect: Dialect = Dialect.DCP) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_frame(frame, dialect)
    assert not caught.value.fatal
    return str(caught.value)


@pytest.mark.parametrize("seed", SEEDS, ids=list(SEED))
def test_corrected_frames_round_trip(seed: Seed) -> None:
    data = bytes.fromhex(seed.corrected)
    assert decode_frame(cut(data), seed.dialect) == seed.message
    assert seed.message.encode() == data
    assert cut_datagram(data, seed.dialect) == Datagram(cut(data), len(data) - HEADER_BYTES, len(data) - HEADER_BYTES)


DRAWN = [seed for seed in SEEDS if seed.drawn is not None]


@pytest.mark.parametrize("seed", DRAWN, ids=[seed.id for seed in DRAWN])
def test_drawn_frames_are_accepted_or_refused(seed: Seed) -> None:
    data = bytes.fromhex(seed.drawn or "")
    assert len(data) == len(bytes.fromhex(seed.corrected))
    assert seed.why
    if seed.refused:
        with pytest.raises(RemoteProtocolError, match=seed.refused) as caught:
            decode_frame(cut_datagram(data, seed.dialect).frame, seed.dialect)
        assert not caught.value.fatal
        return
    datagram = cut_datagram(data, seed.dialect)
    assert datagram.declared == int.from_bytes(data[8:12], "big") != datagram.actual == len(data) - HEADER_BYTES
    assert decode_frame(datagram.frame, seed.dialect) == seed.message
    assert join_frame(datagram.frame) == bytes.fromhex(seed.corrected)


def test_ten_frames_are_drawn_wrong() -> None:
    assert len(SEEDS) == len(SEED) == 47
    wrong = ["000-11", "001-02", "001-05", "001-07", "001-11", "001-12", "001-13", "002-01", "002-02", "003-01"]
    assert [seed.id for seed in DRAWN] == wrong
    assert [seed.id for seed in DRAWN if seed.refused] == ["002-02", "003-01"]


EXTRAS_DRAWN = [
    ("000-L1", upr.UprStreamReq, "flags 4, reserved 4, start_seqno 8, end_seqno 8, vbuuid 8, high_seqno 8"),
    ("000-L2", upr.UprMutation, "by_seqno 8, rev_seqno 8, flags 4, expiry 4, lock_time 4"),
    ("000-L3", upr.UprDeletion, "by_seqno 8, rev_seqno 8"),
    ("000-L4", upr.UprExpiration, "by_seqno 8, rev_seqno 8"),
    ("000-L5", upr.UprSetVbucketState, "state 1"),
    (
        "002-L1",
        dcp.SnapshotMarkerV2,
        "version 1, start_seqno 8, end_seqno 8, flags 4, max_visible_seqno 8, high_completed_seqno 8, purge_seqno 8",
    ),
    (
        "003-L1",
        dcp.PrototypeMutation,
        "by_seqno 8, rev_seqno 8, flags 4, expiry 4, lock_time 4, nmeta 2, nru 1, collection_length 1",
    ),
]
"""Fields drawn or listed without bytes: name and size, in order. Those of 002-L1 end too early, as C6
describes."""


def declared_fields(cls: type[Message]) -> str:
    layout = cls.layouts[max(cls.layouts)]
    sizes = {"B": 1, "H": 2, "I": 4, "Q": 8}
    fields = list(zip(layout.names, layout.extras.format[1:], strict=True))
    if layout.tails:
        tail, names = layout.tails[sorted(layout.tails)[-2]]
        fields += zip(names, tail.format[1:], strict=True)
    return ", ".join(f"{name} {sizes[code]}" for name, code in fields)


@pytest.mark.parametrize(("number", "cls", "drawn"), EXTRAS_DRAWN)
def test_declared_fields_match_drawings(number: str, cls: type[Message], drawn: str) -> None:
    assert declared_fields(cls) == drawn


def test_tables_match_specifications() -> None:
    if not SHARED.is_file():
        pytest.skip("the frames as read from the specifications are not here")
    read = json.loads(SHARED.read_text())
    assert [row["id"] for row in read["frames"]] == list(SEED)
    for row in read["frames"]:
        seed = SEED[row["id"]]
        assert (row["dialect"], " ".join(row["errata"])) == (seed.dialect, seed.errata)
        assert bytes.fromhex(row["corrected"]) == bytes.fromhex(seed.corrected), seed.id
        assert bytes.fromhex(row["drawn"]) == bytes.fromhex(seed.drawn or seed.corrected), seed.id
    for row, (number, _, drawn) in zip(read["layouts"], EXTRAS_DRAWN, strict=True):
        sizes = [int(size) for size in re.findall(r" (\d)", drawn)]
        assert (row["id"], [field["size"] for field in row["fields"]]) == (number, sizes)


# One frame that did not come over a stream


@given(messages())
def test_valid_datagram_is_its_frame(drawn: tuple[Dialect, Code, Message]) -> None:
    dialect, code, message = drawn
    data = message.encode(code)
    body = len(data) - HEADER_BYTES
    assert cut_datagram(data, dialect) == Datagram(cut(data), body, body)


@given(
    st.binary(max_size=80) | st.binary(max_size=80).map(lambda rest: b"\x80\x56\0\0" + rest), st.sampled_from(Dialect)
)
def test_any_datagram_is_a_frame_or_a_remote_error(data: bytes, dialect: Dialect) -> None:
    error: RemoteProtocolError | None = None
    try:
        datagram = cut_datagram(data, dialect)
    except RemoteProtocolError as raised:
        error = raised
    if error is not None:
        assert not error.fatal
        return
    assert datagram.actual == len(data) - HEADER_BYTES == len(join_frame(datagram.frame)) - HEADER_BYTES


MARKER = bytes.fromhex(SEED["002-01"].corrected)
BAD_DATAGRAMS = [
    ("less than a header", MARKER[:23], "23 bytes, shorter than a header"),
    ("nothing", b"", "0 bytes, shorter than a header"),
    ("no magic", b"\x00" + MARKER[1:], "0x00, not a known magic"),
    ("an opcode that nothing is known of", b"\x80\xee" + MARKER[2:], "opcode 0xee is not served here"),
    ("a body cut short", MARKER[:-1], "body of 19 bytes where 20 are declared.*0 of the forms"),
    ("a body too long", MARKER + b"\0", "body of 21 bytes where 20 are declared.*0 of the forms"),
    ("a key longer than what is there", MARKER[:2] + b"\xff\xff" + MARKER[4:], "in a body of 20"),
]


@pytest.mark.parametrize(("case", "data", "error"), BAD_DATAGRAMS)
def test_bad_datagrams(case: str, data: bytes, error: str) -> None:
    with pytest.raises(RemoteProtocolError, match=error) as caught:
        cut_datagram(data, Dialect.DCP)
    assert not caught.value.fatal


# A: the UPR transport specification


def test_a1_opcodes_mean_other_things_in_dcp() -> None:
    request = cut(bytes.fromhex(SEED["000-03"].corrected))
    assert type(decode_frame(request, Dialect.UPR)) is upr.UprStreamReq
    assert refused(request) == "DCP_OPEN: extras of 40 bytes, expected 8"
    log = cut(bytes.fromhex(SEED["000-01"].corrected))
    assert refused(log) == "DCP_ADD_STREAM: extras of 0 bytes, expected 4"


def test_a2_a_rollback_stands_in_extras_or_in_the_value() -> None:
    in_extras = upr.UprStreamReply(status=Status.ROLLBACK, rollback_seqno=0x45A8)
    in_value = upr.UprStreamReply(status=Status.ROLLBACK, value=dcp.pack_rollback(0x45A8))
    assert in_extras.encode()[4] == 8
    for reply in (in_extras, in_value):
        back = decode_frame(cut(reply.encode()), Dialect.UPR)
        assert back == reply
        assert isinstance(back, upr.UprStreamReply)
        assert back.rollback() == 0x45A8
    with pytest.raises(RemoteProtocolError, match="0 bytes, expected 8"):
        upr.UprStreamReply(status=Status.ROLLBACK).rollback()


def test_a3_a_stream_is_accepted_with_or_without_a_log() -> None:
    for reply in (upr.UprStreamReply(), upr.UprStreamReply(value=kv.pack_failover_log([(1, 0)]))):
        assert decode_frame(cut(reply.encode()), Dialect.UPR) == reply


def test_a4_an_unknown_branch_is_a_status_of_its_own() -> None:
    reply = upr.UprStreamReply(status=Status.KEY_ENOENT)
    assert decode_frame(cut(reply.encode()), Dialect.UPR) == reply


def test_a5_states_are_numbered_as_everywhere_else() -> None:
    assert [state.name for state in VbucketState] == ["ACTIVE", "REPLICA", "PENDING", "DEAD"]
    assert [state.value for state in VbucketState] == [1, 2, 3, 4]
    assert SEED["000-15"].message == upr.UprSetVbucketState(opaque=0xDEADBEEF, state=VbucketState.DEAD)


def test_a7_a_stream_end_has_4_bytes() -> None:
    assert upr.UprStreamEnd.layouts[1].extras.size == 4


def test_a8_each_dialect_has_its_own_end_codes() -> None:
    assert (UprEndReason.OK, UprEndReason.STATE_CHANGED) == (0, 1)
    assert (DraftCode.DRAFT_STREAM_END_OK & 0xFF, DraftCode.DRAFT_STREAM_END_STATE_CHANGED & 0xFF) == (1, 2)
    assert (StreamEndReason.OK, StreamEndReason.CLOSED, StreamEndReason.STATE_CHANGED) == (0, 1, 2)


def test_a9_a_log_out_of_order_is_put_right() -> None:
    reply = SEED["000-02"].message
    log = kv.unpack_failover_log(reply.value)
    assert [seqno for _, seqno in log] == [0x5432, 0x1343214, 4, 0x6524]
    assert sanitise_log(log) == ((0xFEEDDECA, 0x5432), (0xFEEDFACE, 4))
    assert sanitise_log([(0, 9), (1, 5), (0, 3), (2, 5)]) == ((1, 5), (2, 5))


def test_a10_starts_and_snapshot_ends_have_no_successors() -> None:
    for number, meaning in (("000-07", dcp.CloseStream), ("000-09", dcp.DcpGetFailoverLog)):
        assert type(decode_frame(cut(bytes.fromhex(SEED[number].corrected)))) is meaning
    assert "expected 4" in refused(cut(bytes.fromhex(SEED["000-10"].corrected)))


def test_a11_a_state_is_answered_in_dcp_and_not_in_upr() -> None:
    assert find_forms(Frame(Magic.RESPONSE, UprOpcode.UPR_SET_VBUCKET_STATE), Dialect.UPR) is None
    assert find_forms(Frame(Magic.RESPONSE, Opcode.DCP_SET_VBUCKET_STATE)) is not None


def test_a12_a_flush_is_read_in_each_dialect() -> None:
    for dialect, cls in (
        (Dialect.UPR, upr.UprFlush),
        (Dialect.DCP, dcp.DcpFlush),
        (Dialect.UPR_DRAFT, upr_draft.DraftFlush),
    ):
        assert type(decode_frame(cut(cls(vbucket=7).encode()), dialect)) is cls


def extras_lengths(code: Code, dialect: Dialect = Dialect.DCP) -> list[int]:
    draft = isinstance(code, DraftCode)
    frame = Frame(
        Magic.RESPONSE if draft else Magic.REQUEST, code >> 8 if draft else code, datatype=code & 0xFF if draft else 0
    )
    return sorted(find_forms(frame, dialect) or {})


def test_a13_sizes_of_the_extras() -> None:
    assert extras_lengths(UprOpcode.UPR_DELETION, Dialect.UPR) == [16]
    assert extras_lengths(UprOpcode.UPR_EXPIRATION, Dialect.UPR) == [16]
    assert extras_lengths(Opcode.DCP_DELETION) == [18, 21]
    assert extras_lengths(Opcode.DCP_EXPIRATION) == [18, 20]
    assert extras_lengths(UprOpcode.UPR_MUTATION, Dialect.UPR) == [28]
    assert extras_lengths(Opcode.DCP_MUTATION) == [31, 32]
    assert extras_lengths(UprOpcode.UPR_STREAM_REQ, Dialect.UPR) == [40]
    assert extras_lengths(Opcode.DCP_STREAM_REQ) == [48]
    for code in (DraftCode.DRAFT_MUTATION, DraftCode.DRAFT_DELETION, DraftCode.DRAFT_EXPIRATION):
        assert extras_lengths(code, Dialect.UPR_DRAFT) == [28]


def test_a14_seqno_0_is_read() -> None:
    for number in ("000-11", "000-12", "000-13"):
        message = SEED[number].message
        assert isinstance(message, upr.UprMutation | upr.UprDeletion)
        assert message.by_seqno == 0


@pytest.mark.parametrize("opcode", range(0x5B, 0x68))
def test_a15_upr_has_no_later_opcodes(opcode: int) -> None:
    assert find_forms(Frame(Magic.REQUEST, opcode), Dialect.DCP) is not None
    assert find_forms(Frame(Magic.REQUEST, opcode), Dialect.UPR) is None


def test_a16_a_stream_request_has_a_key_in_upr_only() -> None:
    assert SEED["000-03"].message.key == b"vbstream-0"
    request = dcp.StreamReq(start_seqno=0, end_seqno=1, key=b"group")
    assert "key must be absent" in refused(cut(request.encode()))


# B: the UPR draft


def test_b1_extras_distinguish_set_from_draft_request() -> None:
    json_set = kv.Set(key=b"k", value=b"1", datatype=1)
    assert decode_frame(cut(json_set.encode()), Dialect.UPR_DRAFT) == json_set
    request = upr_draft.DraftStreamReq(key=b"k", start_seqno=0, end_seqno=1)
    assert decode_frame(cut(request.encode()), Dialect.UPR_DRAFT) == request
    assert refused(cut(request.encode())) == "SET: extras of 32 bytes, expected 8"


def test_b2_byte_5_is_the_kind_and_bytes_6_and_7_are_the_vbucket() -> None:
    assert upr_draft.DraftRollback(vbucket=0x0102, rollback_seqno=0).encode()[5:8] == b"\x03\x01\x02"
    assert upr_draft.DraftMutation(vbucket=0x0102, key=b"k", by_seqno=1).encode()[5:8] == b"\x03\x01\x02"


@pytest.mark.parametrize("code", [code for code in DraftCode if code >> 8 in (3, 4, 5)])
def test_b3_stream_messages_have_the_magic_of_a_response(code: DraftCode) -> None:
    frame = Frame(Magic.RESPONSE, code >> 8, datatype=code & 0xFF)
    forms = find_forms(frame, Dialect.UPR_DRAFT)
    assert forms is not None
    assert all(layout.cls.opcode is code for layout in forms.values())
    assert find_forms(frame._replace(magic=Magic.REQUEST), Dialect.UPR_DRAFT) is not forms


def test_b4_extras_of_40_bytes_are_read_where_the_bytes_are_there() -> None:
    drawn = bytes.fromhex(SEED["001-02"].drawn or "")
    longer = drawn[:56] + bytes(8) + drawn[56:]
    assert int.from_bytes(longer[8:12], "big") == len(longer) - HEADER_BYTES
    message = decode_frame(cut(longer), Dialect.UPR_DRAFT)
    assert isinstance(message, upr_draft.DraftStreamReq)
    assert replace(message, reserved=None) == SEED["001-02"].message
    assert message.reserved == 0
    assert message.encode() == longer


def test_b5_the_highest_seqno() -> None:
    request = SEED["001-02"].message
    assert isinstance(request, upr_draft.DraftStreamReq)
    assert request.end_seqno == MAX_SEQNO == 2**64 - 1


def test_b8_an_empty_log_is_not_my_vbucket() -> None:
    assert not SEED["001-04"].message.value
    assert kv.unpack_failover_log(SEED["001-07"].message.value) == ((0xDF2, 0xF294), (0x7B43, 0x9321))
    with pytest.raises(RemoteProtocolError, match="failover log of 0 bytes"):
        kv.unpack_failover_log(b"")


def test_b13_the_end_code_is_byte_5() -> None:
    assert upr_draft.DraftStreamEnd().encode()[4:6] == b"\0\1"
    assert upr_draft.DraftStateChanged().encode()[4:6] == b"\0\2"


def test_b15_a_request_of_kind_0_is_read_to_be_answered() -> None:
    assert type(SEED["001-01"].message) is upr_draft.DraftNoRequest
    answer = upr_draft.DraftMalformed(opaque=10)
    assert decode_frame(cut(answer.encode()), Dialect.UPR_DRAFT) == answer


def test_b16_a_rollback_forward_is_read() -> None:
    rollback, request = SEED["001-05"].message, SEED["001-02"].message
    assert isinstance(rollback, upr_draft.DraftRollback)
    assert isinstance(request, upr_draft.DraftStreamReq)
    assert rollback.rollback_seqno == 17832 > request.high_seqno == 2680 > request.start_seqno


# C: the snapshot marker


def test_c2_the_lowest_flag_is_memory() -> None:
    assert (SnapshotFlag.MEMORY, SnapshotFlag.DISK) == (1, 2)


MARKER_2_2 = dcp.SnapshotMarkerV2(
    version=2, start_seqno=1, end_seqno=8, flags=2, max_visible_seqno=8, high_completed_seqno=7, purge_seqno=6
)


def test_c6_marker_2_2_is_read_with_44_and_52_bytes_of_value() -> None:
    short = cut(MARKER_2_2.encode())
    long = cut(replace(MARKER_2_2, high_prepared_seqno=5).encode())
    assert (len(short.value), len(long.value)) == (44, 52)
    assert decode_frame(short) == MARKER_2_2
    assert decode_frame(long) == replace(MARKER_2_2, high_prepared_seqno=5)
    for length in set(range(61)) - {36, 44, 52}:
        assert f"value of {length} bytes" in refused(long._replace(value=bytes(length))) or not length


def test_c7_the_version_is_the_extras() -> None:
    frame = cut(MARKER_2_2.encode())
    assert frame.extras == b"\2"
    assert frame.value[:8] == (1).to_bytes(8, "big")


@pytest.mark.parametrize(("version", "length"), [(0, 44), (0, 52), (1, 36), (1, 44), (2, 36), (3, 52)])
def test_c4_a_version_with_a_value_of_another(version: int, length: int) -> None:
    frame = Frame(Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER, extras=bytes([version]), value=bytes(length))
    assert f"version {version}, its value is of version" in refused(frame)


def test_c8_flags_for_snapshots_that_repeat_keys() -> None:
    assert (SnapshotFlag.HISTORY, SnapshotFlag.MAY_CONTAIN_DUPLICATES) == (0x10, 0x20)


@pytest.mark.parametrize("flags", [SnapshotFlag.MEMORY, SnapshotFlag.DISK])
def test_c10_without_disk_the_prepares_may_be_anything(flags: int) -> None:
    marker = replace(MARKER_2_2, flags=flags, high_completed_seqno=2**63, high_prepared_seqno=2**64 - 1)
    assert decode_frame(cut(marker.encode())) == marker


def test_c11_a_marker_may_be_answered() -> None:
    reply = dcp.DcpReply(opaque=3)
    data = reply.encode(Opcode.DCP_SNAPSHOT_MARKER)
    assert (data[1], decode_frame(cut(data))) == (0x56, reply)


# D: the mutation of the collections prototype


def test_d6_a_collection_is_the_beginning_of_the_key() -> None:
    key = pack_collection_id(0x555) + b"hello"
    mutation = dcp.Mutation(key=key, value=b"world", by_seqno=4)
    data = mutation.encode()
    assert data[4] == 31
    assert split_collection_key(decode_frame(cut(data)).key) == (0x555, b"hello")


def test_d6_the_prototype_is_known_by_its_32_bytes() -> None:
    assert type(SEED["003-01"].message) is dcp.PrototypeMutation
    wrong = replace(SEED["003-01"].message, key=b"cc:hello")
    assert "no b'::' behind the first 1 bytes" in refused(cut(wrong.encode()))


def test_d7_meta_data_behind_the_value_is_read() -> None:
    meta = dcp_values.pack_extended_meta(dcp_values.ExtendedMeta(adjusted_time=5, conflict_mode=1))
    mutation = dcp.Mutation(key=b"k", value=b"world" + meta, by_seqno=4, nmeta=len(meta))
    message = decode_frame(cut(mutation.encode()))
    assert isinstance(message, dcp.Mutation)
    assert dcp_values.split_extended_meta(message.value, message.nmeta) == (b"world", meta)


def test_d8_one_opcode_is_deletion_and_mutation() -> None:
    assert int(UprOpcode.UPR_DELETION) == int(Opcode.DCP_MUTATION)


# E: TAP


def test_e1_flags_have_4_bytes() -> None:
    assert extras_lengths(Opcode.TAP_CONNECT) == [0, 4]


def test_e2_a_state_is_4_bytes_of_engine_private_data() -> None:
    data = bytes.fromhex(SEED["004-13"].corrected)
    assert data[24:26] == b"\0\4"
    message = SEED["004-13"].message
    assert isinstance(message, tap.TapVbucketSet)
    assert message.engine_private == VbucketState.PENDING.to_bytes(4, "big")


def test_e5_engine_private_data_stands_between_extras_and_key() -> None:
    mutation = tap.TapMutation(engine_private=b"123456789", key=b"key", value=b"value")
    data = mutation.encode()
    assert (data[4], data[24:26], data[40:]) == (16, b"\0\x09", b"123456789keyvalue")
    assert decode_frame(cut(data)) == mutation


def test_e6_details_missing_in_specification() -> None:
    later = TapConnectFlag.CHECKPOINT | TapConnectFlag.REGISTERED_CLIENT | TapConnectFlag.FIX_FLAG_BYTEORDER
    assert later == 0x40 | 0x80 | 0x100
    assert [flag.value for flag in TapFlag] == [1, 2, 4]
    start = tap.TapCheckpointStart(
        engine_private=bytes(8), key=b"checkpoint_start", value=(5).to_bytes(8, "big"), flags=0, expiry=0
    )
    data = start.encode()
    assert (data[1], data[4], len(data)) == (0x46, 16, 24 + 16 + 8 + 16 + 8)
    short = tap.TapCheckpointEnd(engine_private=(5).to_bytes(8, "big"))
    assert (short.encode()[1], short.encode()[4], decode_frame(cut(short.encode()))) == (0x47, 8, short)


def test_e7_producer_messages_are_requests() -> None:
    tap_messages = (seed.message for seed in SEEDS if seed.dialect is Dialect.TAP)
    assert {message.magic for message in tap_messages} == {Magic.REQUEST}


def test_e8_without_backfill_everything_is_asked_for() -> None:
    for number in ("004-01", "004-04", "004-05", "004-06", "004-07"):
        message = SEED[number].message
        assert isinstance(message, tap.TapConnect)
        assert tap.unpack_tap_options(message.flags or 0, message.value).backfill is None
    with_date = SEED["004-02"].message
    assert tap.unpack_tap_options(1, with_date.value).backfill == MAX_SEQNO


NOT_HERE = {
    "A6": "test_drawn_frames_are_accepted_or_refused",
    "A17": "an example's numbers, nothing to hold anyone to",
    "B6": "test_drawn_frames_are_accepted_or_refused",
    "B7": "test_drawn_frames_are_accepted_or_refused",
    "B9": "test_drawn_frames_are_accepted_or_refused",
    "B10": "test_drawn_frames_are_accepted_or_refused",
    "B11": "names in the text",
    "B12": "names in the text",
    "B14": "questions that the draft leaves open",
    "B17": "the consumer's: it never reuses an id that is pending",
    "C1": "test_drawn_frames_are_accepted_or_refused",
    "C3": "test_drawn_frames_are_accepted_or_refused",
    "C5": "test_drawn_frames_are_accepted_or_refused",
    "C9": "the consumer's: a marker's start is never taken for what it has",
    "C12": "the producer's: where a first marker starts",
    "D1": "test_drawn_frames_are_accepted_or_refused",
    "D2": "test_drawn_frames_are_accepted_or_refused",
    "D3": "test_drawn_frames_are_accepted_or_refused",
    "D4": "test_drawn_frames_are_accepted_or_refused",
    "D5": "a formula in the text; test_drawn_frames_are_accepted_or_refused has the frame",
    "E3": "test_corrected_frames_round_trip",
    "E4": "names in the text",
    "E9": "test_corrected_frames_round_trip: all lengths are right",
}


def test_every_erratum_has_a_test() -> None:
    numbers = {
        f"{letter}{n}" for letter, last in zip("ABCDE", (17, 17, 12, 8, 9), strict=True) for n in range(1, last + 1)
    }
    tested = {found[1].upper() for name in globals() if (found := re.match(r"test_([a-e]\d+)_", name))}
    assert tested | NOT_HERE.keys() == numbers
    assert not tested & NOT_HERE.keys()
    assert {erratum for seed in SEEDS for erratum in seed.errata.split()} <= numbers
