"""The row index alone, compared with a list of rows: appended, sealed, rewritten, superseded and cut off."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Rows, Segment

VBUCKETS, HERE = 3, 1
BUFFER = memoryview(bytes(4096))
OTHERS = 2
"""Rows of each other vbucket in a segment, so that the rows of this vbucket start inside the segment."""


@dataclass
class IndexRow:
    """One change.

    Attributes:
        seqno: its seqno.
        offset: offset of its frame in the buffer.
        length: bytes of its frame.
        superseded: seqno of the change that superseded it, 0 for none.
    """

    seqno: int
    offset: int
    length: int
    superseded: int = 0


def make_segment(rows: list[IndexRow], buffer: memoryview = BUFFER, others_from: int = 1) -> Segment:
    """Return a segment with these rows of the vbucket HERE, and with some rows of the other vbuckets."""
    other = [IndexRow(seqno, 0, 1) for seqno in range(others_from, others_from + OTHERS)]
    every = [*other, *rows, *other]
    starts = np.array([0, OTHERS, OTHERS + len(rows), 2 * OTHERS + len(rows)], np.int32)
    columns = Rows(
        np.array([row.seqno for row in every], np.int64),
        np.array([row.offset for row in every], np.uint32),
        np.array([row.length for row in every], np.uint32),
        np.array([row.superseded for row in every], np.int64),
    )
    return Segment(buffer, starts, columns)


@dataclass
class IndexModel:
    """A row index, and the rows that it should hold.

    Attributes:
        index: the index under test.
        pieces: rows of each segment, oldest first.
        tail: rows behind the segments.
        end: bytes of all frames so far.
        dead: bytes of the tail's frames that are superseded or cut off.
    """

    index: RowIndex = field(default_factory=lambda: RowIndex(HERE))
    pieces: list[list[IndexRow]] = field(default_factory=list)
    tail: list[IndexRow] = field(default_factory=list)
    end: int = 0
    dead: int = 0

    @property
    def rows(self) -> list[IndexRow]:
        return [row for piece in (*self.pieces, self.tail) for row in piece]

    @property
    def last(self) -> int:
        return max((row.seqno for row in self.rows), default=0)

    def append(self, gap: int, length: int) -> None:
        seqno = self.last + 1 + gap
        if gap:
            self.index.has_gaps = True
        self.tail.append(IndexRow(seqno, self.end, length))
        self.index.seqnos_at.append(seqno)
        self.index.offsets_at.append(self.end)
        self.index.lengths_at.append(length)
        self.index.superseded_at.append(0)
        self.end += length

    def supersede(self, row: IndexRow) -> None:
        """Mark a row as superseded by the newest change."""
        row.superseded = self.last
        found = self.index.find(row.seqno)
        assert found is not None
        columns, at = found
        columns.superseded_at[at] = self.last
        columns.dead_bytes += row.length
        self.dead += row.length if row in self.tail else 0

    def seal(self) -> None:
        self.index.replace([], make_segment(self.tail))
        self.index.begin_tail(BUFFER)
        if self.tail:
            self.pieces.append(self.tail)
        self.tail, self.dead = [], 0

    def rewrite(self, first: int, count: int) -> None:
        """Replace segments by one segment without their superseded rows."""
        sources = self.index.segments[first : first + count]
        kept = [row for piece in self.pieces[first : first + count] for row in piece if not row.superseded]
        self.index.replace(sources, make_segment(kept))
        self.pieces[first : first + count] = [kept] if kept else []

    def cut(self, seqno: int) -> None:
        self.index.cut(seqno)
        for row in self.tail:
            if row.seqno > seqno and not row.superseded:
                self.dead += row.length
            elif row.seqno <= seqno < row.superseded:
                self.dead -= row.length
        self.tail = [row for row in self.tail if row.seqno <= seqno]
        self.pieces = [kept for piece in self.pieces if (kept := [row for row in piece if row.seqno <= seqno])]
        for row in self.rows:
            row.superseded = row.superseded if row.superseded <= seqno else 0

    def check(self) -> None:
        """Compare every answer of the index with the list of rows."""
        index, rows = self.index, self.rows
        seqnos = [row.seqno for row in rows]
        assert index.last_seqno == self.last
        assert index.dead_bytes == self.dead
        assert index.index_bytes == 24 * len(self.tail) + 16 * len(self.pieces)
        sealed = [row.seqno for piece in self.pieces for row in piece]
        assert index.backfill_end == max([index.loaded_seqno, *sealed])
        for seqno in range(self.last + 1):
            found = index.find(seqno)
            assert (found is not None) == (seqno in seqnos)
            if found is not None:
                columns, at = found
                row = rows[seqnos.index(seqno)]
                assert (columns.seqnos_at[at], columns.offsets_at[at]) == (seqno, row.offset)
            assert index.find_floor(seqno) == max((one for one in seqnos if one <= seqno), default=0)
            if seqno:
                assert index.find_ceiling(seqno) == min(one for one in seqnos if one >= seqno)
        assert index.find_floor(self.last + 5) == self.last
        live = [
            (seqno, offset)
            for _, offsets, of in index.iterate_live_frames()
            for offset, seqno in zip(offsets, of, strict=True)
        ]
        assert live == [(row.seqno, row.offset) for row in rows if not row.superseded]


@pytest.mark.parametrize("seed", range(60))
def test_the_index_answers_as_a_list_of_rows_does(seed):
    chance, model = random.Random(seed), IndexModel()
    gaps = chance.random() < 0.5
    for _ in range(30):
        match chance.randrange(9):
            case 0:
                model.seal()
            case 1 if model.index.segments:
                first = chance.randrange(len(model.index.segments))
                model.rewrite(first, chance.randint(1, len(model.index.segments) - first))
            case 2 if model.rows:
                model.cut(chance.choice([0, model.last, *(row.seqno for row in model.rows)]) + chance.randint(-1, 1))
            case 3 | 4 if live := [row for row in model.rows[:-1] if not row.superseded]:
                model.supersede(chance.choice(live))
            case _:
                model.append(chance.choice([0, 0, 1, 4]) if gaps else 0, chance.randint(1, 9))
        model.check()


TAILS = [
    # case, seqno of the last sealed row, seqnos of the active segment, first seqno of the tail, whether it has gaps
    ("nothing before", 0, [1, 2, 3], 1, False),
    ("behind a segment", 4, [5, 6], 5, False),
    ("a gap behind a segment", 4, [6, 7], 5, True),
    ("a gap inside", 0, [1, 3], 1, True),
    ("one row", 0, [1], 1, False),
    ("one row behind a gap", 0, [2], 1, True),
    ("no row", 0, [], 1, False),
    ("no row behind a segment", 4, [], 5, False),
]


@pytest.mark.parametrize(("case", "sealed", "seqnos", "start", "gaps"), TAILS)
def test_the_rows_of_an_active_segment_are_the_tail(case, sealed, seqnos, start, gaps):
    index = RowIndex(HERE)
    if sealed:
        index.replace([], make_segment([IndexRow(sealed - 1, 0, 1), IndexRow(sealed, 1, 1)]))
    rows = [IndexRow(seqno, 10 * seqno, 7, 99 if seqno == 1 else 0) for seqno in seqnos]
    index.fill_tail(make_segment(rows), slice(OTHERS, OTHERS + len(rows)), 7)
    assert index.seqnos_at.tolist() == seqnos
    assert index.offsets_at.tolist() == [10 * seqno for seqno in seqnos]
    assert index.lengths_at.tolist() == [7] * len(seqnos)
    assert index.superseded_at.tolist() == [99 if seqno == 1 else 0 for seqno in seqnos]
    assert (index.tail_start, index.has_gaps, index.dead_bytes) == (start, gaps, 7)
    for seqno in range(start, 9):
        assert (index.find(seqno) is not None) == (seqno in seqnos) or seqno > max(seqnos, default=0)


def test_empty_index_has_zero_counters():
    index = RowIndex(HERE)
    assert (index.last_seqno, index.backfill_end, index.find_floor(5), index.index_bytes, index.dead_bytes) == (
        0,
        0,
        0,
        0,
        0,
    )
    assert (index.lowest_snapshot_end, index.purge_seqno, index.purged_rev_seqno, index.loaded_seqno) == (0, 0, 0, 0)
    assert (index.cuts, index.segments, index.has_gaps, index.tail_start) == ([], [], False, 1)
    assert (bytes(index.buffer), list(index.iterate_live_frames()), index.vbucket) == (b"", [], HERE)
    assert index.find(0) is None


def test_a_row_of_the_next_vbucket_is_not_found():
    index = RowIndex(HERE)
    index.replace([], make_segment([IndexRow(5, 0, 1)], others_from=6))
    index.replace([], make_segment([IndexRow(9, 0, 1)]))
    index.tail_start = 10
    assert [index.find(seqno) is not None for seqno in range(5, 10)] == [True, False, False, False, True]


def test_a_new_tail_has_a_buffer_of_its_own():
    index = RowIndex(HERE)
    index.seqnos_at.append(7)
    index.dead_bytes, index.has_gaps = 5, True
    other = memoryview(b"other")
    index.begin_tail(other)
    assert (index.buffer, index.tail_start, index.dead_bytes, index.has_gaps, index.seqnos_at.tolist()) == (
        other,
        8,
        0,
        False,
        [],
    )
    index.begin_tail(other)
    assert index.tail_start == 8


def test_live_frames_are_listed_with_their_buffer():
    index = RowIndex(HERE)
    sealed, active = memoryview(b"sealed"), memoryview(b"active")
    index.replace([], make_segment([IndexRow(1, 0, 1), IndexRow(2, 1, 1, superseded=3)], sealed))
    index.begin_tail(active)
    index.fill_tail(make_segment([IndexRow(3, 2, 1)]), slice(OTHERS, OTHERS + 1), 0)
    assert {str(column.dtype) for _, *columns in index.iterate_live_frames() for column in columns} == {"int64"}
    parts = index.iterate_live_frames()
    index.cut(0)  # the iterator was made before, so it still yields the rows
    assert [(bytes(buffer), seqnos.tolist()) for buffer, _, seqnos in parts][1:] == [(b"active", [3])]


def test_floors_only_rise_and_a_cut_lowers_them():
    index = RowIndex(HERE)
    index.raise_floors(3)
    assert (index.lowest_snapshot_end, index.purge_seqno, index.purged_rev_seqno) == (3, 0, 0)
    index.raise_floors(7, 5, 3)
    index.raise_floors(6, 4, 2)
    assert (index.lowest_snapshot_end, index.purge_seqno, index.purged_rev_seqno) == (7, 5, 3)
    index.raise_floors(8)
    assert (index.lowest_snapshot_end, index.purge_seqno, index.purged_rev_seqno) == (8, 5, 3)
    index.loaded_seqno = 6
    index.cut(9)
    assert (index.purge_seqno, index.loaded_seqno) == (5, 6)
    index.cut(4)
    assert (index.lowest_snapshot_end, index.purge_seqno, index.purged_rev_seqno, index.loaded_seqno) == (8, 4, 3, 4)
    index.cut(1)
    assert (index.lowest_snapshot_end, index.purged_rev_seqno) == (8, 3)
    index.cut(0)
    assert (index.lowest_snapshot_end, index.purge_seqno, index.purged_rev_seqno, index.loaded_seqno) == (0, 0, 0, 0)


def test_loaded_changes_are_a_backfill():
    index = RowIndex(HERE)
    index.loaded_seqno = 9
    assert index.backfill_end == 9
    index.replace([], make_segment([IndexRow(5, 0, 1)]))
    assert index.backfill_end == 9
    index.replace([], make_segment([IndexRow(12, 0, 1)]))
    assert index.backfill_end == 12


def test_a_segment_without_rows_of_the_vbucket_is_not_listed():
    index = RowIndex(HERE)
    index.replace([], make_segment([]))
    assert index.segments == []
    first, second, other = make_segment([IndexRow(1, 0, 1)]), make_segment([IndexRow(2, 0, 1)]), make_segment([])
    index.replace([], first)
    index.replace([], second)
    index.replace([other, first], None)
    assert index.segments == [second]
    assert index.first_seqnos.tolist() == [2]
    index.replace([second, other], None)
    assert index.segments == []
