"""Snapshots out of order: positions move only at their end, and an interrupted one begins again."""

import random

import pytest

from penstock.client.consumers.delivery_part import find_positions_within
from penstock.client.feeds.collection_selection import StreamContent
from penstock.client.feeds.resume_policy import RESUME_POLICIES, RollbackPolicy
from penstock.client.feeds.stream_position import BEGINNING, SnapshotEnd
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.errors import ConnectionClosed, OrderViolation, RemoteProtocolError, RolledBack
from penstock.wire.codec.flags import OsoFlag
from penstock.wire.columns.run_decoder import SMALL_RUN
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import OsoSnapshot, SeqnoAdvanced
from tests.client.producer import AT_20, LOG, accept, end, marker, mutations, open_stream, seqnos

UNORDERED = StreamContent(out_of_order=True)


def notice(request, flag):
    return OsoSnapshot(vbucket=request.vbucket, opaque=request.opaque, flags=flag).encode()


def begin(request):
    return notice(request, OsoFlag.START)


def finish(request):
    return notice(request, OsoFlag.END)


def shuffle(count):
    """Return the seqnos from 1 in an order of keys: the highest is not the last."""
    found = list(range(1, count + 1))
    random.Random(count).shuffle(found)
    return [*(seqno for seqno in found if seqno != 2), 2]


@pytest.mark.parametrize("many", [3, 2 * SMALL_RUN])
@pytest.mark.parametrize("advance", [0, 500])
def test_position_moves_at_the_end_to_the_highest_seqno(many, advance):
    consumer, request = open_stream(content=UNORDERED)
    consumer.consume()
    order = shuffle(many)
    consumer.give(begin(request), mutations(request, *order))
    (delivery,) = consumer.feed.deliveries
    assert 3 not in delivery.positions or delivery.positions[3].seqno == 0
    rows = consumer.consume()
    assert seqnos(rows) == order
    assert {(row.snapshot_start, row.snapshot_end, row.snapshot_flags) for row in rows} == {(0, 0, 0)}
    last = max(many, advance)
    advanced = SeqnoAdvanced(vbucket=3, opaque=request.opaque, by_seqno=last).encode()
    assert consumer.get(*([advanced] if advance else []), finish(request)) == []
    position = consumer.feed.take_positions()[3]
    assert (position.seqno, position.is_complete, position.ends) == (last, True, (SnapshotEnd(last, 11),))
    assert seqnos(consumer.get(marker(request, last + 1, last + 2), mutations(request, last + 1))) == [last + 1]
    consumer.reconnect()
    resumed = consumer.ask_one()
    assert (resumed.start_seqno, resumed.snap_start, resumed.snap_end) == (last + 1, last, last + 2)


def test_stream_with_an_end_ends_behind_the_snapshot():
    consumer, request = open_stream({3: StreamTarget(end_seqno=5)}, content=UNORDERED, end_rule=EndRule.SNAPSHOT)
    assert seqnos(consumer.get(begin(request), mutations(request, 4, 6, 1), finish(request), end(request))) == [4, 6, 1]
    assert consumer.feed.is_done


@pytest.mark.parametrize("many", [3, 2 * SMALL_RUN])
@pytest.mark.parametrize("is_ended", [False, True])
def test_interrupted_snapshot_becomes_void_and_begins_again(many, is_ended):
    """Also if the producer ends the stream inside the snapshot, with the status OK."""
    consumer, request = open_stream({3: StreamTarget(end_seqno=many)}, content=UNORDERED)
    consumer.give(begin(request), mutations(request, *shuffle(many)[:-1]))
    if is_ended:
        consumer.give(end(request))
        assert isinstance(consumer.feed.failures.newest, ConnectionClosed)
        consumer.feed.request_again([3])
    else:
        consumer.reconnect()
    assert seqnos(consumer.consume()) == shuffle(many)[:-1]
    again = consumer.ask_one()
    assert (again.start_seqno, again.snap_end) == (0, 0)
    row, *rows = consumer.get(accept(again), begin(again), mutations(again, *shuffle(many)), finish(again), end(again))
    assert (row.event, row.seqno, row.requested_seqno, row.history) == (Event.ROLLBACK, 0, 0, 1)
    assert [(each.seqno, each.history) for each in rows] == [(seqno, 1) for seqno in shuffle(many)]
    assert consumer.feed.is_done


def test_nothing_is_void_before_the_first_change():
    consumer, request = open_stream(content=UNORDERED)
    consumer.get(begin(request))
    consumer.reconnect()
    again = consumer.ask_one()
    assert seqnos(consumer.get(accept(again), begin(again), mutations(again, 2, 1), finish(again))) == [2, 1]


def test_stream_that_must_not_roll_back_fails():
    policy = RESUME_POLICIES[RollbackPolicy.FAIL]
    consumer, request = open_stream({3: StreamTarget(policy=policy)}, content=UNORDERED)
    consumer.get(begin(request), mutations(request, 7, 1))
    consumer.reconnect()
    with pytest.raises(RolledBack, match="a rollback from seqno 7 to 0"):
        consumer.ask()


def test_unwanted_and_late_snapshots_are_refused():
    consumer, request = open_stream()
    with pytest.raises(RemoteProtocolError, match="DCP_OSO_SNAPSHOT from a producer"):
        consumer.give(begin(request))
    consumer, request = open_stream({3: StreamTarget(position=AT_20)}, content=UNORDERED)
    with pytest.raises(OrderViolation, match="vbucket 3: snapshot out of order after seqno 20"):
        consumer.give(begin(request))
    consumer, request = open_stream(content=UNORDERED)
    with pytest.raises(OrderViolation, match="end of a snapshot out of order while the stream is open"):
        consumer.give(finish(request))


def test_positions_within_a_delivery_stay_before_the_snapshot():
    consumer, request = open_stream(content=UNORDERED)
    consumer.give(begin(request), mutations(request, 7, 2), finish(request), marker(request, 8, 9))
    consumer.give(mutations(request, 8))
    changes = consumer.consume()
    assert seqnos(changes) == [7, 2, 8]
    taken = [find_positions_within({}, changes, number, {3: LOG}, {}).get(3, BEGINNING) for number in range(4)]
    assert [position.seqno for position in taken] == [0, 0, 0, 8]
