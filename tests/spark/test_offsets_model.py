"""The planning of the Spark source, against a model of a producer with real histories and random events.

The producer has all versions of all keys of the surviving branch. It loses its newest changes or whole vbuckets,
purges deletions, chooses its snapshots at random, and ends streams early. The consumer is the pure planning with the
guarantees of Spark and the tables:

- The rows of a batch are kept once.
- Replays of a batch have the same offsets.
- The memory of the planner is lost with the process.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.client.feeds.feed import Feed
from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import Position
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import Error, UsageError
from penstock.spark.source import batch_planning, offsets
from penstock.spark.source.batch_planning import (
    PlanMemory,
    plan_batch,
    plan_batch_until,
    prepare_available_now,
)
from penstock.spark.source.limits.row_allocation import SEQNO_COUNTER, Backlog, RowCount, RowCounter, allocate_rows
from penstock.spark.source.offsets import (
    Offset,
    ProvenEnd,
    RollbackRow,
    VbucketOffset,
    VbucketRead,
    derive_reads,
    make_first_offset,
)
from penstock.store.history.failover_log import FailoverLog, create_entry
from penstock.store.history.rollback import StreamRequest, find_rollback_point
from penstock.wire.codec.statuses import StreamEndReason
from penstock.wire.columns.schema import Change as ChangeRow
from penstock.wire.messages.dcp import Deletion, Mutation, SeqnoAdvanced, StreamReq
from tests.client.producer import Asking, accept, end, marker, rollback
from tests.examples import scaled

KEYS = "abcd"


class Change(NamedTuple):
    seqno: int
    key: str
    value: int | None  # None: a deletion


class Row(NamedTuple):
    vbucket: int
    history: int
    change: Change


@dataclass
class Producer:
    """A vbucket that keeps all versions of its branch; only snapshots are deduplicated."""

    ids: Callable[[], int]
    changes: list[Change] = field(default_factory=list)
    purged: set[int] = field(default_factory=set)  # seqnos of deletions that compaction has removed
    log: FailoverLog = ()

    def __post_init__(self) -> None:
        self.log = create_entry((), self.ids(), 0)

    @property
    def info(self) -> VbucketInfo:
        return VbucketInfo(self.log, len(self.changes), max(self.purged, default=0))

    def documents(self) -> dict[str, int]:
        newest = {change.key: change.value for change in self.changes}
        return {key: value for key, value in newest.items() if value is not None}

    def write(self, random: Random) -> None:
        value = None if random.random() < 0.35 else self.ids()
        self.changes.append(Change(len(self.changes) + 1, random.choice(KEYS), value))

    def purge(self, random: Random) -> None:
        """Purge some deletions that are the newest version of their key, but never the last seqno."""
        newest = {change.key: change for change in self.changes}
        dead = [c.seqno for c in newest.values() if c.value is None and c.seqno < len(self.changes)]
        horizon = random.randint(0, len(self.changes))
        self.purged |= {seqno for seqno in dead if seqno <= horizon}

    def fail_over(self, random: Random) -> None:
        """Continue on a replica that may have fewer changes, and that may have purged other deletions."""
        lost = random.choice([0, 0, 1, 2, 4, 8, len(self.changes)])
        at = max(0, len(self.changes) - lost)
        del self.changes[at:]
        self.purged = {seqno for seqno in self.purged if seqno <= at and random.random() < 0.8}
        if random.random() < 0.3:
            self.purge(random)
        self.log = create_entry(self.log, self.ids(), at)

    def lose_everything(self, random: Random) -> None:
        self.changes, self.purged, self.log = [], set(), create_entry((), self.ids(), 0)

    def forget_branches(self, random: Random) -> None:
        for _ in range(25):
            self.log = create_entry(self.log, self.ids(), len(self.changes))

    def snapshot(self, start: int, end: int) -> list[Change]:
        """Return the newest versions from `start` to `end`, without purged deletions and the versions they replaced."""
        newest = {change.key: change for change in self.changes[:end]}
        gone = {self.changes[seqno - 1].key: seqno for seqno in sorted(self.purged)}
        return sorted(c for c in newest.values() if c.seqno > max(start, gone.get(c.key, 0)))

    def answer(self, request: StreamRequest) -> int | None:
        assert request.snap_start <= request.start_seqno <= min(request.snap_end, request.end_seqno)
        return find_rollback_point(self.log, self.info.high_seqno, self.info.purge_seqno, request)


EVENTS = (Producer.write, Producer.purge, Producer.fail_over, Producer.lose_everything, Producer.forget_branches)
EVENT_WEIGHTS = [(60, 25, 12, 2, 1), (40, 60, 2, 0, 0), (20, 0, 60, 5, 1)]


class World:
    """The producers of all vbuckets, and the random events that change them.

    Attributes:
        random: source of all random choices.
        last_id: the last vbuuid or value that was given out.
        producers: one for each vbucket.
        quiet: whether `disturb` does nothing.
        weights: how often each of EVENTS happens, relative to the others.
        stream_chance: probability of an event before each snapshot of a stream.
    """

    def __init__(self, random: Random, count: int) -> None:
        self.random = random
        self.last_id = 0
        self.producers = [Producer(self.next_id) for _ in range(count)]
        self.quiet = False
        self.weights = random.choice(EVENT_WEIGHTS)
        self.stream_chance = random.choice([0.1, 0.3, 0.6])

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    @property
    def infos(self) -> Mapping[int, VbucketInfo]:
        return {vbucket: producer.info for vbucket, producer in enumerate(self.producers)}

    def write(self, most: int) -> None:
        for _ in range(self.random.randint(0, most)):
            self.random.choice(self.producers).write(self.random)

    def disturb(self, chance: float) -> None:
        while not self.quiet and self.random.random() < chance:
            event = self.random.choices(EVENTS, self.weights)[0]
            event(self.random.choice(self.producers), self.random)


def read_changes(world: World, read: VbucketRead) -> tuple[list[Change], bool]:
    """Read one vbucket with a feed, as a task does; return the changes, and whether the feed did not give up."""
    if read.end_seqno == read.start_seqno:
        return [], True
    target = StreamTarget(position=read.start, end_seqno=read.end_seqno, policy=read.policy)
    consumer = Asking(Feed(8, {read.vbucket: target}, window=1 << 16, end_rule=EndRule.EXACT))
    while not consumer.feed.is_done:
        for request in consumer.ask():
            serve(world, read, request, consumer)
        if consumer.feed.failures.pop_all():
            consumer.feed.request_again([read.vbucket])
        if not consumer.feed.is_done and world.random.random() < 0.1:
            world.disturb(0.7)  # without a connection for long enough that any event may happen
    consumer.consume()
    return [_change_of(row) for row in consumer.rows], not consumer.feed.given_up


def _change_of(row: ChangeRow) -> Change:
    assert row.key is not None
    assert row.seqno is not None
    return Change(row.seqno, row.key.decode(), int(row.value) if row.value else None)


def serve(world: World, read: VbucketRead, request: StreamReq, consumer: Asking) -> None:
    """Answer a stream request, and send changes until the stream ends or the connection is lost."""
    producer = world.producers[read.vbucket]
    position = StreamRequest(
        start_seqno=request.start_seqno,
        end_seqno=request.end_seqno,
        vbuuid=request.vbuuid,
        snap_start=request.snap_start,
        snap_end=request.snap_end,
    )
    if (point := producer.answer(position)) is not None:
        consumer.give(rollback(request, point))
        return
    consumer.give(accept(request, producer.log))
    reason = None if consumer.feed.is_done else send_changes(world, read, request, consumer)
    if reason is None:
        consumer.reconnect()
    elif not consumer.feed.is_done:
        consumer.give(end(request, reason))


def send_changes(world: World, read: VbucketRead, request: StreamReq, consumer: Asking) -> StreamEndReason | None:
    """Send the changes of one stream; return the reason of its end, None if the connection was lost."""
    producer, random = world.producers[read.vbucket], world.random
    branch, at = producer.log[0], request.start_seqno
    assert read.end_seqno <= producer.info.high_seqno
    while at < read.end_seqno:
        world.disturb(world.stream_chance)
        if producer.log[0] != branch:
            return StreamEndReason.STATE_CHANGED
        if 0 < at < producer.info.purge_seqno and random.random() < 0.3:
            return StreamEndReason.ROLLBACK  # falls back from memory to a backfill, but compaction has purged further
        high = random.choice(
            [read.end_seqno, producer.info.high_seqno, random.randint(at + 1, producer.info.high_seqno)]
        )
        messages = [marker(request, at + 1, high)]
        for change in producer.snapshot(at, high):
            if random.random() < 0.05:
                consumer.give(*messages)
                return None
            messages.append(_message_of(request, change))
            at = change.seqno
        if at < high:  # the changes up to `high` were purged, or newer versions hide them
            messages.append(SeqnoAdvanced(vbucket=request.vbucket, opaque=request.opaque, by_seqno=high).encode())
        consumer.give(*messages)
        at = high
    return StreamEndReason.OK


def _message_of(request: StreamReq, change: Change) -> bytes:
    vbucket, opaque, key = request.vbucket, request.opaque, change.key.encode()
    if change.value is None:
        return Deletion(vbucket=vbucket, opaque=opaque, key=key, by_seqno=change.seqno).encode()
    value = b"%d" % change.value
    return Mutation(vbucket=vbucket, opaque=opaque, key=key, by_seqno=change.seqno, value=value).encode()


@dataclass
class WorldCounter:
    """Counts the rows of the producers, while they go on with their lives."""

    world: World
    seqnos_per_row: float = 3.0

    def bound_rows(self, read: VbucketRead) -> int | None:
        self.world.disturb(0.1)
        keys = {change.key for change in self.world.producers[read.vbucket].changes}
        return self.world.random.choice([len(keys), None])

    def is_dense(self, read: VbucketRead, seqnos: int) -> bool:
        return self.world.random.random() < 0.3

    def count_rows(self, reads: Sequence[VbucketRead], limit: int) -> RowCount:
        rows: list[tuple[int, int]] = []
        lost: set[int] = set()
        for read in reads:
            self.world.disturb(0.1)
            changes, is_complete = read_changes(self.world, read)
            rows += [(read.vbucket, change.seqno) for change in changes]
            lost |= set() if is_complete else {read.vbucket}
        return RowCount(min(limit, len(rows)), len(rows) <= limit, dict(rows[:limit]), frozenset(lost))


class Consumer:
    """A query of some vbuckets, with its checkpoint and its changelog.

    Attributes:
        world: the producers.
        chosen: the vbuckets of the query.
        text: the newest offset in the checkpoint, as JSON.
        memory: memory of the planner.
        seen: the vbucket infos that the planner received last.
        rows: changes in the changelog.
        rollbacks: rollback rows in the changelog.
        requested: vbuckets to read again, with their history at the request.
    """

    def __init__(self, world: World, chosen: list[int]) -> None:
        self.world = world
        self.chosen = chosen
        self.text = json.dumps(make_first_offset(len(world.producers)).to_json())
        self.memory = PlanMemory()
        self.seen: dict[int, VbucketInfo] = {}
        self.rows: list[Row] = []
        self.rollbacks: list[RollbackRow] = []
        self.requested: dict[int, int] = {}

    @property
    def infos(self) -> dict[int, VbucketInfo]:
        return {vbucket: info for vbucket, info in self.world.infos.items() if vbucket in self.chosen}

    def request_infos(self, previous: Offset) -> dict[int, VbucketInfo]:
        """Return the vbucket infos that the planner receives; it requests no purge seqno that cannot matter."""
        settled, infos = batch_planning.find_settled_vbuckets(previous, self.seen, self.memory), self.infos
        settled -= batch_planning.find_requested(previous, self.requested)
        if all(self.seen[vb].failover_log == info.failover_log for vb, info in infos.items() if vb in self.seen):
            same = [vb for vb in settled if self.seen[vb].high_seqno == infos[vb].high_seqno]
            infos.update((vb, self.seen[vb]) for vb in same)
        self.seen = infos
        return infos

    def request_again(self) -> None:
        """Request a new snapshot of a vbucket; requests stay, fulfilled or not."""
        vbucket = self.world.random.choice(self.chosen)
        self.requested[vbucket] = Offset.from_json(json.loads(self.text)).vbuckets[vbucket].history

    def latest(self) -> Offset:
        return plan_batch(make_first_offset(len(self.world.producers)), self.infos)[0]

    def back_fill(self) -> None:
        """Start with batch reads, each up to an end that was planned before; start over if one of them fails."""
        bounds = [self.text]
        for _ in range(self.world.random.randint(1, 2)):
            self.world.disturb(0.5)
            bounds.append(json.dumps(self.latest().to_json()))
        for start_text, end_text in pairwise(bounds):
            self.world.disturb(0.8)
            try:
                start, end = (Offset.from_json(json.loads(text)) for text in (start_text, end_text))
                until = json.dumps(plan_batch_until(start, end, self.infos).to_json())
            except Error:
                return self.start_over()
            rows, rollbacks, complete = self.read(start_text, until)
            if not complete or rollbacks:
                return self.start_over()
            self.rows += rows
            self.text = end_text
        return None

    def start_over(self) -> None:
        self.rows, self.text = [], json.dumps(make_first_offset(len(self.world.producers)).to_json())

    def trigger(self, limit: int | None) -> bool:
        """Plan and run one batch; return whether there was a batch."""
        previous = Offset.from_json(json.loads(self.text))
        infos = self.request_infos(previous)
        documents = {vb: producer.documents() for vb, producer in enumerate(self.world.producers)}
        # A plan may count rows or only seqnos, so both kinds of ends follow each other.
        counts = self.world.random.random() < 0.8
        counter = WorldCounter(self.world) if counts else SEQNO_COUNTER
        end, self.memory = plan_batch(previous, infos, limit, self.memory, self.requested, counter=counter)
        self.check_plan(previous, end, infos, documents, None if counts else limit)
        end_text = json.dumps(end.to_json())
        if end_text == self.text:
            return False
        self.world.disturb(0.4)
        self.run_batch(self.text, end_text)
        self.text = end_text
        self.world.disturb(0.4)
        return True

    def run_batch(self, start_text: str, end_text: str) -> None:
        """Repeat the read until the rows of an attempt are committed, and commit rows only once."""
        committed = False
        for crash in self.world.random.choices(["no", "before commit", "after commit"], [8, 1, 1], k=3):
            rows, rollbacks, _ = self.read(start_text, end_text)
            if not committed and crash != "before commit":
                self.rows += rows
                self.rollbacks += rollbacks
                committed = True
            if crash == "no":
                return
            self.memory = replace(self.memory, offset=None, proven_offset=None)  # the process died
            self.seen = {}
            self.world.disturb(0.5)
        if not committed:
            self.run_batch(start_text, end_text)

    def read(self, start_text: str, end_text: str) -> tuple[list[Row], list[RollbackRow], bool]:
        start, end = (Offset.from_json(json.loads(text)) for text in (start_text, end_text))
        rows: list[Row] = []
        rollbacks: list[RollbackRow] = []
        complete = True
        for read in derive_reads(start, end):
            rollbacks += [read.rollback] if read.rollback else []
            changes, ended = read_changes(self.world, read)
            rows += [Row(read.vbucket, read.history, change) for change in changes]
            complete &= ended
        return rows, rollbacks, complete

    def documents(self, vbucket: int) -> dict[str, int]:
        """Return the documents of a vbucket, merged from the changelog as for the current table."""
        rollbacks = [rollback for rollback in self.rollbacks if rollback.vbucket == vbucket]
        valid = [
            row
            for row in self.rows
            if row.vbucket == vbucket
            and not any(row.history < each.history and row.change.seqno > each.seqno for each in rollbacks)
        ]
        newest = {row.change.key: row.change.value for row in sorted(valid, key=lambda r: (r.history, r.change.seqno))}
        return {key: value for key, value in newest.items() if value is not None}

    def check_plan(
        self,
        previous: Offset,
        end: Offset,
        infos: Mapping[int, VbucketInfo],
        documents: Mapping[int, dict[str, int]],
        limit: int | None,
    ) -> None:
        """Assert that the documents are right where the plan keeps a vbucket that was read to its end."""
        for vbucket, info in infos.items():
            a, b = previous.vbuckets[vbucket], end.vbuckets[vbucket]
            is_requested = self.requested.get(vbucket) == a.history  # a rollback waits until the request is fulfilled
            if a.history == b.history and a.seqno == info.high_seqno and not is_requested:
                assert self.documents(vbucket) == documents[vbucket], f"vbucket {vbucket}"
            assert b.history > a.history or b.seqno >= a.seqno
            if a.history < b.history and is_requested:
                assert b.start == 0
            if self.memory.target and b.seqno > b.start and b != a:
                assert b.seqno <= max(self.memory.target[vbucket][1], info.purge_seqno)
        planned = [
            b.seqno - b.start for a, b in zip(previous.vbuckets, end.vbuckets, strict=True) if a.seqno != b.seqno
        ]
        again = batch_planning.find_requested(previous, self.requested)
        exempt = (info.high_seqno if vb in again else info.purge_seqno for vb, info in infos.items())
        assert limit is None or sum(planned) <= max(limit, *exempt)

    def catch_up(self) -> None:
        """Assert that, without further events, the query reaches the producers' state and then plans no batches."""
        self.world.quiet = True
        for limit in (3, None):
            for _ in range(400):
                if not self.trigger(limit):
                    break
            else:
                raise AssertionError("the query never runs out of batches")
        assert not self.trigger(None)
        assert not batch_planning.find_requested(Offset.from_json(json.loads(self.text)), self.requested)
        for vbucket in self.chosen:
            assert self.documents(vbucket) == self.world.producers[vbucket].documents(), f"vbucket {vbucket}"
        assert {row.vbucket for row in self.rows} <= {*self.chosen}
        identities = Counter((row.vbucket, row.history, row.change.seqno) for row in self.rows)
        assert max(identities.values(), default=1) == 1
        assert len({(each.vbucket, each.history) for each in self.rollbacks}) == len(self.rollbacks)
        assert all(each.seqno <= each.requested_seqno for each in self.rollbacks)
        self.world.quiet = False

    def available_now(self, limit: int | None) -> None:
        """Run as trigger availableNow does, and assert that the run ends although changes are written all the time."""
        self.memory = prepare_available_now(self.infos)
        self.world.disturb(0.5)
        batches = 0
        while self.trigger(limit):
            self.world.write(3)
            batches += 1
            self.world.quiet = batches > 20
            assert batches < 400, "the run never ends"
        reached = Offset.from_json(json.loads(self.text)).vbuckets
        assert self.memory.target is not None
        for vbucket, info in self.infos.items():
            vbuuid, seqno = self.memory.target[vbucket]
            assert info.vbuuid == vbuuid
            assert reached[vbucket].seqno >= seqno
        self.world.quiet = False
        self.memory = PlanMemory()


def simulate(random: Random, steps: int) -> None:
    world = World(random, random.choice([1, 2, 3]))
    world.write(40)
    count = len(world.producers)
    consumer = Consumer(world, sorted(random.sample(range(count), random.randint(1, count))))
    if random.random() < 0.5:
        consumer.back_fill()
    for _ in range(steps):
        world.disturb(0.8)
        limit = random.choice([None, None, 1, 2, 5, 20])
        choice = random.random()
        if choice < 0.1:
            consumer.available_now(limit)
        elif choice < 0.2:
            consumer.catch_up()
        elif choice < 0.3:
            consumer.memory, consumer.seen = PlanMemory(), {}  # a restart
        elif choice < 0.37:
            consumer.request_again()
        else:
            consumer.trigger(limit)
    consumer.catch_up()


@pytest.mark.long
@settings(max_examples=scaled(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_tables_equal_the_producers_after_any_events(random):
    simulate(random, steps=12)


def simulate_many(seeds: range) -> None:
    for seed in seeds:
        simulate(Random(seed), steps=25)


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 100])
def test_many_long_schedules(first):
    simulate_many(range(first, first + 100))


@pytest.mark.soak
def test_very_many_long_schedules():
    simulate_many(range(200, 20_000))


# The model must find defects: each of these functions breaks one rule of the planner.


def ignore_high_seqno(proven: ProvenEnd, vbuuid: int, info: VbucketInfo) -> bool:
    return IS_VALID(ProvenEnd(proven.end, 0), vbuuid, info)


def ignore_purge_on_resume(proven: ProvenEnd, vbuuid: int, info: VbucketInfo) -> bool:
    return IS_VALID(proven, vbuuid, replace(info, purge_seqno=0))


def take_end_for_high_seqno(v: VbucketOffset, info: VbucketInfo) -> VbucketOffset:
    settled = SETTLE_VBUCKET(v, info)
    return replace(settled, proven=tuple(ProvenEnd(end, end) for end, _ in settled.proven))


def accept_every_end(v: VbucketOffset, info: VbucketInfo) -> bool:
    return True


def ignore_purge_in_proof(v: VbucketOffset, info: VbucketInfo) -> bool:
    return v.vbuuid == info.vbuuid


def exempt_all_reads_from_0(v: VbucketOffset, info: VbucketInfo) -> bool:
    return v.vbuuid == info.vbuuid and (v.start == 0 or info.purge_seqno <= v.start)


def ignore_branch_in_proof(v: VbucketOffset, info: VbucketInfo) -> bool:
    return IS_COMPLETE(replace(v, vbuuid=info.vbuuid), info)


def ignore_minimum(backlogs: Sequence[Backlog], limit: int, counter: RowCounter) -> dict[int, int]:
    return allocate_rows([Backlog(each.read) for each in backlogs], limit, counter)


def stay_at_lost_branches(backlogs: Sequence[Backlog], limit: int, counter: RowCounter) -> dict[int, int]:
    return {} if counter is SEQNO_COUNTER else allocate_rows(backlogs, limit, counter)


def keep_target(target: object, states: object) -> object:
    return target


def give_up_below_purge(policy: PinnedBranch, position: Position, requested_seqno: int) -> None:
    return None


def settle_without_proof(previous: Offset, infos: Mapping[int, VbucketInfo], memory: PlanMemory) -> set[int]:
    return {vb for vb, info in infos.items() if previous.vbuckets[vb].seqno == info.high_seqno}


def trust_back_fill(consumer: Consumer) -> Offset:
    infos = consumer.infos
    positions = {vbucket: (info.vbuuid, info.high_seqno) for vbucket, info in infos.items()}
    return offsets.make_proven_offset(positions, len(consumer.world.producers))


SETTLE_VBUCKET, IS_VALID, IS_COMPLETE = (
    batch_planning._settle_vbucket,
    batch_planning._is_valid,
    batch_planning._is_complete,
)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (batch_planning, "_is_valid", ignore_high_seqno),
        (batch_planning, "_settle_vbucket", take_end_for_high_seqno),
        (batch_planning, "_is_valid", ignore_purge_on_resume),
        (batch_planning, "_is_complete", accept_every_end),
        (batch_planning, "_is_complete", ignore_purge_in_proof),
        (batch_planning, "_is_complete", exempt_all_reads_from_0),
        (batch_planning, "_is_complete", ignore_branch_in_proof),
        (batch_planning, "allocate_rows", ignore_minimum),
        (batch_planning, "allocate_rows", stay_at_lost_branches),
        (batch_planning, "_update_target", keep_target),
        (PinnedBranch, "decide_on_rollback", give_up_below_purge),
        (batch_planning, "find_settled_vbuckets", settle_without_proof),
        (Consumer, "latest", trust_back_fill),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.long
def test_a_broken_planner_is_caught(owner, name, broken, monkeypatch):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((AssertionError, UsageError)):  # an offset that cannot be read is caught too
        simulate_many(range(2000))
