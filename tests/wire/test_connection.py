"""A frame receiver gives the same events wherever its bytes are cut."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import MAX_FRAME, Dialect
from penstock.wire.codec.frame import Frame, cut_frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.data_forms import SLACK
from penstock.wire.columns.heads import Run
from penstock.wire.columns.run_decoder import SMALL_RUN
from penstock.wire.messages import dcp, kv
from penstock.wire.protocol.frame_receiver import (
    VIEWED_FROM,
    BrokenInput,
    FrameReceiver,
    MalformedFrame,
    ReceiveEvent,
    Slab,
)
from tests.golden import GOLDEN_OF, frame_of
from tests.strategies import frames, hostile, pieces, runs, runs_in
from tests.wire.ways import EVERY, HOPS, has_way, use_hops

pytestmark = pytest.mark.usefixtures("hops")

SMALL_SLAB = 512
GOLDEN_ROWS = [
    (f"{dialect.value}: {label}", frame_of(row)) for dialect in GOLDEN_OF for label, _, row in GOLDEN_OF[dialect]
]
GOLDEN_FRAMES = [frame for _, frame in GOLDEN_ROWS]
Facts = tuple[Any, ...]

CHANGES = {
    Dialect.DCP: (0x80, {0x57, 0x58, 0x59}),
    Dialect.UPR: (0x80, {0x56, 0x57, 0x58}),
    Dialect.UPR_DRAFT: (0x81, {0x04}),
    Dialect.TAP: (0x80, {0x41, 0x42}),
}


def is_change(data: bytes, dialect: Dialect) -> bool:
    """Say whether a frame may stand in a run, from the protocols' tables of opcodes."""
    magic, opcodes = CHANGES[dialect]
    return data[0] == magic and data[1] in opcodes and (dialect is not Dialect.UPR_DRAFT or data[5] in {3, 4, 5})


def reported(events: Iterable[ReceiveEvent]) -> list[Facts]:
    """Return the contents of events, frames of a run one by one, as copies: a run's bytes are soon overwritten."""
    found: list[Facts] = []
    for event in events:
        match event:
            case Run(buffer, offsets, end, _):
                bounds = [*map(int, offsets), end]
                found += [("run", bytes(buffer[start:behind])) for start, behind in itertools.pairwise(bounds)]
            case Frame():
                found.append(("frame", event))
            case MalformedFrame(magic, opcode, opaque, error):
                found.append(("malformed", magic, opcode, opaque, str(error), error.status))
            case BrokenInput(error):
                found.append(("broken", str(error), error.status, error.fatal))
    return found


def receive(
    data: Iterable[bytes], *, runs: Dialect | None, slab: int = SMALL_SLAB, max_frame: int = 4096
) -> list[Facts]:
    """Return the contents of all events of a new connection for some pieces of bytes."""
    connection = FrameReceiver(Slab(slab), run_dialect=runs, max_frame=max_frame)
    return [found for piece in data for found in reported(connection.feed(piece))]


@pytest.mark.parametrize("with_runs", [None, *Dialect])
def test_golden_frames_are_received(with_runs: Dialect | None) -> None:
    for label, data in GOLDEN_ROWS:
        is_run = with_runs is not None and is_change(data, with_runs)
        expected = ("run", data) if is_run else ("frame", cut_frame(memoryview(data), 0))
        assert receive([data], runs=with_runs) == [expected], label
        connection = FrameReceiver(Slab(SMALL_SLAB), run_dialect=with_runs)
        byte_by_byte = [reported(connection.feed(data[at : at + 1])) for at in range(len(data))]
        assert byte_by_byte == [[]] * (len(data) - 1) + [[expected]], f"{label}, byte by byte"
        assert receive([data + data[:23]], runs=with_runs) == [expected], f"{label}, the beginning of another behind it"
        assert receive([data[:-1]], runs=with_runs) == [], f"{label}, cut short"
        assert receive([data + data], runs=with_runs) == [expected, expected], f"{label}, twice"


@pytest.mark.parametrize("hops", [EVERY], indirect=True)
@given(st.data(), st.sampled_from([None, *Dialect]), st.sampled_from([24, 60, SMALL_SLAB, 1 << 17]))
def test_frames_in_any_pieces(data: st.DataObject, with_runs: Dialect | None, slab: int) -> None:
    sent = b"".join(map(join_frame, data.draw(st.lists(frames(), max_size=8))))
    sent += b"".join(message.encode() for message in data.draw(runs_in(with_runs or Dialect.DCP, 8)))
    cut = data.draw(pieces(sent))
    for way in filter(has_way, HOPS):
        with use_hops(way):
            whole = receive([sent], runs=with_runs, slab=1 << 17, max_frame=1 << 20)
            assert receive(cut, runs=with_runs, slab=slab, max_frame=1 << 20) == whole, way
        assert b"".join(found[1] if found[0] == "run" else join_frame(found[1]) for found in whole) == sent, way


@pytest.mark.parametrize("hops", [EVERY], indirect=True)
@pytest.mark.parametrize("with_runs", [None, *Dialect])
@given(data=st.data(), step=st.integers(1, 40))
def test_any_bytes_in_any_pieces(with_runs: Dialect | None, data: st.DataObject, step: int) -> None:
    sent = data.draw(st.binary(max_size=200) | hostile(with_runs))
    cut = data.draw(pieces(sent))
    for way in filter(has_way, HOPS):
        with use_hops(way):
            whole = receive([sent], runs=with_runs)
            assert receive([sent[at : at + step] for at in range(0, len(sent), step)], runs=with_runs) == whole, way
            assert receive(cut, runs=with_runs, slab=64) == whole, way
        assert [found[0] for found in whole].count("broken") <= 1, way
        assert "broken" not in [found[0] for found in whole[:-1]], way


@given(runs(3 * SMALL_RUN), st.lists(st.tuples(st.integers(0, 90), st.sampled_from(GOLDEN_FRAMES)), max_size=4))
def test_other_message_ends_run(changes: list[dcp.Mutation], others: list[tuple[int, bytes]]) -> None:
    sent = [message.encode() for message in changes]
    for place, other in others:
        sent.insert(place, other)
    connection = FrameReceiver(Slab(), run_dialect=Dialect.DCP)
    events = list(connection.feed(b"".join(sent)))
    assert [found[1] if found[0] == "run" else join_frame(found[1]) for found in reported(events)] == sent
    assert not any(isinstance(one, Run) and isinstance(next_, Run) for one, next_ in itertools.pairwise(events))


@pytest.mark.parametrize("hops", [EVERY], indirect=True)
@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
def test_runs_of_every_dialect(dialect: Dialect, data: st.DataObject) -> None:
    sent = [message.encode() for message in data.draw(runs_in(dialect, 5))] * data.draw(st.sampled_from([1, SMALL_RUN]))
    noop = kv.Noop().encode()
    for way in filter(has_way, HOPS):
        with use_hops(way):
            events = list(FrameReceiver(Slab(), run_dialect=dialect).feed(b"".join([*sent, noop, *sent])))
        assert [type(event) for event in events] == [Run, Frame, Run], way
        assert {event.dialect for event in events if isinstance(event, Run)} == {dialect}, way
        assert [found[1] for found in reported(events) if found[0] == "run"] == sent * 2, way


def test_change_with_framing_extras_is_not_in_run() -> None:
    mutation = dcp.Mutation(vbucket=1, key=b"k", by_seqno=1).encode()
    framed = join_frame(cut_frame(memoryview(mutation), 0)._replace(magic=0x08, framing=b"\x22\x00\x01"))
    found = receive([mutation + framed + mutation], runs=Dialect.DCP)
    assert [kind for kind, _ in found] == ["run", "frame", "run"]
    assert found[1][1].framing == b"\x22\x00\x01"


@pytest.mark.parametrize("magic", [0x00, 0x7F, 0x84, 0xFF])
@pytest.mark.parametrize("body", [0, 10, 0xFFFFFFFF])
def test_unknown_magic_is_last_event(magic: int, body: int) -> None:
    noop = kv.Noop().encode()
    bad = bytes([magic]) + bytes(7) + body.to_bytes(4, "big") + bytes(12)
    expected = [
        ("frame", cut_frame(memoryview(noop), 0)),
        ("broken", f"first byte of a frame is 0x{magic:02x}, not a known magic", Status.EINVAL, True),
    ]
    for pieces_ in ([noop + bad + noop * 2], [noop, bad[:23], bad[23:] + bytes(10)], [noop + bad, noop, noop]):
        assert receive(pieces_, runs=None) == expected
        assert receive(pieces_, runs=Dialect.DCP) == expected


@pytest.mark.parametrize("body", [4096 - 24 + 1, 1 << 20, 0xFFFFFFFF])
def test_too_long_frame_is_refused_before_it_is_read(body: int) -> None:
    header = frame_of("80010000 00000000") + body.to_bytes(4, "big") + bytes(12)
    expected = [("broken", f"frame of {body + 24} bytes (SET), limit 4096", Status.E2BIG, True)]
    assert receive([header], runs=None) == expected
    assert receive([header[:11], header[11:] + bytes(400)], runs=Dialect.DCP) == expected


def test_refused_length_allocates_no_memory() -> None:
    connection = FrameReceiver(Slab(), run_dialect=Dialect.DCP)
    room = len(connection.get_buffer())
    header = frame_of("80010000 00000000") + (MAX_FRAME - 23).to_bytes(4, "big") + bytes(12)
    (event,) = connection.feed(header)
    assert isinstance(event, BrokenInput)
    assert len(connection.get_buffer()) == room
    assert list(connection.feed(kv.Noop().encode())) == []


def test_malformed_frames_are_skipped() -> None:
    bad = frame_of("80000006 00000000 00000005 00000009 0000000000000000 68656c6c6f")
    noop = kv.Noop().encode()
    frame = ("frame", cut_frame(memoryview(noop), 0))
    error = "GET: extras of 0 and key of 6 bytes in a body of 5"
    malformed = ("malformed", 0x80, Opcode.GET, 9, error, Status.EINVAL)
    assert receive([noop + bad + noop], runs=None) == [frame, malformed, frame]
    assert receive([noop + bad + noop], runs=Dialect.DCP) == [frame, malformed, frame]


LONG = [300, SMALL_SLAB - 56, SMALL_SLAB - 55, SMALL_SLAB - 54, SMALL_SLAB, 5000, 65536, 70_000, 200_000]


@pytest.mark.parametrize("slab", [SMALL_SLAB, 100_000])
@pytest.mark.parametrize("step", [100, 7001, 1 << 20])
def test_long_frames_are_received(slab: int, step: int) -> None:
    for nbytes in LONG:
        small, long = (dcp.Mutation(key=b"k", value=bytes(n), by_seqno=1).encode() for n in (10, nbytes))
        sent = small + long + small + long + small
        cut = [sent[at : at + step] for at in range(0, len(sent), step)]
        found = receive(cut, runs=Dialect.DCP, slab=slab, max_frame=1 << 20)
        assert found == [("run", data) for data in (small, long, small, long, small)], f"{nbytes} bytes"


def test_long_frame_has_own_buffer() -> None:
    connection = FrameReceiver(Slab(), run_dialect=None)
    long = kv.Set(key=b"k", value=bytes(1 << 20)).encode()
    assert list(connection.feed(long[:1000])) == []
    assert len(connection.get_buffer()) == len(long) - 1000
    ((_, frame),) = reported(connection.feed(long[1000:]))
    assert len(frame.value) == 1 << 20
    assert len(connection.get_buffer()) == connection.slab.nbytes


@pytest.mark.parametrize("framing", [b"", b"\x12\x34"])
@pytest.mark.parametrize("nbytes", [300, VIEWED_FROM - 100, VIEWED_FROM + 1, 1 << 20])
def test_values_of_long_frames_may_be_views(nbytes: int, framing: bytes) -> None:
    connection = FrameReceiver(Slab(1024), run_dialect=None, viewed_opcodes={Opcode.SET})
    magic = Magic.ALT_REQUEST if framing else Magic.REQUEST
    frames = [
        Frame(magic, opcode, 3, 1, 7, 9, b"extras..", b"key", b"v" * nbytes, framing)
        for opcode in (Opcode.SET, Opcode.APPEND)
    ]
    events = list(connection.feed(b"".join(map(join_frame, frames))))
    assert events == frames
    kinds = [type(event.value) for event in events if isinstance(event, Frame)]
    assert kinds == [memoryview if nbytes > VIEWED_FROM else bytes, bytes]


def test_receivers_share_slab() -> None:
    slab = Slab(SMALL_SLAB)
    receivers = [FrameReceiver(slab, run_dialect=Dialect.DCP, max_frame=4096) for _ in range(3)]
    sent = [dcp.Mutation(key=b"k", value=bytes([n]) * 300, by_seqno=n + 1).encode() * 2 for n in range(3)]
    found: list[list[Facts]] = [[], [], []]
    for at in range(0, len(sent[0]), 50):
        for n, connection in enumerate(receivers):
            found[n] += reported(connection.feed(sent[n][at : at + 50]))
    for n in range(3):
        assert [data for _, data in found[n]] == [sent[n][: len(sent[n]) // 2]] * 2


def test_buffer_is_never_empty() -> None:
    sent = b"".join(dcp.Mutation(key=b"k", value=bytes(n), by_seqno=1).encode() for n in range(600))
    connection = FrameReceiver(Slab(100), run_dialect=Dialect.DCP, max_frame=1000)
    while sent:
        room = connection.get_buffer()
        assert room
        nbytes = min(len(room), len(sent), 37)
        room[:nbytes] = sent[:nbytes]
        assert not any(isinstance(event, BrokenInput) for event in connection.receive_data(nbytes))
        sent = sent[nbytes:]


def test_buffer_has_room_after_limit_falls() -> None:
    connection = FrameReceiver(Slab(1 << 16), run_dialect=None)
    half = dcp.Mutation(key=b"k", value=bytes(20_000), by_seqno=1).encode()[:15_000]
    assert not list(connection.feed(half))
    connection.max_frame = 4096
    assert connection.get_buffer()
    (event,) = connection.feed(bytes(10))
    assert isinstance(event, BrokenInput)


def test_slab_has_slack_after_run() -> None:
    deletion = dcp.Deletion(key=b"k", by_seqno=1).encode()
    connection = FrameReceiver(Slab(len(deletion) * 2), run_dialect=Dialect.DCP)
    (run,) = connection.feed(deletion * 2)
    assert isinstance(run, Run)
    assert run.end == len(deletion) * 2
    assert len(run.buffer) >= int(run.offsets[-1]) + SLACK


def test_error_has_status_of_reply() -> None:
    assert RemoteProtocolError("").status == Status.EINVAL
