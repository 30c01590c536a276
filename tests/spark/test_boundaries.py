"""Boundaries of a changelog, compared with a model of one vbucket with all its branches and interrupted reads."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.lake.changelog.boundaries import (
    Boundary,
    RollbackPoint,
    SnapshotRows,
    collect_evidence,
    find_boundaries,
    find_newest_boundary,
    merge_at_boundaries,
    select_rows_below,
)
from penstock.spark.source.offsets import Offset, ProvenEnd, VbucketOffset
from tests.examples import scaled
from tests.spark.lakes import Row, as_documents, rollback, row, table

KEYS = [b"a", b"b", b"c", b"left out"]
Log = list[tuple[int, bytes, bytes | None]]


def contents(log: Log, seqno: int, *, part: bool) -> dict[bytes, bytes]:
    """Return the documents at a seqno; `part` excludes the key that the lake leaves out."""
    found: dict[bytes, bytes] = {}
    for at, key, value in log:
        if at <= seqno and not (part and key == KEYS[-1]):
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
    return found


@dataclass
class Story:
    """A model of one vbucket and of its reader.

    Attributes:
        chance: source of all random choices.
        exact: whether snapshots end at the end of the planned batch.
        part: whether the lake leaves a key out.
        failovers: whether the vbucket may fail over.
        vbuuid: identity of the newest branch.
        logs: vbuuid -> changes of that branch, including abandoned branches.
        rows: rows of the changelog.
        at: position of the reader.
        ends: for each batch its end, the number of rows by then, and whether the batch was read completely.
        common: highest seqno that the newest branch shares with the branch of the last plan.
    """

    chance: random.Random
    exact: bool
    part: bool
    failovers: bool
    vbuuid: int = 1
    logs: dict[int, Log] = field(default_factory=lambda: {1: []})
    rows: list[Row] = field(default_factory=list)
    at: VbucketOffset = field(default_factory=VbucketOffset)
    ends: list[tuple[VbucketOffset, int, bool]] = field(default_factory=list)
    common: int = 1 << 60  # above any seqno: no failover since the last plan

    @property
    def log(self) -> Log:
        return self.logs[self.vbuuid]

    @property
    def high(self) -> int:
        return self.log[-1][0] if self.log else 0

    def write(self) -> None:
        for _ in range(self.chance.randrange(6)):
            value = None if self.chance.random() < 0.3 else b"%d" % self.chance.randrange(1000)
            self.log.append((self.high + 1, self.chance.choice(KEYS), value))

    def fail_over(self) -> None:
        common = self.chance.randint(max(0, self.high - 6), self.high)
        self.logs[self.vbuuid + 1] = [change for change in self.log if change[0] <= common]
        self.vbuuid += 1
        self.common = min(self.common, common)

    def step(self) -> None:
        """Plan a batch, as penstock.spark.source.offsets does, and read it."""
        self.write()
        if self.failovers and self.chance.random() < 0.2:
            self.fail_over()
        self.write()
        if not self.plan():
            return
        end, before = self.at.seqno, len(self.rows)
        self.write()
        if self.failovers and self.chance.random() < 0.1:
            self.fail_over()  # the task notices the failover and reads nothing
            self.ends.append((self.at, before, False))
            return
        found = [row for row in self.read(self.at.start, end) if row["seqno"] <= end]
        whole = True
        if self.failovers and self.chance.random() < 0.1:
            found, whole = found[: self.chance.randint(0, len(found))], False
            self.fail_over()
        self.rows += [each for each in found if not (self.part and each["key"] == KEYS[-1])]
        self.ends.append((self.at, len(self.rows), whole))

    def plan(self) -> bool:
        old, proven = self.at, self.at.proven
        if old.seqno > old.start and self.vbuuid == old.vbuuid:
            proven = (*proven, ProvenEnd(old.seqno, self.high))[-4:]
        while proven and max(proven[-1].high, proven[-1].end) > self.common:
            proven = proven[:-1]
        self.common = 1 << 60
        start, history = (proven[-1].end if proven else 0), old.history
        if start != old.seqno:
            history += 1
            self.rows.append(rollback(0, start, history))
        elif start == self.high:
            self.at = VbucketOffset(history, old.vbuuid, start, proven)
            return False
        end = self.chance.randint(min(start + 1, self.high), self.high) if self.chance.random() < 0.5 else self.high
        vbuuid = self.vbuuid if end > start else old.vbuuid
        self.at = VbucketOffset(history, vbuuid, end, proven, requested=start if history > old.history else None)
        return True

    def read(self, start: int, end: int) -> list[Row]:
        """Return the rows that the producer sends, in one snapshot or several, whose ends the producer chooses."""
        last = end if self.exact else self.chance.randint(end, self.high)
        if start >= last:
            return []
        within = [at for at in range(start + 1, last) if not self.exact and self.chance.random() < 0.2]
        found: list[Row] = []
        begin = start
        for stop in [*within, last]:
            changes = [change for change in self.log if (start if begin == start else begin - 1) < change[0] <= stop]
            newest = {key: (at, value) for at, key, value in changes}
            left = sorted((at, key, value) for key, (at, value) in newest.items())
            if begin > start and left and self.chance.random() < 0.3:
                begin = left[0][0]  # a snapshot from memory begins at its first change
            for at, key, value in left:
                event = "deletion" if value is None else "mutation"
                about = {"snapshot_start": begin, "snapshot_end": stop, "history": self.at.history}
                found.append(row(0, at, key, value, event, **about))
            begin = stop + 1
        return found


def read_state(story: Story, number: int, *, offset: bool) -> tuple[Boundary | None, dict[bytes, bytes]]:
    """Return boundary and documents of a batch's end, from its offset and all rows, or only from the rows by then."""
    at, count, _ = story.ends[number]
    rows = table(story.rows if offset else story.rows[:count])
    given = Offset((at,)) if offset else None
    found = {key: value for (_, _, key), (_, value) in as_documents(merge_at_boundaries(rows, given)).items()}
    return find_boundaries(rows, given).get(0), found


@given(st.randoms(use_true_random=False), st.booleans(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=scaled(150), deadline=None)
def test_state_at_a_boundary_equals_the_bucket(chance, exact, part, failovers, offset):
    story = Story(chance, exact, part, failovers)
    for _ in range(chance.randrange(2, 14)):
        story.step()
    for number, (at, _, _) in enumerate(story.ends):
        boundary, found = read_state(story, number, offset=offset)
        if boundary is None:
            assert found == {}
        elif offset or not part:
            assert boundary.history == at.history
            assert boundary.seqno <= at.seqno
            assert found == contents(story.logs[at.vbuuid], boundary.seqno, part=part)


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=scaled(30), deadline=None)
def test_every_end_is_a_boundary_where_snapshots_end_there(chance, offset):
    """A Penstock node ends its snapshots at the end of a batch, and this lake leaves no key out."""
    story = Story(chance, exact=True, part=False, failovers=False)
    for _ in range(8):
        story.step()
    for number, (at, _, whole) in enumerate(story.ends):
        assert whole
        assert read_state(story, number, offset=offset)[0] == Boundary(0, at.seqno)


def snapshot(*seqnos: int, history: int = 0) -> SnapshotRows:
    return SnapshotRows(history, *seqnos)


BOUNDARIES = [
    ("nothing", [], [], None, None),
    ("complete", [snapshot(3, 9, 0, 9)], [], None, 9),
    ("not complete", [snapshot(3, 8, 0, 9)], [], None, None),
    ("two snapshots in two streams", [snapshot(3, 9, 0, 9), snapshot(10, 12, 9, 12)], [], None, 12),
    ("two snapshots in one stream", [snapshot(3, 9, 0, 9), snapshot(10, 12, 10, 12)], [], None, 12),
    ("after a read of one change that is not here", [snapshot(3, 9, 0, 9), snapshot(11, 12, 10, 12)], [], None, 9),
    ("the second not complete", [snapshot(3, 9, 0, 9), snapshot(10, 12, 9, 14)], [], None, 9),
    ("stopped inside, then completed", [snapshot(3, 5, 0, 9), snapshot(6, 12, 5, 12)], [], None, 12),
    ("stopped inside, not yet completed", [snapshot(3, 5, 0, 9), snapshot(6, 8, 5, 8)], [], None, None),
    ("after a gap without snapshots", [snapshot(3, 9, 0, 9), snapshot(13, 20, 12, 20)], [], None, 9),
    ("not from the beginning", [snapshot(13, 20, 12, 20)], [], None, None),
    ("the first change is not here", [snapshot(3, 9, 1, 9)], [], None, None),
    ("the first change of a stream is not here", [snapshot(2, 9, 2, 9)], [], None, None),
    ("without snapshots", [SnapshotRows(0, 3, 9, 1 << 64, 1 << 64)], [], None, None),
    ("rolled back to an end", [snapshot(3, 9, 0, 9), snapshot(10, 12, 9, 12)], [RollbackPoint(1, 9)], None, 9),
    (
        "rolled back to an end, and continued",
        [snapshot(3, 9, 0, 9), snapshot(10, 11, 9, 11, history=1)],
        [RollbackPoint(1, 9)],
        None,
        11,
    ),
    (
        "rolled back into a snapshot",
        [snapshot(3, 9, 0, 9), snapshot(6, 8, 5, 8, history=1)],
        [RollbackPoint(1, 5)],
        None,
        None,
    ),
    (
        "rolled back into a snapshot, then completed",
        [snapshot(3, 9, 0, 9), snapshot(6, 10, 5, 10, history=1)],
        [RollbackPoint(1, 5)],
        None,
        10,
    ),
    ("rolled back to 0", [snapshot(3, 9, 0, 9), snapshot(1, 2, 0, 2, history=1)], [RollbackPoint(1, 0)], None, 2),
    ("not above a position", [snapshot(3, 9, 0, 9), snapshot(10, 12, 9, 12)], [], VbucketOffset(0, 1, 11), 9),
    ("at a proven end", [], [], VbucketOffset(0, 1, 20, (ProvenEnd(9, 9), ProvenEnd(15, 20))), 9),
    (
        "from a proven end to its high",
        [snapshot(13, 15, 12, 15), snapshot(16, 20, 15, 20)],
        [],
        VbucketOffset(0, 1, 20, (ProvenEnd(12, 17), ProvenEnd(15, 20))),
        20,
    ),
    (
        "from a proven end, but not to its high",
        [snapshot(13, 16, 12, 16)],
        [],
        VbucketOffset(0, 1, 16, (ProvenEnd(12, 17),)),
        None,
    ),
]


@pytest.mark.parametrize(
    ("snapshots", "rollbacks", "at", "expected"), [pytest.param(*case, id=name) for name, *case in BOUNDARIES]
)
def test_boundaries(snapshots: Any, rollbacks: Any, at: Any, expected: Any):
    assert find_newest_boundary(snapshots, rollbacks, at) == expected
    assert find_newest_boundary(snapshots[::-1], rollbacks[::-1], at) == expected


# From rows

HIGHEST = -1
"""The highest seqno, 2**64 - 1, in a column of signed 64-bit integers."""


def of(seqno: int, start: int | None, end: int | None, vbucket: int = 0, history: int = 0) -> Row:
    return row(vbucket, seqno, b"%d" % seqno, history=history, snapshot_start=start, snapshot_end=end)


def test_evidence_has_snapshots_and_rollbacks():
    rows = [
        *(of(seqno, 1, 9) for seqno in (4, 2, 9)),
        of(12, None, 12),
        of(13, 10, None),
        of(HIGHEST, 14, HIGHEST, history=1),
        of(7, 0, 7, vbucket=3),
        rollback(0, 9, 1),
        rollback(3, None, 2, "flush"),
    ]
    snapshots, rollbacks = collect_evidence(table(rows))
    nowhere = 1 << 64
    assert {vbucket: sorted(found) for vbucket, found in snapshots.items()} == {
        0: [
            SnapshotRows(0, 2, 9, 1, 9),
            SnapshotRows(0, 12, 12, nowhere, nowhere),
            SnapshotRows(0, 13, 13, nowhere, nowhere),
            SnapshotRows(1, nowhere - 1, nowhere - 1, 14, nowhere - 1),
        ],
        3: [SnapshotRows(0, 7, 7, 0, 7)],
    }
    assert rollbacks == {0: [RollbackPoint(1, 9)], 3: [RollbackPoint(2, 0)]}


def test_position_applies_rollbacks_of_its_history():
    rows = table([of(9, 0, 9), of(12, 9, 12), rollback(0, 9, 1)])
    assert find_boundaries(rows, Offset((VbucketOffset(1, 1, 12),))) == {0: Boundary(1, 9)}
    assert find_boundaries(rows, Offset((VbucketOffset(0, 1, 12),))) == {0: Boundary(0, 12)}
    assert find_boundaries(rows) == {0: Boundary(1, 9)}


def test_a_boundary_has_the_history_of_the_position():
    assert find_boundaries(table([of(9, 0, 9)]), Offset((VbucketOffset(2, 1, 9),))) == {0: Boundary(2, 9)}


def test_rows_below_boundaries_are_selected():
    high = 2**63
    rows = [
        of(5, 0, 5, vbucket=1),
        of(6, 5, 6, vbucket=1),
        rollback(1, 9, 1),
        rollback(1, 9, 2),
        of(4, 0, 4, vbucket=1, history=2),
        of(-high, 0, -high, vbucket=5),
        of(-high + 1, 0, -high + 1, vbucket=5),
        rollback(3, None, 0, "flush"),
        of(1, 0, 1, vbucket=3),
        rollback(7, 0, 1),
    ]
    kept = select_rows_below(table(rows), {1: Boundary(1, 5), 5: Boundary(0, high)})
    assert kept.equals(table([rows[0], rows[2], rows[5]]))
    assert select_rows_below(table(rows[:1]), {1: Boundary(0, 5)}).num_rows == 1
    assert select_rows_below(table([]), {}).num_rows == 0
