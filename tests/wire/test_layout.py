"""Every declared form: its messages round-trip, and frames that contradict it are refused."""

from collections.abc import Iterable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame, cut_frame, join_frame, read_frame_length
from penstock.wire.codec.layout import LAYOUTS, Code, Layout, Message, Part, Response, decode_frame, find_layout
from penstock.wire.codec.opcodes import DraftCode, Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.frame_offsets import find_offsets
from penstock.wire.messages import dcp, kv
from tests.golden import GOLDEN_OF, frame_of
from tests.strategies import FORMS, frames, messages, pieces, plain_frame

ROWS = [(dialect, message, hexadecimal) for dialect, rows in GOLDEN_OF.items() for _, message, hexadecimal in rows]
ROW_IDS = [f"{dialect}-{case}" for dialect, rows in GOLDEN_OF.items() for case, _, _ in rows]
FORM_IDS = [f"{layout.cls.__name__}-{code.name}-{layout.extras.size}" for _, code, layout in FORMS]


def frame(hexadecimal: str) -> Frame:
    return cut_frame(memoryview(frame_of(hexadecimal)), 0)


def code_of(message: Message, frame: Frame) -> Code:
    """Return the code that a message's frame is under; several may share a layout."""
    kind = type(message.opcode)
    return kind(frame.opcode << 8 | frame.datatype if kind is DraftCode else frame.opcode)


def test_golden_frames_round_trip() -> None:
    for (dialect, message, hexadecimal), label in zip(ROWS, ROW_IDS, strict=True):
        assert message.encode(code_of(message, frame(hexadecimal))) == frame_of(hexadecimal), label
        assert decode_frame(frame(hexadecimal), dialect) == message, label


Shown = tuple[type[Message], Code | None, int, int]
"""A form: its class, its code, how long its extras are, and its value where that is made of fields.

A reply is the same under each of its opcodes, so it need not be shown under all of them.
"""


def declared_forms(code: Code, layout: Layout) -> set[Shown]:
    shown_under = None if issubclass(layout.cls, Response) else code
    return {(layout.cls, shown_under, layout.extras.size, tail) for tail in layout.tails or (0,)}


def test_golden_has_every_form_under_every_opcode() -> None:
    shown = set()
    for dialect, message, hexadecimal in ROWS:
        row = frame(hexadecimal)
        layout = find_layout(row, dialect)
        shown |= {
            form
            for form in declared_forms(code_of(message, row), layout)
            if not layout.tails or form[-1] == len(row.value)
        }
    declared: set[Shown] = set().union(*(declared_forms(code, layout) for _, code, layout in FORMS))
    assert declared - shown == set()


@given(messages())
def test_round_trip(drawn: tuple[Dialect, Code, Message]) -> None:
    dialect, code, message = drawn
    assert decode_frame(cut_frame(memoryview(message.encode(code)), 0), dialect) == message


@given(frames(), st.sampled_from(Dialect))
def test_any_frame_is_a_message_or_a_remote_error(anything: Frame, dialect: Dialect) -> None:
    refused: RemoteProtocolError | None = None
    try:
        message = decode_frame(anything, dialect)
    except RemoteProtocolError as error:
        refused = error
    if refused is not None:
        assert not refused.fatal
        assert refused.status in (Status.EINVAL, Status.UNKNOWN_COMMAND)
        return
    again = message.encode(code_of(message, anything))
    assert decode_frame(cut_frame(memoryview(again), 0), dialect) == message
    if anything.magic in (Magic.REQUEST, Magic.RESPONSE):
        assert again == join_frame(anything)


def messages_in(pieces: Iterable[bytes], dialect: Dialect) -> list[Message | str]:
    """Return the messages that bytes are, errors as text. The list ends with one that leaves no next frame."""
    kept, found = b"", list[Message | str]()
    for piece in pieces:
        kept += piece
        offsets, position = find_offsets(kept, 0, len(kept))
        for offset in offsets:
            try:
                read_frame_length(kept, offset)
                found.append(decode_frame(cut_frame(memoryview(kept), offset), dialect))
            except RemoteProtocolError as error:
                found.append(str(error))
                if error.fatal:
                    return found
        kept = kept[position:]
    return found


@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
def test_any_bytes_in_any_pieces(dialect: Dialect, data: st.DataObject) -> None:
    """Messages of all dialects, some bytes of them changed, read as one dialect."""
    sent = bytearray()
    for _, code, message in data.draw(st.lists(messages(), max_size=4)):
        sent += message.encode(code)
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)):
        if at < len(sent):
            sent[at] = byte
    whole = bytes(sent) + data.draw(st.binary(max_size=50))
    assert messages_in(data.draw(pieces(whole)), dialect) == messages_in([whole], dialect)


def test_decoded_messages_are_frozen() -> None:
    for (dialect, code, layout), label in zip(FORMS, FORM_IDS, strict=True):
        found = decode_frame(plain_frame(code, layout), dialect)
        assert type(found) is layout.cls, label
        assert found == replace(found), label
        with pytest.raises(FrozenInstanceError):
            found.__setattr__("opaque", 1)
        with pytest.raises(FrozenInstanceError):
            del found.opaque


def refuse_frame(frame: Frame, dialect: Dialect, label: str) -> str:
    """Check that a frame is invalid, and that the connection stays open. Return the text of the error."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_frame(frame, dialect)
    assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, False), label
    return str(caught.value)


def test_wrong_lengths_of_extras_are_refused() -> None:
    for (dialect, code, layout), label in zip(FORMS, FORM_IDS, strict=True):
        good = plain_frame(code, layout)
        decode_frame(good, dialect)
        others = set(range(60)) - set(LAYOUTS[dialect][layout.cls.magic][code])
        for length in others - ({8} if good.opcode == Opcode.SET else set()):
            error = refuse_frame(good._replace(extras=bytes(length)), dialect, f"{label}, {length} bytes")
            assert error.startswith(f"{code.name}: extras of {length} bytes, exp"), label


WRONG = {Part.ABSENT: {"key": b"k", "value": b"v", "cas": 1}, Part.PRESENT: {"key": b"", "value": b"", "cas": 0}}


def test_undeclared_parts_are_refused() -> None:
    for (dialect, code, layout), label in zip(FORMS, FORM_IDS, strict=True):
        good = plain_frame(code, layout)
        for name, part in layout.parts:
            wrong: Any = WRONG.get(part, {}).get(name)
            if wrong is not None:
                error = refuse_frame(good._replace(**{name: wrong}), dialect, f"{label}, {name}")
                assert f"{code.name}: {name} must be {part.value}" in error, label


UNKNOWN = [Frame(0x80, 0xEE), Frame(0x81, 0xEE), Frame(0x80, 0x6F, key=b"k"), Frame(0x08, 0xEE)]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_undeclared_opcode_is_refused(unknown: Frame) -> None:
    with pytest.raises(RemoteProtocolError, match="is not served here") as caught:
        decode_frame(unknown)
    assert (caught.value.status, caught.value.fatal) == (Status.UNKNOWN_COMMAND, False)


def test_framing_extras_are_kept() -> None:
    mutation = dcp.Mutation(vbucket=7, key=b"k", by_seqno=1)
    plain = cut_frame(memoryview(mutation.encode()), 0)
    framed = plain._replace(magic=int(Magic.ALT_REQUEST), framing=b"\x22\x00\x01")
    message = decode_frame(cut_frame(memoryview(join_frame(framed)), 0))
    assert message == replace(mutation, framing=b"\x22\x00\x01")
    assert message.encode() == join_frame(framed)


OUT_OF_RANGE = [
    ("a u32 above its range", dcp.Open(key=b"n", flags=1 << 32)),
    ("a negative number", dcp.SnapshotMarker(start_seqno=-1, end_seqno=0)),
    ("an opaque above its range", kv.Noop(opaque=1 << 32)),
    ("a vbucket above its range", kv.Get(vbucket=1 << 16, key=b"k")),
    ("a key above its length field", kv.Get(key=bytes(1 << 16))),
    ("half of a mutation token", kv.StoreReply(vbuuid=1)),
    ("the other half", kv.StoreReply(seqno=1)),
    (
        "a field of the value behind one that is not there",
        dcp.SnapshotMarkerV2(start_seqno=1, end_seqno=2, version=2, high_prepared_seqno=1),
    ),
]


@pytest.mark.parametrize(("case", "message"), OUT_OF_RANGE)
def test_invalid_message_is_not_encoded(case: str, message: Message) -> None:
    with pytest.raises(LocalProtocolError, match=type(message).__name__):
        message.encode()


def test_heads_match_layouts() -> None:
    mutation = dcp.Mutation(
        vbucket=7, opaque=9, cas=3, key=b"k", value=b"v", by_seqno=1, rev_seqno=2, flags=4, expiry=5, nru=6
    )
    head = dcp.MUTATION_HEAD.pack(0x80, 0x57, 1, 31, 0, 7, 33, 9, 3, 1, 2, 4, 5, 0, 0, 6)
    assert mutation.encode() == head + b"kv"
    assert dcp.Deletion(vbucket=7, opaque=9, cas=3, key=b"k", by_seqno=1, rev_seqno=2).encode() == (
        dcp.DELETION_HEAD.pack(0x80, 0x58, 1, 18, 0, 7, 19, 9, 3, 1, 2, 0) + b"k"
    )


@given(st.integers(0, 2**64 - 1))
def test_rollback_seqno(seqno: int) -> None:
    assert dcp.unpack_rollback(dcp.pack_rollback(seqno)) == seqno


@pytest.mark.parametrize("value", [b"", bytes(7), bytes(9)])
def test_wrong_length_of_rollback_is_refused(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{len(value)} bytes, expected 8"):
        dcp.unpack_rollback(value)
