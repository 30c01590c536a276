"""The consumer without its socket: what it makes of what a producer says."""

from dataclasses import replace

import pytest

from penstock.client.feeds.feed import EndRule, StreamTarget
from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import BEGINNING, Position, SnapshotEnd
from penstock.errors import (
    OrderViolation,
    RemoteProtocolError,
    UsageError,
)
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.run_decoder import SMALL_RUN
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.kv import FailoverEntry, Get
from tests.client.producer import (
    AT_20,
    accept,
    consumer_of,
    deletion,
    end,
    marker,
    mutation,
    mutations,
    noop,
    opened,
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
    assert consumer.feed.count_unanswered(0)
    consumer.give(accept(first), accept(second))
    assert not consumer.feed.count_unanswered(0)
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
    assert consumer.feed.pending_ends == {1, 2}
    consumer.feed.set_end(1, 0)
    consumer.feed.set_end(2, 5)
    request = consumer.ask_one()
    assert (request.vbucket, request.end_seqno) == (2, 5)
    consumer.give(accept(request), marker(request, 1, 5), mutations(request, 3))
    consumer.reconnect()
    assert consumer.feed.pending_ends == {2}
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


@pytest.mark.parametrize("many", [1, 50])
def test_two_streams_may_interleave_anywhere(many):
    consumer = consumer_of({3: StreamTarget(), 5: StreamTarget()})
    one, two = consumer.ask()
    consumer.give(accept(two), marker(two, 1, 2 * many), accept(one), marker(one, 1, 2 * many))
    found = consumer.get(*(mutation(r, s) for s in range(1, 2 * many + 1) for r in (one, two)))
    for vbucket in (3, 5):
        assert [c.seqno for c in found if c.vbucket == vbucket] == list(range(1, 2 * many + 1))
