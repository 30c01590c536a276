"""The DCP feed without a socket: how it handles the messages of a producer."""

from dataclasses import replace

import pytest

from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import BEGINNING, Position, SnapshotEnd
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
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
    deletion,
    end,
    make_consumer,
    marker,
    mutation,
    mutations,
    noop,
    open_stream,
    seqnos,
)

# Rows

RUNS = [1, 2, SMALL_RUN - 1, SMALL_RUN, SMALL_RUN + 1, 200]


@pytest.mark.parametrize("many", RUNS)
def test_runs_of_any_length_become_rows(many):
    consumer, request = open_stream(log=(FailoverEntry(2**63 + 5, 0),))
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
def test_delivery_has_the_same_changes_as_batch_and_as_objects(many):
    consumer, request = open_stream()
    consumer.give(marker(request, 1, many + 1), mutations(request, *range(1, many + 1)), deletion(request, many + 1))
    for delivery in consumer.feed.deliveries:
        assert delivery.batch.num_rows == len(delivery.changes)
        assert delivery.batch.column("seqno").to_pylist() == seqnos(delivery.changes)
    assert [change.event for change in consumer.consume()][-2:] == [Event.MUTATION, Event.DELETION]


def test_position_is_never_ahead_of_the_changes_delivered_with_it():
    consumer, request = open_stream()
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


def test_no_delivery_is_empty():
    consumer, request = open_stream()
    consumer.give(marker(request, 1, 3))
    consumer.give(noop(1))
    assert not consumer.feed.deliveries


# Stream requests


def test_each_stream_is_requested_once():
    consumer = make_consumer(
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
def test_stream_to_seqno_zero_is_done_at_once_unless_its_position_needs_a_check(position):
    consumer = make_consumer({3: StreamTarget(position=position, end_seqno=0)})
    assert consumer.feed.is_done == (position is BEGINNING)
    if not consumer.feed.is_done:
        request = consumer.ask_one()
        assert (request.start_seqno, request.end_seqno) == (20, 20)
        consumer.give(accept(request), end(request))
        assert consumer.feed.is_done


@pytest.mark.parametrize("vbucket", [-1, 8, 65536])
def test_impossible_vbucket_is_refused(vbucket):
    with pytest.raises(UsageError, match=f"vbucket {vbucket}, expected one below 8"):
        make_consumer({vbucket: StreamTarget()})


def test_end_at_now_is_set_again_on_every_connection():
    consumer = make_consumer({1: StreamTarget(), 2: StreamTarget()}, end_rule=EndRule.NOW)
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
    ("marker of another vbucket", lambda r: [marker(move_request(r), 1, 9)], "of vbucket 4 under the opaque of 3", 4),
    (
        "change of another vbucket",
        lambda r: [marker(r, 1, 9), mutations(move_request(r), 1)],
        "change of vbucket 4 under the opaque of 3",
        4,
    ),
    ("end of another vbucket", lambda r: [end(move_request(r))], "of vbucket 4 under the opaque of 3", 4),
    ("an impossible vbucket", lambda r: [marker(r, 1, 9), mutations(move_request(r, 8), 1)], "change of vbucket 8", 4),
]


def move_request(request, vbucket=4):
    return type(request)(
        **{name: getattr(request, name) for name in ("opaque", "start_seqno", "end_seqno")}, vbucket=vbucket
    )


@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize(("name", "messages", "found", "status"), WRONG_ORDER, ids=[row[0] for row in WRONG_ORDER])
def test_broken_order_is_a_protocol_error(name, messages, found, status, columnar):
    consumer = make_consumer({3: StreamTarget(), 5: StreamTarget()})
    other, request = sorted(consumer.ask(), key=lambda each: -each.vbucket)
    consumer.give(accept(request), accept(other), marker(other, 1, 1000))
    # Changes of another stream before it make the run long enough for columns.
    front = mutations(other, *range(1, 100)) if columnar else b""
    *before, last = messages(request)
    with pytest.raises(RemoteProtocolError, match=found) as caught:
        consumer.give(*before, front + last)
    assert caught.value.status == status


def test_message_before_the_stream_reply_is_a_protocol_error():
    consumer = make_consumer()
    request = consumer.ask_one()
    with pytest.raises(RemoteProtocolError, match="snapshot marker while the stream is requested"):
        consumer.give(marker(request, 1, 9))


@pytest.mark.parametrize("many", RUNS)
def test_unknown_opaque_is_a_violation(many):
    """If the feed dropped such messages silently, changes would be lost without a report."""
    consumer, request = open_stream()
    unknown = replace(request, opaque=9999)
    named = "vbucket 3: {} under opaque 9999, which no stream of this connection has had"
    with pytest.raises(OrderViolation) as caught:
        consumer.give(marker(request, 1, 999), mutations(unknown, *range(1, many + 1)))
    assert str(caught.value) == named.format("change")
    with pytest.raises(OrderViolation) as caught:
        consumer.give(marker(unknown, 1, 999))
    assert str(caught.value) == named.format("DCP_SNAPSHOT_MARKER")
    assert not consumer.consume()


@pytest.mark.parametrize("many", RUNS)
def test_messages_of_a_closed_stream_are_dropped_and_acknowledged(many):
    consumer, request = open_stream({3: StreamTarget(policy=PinnedBranch(12))})
    consumer.give(marker(request, 1, 999), mutations(request, *range(1, many + 1)), end(request))
    assert not consumer.feed.deliveries
    consumer.give(noop(1))
    assert consumer.acknowledged == consumer.charged > 55 * many


def test_late_messages_of_an_earlier_stream_are_dropped():
    consumer, request = open_stream()
    consumer.feed.tolerate_opaques(50)
    earlier = replace(request, opaque=49)
    assert not consumer.get(marker(earlier, 1, 9), mutations(earlier, 1), end(earlier))
    with pytest.raises(OrderViolation):
        consumer.give(end(replace(request, opaque=50)))


@pytest.mark.parametrize("many", [3, 60])
def test_changes_before_a_violation_are_delivered_and_resumed_from(many):
    """The run also has changes of another stream, before and after the violation."""
    consumer = make_consumer({3: StreamTarget(), 5: StreamTarget()})
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
    consumer = make_consumer({3: StreamTarget(), 5: StreamTarget()})
    one, two = consumer.ask()
    consumer.give(accept(two), marker(two, 1, 2 * many), accept(one), marker(one, 1, 2 * many))
    found = consumer.get(*(mutation(r, s) for s in range(1, 2 * many + 1) for r in (one, two)))
    for vbucket in (3, 5):
        assert [c.seqno for c in found if c.vbucket == vbucket] == list(range(1, 2 * many + 1))
