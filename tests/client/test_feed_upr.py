"""Feeds of UPR and its draft without a socket: their first requests, ends of snapshots, changes of history."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import UNKNOWN_END, Position, SnapshotEnd
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.errors import ConnectionClosed, KeyNotFound, NotMyVbucket, RemoteProtocolError
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.run_decoder import SMALL_RUN
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.kv import FailoverEntry, pack_failover_log
from penstock.wire.messages.upr import UprFailoverLogReply, UprStreamReply
from tests.client.dialects import LOG, MESSAGE_BUILDERS, find_upr_rollback, make_consumer, open_stream
from tests.client.producer import AT_20, seqnos

NEWER = (FailoverEntry(22, 12), *LOG)
UPR, _ = MESSAGE_BUILDERS

both = pytest.mark.parametrize("builder", MESSAGE_BUILDERS, ids=[builder.dialect.value for builder in MESSAGE_BUILDERS])


# Requests


@both
def test_failover_log_is_requested_before_and_after_a_stream_request(builder):
    consumer = make_consumer(builder, {3: StreamTarget(end_seqno=9), 5: StreamTarget(position=AT_20)})
    logs = consumer.ask()
    assert [type(request) for request in logs] == [builder.make_log_request] * 2
    assert consumer.feed.count_unanswered(0)
    consumer.give(builder.log(logs[1], NEWER[1:]))
    request, again = consumer.ask()
    assert (request.vbucket, request.start_seqno, request.end_seqno) == (5, 20, MAX_SEQNO)
    assert (request.vbuuid, request.high_seqno) == (11, 0)
    assert (again.vbucket, len({request.opaque, again.opaque, *(log.opaque for log in logs)})) == (5, 4)
    consumer.give(builder.log(logs[0]))
    request, _ = consumer.ask()
    assert (request.vbucket, request.start_seqno, request.end_seqno, request.vbuuid, request.high_seqno) == (
        3,
        0,
        9,
        0,
        0,
    )
    assert not consumer.ask()


@both
@pytest.mark.parametrize(("seqno", "entry"), [(12, (11, 0)), (13, (22, 12)), (30, (22, 12)), (31, (33, 30))])
def test_stream_request_has_the_branch_of_its_start(builder, seqno, entry):
    log = (FailoverEntry(33, 30), *NEWER)
    vbuuid = entry[0]
    position = Position(seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno)
    request, _ = make_consumer(builder, {3: StreamTarget(position=position)}).decide(log)
    assert (request.start_seqno, request.vbuuid, request.high_seqno) == (seqno, *entry)


@both
def test_pending_opaque_is_not_used_again(builder):
    consumer = make_consumer(builder)
    opaque = consumer.ask_log().opaque
    consumer.feed.forget_connection()
    first = consumer.feed.take_requests(lambda: opaque)[0]
    consumer.give(builder.log(first))
    again = iter([opaque, opaque, opaque + 1])
    request, log = consumer.feed.take_requests(lambda: next(again))
    assert (request.opaque, log.opaque) == (opaque, opaque + 1)


@both
def test_impossible_entries_of_a_log_are_ignored(builder):
    """The specification's example log is not in order. An entry is ignored if it exceeds the entry before it."""
    log = (FailoverEntry(33, 30), FailoverEntry(0, 20), FailoverEntry(44, 31), FailoverEntry(11, 0))
    position = Position(seqno=30, vbuuid=11, snap_start=30, snap_end=30)
    request, _ = make_consumer(builder, {3: StreamTarget(position=position)}).decide(log)
    assert (request.start_seqno, request.vbuuid, request.high_seqno) == (30, 11, 0)


def test_a_log_without_a_branch_breaks_the_protocol():
    consumer = make_consumer(UPR)
    with pytest.raises(RemoteProtocolError, match="failover log of 16 bytes without a branch"):
        consumer.give(UPR.log(consumer.ask_log(), (FailoverEntry(0, 5),)))


# Snapshots


@both
@pytest.mark.parametrize("many", [1, 2, SMALL_RUN - 1, SMALL_RUN, 200])
def test_a_snapshot_is_complete_at_its_end(builder, many):
    consumer, request = open_stream(builder)
    found = consumer.get(builder.snapshot_start(request), builder.mutations(request, *range(1, many + 1)))
    assert seqnos(found) == list(range(1, many + 1))
    assert consumer.position == Position(seqno=many, vbuuid=11, snap_start=0, snap_end=UNKNOWN_END)
    assert consumer.feed.take_positions() == {}
    assert not consumer.get(builder.snapshot_end(request))
    complete = Position(seqno=many, vbuuid=11, snap_start=many, snap_end=many, ends=(SnapshotEnd(many, 11),))
    assert consumer.feed.take_positions() == {3: complete}
    (change,) = consumer.get(builder.snapshot_start(request), builder.deletion(request, many + 5))
    assert (change.event, change.seqno, change.vbuuid, change.history) == (Event.DELETION, many + 5, 11, 0)
    assert (change.snapshot_start, change.snapshot_end, change.snapshot_flags) == (None, None, None)
    assert consumer.position.snap_start == many


@both
def test_positions_wait_until_earlier_changes_are_consumed(builder):
    consumer, request = open_stream(builder)
    consumer.feed.take_positions()
    consumer.give(builder.snapshot(request, *range(1, 100)))
    assert consumer.feed.take_positions() == {}
    consumer.consume()
    assert consumer.feed.take_positions()[3].is_complete


@both
@pytest.mark.parametrize(
    ("messages", "found"),
    [
        (lambda s, r: s.mutations(r, 1), "data while the stream is open"),
        (lambda s, r: s.snapshot_end(r), "snapshot end while the stream is open"),
        (lambda s, r: s.snapshot_start(r) * 2, "snapshot start while the stream is in snapshot"),
        (lambda s, r: s.accept(r), "accepted while the stream is open"),
        (lambda s, r: s.snapshot_start(r) + s.mutations(r, 4, 4), "by_seqno 4 after 4"),
        (lambda s, r: s.snapshot(r, 4) + s.snapshot(r, 3), "by_seqno 3 after 4"),
        (lambda s, r: join_frame(Frame(0x80, 0x5E, opaque=r.opaque)), "opcode 0x5e|CONTROL"),
    ],
)
def test_broken_order_is_a_protocol_error(builder, messages, found):
    consumer, request = open_stream(builder)
    with pytest.raises(RemoteProtocolError, match=found):
        consumer.give(messages(builder, request))


def test_state_of_a_vbucket_gets_no_reply():
    consumer, request = open_stream(UPR)
    assert not consumer.get(UPR.state(request), UPR.snapshot_start(request), UPR.state(request))


@both
def test_stream_is_done_only_after_a_whole_snapshot(builder):
    consumer, request = open_stream(builder, {3: StreamTarget(end_seqno=5)})
    consumer.give(builder.snapshot(request, 1, 4), builder.end(request))
    assert consumer.feed.is_done
    consumer, request = open_stream(builder, {3: StreamTarget(end_seqno=5)})
    consumer.give(builder.snapshot_start(request), builder.mutations(request, 1), builder.end(request))
    assert not consumer.feed.is_done
    assert str(consumer.feed.failures.newest) == "vbucket 3: the producer ended the stream at 1, OK"


@both
def test_stream_that_ends_for_a_state_change_is_resumed_later(builder):
    consumer, request = open_stream(builder, {3: StreamTarget(end_seqno=5)})
    consumer.give(builder.snapshot(request, 1, 5), builder.end_changed(request))
    assert isinstance(consumer.feed.failures.newest, ConnectionClosed)
    assert str(consumer.feed.failures.newest).endswith("ended the stream at 5, STATE_CHANGED")
    assert not consumer.feed.is_done


@both
def test_exact_end_drops_later_changes_without_a_message(builder):
    consumer, request = open_stream(builder, {3: StreamTarget(end_seqno=40)}, end_rule=EndRule.EXACT)
    found = consumer.get(builder.snapshot(request, *range(1, 60)), builder.end(request))
    assert seqnos(found) == list(range(1, 41))
    assert consumer.feed.is_done


# The log after the request


@both
@pytest.mark.parametrize("last", [["snapshot"], ["snapshot", "end"]])
def test_nothing_is_complete_before_the_second_log(builder, last):
    consumer = make_consumer(builder, {3: StreamTarget(end_seqno=9)})
    request, again = consumer.decide()
    consumer.give(builder.accept(request), builder.snapshot(request, 3, 9))
    if "end" in last:
        consumer.give(builder.end(request))
    assert seqnos(consumer.consume()) == [3, 9]
    assert not consumer.position.is_complete
    assert not consumer.feed.is_done
    consumer.give(builder.log(again))
    assert consumer.position.is_complete
    assert consumer.feed.is_done == ("end" in last)
    assert consumer.feed.failures.newest is None


@both
@pytest.mark.parametrize(("log", "given_up"), [(LOG, []), (NEWER, [3])])
def test_an_exact_end_waits_for_the_second_log(builder, log, given_up):
    consumer = make_consumer(builder, {3: StreamTarget(end_seqno=4, policy=PinnedBranch(11))}, end_rule=EndRule.EXACT)
    request, again = consumer.decide()
    consumer.give(builder.accept(request), builder.snapshot_start(request), builder.mutations(request, 3, 4, 5))
    assert seqnos(consumer.consume()) == [3, 4]
    assert not consumer.feed.is_done
    consumer.give(builder.log(again, log), builder.snapshot_end(request), builder.end(request))
    assert consumer.feed.is_done
    assert consumer.feed.given_up == given_up


@both
def test_history_that_changed_at_the_start_of_the_stream_is_detected(builder):
    """A snapshot was interrupted at 20. After the first log, a branch began at 12 that the request lacks."""
    inside = Position(
        seqno=20, vbuuid=11, snap_start=5, snap_end=UNKNOWN_END, ends=(SnapshotEnd(2, 11), SnapshotEnd(5, 11))
    )
    consumer = make_consumer(builder, {3: StreamTarget(position=inside)})
    request, again = consumer.decide()
    assert request.start_seqno == 20
    with pytest.raises(ConnectionClosed, match="vbucket 3: its history changed as the stream began"):
        consumer.give(builder.accept(request), builder.snapshot(request, 21), builder.log(again, NEWER))
    consumer.reconnect()
    request, _ = consumer.decide(NEWER)
    assert (request.start_seqno, request.vbuuid) == (5, 11)
    consumer.consume()
    (row,) = consumer.get(builder.accept(request))
    assert (row.event, row.seqno, row.requested_seqno, row.history) == (Event.ROLLBACK, 5, 5, 1)


# Resumption


@both
def test_interrupted_snapshot_continues_in_the_same_branch(builder):
    consumer, request = open_stream(builder)
    consumer.give(builder.snapshot(request, 2), builder.snapshot_start(request), builder.mutations(request, 4, 6))
    consumer.reconnect()
    request, again = consumer.decide()
    assert request.start_seqno == 6
    consumer.give(builder.accept(request), builder.log(again), builder.snapshot(request, 7))
    assert consumer.position.ends == (SnapshotEnd(2, 11), SnapshotEnd(7, 11))
    assert [row.event for row in consumer.consume()] == [Event.MUTATION] * 4


@both
@pytest.mark.parametrize(("begin", "seqno", "requested_seqno"), [(5, 2, 2), (9, 2, 2), (2, 2, 2), (1, 0, 1)])
def test_interrupted_snapshot_is_rolled_back_in_another_branch(builder, begin, seqno, requested_seqno):
    consumer, request = open_stream(builder)
    consumer.give(builder.snapshot(request, 2), builder.snapshot_start(request), builder.mutations(request, 4, 6))
    consumer.consume()
    consumer.reconnect()
    log = (FailoverEntry(22, begin), *LOG)
    request, _ = consumer.decide(log)
    assert (request.start_seqno, request.vbuuid) == (seqno, 11 if seqno else 0)
    (row,) = consumer.get(builder.accept(request))
    assert row == Change(
        vbucket=3, vbuuid=22, seqno=seqno, event=Event.ROLLBACK, history=1, requested_seqno=requested_seqno
    )


@both
def test_snapshot_that_dcp_began_is_complete_only_at_the_end_in_its_marker(builder):
    inside = Position(seqno=20, vbuuid=11, snap_start=5, snap_end=30, ends=(SnapshotEnd(5, 11),))
    consumer, request = open_stream(builder, {3: StreamTarget(position=inside)})
    consumer.give(builder.snapshot(request, 25))
    assert not consumer.position.is_complete
    consumer.give(builder.snapshot(request, 31))
    assert consumer.position.is_complete


# Rollbacks


@both
def test_rollback_leads_to_a_new_log_request_and_stream_request(builder):
    consumer = make_consumer(builder, {3: StreamTarget(position=AT_20)})
    request, again = consumer.decide()
    consumer.give(builder.rollback(request, 12), builder.log(again))
    request, again = consumer.decide()
    assert (request.start_seqno, request.vbuuid) == (5, 11)
    (row,) = consumer.get(builder.accept(request))
    assert (row.seqno, row.requested_seqno, row.history, row.vbuuid) == (5, 12, 1, 11)


def test_seqno_of_a_rollback_may_be_in_the_value():
    consumer = make_consumer(UPR, {3: StreamTarget(position=AT_20)})
    request, _ = consumer.decide()
    value = (12).to_bytes(8, "big")
    consumer.give(UprStreamReply(opaque=request.opaque, status=Status.ROLLBACK, value=value).encode())
    assert consumer.decide()[0].start_seqno == 5


@pytest.mark.parametrize("value", [b"", bytes(7), bytes(9)])
def test_rollback_without_a_seqno_is_a_protocol_error(value):
    consumer = make_consumer(UPR, {3: StreamTarget(position=AT_20)})
    request, _ = consumer.decide()
    with pytest.raises(RemoteProtocolError, match="expected 8"):
        consumer.give(UprStreamReply(opaque=request.opaque, status=Status.ROLLBACK, value=value).encode())


@both
def test_rollback_above_the_requested_start_breaks_the_protocol(builder):
    """The example in the draft's specification has such a rollback."""
    consumer = make_consumer(builder, {3: StreamTarget(position=AT_20)})
    request, _ = consumer.decide()
    with pytest.raises(RemoteProtocolError, match="vbucket 3: ROLLBACK to 21 of a stream from 20"):
        consumer.give(builder.rollback(request, 21))


@pytest.mark.parametrize(("log", "confirmed"), [(LOG, True), (NEWER, False)])
def test_stream_reply_may_have_the_log(log, confirmed):
    consumer = make_consumer(UPR)
    request, again = consumer.decide()
    answer = UprStreamReply(opaque=request.opaque, value=pack_failover_log(log)).encode()
    with nullcontext() if confirmed else pytest.raises(ConnectionClosed, match="its history changed"):
        consumer.give(answer)
    if confirmed:
        start = UPR.accept(request)[24:]
        consumer.give(start, UPR.snapshot(request, 1))
        assert consumer.position.is_complete
        consumer.give(UPR.log(again))


def test_unknown_branch_is_replaced_by_the_newest_common_branch():
    """The log before the request has the branch, but the producer has lost it when the request arrives."""
    ends = (SnapshotEnd(4, 11), SnapshotEnd(8, 22), SnapshotEnd(20, 33))
    position = Position(seqno=20, vbuuid=33, snap_start=20, snap_end=20, ends=ends)
    log = (FailoverEntry(33, 15), FailoverEntry(22, 6), FailoverEntry(11, 0))
    consumer = make_consumer(UPR, {3: StreamTarget(position=position)})
    request, _ = consumer.decide(log)
    consumer.give(UprStreamReply(opaque=request.opaque, status=Status.KEY_ENOENT).encode())
    request, _ = consumer.decide(log[1:])
    assert (request.start_seqno, request.vbuuid, request.high_seqno) == (8, 22, 6)
    (row,) = consumer.get(UPR.accept(request))
    assert (row.event, row.seqno, row.requested_seqno) == (Event.ROLLBACK, 8, 8)


@both
@pytest.mark.parametrize(
    ("log", "seqno"),
    [
        ((FailoverEntry(44, 7), FailoverEntry(22, 6), FailoverEntry(11, 0)), 4),
        ((FailoverEntry(44, 8), FailoverEntry(22, 6), FailoverEntry(11, 0)), 8),
        ((FailoverEntry(44, 30), FailoverEntry(11, 0)), 4),
        ((FailoverEntry(44, 3), FailoverEntry(11, 0)), 0),
        ((FailoverEntry(44, 0),), 0),
    ],
)
def test_log_without_the_branch_decides_before_the_stream_request(builder, log, seqno):
    ends = (SnapshotEnd(4, 11), SnapshotEnd(8, 22), SnapshotEnd(20, 33))
    position = Position(seqno=20, vbuuid=33, snap_start=20, snap_end=20, ends=ends)
    consumer = make_consumer(builder, {3: StreamTarget(position=position)})
    request, _ = consumer.decide(log)
    assert request.start_seqno == seqno
    assert consumer.get(builder.accept(request))[0].history == 1


def test_an_unknown_branch_at_the_beginning_is_a_refusal():
    consumer = make_consumer(UPR)
    request, _ = consumer.decide()
    with pytest.raises(KeyNotFound, match="vbucket 3: stream from 0 refused, KEY_ENOENT"):
        consumer.give(UprStreamReply(opaque=request.opaque, status=Status.KEY_ENOENT).encode())


@both
@pytest.mark.parametrize("refused", ["log", "stream"])
def test_not_my_vbucket_is_retried_on_the_next_connection(builder, refused):
    consumer = make_consumer(builder)
    if refused == "log":
        consumer.give(builder.refuse_log(consumer.ask_log()))
    else:
        consumer.give(builder.refuse(consumer.decide()[0]))
    assert isinstance(consumer.feed.failures.newest, NotMyVbucket)
    assert not consumer.ask()
    consumer.reconnect()
    consumer.ask_log()


def test_lasting_refusal_of_the_log_is_raised():
    consumer = make_consumer(UPR)
    reply = UprFailoverLogReply(opaque=consumer.ask_log().opaque, status=Status.KEY_ENOENT)
    with pytest.raises(KeyNotFound):
        consumer.give(reply.encode())


# A flush


@both
@pytest.mark.parametrize("inside", [False, True])
def test_flush_starts_a_new_history(builder, inside):
    consumer, request = open_stream(builder)
    consumer.get(builder.snapshot(request, *range(1, 50)), builder.snapshot_start(request) if inside else b"")
    (row,) = consumer.get(builder.flush(request))
    assert row == Change(vbucket=3, vbuuid=None, seqno=0, event=Event.ROLLBACK, history=1, requested_seqno=0)
    assert consumer.position == Position(history=1)
    log = consumer.ask_log()
    (change,) = consumer.get(builder.snapshot(request, 1))
    assert (change.seqno, change.history) == (1, 1)
    consumer.give(builder.log(log, (FailoverEntry(77, 0),)))
    assert consumer.position.vbuuid == 77
    assert consumer.position.ends == (SnapshotEnd(1, 77),)
    (change,) = consumer.get(builder.snapshot(request, 2))
    assert (change.vbuuid, change.history) == (77, 1)


@both
def test_history_without_a_vbuuid_is_never_resumed(builder):
    consumer, request = open_stream(builder)
    consumer.get(builder.flush(request), builder.snapshot(request, 1, 2))
    consumer.reconnect()
    request, _ = consumer.decide()
    assert request.start_seqno == 0
    assert consumer.get(builder.accept(request))[0].history == 2


@both
def test_flush_before_the_second_log_requests_its_own_log(builder):
    consumer = make_consumer(builder, {3: StreamTarget(end_seqno=2)})
    request, again = consumer.decide()
    consumer.get(builder.accept(request), builder.flush(request))
    log = consumer.ask_log()
    consumer.get(builder.log(again), builder.snapshot(request, 1, 2), builder.end(request))
    assert consumer.feed.failures.newest is None
    assert not consumer.feed.is_done
    consumer.give(builder.log(log, (FailoverEntry(77, 0),)))
    assert consumer.feed.is_done
    assert consumer.position.ends == (SnapshotEnd(2, 77),)


@both
def test_second_flush_invalidates_the_log_request_of_the_first(builder):
    consumer, request = open_stream(builder)
    consumer.get(builder.flush(request))
    first = consumer.ask_log()
    consumer.get(builder.flush(request))
    second = consumer.ask_log()
    consumer.give(builder.log(first, (FailoverEntry(77, 0),)), builder.snapshot(request, 1))
    assert consumer.position.vbuuid == 0
    consumer.give(builder.log(second, (FailoverEntry(88, 0),)))
    assert consumer.position.ends == (SnapshotEnd(1, 88),)


# Streams with an expected history


@both
def test_unexpected_history_is_given_up_before_its_stream_request(builder):
    consumer = make_consumer(builder, {3: StreamTarget(policy=PinnedBranch(12))})
    consumer.give(builder.log(consumer.ask_log()))
    assert consumer.feed.given_up == [3]
    assert consumer.feed.is_done
    assert not consumer.ask()


@both
def test_giving_up_does_not_close_a_stream_with_an_opaque_of_an_earlier_connection(builder):
    consumer = make_consumer(builder, {3: StreamTarget(policy=PinnedBranch(11)), 4: StreamTarget()})
    opaques = [1, 2, 3, 4, 5, 6]

    def ask():
        return consumer.feed.take_requests(lambda: opaques.pop(0))

    three, four = ask()
    consumer.give(builder.log(three), builder.log(four))
    stream = ask()[0]
    consumer.give(builder.accept(stream))
    consumer.reconnect()
    opaques[:] = [1, 2, stream.opaque, 7]
    three, four = ask()
    consumer.give(builder.log(four))
    stream, _ = ask()
    consumer.give(builder.accept(stream), builder.log(three, NEWER))
    assert consumer.feed.given_up == [3]
    assert seqnos(consumer.get(builder.snapshot(stream, 1))) == [1]


@both
@pytest.mark.parametrize("cause", ["rollback", "log", "flush"])
def test_a_history_that_ceases_to_be_the_expected_one_is_given_up(builder, cause):
    consumer = make_consumer(builder, {3: StreamTarget(position=AT_20, policy=PinnedBranch(11), end_seqno=50)})
    request, again = consumer.decide()
    if cause == "rollback":
        consumer.give(builder.rollback(request, 5))
    elif cause == "log":
        consumer.give(builder.accept(request), builder.log(again, NEWER))
    else:
        consumer.give(builder.accept(request), builder.flush(request))
    assert consumer.feed.given_up == [3]
    assert not consumer.get(builder.snapshot(request, 21), builder.end(request))
    assert consumer.feed.failures.newest is None
    assert consumer.feed.is_done


# Connections that end anywhere


@both
@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=50), max_size=4), st.lists(st.integers(0, 60), max_size=5)
)
def test_connections_that_end_anywhere_neither_lose_nor_repeat_changes(builder, gaps, cuts):
    snapshots, high = [], 0
    for steps in gaps:
        snapshots.append([high := high + step for step in steps])
    consumer = make_consumer(builder, {3: StreamTarget(end_seqno=high)})
    for cut in (*cuts, MAX_SEQNO):
        if consumer.feed.is_done:
            break
        request, again = consumer.decide()
        assert find_upr_rollback(LOG, high, 0, request) is None
        messages = [builder.accept(request), builder.log(again)]
        for snapshot in snapshots:
            if left := [seqno for seqno in snapshot if seqno > request.start_seqno]:
                messages.append(builder.snapshot_start(request))
                messages += [builder.mutations(request, seqno) for seqno in left]
                messages.append(builder.snapshot_end(request))
        messages.append(builder.end(request))
        consumer.get(*messages[:cut])
        if cut != MAX_SEQNO and not consumer.feed.is_done:
            consumer.reconnect()
    assert consumer.feed.is_done
    assert seqnos(consumer.rows) == [seqno for snapshot in snapshots for seqno in snapshot]
    assert {row.history for row in consumer.rows} <= {0}
    assert consumer.position.seqno == high
    # If only the end message of a snapshot is lost, the feed never learns that the snapshot was complete.
    assert consumer.position.is_complete or cuts
    assert consumer.feed.queued_bytes == 0
