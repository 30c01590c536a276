"""Runs to columns and to objects: the same changes either way."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.data_forms import SLACK
from penstock.wire.columns.frame_offsets import find_offsets
from penstock.wire.columns.heads import Run, StreamContext, gather_heads
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.run_decoder import SMALL_RUN, decode_columns, decode_run, list_changes, make_batch
from penstock.wire.columns.schema import CHANGE_SCHEMA, UNSIGNED64, Change, Event, signed64
from penstock.wire.messages.dcp import Deletion, DeletionV2, Expiration, Mutation, OldExpiration, PrototypeMutation
from penstock.wire.messages.tap import TapDelete, TapMutation
from penstock.wire.messages.upr import UprDeletion, UprExpiration, UprMutation
from penstock.wire.messages.upr_draft import DraftDeletion, DraftExpiration, DraftMutation
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from tests.golden import GOLDEN
from tests.strategies import VBUCKETS, runs, runs_in, unsigned
from tests.wire.ways import EVERY, PATHS, has_way, use_path

U64 = 2**64 - 1

pytestmark = pytest.mark.usefixtures("path")


def run_of(frames: Sequence[bytes], before: bytes = b"", behind: int = 0, dialect: Dialect = Dialect.DCP) -> Run:
    """Return a run somewhere in a slab that ends `behind` bytes after it, apart from the slack that every slab has."""
    data = before + b"".join(frames)
    offsets, position = find_offsets(data, len(before), len(data))
    assert position == len(data)
    return Run(bytearray(data + b"\xee" * (behind + SLACK)), offsets, len(data), dialect)


def context_of(vbuckets: int = VBUCKETS) -> StreamContext:
    """Return a context with different facts for every vbucket, above 2^63 for odd ones."""
    context = StreamContext(vbuckets)
    for vbucket in range(vbuckets):
        high = (vbucket & 1) << 63
        context.vbuuid[vbucket] = signed64(high | 0xABCDEF << 8 | vbucket)
        context.snapshot_start[vbucket] = signed64(high | 7 * vbucket)
        context.snapshot_end[vbucket] = signed64(high | 9 * vbucket + 1)
        context.snapshot_flags[vbucket] = vbucket % 4
        context.history[vbucket] = vbucket % 3
    return context


EVENT_OF: dict[type[Message], str] = {
    **dict.fromkeys((Mutation, PrototypeMutation, UprMutation, DraftMutation, TapMutation), "mutation"),
    **dict.fromkeys((Deletion, DeletionV2, UprDeletion, DraftDeletion, TapDelete), "deletion"),
    **dict.fromkeys((Expiration, OldExpiration, UprExpiration, DraftExpiration), "expiration"),
}


def change_of(message) -> Change:
    """Return the row that a message is in context_of(), from the message's own fields."""
    vbucket, high = message.vbucket, (message.vbucket & 1) << 63
    event = EVENT_OF[type(message)]
    change = Change(
        vbucket=vbucket,
        vbuuid=high | 0xABCDEF << 8 | vbucket,
        seqno=getattr(message, "by_seqno", None),
        rev_seqno=getattr(message, "rev_seqno", None),
        cas=message.cas,
        event=event,
        key=message.key,
        datatype=message.datatype,
        delete_time=getattr(message, "delete_time", None),
        snapshot_start=high | 7 * vbucket,
        snapshot_end=high | 9 * vbucket + 1,
        snapshot_flags=vbucket % 4,
        history=vbucket % 3,
    )
    if event == "mutation":
        value = message.value[: len(message.value) - getattr(message, "nmeta", 0)]
        lock_time = getattr(message, "lock_time", None)
        change = change._replace(value=value, flags=message.flags, expiry=message.expiry, lock_time=lock_time)
    if isinstance(message, PrototypeMutation) and message.collection_length:
        name, key = message.key[: message.collection_length], message.key[message.collection_length + 2 :]
        change = change._replace(collection=name.decode(), key=key)
    if isinstance(message, UprMutation | UprDeletion | DraftMutation):
        change = change._replace(snapshot_start=None, snapshot_end=None, snapshot_flags=None)
    if isinstance(message, DraftMutation):
        change = change._replace(datatype=None)
    if isinstance(message, TapMutation | TapDelete):
        change = change._replace(vbuuid=None, snapshot_start=None, snapshot_end=None, snapshot_flags=None)
        if len(message.engine_private) >= 8:
            change = change._replace(rev_seqno=int.from_bytes(message.engine_private[:8], "big"))
        if message.tap_flags & 2:
            change = change._replace(value=None)
    if isinstance(message, TapMutation) and not message.tap_flags & 4:
        change = change._replace(flags=int.from_bytes(message.flags.to_bytes(4, "little"), "big"))
    return change


def by_columns(run: Run, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    heads = gather_heads(run, prefixed=context.collections is not None)
    batch = decode_columns(run, heads, context, views=views)
    batch.validate(full=True)
    return batch


def assert_every_path(run: Run, context: StreamContext, expected: list[Change]) -> None:
    objects = decode_messages(run, context)
    assert objects == expected
    batch = by_columns(run, context)
    assert batch.schema == CHANGE_SCHEMA
    assert list_changes(batch) == expected
    small = make_batch(objects)
    small.validate(full=True)
    assert small.equals(batch)
    assert decode_run(run, context).equals(batch)
    viewed = by_columns(run, context, views=True)
    assert viewed.schema.field("value").type == pa.binary_view()
    assert list_changes(viewed) == expected
    assert viewed.column("value").cast(pa.binary()).equals(batch.column("value"))
    assert viewed.drop_columns(["value"]).equals(batch.drop_columns(["value"]))
    array_run = run._replace(offsets=np.array(run.offsets, np.int64))
    assert decode_messages(array_run, context) == expected
    assert decode_run(array_run, context).equals(batch)


@given(runs(2 * SMALL_RUN + 20), st.binary(max_size=60), st.integers(0, 20))
def test_every_path_makes_the_same_changes(messages: list[Message], before: bytes, behind: int) -> None:
    run = run_of([message.encode() for message in messages], before, behind)
    assert_every_path(run, context_of(), [change_of(message) for message in messages])


@pytest.mark.parametrize("path", [EVERY], indirect=True)
@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data(), before=st.binary(max_size=60), behind=st.integers(0, 20))
def test_every_path_makes_the_same_changes_of_every_dialect(
    dialect: Dialect, data: st.DataObject, before: bytes, behind: int
) -> None:
    messages = data.draw(runs_in(dialect, 12))
    for way in filter(has_way, PATHS):
        with use_path(way):
            run = run_of([message.encode() for message in messages], before, behind, dialect)
            assert_every_path(run, context_of(), [change_of(message) for message in messages])


GOLDEN_CHANGES = [message for _, message, _ in GOLDEN if type(message) in (Mutation, Deletion) and not message.framing]


def test_golden_changes() -> None:
    assert {type(message) for message in GOLDEN_CHANGES} == {Mutation, Deletion}
    run = run_of([message.encode() for message in GOLDEN_CHANGES])
    context = StreamContext(65536)
    changes = decode_messages(run, context)
    assert list_changes(by_columns(run, context)) == changes
    assert changes[1].seqno == changes[1].cas == changes[1].rev_seqno == U64
    assert (changes[1].vbucket, changes[1].flags, changes[1].expiry) == (65535, 0xFFFFFFFF, 0xFFFFFFFF)
    assert (changes[3].event, changes[3].value, changes[3].datatype) == ("deletion", None, 4)


@pytest.mark.parametrize("nbytes", [*range(15), 100])
@pytest.mark.parametrize("kind", ["alone", "among deletions", "before a longer one"])
def test_values_around_the_size_of_inline_views(nbytes: int, kind: str) -> None:
    value = bytes(range(200, 200 + nbytes)) if nbytes < 50 else b"\xff" * nbytes
    first: list[Message] = [Mutation(vbucket=3, key=b"k" * 250, value=value, by_seqno=1)]
    gone = Deletion(vbucket=3, key=b"d", value=b"\x01" * 20, by_seqno=2)
    longer = Mutation(vbucket=3, key=b"k", value=b"v" * 40, by_seqno=3)
    messages = {"alone": first, "among deletions": [gone, *first, gone], "before a longer one": [*first, longer]}[kind]
    run = run_of([message.encode() for message in messages])
    assert_every_path(run, context_of(), [change_of(message) for message in messages])


def test_views_lie_in_the_slab() -> None:
    run = run_of([Mutation(key=b"k", value=b"x" * 50, by_seqno=1).encode()])
    batch = by_columns(run, context_of(), views=True)
    place = bytes(run.buffer).index(b"x" * 50)
    run.buffer[place + 10] = ord("y")
    assert batch.column("value")[0].as_py() == b"x" * 10 + b"y" + b"x" * 39


def test_columns_are_copies() -> None:
    messages = [Mutation(key=b"k" * 30, value=b"x" * 50, by_seqno=n) for n in (1, 2)]
    run = run_of([message.encode() for message in messages])
    batch = by_columns(run, context_of())
    run.buffer[:] = bytes(len(run.buffer))
    assert list_changes(batch) == [change_of(message) for message in messages]


def test_run_is_longer_than_cached_columns() -> None:
    frame = Mutation(vbucket=5, key=b"k", by_seqno=1).encode()
    count = 70_000
    batch = by_columns(run_of([frame * count]), context_of())
    assert batch.num_rows == count
    assert list_changes(batch.slice(count - 1)) == [change_of(Mutation(vbucket=5, key=b"k", by_seqno=1))]


def test_run_at_end_of_slab_is_decoded() -> None:
    messages = [Deletion(vbucket=1, key=b"k", by_seqno=n + 1) for n in range(40)]
    data = b"".join(message.encode() for message in messages)
    connection = FrameReceiver(Slab(len(data)), run_dialect=Dialect.DCP)
    (run,) = connection.feed(data)
    assert isinstance(run, Run)
    assert len(run.buffer) == len(data) + SLACK
    assert_every_path(run, context_of(), [change_of(message) for message in messages])


# frames that break their layout


def head(opcode: int, key: int, extras: int, body: int, seqno: int = 1, nmeta: int = 0) -> bytes:
    start = (
        bytes([0x80, opcode]) + key.to_bytes(2, "big") + bytes([extras, 0, 0, 3]) + body.to_bytes(4, "big") + bytes(12)
    )
    return start + (seqno.to_bytes(8, "big") + bytes(20) + nmeta.to_bytes(2, "big") + bytes(200))[:body]


MUTATION, DELETION = Opcode.DCP_MUTATION, Opcode.DCP_DELETION
PROTOTYPE = PrototypeMutation(key=b"name::key", by_seqno=1, collection_length=4)
BAD = [
    (head(MUTATION, 1, 30, 40), "DCP_MUTATION: extras of 30 bytes, expected 31 or 32"),
    (head(MUTATION, 1, 0, 0), "DCP_MUTATION: extras of 0 and key of 1 bytes in a body of 0"),
    (head(MUTATION, 0, 31, 40), "DCP_MUTATION: key must be present, found 0 bytes"),
    (head(MUTATION, 10, 31, 40), "DCP_MUTATION: extras of 31 and key of 10 bytes in a body of 40"),
    (head(MUTATION, 0xFFFF, 31, 40), "DCP_MUTATION: extras of 31 and key of 65535 bytes in a body of 40"),
    (head(MUTATION, 1, 31, 40, seqno=0), "DCP_MUTATION: by_seqno 0, expected above 0"),
    (head(MUTATION, 1, 31, 40, nmeta=9), "DCP_MUTATION: extended meta data of 9 bytes, found 8 behind the key"),
    (head(DELETION, 1, 31, 40), "DCP_DELETION: extras of 31 bytes, expected 18 or 21"),
    (head(DELETION, 0, 18, 18), "DCP_DELETION: key must be present, found 0 bytes"),
    (head(DELETION, 2, 18, 19), "DCP_DELETION: extras of 18 and key of 2 bytes in a body of 19"),
    (head(DELETION, 1, 18, 19, seqno=0), "DCP_DELETION: by_seqno 0, expected above 0"),
]


@pytest.mark.parametrize(("frame", "text"), BAD, ids=[text for _, text in BAD])
@pytest.mark.parametrize("around", [0, SMALL_RUN])
def test_bad_frame_is_reported(frame: bytes, text: str, around: int) -> None:
    good = Mutation(vbucket=3, key=b"k", by_seqno=1).encode()
    run = run_of([*[good] * around, frame, *[good] * around])
    for decode in (decode_messages, decode_run, by_columns):
        with pytest.raises(RemoteProtocolError, match=f"^{text}$") as caught:
            decode(run, context_of())
        assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, True)


def damaged(message: Message, place: int, byte: int) -> bytes:
    frame = bytearray(message.encode())
    frame[place] = byte
    return bytes(frame)


EXTRAS_LENGTH, KEY_LENGTH, ENGINE_LENGTH, COLLECTION_LENGTH, KEY_OF_PROTOTYPE = 4, 3, 25, 55, 56
NAMED = PrototypeMutation(key=b"name::key", by_seqno=1, collection_length=4)
NOT_SPLIT = "expected a collection's name in UTF-8, b'::' and a key"
GOOD: dict[Dialect, Message] = {
    Dialect.DCP: NAMED,
    Dialect.UPR: UprMutation(key=b"kk", by_seqno=1),
    Dialect.UPR_DRAFT: DraftMutation(key=b"kk", by_seqno=1),
    Dialect.TAP: TapMutation(key=b"kk"),
}
BAD_IN = [
    (Dialect.DCP, damaged(NAMED, COLLECTION_LENGTH, 5), "DCP_MUTATION: no b'::' behind the first 5 bytes"),
    (Dialect.DCP, damaged(NAMED, COLLECTION_LENGTH, 8), "DCP_MUTATION: no b'::' behind the first 8 bytes"),
    (Dialect.DCP, damaged(NAMED, COLLECTION_LENGTH, 255), "DCP_MUTATION: no b'::' behind the first 255 bytes"),
    (Dialect.DCP, damaged(NAMED, KEY_OF_PROTOTYPE, 0xFF), rf"DCP_MUTATION: key b'\\xffame::key', {NOT_SPLIT}"),
    (
        Dialect.DCP,
        PrototypeMutation(key=b"name::", by_seqno=1, collection_length=4).encode(),
        f"DCP_MUTATION: key b'name::', {NOT_SPLIT}",
    ),
    (
        Dialect.DCP,
        damaged(DeletionV2(key=b"kk", by_seqno=1), EXTRAS_LENGTH, 22),
        "DCP_DELETION: extras of 22 and key of 2 bytes in a body of 23",
    ),
    (Dialect.DCP, Expiration(key=b"k", by_seqno=0).encode(), "DCP_EXPIRATION: by_seqno 0, expected above 0"),
    (Dialect.UPR, UprMutation(key=b"k", by_seqno=0).encode(), "UPR_MUTATION: by_seqno 0, expected above 0"),
    (
        Dialect.UPR,
        damaged(UprDeletion(key=b"kk", by_seqno=1), KEY_LENGTH, 1),
        "UPR_DELETION: value must be absent, found 1 bytes",
    ),
    (
        Dialect.UPR,
        damaged(UprMutation(key=b"kk", by_seqno=1), EXTRAS_LENGTH, 16),
        "UPR_MUTATION: extras of 16 bytes, expected 28",
    ),
    (Dialect.UPR_DRAFT, DraftDeletion(key=b"k", by_seqno=0).encode(), "DRAFT_DELETION: by_seqno 0, expected above 0"),
    (
        Dialect.UPR_DRAFT,
        damaged(DraftExpiration(key=b"kk", by_seqno=1), KEY_LENGTH, 1),
        "DRAFT_EXPIRATION: value must be absent, found 1 bytes",
    ),
    (
        Dialect.TAP,
        damaged(TapMutation(key=b"k"), ENGINE_LENGTH, 1),
        "TAP_MUTATION: engine-private data of more bytes than the 0 behind the extras",
    ),
    (Dialect.TAP, damaged(TapDelete(key=b"k"), KEY_LENGTH, 0), "TAP_DELETE: key must be present, found 0 bytes"),
]


@pytest.mark.parametrize(("dialect", "frame", "text"), BAD_IN, ids=[text for *_, text in BAD_IN])
@pytest.mark.parametrize("around", [0, SMALL_RUN])
def test_bad_frame_of_each_dialect_is_reported(dialect: Dialect, frame: bytes, text: str, around: int) -> None:
    good = GOOD[dialect].encode()
    run = run_of([*[good] * around, frame, frame, *[good] * around], dialect=dialect)
    for decode in (decode_messages, decode_run, by_columns):
        with pytest.raises(RemoteProtocolError, match=f"^{text}") as caught:
            decode(run, context_of())
        assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, True)


BAD_NAME, NO_KEY = damaged(NAMED, KEY_OF_PROTOTYPE, 0xFF), damaged(NAMED, KEY_LENGTH, 0)


@pytest.mark.parametrize(("frames", "text"), [([BAD_NAME, NO_KEY], "in UTF-8"), ([NO_KEY, BAD_NAME], "be present")])
def test_first_bad_frame_is_reported(frames: list[bytes], text: str) -> None:
    run = run_of([NAMED.encode(), frames[0], NAMED.encode(), frames[1]])
    for decode in (decode_messages, by_columns):
        with pytest.raises(RemoteProtocolError, match=text):
            decode(run, context_of())


def test_prototype_collections_are_decoded() -> None:
    messages = [NAMED, PrototypeMutation(key=b"a::b", by_seqno=2), Deletion(key=b"x::y", by_seqno=3)]
    batch = by_columns(run_of([message.encode() for message in messages]), context_of())
    assert batch.column("collection").to_pylist() == ["name", None, None]
    assert batch.column("key").to_pylist() == [b"key", b"a::b", b"x::y"]


def test_extended_metadata_is_not_part_of_value() -> None:
    messages = [
        Mutation(key=b"k", value=b"valuemeta", by_seqno=1, nmeta=4),
        DeletionV2(key=b"k", value=b"x", by_seqno=2),
        Deletion(key=b"k", value=b"meta", by_seqno=3, nmeta=4),
        Mutation(key=b"k", value=b"meta", by_seqno=4, nmeta=4),
    ]
    batch = by_columns(run_of([message.encode() for message in messages]), context_of())
    assert batch.column("value").to_pylist() == [b"value", None, None, b""]


TAP_FLAGS = [(0, 0x04030201, b"v"), (2, 0x04030201, None), (4, 0x01020304, b"v"), (6, 0x01020304, None)]


@pytest.mark.parametrize(("tap_flags", "flags", "value"), TAP_FLAGS)
@pytest.mark.parametrize(("private", "rev_seqno"), [(b"", None), (bytes(7), None), (bytes(7) + b"\x05", 5)])
def test_tap_flags_change_columns(
    tap_flags: int, flags: int, value: bytes | None, private: bytes, rev_seqno: int | None
) -> None:
    message = TapMutation(key=b"k", value=b"v", tap_flags=tap_flags, flags=0x01020304, engine_private=private)
    run = run_of([message.encode()] * 3, dialect=Dialect.TAP)
    for change in [*decode_messages(run, context_of()), *list_changes(by_columns(run, context_of()))]:
        assert (change.flags, change.value, change.rev_seqno, change.key) == (flags, value, rev_seqno, b"k")
        assert (change.seqno, change.vbuuid, change.snapshot_end) == (None, None, None)


@pytest.mark.parametrize("vbuckets", [(VBUCKETS,), (3, VBUCKETS), (65535, VBUCKETS, 1)])
def test_impossible_vbucket_is_refused(vbuckets: tuple[int, ...]) -> None:
    run = run_of([Mutation(vbucket=vbucket, key=b"k", by_seqno=1).encode() for vbucket in vbuckets])
    wrong = next(vbucket for vbucket in vbuckets if vbucket >= VBUCKETS)
    for decode in (decode_messages, decode_run, by_columns):
        with pytest.raises(RemoteProtocolError, match=f"^change of vbucket {wrong}, expected one below {VBUCKETS}$"):
            decode(run, context_of())


def test_broken_layout_is_reported_before_impossible_vbucket() -> None:
    foreign = Mutation(vbucket=VBUCKETS, key=b"k", by_seqno=1).encode()
    run = run_of([foreign, Mutation(key=b"k", by_seqno=0).encode()])
    for decode in (decode_messages, decode_run, by_columns):
        with pytest.raises(RemoteProtocolError, match="by_seqno 0"):
            decode(run, context_of())


@pytest.mark.parametrize("path", [EVERY], indirect=True)
@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
def test_damage_is_a_remote_error_or_the_same_changes(dialect: Dialect, data: st.DataObject) -> None:
    """Bytes that make frames a run are not damaged: magic, opcode, length. Nor are vbuckets, which are checked last."""
    messages = data.draw(runs_in(dialect, 12))
    run = run_of([message.encode() for message in messages], dialect=dialect)
    places = st.integers(2, 70) | st.sampled_from([KEY_LENGTH, EXTRAS_LENGTH, ENGINE_LENGTH, COLLECTION_LENGTH])
    for row, place, byte in data.draw(st.lists(st.tuples(st.integers(0, 11), places, st.integers(0, 255)), max_size=6)):
        offset = run.offsets[row % len(run.offsets)]
        kept = {at + part for at in run.offsets for part in (0, 1, *range(6, 12))}
        if offset + place < run.end and offset + place not in kept:
            run.buffer[offset + place] = byte
    for way in filter(has_way, PATHS):
        with use_path(way):
            by_messages = outcome(lambda: decode_messages(run, context_of()))
            assert by_messages == outcome(lambda: list_changes(by_columns(run, context_of()))), way


@pytest.mark.parametrize("around", [0, SMALL_RUN])
def test_first_of_two_bad_frames_is_named(around: int) -> None:
    deletion = UprDeletion(key=b"k", by_seqno=1).encode()
    with_value = deletion[:8] + (18).to_bytes(4, "big") + deletion[12:] + b"v"
    without_extras = with_value[:4] + b"\0" + with_value[5:]
    run = run_of([*[deletion] * around, with_value, without_extras], dialect=Dialect.UPR)
    for decode in (decode_messages, decode_run, by_columns):
        with pytest.raises(RemoteProtocolError, match=r"^UPR_DELETION: value must be absent, found 1 bytes$"):
            decode(run, context_of())


def outcome(decode) -> object:
    try:
        return decode()
    except RemoteProtocolError as error:
        return str(error)


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
def test_batch_of_objects_round_trips(changes: list[Change]) -> None:
    batch = make_batch(changes)
    batch.validate(full=True)
    assert batch.schema == CHANGE_SCHEMA
    assert list_changes(batch) == changes


def test_rollback_row_is_built() -> None:
    rollback = Change(7, 0xABC, 5, event=Event.ROLLBACK, history=2, requested_seqno=9)
    (row,) = make_batch([rollback]).to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        **{"vbucket": 7, "vbuuid": 0xABC, "seqno": 5, "event": "rollback", "history": 2, "requested_seqno": 9}
    }


def test_empty_list_makes_empty_batch() -> None:
    assert make_batch([]).num_rows == 0
    assert list_changes(make_batch([])) == []


def test_u64_keeps_its_bits() -> None:
    change = Change(1, U64, U64, U64, U64, snapshot_start=U64, snapshot_end=U64, requested_seqno=U64)
    (row,) = make_batch([change]).to_pylist()
    assert {row[name] for name in UNSIGNED64} == {-1}
    assert list_changes(make_batch([change])) == [change]
