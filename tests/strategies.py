"""Random messages, runs and pieces, made from the layouts themselves."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import LAYOUTS, PRIVATE, Code, Layout, Message, Part
from penstock.wire.codec.opcodes import DraftCode, Opcode
from penstock.wire.columns.data_forms import SHAPES
from penstock.wire.messages.dcp import COLLECTION_SEPARATOR, Deletion, Mutation, PrototypeMutation, SnapshotMarkerV2
from penstock.wire.messages.subdoc import SubdocLookup, SubdocMutation
from tests.golden import GOLDEN_OF, frame_of

BYTES = {"B": 1, "H": 2, "I": 4, "Q": 8}

VBUCKETS = 64
"""Vbuckets of a random run."""


def unsigned(code: str) -> st.SearchStrategy[int]:
    """Return integers of a struct code, edges often."""
    highest = 2 ** (8 * BYTES[code]) - 1
    return st.one_of(st.integers(0, highest), st.sampled_from([0, 1, highest // 2, highest // 2 + 1, highest]))


def _part(part: Part, some: st.SearchStrategy, nothing: int | bytes) -> st.SearchStrategy:
    if part is Part.ABSENT:
        return st.just(nothing)
    return some.filter(bool) if part is Part.PRESENT else some


def of_layout(layout: Layout) -> st.SearchStrategy[Message]:
    """Return messages of one form, valid by the declared parts."""
    parts = dict(layout.parts)
    codes = layout.extras.format[1 + layout.private :]
    fields: dict[str, st.SearchStrategy] = {
        name: unsigned(code) for name, code in zip(layout.names, codes, strict=True)
    }
    if layout.private:
        fields[PRIVATE] = st.binary(max_size=20)
    if not layout.tails:
        fields["value"] = _part(parts["value"], st.binary(max_size=200), b"")
    return st.sampled_from([*layout.tails.values(), *([] if layout.tails else [None])]).flatmap(
        lambda tail: (
            st.builds(
                layout.cls,
                opaque=unsigned("I"),
                datatype=st.just(0) if isinstance(layout.cls.opcode, DraftCode) else unsigned("B"),
                cas=_part(parts["cas"], unsigned("Q"), 0),
                key=_part(parts["key"], st.binary(max_size=40), b""),
                **{layout.specific_name: unsigned("H")},
                **fields,
                **(
                    {name: unsigned(code) for name, code in zip(tail[1], tail[0].format[1:], strict=True)}
                    if tail
                    else {}
                ),
            )
            .map(_with_a_path)
            .filter(lambda message: message.fault() is None)
        )
    )


def _with_a_path(message: Message) -> Message:
    """Let a path be no longer than the value that it begins, and a lookup's as long."""
    match message:
        case SubdocLookup():
            return replace(message, path_length=len(message.value))
        case SubdocMutation():
            return replace(message, path_length=message.path_length % (len(message.value) + 1))
    return message


FORMS: list[tuple[Dialect, Code, Layout]] = [
    (dialect, layout.cls.opcode.__class__(code), layout)
    for dialect, directions in LAYOUTS.items()
    for table in directions.values()
    for code, forms in table.items()
    for layout in forms.values()
]
"""Every form of every message under every opcode that it has."""


def messages() -> st.SearchStrategy[tuple[Dialect, Code, Message]]:
    """Return messages of any declared form, with the dialect and the opcode they go under."""
    return st.sampled_from(FORMS).flatmap(
        lambda form: st.tuples(st.just(form[0]), st.just(form[1]), of_layout(form[2]))
    )


def plain_frame(code: Code, layout: Layout) -> Frame:
    """Return the shortest frame of a form, all numbers 0 but those that say which form it is.

    A reply that SUCCESS cannot be has another status.
    """
    parts = dict(layout.parts)
    tail = max(layout.tails, default=0)
    value = bytes(tail) or (b"v" if parts["value"] is Part.PRESENT else b"")
    extras = bytes(layout.extras.size)
    frame = Frame(
        magic=layout.cls.magic,
        opcode=code >> 8 if isinstance(code, DraftCode) else code,
        datatype=code & 0xFF if isinstance(code, DraftCode) else 0,
        cas=int(parts["cas"] is Part.PRESENT),
        extras=b"\2" if layout.cls is SnapshotMarkerV2 else extras,
        key=b"k" if parts["key"] is Part.PRESENT else b"",
        value=value,
    )
    try:
        layout.make_message(frame)
    except RemoteProtocolError:
        return frame._replace(specific=1)
    return frame


def frames() -> st.SearchStrategy[Frame]:
    """Return frames of any magic whose parts fit their length fields; their contents are random."""
    header = {
        "opcode": unsigned("B") | st.sampled_from([int(opcode) for opcode in Opcode]),
        "specific": unsigned("H"),
        "datatype": unsigned("B"),
        "opaque": unsigned("I"),
        "cas": unsigned("Q"),
        "extras": st.binary(max_size=60),
        "key": st.binary(max_size=255),
        "value": st.binary(max_size=400),
    }
    plain = st.builds(Frame, magic=st.sampled_from([0x80, 0x81, 0x82, 0x83]), framing=st.just(b""), **header)
    framed = st.builds(Frame, magic=st.sampled_from([0x08, 0x18]), framing=st.binary(max_size=255), **header)
    return plain | framed


def values() -> st.SearchStrategy[bytes]:
    """Return values of 0 to 300 bytes, often around the 12 that a binary_view holds itself."""
    return st.one_of(st.integers(0, 14).flatmap(lambda n: st.binary(min_size=n, max_size=n)), st.binary(max_size=300))


def changes(vbuckets: st.SearchStrategy[int]) -> st.SearchStrategy[Mutation | Deletion]:
    """Return messages of a run: any key and value, seqnos from 1 to 2^64 - 1 in no order."""
    common = {
        "vbucket": vbuckets,
        "opaque": unsigned("I"),
        "cas": unsigned("Q"),
        "datatype": unsigned("B"),
        "key": st.binary(min_size=1, max_size=250),
        "value": values(),
        "by_seqno": unsigned("Q").filter(bool),
        "rev_seqno": unsigned("Q"),
        "nmeta": st.just(0),
    }
    stored = {name: unsigned("I") for name in ("flags", "expiry", "lock_time")}
    return st.builds(Mutation, **common, **stored, nru=unsigned("B")) | st.builds(Deletion, **common)


def runs(max_size: int = 100) -> st.SearchStrategy[list[Mutation | Deletion]]:
    """Return the messages of a run: of one vbucket or of many, all mutations or mixed."""
    any_of = st.integers(0, VBUCKETS - 1)
    return st.one_of(
        any_of.flatmap(lambda vbucket: st.lists(changes(st.just(vbucket)), min_size=1, max_size=max_size)),
        st.lists(changes(any_of), min_size=1, max_size=max_size),
    )


@st.composite
def _change_of_form(draw: st.DrawFn, cls: type[Message], vbuckets: st.SearchStrategy[int]) -> Message:
    (layout,) = cls.layouts.values()
    message = draw(of_layout(layout))
    fields: dict[str, Any] = {"vbucket": draw(vbuckets)}
    if hasattr(message, "by_seqno"):
        fields["by_seqno"] = max(message.by_seqno, 1)
    if hasattr(message, "nmeta"):
        fields["nmeta"] = draw(st.just(0) | st.integers(0, len(message.value)))
    if isinstance(message, PrototypeMutation):
        name = draw(st.just("") | st.text(max_size=20)).encode()
        prefix = name + COLLECTION_SEPARATOR if name else b""
        return replace(message, **fields, collection_length=len(name), key=prefix + message.key)
    return replace(message, **fields)


def changes_in(dialect: Dialect, vbuckets: st.SearchStrategy[int]) -> st.SearchStrategy[Message]:
    """Return messages of a run in a dialect, in any of its forms."""
    return st.sampled_from(SHAPES[dialect].forms).flatmap(lambda form: _change_of_form(form.cls, vbuckets))


def runs_in(dialect: Dialect, max_size: int = 100) -> st.SearchStrategy[list[Message]]:
    """Return the messages of a run: of one form or of many, of one vbucket or of many."""
    any_of = st.integers(0, VBUCKETS - 1)
    one_form = st.sampled_from(SHAPES[dialect].forms).flatmap(
        lambda form: st.lists(_change_of_form(form.cls, any_of), min_size=1, max_size=max_size)
    )
    one_vbucket = any_of.flatmap(
        lambda vbucket: st.lists(changes_in(dialect, st.just(vbucket)), min_size=1, max_size=max_size)
    )
    return one_form | one_vbucket | st.lists(changes_in(dialect, any_of), min_size=1, max_size=max_size)


TELLING = (2, 3, 4, 10, 11, 24, 25)
"""Offsets of a frame's lengths and of its seqno; not of the body's high bytes, as no buffer is that long."""


@st.composite
def hostile(draw: st.DrawFn, dialect: Dialect | None) -> bytes:
    """Return frames that a peer of a dialect might send, but changed anywhere, with false lengths, and cut short."""
    rows = [row for of, rows in GOLDEN_OF.items() if of in (dialect, Dialect.DCP) for row in rows]
    golden = st.sampled_from(rows).map(lambda row: frame_of(row[2]))
    change = changes_in(dialect or Dialect.DCP, st.integers(0, VBUCKETS)).map(lambda message: message.encode())
    sent = b""
    for frame in draw(st.lists(change | change | golden | st.binary(max_size=60), min_size=1, max_size=6)):
        sent += draw(st.just(frame) | damaged(frame))
    return sent


@st.composite
def damaged(draw: st.DrawFn, frame: bytes) -> bytes:
    """Return a frame in which a few bytes are others, or one is one more or less, or whose end is missing."""
    place = st.integers(0, 90) | st.sampled_from(TELLING) | st.sampled_from(TELLING)
    others = st.sampled_from([-1, 1]) | st.binary(min_size=1, max_size=2) | st.just(bytes(8))
    for at, other in draw(st.lists(st.tuples(place, others), max_size=2)):
        found = frame[at : at + 1]
        if isinstance(other, int):
            other = bytes((each + other) % 256 for each in found)
        frame = frame[:at] + other[: len(frame) - at] + frame[at + len(other) :]
    return frame if draw(st.integers(0, 9)) else frame[: draw(st.integers(0, len(frame)))]


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Cut bytes at random places, also into single bytes and empty ones."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
