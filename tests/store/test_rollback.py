"""The rollback decision: its table row by row, then random histories compared with plain lists."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.history.failover_log import FailoverLog, create_entry, prune_log
from penstock.store.history.rollback import StreamRequest, find_range_error, find_rollback_point, has_unsent_tombstones
from penstock.wire.messages.kv import FailoverEntry
from tests.examples import scaled

OLD, NEW, STRANGE = 1111, 2222, 9999
LOG = (FailoverEntry(NEW, 3), FailoverEntry(OLD, 0))
HIGH = 10


def make_request(vbuuid: int, snap_start: int, snap_end: int, start_seqno: int, **options: Any) -> StreamRequest:
    request = StreamRequest(start_seqno=start_seqno, vbuuid=vbuuid, snap_start=snap_start, snap_end=snap_end)
    return replace(request, **options)


DECISIONS: list[tuple[str, StreamRequest, int, int | None]] = [
    # case, request, the vbucket's purge seqno, the seqno to roll back to or None
    ("R1 no history", make_request(0, 0, 0, 0), 0, None),
    ("R1 start 0, unknown vbuuid", make_request(STRANGE, 0, 0, 0), 0, None),
    ("R1 start 0 in a snapshot", make_request(OLD, 0, 8, 0), 0, None),
    ("R1 start 0 is not compared with the purge seqno", make_request(STRANGE, 0, 0, 0), 9, None),
    ("R1 strict, no vbuuid", make_request(0, 0, 0, 0, strict_vbuuid=True), 0, None),
    ("R1 strict, unknown vbuuid: R3", make_request(STRANGE, 0, 0, 0, strict_vbuuid=True), 0, 0),
    ("R1 strict, known vbuuid: R6", make_request(OLD, 0, 0, 0, strict_vbuuid=True), 0, None),
    (
        "R1 strict, known vbuuid, not compared with the purge seqno",
        make_request(OLD, 0, 0, 0, strict_vbuuid=True),
        9,
        None,
    ),
    ("R2 the first change, below purge", make_request(NEW, 1, 1, 1), 5, 0),
    ("R2 start below purge", make_request(NEW, 4, 4, 4), 5, 0),
    ("R2 start at purge", make_request(NEW, 5, 5, 5), 5, None),
    ("R2 compares start, not snap_start", make_request(NEW, 4, 8, 6), 5, None),
    ("R2 the purge seqno it saw is still the same", make_request(NEW, 4, 4, 4, purge_seqno=5), 5, None),
    ("R2 it saw another purge seqno", make_request(NEW, 4, 4, 4, purge_seqno=4), 5, 0),
    ("R2 ignored on request", make_request(NEW, 4, 4, 4, ignore_purged=True), 5, None),
    ("R2 has all of its collections", make_request(NEW, 4, 4, 4, collections_high_seqno=4), 5, None),
    ("R2 lacks some of its collections", make_request(NEW, 4, 4, 4, collections_high_seqno=5), 5, 0),
    ("R2 its collections reach past purge", make_request(NEW, 4, 4, 4, collections_high_seqno=7), 5, 0),
    ("R2 its collections are empty", make_request(NEW, 4, 4, 4, collections_high_seqno=0), 5, None),
    ("R3 unknown vbuuid", make_request(STRANGE, 5, 5, 5), 0, 0),
    ("R3 vbuuid 0 past the start", make_request(0, 5, 5, 5), 0, 0),
    ("R4 an older branch ends where the next begins", make_request(OLD, 4, 4, 4), 0, 3),
    ("R4 the newest branch ends at the high seqno", make_request(NEW, 11, 11, 11), 0, 10),
    ("R5 nothing of the snapshot arrived, inside the branch", make_request(OLD, 3, 9, 3), 0, None),
    ("R5 nothing of the snapshot arrived, outside", make_request(OLD, 4, 9, 4), 0, 3),
    ("R6 the snapshot ends at the branch's end", make_request(OLD, 1, 3, 2), 0, None),
    ("R6 in the newest branch", make_request(NEW, 1, 10, 10), 0, None),
    ("R7 all of the snapshot arrived: back to the branch's end", make_request(OLD, 1, 4, 4), 0, 3),
    ("R8 the snapshot begins outside the branch", make_request(OLD, 5, 8, 6), 0, 3),
    ("R9 the branch ends inside the snapshot", make_request(OLD, 1, 4, 3), 0, 1),
    ("R9 the snapshot begins at the branch's end", make_request(OLD, 3, 5, 4), 0, 3),
    # the worked examples
    ("a partial snapshot across the branch's end", make_request(OLD, 1, 4, 3), 0, 1),
    ("a request that hides a partial snapshot", make_request(OLD, 3, 3, 3), 0, None),
    ("a snapshot past the branch's end", make_request(OLD, 5, 8, 6), 0, 3),
    ("the start of a snapshot past the branch's end", make_request(OLD, 4, 9, 4), 0, 3),
    ("a snapshot past the high seqno", make_request(NEW, 1, 12, 10), 0, 1),
    ("a snapshot up to the high seqno", make_request(NEW, 1, 10, 10), 0, None),
    ("another history", make_request(STRANGE, 1, 7, 5), 0, 0),
    ("no history", make_request(0, 0, 0, 0), 0, None),
]


@pytest.mark.parametrize(("case", "request_", "purge_seqno", "result"), DECISIONS, ids=[row[0] for row in DECISIONS])
def test_rollback_point_follows_the_decision_table(
    case: str, request_: StreamRequest, purge_seqno: int, result: int | None
) -> None:
    assert find_range_error(request_) is None
    assert find_rollback_point(LOG, HIGH, purge_seqno, request_) == result


def test_the_oldest_of_two_equal_vbuuids_is_used() -> None:
    log = (FailoverEntry(OLD, 8), FailoverEntry(NEW, 3), FailoverEntry(OLD, 0))
    assert find_rollback_point(log, HIGH, 0, make_request(OLD, 9, 9, 9)) == 3


def test_mirror_behind_its_failover_log_sends_consumers_of_an_older_branch_back() -> None:
    """A mirror gets its upstream's failover log before the changes, so it may not hold seqno 3 yet."""
    log = (FailoverEntry(NEW, 3), FailoverEntry(OLD, 0))
    assert find_rollback_point(log, 0, 0, make_request(OLD, 3, 3, 3)) == 0
    assert find_rollback_point(log, 2, 0, make_request(OLD, 3, 3, 3)) == 2
    assert find_rollback_point(log, 3, 0, make_request(OLD, 3, 3, 3)) is None


def test_empty_failover_log_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^empty failover log"):
        find_rollback_point((), 0, 0, make_request(0, 0, 0, 0))


PURGED_MEANWHILE = [
    # case, purge seqno now, purge seqno at the start of the stream, end of its snapshot, whether it misses tombstones
    ("a tombstone beyond its snapshot", 9, 5, 7, True),
    ("the change right before the tombstone is its last", 9, 5, 8, True),
    ("the tombstone is its last change", 9, 5, 9, False),
    ("the tombstone is in its snapshot", 9, 5, 10, False),
    ("nothing was purged since", 9, 9, 7, False),
    ("the vbucket was rolled back since", 5, 9, 3, False),
    ("it has one change", 9, 5, 1, True),
    ("it has nothing that could be deleted", 9, 5, 0, False),
]


@pytest.mark.parametrize(("case", "now", "seen", "seqno", "result"), PURGED_MEANWHILE)
def test_stream_notices_unsent_tombstones_that_were_purged(
    case: str, now: int, seen: int, seqno: int, result: bool
) -> None:
    assert has_unsent_tombstones(now, seen, seqno) is result


RANGES = [
    ("start = end", make_request(OLD, 5, 5, 5, end_seqno=5), None),
    ("start > end", make_request(OLD, 5, 5, 5, end_seqno=4), "start seqno 5 after end seqno 4"),
    ("start at the snapshot's start", make_request(OLD, 5, 9, 5), None),
    ("start before the snapshot", make_request(OLD, 6, 9, 5), "start seqno 5 outside its snapshot 6..9"),
    ("start at the snapshot's end", make_request(OLD, 1, 5, 5), None),
    ("start after the snapshot", make_request(OLD, 1, 4, 5), "start seqno 5 outside its snapshot 1..4"),
    ("a snapshot upside down", make_request(OLD, 6, 4, 5), "start seqno 5 outside its snapshot 6..4"),
]


@pytest.mark.parametrize(("case", "request_", "result"), RANGES)
def test_invalid_ranges_are_refused(case: str, request_: StreamRequest, result: str | None) -> None:
    assert find_range_error(request_) == result


@dataclass(frozen=True, eq=False)
class WrittenChange:
    """A change, equal only to itself: two branches may use the same seqno and key for different changes."""

    seqno: int
    key: str


@dataclass
class ProducerModel:
    """A vbucket as a list of changes.

    Attributes:
        changes: the changes of the present history, one for each seqno from 1.
        log: the failover log.
        left: vbuuid of an earlier branch -> the list of changes at the failover that ended the branch.
    """

    changes: list[WrittenChange] = field(default_factory=list)
    log: FailoverLog = (FailoverEntry(1, 0),)
    left: dict[int, list[WrittenChange]] = field(default_factory=dict)

    @property
    def high_seqno(self) -> int:
        return len(self.changes)

    def write(self, key: str) -> None:
        self.changes.append(WrittenChange(self.high_seqno + 1, key))

    def fail_over(self, to: int) -> None:
        """Make another node active, which had received everything up to the seqno `to`."""
        self.left[self.log[0].vbuuid] = list(self.changes)
        del self.changes[to:]
        self.log = create_entry(self.log, 1 + len(self.left), to)

    def list_snapshot(self, start: int, end: int) -> list[WrittenChange]:
        newest = {change.key: change for change in self.changes[:end]}
        return [change for change in self.changes[start:end] if newest[change.key] is change]


@dataclass
class ConsumerModel:
    """A consumer, which keeps the received changes and its position.

    Attributes:
        received: all received changes.
        ends: ends of the snapshots that were received completely.
        vbuuid: branch of the newest change, 0 before the first.
        seqno: seqno of the newest change.
        snapshot: start and end of the snapshot with the newest change.
    """

    received: list[WrittenChange] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])
    vbuuid: int = 0
    seqno: int = 0
    snapshot: tuple[int, int] = (0, 0)

    def make_request(self) -> StreamRequest:
        return make_request(self.vbuuid, *self.snapshot, self.seqno)

    def receive(self, producer: ProducerModel, count: int, length: int | None) -> None:
        """Receive the first `count` changes of a snapshot that spans `length` seqnos, or all if None."""
        end = producer.high_seqno if length is None else min(producer.high_seqno, self.seqno + length)
        if self.snapshot[0] < self.seqno:  # in the middle of a snapshot: receive at least its rest
            end = max(end, self.snapshot[1])
        if end == self.seqno:
            return
        self.vbuuid = producer.log[0].vbuuid
        # Inside a snapshot the start stays the same, because its first marker has set it.
        self.snapshot = (self.snapshot[0] if self.seqno < self.snapshot[1] else self.seqno, end)
        changes = producer.list_snapshot(self.seqno, end)[:count]
        self.received += changes
        if changes:
            self.seqno = changes[-1].seqno
        if self.seqno == end:
            self.ends.append(end)

    def roll_back(self, producer: ProducerModel, to: int) -> None:
        """Go back to the end of the newest complete snapshot at or below `to`, and to the branch of that seqno."""
        self.ends = [end for end in self.ends if end <= to]
        self.seqno = self.ends[-1]
        self.snapshot = (self.seqno, self.seqno)
        self.received = [change for change in self.received if change.seqno <= self.seqno]
        kept = prune_log(producer.log, self.seqno)
        self.vbuuid = kept[0].vbuuid if self.seqno and kept else 0

    @property
    def documents(self) -> dict[str, WrittenChange]:
        return {change.key: change for change in self.received}


def count_shared(one: list[WrittenChange], other: list[WrittenChange]) -> int:
    """Return the number of changes that two histories share before they differ."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], zip(one, other, strict=False)))


@dataclass(frozen=True)
class FailoverRound:
    """Some writes, a part that the consumer receives, and perhaps a failover.

    Attributes:
        keys: one write for each key.
        count: changes that the consumer receives at most.
        length: seqnos that the snapshot spans, None for all.
        lost: newest changes that a failover loses, None for no failover.
    """

    keys: str
    count: int
    length: int | None
    lost: int | None


rounds = st.builds(
    FailoverRound,
    keys=st.text("abc", max_size=6),
    count=st.integers(0, 6),
    length=st.none() | st.integers(1, 8),
    lost=st.none() | st.integers(0, 5),
)


@settings(max_examples=scaled(400))
@given(st.lists(rounds, max_size=8))
def test_consumer_never_mixes_two_histories(story: list[FailoverRound]) -> None:
    producer, consumer = ProducerModel(), ConsumerModel()
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


def reconnect(producer: ProducerModel, consumer: ConsumerModel) -> None:
    """Send requests until one is accepted, and check each answer with the two histories."""
    while True:
        request = consumer.make_request()
        assert find_range_error(request) is None
        answer = find_rollback_point(producer.log, producer.high_seqno, 0, request)
        branch = producer.left.get(request.vbuuid, producer.changes)
        known = any(entry.vbuuid == request.vbuuid for entry in producer.log)
        common = count_shared(branch, producer.changes) if known else 0
        if answer is None:
            assert all(change in producer.changes for change in consumer.received)
            assert request.start_seqno == 0 or request.start_seqno <= common
            return
        assert answer <= common
        assert answer in ((common, request.snap_start) if known else (0,))
        if answer < common:  # further back than the histories need: only to leave a partial snapshot
            assert request.snap_start == answer < request.start_seqno < request.snap_end
        if request.snap_start < request.start_seqno < request.snap_end:  # the rest could have replaced any change
            assert answer <= request.snap_start
        before = consumer.seqno
        consumer.roll_back(producer, answer)
        assert consumer.seqno < before or consumer.seqno == answer == 0
