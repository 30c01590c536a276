"""UPR and its draft without a socket: what is asked first, where snapshots end, and what a change of history brings."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.feeds.feed import EndRule, StreamTarget
from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import UNKNOWN_END, Position, SnapshotEnd
from penstock.errors import ConnectionClosed, KeyNotFound, NotMyVbucket, RemoteProtocolError
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.run_decoder import SMALL_RUN
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.kv import FailoverEntry, pack_failover_log
from penstock.wire.messages.upr import UprFailoverLogReply, UprStreamReply
from tests.client.dialects import LOG, SPEAKERS, answer_of, consumer_of, opened
from tests.client.producer import AT_20, seqnos

NEWER = (FailoverEntry(22, 12), *LOG)
UPR, _ = SPEAKERS

both = pytest.mark.parametrize("speaker", SPEAKERS, ids=[speaker.dialect.value for speaker in SPEAKERS])


# What is asked for


@both
def test_the_log_is_asked_for_in_front_of_a_stream_and_behind(speaker):
    consumer = consumer_of(speaker, {3: StreamTarget(end_seqno=9), 5: StreamTarget(position=AT_20)})
    logs = consumer.ask()
    assert [type(request) for request in logs] == [speaker.make_log_request] * 2
    assert consumer.feed.count_unanswered(0)
    consumer.give(speaker.log(logs[1], NEWER[1:]))
    request, again = consumer.ask()
    assert (request.vbucket, request.start_seqno, request.end_seqno) == (5, 20, MAX_SEQNO)
    assert (request.vbuuid, request.high_seqno) == (11, 0)
    assert (again.vbucket, len({request.opaque, again.opaque, *(log.opaque for log in logs)})) == (5, 4)
    consumer.give(speaker.log(logs[0]))
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
def test_a_request_names_the_branch_in_which_it_begins(speaker, seqno, entry):
    log = (FailoverEntry(33, 30), *NEWER)
    vbuuid = entry[0]
    position = Position(seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno)
    request, _ = consumer_of(speaker, {3: StreamTarget(position=position)}).decide(log)
    assert (request.start_seqno, request.vbuuid, request.high_seqno) == (seqno, *entry)


@both
def test_an_opaque_that_is_pending_is_not_given_again(speaker):
    consumer = consumer_of(speaker)
    opaque = consumer.ask_log().opaque
    consumer.feed.forget_connection()
    first = consumer.feed.take_requests(lambda: opaque)[0]
    consumer.give(speaker.log(first))
    again = iter([opaque, opaque, opaque + 1])
    request, log = consumer.feed.take_requests(lambda: next(again))
    assert (request.opaque, log.opaque) == (opaque, opaque + 1)


@both
def test_a_log_is_taken_without_what_cannot_be_in_one(speaker):
    """The example of the specification is not in order; what exceeds the entry before it is left out."""
    log = (FailoverEntry(33, 30), FailoverEntry(0, 20), FailoverEntry(44, 31), FailoverEntry(11, 0))
    position = Position(seqno=30, vbuuid=11, snap_start=30, snap_end=30)
    request, _ = consumer_of(speaker, {3: StreamTarget(position=position)}).decide(log)
    assert (request.start_seqno, request.vbuuid, request.high_seqno) == (30, 11, 0)


def test_a_log_without_a_branch_breaks_the_protocol():
    consumer = consumer_of(UPR)
    with pytest.raises(RemoteProtocolError, match="failover log of 16 bytes without a branch"):
        consumer.give(UPR.log(consumer.ask_log(), (FailoverEntry(0, 5),)))


# Snapshots


@both
@pytest.mark.parametrize("many", [1, 2, SMALL_RUN - 1, SMALL_RUN, 200])
def test_a_snapshot_is_complete_at_its_end(speaker, many):
    consumer, request = opened(speaker)
    found = consumer.get(speaker.snapshot_start(request), speaker.mutations(request, *range(1, many + 1)))
    assert seqnos(found) == list(range(1, many + 1))
    assert consumer.position == Position(seqno=many, vbuuid=11, snap_start=0, snap_end=UNKNOWN_END)
    assert consumer.feed.take_positions() == {}
    assert not consumer.get(speaker.snapshot_end(request))
    complete = Position(seqno=many, vbuuid=11, snap_start=many, snap_end=many, ends=(SnapshotEnd(many, 11),))
    assert consumer.feed.take_positions() == {3: complete}
    (change,) = consumer.get(speaker.snapshot_start(request), speaker.deletion(request, many + 5))
    assert (change.event, change.seqno, change.vbuuid, change.history) == (Event.DELETION, many + 5, 11, 0)
    assert (change.snapshot_start, change.snapshot_end, change.snapshot_flags) == (None, None, None)
    assert consumer.position.snap_start == many


@both
def test_positions_wait_for_the_changes_in_front_of_them(speaker):
    consumer, request = opened(speaker)
    consumer.feed.take_positions()
    consumer.give(speaker.snapshot(request, *range(1, 100)))
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
def test_what_breaks_the_order_ends_it(speaker, messages, found):
    consumer, request = opened(speaker)
    with pytest.raises(RemoteProtocolError, match=found):
        consumer.give(messages(speaker, request))


def test_the_state_of_a_vbucket_is_not_answered():
    consumer, request = opened(UPR)
    assert not consumer.get(UPR.state(request), UPR.snapshot_start(request), UPR.state(request))


@both
def test_an_end_is_a_seqno_or_a_whole_snapshot(speaker):
    consumer, request = opened(speaker, {3: StreamTarget(end_seqno=5)})
    consumer.give(speaker.snapshot(request, 1, 4), speaker.end(request))
    assert consumer.feed.is_done
    consumer, request = opened(speaker, {3: StreamTarget(end_seqno=5)})
    consumer.give(speaker.snapshot_start(request), speaker.mutations(request, 1), speaker.end(request))
    assert not consumer.feed.is_done
    assert str(consumer.feed.failures.newest) == "vbucket 3: the producer ended the stream at 1, OK"


@both
def test_a_stream_that_ends_for_another_state_goes_on_later(speaker):
    consumer, request = opened(speaker, {3: StreamTarget(end_seqno=5)})
    consumer.give(speaker.snapshot(request, 1, 5), speaker.end_changed(request))
    assert isinstance(consumer.feed.failures.newest, ConnectionClosed)
    assert str(consumer.feed.failures.newest).endswith("ended the stream at 5, STATE_CHANGED")
    assert not consumer.feed.is_done


@both
def test_an_exact_end_leaves_out_what_follows_without_a_word(speaker):
    consumer, request = opened(speaker, {3: StreamTarget(end_seqno=40)}, end_rule=EndRule.EXACT)
    found = consumer.get(speaker.snapshot(request, *range(1, 60)), speaker.end(request))
    assert seqnos(found) == list(range(1, 41))
    assert consumer.feed.is_done


# The log behind the request


@both
@pytest.mark.parametrize("last", [["snapshot"], ["snapshot", "end"]])
def test_nothing_is_complete_before_the_second_log(speaker, last):
    consumer = consumer_of(speaker, {3: StreamTarget(end_seqno=9)})
    request, again = consumer.decide()
    consumer.give(speaker.accept(request), speaker.snapshot(request, 3, 9))
    if "end" in last:
        consumer.give(speaker.end(request))
    assert seqnos(consumer.consume()) == [3, 9]
    assert not consumer.position.is_complete
    assert not consumer.feed.is_done
    consumer.give(speaker.log(again))
    assert consumer.position.is_complete
    assert consumer.feed.is_done == ("end" in last)
    assert consumer.feed.failures.newest is None


@both
@pytest.mark.parametrize(("log", "given_up"), [(LOG, []), (NEWER, [3])])
def test_an_exact_end_waits_for_the_second_log(speaker, log, given_up):
    consumer = consumer_of(speaker, {3: StreamTarget(end_seqno=4, policy=PinnedBranch(11))}, end_rule=EndRule.EXACT)
    request, again = consumer.decide()
    consumer.give(speaker.accept(request), speaker.snapshot_start(request), speaker.mutations(request, 3, 4, 5))
    assert seqnos(consumer.consume()) == [3, 4]
    assert not consumer.feed.is_done
    consumer.give(speaker.log(again, log), speaker.snapshot_end(request), speaker.end(request))
    assert consumer.feed.is_done
    assert consumer.feed.given_up == given_up


@both
def test_a_history_that_changed_as_the_stream_began_is_found_out_about(speaker):
    """A snapshot was cut off at 20; before the request another branch began at 12, which the request cannot see."""
    inside = Position(
        seqno=20, vbuuid=11, snap_start=5, snap_end=UNKNOWN_END, ends=(SnapshotEnd(2, 11), SnapshotEnd(5, 11))
    )
    consumer = consumer_of(speaker, {3: StreamTarget(position=inside)})
    request, again = consumer.decide()
    assert request.start_seqno == 20
    with pytest.raises(ConnectionClosed, match="vbucket 3: its history changed as the stream began"):
        consumer.give(speaker.accept(request), speaker.snapshot(request, 21), speaker.log(again, NEWER))
    consumer.reconnect()
    request, _ = consumer.decide(NEWER)
    assert (request.start_seqno, request.vbuuid) == (5, 11)
    consumer.consume()
    (row,) = consumer.get(speaker.accept(request))
    assert (row.event, row.seqno, row.requested_seqno, row.history) == (Event.ROLLBACK, 5, 5, 1)


# Going on


@both
def test_a_snapshot_that_was_cut_off_goes_on_in_the_same_branch(speaker):
    consumer, request = opened(speaker)
    consumer.give(speaker.snapshot(request, 2), speaker.snapshot_start(request), speaker.mutations(request, 4, 6))
    consumer.reconnect()
    request, again = consumer.decide()
    assert request.start_seqno == 6
    consumer.give(speaker.accept(request), speaker.log(again), speaker.snapshot(request, 7))
    assert consumer.position.ends == (SnapshotEnd(2, 11), SnapshotEnd(7, 11))
    assert [row.event for row in consumer.consume()] == [Event.MUTATION] * 4


@both
@pytest.mark.parametrize(("begin", "seqno", "requested_seqno"), [(5, 2, 2), (9, 2, 2), (2, 2, 2), (1, 0, 1)])
def test_a_snapshot_that_was_cut_off_comes_anew_in_another_branch(speaker, begin, seqno, requested_seqno):
    consumer, request = opened(speaker)
    consumer.give(speaker.snapshot(request, 2), speaker.snapshot_start(request), speaker.mutations(request, 4, 6))
    consumer.consume()
    consumer.reconnect()
    log = (FailoverEntry(22, begin), *LOG)
    request, _ = consumer.decide(log)
    assert (request.start_seqno, request.vbuuid) == (seqno, 11 if seqno else 0)
    (row,) = consumer.get(speaker.accept(request))
    assert row == Change(
        vbucket=3, vbuuid=22, seqno=seqno, event=Event.ROLLBACK, history=1, requested_seqno=requested_seqno
    )


@both
def test_a_snapshot_that_dcp_began_is_complete_only_where_it_said(speaker):
    inside = Position(seqno=20, vbuuid=11, snap_start=5, snap_end=30, ends=(SnapshotEnd(5, 11),))
    consumer, request = opened(speaker, {3: StreamTarget(position=inside)})
    consumer.give(speaker.snapshot(request, 25))
    assert not consumer.position.is_complete
    consumer.give(speaker.snapshot(request, 31))
    assert consumer.position.is_complete


# Rollbacks


@both
def test_a_rollback_is_followed_and_asked_about_again(speaker):
    consumer = consumer_of(speaker, {3: StreamTarget(position=AT_20)})
    request, again = consumer.decide()
    consumer.give(speaker.rollback(request, 12), speaker.log(again))
    request, again = consumer.decide()
    assert (request.start_seqno, request.vbuuid) == (5, 11)
    (row,) = consumer.get(speaker.accept(request))
    assert (row.seqno, row.requested_seqno, row.history, row.vbuuid) == (5, 12, 1, 11)


def test_a_rollback_may_stand_in_the_value():
    consumer = consumer_of(UPR, {3: StreamTarget(position=AT_20)})
    request, _ = consumer.decide()
    value = (12).to_bytes(8, "big")
    consumer.give(UprStreamReply(opaque=request.opaque, status=Status.ROLLBACK, value=value).encode())
    assert consumer.decide()[0].start_seqno == 5


@pytest.mark.parametrize("value", [b"", bytes(7), bytes(9)])
def test_a_rollback_to_nowhere(value):
    consumer = consumer_of(UPR, {3: StreamTarget(position=AT_20)})
    request, _ = consumer.decide()
    with pytest.raises(RemoteProtocolError, match="expected 8"):
        consumer.give(UprStreamReply(opaque=request.opaque, status=Status.ROLLBACK, value=value).encode())


@both
def test_a_rollback_above_what_was_asked_for_breaks_the_protocol(speaker):
    """As the draft's own example does."""
    consumer = consumer_of(speaker, {3: StreamTarget(position=AT_20)})
    request, _ = consumer.decide()
    with pytest.raises(RemoteProtocolError, match="vbucket 3: ROLLBACK to 21 of a stream from 20"):
        consumer.give(speaker.rollback(request, 21))


@pytest.mark.parametrize(("log", "confirmed"), [(LOG, True), (NEWER, False)])
def test_an_answer_may_hold_the_log(log, confirmed):
    consumer = consumer_of(UPR)
    request, again = consumer.decide()
    answer = UprStreamReply(opaque=request.opaque, value=pack_failover_log(log)).encode()
    with nullcontext() if confirmed else pytest.raises(ConnectionClosed, match="its history changed"):
        consumer.give(answer)
    if confirmed:
        start = UPR.accept(request)[24:]
        consumer.give(start, UPR.snapshot(request, 1))
        assert consumer.position.is_complete
        consumer.give(UPR.log(again))


def test_an_unknown_branch_is_dropped_for_the_newest_common_one():
    """The log names it in front of the request, and the producer has forgotten it by then."""
    ends = (SnapshotEnd(4, 11), SnapshotEnd(8, 22), SnapshotEnd(20, 33))
    position = Position(seqno=20, vbuuid=33, snap_start=20, snap_end=20, ends=ends)
    log = (FailoverEntry(33, 15), FailoverEntry(22, 6), FailoverEntry(11, 0))
    consumer = consumer_of(UPR, {3: StreamTarget(position=position)})
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
def test_a_log_without_the_branch_decides_before_anything_is_asked(speaker, log, seqno):
    ends = (SnapshotEnd(4, 11), SnapshotEnd(8, 22), SnapshotEnd(20, 33))
    position = Position(seqno=20, vbuuid=33, snap_start=20, snap_end=20, ends=ends)
    consumer = consumer_of(speaker, {3: StreamTarget(position=position)})
    request, _ = consumer.decide(log)
    assert request.start_seqno == seqno
    assert consumer.get(speaker.accept(request))[0].history == 1


def test_an_unknown_branch_at_the_beginning_is_a_refusal():
    consumer = consumer_of(UPR)
    request, _ = consumer.decide()
    with pytest.raises(KeyNotFound, match="vbucket 3: stream from 0 refused, KEY_ENOENT"):
        consumer.give(UprStreamReply(opaque=request.opaque, status=Status.KEY_ENOENT).encode())


@both
@pytest.mark.parametrize("of", ["log", "stream"])
def test_a_vbucket_that_is_not_here_is_for_the_next_connection(speaker, of):
    consumer = consumer_of(speaker)
    if of == "log":
        consumer.give(speaker.refuse_log(consumer.ask_log()))
    else:
        consumer.give(speaker.refuse(consumer.decide()[0]))
    assert isinstance(consumer.feed.failures.newest, NotMyVbucket)
    assert not consumer.ask()
    consumer.reconnect()
    consumer.ask_log()


def test_a_log_that_is_refused_for_good():
    consumer = consumer_of(UPR)
    reply = UprFailoverLogReply(opaque=consumer.ask_log().opaque, status=Status.KEY_ENOENT)
    with pytest.raises(KeyNotFound):
        consumer.give(reply.encode())


# A flush


@both
@pytest.mark.parametrize("inside", [False, True])
def test_a_flush_begins_a_new_history(speaker, inside):
    consumer, request = opened(speaker)
    consumer.get(speaker.snapshot(request, *range(1, 50)), speaker.snapshot_start(request) if inside else b"")
    (row,) = consumer.get(speaker.flush(request))
    assert row == Change(vbucket=3, vbuuid=None, seqno=0, event=Event.ROLLBACK, history=1, requested_seqno=0)
    assert consumer.position == Position(history=1)
    log = consumer.ask_log()
    (change,) = consumer.get(speaker.snapshot(request, 1))
    assert (change.seqno, change.history) == (1, 1)
    consumer.give(speaker.log(log, (FailoverEntry(77, 0),)))
    assert consumer.position.vbuuid == 77
    assert consumer.position.ends == (SnapshotEnd(1, 77),)
    (change,) = consumer.get(speaker.snapshot(request, 2))
    assert (change.vbuuid, change.history) == (77, 1)


@both
def test_a_history_that_has_no_name_yet_is_never_gone_on_with(speaker):
    consumer, request = opened(speaker)
    consumer.get(speaker.flush(request), speaker.snapshot(request, 1, 2))
    consumer.reconnect()
    request, _ = consumer.decide()
    assert request.start_seqno == 0
    assert consumer.get(speaker.accept(request))[0].history == 2


@both
def test_a_flush_before_the_second_log_has_a_log_of_its_own(speaker):
    consumer = consumer_of(speaker, {3: StreamTarget(end_seqno=2)})
    request, again = consumer.decide()
    consumer.get(speaker.accept(request), speaker.flush(request))
    log = consumer.ask_log()
    consumer.get(speaker.log(again), speaker.snapshot(request, 1, 2), speaker.end(request))
    assert consumer.feed.failures.newest is None
    assert not consumer.feed.is_done
    consumer.give(speaker.log(log, (FailoverEntry(77, 0),)))
    assert consumer.feed.is_done
    assert consumer.position.ends == (SnapshotEnd(2, 77),)


@both
def test_a_flush_behind_a_flush_makes_the_first_ones_log_worthless(speaker):
    consumer, request = opened(speaker)
    consumer.get(speaker.flush(request))
    first = consumer.ask_log()
    consumer.get(speaker.flush(request))
    second = consumer.ask_log()
    consumer.give(speaker.log(first, (FailoverEntry(77, 0),)), speaker.snapshot(request, 1))
    assert consumer.position.vbuuid == 0
    consumer.give(speaker.log(second, (FailoverEntry(88, 0),)))
    assert consumer.position.ends == (SnapshotEnd(1, 88),)


# Streams with an expected history


@both
def test_another_history_than_the_expected_one_is_given_up_before_it_is_asked_for(speaker):
    consumer = consumer_of(speaker, {3: StreamTarget(policy=PinnedBranch(12))})
    consumer.give(speaker.log(consumer.ask_log()))
    assert consumer.feed.given_up == [3]
    assert consumer.feed.is_done
    assert not consumer.ask()


@both
def test_giving_up_leaves_the_stream_alone_that_has_an_opaque_of_an_earlier_connection(speaker):
    consumer = consumer_of(speaker, {3: StreamTarget(policy=PinnedBranch(11)), 4: StreamTarget()})
    opaques = [1, 2, 3, 4, 5, 6]

    def ask():
        return consumer.feed.take_requests(lambda: opaques.pop(0))

    three, four = ask()
    consumer.give(speaker.log(three), speaker.log(four))
    stream = ask()[0]
    consumer.give(speaker.accept(stream))
    consumer.reconnect()
    opaques[:] = [1, 2, stream.opaque, 7]
    three, four = ask()
    consumer.give(speaker.log(four))
    stream, _ = ask()
    consumer.give(speaker.accept(stream), speaker.log(three, NEWER))
    assert consumer.feed.given_up == [3]
    assert seqnos(consumer.get(speaker.snapshot(stream, 1))) == [1]


@both
@pytest.mark.parametrize("what", ["rollback", "log", "flush"])
def test_a_history_that_ceases_to_be_the_expected_one_is_given_up(speaker, what):
    consumer = consumer_of(speaker, {3: StreamTarget(position=AT_20, policy=PinnedBranch(11), end_seqno=50)})
    request, again = consumer.decide()
    if what == "rollback":
        consumer.give(speaker.rollback(request, 5))
    elif what == "log":
        consumer.give(speaker.accept(request), speaker.log(again, NEWER))
    else:
        consumer.give(speaker.accept(request), speaker.flush(request))
    assert consumer.feed.given_up == [3]
    assert not consumer.get(speaker.snapshot(request, 21), speaker.end(request))
    assert consumer.feed.failures.newest is None
    assert consumer.feed.is_done


# Connections that end anywhere


@both
@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=50), max_size=4), st.lists(st.integers(0, 60), max_size=5)
)
def test_connections_that_end_anywhere_lose_and_repeat_nothing(speaker, gaps, cuts):
    snapshots, high = [], 0
    for steps in gaps:
        snapshots.append([high := high + step for step in steps])
    consumer = consumer_of(speaker, {3: StreamTarget(end_seqno=high)})
    for cut in (*cuts, MAX_SEQNO):
        if consumer.feed.is_done:
            break
        request, again = consumer.decide()
        assert answer_of(LOG, high, 0, request) is None
        messages = [speaker.accept(request), speaker.log(again)]
        for snapshot in snapshots:
            if left := [seqno for seqno in snapshot if seqno > request.start_seqno]:
                messages.append(speaker.snapshot_start(request))
                messages += [speaker.mutations(request, seqno) for seqno in left]
                messages.append(speaker.snapshot_end(request))
        messages.append(speaker.end(request))
        consumer.get(*messages[:cut])
        if cut != MAX_SEQNO and not consumer.feed.is_done:
            consumer.reconnect()
    assert consumer.feed.is_done
    assert seqnos(consumer.rows) == [seqno for snapshot in snapshots for seqno in snapshot]
    assert {row.history for row in consumer.rows} <= {0}
    assert consumer.position.seqno == high
    # A snapshot whose end message alone was lost is never known to have been complete.
    assert consumer.position.is_complete or cuts
    assert consumer.feed.queued_bytes == 0
