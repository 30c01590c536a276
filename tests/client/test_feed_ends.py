"""How streams end, are refused, roll back, and give up a history that is not the expected one."""

import pytest

from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
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
    end,
    make_consumer,
    marker,
    mutations,
    open_stream,
    refuse,
    rollback,
    seqnos,
)

# The ends of streams


@pytest.mark.parametrize("many", [1, 100])
def test_exact_end_drops_later_changes_and_closes_the_stream(many):
    consumer, request = open_stream({3: StreamTarget(end_seqno=many)}, end_rule=EndRule.EXACT)
    found = consumer.get(marker(request, 1, many + 50), mutations(request, *range(1, many + 51)))
    assert seqnos(found) == list(range(1, many + 1))
    assert consumer.sent == [CloseStream(vbucket=3)]
    assert consumer.feed.is_done
    # Late messages are dropped, and the reply to CLOSE_STREAM has no effect.
    closed = DcpReply().encode(Opcode.DCP_CLOSE_STREAM)
    assert not consumer.get(mutations(request, *range(many + 51, many + 60)), end(request), closed)


def test_exact_end_closes_the_stream_at_the_last_change():
    consumer, request = open_stream({3: StreamTarget(end_seqno=4)}, end_rule=EndRule.EXACT)
    assert seqnos(consumer.get(marker(request, 1, 50), mutations(request, 2, 4))) == [2, 4]
    assert consumer.sent == [CloseStream(vbucket=3)]


def test_exact_end_without_its_own_change_is_done_at_the_next_change():
    consumer, request = open_stream({3: StreamTarget(end_seqno=4)}, end_rule=EndRule.EXACT)
    assert seqnos(consumer.get(marker(request, 1, 50), mutations(request, 2, 6))) == [2]
    assert consumer.feed.is_done


def test_exact_end_at_the_end_of_a_snapshot_waits_for_the_stream_end():
    consumer, request = open_stream({3: StreamTarget(end_seqno=4)}, end_rule=EndRule.EXACT)
    consumer.give(marker(request, 1, 4), mutations(request, 2, 4))
    assert not consumer.feed.is_done
    consumer.give(end(request))
    assert consumer.feed.is_done
    assert not consumer.sent


def test_inexact_end_delivers_the_whole_snapshot():
    consumer, request = open_stream({3: StreamTarget(end_seqno=4)})
    found = consumer.get(marker(request, 1, 9), mutations(request, 2, 4, 6, 9), end(request))
    assert seqnos(found) == [2, 4, 6, 9]
    assert consumer.feed.is_done


def test_a_stream_that_ends_in_the_middle_of_its_snapshot_is_not_done():
    consumer, request = open_stream({3: StreamTarget(end_seqno=4)})
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
def test_stream_that_ends_early_resumes_on_the_next_connection(reason, name):
    consumer, request = open_stream({3: StreamTarget(end_seqno=9)})
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


def test_stream_after_a_lost_privilege_is_not_retried():
    consumer, request = open_stream({3: StreamTarget(end_seqno=9)})
    expected = "vbucket 3: the user lost the privilege to stream it, and the stream ended at seqno 2: give the user"
    with pytest.raises(AccessDenied, match=expected):
        consumer.give(marker(request, 1, 9), mutations(request, 2), end(request, StreamEndReason.LOST_PRIVILEGES))
    assert seqnos(consumer.consume()) == [2]  # a consumer that resumes at seqno 2 does not receive it again


def test_stream_without_an_end_is_never_done():
    consumer, request = open_stream()
    consumer.give(end(request))
    assert not consumer.feed.is_done
    assert consumer.feed.failures.newest is not None


# Refusals


@pytest.mark.parametrize(
    ("status", "error"), [(Status.NOT_MY_VBUCKET, NotMyVbucket), (Status.ETMPFAIL, TemporaryFailure)]
)
def test_temporary_refusal_is_retried_on_the_next_connection(status, error):
    consumer = make_consumer({3: StreamTarget(), 5: StreamTarget()})
    one, two = consumer.ask()
    consumer.give(refuse(one, status), accept(two))
    assert isinstance(consumer.feed.failures.newest, error)
    assert str(consumer.feed.failures.newest) == f"vbucket 3: stream from 0 refused, {status.name}"
    assert not consumer.ask()
    consumer.reconnect()
    assert [request.vbucket for request in consumer.ask()] == [3, 5]


def test_lasting_refusal_is_raised():
    consumer = make_consumer()
    with pytest.raises(OutOfRange, match="vbucket 3: stream from 0 refused, ERANGE"):
        consumer.give(refuse(consumer.ask_one(), Status.ERANGE))


# Rollbacks


def test_a_rollback_is_a_row_once_the_stream_is_accepted():
    consumer = make_consumer({3: StreamTarget(position=AT_20)})
    request = consumer.ask_one()
    assert not consumer.get(rollback(request, 12))
    request = consumer.ask_one()
    assert (request.start_seqno, request.vbuuid, request.snap_start, request.snap_end) == (5, 11, 5, 5)
    new = (FailoverEntry(22, 12), *LOG)
    (row,) = consumer.get(accept(request, new))
    assert row == Change(vbucket=3, vbuuid=22, seqno=5, event=Event.ROLLBACK, history=1, requested_seqno=12)
    (change,) = consumer.get(marker(request, 6, 13), mutations(request, 13))
    assert (change.history, change.vbuuid) == (1, 22)


def test_position_after_a_rollback_row_is_that_of_the_row():
    consumer = make_consumer({3: StreamTarget(position=AT_20)})
    consumer.give(rollback(consumer.ask_one(), 12))
    consumer.give(accept(consumer.ask_one()))
    (delivery,) = consumer.feed.deliveries
    assert delivery.positions[3] == Position(
        seqno=5, vbuuid=11, snap_start=5, snap_end=5, history=1, ends=(SnapshotEnd(5, 11),)
    )


def test_rollbacks_before_acceptance_are_one_row_even_over_two_connections():
    consumer = make_consumer({3: StreamTarget(position=AT_20)})
    consumer.give(rollback(consumer.ask_one(), 12))
    consumer.give(rollback(consumer.ask_one(), 3))
    consumer.reconnect()
    request = consumer.ask_one()
    assert (request.start_seqno, request.vbuuid) == (0, 0)
    (row,) = consumer.get(accept(request))
    assert (row.seqno, row.requested_seqno, row.history) == (0, 3, 1)


def test_a_rollback_of_a_stream_from_the_beginning_breaks_the_protocol():
    consumer = make_consumer()
    with pytest.raises(RemoteProtocolError, match="vbucket 3: ROLLBACK to 0 of a stream from 0"):
        consumer.give(rollback(consumer.ask_one(), 0))


def test_end_at_now_is_set_again_after_a_rollback():
    consumer = make_consumer({3: StreamTarget(position=AT_20)}, end_rule=EndRule.NOW)
    consumer.feed.set_end(3, 20)
    consumer.give(rollback(consumer.ask_one(), 0))
    assert consumer.feed.pending_ends == {3}
    assert not consumer.ask()
    consumer.feed.set_end(3, 0)
    assert not consumer.feed.is_done  # the rollback row is not yet delivered
    request = consumer.ask_one()
    assert (request.start_seqno, request.end_seqno) == (0, 0)
    (row,) = consumer.get(accept(request), end(request))
    assert row.event == Event.ROLLBACK
    assert consumer.feed.is_done


def test_end_at_a_seqno_stays_after_a_rollback():
    consumer = make_consumer({3: StreamTarget(position=AT_20, end_seqno=25)})
    consumer.give(rollback(consumer.ask_one(), 6))
    request = consumer.ask_one()
    assert (request.start_seqno, request.end_seqno) == (5, 25)


# Streams with an expected history


def test_unexpected_history_is_given_up_and_its_stream_closed():
    consumer, request = open_stream({3: StreamTarget(policy=PinnedBranch(12))})
    assert consumer.feed.given_up == [3]
    assert consumer.feed.is_done
    assert consumer.sent == [CloseStream(vbucket=3)]
    assert not consumer.get(marker(request, 1, 50), mutations(request, *range(1, 51)))
    assert consumer.feed.given_up == [3]


def test_the_expected_history_is_streamed():
    consumer, request = open_stream({3: StreamTarget(policy=PinnedBranch(11))})
    assert seqnos(consumer.get(marker(request, 1, 1), mutations(request, 1))) == [1]
    assert not consumer.feed.given_up


def test_a_rollback_of_an_expected_history_gives_it_up():
    consumer = make_consumer(
        {3: StreamTarget(position=AT_20, policy=PinnedBranch(11), end_seqno=50), 4: StreamTarget()}
    )
    one, two = consumer.ask()
    assert not consumer.get(rollback(one, 12), accept(two))
    assert consumer.feed.given_up == [3]
    consumer.reconnect()
    assert [request.vbucket for request in consumer.ask()] == [4]


@pytest.mark.parametrize("many", [1, 60])
def test_stream_behind_a_purge_restarts_from_zero_and_drops_received_changes(many):
    last = 20 + many
    target = StreamTarget(position=AT_20, policy=PinnedBranch(11, 30), end_seqno=last)
    consumer = make_consumer({3: target}, end_rule=EndRule.EXACT)
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


def test_purge_below_the_position_does_not_restart_the_stream():
    consumer = make_consumer({3: StreamTarget(position=AT_20, policy=PinnedBranch(11, 20), end_seqno=50)})
    consumer.give(rollback(consumer.ask_one(), 0))
    assert consumer.feed.given_up == [3]
