"""Frames in other forms: the loop and the columns write the same, and a consumer reads the stored changes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame, cut_frame, read_frame_length
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.frame_form import DCP, FORMS, NATIVE, FrameForm
from penstock.wire.columns.reframe import _reframe_columns, _reframe_each, reframe
from penstock.wire.messages.dcp import Deletion, DeletionV2, Expiration, Mutation
from penstock.wire.messages.tap import TapMutation
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from penstock.wire.values.collection_key import DEFAULT_PREFIX
from tests.strategies import unsigned, values

COMMON = {
    "vbucket": unsigned("H"),
    "opaque": unsigned("I"),
    "cas": unsigned("Q"),
    "datatype": st.integers(0, 7),
    "key": st.binary(min_size=1, max_size=250).map(lambda key: DEFAULT_PREFIX + key),
    "by_seqno": unsigned("Q").filter(bool),
    "rev_seqno": unsigned("Q"),
}
U32 = unsigned("I")
STORED = st.one_of(
    st.builds(Mutation, **COMMON, value=values(), flags=U32, expiry=U32, lock_time=U32, nru=unsigned("B")),
    st.builds(Deletion, **COMMON),
    st.builds(DeletionV2, **COMMON, delete_time=U32),
    st.builds(Expiration, **COMMON, delete_time=U32),
)
EVERY_FORM = {
    **{dialect.value: form for dialect, form in FORMS.items()},
    "native": NATIVE,
    "native, bare keys": replace(NATIVE, bare_keys=True),
    "dcp, with collections": replace(DCP, bare_keys=False),
    "dcp, with a stream id": replace(DCP, bare_keys=False, stream_id=0x1234),
    "native, with a stream id": replace(NATIVE, stream_id=1),
    "keys only, with a stream id": replace(DCP, keys_only=True, stream_id=65535),
    "keys only": replace(DCP, keys_only=True),
    "keys only, with collections": replace(DCP, keys_only=True, bare_keys=False),
    "keys only, no datatype": replace(NATIVE, keys_only=True, datatypes=0),
    "tap, reversed flags": replace(FORMS[Dialect.TAP], reversed_flags=True, datatypes=1),
    "tap, keys only": replace(FORMS[Dialect.TAP], keys_only=True),
}


def chunk(messages: Sequence[Message]) -> tuple[bytes, np.ndarray]:
    frames = [message.encode() for message in messages]
    return b"".join(frames), np.array([0, *accumulate(map(len, frames))][:-1], np.int64)


@pytest.mark.parametrize("form", EVERY_FORM.values(), ids=EVERY_FORM.keys())
@given(st.lists(STORED, min_size=1, max_size=12), unsigned("I"))
def test_columns_and_loop_agree(form: FrameForm, messages: list[Message], opaque: int) -> None:
    data, begins = chunk(messages)
    found = {"opaque": opaque}
    assert bytes(_reframe_columns(data, begins, form, found)) == _reframe_each(data, begins, form, found)


def dialect_of(form: FrameForm) -> Dialect:
    return next(dialect for dialect, each in FORMS.items() if each.mutation is form.mutation)


def frames_of(data: bytes) -> list[Frame]:
    return [event for event in FrameReceiver(Slab(1 << 20), run_dialect=None).feed(data) if isinstance(event, Frame)]


@pytest.mark.parametrize("form", EVERY_FORM.values(), ids=EVERY_FORM.keys())
@given(st.lists(STORED, min_size=1, max_size=35))
def test_consumer_reads_stored_changes(form: FrameForm, messages: list[Message]) -> None:
    data, begins = chunk(messages)
    dialect = dialect_of(form)
    opaques = np.arange(len(messages)) + 7
    as_they_are = form.is_native or (form.keeps_mutations and all(isinstance(m, Mutation) for m in messages))
    sent = reframe(data, begins, form, opaque=opaques)
    read: list[Any] = [decode_frame(frame, dialect) for frame in frames_of(bytes(sent))]
    assert len(read) == len(messages)
    stored: Any
    for number, (stored, got) in enumerate(zip(messages, read, strict=True)):
        kinds = {int(Opcode.DCP_MUTATION): form.mutation, int(Opcode.DCP_DELETION): form.deletion}
        if not form.is_native:
            assert type(got) is kinds.get(int(stored.opcode), form.expiration)
        if not as_they_are:
            assert got.opaque == number + 7
        assert got.framing == (b"" if form.stream_id is None else b"\x22" + form.stream_id.to_bytes(2, "big"))
        assert (got.key, got.cas, got.vbucket) == (stored.key[form.bare_keys :], stored.cas, stored.vbucket)
        assert got.value == (b"" if form.keys_only else stored.value)
        for name in ("by_seqno", "rev_seqno", "expiry", "nru", "delete_time"):
            if hasattr(got, name) and hasattr(stored, name):
                assert getattr(got, name) == getattr(stored, name)


def test_unchanged_mutations_are_not_copied() -> None:
    form = replace(DCP, bare_keys=False)
    data, begins = chunk([Mutation(key=b"\0k", value=b"v", by_seqno=seqno) for seqno in range(1, 50)])
    assert reframe(data, begins, form) is data
    data, begins = chunk([Mutation(key=b"\0k", by_seqno=1), Expiration(key=b"\0k", by_seqno=2, delete_time=9)])
    assert reframe(data, begins, NATIVE) is data
    assert reframe(data, begins, form) is not data


@pytest.mark.parametrize("body", [256, 0x1_0000, 0x100_0000, 256 * 5, 255, 257])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_stripped_prefix_shortens_lengths(body: int, count: int) -> None:
    mutation = Mutation(key=b"\0key", value=bytes(body - 31 - 4), by_seqno=1)
    other = Mutation(key=b"\0" + bytes(250), by_seqno=2)
    stored = [each for _ in range(count if body < 0x100_0000 else 1) for each in (mutation, other)]
    data, begins = chunk(stored)
    bare = [replace(each, key=each.key[1:]) for each in stored]
    assert bytes(reframe(bytearray(data), begins, DCP)) == chunk(bare)[0]


@pytest.mark.parametrize("count", [1, 40])
def test_tap_engine_data_precede_key(count: int) -> None:
    mutation = Mutation(
        key=b"\0key", value=b"value", by_seqno=9, rev_seqno=3, flags=0xDEADBEEF, expiry=5, nru=2, datatype=1
    )
    data, begins = chunk([mutation] * count)
    form = replace(FORMS[Dialect.TAP], reversed_flags=True)
    sent = bytes(reframe(data, begins, form, opaque=np.arange(count), tap_flags=1))
    assert read_frame_length(sent, 0) * count == len(sent)
    assert decode_frame(cut_frame(memoryview(sent), 0)) == TapMutation(
        key=b"key",
        value=b"value",
        tap_flags=1,
        ttl=255,
        flags=0xEFBEADDE,
        expiry=5,
        engine_private=(3).to_bytes(8, "big") + b"\2",
    )


def test_empty_chunk_is_unchanged() -> None:
    assert reframe(b"", [], FORMS[Dialect.UPR]) == b""
