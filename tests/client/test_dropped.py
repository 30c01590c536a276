"""What is received and not handed out: every frame and change of it is counted, with a reason."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import connect
from penstock.client.connect.dropped_frames import DropReason, describe_drops
from penstock.client.feeds.feed import EndRule, StreamTarget
from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.errors import OrderViolation
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.messages.dcp import DcpReply, SeqnoAdvanced, StreamReq
from tests.client import dialects
from tests.client import test_tap_feed as tap
from tests.client.peer import Script, in_loop
from tests.client.producer import (
    AT_20,
    accept,
    consumer_of,
    end,
    marker,
    mutations,
    noop,
    opened,
    rollback,
)

UPR = dialects.Upr()
MANY = 60
"""Changes of a run that is dealt with in columns; a few are dealt with one by one."""

# Scenarios: each returns the feed, and what it must have counted


def closed_stream(many):
    consumer, request = opened({3: StreamTarget(policy=PinnedBranch(12))})
    consumer.give(marker(request, 1, 999), mutations(request, *range(1, many + 1)), end(request))
    return consumer.feed, many + 2


def earlier_stream(many):
    consumer, request = opened()
    consumer.feed.tolerate_opaques(50)
    earlier = replace(request, opaque=49)
    consumer.give(marker(earlier, 1, 999), mutations(earlier, *range(1, many + 1)), end(earlier))
    return consumer.feed, many + 2


def behind_end(many):
    consumer, request = opened({3: StreamTarget(end_seqno=1)}, end_rule=EndRule.EXACT)
    consumer.give(marker(request, 1, 999), mutations(request, *range(2, many + 2)))
    return consumer.feed, many


def received_before(many):
    wanted = StreamTarget(position=AT_20, policy=PinnedBranch(11, 30))
    consumer = consumer_of({3: wanted})
    consumer.give(rollback(consumer.ask_one(), 0))
    request = consumer.ask_one()
    consumer.give(accept(request), marker(request, 1, 999), mutations(request, *range(21 - min(many, 20), 21 + many)))
    return consumer.feed, min(many, 20)


def behind_violation(many):
    consumer, request = opened()
    with pytest.raises(OrderViolation):
        consumer.give(marker(request, 1, 999), mutations(request, *range(2, many + 2), *range(1, many + 1)), noop(7))
    return consumer.feed, many + 1


def repeated_advance(many):
    consumer, request = opened()
    advanced = SeqnoAdvanced(vbucket=3, opaque=request.opaque, by_seqno=7).encode()
    consumer.give(marker(request, 1, 9), *[advanced] * (many + 1))
    return consumer.feed, many


def state(many):
    consumer, request = dialects.opened(UPR)
    consumer.give(*[UPR.state(request)] * many)
    return consumer.feed, many


def stream_start(many):
    consumer, _ = dialects.opened(UPR)
    return consumer.feed, 1


def remark(many):
    consumer = tap.consumer_of()
    consumer.give(*[tap.remark(2, 77, opaque=opaque) for opaque in range(many)])
    return consumer.feed, many


def unexpected_reply(many):
    consumer, _ = opened()
    consumer.give(*[DcpReply(opaque=4000).encode(Opcode.DCP_CLOSE_STREAM)] * many)
    return consumer.feed, many


def outdated_log(many):
    """A flush gives the stream up before the log behind its request comes."""
    consumer = dialects.consumer_of(UPR, {3: StreamTarget(policy=PinnedBranch(11))})
    request, again = consumer.decide()
    consumer.give(UPR.accept(request), UPR.flush(request), UPR.log(again))
    assert consumer.feed.given_up == [3]
    return consumer.feed, 1


FEEDS = {
    DropReason.CLOSED_STREAM: closed_stream,
    DropReason.EARLIER_STREAM: earlier_stream,
    DropReason.AFTER_END: behind_end,
    DropReason.RECEIVED_BEFORE: received_before,
    DropReason.AFTER_VIOLATION: behind_violation,
    DropReason.REPEATED_ADVANCE: repeated_advance,
    DropReason.VBUCKET_STATE: state,
    DropReason.STREAM_START: stream_start,
    DropReason.TAP_OPAQUE: remark,
    DropReason.UNEXPECTED_REPLY: unexpected_reply,
    DropReason.OUTDATED_LOG: outdated_log,
}

PUSH = join_frame(Frame(Magic.SERVER_REQUEST, 0x01, opaque=9, value=b"[" * 100_000))
LINKS = {
    DropReason.PUSHED: PUSH,
    DropReason.NO_STREAM: noop(7),
    DropReason.UNEXPECTED_REPLY: DcpReply(opaque=4000).encode(Opcode.GET),
}


def test_each_reason_has_a_case():
    """A new reason needs one, and there is no way to leave out a frame but with a reason."""
    assert {*FEEDS, *LINKS} == {*DropReason}


@pytest.mark.parametrize("many", [1, MANY])
@pytest.mark.parametrize("reason", FEEDS, ids=lambda reason: reason.name)
def test_a_feed_counts_what_it_leaves_out(reason, many):
    feed, expected = FEEDS[reason](many)
    assert feed.dropped.frames[reason] == expected


@pytest.mark.parametrize("many", [1, MANY])
@pytest.mark.parametrize("make", [closed_stream, earlier_stream, behind_end])
def test_what_is_left_out_is_acknowledged(make, many):
    """The producer's account of the window: nothing stays open for ever."""
    feed, _ = make(many)
    while feed.deliveries:
        feed.acknowledge(feed.deliveries.popleft())
    acknowledged = feed.take_last_acknowledgement()
    assert int.from_bytes(acknowledged[-4:], "big") > 24 * many


@pytest.mark.parametrize("reason", LINKS, ids=lambda reason: reason.name)
@in_loop
async def test_a_bucket_counts_what_is_nobodys(reason):
    def answer(peer, frame):
        return LINKS[reason] + script.set_up(frame) if frame.opcode == Opcode.STAT else None

    async with Script(answer) as script, connect(script.url()) as bucket:
        assert bucket.dropped == {}
        await bucket.stats()
        await bucket.stats()
        assert bucket.dropped == {reason: 2}


@in_loop
async def test_a_stream_counts_over_all_of_its_connections(caplog):
    """A map is pushed in the midst of each of two connections, and a change comes twice on the first one."""
    caplog.set_level("INFO", "penstock.client")

    def answer(peer, frame):
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        request = decode_frame(frame)
        assert isinstance(request, StreamReq)
        if request.start_seqno == 0:
            return accept(request) + PUSH + marker(request, 1, 9) + mutations(request, 1, 2, 2, 3)
        return accept(request) + PUSH + marker(request, 3, 9) + mutations(request, 3)

    async with (
        Script(answer) as script,
        connect(script.url()) as bucket,
        await bucket.stream(vbuckets=[0]) as stream,
    ):
        changes = stream.changes()
        assert [(await anext(changes)).seqno for _ in range(3)] == [1, 2, 3]
        counted = stream.dropped
        assert counted == {DropReason.PUSHED: 2, DropReason.AFTER_VIOLATION: 2}
    (line,) = [each for each in caplog.messages if "not delivered" in each]
    assert line.endswith(f"not delivered: {describe_drops(counted)}")


def test_counts_as_text():
    assert describe_drops({}) == ""
    assert (
        describe_drops({DropReason.PUSHED: 3, DropReason.VBUCKET_STATE: 0})
        == "3 pushed by the server without a request"
    )


# Nothing is left out without a count

KINDS = ["next", "next", "next", "skip", "repeat", "closed", "earlier", "unknown"]


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 40)), max_size=12), st.booleans())
def test_every_change_is_handed_out_or_counted(parts, at_once):
    """Changes of an open stream, of closed and unknown ones, and some out of order."""
    consumer = consumer_of({3: StreamTarget(), 5: StreamTarget(policy=PinnedBranch(99))})
    consumer.feed.tolerate_opaques(50)
    one, two = consumer.ask()
    consumer.give(accept(one), accept(two), marker(one, 1, 1 << 20))
    sources = {"closed": two, "earlier": replace(one, opaque=49), "unknown": replace(one, opaque=4711)}
    seqno, sent, messages = 0, 0, []
    for kind, many in parts:
        first = {"skip": seqno + 10, "repeat": max(seqno, 1)}.get(kind, seqno + 1)
        messages.append(mutations(sources.get(kind, one), *range(first, first + many)))
        sent += many
        if kind in ("next", "skip", "repeat"):
            seqno = first + many - 1
    given_up = 0
    with suppress(OrderViolation):
        for message in [b"".join(messages)] if at_once else messages:
            given_up = sent  # what a connection that is broken would still bring is not received
            consumer.give(message)
            given_up = 0
    handed_out = len(consumer.consume())
    counted = consumer.feed.dropped.frames.total()
    if not given_up or at_once:
        assert handed_out + counted == sent
    assert handed_out + counted <= sent
