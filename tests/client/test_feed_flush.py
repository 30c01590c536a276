"""How a feed notices a flush that the producer does not report to its streams."""

from dataclasses import replace

import pytest

from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.errors import (
    OrderViolation,
)
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.columns.schema import Event
from tests.client.producer import (
    AT_20,
    accept,
    make_consumer,
    marker,
    mutations,
    open_stream,
    seqnos,
)

# A flush without a message to the streams: Couchbase 3.1.6 continues with seqno 1 under the same vbuuid


def make_flushed_consumer(targets, **options):
    """Return a consumer after a snapshot of vbucket 3, which was at seqno 41, that starts again at seqno 1."""
    consumer = make_consumer(targets, **options)
    for vbucket in sorted(consumer.feed.pending_ends):
        consumer.feed.set_end(vbucket, 60)
    three, *others = consumer.ask()
    consumer.give(accept(three), *map(accept, others), marker(three, 1, 41), mutations(three, 41))
    with pytest.raises(OrderViolation, match=r"vbucket 3: snapshot 1\.\.2 after seqno 41"):
        consumer.give(mutations(three), marker(three, 1, 2), mutations(three, 1, 2))
    return consumer


def test_every_stream_restarts_from_zero_after_a_flush():
    """Otherwise the producer would accept a position of the old history once the new history is as long."""
    consumer = make_flushed_consumer({3: StreamTarget(), 4: StreamTarget(), 5: StreamTarget(position=AT_20)})
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


def test_flushed_stream_keeps_its_old_position_until_it_restarts():
    consumer = make_flushed_consumer({3: StreamTarget()})
    assert consumer.feed.deliveries[-1].positions[3].seqno == 41
    consumer.consume()
    consumer.reconnect()
    assert consumer.feed.take_positions() == {}
    consumer.give(accept(consumer.ask_one()))
    (delivery,) = consumer.feed.deliveries
    assert (delivery.positions[3].seqno, delivery.positions[3].history) == (0, 1)


def test_end_at_now_is_set_again_after_a_flush():
    consumer = make_flushed_consumer({3: StreamTarget()}, end_rule=EndRule.NOW)
    consumer.reconnect()
    assert consumer.feed.pending_ends == {3}


def test_flush_gives_up_an_expected_history():
    consumer = make_flushed_consumer(
        {3: StreamTarget(policy=PinnedBranch(11)), 4: StreamTarget(policy=PinnedBranch(11))}
    )
    assert consumer.feed.given_up == [3]
    consumer.reconnect()
    assert [request.vbucket for request in consumer.ask()] == [4]


@pytest.mark.parametrize("end", [2, 30])
def test_first_snapshot_of_a_stream_shows_a_flush(end):
    """Couchbase 3.1.6 starts the snapshot at the requested start or at its own first seqno: at the lower of the two."""
    consumer = make_consumer({3: StreamTarget(position=AT_20), 4: StreamTarget(position=AT_20)})
    three, four = consumer.ask()
    with pytest.raises(OrderViolation) as caught:
        consumer.give(accept(three), accept(four), marker(three, 1, end), mutations(three, 1, 2))
    assert caught.value.seqnos_restarted
    consumer.reconnect()
    assert [request.start_seqno for request in consumer.ask()] == [0, 0]


@pytest.mark.parametrize("end", [2, 3, 30])
def test_later_snapshot_of_a_stream_shows_a_flush(end):
    consumer, request = open_stream()
    consumer.give(marker(request, 0, 3), mutations(request, 1, 2, 3))
    with pytest.raises(OrderViolation) as caught:
        consumer.give(marker(request, 1, end))
    assert caught.value.seqnos_restarted


@pytest.mark.parametrize("flags", [SnapshotFlag.MEMORY, SnapshotFlag.DISK])
def test_first_snapshot_at_its_requested_start_is_no_flush(flags):
    inside = replace(AT_20, snap_start=1, snap_end=30)
    consumer, request = open_stream({3: StreamTarget(position=inside)})
    assert seqnos(consumer.get(marker(request, 1, 30, flags=flags), mutations(request, 21, 30))) == [21, 30]


def test_second_backfill_from_the_start_of_the_stream_is_no_flush():
    """Couchbase 4.5.1 to 4.6 reads from disk again for a slow stream, and sends the stream's start once more."""
    consumer, request = open_stream()
    found = consumer.get(
        *(marker(request, 0, 3, flags=SnapshotFlag.DISK), mutations(request, 1, 2, 3)),
        *(marker(request, 0, 5, flags=SnapshotFlag.DISK), mutations(request, 4, 5)),
    )
    assert seqnos(found) == [1, 2, 3, 4, 5]


def test_a_disk_snapshot_that_ends_below_the_position_is_a_flush():
    consumer, request = open_stream()
    consumer.give(marker(request, 0, 3), mutations(request, 1, 2, 3))
    with pytest.raises(OrderViolation) as caught:
        consumer.give(marker(request, 0, 2, flags=SnapshotFlag.DISK))
    assert caught.value.seqnos_restarted


def test_repeated_seqnos_after_a_flush_are_no_progress():
    consumer = make_flushed_consumer({3: StreamTarget()})
    consumer.reconnect()
    request = consumer.ask_one()
    consumer.give(accept(request), marker(request, 0, 41), mutations(request, 1, 41))
    assert consumer.feed.recovering == {3}
    consumer.give(marker(request, 42, 42), mutations(request, 42))
    assert not consumer.feed.recovering
