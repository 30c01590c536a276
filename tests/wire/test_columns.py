"""Runs to columns and to objects: the same changes either way."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.columns import (
    SLACK,
    SMALL_RUN,
    Run,
    StreamContext,
    batch_of,
    changes_of,
    columns_of,
    decode_messages,
    decode_run,
    heads_of,
)
from penstock.wire.connection import Connection, Slab
from penstock.wire.constants import Opcode, Status
from penstock.wire.dcp import Deletion, Mutation
from penstock.wire.hop import hop
from penstock.wire.schema import CHANGE_SCHEMA, UNSIGNED64, Change, Event, signed64
from tests.golden import GOLDEN
from tests.strategies import VBUCKETS, runs, unsigned

U64 = 2**64 - 1
Message = Mutation | Deletion


def run_of(frames: Sequence[bytes], before: bytes = b"", behind: int = 0) -> Run:
    """Return a run somewhere in a slab that ends `behind` bytes after it, apart from the slack that every slab has."""
    data = before + b"".join(frames)
    offsets, position = hop(data, len(before), len(data))
    assert position == len(data)
    return Run(bytearray(data + b"\xee" * (behind + SLACK)), offsets, len(data))


def context_of(vbuckets: int = VBUCKETS) -> StreamContext:
    """Return a context in which every vbucket says something else, above 2^63 for odd ones."""
    context = StreamContext(vbuckets)
    for vbucket in range(vbuckets):
        high = (vbucket & 1) << 63
        context.vbuuid[vbucket] = signed64(high | 0xABCDEF << 8 | vbucket)
        context.snapshot_start[vbucket] = signed64(high | 7 * vbucket)
        context.snapshot_end[vbucket] = signed64(high | 9 * vbucket + 1)
        context.snapshot_flags[vbucket] = vbucket % 4
        context.history[vbucket] = vbucket % 3
    return context


def change_of(message: Message) -> Change:
    """Return the row that a message is in context_of(), from the message's own fields."""
    vbucket, high = message.vbucket, (message.vbucket & 1) << 63
    stored = isinstance(message, Mutation)
    return Change(
        vbucket=vbucket,
        vbuuid=high | 0xABCDEF << 8 | vbucket,
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
        snapshot_start=high | 7 * vbucket,
        snapshot_end=high | 9 * vbucket + 1,
        snapshot_flags=vbucket % 4,
        history=vbucket % 3,
    )


def by_columns(run: Run, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    batch = columns_of(run, heads_of(run), context, views=views)
    batch.validate(full=True)
    return batch


def assert_all_paths_agree(run: Run, context: StreamContext, expected: list[Change]) -> None:
    objects = decode_messages(run, context)
    assert objects == expected
    batch = by_columns(run, context)
    assert batch.schema == CHANGE_SCHEMA
    assert changes_of(batch) == expected
    small = batch_of(objects)
    small.validate(full=True)
    assert small.equals(batch)
    assert decode_run(run, context).equals(batch)
    viewed = by_columns(run, context, views=True)
    assert viewed.schema.field("value").type == pa.binary_view()
    assert changes_of(viewed) == expected
    assert viewed.column("value").cast(pa.binary()).equals(batch.column("value"))
    assert viewed.drop_columns(["value"]).equals(batch.drop_columns(["value"]))
    array_run = Run(run.buffer, np.array(run.offsets, np.int64), run.end)
    assert decode_messages(array_run, context) == expected
    assert decode_run(array_run, context).equals(batch)


@given(runs(2 * SMALL_RUN + 20), st.binary(max_size=60), st.integers(0, 20))
def test_every_path_makes_the_same_changes(messages: list[Message], before: bytes, behind: int) -> None:
    run = run_of([message.encode() for message in messages], before, behind)
    assert_all_paths_agree(run, context_of(), [change_of(message) for message in messages])


GOLDEN_CHANGES = [message for _, message, _ in GOLDEN if isinstance(message, Message)]


def test_golden_changes() -> None:
    assert {type(message) for message in GOLDEN_CHANGES} == {Mutation, Deletion}
    run = run_of([message.encode() for message in GOLDEN_CHANGES])
    context = StreamContext(65536)
    changes = decode_messages(run, context)
    assert changes_of(by_columns(run, context)) == changes
    assert changes[1].seqno == changes[1].cas == changes[1].rev_seqno == U64
    assert (changes[1].vbucket, changes[1].flags, changes[1].expiry) == (65535, 0xFFFFFFFF, 0xFFFFFFFF)
    assert (changes[3].event, changes[3].value, changes[3].datatype) == ("deletion", None, 4)


@pytest.mark.parametrize("nbytes", [*range(15), 100])
@pytest.mark.parametrize("kind", ["alone", "among deletions", "before a longer one"])
def test_values_around_what_a_view_holds_itself(nbytes: int, kind: str) -> None:
    value = bytes(range(200, 200 + nbytes)) if nbytes < 50 else b"\xff" * nbytes
    first: list[Message] = [Mutation(vbucket=3, key=b"k" * 250, value=value, by_seqno=1)]
    gone = Deletion(vbucket=3, key=b"d", value=b"\x01" * 20, by_seqno=2)
    longer = Mutation(vbucket=3, key=b"k", value=b"v" * 40, by_seqno=3)
    messages = {"alone": first, "among deletions": [gone, *first, gone], "before a longer one": [*first, longer]}[kind]
    run = run_of([message.encode() for message in messages])
    assert_all_paths_agree(run, context_of(), [change_of(message) for message in messages])


def test_views_lie_in_the_slab() -> None:
    run = run_of([Mutation(key=b"k", value=b"x" * 50, by_seqno=1).encode()])
    batch = by_columns(run, context_of(), views=True)
    place = run.buffer.index(b"x" * 50)
    run.buffer[place + 10] = ord("y")
    assert batch.column("value")[0].as_py() == b"x" * 10 + b"y" + b"x" * 39


def test_columns_are_copies() -> None:
    messages = [Mutation(key=b"k" * 30, value=b"x" * 50, by_seqno=n) for n in (1, 2)]
    run = run_of([message.encode() for message in messages])
    batch = by_columns(run, context_of())
    run.buffer[:] = bytes(len(run.buffer))
    assert changes_of(batch) == [change_of(message) for message in messages]


def test_more_messages_than_any_constant_column_has() -> None:
    frame = Mutation(vbucket=5, key=b"k", by_seqno=1).encode()
    count = 70_000
    batch = by_columns(run_of([frame * count]), context_of())
    assert batch.num_rows == count
    assert changes_of(batch.slice(count - 1)) == [change_of(Mutation(vbucket=5, key=b"k", by_seqno=1))]


def test_a_run_at_the_very_end_of_a_connections_slab() -> None:
    messages = [Deletion(vbucket=1, key=b"k", by_seqno=n + 1) for n in range(40)]
    data = b"".join(message.encode() for message in messages)
    connection = Connection(Slab(len(data)), runs=True)
    (run,) = connection.feed(data)
    assert isinstance(run, Run)
    assert len(run.buffer) == len(data) + SLACK
    assert_all_paths_agree(run, context_of(), [change_of(message) for message in messages])


# frames that break their layout


def head(opcode: int, key: int, extras: int, body: int, seqno: int = 1, nmeta: int = 0) -> bytes:
    start = (
        bytes([0x80, opcode]) + key.to_bytes(2, "big") + bytes([extras, 0, 0, 3]) + body.to_bytes(4, "big") + bytes(12)
    )
    return start + (seqno.to_bytes(8, "big") + bytes(20) + nmeta.to_bytes(2, "big") + bytes(200))[:body]


MUTATION, DELETION = Opcode.DCP_MUTATION, Opcode.DCP_DELETION
BAD = [
    (head(MUTATION, 1, 30, 40), "DCP_MUTATION: extras of 30 bytes, expected 31 or 32"),
    (head(MUTATION, 1, 0, 0), "DCP_MUTATION: extras of 0 and key of 1 bytes in a body of 0"),
    (head(MUTATION, 0, 31, 40), "DCP_MUTATION: key must be present, found 0 bytes"),
    (head(MUTATION, 10, 31, 40), "DCP_MUTATION: extras of 31 and key of 10 bytes in a body of 40"),
    (head(MUTATION, 0xFFFF, 31, 40), "DCP_MUTATION: extras of 31 and key of 65535 bytes in a body of 40"),
    (head(MUTATION, 1, 31, 40, seqno=0), r"DCP_MUTATION: by_seqno 0 \(expected above 0\), nmeta 0 \(expected 0\)"),
    (head(MUTATION, 1, 31, 40, nmeta=5), r"DCP_MUTATION: by_seqno 1 \(expected above 0\), nmeta 5 \(expected 0\)"),
    (head(DELETION, 1, 31, 40), "DCP_DELETION: extras of 31 bytes, expected 18 or 21"),
    (head(DELETION, 0, 18, 18), "DCP_DELETION: key must be present, found 0 bytes"),
    (head(DELETION, 2, 18, 19), "DCP_DELETION: extras of 18 and key of 2 bytes in a body of 19"),
    (head(DELETION, 1, 18, 19, seqno=0), r"DCP_DELETION: by_seqno 0 \(expected above 0\), nmeta 0 \(expected 0\)"),
]


@pytest.mark.parametrize(("frame", "text"), BAD, ids=[text for _, text in BAD])
@pytest.mark.parametrize("around", [0, SMALL_RUN])
def test_bad_frames(frame: bytes, text: str, around: int) -> None:
    good = Mutation(vbucket=3, key=b"k", by_seqno=1).encode()
    run = run_of([*[good] * around, frame, *[good] * around])
    for decode in (decode_messages, decode_run, by_columns):
        with pytest.raises(RemoteProtocolError, match=f"^{text}$") as caught:
            decode(run, context_of())
        assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, True)


@pytest.mark.parametrize("vbuckets", [(VBUCKETS,), (3, VBUCKETS), (65535, VBUCKETS, 1)])
def test_a_vbucket_that_no_stream_can_have(vbuckets: tuple[int, ...]) -> None:
    run = run_of([Mutation(vbucket=vbucket, key=b"k", by_seqno=1).encode() for vbucket in vbuckets])
    wrong = next(vbucket for vbucket in vbuckets if vbucket >= VBUCKETS)
    for decode in (decode_messages, decode_run, by_columns):
        with pytest.raises(RemoteProtocolError, match=f"^change of vbucket {wrong}, expected one below {VBUCKETS}$"):
            decode(run, context_of())


@given(st.binary(max_size=300), st.integers(1, 2 * SMALL_RUN))
def test_damage_is_a_remote_error_or_the_same_changes(noise: bytes, count: int) -> None:
    """Noise overwrites the head of a frame, but for its length: a run is made of whole frames whatever is in them."""
    frames = [Mutation(vbucket=3, key=b"key", value=b"value", by_seqno=n + 1).encode() for n in range(count)]
    run = run_of(frames)
    opcode = MUTATION if len(noise) % 2 else DELETION
    for place, byte in enumerate(noise, start=2):
        if 2 <= place % len(frames[0]) < 8 or place % len(frames[0]) >= 12:
            run.buffer[place] = byte if place < len(run.buffer) - SLACK else run.buffer[place]
    run.buffer[1] = opcode
    results = [outcome(lambda: decode_messages(run, context_of()))]
    results.append(outcome(lambda: changes_of(by_columns(run, context_of()))))
    assert results[0] == results[1]


def outcome(decode) -> object:
    try:
        return decode()
    except RemoteProtocolError as error:
        return str(error) if "vbucket" not in str(error) else "vbucket"


# batches and objects


TEXTS = st.none() | st.text(max_size=10)
NUMBERS = {"B": st.none() | unsigned("B"), "I": st.none() | unsigned("I"), "Q": st.none() | unsigned("Q")}
CHANGES = st.builds(
    Change,
    vbucket=unsigned("H"),
    vbuuid=unsigned("Q"),
    seqno=unsigned("Q"),
    rev_seqno=NUMBERS["Q"],
    cas=NUMBERS["Q"],
    event=st.sampled_from([*map(str, Event), "create scope"]),
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=20),
    collection_id=NUMBERS["I"],
    scope=TEXTS,
    collection=TEXTS,
    datatype=NUMBERS["B"],
    flags=NUMBERS["I"],
    expiry=NUMBERS["I"],
    lock_time=NUMBERS["I"],
    delete_time=NUMBERS["I"],
    xattrs=st.none() | st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3),
    snapshot_start=NUMBERS["Q"],
    snapshot_end=NUMBERS["Q"],
    snapshot_flags=NUMBERS["I"],
    history=st.integers(0, 2**31 - 1),
    requested_seqno=NUMBERS["Q"],
)


@given(st.lists(CHANGES, max_size=20))
def test_objects_to_a_batch_and_back(changes: list[Change]) -> None:
    batch = batch_of(changes)
    batch.validate(full=True)
    assert batch.schema == CHANGE_SCHEMA
    assert changes_of(batch) == changes


def test_a_rollback_row() -> None:
    rollback = Change(7, 0xABC, 5, event=Event.ROLLBACK, history=2, requested_seqno=9)
    (row,) = batch_of([rollback]).to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        **{"vbucket": 7, "vbuuid": 0xABC, "seqno": 5, "event": "rollback", "history": 2, "requested_seqno": 9}
    }


def test_no_changes() -> None:
    assert batch_of([]).num_rows == 0
    assert changes_of(batch_of([])) == []


def test_a_u64_keeps_its_bits() -> None:
    change = Change(1, U64, U64, U64, U64, snapshot_start=U64, snapshot_end=U64, requested_seqno=U64)
    (row,) = batch_of([change]).to_pylist()
    assert {row[name] for name in UNSIGNED64} == {-1}
    assert changes_of(batch_of([change])) == [change]
