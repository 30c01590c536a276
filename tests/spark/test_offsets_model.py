"""The planning of the Spark source against a producer with real histories, disturbed at every moment.

The model knows every version of every key on the surviving branch. It loses tails and whole vbuckets, purges
deletions, chooses its snapshots as it likes, and breaks streams off. The consumer is the pure planning plus what
Spark and the tables promise: a batch's rows are kept once, replays give the same offsets, memory dies with the process.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.client.feeds.feed import EndRule, Feed, StreamTarget
from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import Position
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import Error
from penstock.spark.source import batch_planning, offsets
from penstock.spark.source.batch_planning import (
    PlanMemory,
    plan_batch,
    plan_batch_until,
    prepare_available_now,
)
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
    """A vbucket with all versions of its branch; only a snapshot is deduplicated."""

    ids: Callable[[], int]
    changes: list[Change] = field(default_factory=list)
    purged: set[int] = field(default_factory=set)  # seqnos of deletions that compaction dropped
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
        """Drop some of the deletions that are their key's newest version, never the last seqno."""
        newest = {change.key: change for change in self.changes}
        dead = [c.seqno for c in newest.values() if c.value is None and c.seqno < len(self.changes)]
        horizon = random.randint(0, len(self.changes))
        self.purged |= {seqno for seqno in dead if seqno <= horizon}

    def fail_over(self, random: Random) -> None:
        """Continue on a replica that has less, and its own idea of what to purge."""
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
        """Return the newest versions up to `end`. With a purged deletion went everything it had replaced."""
        newest = {change.key: change for change in self.changes[:end]}
        gone = {self.changes[seqno - 1].key: seqno for seqno in sorted(self.purged)}
        return sorted(c for c in newest.values() if c.seqno > max(start, gone.get(c.key, 0)))

    def answer(self, request: StreamRequest) -> int | None:
        assert request.snap_start <= request.start_seqno <= min(request.snap_end, request.end_seqno)
        return find_rollback_point(self.log, self.info.high_seqno, self.info.purge_seqno, request)


EVENTS = (Producer.write, Producer.purge, Producer.fail_over, Producer.lose_everything, Producer.forget_branches)
WEATHERS = [(60, 25, 12, 2, 1), (40, 60, 2, 0, 0), (20, 0, 60, 5, 1)]  # the events' weights


class World:
    """Producers, and whoever disturbs them."""

    def __init__(self, random: Random, count: int) -> None:
        self.random = random
        self.last_id = 0
        self.producers = [Producer(self.next_id) for _ in range(count)]
        self.quiet = False
        self.weather = random.choice(WEATHERS)
        self.storm = random.choice([0.1, 0.3, 0.6])  # how likely something happens while a stream is read

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
            event = self.random.choices(EVENTS, self.weather)[0]
            event(self.random.choice(self.producers), self.random)


def read_changes(world: World, read: VbucketRead) -> tuple[list[Change], bool]:
    """Do what a task does for one vbucket, with its feed; return what it gives, and whether it was not given up."""
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
            world.disturb(0.7)  # long enough without a connection for anything to happen
    consumer.consume()
    return [_change_of(row) for row in consumer.rows], not consumer.feed.given_up


def _change_of(row: ChangeRow) -> Change:
    assert row.key is not None
    assert row.seqno is not None
    return Change(row.seqno, row.key.decode(), int(row.value) if row.value else None)


def serve(world: World, read: VbucketRead, request: StreamReq, consumer: Asking) -> None:
    """Answer a stream request, and stream until the stream ends or the connection does."""
    producer = world.producers[read.vbucket]
    asked = StreamRequest(
        start_seqno=request.start_seqno,
        end_seqno=request.end_seqno,
        vbuuid=request.vbuuid,
        snap_start=request.snap_start,
        snap_end=request.snap_end,
    )
    if (point := producer.answer(asked)) is not None:
        consumer.give(rollback(request, point))
        return
    consumer.give(accept(request, producer.log))
    reason = None if consumer.feed.is_done else stream(world, read, request, consumer)
    if reason is None:
        consumer.reconnect()
    elif not consumer.feed.is_done:
        consumer.give(end(request, reason))


def stream(world: World, read: VbucketRead, request: StreamReq, consumer: Asking) -> StreamEndReason | None:
    """Send what one stream delivers; return why it ended, None: the connection did."""
    producer, random = world.producers[read.vbucket], world.random
    branch, at = producer.log[0], request.start_seqno
    assert read.end_seqno <= producer.info.high_seqno
    while at < read.end_seqno:
        world.disturb(world.storm)
        if producer.log[0] != branch:
            return StreamEndReason.STATE_CHANGED
        if 0 < at < producer.info.purge_seqno and random.random() < 0.3:
            return StreamEndReason.ROLLBACK  # back from memory to a backfill that compaction has overtaken
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
        if at < high:  # what was there has been purged, or a newer version hides it
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


class Consumer:
    """A query with its checkpoint and its changelog, of some vbuckets."""

    def __init__(self, world: World, chosen: list[int]) -> None:
        self.world = world
        self.chosen = chosen
        self.text = json.dumps(make_first_offset(len(world.producers)).to_json())
        self.memory = PlanMemory()
        self.seen: dict[int, VbucketInfo] = {}
        self.rows: list[Row] = []
        self.rollbacks: list[RollbackRow] = []

    @property
    def infos(self) -> dict[int, VbucketInfo]:
        return {vbucket: info for vbucket, info in self.world.infos.items() if vbucket in self.chosen}

    def look(self, previous: Offset) -> dict[int, VbucketInfo]:
        """Return what the planner's next look finds: no purge seqno is asked for that cannot matter."""
        settled, infos = batch_planning.find_settled_vbuckets(previous, self.seen, self.memory), self.infos
        if all(self.seen[vb].failover_log == info.failover_log for vb, info in infos.items() if vb in self.seen):
            same = [vb for vb in settled if self.seen[vb].high_seqno == infos[vb].high_seqno]
            infos.update((vb, self.seen[vb]) for vb in same)
        self.seen = infos
        return infos

    def latest(self) -> Offset:
        return plan_batch(make_first_offset(len(self.world.producers)), self.infos)[0]

    def back_fill(self) -> None:
        """Begin where batch reads have ended, each up to an end that was known before, all of which succeeded."""
        bounds = [self.text]
        for _ in range(self.world.random.randint(1, 2)):
            self.world.disturb(0.5)
            bounds.append(json.dumps(self.latest().to_json()))
        for start_text, end_text in pairwise(bounds):
            self.world.disturb(0.3)
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
        """Plan and run one batch; return whether there was one."""
        previous = Offset.from_json(json.loads(self.text))
        infos = self.look(previous)
        end, self.memory = plan_batch(previous, infos, limit, self.memory)
        self.check_plan(previous, end, infos, limit)
        end_text = json.dumps(end.to_json())
        if end_text == self.text:
            return False
        self.world.disturb(0.4)
        self.run_batch(self.text, end_text)
        self.text = end_text
        self.world.disturb(0.4)
        return True

    def run_batch(self, start_text: str, end_text: str) -> None:
        """Read until an attempt's rows are committed; commit them once."""
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
        """The pure current table."""
        cuts = [cut for cut in self.rollbacks if cut.vbucket == vbucket]
        standing = [
            row
            for row in self.rows
            if row.vbucket == vbucket
            and not any(row.history < cut.history and row.change.seqno > cut.seqno for cut in cuts)
        ]
        newest = {
            row.change.key: row.change.value for row in sorted(standing, key=lambda r: (r.history, r.change.seqno))
        }
        return {key: value for key, value in newest.items() if value is not None}

    def check_plan(self, previous: Offset, end: Offset, infos: Mapping[int, VbucketInfo], limit: int | None) -> None:
        """Whatever the plan keeps of a vbucket that is read to its end must be the truth."""
        for vbucket, info in infos.items():
            a, b = previous.vbuckets[vbucket], end.vbuckets[vbucket]
            if a.history == b.history and a.seqno == info.high_seqno:
                assert self.documents(vbucket) == self.world.producers[vbucket].documents(), f"vbucket {vbucket}"
            assert b.history > a.history or b.seqno >= a.seqno
            if self.memory.target and b.seqno > b.start:
                assert b.seqno <= max(self.memory.target[vbucket][1], info.purge_seqno)
        planned = [
            b.seqno - b.start for a, b in zip(previous.vbuckets, end.vbuckets, strict=True) if a.seqno != b.seqno
        ]
        assert limit is None or sum(planned) <= max(limit, *(info.purge_seqno for info in infos.values()))

    def catch_up(self) -> None:
        """With a quiet producer: reach its state and rest there."""
        self.world.quiet = True
        for limit in (3, None):
            for _ in range(400):
                if not self.trigger(limit):
                    break
            else:
                raise AssertionError("the query never comes to rest")
        assert not self.trigger(None)
        for vbucket in self.chosen:
            assert self.documents(vbucket) == self.world.producers[vbucket].documents(), f"vbucket {vbucket}"
        assert {row.vbucket for row in self.rows} <= {*self.chosen}
        identities = Counter((row.vbucket, row.history, row.change.seqno) for row in self.rows)
        assert max(identities.values(), default=1) == 1
        assert len({(cut.vbucket, cut.history) for cut in self.rollbacks}) == len(self.rollbacks)
        assert all(cut.seqno <= cut.requested_seqno for cut in self.rollbacks)
        self.world.quiet = False

    def available_now(self, limit: int | None) -> None:
        """A writer that never rests must not keep the run from ending."""
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
        what = random.random()
        if what < 0.1:
            consumer.available_now(limit)
        elif what < 0.2:
            consumer.catch_up()
        elif what < 0.3:
            consumer.memory, consumer.seen = PlanMemory(), {}  # a restart
        else:
            consumer.trigger(limit)
    consumer.catch_up()


@settings(max_examples=scaled(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_whatever_happens_the_tables_follow(random):
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


# The model must be able to fail: each of these planners is wrong in one rule.


def high_ignored(proven: ProvenEnd, vbuuid: int, info: VbucketInfo) -> bool:
    return STANDS(ProvenEnd(proven.end, 0), vbuuid, info)


def purge_ignored_on_going_on(proven: ProvenEnd, vbuuid: int, info: VbucketInfo) -> bool:
    return STANDS(proven, vbuuid, replace(info, purge_seqno=0))


def high_taken_for_the_end(v: VbucketOffset, info: VbucketInfo) -> VbucketOffset:
    settled = SETTLE(v, info)
    return replace(settled, proven=tuple(ProvenEnd(end, end) for end, _ in settled.proven))


def every_end_complete(v: VbucketOffset, info: VbucketInfo) -> bool:
    return True


def purge_ignored_in_proof(v: VbucketOffset, info: VbucketInfo) -> bool:
    return v.vbuuid == info.vbuuid


def reads_from_0_always_exempt(v: VbucketOffset, info: VbucketInfo) -> bool:
    return v.vbuuid == info.vbuuid and (v.start == 0 or info.purge_seqno <= v.start)


def branch_ignored_in_proof(v: VbucketOffset, info: VbucketInfo) -> bool:
    return COMPLETE(replace(v, vbuuid=info.vbuuid), info)


def minimum_ignored(wanted: list[int], least: list[int], limit: int, order: list[int]) -> list[int]:
    return SHARE(wanted, [0] * len(least), limit, order)


def target_never_moved(target: object, states: object) -> object:
    return target


def give_up_below_purge(policy: PinnedBranch, position: Position, requested_seqno: int) -> None:
    return None


def settled_without_a_proof(previous: Offset, infos: Mapping[int, VbucketInfo], memory: PlanMemory) -> set[int]:
    return {vb for vb, info in infos.items() if previous.vbuckets[vb].seqno == info.high_seqno}


def back_fill_taken_for_proven(consumer: Consumer) -> Offset:
    infos = consumer.infos
    positions = {vbucket: (info.vbuuid, info.high_seqno) for vbucket, info in infos.items()}
    return offsets.make_proven_offset(positions, len(consumer.world.producers))


SETTLE, STANDS, COMPLETE, SHARE = (
    batch_planning._settle_vbucket,
    batch_planning._is_valid,
    batch_planning._is_complete,
    batch_planning._divide_limit,
)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (batch_planning, "_is_valid", high_ignored),
        (batch_planning, "_settle_vbucket", high_taken_for_the_end),
        (batch_planning, "_is_valid", purge_ignored_on_going_on),
        (batch_planning, "_is_complete", every_end_complete),
        (batch_planning, "_is_complete", purge_ignored_in_proof),
        (batch_planning, "_is_complete", reads_from_0_always_exempt),
        (batch_planning, "_is_complete", branch_ignored_in_proof),
        (batch_planning, "_divide_limit", minimum_ignored),
        (batch_planning, "_update_target", target_never_moved),
        (PinnedBranch, "decide_on_rollback", give_up_below_purge),
        (batch_planning, "find_settled_vbuckets", settled_without_a_proof),
        (Consumer, "latest", back_fill_taken_for_proven),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.long
def test_a_broken_planner_is_caught(owner, name, broken, monkeypatch):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        simulate_many(range(2000))
