"""The decision table row by row, then the same decision against histories kept as plain lists."""

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.history.failover_log import FailoverEntry, FailoverLog, create_entry, prune_log
from penstock.store.history.rollback import StreamRequest, find_range_error, find_rollback_point, has_unsent_tombstones
from tests.examples import scaled

OLD, NEW, STRANGE = 1111, 2222, 9999
LOG = (FailoverEntry(NEW, 3), FailoverEntry(OLD, 0))
HIGH = 10


def request(vbuuid: int, snap_start: int, snap_end: int, start_seqno: int, **options: bool | int) -> StreamRequest:
    asked = StreamRequest(start_seqno=start_seqno, vbuuid=vbuuid, snap_start=snap_start, snap_end=snap_end)
    return replace(asked, **options)  # type: ignore[arg-type]


DECISIONS: list[tuple[str, StreamRequest, int, int | None]] = [
    # what, request, the vbucket's purge seqno, result
    ("R1 no history", request(0, 0, 0, 0), 0, None),
    ("R1 start 0, unknown vbuuid", request(STRANGE, 0, 0, 0), 0, None),
    ("R1 start 0 in a snapshot", request(OLD, 0, 8, 0), 0, None),
    ("R1 start 0 is not asked about the purge seqno", request(STRANGE, 0, 0, 0), 9, None),
    ("R1 strict, no vbuuid", request(0, 0, 0, 0, strict_vbuuid=True), 0, None),
    ("R1 strict, unknown vbuuid: R3", request(STRANGE, 0, 0, 0, strict_vbuuid=True), 0, 0),
    ("R1 strict, known vbuuid: R6", request(OLD, 0, 0, 0, strict_vbuuid=True), 0, None),
    ("R1 strict, known vbuuid, is not asked about the purge seqno", request(OLD, 0, 0, 0, strict_vbuuid=True), 9, None),
    ("R2 the first change, below purge", request(NEW, 1, 1, 1), 5, 0),
    ("R2 start below purge", request(NEW, 4, 4, 4), 5, 0),
    ("R2 start at purge", request(NEW, 5, 5, 5), 5, None),
    ("R2 looks at start, not at snap_start", request(NEW, 4, 8, 6), 5, None),
    ("R2 the purge seqno it saw is still the same", request(NEW, 4, 4, 4, purge_seqno=5), 5, None),
    ("R2 it saw another purge seqno", request(NEW, 4, 4, 4, purge_seqno=4), 5, 0),
    ("R2 ignored on request", request(NEW, 4, 4, 4, ignore_purged=True), 5, None),
    ("R2 has all of its collections", request(NEW, 4, 4, 4, collections_high_seqno=4), 5, None),
    ("R2 lacks some of its collections", request(NEW, 4, 4, 4, collections_high_seqno=5), 5, 0),
    ("R2 its collections reach past purge", request(NEW, 4, 4, 4, collections_high_seqno=7), 5, 0),
    ("R2 its collections are empty", request(NEW, 4, 4, 4, collections_high_seqno=0), 5, None),
    ("R3 unknown vbuuid", request(STRANGE, 5, 5, 5), 0, 0),
    ("R3 vbuuid 0 past the start", request(0, 5, 5, 5), 0, 0),
    ("R4 an older branch ends where the next begins", request(OLD, 4, 4, 4), 0, 3),
    ("R4 the newest branch ends at the high seqno", request(NEW, 11, 11, 11), 0, 10),
    ("R5 nothing of the snapshot arrived, inside the branch", request(OLD, 3, 9, 3), 0, None),
    ("R5 nothing of the snapshot arrived, outside", request(OLD, 4, 9, 4), 0, 3),
    ("R6 the snapshot ends at the branch's end", request(OLD, 1, 3, 2), 0, None),
    ("R6 in the newest branch", request(NEW, 1, 10, 10), 0, None),
    ("R7 all of the snapshot arrived: back to the branch's end", request(OLD, 1, 4, 4), 0, 3),
    ("R8 the snapshot begins outside the branch", request(OLD, 5, 8, 6), 0, 3),
    ("R9 the branch ends inside the snapshot", request(OLD, 1, 4, 3), 0, 1),
    ("R9 the snapshot begins at the branch's end", request(OLD, 3, 5, 4), 0, 3),
    # the worked examples
    ("a partial snapshot across the branch's end", request(OLD, 1, 4, 3), 0, 1),
    ("a request that hides a partial snapshot", request(OLD, 3, 3, 3), 0, None),
    ("a snapshot past the branch's end", request(OLD, 5, 8, 6), 0, 3),
    ("the start of a snapshot past the branch's end", request(OLD, 4, 9, 4), 0, 3),
    ("a snapshot past the high seqno", request(NEW, 1, 12, 10), 0, 1),
    ("a snapshot up to the high seqno", request(NEW, 1, 10, 10), 0, None),
    ("another history", request(STRANGE, 1, 7, 5), 0, 0),
    ("no history", request(0, 0, 0, 0), 0, None),
]


@pytest.mark.parametrize(("what", "asked", "purge_seqno", "result"), DECISIONS, ids=[row[0] for row in DECISIONS])
def test_decision(what: str, asked: StreamRequest, purge_seqno: int, result: int | None) -> None:
    assert find_range_error(asked) is None
    assert find_rollback_point(LOG, HIGH, purge_seqno, asked) == result


def test_the_oldest_of_two_equal_vbuuids_counts() -> None:
    log = (FailoverEntry(OLD, 8), FailoverEntry(NEW, 3), FailoverEntry(OLD, 0))
    assert find_rollback_point(log, HIGH, 0, request(OLD, 9, 9, 9)) == 3


def test_a_copy_that_has_not_caught_up_sends_a_consumer_of_an_older_branch_back() -> None:
    """A mirror has its upstream's failover log before the changes: it has nothing yet to send behind seqno 3."""
    log = (FailoverEntry(NEW, 3), FailoverEntry(OLD, 0))
    assert find_rollback_point(log, 0, 0, request(OLD, 3, 3, 3)) == 0
    assert find_rollback_point(log, 2, 0, request(OLD, 3, 3, 3)) == 2
    assert find_rollback_point(log, 3, 0, request(OLD, 3, 3, 3)) is None


def test_every_vbucket_has_a_history() -> None:
    with pytest.raises(ValueError, match=r"^empty failover log"):
        find_rollback_point((), 0, 0, request(0, 0, 0, 0))


PURGED_MEANWHILE = [
    # what, the purge seqno now, the one when the stream began, the end of its snapshot, whether it misses tombstones
    ("a tombstone beyond its snapshot", 9, 5, 7, True),
    ("the change right before the tombstone is its last", 9, 5, 8, True),
    ("the tombstone is its last change", 9, 5, 9, False),
    ("the tombstone is in its snapshot", 9, 5, 10, False),
    ("nothing was purged since", 9, 9, 7, False),
    ("the vbucket was rolled back since", 5, 9, 3, False),
    ("it has one change", 9, 5, 1, True),
    ("it has nothing that could be deleted", 9, 5, 0, False),
]


@pytest.mark.parametrize(("what", "now", "seen", "seqno", "result"), PURGED_MEANWHILE)
def test_tombstones_purged_under_a_stream(what: str, now: int, seen: int, seqno: int, result: bool) -> None:
    assert has_unsent_tombstones(now, seen, seqno) is result


RANGES = [
    ("start = end", request(OLD, 5, 5, 5, end_seqno=5), None),
    ("start > end", request(OLD, 5, 5, 5, end_seqno=4), "start seqno 5 after end seqno 4"),
    ("start at the snapshot's start", request(OLD, 5, 9, 5), None),
    ("start before the snapshot", request(OLD, 6, 9, 5), "start seqno 5 outside its snapshot 6..9"),
    ("start at the snapshot's end", request(OLD, 1, 5, 5), None),
    ("start after the snapshot", request(OLD, 1, 4, 5), "start seqno 5 outside its snapshot 1..4"),
    ("a snapshot upside down", request(OLD, 6, 4, 5), "start seqno 5 outside its snapshot 6..4"),
]


@pytest.mark.parametrize(("what", "asked", "result"), RANGES)
def test_range(what: str, asked: StreamRequest, result: str | None) -> None:
    assert find_range_error(asked) == result


@dataclass(frozen=True, eq=False)
class Made:
    """A change. Equal only to itself: two branches may use the same seqno and key for different changes."""

    seqno: int
    key: str


@dataclass
class Producer:
    """A vbucket as one explicit list of changes, and for each branch the list as it was when the branch was left."""

    changes: list[Made] = field(default_factory=list)
    log: FailoverLog = (FailoverEntry(1, 0),)
    left: dict[int, list[Made]] = field(default_factory=dict)  # by vbuuid

    @property
    def high_seqno(self) -> int:
        return len(self.changes)

    def write(self, key: str) -> None:
        self.changes.append(Made(self.high_seqno + 1, key))

    def fail_over(self, to: int) -> None:
        """Another node, which had received everything up to `to`, becomes active."""
        self.left[self.log[0].vbuuid] = list(self.changes)
        del self.changes[to:]
        self.log = create_entry(self.log, 1 + len(self.left), to)

    def snapshot(self, start: int, end: int) -> list[Made]:
        newest = {change.key: change for change in self.changes[:end]}
        return [change for change in self.changes[start:end] if newest[change.key] is change]


@dataclass
class Consumer:
    """Keeps what it received, the snapshots it received completely, and the one it is in."""

    received: list[Made] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])
    vbuuid: int = 0
    seqno: int = 0
    snapshot: tuple[int, int] = (0, 0)

    def ask(self) -> StreamRequest:
        return request(self.vbuuid, *self.snapshot, self.seqno)

    def receive(self, producer: Producer, count: int, length: int | None) -> None:
        """Take a snapshot's first `count` changes. It spans `length` seqnos, or all there are if None."""
        end = producer.high_seqno if length is None else min(producer.high_seqno, self.seqno + length)
        if self.snapshot[0] < self.seqno:  # the rest of a snapshot it was in the middle of, at least
            end = max(end, self.snapshot[1])
        if end == self.seqno:
            return
        self.vbuuid = producer.log[0].vbuuid
        # Within the snapshot it was in, its start stays what it was: the first marker says so.
        self.snapshot = (self.snapshot[0] if self.seqno < self.snapshot[1] else self.seqno, end)
        changes = producer.snapshot(self.seqno, end)[:count]
        self.received += changes
        if changes:
            self.seqno = changes[-1].seqno
        if self.seqno == end:
            self.ends.append(end)

    def roll_back(self, producer: Producer, to: int) -> None:
        """Go to the newest complete snapshot at or below `to`, on the branch it then was on."""
        self.ends = [end for end in self.ends if end <= to]
        self.seqno = self.ends[-1]
        self.snapshot = (self.seqno, self.seqno)
        self.received = [change for change in self.received if change.seqno <= self.seqno]
        kept = prune_log(producer.log, self.seqno)
        self.vbuuid = kept[0].vbuuid if self.seqno and kept else 0

    @property
    def documents(self) -> dict[str, Made]:
        return {change.key: change for change in self.received}


def shared(one: list[Made], other: list[Made]) -> int:
    """How many changes two histories have in common before they part."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], zip(one, other, strict=False)))


@dataclass(frozen=True)
class Round:
    """Some writes, then the consumer receives a part, then perhaps another node takes over without the last ones."""

    keys: str
    count: int
    length: int | None
    lost: int | None


rounds = st.builds(
    Round,
    keys=st.text("abc", max_size=6),
    count=st.integers(0, 6),
    length=st.none() | st.integers(1, 8),
    lost=st.none() | st.integers(0, 5),
)


@settings(max_examples=scaled(400))
@given(st.lists(rounds, max_size=8))
def test_no_history_is_mixed(story: list[Round]) -> None:
    producer, consumer = Producer(), Consumer()
    for step in story:
        for key in step.keys:
            producer.write(key)
        reconnect(producer, consumer)
        consumer.receive(producer, step.count, step.length)
        if step.lost is not None:
            producer.fail_over(max(0, producer.high_seqno - step.lost))
    reconnect(producer, consumer)
    while consumer.seqno < producer.high_seqno:
        consumer.receive(producer, 100, None)
    assert consumer.documents == {change.key: change for change in producer.changes}


def reconnect(producer: Producer, consumer: Consumer) -> None:
    """Ask until accepted, checking every answer against the two histories themselves."""
    while True:
        asked = consumer.ask()
        assert find_range_error(asked) is None
        answer = find_rollback_point(producer.log, producer.high_seqno, 0, asked)
        branch = producer.left.get(asked.vbuuid, producer.changes)
        known = any(entry.vbuuid == asked.vbuuid for entry in producer.log)
        common = shared(branch, producer.changes) if known else 0
        if answer is None:
            assert all(change in producer.changes for change in consumer.received)
            assert asked.start_seqno == 0 or asked.start_seqno <= common
            return
        assert answer <= common
        assert answer in ((common, asked.snap_start) if known else (0,))
        if answer < common:  # further than the histories ask for: only to get out of a partial snapshot
            assert asked.snap_start == answer < asked.start_seqno < asked.snap_end
        if asked.snap_start < asked.start_seqno < asked.snap_end:  # what the rest of it would have replaced is unknown
            assert answer <= asked.snap_start
        before = consumer.seqno
        consumer.roll_back(producer, answer)
        assert consumer.seqno < before or consumer.seqno == answer == 0
