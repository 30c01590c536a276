"""Columns to frames, and back."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError
from penstock.wire.columns import run_encoder as encode_module
from penstock.wire.columns.data_forms import SLACK
from penstock.wire.columns.frame_offsets import find_offsets
from penstock.wire.columns.heads import Run, StreamContext, gather_heads
from penstock.wire.columns.run_decoder import decode_columns, decode_run, list_changes, make_batch
from penstock.wire.columns.run_encoder import SMALL_BATCH, Frames, encode_changes, encode_columns, join_columns
from penstock.wire.columns.schema import Change
from penstock.wire.messages.dcp import Deletion, Mutation
from tests.golden import GOLDEN, frame_of
from tests.strategies import VBUCKETS, runs, unsigned

Message = Mutation | Deletion
CONTEXT = StreamContext(VBUCKETS)


def change_of(message: Message) -> Change:
    """Return a message as a row whose context has no facts, as a decoder with CONTEXT does."""
    stored = isinstance(message, Mutation)
    return Change(
        vbucket=message.vbucket,
        vbuuid=0,
        seqno=message.by_seqno,
        rev_seqno=message.rev_seqno,
        cas=message.cas,
        event="mutation" if stored else "deletion",
        key=message.key,
        value=message.value if stored else None,
        datatype=message.datatype,
        flags=message.flags if isinstance(message, Mutation) else None,
        expiry=message.expiry if isinstance(message, Mutation) else None,
        lock_time=message.lock_time if isinstance(message, Mutation) else None,
        snapshot_start=0,
        snapshot_end=0,
        snapshot_flags=0,
    )


def sent(message: Message, opaque: int) -> bytes:
    """Return the frame with the parts of a message that a row keeps: neither nru nor a deletion's value."""
    if isinstance(message, Mutation):
        return replace(message, opaque=opaque, nru=0).encode()
    return replace(message, opaque=opaque, value=b"").encode()


def parts(frames: Frames) -> list[bytes]:
    data = frames.buffer.to_pybytes()
    assert (frames.offsets[0], frames.offsets[-1]) == (0, len(data))
    return [data[start:end] for start, end in zip(frames.offsets[:-1], frames.offsets[1:], strict=True)]


@given(runs(2 * SMALL_BATCH), unsigned("I"))
def test_loop_and_columns_write_same_frames(messages: list[Message], opaque: int) -> None:
    changes = [change_of(message) for message in messages]
    expected = [sent(message, opaque) for message in messages]
    batch = make_batch(changes)
    assert parts(join_columns(batch, opaque)) == expected
    assert parts(encode_changes(changes, [opaque] * len(changes))) == expected
    assert parts(encode_columns(batch, opaque)) == expected


@given(st.data(), runs(2 * SMALL_BATCH))
def test_each_row_has_own_opaque(data: st.DataObject, messages: list[Message]) -> None:
    opaques = data.draw(st.lists(unsigned("I"), min_size=len(messages), max_size=len(messages)))
    expected = [sent(message, opaque) for message, opaque in zip(messages, opaques, strict=True)]
    batch = make_batch([change_of(message) for message in messages])
    for encode in (join_columns, encode_columns):
        assert parts(encode(batch, np.array(opaques, np.uint32))) == expected


@given(runs(2 * SMALL_BATCH))
def test_encoded_batch_round_trips(messages: list[Message]) -> None:
    batch = make_batch([change_of(message) for message in messages])
    frames = encode_columns(batch)
    buffer = bytearray(frames.buffer.to_pybytes() + bytes(SLACK))
    size = len(frames.buffer)
    assert find_offsets(buffer, 0, size) == (frames.offsets[:-1].tolist(), size)
    run = Run(buffer, frames.offsets[:-1].astype(np.int64), size)
    assert decode_run(run, CONTEXT).equals(batch)
    viewed = decode_columns(run, gather_heads(run), CONTEXT, views=True)
    for encode in (join_columns, encode_columns):
        assert encode(viewed).buffer == frames.buffer


@given(runs(2 * SMALL_BATCH), st.integers(0, 30), st.integers(0, 30))
def test_slice_of_batch_is_encoded(messages: list[Message], first: int, count: int) -> None:
    batch = make_batch([change_of(message) for message in messages])
    expected = [sent(message, 0) for message in messages[first : first + count]]
    assert parts(join_columns(batch.slice(first, count))) == expected
    chosen = pa.array([first <= row < first + count for row in range(len(messages))])
    assert parts(join_columns(batch.filter(chosen))) == expected


def test_golden_frames_round_trip() -> None:
    rows = [
        (message, frame_of(row))
        for _, message, row in GOLDEN
        if isinstance(message, Message) and type(message) in (Mutation, Deletion)
    ]
    context = StreamContext(65536)
    for message, data in rows:
        kept = data == sent(message, message.opaque)  # false for a deletion with a value, and for an nru
        run = Run(bytearray(data + bytes(SLACK)), [0], len(data))
        batch = decode_run(run, context)
        for encode in (join_columns, encode_columns):
            assert (encode(batch, message.opaque).buffer.to_pybytes() == data) is kept


def test_empty_batch_makes_no_frames() -> None:
    batch = make_batch([])
    for frames in (encode_columns(batch), join_columns(batch)):
        assert parts(frames) == []


def test_nulls_are_sent_as_zero_or_empty() -> None:
    change = Change(7, 0, 5, event="mutation", key=b"k")
    expected = Mutation(vbucket=7, key=b"k", by_seqno=5).encode()
    for count in (1, 2 * SMALL_BATCH):
        assert parts(encode_columns(make_batch([change] * count))) == [expected] * count


def test_deletion_does_not_send_flags() -> None:
    change = Change(7, 0, 5, event="deletion", key=b"k", flags=2**40, expiry=-1, lock_time=3)
    expected = Deletion(vbucket=7, key=b"k", by_seqno=5).encode()
    for encode in (join_columns, encode_columns):
        assert parts(encode(make_batch([change]))) == [expected]


GOOD = Change(7, 0, 5, event="mutation", key=b"k", value=b"v")
BAD = [
    (GOOD._replace(event="rollback"), "vbucket 7: a row rollback is no mutation or deletion"),
    (GOOD._replace(key=None), "vbucket 7: a mutation needs a key and a seqno, found None, 5"),
    (GOOD._replace(key=b""), "vbucket 7: a mutation needs a key and a seqno, found b'', 5"),
    (GOOD._replace(seqno=0, event="deletion"), "vbucket 7: a deletion needs a key and a seqno, found b'k', 0"),
    (GOOD._replace(vbucket=65536), "Mutation: "),
    (GOOD._replace(vbucket=-1), "Mutation: "),
    (GOOD._replace(datatype=256), "Mutation: "),
    (GOOD._replace(flags=2**32), "Mutation: "),
    (GOOD._replace(expiry=-1), "Mutation: "),
    (GOOD._replace(lock_time=2**32), "Mutation: "),
    (GOOD._replace(key=bytes(65536)), "Mutation: key of 65536 bytes"),
]


@pytest.mark.parametrize(("change", "text"), BAD, ids=[f"{number}-{text}" for number, (_, text) in enumerate(BAD)])
@pytest.mark.parametrize("encode", [encode_columns, join_columns])
@pytest.mark.parametrize("around", [0, SMALL_BATCH])
def test_invalid_row_is_refused(
    change: Change, text: str, encode: Callable[[pa.RecordBatch], Frames], around: int
) -> None:
    batch = make_batch([GOOD] * around + [change] + [GOOD] * around)
    assert list_changes(batch)[around] == change
    with pytest.raises(LocalProtocolError) as caught:
        encode(batch)
    assert str(caught.value).startswith(text)


def test_too_many_bytes_for_column_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch([GOOD] * 100)
    monkeypatch.setattr(encode_module, "_LONGEST", 5699)
    with pytest.raises(
        LocalProtocolError, match=r"^100 changes make 5700 bytes of frames, limit 5699: split the batch$"
    ):
        join_columns(batch)
