"""Values for consumers: extended attributes, compression, and the remaining parts of tombstones."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import cut_frame
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.columns.revalue import ValueOptions, revalue
from penstock.wire.messages.dcp import DeletionV2, Mutation
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.values.snappy import deflate, inflate

J, S, X = Datatype.JSON, Datatype.SNAPPY, Datatype.XATTR
BODY = b'{"a":"' + b"a" * 200 + b'"}'
BOTH = pack_xattrs({"_sync": b"1", "user": b"2"})
SYSTEM = pack_xattrs({"_sync": b"1"})
ALL = ValueOptions(xattrs=True, deleted_user_xattrs=True, snappy=True)


def stored(value: bytes, datatype: int, seqno: int = 1) -> Mutation:
    return Mutation(key=b"\0k", value=value, datatype=datatype, by_seqno=seqno, flags=7)


def tombstone(value: bytes, datatype: int) -> DeletionV2:
    return DeletionV2(key=b"\0k", value=value, datatype=datatype, by_seqno=1, delete_time=9)


def chunk(messages: Sequence[Message]) -> tuple[bytes, list[int]]:
    frames = [message.encode() for message in messages]
    return b"".join(frames), [0, *accumulate(map(len, frames))][:-1]


def revalued(messages: Sequence[Message], content: ValueOptions) -> list[Any]:
    data, begins, _ = revalue(*chunk(messages), content)
    assert len(begins) == len(messages)
    return [decode_frame(cut_frame(memoryview(data), int(begin))) for begin in begins]


MUTATIONS = [
    ("nothing special", ValueOptions(), (BODY, J), (BODY, J)),
    ("attributes that are not wanted", ValueOptions(), (BOTH + BODY, X | J), (BODY, J)),
    ("attributes that are wanted", ValueOptions(xattrs=True), (BOTH + BODY, X | J), (BOTH + BODY, X | J)),
    ("attributes alone, not wanted", ValueOptions(), (BOTH, X), (b"", 0)),
    ("compressed, not agreed on", ValueOptions(), (deflate(BODY), S | J), (BODY, J)),
    ("compressed, agreed on", ValueOptions(snappy=True), (deflate(BODY), S | J), (deflate(BODY), S | J)),
    ("compressed attributes, all wanted", ALL, (deflate(BOTH + BODY), S | X), (deflate(BOTH + BODY), S | X)),
    (
        "compressed with attributes, which are not wanted",
        ValueOptions(snappy=True),
        (deflate(BOTH + BODY), S | X | J),
        (deflate(BODY), S | J),
    ),
    ("what is left is too short to compress", ValueOptions(snappy=True), (deflate(BOTH + b"1"), S | X | J), (b"1", J)),
    ("attributes wanted, compression not", ValueOptions(xattrs=True), (deflate(BOTH + BODY), S | X), (BOTH + BODY, X)),
    ("only attributes", ValueOptions(body=False, xattrs=True), (BOTH + BODY, X | J), (BOTH, X)),
    ("underlying", ValueOptions(body=False, xattrs=True, underlying=True), (BOTH + BODY, X | J), (BOTH, X | J)),
    ("compress", ValueOptions(snappy=True, compress=True), (BODY, J), (deflate(BODY), S | J)),
    ("compress what gets no smaller", ValueOptions(snappy=True, compress=True), (b"abc", 0), (b"abc", 0)),
    ("compress what is already", ValueOptions(snappy=True, compress=True), (deflate(BODY), S), (deflate(BODY), S)),
    ("compress nothing", ValueOptions(snappy=True, compress=True), (b"", 0), (b"", 0)),
    ("not compressed at all", ValueOptions(), (b"\xff\xff\xff", S), (b"\xff\xff\xff", S)),
    ("attributes that are none", ValueOptions(), (b"\0", X), (b"\0", X)),
]
TOMBSTONES = [
    ("all attributes", ALL, (BOTH, X), (BOTH, X)),
    ("the system's attributes", ValueOptions(xattrs=True), (BOTH, X), (SYSTEM, X)),
    ("the system's, compressed before", ValueOptions(xattrs=True, snappy=True), (deflate(BOTH), X | S), (SYSTEM, X)),
    ("none of the system's", ValueOptions(xattrs=True), (pack_xattrs({"user": b"1"}), X), (b"", 0)),
    ("none", ValueOptions(), (BOTH, X), (b"", 0)),
    ("only keys", ValueOptions(body=False, xattrs=True), (BOTH, X), (SYSTEM, X)),
]


@pytest.mark.parametrize("before", [0, 1, 40])
@pytest.mark.parametrize(
    ("content", "source", "wanted", "kind"),
    [pytest.param(*row, stored, id=name) for name, *row in MUTATIONS]
    + [pytest.param(*row, tombstone, id=f"tombstone: {name}") for name, *row in TOMBSTONES],
)
def test_one_value_among_plain_ones(content, source, wanted, kind, before):
    plain = [stored(b"abc", 0, seqno) for seqno in range(1, before + 1)]
    found = revalued([*plain, kind(*source), *plain], content)
    assert found[before] == kind(*wanted)
    if content.body or before == 0 or source[1] & X:
        rest = [stored(b"abc" if content.body else b"", 0, each.by_seqno) for each in plain]
        assert found[:before] == found[before + 1 :] == rest


@pytest.mark.parametrize("count", [3, 100])
@pytest.mark.parametrize(
    "content",
    [
        ValueOptions(),
        ALL,
        ValueOptions(body=False),
        ValueOptions(body=False, xattrs=True),
        ValueOptions(xattrs=True, snappy=True),
    ],
)
def test_plain_values_are_not_touched(content, count):
    data, begins = chunk([stored(BODY, J, seqno) for seqno in range(1, count)])
    assert revalue(data, begins, content)[0] is data


def test_user_attributes_are_removed_only_from_tombstones():
    data, begins = chunk([stored(BOTH + BODY, X, seqno) for seqno in range(1, 100)])
    assert revalue(data, begins, ValueOptions(xattrs=True))[0] is data


@given(
    st.lists(st.tuples(st.binary(max_size=60), st.integers(0, 7)), min_size=1, max_size=40),
    st.builds(ValueOptions, *[st.booleans()] * 6),
)
def test_frames_of_any_values_are_whole(values, content):
    """Values may contradict their datatypes."""
    messages = [stored(value, datatype, seqno) for seqno, (value, datatype) in enumerate(values, 1)]
    for before, after in zip(messages, revalued(messages, content), strict=True):
        assert (after.key, after.by_seqno, after.flags) == (before.key, before.by_seqno, before.flags)
        if content.body and not before.datatype & (S | X):
            assert (inflate(after.value) if after.datatype & S else after.value) == before.value


def test_begins_may_be_a_column():
    data, begins = chunk([stored(BOTH + BODY, X), stored(b"", 0)])
    found = revalue(data, np.array(begins), ValueOptions())
    assert (found.data, found.bodies_removed) == (revalue(data, begins, ValueOptions()).data, False)
