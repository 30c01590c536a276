"""How streams end, are refused, roll back, and have the history that was expected."""

import pytest

from penstock.client.feeds.feed import EndRule, StreamTarget
from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.errors import (
    AccessDenied,
    ConnectionClosed,
    NotMyVbucket,
    OutOfRange,
    RemoteProtocolError,
    TemporaryFailure,
)
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp import CloseStream, DcpReply
from penstock.wire.messages.kv import FailoverEntry
from tests.client.producer import (
    AT_20,
    LOG,
    accept,
    consumer_of,
    end,
    marker,
    mutations,
    opened,
    refuse,
    rollback,
    seqnos,
)

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
    assert consumer.feed.recovering == {3}
    consumer.reconnect()
    assert consumer.feed.failures.newest is None
    request = consumer.ask_one()
    assert (request.start_seqno, request.snap_start, request.snap_end) == (2, 0, 9)
    consumer.give(accept(request), marker(request, 0, 9), mutations(request, 9))
    assert not consumer.feed.recovering


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
    assert consumer.feed.pending_ends == {3}
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
