"""The extension module: it gives the same results as Python, and reads and writes nothing outside its buffers."""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.wire
from penstock.errors import RemoteProtocolError
from penstock.wire.codec import native
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import (
    BODY_AT,
    HEADER_BYTES,
    MAGICS,
    NATIVE_TABLE,
    Buffer,
    Frame,
    cut_frames,
    join_frame,
)
from penstock.wire.codec.layout import Message
from penstock.wire.columns import frame_offsets, native_tables
from penstock.wire.columns.collection_names import CollectionNames
from penstock.wire.columns.data_forms import SLACK
from penstock.wire.columns.frame_offsets import find_offsets
from penstock.wire.columns.heads import Run, StreamContext, gather_heads
from penstock.wire.columns.run_decoder import decode_columns
from penstock.wire.messages.dcp import Deletion, Mutation
from penstock.wire.protocol.frame_receiver import BrokenInput, FrameReceiver, MalformedFrame, ReceiveEvent, Slab
from tests.golden import GOLDEN_OF, frame_of
from tests.strategies import VBUCKETS, hostile, pieces, runs_in

TABLE = native_tables.TABLES[Dialect.DCP]
FRAME = Mutation(vbucket=3, key=b"key", value=b"value", by_seqno=1).encode()
COUNT = 5
FRAMED = (0x08, 0x18)


@pytest.fixture(scope="module")
def extension() -> Iterator[ModuleType]:
    """The module, used for any number of bytes."""
    if native.extension is None:
        pytest.skip("the extension module was not built, or PENSTOCK_NATIVE=0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_offsets, "FEW_BYTES", -1)
        yield native.extension


def test_extension_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "_native.abi3.so").write_bytes(b"of another machine")
    monkeypatch.setattr(penstock.wire, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "penstock.wire._native", raising=False)
    monkeypatch.delenv("PENSTOCK_NATIVE", raising=False)
    with pytest.warns(RuntimeWarning, match=r"^/.*/_native\.abi3\.so cannot be loaded, so Penstock is slower: "):
        assert native.load_extension() is None
    (tmp_path / "_native.abi3.so").unlink()
    importlib.invalidate_caches()
    assert native.load_extension() is None


# The same as Python


def columns(run: Run, *, views: bool, prefixed: bool = False) -> object:
    """Return the rows of a run, or its fault."""
    context = StreamContext(VBUCKETS)
    context.collections = CollectionNames() if prefixed else None
    try:
        batch = decode_columns(run, gather_heads(run, prefixed=prefixed), context, views=views)
    except RemoteProtocolError as error:
        return str(error), error.status, error.fatal
    batch.validate(full=True)
    return batch.to_pylist()


def received(data: Iterable[bytes], dialect: Dialect | None) -> list[object]:
    """Return all that is made of some pieces of bytes."""
    connection = FrameReceiver(Slab(1 << 18), run_dialect=dialect, max_frame=1 << 20)
    return [described(event) for piece in data for event in connection.feed(piece)]


def described(event: ReceiveEvent) -> object:
    """Return the contents of an event, without bytes that the next event overwrites."""
    if isinstance(event, Run):
        of_collections = columns(event, views=False, prefixed=True) if event.dialect is Dialect.DCP else None
        offsets = [*map(int, event.offsets)]
        return offsets, event.end, columns(event, views=False), columns(event, views=True), of_collections
    if isinstance(event, MalformedFrame | BrokenInput):
        return tuple(str(part) if isinstance(part, RemoteProtocolError) else part for part in event)
    return event


def assert_the_same(data: list[bytes], dialect: Dialect | None) -> list[object]:
    """Return the events of some pieces of bytes, after a check that both ways give the same."""
    natively = received(data, dialect)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "extension", None)
        assert received(data, dialect) == natively
    return natively


@pytest.mark.parametrize("dialect", [None, *Dialect])
@pytest.mark.parametrize("rows", GOLDEN_OF.values(), ids=GOLDEN_OF)
def test_golden_frames_natively(
    extension: ModuleType, rows: list[tuple[str, Message, str]], dialect: Dialect | None
) -> None:
    frames = [frame_of(row) for _, _, row in rows]
    for frame in frames:
        assert len(assert_the_same([frame], dialect)) == 1
        assert assert_the_same([frame[:-1]], dialect) == []
    assert_the_same([b"".join(frames)], dialect)


@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
def test_runs_natively(extension: ModuleType, dialect: Dialect, data: st.DataObject) -> None:
    sent = b"".join(message.encode() for message in data.draw(runs_in(dialect)))
    assert len(assert_the_same([sent], dialect)) == 1


@pytest.mark.parametrize("dialect", [None, *Dialect])
@given(data=st.data())
def test_bytes_of_a_hostile_peer_natively(extension: ModuleType, dialect: Dialect | None, data: st.DataObject) -> None:
    sent = data.draw(hostile(dialect) | st.binary(max_size=200))
    assert_the_same(data.draw(pieces(sent)), dialect)


# By itself


def slab() -> bytearray:
    return bytearray(FRAME * COUNT + bytes(SLACK))


def offsets() -> np.ndarray:
    return np.arange(COUNT, dtype=np.int64) * len(FRAME)


def gather(extension: ModuleType, buffer: bytearray, places: np.ndarray, end: int, rows: int = COUNT):
    forms, parts = np.empty(rows, np.uint8), np.empty((3, rows), np.int64)
    wide, narrow = np.empty((len(TABLE.wide), rows), np.int64), np.empty((len(TABLE.narrow), rows), np.int32)
    return extension.gather(buffer, places, end, TABLE.table, TABLE.number_of, forms, parts, wide, narrow)


def hops(extension: ModuleType, buffer: bytearray, start: int, end: int, room: int = COUNT) -> tuple[int, int, int]:
    found = np.empty((2, room), np.int64)
    frames, alone, position = extension.hop(buffer, start, end, HEADER_BYTES, BODY_AT, TABLE.run_conditions, *found)
    return frames, alone, position


def cut(extension: ModuleType, buffer: bytearray, start: int, end: int, table: bytes = NATIVE_TABLE) -> object:
    return extension.cut(Frame, buffer, start, end, table)


@given(framing=st.binary(max_size=9), key=st.binary(max_size=9), end=st.integers(0, 200))
def test_frames_are_cut_natively(extension: ModuleType, framing: bytes, key: bytes, end: int) -> None:
    """Frames with framing extras, of every direction, up to the first that is not whole or not sound."""
    frames = [
        Frame(magic, 0xFE, 0xFFFF, 7, 2**32 - 1, 2**64 - 1, b"ab", key, b"value", framing if magic in FRAMED else b"")
        for magic in sorted(MAGICS)
    ]
    sent = bytearray(b"".join(map(join_frame, frames)))
    natively = cut_frames(memoryview(sent), 0, min(end, len(sent)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "extension", None)
        assert cut_frames(memoryview(sent), 0, min(end, len(sent))) == natively
    assert cut_frames(memoryview(sent), 0, len(sent)) == (frames, len(sent))
    sent[len(join_frame(frames[0]))] = 0
    assert cut_frames(memoryview(sent), 0, len(sent)) == (frames[:1], len(join_frame(frames[0])))


def test_native_search_stops_with_loop(extension: ModuleType) -> None:
    for end in range(COUNT * len(FRAME) + 1):
        expected, position = find_offsets(slab(), 0, end)
        assert hops(extension, slab(), 0, end) == (len(expected), 0, position)


@pytest.mark.parametrize("body", [0xFFFFFFFF, 0x7FFFFFFF, 1 << 31])
def test_native_search_stops_at_missing_length(extension: ModuleType, body: int) -> None:
    buffer = slab()
    buffer[len(FRAME) + BODY_AT : len(FRAME) + BODY_AT + 4] = body.to_bytes(4, "big")
    assert hops(extension, buffer, 0, COUNT * len(FRAME)) == (1, 0, len(FRAME))


def test_native_search_respects_room(extension: ModuleType) -> None:
    assert hops(extension, slab(), 0, COUNT * len(FRAME), room=2) == (2, 0, 2 * len(FRAME))


def test_prefixed_keys_have_collection_column(extension: ModuleType) -> None:
    table, rows = native_tables.PREFIXED_TABLE, COUNT
    forms, parts = np.empty(rows, np.uint8), np.empty((3, rows), np.int64)
    wide, narrow = np.empty((len(table.wide), rows), np.int64), np.empty((len(table.narrow), rows), np.int32)
    columns = (table.table, table.number_of, forms, parts, wide, narrow)
    assert extension.gather(slab(), offsets(), END, *columns) == (COUNT, 1)
    assert set(wide[-1].tolist()) == {ord("k")}
    with pytest.raises(ValueError, match="a place outside of its buffer"):
        extension.gather(slab(), offsets(), END, *columns[:4], wide[:-1], narrow)


def test_gather_stops_at_broken_frame(extension: ModuleType) -> None:
    buffer, end = slab(), COUNT * len(FRAME)
    assert gather(extension, buffer, offsets(), end) == (COUNT, 1)
    buffer[3 * len(FRAME) + 4] = 30
    assert gather(extension, buffer, offsets(), end) == (3, 1)


SHORT = Deletion(key=b"k", by_seqno=1).encode()
END = COUNT * len(FRAME)
OUTSIDE: list[tuple[str, Callable[[ModuleType, bytearray], object]]] = [
    ("cut from before the start", lambda extension, buffer: cut(extension, buffer, -1, END)),
    ("cut behind the end", lambda extension, buffer: cut(extension, buffer, 0, len(buffer) + 1)),
    ("cut with a short table", lambda extension, buffer: cut(extension, buffer, 0, END, NATIVE_TABLE[:-1])),
    ("cut into a list", lambda extension, buffer: extension.cut(list, buffer, 0, END, NATIVE_TABLE)),
    ("hop from before the start", lambda extension, buffer: hops(extension, buffer, -1, END)),
    ("hop behind the end", lambda extension, buffer: hops(extension, buffer, 0, len(buffer) + 1)),
    ("a negative offset", lambda extension, buffer: gather(extension, buffer, offsets() - 1, END)),
    ("an offset behind the end", lambda extension, buffer: gather(extension, buffer, offsets() + len(buffer), END)),
    ("an offset beyond all", lambda extension, buffer: gather(extension, buffer, offsets() + 2**62, END)),
    ("no slack", lambda extension, _: gather(extension, bytearray(SHORT), np.zeros(1, np.int64), len(SHORT), rows=1)),
    ("an end behind the buffer", lambda extension, buffer: gather(extension, buffer, offsets(), len(buffer) + 1)),
    ("columns too short", lambda extension, buffer: gather(extension, buffer, offsets(), END, rows=COUNT - 1)),
    ("a part before the start", lambda extension, buffer: copy(extension, buffer, [-1], [3], 4)),
    ("a part that ends first", lambda extension, buffer: copy(extension, buffer, [3], [2], 4)),
    ("a part behind the end", lambda extension, buffer: copy(extension, buffer, [0], [len(buffer) + 1], 4096)),
    ("a part beyond all", lambda extension, buffer: copy(extension, buffer, [2**62], [2**63 - 1], 4)),
    ("no room", lambda extension, buffer: copy(extension, buffer, [0, 5], [5, 10], 9)),
    ("fewer ends than starts", lambda extension, buffer: copy(extension, buffer, [0, 5], [5], 90)),
]


def copy(extension: ModuleType, buffer: bytearray, starts: list[int], ends: list[int], room: int) -> object:
    bounds = np.empty(len(starts) + 1, np.int32)
    return extension.copy(buffer, np.array(starts, np.int64), np.array(ends, np.int64), bounds, bytearray(room))


@pytest.mark.parametrize("call", [call for _, call in OUTSIDE], ids=[name for name, _ in OUTSIDE])
def test_offsets_outside_buffer_are_refused(
    extension: ModuleType, call: Callable[[ModuleType, bytearray], object]
) -> None:
    buffer = slab()
    with pytest.raises(ValueError, match="a place outside of its buffer"):
        call(extension, buffer)
    buffer.append(0)  # a buffer that is still held cannot grow


def test_buffers_are_released(extension: ModuleType) -> None:
    buffer = slab()
    hops(extension, buffer, 0, END)
    gather(extension, buffer, offsets(), END)
    copy(extension, buffer, [0], [5], 5)
    with pytest.raises(TypeError):
        extension.hop(buffer, "0")
    with pytest.raises(TypeError):
        extension.copy(buffer, offsets(), offsets(), np.empty((4, 4), np.int32)[:, :2], bytearray(1))
    buffer.append(0)


@pytest.mark.parametrize("sizes", [[], [0], [32, 0, 33, 31], [1] * 40, [100, 1, 1]])
def test_copy(extension: ModuleType, sizes: list[int]) -> None:
    buffer = bytes(range(256))
    starts = np.arange(len(sizes), dtype=np.int64) * 5
    ends = starts + np.array(sizes, np.int64)
    bounds, data = np.empty(len(sizes) + 1, np.int32), bytearray(sum(sizes))
    assert extension.copy(buffer, starts, ends, bounds, data) == sum(sizes)
    assert [bytes(data[bounds[row] : bounds[row + 1]]) for row in range(len(sizes))] == [
        buffer[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


@pytest.mark.parametrize("parts", [(), (b"",), (b"ab", b"", memoryview(b"xcdx")[1:3], bytearray(b"e" * 70_000))])
def test_join(extension: ModuleType, parts: tuple[Buffer, ...]) -> None:
    assert extension.join(parts) == b"".join(parts)


def test_join_accepts_only_buffers(extension: ModuleType) -> None:
    room = bytearray(8)
    with pytest.raises(TypeError):
        extension.join((room, 5))
    room.clear()  # it was let go of


def test_short_values_are_copied(extension: ModuleType) -> None:
    data = bytearray(100)
    extension.copy(b"abc", np.array([0, 1]), np.array([3, 3]), np.empty(3, np.int32), data)
    assert data[:5] == b"abcbc"
    assert not any(data[5:])
