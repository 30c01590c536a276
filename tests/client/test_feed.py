"""The consumer without its socket: what it makes of what a producer says."""

from dataclasses import replace

import pytest

from penstock.client.feeds.feed import EndRule, StreamTarget
from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import BEGINNING, Position, SnapshotEnd
from penstock.errors import (
    AccessDenied,
    ConnectionClosed,
    NotMyVbucket,
    OrderViolation,
    OutOfRange,
    RemoteProtocolError,
    TemporaryFailure,
    UsageError,
)
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.columns.run_decoder import SMALL_RUN
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp import CloseStream, DcpReply
from penstock.wire.messages.kv import FailoverEntry, Get
from tests.client.producer import (
    AT_20,
    LOG,
    accept,
    consumer_of,
    deletion,
    end,
    marker,
    mutation,
    mutations,
    noop,
    opened,
    refuse,
    rollback,
    seqnos,
)

# Rows

RUNS = [1, 2, SMALL_RUN - 1, SMALL_RUN, SMALL_RUN + 1, 200]


@pytest.mark.parametrize("many", RUNS)
def test_changes_are_rows_whatever_the_length_of_their_run(many):
    consumer, request = opened(log=(FailoverEntry(2**63 + 5, 0),))
    found = consumer.get(marker(request, 1, many, flags=5), mutations(request, *range(1, many + 1)))
    assert seqnos(found) == list(range(1, many + 1))
    assert found[0] == Change(
        vbucket=3,
        vbuuid=2**63 + 5,
        seqno=1,
        rev_seqno=0,
        cas=1001,
        key=b"k1",
        value=b"value",
        datatype=0,
        flags=0,
        expiry=0,
        lock_time=0,
        snapshot_start=1,
        snapshot_end=many,
        snapshot_flags=5,
        history=0,
    )


@pytest.mark.parametrize("many", RUNS)
def test_a_delivery_is_a_batch_and_changes_alike(many):
    consumer, request = opened()
    consumer.give(marker(request, 1, many + 1), mutations(request, *range(1, many + 1)), deletion(request, many + 1))
    for delivery in consumer.feed.deliveries:
        assert delivery.batch.num_rows == len(delivery.changes)
        assert delivery.batch.column("seqno").to_pylist() == seqnos(delivery.changes)
    assert [change.event for change in consumer.consume()][-2:] == [Event.MUTATION, Event.DELETION]


def test_a_position_never_runs_ahead_of_the_changes_handed_out_with_it():
    consumer, request = opened()
    consumer.give(
        marker(request, 1, 3),
        mutations(request, 1, 2, 3),
        marker(request, 4, 203),
        mutations(request, *range(4, 204)),
        marker(request, 204, 205),
        mutations(request, 204),
    )
    for delivery in consumer.feed.deliveries:
        assert delivery.positions[3].seqno == delivery.changes[-1].seqno
    small, large, last = consumer.feed.deliveries
    assert [len(each.changes) for each in (small, large, last)] == [3, 200, 1]
    assert small.positions[3] == Position(seqno=3, vbuuid=11, snap_start=3, snap_end=3, ends=(SnapshotEnd(3, 11),))
    assert last.positions[3].snap_end == 205


def test_an_empty_delivery_is_never_made():
    consumer, request = opened()
    consumer.give(marker(request, 1, 3))
    consumer.give(noop(1))
    assert not consumer.feed.deliveries


# What is asked for


def test_one_request_for_each_stream_and_none_twice():
    consumer = consumer_of(
        {7: StreamTarget(), 2: StreamTarget(position=AT_20, end_seqno=25), 1: StreamTarget(end_seqno=0)}
    )
    first, second = consumer.ask()
    assert (first.vbucket, first.start_seqno, first.end_seqno, first.vbuuid) == (2, 20, 25, 11)
    assert (second.vbucket, second.start_seqno, second.end_seqno, second.vbuuid) == (7, 0, MAX_SEQNO, 0)
    assert first.opaque != second.opaque
    assert not consumer.ask()
    assert consumer.feed.unanswered(0)
    consumer.give(accept(first), accept(second))
    assert not consumer.feed.unanswered(0)
    assert not consumer.ask()


@pytest.mark.parametrize("position", [BEGINNING, AT_20])
def test_nothing_behind_the_beginning_is_done_at_once_but_a_position_is_checked(position):
    consumer = consumer_of({3: StreamTarget(position=position, end_seqno=0)})
    assert consumer.feed.is_done == (position is BEGINNING)
    if not consumer.feed.is_done:
        request = consumer.ask_one()
        assert (request.start_seqno, request.end_seqno) == (20, 20)
        consumer.give(accept(request), end(request))
        assert consumer.feed.is_done


@pytest.mark.parametrize("vbucket", [-1, 8, 65536])
def test_a_vbucket_that_the_bucket_does_not_have(vbucket):
    with pytest.raises(UsageError, match=f"vbucket {vbucket}, expected one below 8"):
        consumer_of({vbucket: StreamTarget()})


def test_ends_that_mean_now_are_asked_for_on_every_connection():
    consumer = consumer_of({1: StreamTarget(), 2: StreamTarget()}, end_rule=EndRule.NOW)
    assert not consumer.ask()
    assert consumer.feed.needs_end == {1, 2}
    consumer.feed.set_end(1, 0)
    consumer.feed.set_end(2, 5)
    request = consumer.ask_one()
    assert (request.vbucket, request.end_seqno) == (2, 5)
    consumer.give(accept(request), marker(request, 1, 5), mutations(request, 3))
    consumer.reconnect()
    assert consumer.feed.needs_end == {2}
    consumer.feed.set_end(2, 7)
    request = consumer.ask_one()
    assert (request.start_seqno, request.end_seqno) == (3, 7)


# Order

WRONG_ORDER = [
    ("not above the last", lambda r: [marker(r, 1, 9), mutations(r, 4, 4)], "by_seqno 4 after 4", Status.ERANGE),
    ("descending", lambda r: [marker(r, 1, 9), mutations(r, 4, 3)], "by_seqno 3 after 4", Status.ERANGE),
    ("in another run", lambda r: [marker(r, 1, 3), mutations(r, 3), marker(r, 3, 9), mutations(r, 3)], "3 after 3", 34),
    ("behind its snapshot", lambda r: [marker(r, 1, 9), mutations(r, 9, 10)], "by_seqno 10 behind", Status.EINVAL),
    ("without a marker", lambda r: [mutations(r, 1)], "data while the stream is open", Status.EINVAL),
    ("marker upside down", lambda r: [marker(r, 9, 8)], "snapshot 9..8 after seqno 0", Status.ERANGE),
    (
        "marker below",
        lambda r: [marker(r, 1, 9), mutations(r, 9), marker(r, 1, 8)],
        "snapshot 1..8 after seqno 9",
        Status.ERANGE,
    ),
    ("accepted twice", lambda r: [accept(r)], "accepted while the stream is open", Status.EINVAL),
    ("a command", lambda r: [Get(key=b"k").encode()], "GET from a producer", Status.EINVAL),
    ("no such message", lambda r: [join_frame(Frame(0x80, 0x6F, opaque=r.opaque))], "opcode 0x6f", 0x81),
    ("marker of another vbucket", lambda r: [marker(moved(r), 1, 9)], "of vbucket 4 under the opaque of 3", 4),
    (
        "change of another vbucket",
        lambda r: [marker(r, 1, 9), mutations(moved(r), 1)],
        "change of vbucket 4 under the opaque of 3",
        4,
    ),
    ("end of another vbucket", lambda r: [end(moved(r))], "of vbucket 4 under the opaque of 3", 4),
    ("a vbucket that is none", lambda r: [marker(r, 1, 9), mutations(moved(r, 8), 1)], "change of vbucket 8", 4),
]


def moved(request, vbucket=4):
    return type(request)(
        **{name: getattr(request, name) for name in ("opaque", "start_seqno", "end_seqno")}, vbucket=vbucket
    )


@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize(("name", "messages", "found", "status"), WRONG_ORDER, ids=[row[0] for row in WRONG_ORDER])
def test_what_breaks_the_order_ends_it(name, messages, found, status, columnar):
    consumer = consumer_of({3: StreamTarget(), 5: StreamTarget()})
    other, request = sorted(consumer.ask(), key=lambda each: -each.vbucket)
    consumer.give(accept(request), accept(other), marker(other, 1, 1000))
    # Changes of another stream in front of it make the run a long one.
    front = mutations(other, *range(1, 100)) if columnar else b""
    *before, last = messages(request)
    with pytest.raises(RemoteProtocolError, match=found) as caught:
        consumer.give(*before, front + last)
    assert caught.value.status == status


def test_before_the_reply_there_is_nothing():
    consumer = consumer_of()
    request = consumer.ask_one()
    with pytest.raises(RemoteProtocolError, match="snapshot marker while the stream is requested"):
        consumer.give(marker(request, 1, 9))


@pytest.mark.parametrize("many", RUNS)
def test_an_opaque_that_no_stream_has_had_is_a_violation(many):
    """It is reported: left out silently, changes would be lost without a word."""
    consumer, request = opened()
    stranger = replace(request, opaque=9999)
    named = "vbucket 3: {} under opaque 9999, which no stream of this connection has had"
    with pytest.raises(OrderViolation) as caught:
        consumer.give(marker(request, 1, 999), mutations(stranger, *range(1, many + 1)))
    assert str(caught.value) == named.format("change")
    with pytest.raises(OrderViolation) as caught:
        consumer.give(marker(stranger, 1, 999))
    assert str(caught.value) == named.format("DCP_SNAPSHOT_MARKER")
    assert not consumer.consume()


@pytest.mark.parametrize("many", RUNS)
def test_what_comes_of_a_closed_stream_is_left_out_and_acknowledged(many):
    consumer, request = opened({3: StreamTarget(policy=PinnedBranch(12))})
    consumer.give(marker(request, 1, 999), mutations(request, *range(1, many + 1)), end(request))
    assert not consumer.feed.deliveries
    consumer.give(noop(1))
    assert consumer.acknowledged == consumer.charged > 55 * many


def test_an_earlier_user_of_the_connection_may_have_left_messages_under_way():
    consumer, request = opened()
    consumer.feed.tolerate_opaques(50)
    earlier = replace(request, opaque=49)
    assert not consumer.get(marker(earlier, 1, 9), mutations(earlier, 1), end(earlier))
    with pytest.raises(OrderViolation):
        consumer.give(end(replace(request, opaque=50)))


@pytest.mark.parametrize("many", [3, 60])
def test_what_came_before_a_violation_holds_and_is_resumed_from(many):
    """In one run with changes of another stream in front of it and behind it."""
    consumer = consumer_of({3: StreamTarget(), 5: StreamTarget()})
    one, two = consumer.ask()
    consumer.give(accept(one), accept(two), marker(one, 1, many), marker(two, 1, 2 * many))
    front = mutations(two, *range(1, many + 1)), mutations(one, *range(1, many)), mutation(two, many + 1)
    with pytest.raises(OrderViolation) as caught:
        consumer.give(*front, mutations(one, many, many), mutation(two, many + 2))
    assert caught.value.vbucket == 3
    (delivery,) = consumer.feed.deliveries
    assert {vb: position.seqno for vb, position in delivery.positions.items()} == {3: many, 5: many + 1}
    found = consumer.consume()
    assert [c.seqno for c in found if c.vbucket == 3] == list(range(1, many + 1))
    assert [c.seqno for c in found if c.vbucket == 5] == list(range(1, many + 2))
    consumer.reconnect()
    assert [(r.vbucket, r.start_seqno, r.snap_start, r.snap_end) for r in consumer.ask()] == [
        (3, many, many, many),
        (5, many + 1, 0, 2 * many),
    ]


# A flush that no stream is told of: Couchbase 3.1.6 goes on with seqno 1 under the same vbuuid


def flushed(wanted, **options):
    """Return a consumer of vbuckets at 41 and 20, after a snapshot of vbucket 3 that begins at 1 again."""
    consumer = consumer_of(wanted, **options)
    for vbucket in sorted(consumer.feed.needs_end):
        consumer.feed.set_end(vbucket, 60)
    three, *others = consumer.ask()
    consumer.give(accept(three), *map(accept, others), marker(three, 1, 41), mutations(three, 41))
    with pytest.raises(OrderViolation, match=r"vbucket 3: snapshot 1\.\.2 after seqno 41"):
        consumer.give(mutations(three), marker(three, 1, 2), mutations(three, 1, 2))
    return consumer


def test_after_a_flush_every_stream_begins_again():
    """The producer would accept a position of the old history as soon as the new one has grown as long."""
    consumer = flushed({3: StreamTarget(), 4: StreamTarget(), 5: StreamTarget(position=AT_20)})
    assert seqnos(consumer.consume()) == [41]
    consumer.reconnect()
    requests = consumer.ask()
    assert [(r.vbucket, r.start_seqno, r.vbuuid) for r in requests] == [(3, 0, 0), (4, 0, 0), (5, 0, 0)]
    rows = consumer.get(*map(accept, requests))
    assert [(row.vbucket, row.event, row.seqno, row.requested_seqno, row.history) for row in rows] == [
        (3, Event.ROLLBACK, 0, 0, 1),
        (5, Event.ROLLBACK, 0, 0, 1),
    ]
    assert seqnos(consumer.get(marker(requests[0], 0, 2), mutations(requests[0], 1, 2))) == [1, 2]


def test_until_a_flushed_stream_begins_again_its_old_position_is_kept():
    consumer = flushed({3: StreamTarget()})
    assert consumer.feed.deliveries[-1].positions[3].seqno == 41
    consumer.consume()
    consumer.reconnect()
    assert consumer.feed.take_positions() == {}
    consumer.give(accept(consumer.ask_one()))
    (delivery,) = consumer.feed.deliveries
    assert (delivery.positions[3].seqno, delivery.positions[3].history) == (0, 1)


def test_after_a_flush_an_end_that_means_now_is_asked_for_again():
    consumer = flushed({3: StreamTarget()}, end_rule=EndRule.NOW)
    consumer.reconnect()
    assert consumer.feed.needs_end == {3}


def test_a_flush_gives_an_expected_history_up():
    consumer = flushed({3: StreamTarget(policy=PinnedBranch(11)), 4: StreamTarget(policy=PinnedBranch(11))})
    assert consumer.feed.given_up == [3]
    consumer.reconnect()
    assert [request.vbucket for request in consumer.ask()] == [4]


@pytest.mark.parametrize("end", [2, 30])
def test_after_a_flush_the_first_snapshot_of_a_stream_says_so(end):
    """Couchbase 3.1.6 takes the lower of the snapshot's start that was asked for and the first seqno that it has."""
    consumer = consumer_of({3: StreamTarget(position=AT_20), 4: StreamTarget(position=AT_20)})
    three, four = consumer.ask()
    with pytest.raises(OrderViolation) as caught:
        consumer.give(accept(three), accept(four), marker(three, 1, end), mutations(three, 1, 2))
    assert caught.value.begins_again
    consumer.reconnect()
    assert [request.start_seqno for request in consumer.ask()] == [0, 0]


@pytest.mark.parametrize("end", [2, 3, 30])
def test_after_a_flush_a_later_snapshot_of_a_stream_says_so(end):
    consumer, request = opened()
    consumer.give(marker(request, 0, 3), mutations(request, 1, 2, 3))
    with pytest.raises(OrderViolation) as caught:
        consumer.give(marker(request, 1, end))
    assert caught.value.begins_again


@pytest.mark.parametrize("flags", [SnapshotFlag.MEMORY, SnapshotFlag.DISK])
def test_a_first_snapshot_begins_where_it_was_asked_for(flags):
    inside = replace(AT_20, snap_start=1, snap_end=30)
    consumer, request = opened({3: StreamTarget(position=inside)})
    assert seqnos(consumer.get(marker(request, 1, 30, flags=flags), mutations(request, 21, 30))) == [21, 30]


def test_a_second_backfill_that_begins_where_the_stream_did_is_no_flush():
    """Couchbase 4.5.1 to 4.6 reads from disk again for a slow stream, and names the stream's start once more."""
    consumer, request = opened()
    found = consumer.get(
        *(marker(request, 0, 3, flags=SnapshotFlag.DISK), mutations(request, 1, 2, 3)),
        *(marker(request, 0, 5, flags=SnapshotFlag.DISK), mutations(request, 4, 5)),
    )
    assert seqnos(found) == [1, 2, 3, 4, 5]


def test_a_disk_snapshot_that_ends_below_the_position_is_a_flush():
    consumer, request = opened()
    consumer.give(marker(request, 0, 3), mutations(request, 1, 2, 3))
    with pytest.raises(OrderViolation) as caught:
        consumer.give(marker(request, 0, 2, flags=SnapshotFlag.DISK))
    assert caught.value.begins_again


def test_the_same_seqnos_again_are_no_progress_after_a_flush():
    consumer = flushed({3: StreamTarget()})
    consumer.reconnect()
    request = consumer.ask_one()
    consumer.give(accept(request), marker(request, 0, 41), mutations(request, 1, 41))
    assert consumer.feed.troubled == {3}
    consumer.give(marker(request, 42, 42), mutations(request, 42))
    assert not consumer.feed.troubled


@pytest.mark.parametrize("many", [1, 50])
def test_two_streams_may_interleave_anywhere(many):
    consumer = consumer_of({3: StreamTarget(), 5: StreamTarget()})
    one, two = consumer.ask()
    consumer.give(accept(two), marker(two, 1, 2 * many), accept(one), marker(one, 1, 2 * many))
    found = consumer.get(*(mutation(r, s) for s in range(1, 2 * many + 1) for r in (one, two)))
    for vbucket in (3, 5):
        assert [c.seqno for c in found if c.vbucket == vbucket] == list(range(1, 2 * many + 1))


# The ends of streams


@pytest.mark.parametrize("many", [1, 100])
def test_an_exact_end_leaves_out_what_follows_and_closes(many):
    consumer, request = opened({3: StreamTarget(end_seqno=many)}, end_rule=EndRule.EXACT)
    found = consumer.get(marker(request, 1, many + 50), mutations(request, *range(1, many + 51)))
    assert seqnos(found) == list(range(1, many + 1))
    assert consumer.sent == [CloseStream(vbucket=3)]
    assert consumer.feed.is_done
    # What was under way is not wanted, and the reply to CLOSE_STREAM says nothing.
    closed = DcpReply().encode(Opcode.DCP_CLOSE_STREAM)
    assert not consumer.get(mutations(request, *range(many + 51, many + 60)), end(request), closed)


def test_an_exact_end_closes_with_the_last_change_and_not_with_the_first_behind_it():
    consumer, request = opened({3: StreamTarget(end_seqno=4)}, end_rule=EndRule.EXACT)
    assert seqnos(consumer.get(marker(request, 1, 50), mutations(request, 2, 4))) == [2, 4]
    assert consumer.sent == [CloseStream(vbucket=3)]


def test_an_exact_end_that_was_superseded():
    consumer, request = opened({3: StreamTarget(end_seqno=4)}, end_rule=EndRule.EXACT)
    assert seqnos(consumer.get(marker(request, 1, 50), mutations(request, 2, 6))) == [2]
    assert consumer.feed.is_done


def test_an_exact_end_that_ends_its_snapshot_waits_for_the_stream_end():
    consumer, request = opened({3: StreamTarget(end_seqno=4)}, end_rule=EndRule.EXACT)
    consumer.give(marker(request, 1, 4), mutations(request, 2, 4))
    assert not consumer.feed.is_done
    consumer.give(end(request))
    assert consumer.feed.is_done
    assert not consumer.sent


def test_otherwise_a_snapshot_is_given_whole():
    consumer, request = opened({3: StreamTarget(end_seqno=4)})
    found = consumer.get(marker(request, 1, 9), mutations(request, 2, 4, 6, 9), end(request))
    assert seqnos(found) == [2, 4, 6, 9]
    assert consumer.feed.is_done


def test_a_stream_that_ends_in_the_middle_of_its_snapshot_is_not_done():
    consumer, request = opened({3: StreamTarget(end_seqno=4)})
    consumer.give(marker(request, 1, 9), mutations(request, 2), end(request))
    assert not consumer.feed.is_done
    assert isinstance(consumer.feed.failures.newest, ConnectionClosed)


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        *((reason, reason.name) for reason in StreamEndReason if reason not in (0, StreamEndReason.LOST_PRIVILEGES)),
        (99, "reason 99"),
    ],
)
def test_a_stream_that_ends_early_goes_on_where_it_was_on_the_next_connection(reason, name):
    consumer, request = opened({3: StreamTarget(end_seqno=9)})
    consumer.give(marker(request, 1, 9), mutations(request, 2), end(request, reason))
    assert not consumer.feed.is_done
    assert not consumer.ask()
    assert str(consumer.feed.failures.newest) == f"vbucket 3: the producer ended the stream at 2, {name}"
    assert consumer.feed.troubled == {3}
    consumer.reconnect()
    assert consumer.feed.failures.newest is None
    request = consumer.ask_one()
    assert (request.start_seqno, request.snap_start, request.snap_end) == (2, 0, 9)
    consumer.give(accept(request), marker(request, 0, 9), mutations(request, 9))
    assert not consumer.feed.troubled


def test_a_stream_whose_privilege_is_lost_is_not_tried_again():
    consumer, request = opened({3: StreamTarget(end_seqno=9)})
    said = "vbucket 3: the user lost the privilege to stream it, and the stream ended at seqno 2: give the user"
    with pytest.raises(AccessDenied, match=said):
        consumer.give(marker(request, 1, 9), mutations(request, 2), end(request, StreamEndReason.LOST_PRIVILEGES))
    assert seqnos(consumer.consume()) == [2]  # else whoever starts again from there would miss it


def test_a_stream_without_an_end_has_none():
    consumer, request = opened()
    consumer.give(end(request))
    assert not consumer.feed.is_done
    assert consumer.feed.failures.newest is not None


# Refusals


@pytest.mark.parametrize(
    ("status", "error"), [(Status.NOT_MY_VBUCKET, NotMyVbucket), (Status.ETMPFAIL, TemporaryFailure)]
)
def test_a_refusal_that_may_mend_is_for_the_next_connection(status, error):
    consumer = consumer_of({3: StreamTarget(), 5: StreamTarget()})
    one, two = consumer.ask()
    consumer.give(refuse(one, status), accept(two))
    assert isinstance(consumer.feed.failures.newest, error)
    assert str(consumer.feed.failures.newest) == f"vbucket 3: stream from 0 refused, {status.name}"
    assert not consumer.ask()
    consumer.reconnect()
    assert [request.vbucket for request in consumer.ask()] == [3, 5]


def test_a_refusal_for_good_is_raised():
    consumer = consumer_of()
    with pytest.raises(OutOfRange, match="vbucket 3: stream from 0 refused, ERANGE"):
        consumer.give(refuse(consumer.ask_one(), Status.ERANGE))


# Rollbacks


def test_a_rollback_is_a_row_once_the_stream_is_accepted():
    consumer = consumer_of({3: StreamTarget(position=AT_20)})
    request = consumer.ask_one()
    assert not consumer.get(rollback(request, 12))
    request = consumer.ask_one()
    assert (request.start_seqno, request.vbuuid, request.snap_start, request.snap_end) == (5, 11, 5, 5)
    new = (FailoverEntry(22, 12), *LOG)
    (row,) = consumer.get(accept(request, new))
    assert row == Change(vbucket=3, vbuuid=22, seqno=5, event=Event.ROLLBACK, history=1, requested_seqno=12)
    (change,) = consumer.get(marker(request, 6, 13), mutations(request, 13))
    assert (change.history, change.vbuuid) == (1, 22)


def test_the_position_behind_a_rollback_row_is_that_of_the_row():
    consumer = consumer_of({3: StreamTarget(position=AT_20)})
    consumer.give(rollback(consumer.ask_one(), 12))
    consumer.give(accept(consumer.ask_one()))
    (delivery,) = consumer.feed.deliveries
    assert delivery.positions[3] == Position(
        seqno=5, vbuuid=11, snap_start=5, snap_end=5, history=1, ends=(SnapshotEnd(5, 11),)
    )


def test_rollbacks_on_the_way_to_an_accepted_stream_are_one_row_also_over_connections():
    consumer = consumer_of({3: StreamTarget(position=AT_20)})
    consumer.give(rollback(consumer.ask_one(), 12))
    consumer.give(rollback(consumer.ask_one(), 3))
    consumer.reconnect()
    request = consumer.ask_one()
    assert (request.start_seqno, request.vbuuid) == (0, 0)
    (row,) = consumer.get(accept(request))
    assert (row.seqno, row.requested_seqno, row.history) == (0, 3, 1)


def test_a_rollback_of_a_stream_from_the_beginning_breaks_the_protocol():
    consumer = consumer_of()
    with pytest.raises(RemoteProtocolError, match="vbucket 3: ROLLBACK to 0 of a stream from 0"):
        consumer.give(rollback(consumer.ask_one(), 0))


def test_after_a_rollback_an_end_that_means_now_is_asked_for_again():
    consumer = consumer_of({3: StreamTarget(position=AT_20)}, end_rule=EndRule.NOW)
    consumer.feed.set_end(3, 20)
    consumer.give(rollback(consumer.ask_one(), 0))
    assert consumer.feed.needs_end == {3}
    assert not consumer.ask()
    consumer.feed.set_end(3, 0)
    assert not consumer.feed.is_done  # the rollback is still to be told
    request = consumer.ask_one()
    assert (request.start_seqno, request.end_seqno) == (0, 0)
    (row,) = consumer.get(accept(request), end(request))
    assert row.event == Event.ROLLBACK
    assert consumer.feed.is_done


def test_after_a_rollback_an_end_by_seqno_stays():
    consumer = consumer_of({3: StreamTarget(position=AT_20, end_seqno=25)})
    consumer.give(rollback(consumer.ask_one(), 6))
    request = consumer.ask_one()
    assert (request.start_seqno, request.end_seqno) == (5, 25)


# Streams with an expected history


def test_another_history_than_the_expected_one_is_given_up_and_closed():
    consumer, request = opened({3: StreamTarget(policy=PinnedBranch(12))})
    assert consumer.feed.given_up == [3]
    assert consumer.feed.is_done
    assert consumer.sent == [CloseStream(vbucket=3)]
    assert not consumer.get(marker(request, 1, 50), mutations(request, *range(1, 51)))
    assert consumer.feed.given_up == [3]


def test_the_expected_history_is_streamed():
    consumer, request = opened({3: StreamTarget(policy=PinnedBranch(11))})
    assert seqnos(consumer.get(marker(request, 1, 1), mutations(request, 1))) == [1]
    assert not consumer.feed.given_up


def test_a_rollback_of_an_expected_history_gives_it_up():
    consumer = consumer_of({3: StreamTarget(position=AT_20, policy=PinnedBranch(11), end_seqno=50), 4: StreamTarget()})
    one, two = consumer.ask()
    assert not consumer.get(rollback(one, 12), accept(two))
    assert consumer.feed.given_up == [3]
    consumer.reconnect()
    assert [request.vbucket for request in consumer.ask()] == [4]


@pytest.mark.parametrize("many", [1, 60])
def test_behind_a_purge_a_stream_begins_again_and_leaves_out_what_came_before(many):
    last = 20 + many
    wanted = StreamTarget(position=AT_20, policy=PinnedBranch(11, 30), end_seqno=last)
    consumer = consumer_of({3: wanted}, end_rule=EndRule.EXACT)
    consumer.give(rollback(consumer.ask_one(), 0))
    request = consumer.ask_one()
    assert (request.start_seqno, request.vbuuid, request.end_seqno) == (0, 0, last)
    changes = consumer.get(
        accept(request), marker(request, 0, last), mutations(request, 3, 20, *range(21, last + 1)), end(request)
    )
    assert seqnos(changes) == list(range(21, last + 1))
    assert all(change.history == 0 for change in changes)
    assert consumer.feed.is_done
    assert not consumer.feed.given_up


def test_a_purge_below_the_position_is_no_reason_to_begin_again():
    consumer = consumer_of({3: StreamTarget(position=AT_20, policy=PinnedBranch(11, 20), end_seqno=50)})
    consumer.give(rollback(consumer.ask_one(), 0))
    assert consumer.feed.given_up == [3]
