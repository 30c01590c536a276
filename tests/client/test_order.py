"""The order of changes in a run, checked part by part, and the errors of a broken order."""

import numpy as np
import pytest

from penstock.client.connect.dropped_frames import DropCounter, DropReason
from penstock.client.feeds.stream_order import (
    RunPart,
    StreamOpaques,
    check_run_order,
    is_flush,
    make_beyond_snapshot_error,
    make_foreign_vbucket_error,
    make_seqno_order_error,
    make_snapshot_error,
)
from penstock.errors import OrderViolation
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.heads import Heads, Run, gather_heads
from penstock.wire.messages.dcp import Mutation, SnapshotMarker
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab


def heads(*rows: tuple[int, int, int]) -> Heads:
    """Return the heads of a run: (vbucket, opaque, seqno) of each of its changes."""
    changes = (
        Mutation(vbucket=vbucket, opaque=opaque, by_seqno=seqno, key=b"k").encode() for vbucket, opaque, seqno in rows
    )
    for event in FrameReceiver(Slab(1 << 16), run_dialect=Dialect.DCP).feed(b"".join(changes)):
        assert isinstance(event, Run)
        return gather_heads(event)
    raise AssertionError("no run")


PARTS = [
    ("one change", [(0, 1, 5)], [RunPart(0, 1, 0, 1, 5, 5)]),
    ("ascending, with gaps", [(0, 1, 5), (0, 1, 6), (0, 1, 9)], [RunPart(0, 1, 0, 3, 5, 9)]),
    ("another vbucket alone", [(0, 1, 5), (2, 1, 6)], [RunPart(0, 1, 0, 1, 5, 5), RunPart(2, 1, 1, 2, 6, 6)]),
    ("another opaque alone", [(0, 1, 5), (0, 2, 6)], [RunPart(0, 1, 0, 1, 5, 5), RunPart(0, 2, 1, 2, 6, 6)]),
    ("both", [(0, 1, 5), (2, 3, 6)], [RunPart(0, 1, 0, 1, 5, 5), RunPart(2, 3, 1, 2, 6, 6)]),
    ("the same seqno again", [(0, 1, 5), (0, 1, 5)], [RunPart(0, 1, 0, 1, 5, 5), RunPart(0, 1, 1, 2, 5, 5)]),
    ("below", [(0, 1, 5), (0, 1, 4)], [RunPart(0, 1, 0, 1, 5, 5), RunPart(0, 1, 1, 2, 4, 4)]),
    (
        "another vbucket and back",
        [(0, 1, 5), (2, 1, 6), (0, 1, 7)],
        [RunPart(0, 1, 0, 1, 5, 5), RunPart(2, 1, 1, 2, 6, 6), RunPart(0, 1, 2, 3, 7, 7)],
    ),
    (
        "another opaque and back",
        [(0, 1, 5), (0, 2, 6), (0, 1, 7)],
        [RunPart(0, 1, 0, 1, 5, 5), RunPart(0, 2, 1, 2, 6, 6), RunPart(0, 1, 2, 3, 7, 7)],
    ),
    (
        "below, and not the first",
        [(0, 1, 5), (0, 1, 9), (0, 1, 7)],
        [RunPart(0, 1, 0, 2, 5, 9), RunPart(0, 1, 2, 3, 7, 7)],
    ),
    (
        "there and back",
        [(0, 1, 5), (0, 1, 6), (2, 3, 1), (0, 1, 7), (0, 1, 8)],
        [RunPart(0, 1, 0, 2, 5, 6), RunPart(2, 3, 2, 3, 1, 1), RunPart(0, 1, 3, 5, 7, 8)],
    ),
]


@pytest.mark.parametrize(("name", "rows", "parts"), PARTS, ids=[row[0] for row in PARTS])
def test_run_is_split_at_another_stream_or_a_lower_seqno(name, rows, parts):
    taken = []

    def take(part):
        taken.append(part)
        return part.first_seqno, part.last_seqno

    dropped = DropCounter()
    assert check_run_order(heads(*rows), take, dropped) == (None, None)
    assert taken == parts
    assert not dropped.frames


def test_row_is_delivered_if_it_is_in_the_range_of_its_stream():
    rows = [*((0, 1, seqno) for seqno in (3, 5, 7, 9)), *((1, 2, seqno) for seqno in (1, 2)), (2, 3, 8)]
    ranges = {0: (6, 8), 1: (1, 0), 2: (8, 8)}
    dropped = DropCounter()
    keep, violation = check_run_order(heads(*rows), lambda part: ranges[part.vbucket], dropped)
    assert violation is None
    # `check_run_order` counts no row of an empty range: `take` has to count such rows.
    assert dropped.frames == {DropReason.RECEIVED_BEFORE: 2, DropReason.AFTER_END: 1}
    assert keep is not None
    assert keep.tolist() == [False, False, True, False, False, False, True]
    assert keep.dtype == np.bool_


def test_each_repeated_row_is_counted():
    dropped = DropCounter()
    check_run_order(heads((0, 1, 5), (0, 1, 6), (0, 1, 7)), lambda part: (7, 7), dropped)
    assert dropped.frames == {DropReason.RECEIVED_BEFORE: 2}


def test_no_row_is_delivered_after_a_violation():
    def take(part):
        if part.vbucket == 1:
            raise make_seqno_order_error(part.vbucket, part.first_seqno, 7)
        return (part.first_seqno, part.last_seqno) if part.vbucket != 3 else (9, 9)

    rows = [(0, 1, 5), (3, 4, 8), (3, 4, 9), (1, 2, 6), (1, 2, 7), (2, 3, 1)]
    dropped = DropCounter()
    keep, violation = check_run_order(heads(*rows), take, dropped)
    assert keep is not None
    assert keep.tolist() == [True, False, True, False, False, False]
    assert dropped.frames == {DropReason.RECEIVED_BEFORE: 1, DropReason.AFTER_VIOLATION: 3}
    assert keep.dtype == np.bool_
    assert str(violation) == "vbucket 1: by_seqno 6 after 7"


def test_violation_is_reported_for_any_seqno():
    def take(*_):
        raise make_foreign_vbucket_error(1, 0, "change")

    for seqno in range(1, 4):
        keep, violation = check_run_order(heads((0, 1, seqno)), take, DropCounter())
        assert violation is not None
        assert keep is not None
        assert keep.tolist() == [False]


def test_unknown_opaque_is_a_violation():
    dropped = DropCounter()
    opaques = StreamOpaques(dropped)
    assert opaques.earlier == 0
    opaques.add(5)
    opaques.check(5, 7, "change", 3)
    assert dropped.frames == {DropReason.CLOSED_STREAM: 3}
    for opaque in (0, 4, 6):
        with pytest.raises(OrderViolation) as caught:
            opaques.check(opaque, 7, "change")
        assert str(caught.value) == (
            f"vbucket 7: change under opaque {opaque}, which no stream of this connection has had"
        )
        assert caught.value.vbucket == 7


def test_opaques_of_earlier_streams_are_no_violation():
    dropped = DropCounter()
    opaques = StreamOpaques(dropped)
    opaques.earlier = 4
    opaques.check(3, 7, "change")
    assert dropped.frames == {DropReason.EARLIER_STREAM: 1}
    opaques.check(3, 7, "change", frames=4)
    assert dropped.frames == {DropReason.EARLIER_STREAM: 5}
    with pytest.raises(OrderViolation):
        opaques.check(4, 7, "change")


MEMORY, DISK = SnapshotFlag.MEMORY, SnapshotFlag.DISK
FLUSHES = [
    # name; start, end and flags of the marker; last seqno; expected start of the snapshot; whether it shows a flush
    ("the first snapshot", 0, 9, MEMORY, 0, 0, False),
    ("it goes on", 10, 20, MEMORY, 9, 10, False),
    ("it begins at 2", 2, 5, MEMORY, 9, 10, False),
    ("it begins at 1 and ends below", 1, 5, MEMORY, 9, 10, True),
    ("it begins at 0 and ends below", 0, 5, MEMORY, 9, 10, True),
    ("it ends right below", 1, 8, DISK, 9, 10, True),
    ("from disk, it ends at the last", 1, 9, DISK, 9, 10, False),
    ("from disk, it goes on", 1, 12, DISK, 9, 10, False),
    ("from memory, it goes on", 1, 12, MEMORY, 9, 10, True),
    ("from memory, it begins where it should", 1, 12, MEMORY, 9, 1, False),
    ("behind the first change alone", 1, 9, MEMORY, 1, 2, True),
    ("behind the first change alone, from disk", 1, 9, DISK, 1, 2, False),
]


@pytest.mark.parametrize(("name", "start", "end", "flags", "last", "least", "flush"), FLUSHES)
def test_snapshot_marker_shows_a_flush_or_not(name, start, end, flags, last, least, flush):
    assert is_flush(SnapshotMarker(start_seqno=start, end_seqno=end, flags=flags), last, least) is flush


VIOLATIONS = [
    (lambda: make_seqno_order_error(3, 5, 7), "vbucket 3: by_seqno 5 after 7", 3, Status.ERANGE, False),
    (
        lambda: make_beyond_snapshot_error(3, 9, 7),
        "vbucket 3: by_seqno 9 behind its snapshot's end 7",
        3,
        Status.EINVAL,
        False,
    ),
    (lambda: make_snapshot_error(3, 5, 4, 7), "vbucket 3: snapshot 5..4 after seqno 7", 3, Status.ERANGE, False),
    (
        lambda: make_snapshot_error(3, 1, 4, 7, is_flushed=True),
        *("vbucket 3: snapshot 1..4 after seqno 7", 3, Status.ERANGE, True),
    ),
    (
        lambda: make_foreign_vbucket_error(3, 4, "change"),
        "change of vbucket 3 under the opaque of 4",
        4,
        Status.EINVAL,
        False,
    ),
]


@pytest.mark.parametrize(("make", "text", "vbucket", "status", "is_flushed"), VIOLATIONS)
def test_violation_has_a_text_a_vbucket_and_a_status(make, text, vbucket, status, is_flushed):
    error = make()
    assert isinstance(error, OrderViolation)
    assert (str(error), error.vbucket, error.status, error.seqnos_restarted) == (text, vbucket, status, is_flushed)
