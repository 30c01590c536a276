"""Bytes in, events out, wherever the bytes are cut."""

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
from penstock.wire.columns.heads import Run
from penstock.wire.columns.run_decoder import SMALL_RUN
from penstock.wire.columns.shapes import SLACK
from penstock.wire.messages import dcp, kv
from penstock.wire.protocol.frame_receiver import VIEWED_FROM, Broken, Connection, Malformed, ReceiveEvent, Slab
from tests.golden import GOLDEN_OF, frame_of
from tests.strategies import frames, hostile, pieces, runs, runs_in

pytestmark = pytest.mark.usefixtures("hops")

SMALL_SLAB = 512
GOLDEN_ROWS = [
    (f"{dialect.value}: {what}", frame_of(row)) for dialect in GOLDEN_OF for what, _, row in GOLDEN_OF[dialect]
]
GOLDEN_FRAMES = [frame for _, frame in GOLDEN_ROWS]
Said = tuple[Any, ...]

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


def told(events: Iterable[ReceiveEvent]) -> list[Said]:
    """Return what events say, frames of a run one by one, as copies: a run's bytes are soon overwritten."""
    said: list[Said] = []
    for event in events:
        match event:
            case Run(buffer, offsets, end, _):
                bounds = [*map(int, offsets), end]
                said += [("run", bytes(buffer[start:behind])) for start, behind in itertools.pairwise(bounds)]
            case Frame():
                said.append(("frame", event))
            case Malformed(magic, opcode, opaque, error):
                said.append(("malformed", magic, opcode, opaque, str(error), error.status))
            case Broken(error):
                said.append(("broken", str(error), error.status, error.fatal))
    return said


def receive(
    data: Iterable[bytes], *, runs: Dialect | None, slab: int = SMALL_SLAB, max_frame: int = 4096
) -> list[Said]:
    """Return all that a new connection says of some pieces of bytes."""
    connection = Connection(Slab(slab), runs=runs, max_frame=max_frame)
    return [said for piece in data for said in told(connection.feed(piece))]


@pytest.mark.parametrize("with_runs", [None, *Dialect])
def test_golden(with_runs: Dialect | None) -> None:
    for what, data in GOLDEN_ROWS:
        is_run = with_runs is not None and is_change(data, with_runs)
        expected = ("run", data) if is_run else ("frame", cut_frame(memoryview(data), 0))
        assert receive([data], runs=with_runs) == [expected], what
        connection = Connection(Slab(SMALL_SLAB), runs=with_runs)
        byte_by_byte = [told(connection.feed(data[at : at + 1])) for at in range(len(data))]
        assert byte_by_byte == [[]] * (len(data) - 1) + [[expected]], f"{what}, byte by byte"
        assert receive([data + data[:23]], runs=with_runs) == [expected], f"{what}, the beginning of another behind it"
        assert receive([data[:-1]], runs=with_runs) == [], f"{what}, cut short"
        assert receive([data + data], runs=with_runs) == [expected, expected], f"{what}, twice"


@given(st.data(), st.sampled_from([None, *Dialect]), st.sampled_from([24, 60, SMALL_SLAB, 1 << 17]))
def test_frames_in_any_pieces(data: st.DataObject, with_runs: Dialect | None, slab: int) -> None:
    sent = b"".join(map(join_frame, data.draw(st.lists(frames(), max_size=8))))
    sent += b"".join(message.encode() for message in data.draw(runs_in(with_runs or Dialect.DCP, 8)))
    whole = receive([sent], runs=with_runs, slab=1 << 17, max_frame=1 << 20)
    assert receive(data.draw(pieces(sent)), runs=with_runs, slab=slab, max_frame=1 << 20) == whole
    assert b"".join(said[1] if said[0] == "run" else join_frame(said[1]) for said in whole) == sent


@pytest.mark.parametrize("with_runs", [None, *Dialect])
@given(data=st.data(), step=st.integers(1, 40))
def test_any_bytes_in_any_pieces(with_runs: Dialect | None, data: st.DataObject, step: int) -> None:
    sent = data.draw(st.binary(max_size=200) | hostile(with_runs))
    whole = receive([sent], runs=with_runs)
    assert receive([sent[at : at + step] for at in range(0, len(sent), step)], runs=with_runs) == whole
    assert receive(data.draw(pieces(sent)), runs=with_runs, slab=64) == whole
    assert [said[0] for said in whole].count("broken") <= 1
    assert "broken" not in [said[0] for said in whole[:-1]]


@given(runs(3 * SMALL_RUN), st.lists(st.tuples(st.integers(0, 90), st.sampled_from(GOLDEN_FRAMES)), max_size=4))
def test_runs_end_where_another_message_stands(changes: list[dcp.Mutation], others: list[tuple[int, bytes]]) -> None:
    sent = [message.encode() for message in changes]
    for place, other in others:
        sent.insert(place, other)
    connection = Connection(Slab(), runs=Dialect.DCP)
    events = list(connection.feed(b"".join(sent)))
    assert [said[1] if said[0] == "run" else join_frame(said[1]) for said in told(events)] == sent
    assert not any(isinstance(one, Run) and isinstance(next_, Run) for one, next_ in itertools.pairwise(events))


@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
def test_runs_of_every_dialect(dialect: Dialect, data: st.DataObject) -> None:
    sent = [message.encode() for message in data.draw(runs_in(dialect, 5))] * data.draw(st.sampled_from([1, SMALL_RUN]))
    noop = kv.Noop().encode()
    events = list(Connection(Slab(), runs=dialect).feed(b"".join([*sent, noop, *sent])))
    assert [type(event) for event in events] == [Run, Frame, Run]
    assert {event.dialect for event in events if isinstance(event, Run)} == {dialect}
    assert [said[1] for said in told(events) if said[0] == "run"] == sent * 2


def test_framing_extras_keep_a_change_out_of_a_run() -> None:
    mutation = dcp.Mutation(vbucket=1, key=b"k", by_seqno=1).encode()
    framed = join_frame(cut_frame(memoryview(mutation), 0)._replace(magic=0x08, framing=b"\x22\x00\x01"))
    said = receive([mutation + framed + mutation], runs=Dialect.DCP)
    assert [kind for kind, _ in said] == ["run", "frame", "run"]
    assert said[1][1].framing == b"\x22\x00\x01"


@pytest.mark.parametrize("magic", [0x00, 0x7F, 0x84, 0xFF])
@pytest.mark.parametrize("body", [0, 10, 0xFFFFFFFF])
def test_an_unknown_magic_is_the_last_event(magic: int, body: int) -> None:
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
def test_a_frame_over_the_limit_ends_the_connection_before_it_is_read(body: int) -> None:
    header = frame_of("80010000 00000000") + body.to_bytes(4, "big") + bytes(12)
    expected = [("broken", f"frame of {body + 24} bytes (SET), limit 4096", Status.E2BIG, True)]
    assert receive([header], runs=None) == expected
    assert receive([header[:11], header[11:] + bytes(400)], runs=Dialect.DCP) == expected


def test_nothing_is_allocated_for_a_length_that_is_refused() -> None:
    connection = Connection(Slab(), runs=Dialect.DCP)
    room = len(connection.get_buffer())
    header = frame_of("80010000 00000000") + (MAX_FRAME - 23).to_bytes(4, "big") + bytes(12)
    (event,) = connection.feed(header)
    assert isinstance(event, Broken)
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


@pytest.mark.parametrize("nbytes", LONG)
@pytest.mark.parametrize("slab", [SMALL_SLAB, 100_000])
@pytest.mark.parametrize("step", [100, 7001, 1 << 20])
def test_long_frames(nbytes: int, slab: int, step: int) -> None:
    small, long = (dcp.Mutation(key=b"k", value=bytes(n), by_seqno=1).encode() for n in (10, nbytes))
    sent = small + long + small + long + small
    cut = [sent[at : at + step] for at in range(0, len(sent), step)]
    said = receive(cut, runs=Dialect.DCP, slab=slab, max_frame=1 << 20)
    assert [data for _, data in said] == [small, long, small, long, small]
    assert {kind for kind, _ in said} == {"run"}


def test_a_long_frame_is_received_in_a_buffer_of_its_own() -> None:
    connection = Connection(Slab(), runs=None)
    long = kv.Set(key=b"k", value=bytes(1 << 20)).encode()
    assert list(connection.feed(long[:1000])) == []
    assert len(connection.get_buffer()) == len(long) - 1000
    ((_, frame),) = told(connection.feed(long[1000:]))
    assert len(frame.value) == 1 << 20
    assert len(connection.get_buffer()) == connection.slab.nbytes


@pytest.mark.parametrize("framing", [b"", b"\x12\x34"])
@pytest.mark.parametrize("nbytes", [300, VIEWED_FROM - 100, VIEWED_FROM + 1, 1 << 20])
def test_values_of_long_frames_are_views_where_that_is_wanted(nbytes: int, framing: bytes) -> None:
    connection = Connection(Slab(1024), runs=None, viewed={Opcode.SET})
    magic = Magic.ALT_REQUEST if framing else Magic.REQUEST
    frames = [
        Frame(magic, opcode, 3, 1, 7, 9, b"extras..", b"key", b"v" * nbytes, framing)
        for opcode in (Opcode.SET, Opcode.APPEND)
    ]
    events = list(connection.feed(b"".join(map(join_frame, frames))))
    assert events == frames
    kinds = [type(event.value) for event in events if isinstance(event, Frame)]
    assert kinds == [memoryview if nbytes > VIEWED_FROM else bytes, bytes]


def test_connections_share_a_slab() -> None:
    slab = Slab(SMALL_SLAB)
    receivers = [Connection(slab, runs=Dialect.DCP, max_frame=4096) for _ in range(3)]
    sent = [dcp.Mutation(key=b"k", value=bytes([n]) * 300, by_seqno=n + 1).encode() * 2 for n in range(3)]
    said: list[list[Said]] = [[], [], []]
    for at in range(0, len(sent[0]), 50):
        for n, connection in enumerate(receivers):
            said[n] += told(connection.feed(sent[n][at : at + 50]))
    for n in range(3):
        assert [data for _, data in said[n]] == [sent[n][: len(sent[n]) // 2]] * 2


def test_there_is_always_room() -> None:
    sent = b"".join(dcp.Mutation(key=b"k", value=bytes(n), by_seqno=1).encode() for n in range(600))
    connection = Connection(Slab(100), runs=Dialect.DCP, max_frame=1000)
    while sent:
        room = connection.get_buffer()
        assert room
        nbytes = min(len(room), len(sent), 37)
        room[:nbytes] = sent[:nbytes]
        assert not any(isinstance(event, Broken) for event in connection.receive_data(nbytes))
        sent = sent[nbytes:]


def test_there_is_room_when_the_limit_becomes_less_than_is_kept() -> None:
    connection = Connection(Slab(1 << 16), runs=None)
    half = dcp.Mutation(key=b"k", value=bytes(20_000), by_seqno=1).encode()[:15_000]
    assert not list(connection.feed(half))
    connection.max_frame = 4096
    assert connection.get_buffer()
    (event,) = connection.feed(bytes(10))
    assert isinstance(event, Broken)


def test_a_run_may_be_read_a_mutation_head_behind_its_end() -> None:
    deletion = dcp.Deletion(key=b"k", by_seqno=1).encode()
    connection = Connection(Slab(len(deletion) * 2), runs=Dialect.DCP)
    (run,) = connection.feed(deletion * 2)
    assert isinstance(run, Run)
    assert run.end == len(deletion) * 2
    assert len(run.buffer) >= int(run.offsets[-1]) + SLACK


def test_an_error_says_what_it_is_answered_with() -> None:
    assert RemoteProtocolError("").status == Status.EINVAL
