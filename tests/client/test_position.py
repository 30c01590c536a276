"""Positions: the request that resumes, its branch, the target of a rollback; then all of them against a model.

The model is a tree of histories: producers fail over to copies that lack the newest changes, and continue under a new
vbuuid. Snapshots are deduplicated and break off anywhere. The consumer is the feed itself. Whenever a snapshot is
complete, the rows of the consumer must have the same documents as the producer.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.client.feeds.feed import Feed
from penstock.client.feeds.stream_position import (
    BEGINNING,
    UNKNOWN_END,
    Position,
    SnapshotEnd,
    adopt_log,
    advance_position,
    leave_branch,
    make_end_position,
    make_stream_request,
    reconcile_position,
    roll_back_position,
)
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.store.history.failover_log import create_entry
from penstock.store.history.rollback import StreamRequest, find_range_error, find_rollback_point
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Deletion, Mutation
from penstock.wire.messages.kv import FailoverEntry
from tests.client import dialects, producer
from tests.examples import scaled

LOG = (FailoverEntry(33, 20), FailoverEntry(22, 10), FailoverEntry(11, 0))


def ends(*seqnos):
    return tuple(SnapshotEnd(seqno, 11) for seqno in seqnos)


AT_END = Position(seqno=9, vbuuid=11, snap_start=9, snap_end=9, history=2, ends=ends(3, 6, 9))
INSIDE = Position(seqno=9, vbuuid=11, snap_start=6, snap_end=12, history=2, ends=ends(3, 6))


@pytest.mark.parametrize(
    ("position", "requested_seqno", "seqno"),
    [
        (AT_END, 8, 6),
        (AT_END, 6, 6),
        (AT_END, 5, 3),
        (AT_END, 2, 0),
        (AT_END, 0, 0),
        (AT_END, 9, 6),  # the same request again would get the same answer
        (AT_END, 100, 6),
        (INSIDE, 100, 6),
        (INSIDE, 9, 6),
        (INSIDE, 7, 6),
        (INSIDE, 3, 3),
        (replace(INSIDE, ends=()), 8, 0),
        (BEGINNING, 0, 0),
    ],
)
def test_a_rollback_goes_to_the_newest_complete_snapshot(position, requested_seqno, seqno):
    back = roll_back_position(position, requested_seqno)
    assert back.seqno == back.snap_start == back.snap_end == seqno
    assert back.history == position.history
    assert back.ends == tuple(end for end in position.ends if end.seqno <= seqno)
    assert back.vbuuid == (11 if seqno else 0)


def test_changes_move_a_position_through_its_snapshots():
    position = advance_position(BEGINNING, 4, 8, LOG)
    assert position == Position(seqno=4, vbuuid=11, snap_start=0, snap_end=8)
    position = advance_position(position, 8, 8, LOG)
    assert position == Position(seqno=8, vbuuid=11, snap_start=8, snap_end=8, ends=ends(8))
    position = advance_position(position, 12, 15, LOG)
    assert position == Position(seqno=12, vbuuid=22, snap_start=8, snap_end=15, ends=ends(8))


def test_snapshot_after_a_complete_snapshot_begins_at_its_end():
    position = advance_position(Position(seqno=9, vbuuid=11, snap_start=6, snap_end=9), 12, 15, LOG)
    assert position == Position(seqno=12, vbuuid=22, snap_start=9, snap_end=15)


def test_end_of_a_snapshot_has_the_branch_of_its_reception():
    assert advance_position(replace(AT_END, seqno=14), 15, 15, LOG).vbuuid == 22
    assert advance_position(replace(INSIDE, seqno=11), 12, 12, LOG).vbuuid == 22


def test_interrupted_snapshot_keeps_its_start():
    position = advance_position(replace(INSIDE, seqno=7), 8, 14, LOG)
    assert (position.snap_start, position.snap_end) == (6, 14)


def test_a_position_remembers_the_newest_sixteen_ends():
    position = BEGINNING
    for seqno in range(1, 40):
        position = advance_position(position, seqno, seqno, LOG)
    assert [end.seqno for end in position.ends] == list(range(24, 40))


def test_position_adopts_the_vbuuids_of_the_failover_log():
    position = replace(AT_END, seqno=15, snap_start=15, snap_end=15, ends=ends(3, 12, 15))
    agreed = adopt_log(position, LOG)
    assert (agreed.vbuuid, agreed.ends) == (22, (SnapshotEnd(3, 11), SnapshotEnd(12, 22), SnapshotEnd(15, 22)))


@pytest.mark.parametrize(
    ("position", "end_seqno", "fields"),
    [
        (BEGINNING, MAX_SEQNO, (0, MAX_SEQNO, 0, 0, 0)),
        (Position(vbuuid=11), 5, (0, 5, 0, 0, 0)),
        (AT_END, 20, (9, 20, 11, 9, 9)),
        (INSIDE, 20, (9, 20, 11, 6, 12)),
        (INSIDE, 3, (9, 9, 11, 6, 12)),
    ],
)
def test_stream_request_resumes_at_the_position(position, end_seqno, fields):
    request = make_stream_request(7, position, end_seqno, opaque=5)
    assert (request.vbucket, request.opaque, request.flags) == (7, 5, 0)
    found = (request.start_seqno, request.end_seqno, request.vbuuid, request.snap_start, request.snap_end)
    assert found == fields
    assert make_stream_request(7, position, end_seqno) == replace(request, opaque=0)
    assert make_stream_request(7, position) == replace(request, opaque=0, end_seqno=MAX_SEQNO)


def test_end_position_is_after_all_changes():
    assert make_end_position(VbucketInfo(LOG, 20)) == Position(
        seqno=20, vbuuid=22, snap_start=20, snap_end=20, ends=(SnapshotEnd(20, 22),)
    )
    assert make_end_position(VbucketInfo((FailoverEntry(11, 0),), 0)) == BEGINNING


THREE = (SnapshotEnd(3, 11), SnapshotEnd(12, 22), SnapshotEnd(18, 22), SnapshotEnd(25, 33))
COMPLETE = Position(seqno=25, vbuuid=33, snap_start=25, snap_end=25, history=2, ends=THREE)
CUT_OFF = Position(seqno=30, vbuuid=33, snap_start=25, snap_end=UNKNOWN_END, history=2, ends=THREE)


def of(*log):
    return tuple(FailoverEntry(vbuuid, seqno) for vbuuid, seqno in log)


@pytest.mark.parametrize(
    ("position", "log", "seqno", "requested_seqno"),
    [
        (BEGINNING, of((99, 7)), 0, None),
        (COMPLETE, LOG, 25, None),
        (CUT_OFF, LOG, 30, None),
        (COMPLETE, of((44, 25), (33, 20), (22, 10), (11, 0)), 25, None),
        (Position(seqno=1, vbuuid=11, snap_start=1, snap_end=1, ends=ends(1)), LOG, 1, None),
        (CUT_OFF, of((44, 60), (33, 20), (22, 10), (11, 0)), 25, 25),
        (CUT_OFF, of((44, 25), (33, 20), (22, 10), (11, 0)), 25, 25),
        (CUT_OFF, of((44, 24), (33, 20), (22, 10), (11, 0)), 18, 24),
        (COMPLETE, of((44, 17), (22, 10), (11, 0)), 12, 17),
        (CUT_OFF, of((44, 18), (22, 10), (11, 0)), 18, 18),
        (CUT_OFF, of((44, 30), (11, 0)), 3, 3),
        (CUT_OFF, of((44, 2), (11, 0)), 0, 2),
        (CUT_OFF, of((44, 0)), 0, 0),
    ],
)
def test_consumer_finds_the_common_point_in_the_failover_log(position, log, seqno, requested_seqno):
    found = reconcile_position(position, log)
    assert (found.position.seqno, found.requested_seqno) == (seqno, requested_seqno)
    assert found.position.history == position.history
    assert found.position.is_complete == (found.position.seqno != 30)
    assert reconcile_position(found.position, log) == (found.position, None)


@pytest.mark.parametrize(
    ("position", "seqno"), [(COMPLETE, 18), (CUT_OFF, 18), (replace(COMPLETE, ends=THREE[3:]), 0), (BEGINNING, 0)]
)
def test_position_without_its_branch_moves_to_the_previous_branch(position, seqno):
    back = leave_branch(position)
    assert (back.seqno, back.vbuuid) == (seqno, 22 if seqno else 0)
    assert back.is_complete


# The model

KEYS = "abc"


@dataclass
class VbucketCopy:
    """One copy of a vbucket.

    Attributes:
        log: failover log.
        changes: the whole history: (key, version) of seqno 1, 2, ...; version None is a deletion.
        purge_seqno: deletions up to this seqno are purged.
    """

    log: tuple[FailoverEntry, ...]
    changes: list[tuple[str, int | None]] = field(default_factory=list)
    purge_seqno: int = 0

    @property
    def high_seqno(self):
        return len(self.changes)

    def state_at(self, seqno):
        """Return key -> version of the documents at a seqno."""
        newest = dict(self.changes[:seqno])
        return {key: version for key, version in newest.items() if version is not None}

    def snapshot(self, start, end):
        """Return (seqno, key, version) of the newest change of each key in (start, end], without purged deletions."""
        newest = {}
        for seqno, (key, version) in enumerate(self.changes[:end], 1):
            newest[key] = (seqno, key, version)
        found = sorted(row for row in newest.values() if row[0] > start)
        return [row for row in found if row[2] is not None or row[0] > self.purge_seqno or row[0] == end]


def compute_documents(rows):
    """Return key -> newest version, without the changes that a later rollback row makes invalid."""
    newest, cuts = {}, {row.history: row.seqno for row in rows if row.event == Event.ROLLBACK}
    for row in sorted((row for row in rows if row.key is not None), key=lambda row: (row.history, row.seqno)):
        if all(row.seqno <= cut for at, cut in cuts.items() if at > row.history):
            newest[row.key.decode()] = int(row.value) if row.event == Event.MUTATION else None
    return {key: version for key, version in newest.items() if version is not None}


class Failovers(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.version = 0
        self.vbuuids = iter(range(100, 10_000))
        self.copies = [VbucketCopy(create_entry((), next(self.vbuuids), 0))]
        self.producer = self.copies[0]
        self.consumer = self.new_consumer()
        self.position = BEGINNING
        self.request: Any = None
        """The accepted stream request of the current connection, or None."""

    def new_consumer(self):
        return producer.Asking(Feed(8, {3: StreamTarget()}, window=producer.WINDOW))

    def give(self, *messages):
        """Give messages to the feed, and consume its deliveries."""
        self.consumer.give(*messages)
        for delivery in self.consumer.feed.deliveries:
            self.position = delivery.positions.get(3, self.position)
        self.consumer.consume()
        self.position = self.consumer.feed.take_positions().get(3, self.position)
        self.check()

    def disconnect(self):
        self.request = None
        self.consumer.reconnect()

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8), delete=st.booleans())
    def write(self, keys, delete):
        for key in keys:
            self.version += 1
            self.producer.changes.append((key, None if delete else self.version))

    @rule()
    def copy(self):
        """Add a replica that has all changes up to now."""
        self.copies.append(replace(self.producer, changes=list(self.producer.changes)))
        del self.copies[:-4]

    @rule(which=st.integers(0, 4), lost=st.integers(0, 3))
    def fail_over(self, which, lost):
        """Let another copy, or the same copy without its newest changes, continue under a new vbuuid."""
        known = [self.producer, *self.copies]
        old = known[which % len(known)]
        high = max(old.high_seqno - lost, 0)
        log = create_entry(old.log, next(self.vbuuids), high)
        self.producer = VbucketCopy(log, old.changes[:high], min(old.purge_seqno, high))
        self.disconnect()

    @rule()
    def purge(self):
        """Drop deletions, but never the newest change, as a compaction does. Streams that still need them end."""
        self.disconnect()
        purged = [
            seqno
            for seqno, (_, version) in enumerate(self.producer.changes, 1)
            if version is None and seqno < self.producer.high_seqno
        ]
        self.producer.purge_seqno = max(purged, default=self.producer.purge_seqno)

    def connect(self):
        for _ in range(30):
            request = self.consumer.ask_one()
            if (point := self.answer(request, request.snap_start, request.snap_end)) is None:
                self.request = request
                self.give(producer.accept(request, self.producer.log))
                return
            assert request.start_seqno > 0
            self.give(producer.rollback(request, point))
        raise AssertionError("rollbacks without end")

    def answer(self, asked, snap_start, snap_end):
        """Return the seqno that the producer rolls the consumer back to, or None if the stream may continue."""
        request = StreamRequest(
            start_seqno=asked.start_seqno, vbuuid=asked.vbuuid, snap_start=snap_start, snap_end=snap_end
        )
        assert find_range_error(request) is None
        return find_rollback_point(self.producer.log, self.producer.high_seqno, self.producer.purge_seqno, request)

    def message(self, seqno, key, version):
        """Return the message of a change in the open stream."""
        form: Any = Deletion if version is None else Mutation
        value = {} if version is None else {"value": b"%d" % version}
        return form(vbucket=3, opaque=self.request.opaque, key=key.encode(), by_seqno=seqno, **value).encode()

    @rule(data=st.data())
    def stream(self, data):
        """Stream a snapshot, whole or interrupted, under one marker or several."""
        if self.request is None:
            self.connect()
        position = self.position
        # Purged changes are missing in every snapshot, so no snapshot ends below the purge seqno.
        lowest = max(position.snap_end, position.seqno + 1, self.producer.purge_seqno)
        if lowest > self.producer.high_seqno:
            return
        end = data.draw(st.integers(lowest, self.producer.high_seqno), "end")
        rows = self.producer.snapshot(position.seqno, end)
        inside = [seqno for seqno, *_ in rows if seqno < position.snap_end]
        markers = {end} | (data.draw(st.sets(st.sampled_from(inside)), "markers") if inside else set())
        count = data.draw(st.integers(0, len(rows)), "received")
        start = position.seqno + 1
        for marked in sorted(markers):
            received = (self.message(*row) for row in rows[:count] if start <= row[0] <= marked)
            self.give(producer.marker(self.request, start, marked), *received)
            start = marked + 1
            if count < len(rows) and rows[count][0] <= marked:
                self.disconnect()  # in the middle of the snapshot
                return

    def check(self):
        """Compare rows and producer if a snapshot is complete and a stream is open; else there may be more rows."""
        if self.request is not None and self.position.is_complete:
            assert compute_documents(self.consumer.rows) == self.producer.state_at(self.position.seqno)


Failovers.TestCase.settings = settings(max_examples=scaled(100), stateful_step_count=40)
TestFailovers = Failovers.TestCase


class UprFailovers(Failovers):
    """The same histories over UPR and its draft, whose requests have no snapshots."""

    builder = dialects.UprMessageBuilder()

    def new_consumer(self):
        return dialects.make_consumer(self.builder)

    def connect(self):
        for _ in range(90):
            for request in self.consumer.ask():
                if isinstance(request, self.builder.make_log_request):
                    self.give(self.builder.log(request, self.producer.log))
                elif (point := self.answer(request, request.start_seqno, request.start_seqno)) is None:
                    self.request = request
                    self.give(self.builder.accept(request))
                else:
                    self.give(self.builder.rollback(request, point))
            if self.request is not None:
                return
        raise AssertionError("rollbacks without end")

    def message(self, seqno, key, version):
        form: Any = self.builder.deletion_message if version is None else self.builder.mutation_message
        value = {} if version is None else {"value": b"%d" % version}
        return form(vbucket=3, opaque=self.request.opaque, key=key.encode(), by_seqno=seqno, **value).encode()

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=3), received=st.none() | st.integers(1, 2))
    def stream(self, keys, received):
        """Stream a snapshot of all changes, complete or interrupted after `received` changes."""
        self.write(keys, delete=False)
        if self.request is None:
            self.connect()
        rows = self.producer.snapshot(self.position.seqno, self.producer.high_seqno)[:received]
        self.give(self.builder.snapshot_start(self.request), *(self.message(*row) for row in rows))
        if received is None:
            self.give(self.builder.snapshot_end(self.request))
        else:
            self.disconnect()

    @rule(lost=st.integers(1, 2))
    def lose(self, lost):
        """Restart the producer without its newest changes."""
        self.fail_over(0, lost)


UprFailovers.TestCase.settings = settings(max_examples=scaled(300), stateful_step_count=40)
TestUprFailovers = UprFailovers.TestCase


class DraftFailovers(UprFailovers):
    builder = dialects.DraftMessageBuilder()


DraftFailovers.TestCase.settings = settings(max_examples=scaled(100), stateful_step_count=40)
TestDraftFailovers = DraftFailovers.TestCase
