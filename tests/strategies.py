"""Random messages, runs and pieces, made from the layouts themselves."""

from hypothesis import strategies as st

from penstock.wire.constants import Opcode
from penstock.wire.dcp import Deletion, Mutation
from penstock.wire.frame import Frame
from penstock.wire.layout import LAYOUTS, Layout, Message, Part

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
    fields = {name: unsigned(code) for name, code in zip(layout.names, layout.extras.format[1:], strict=True)}
    return st.builds(
        layout.cls,
        opaque=unsigned("I"),
        datatype=unsigned("B"),
        cas=_part(parts["cas"], unsigned("Q"), 0),
        key=_part(parts["key"], st.binary(max_size=40), b""),
        value=_part(parts["value"], st.binary(max_size=200), b""),
        **{layout.third: unsigned("H")},
        **fields,
    )


FORMS: list[tuple[Opcode, Layout]] = [
    (opcode, layout) for table in LAYOUTS.values() for opcode, forms in table.items() for layout in forms.values()
]
"""Every form of every message under every opcode that it has."""


def messages() -> st.SearchStrategy[tuple[Opcode, Message]]:
    """Return messages of any declared form, with the opcode they go under."""
    return st.sampled_from(FORMS).flatmap(lambda form: st.tuples(st.just(form[0]), of_layout(form[1])))


def frames() -> st.SearchStrategy[Frame]:
    """Return frames of any magic whose parts fit their length fields; what they mean is chance."""
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
    """Return what may stand in a run: any key and value, seqnos from 1 to 2^64 - 1 in no order."""
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
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Cut bytes at random places, also into single bytes and empty ones."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
