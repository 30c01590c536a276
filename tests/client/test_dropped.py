"""Frames and changes that are received but not delivered: each is counted, with a reason."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import connect
from penstock.client.connect.dropped_frames import DropReason, describe_drops
from penstock.client.feeds.collection_selection import CollectionSelection
from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.errors import AccessDenied, OrderViolation
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import DcpReply, SeqnoAdvanced, StreamReq
from tests.client import dialects
from tests.client import test_feed_collections as collections
from tests.client import test_tap_feed as tap
from tests.client.peer import Script, in_loop
from tests.client.producer import (
    AT_20,
    accept,
    end,
    make_consumer,
    marker,
    mutations,
    noop,
    open_stream,
    refuse,
    rollback,
)

UPR = dialects.UprMessageBuilder()
MANY = 60
"""Changes of a run that is long enough to be decoded in columns. A short run is decoded change by change."""

# Scenarios: each returns the feed and the count that it must have


def closed_stream(many):
    consumer, request = open_stream({3: StreamTarget(policy=PinnedBranch(12))})
    consumer.give(marker(request, 1, 999), mutations(request, *range(1, many + 1)), end(request))
    return consumer.feed, many + 2


def earlier_stream(many):
    consumer, request = open_stream()
    consumer.feed.tolerate_opaques(50)
    earlier = replace(request, opaque=49)
    consumer.give(marker(earlier, 1, 999), mutations(earlier, *range(1, many + 1)), end(earlier))
    return consumer.feed, many + 2


def behind_end(many):
    consumer, request = open_stream({3: StreamTarget(end_seqno=1)}, end_rule=EndRule.EXACT)
    consumer.give(marker(request, 1, 999), mutations(request, *range(2, many + 2)))
    return consumer.feed, many


def received_before(many):
    target = StreamTarget(position=AT_20, policy=PinnedBranch(11, 30))
    consumer = make_consumer({3: target})
    consumer.give(rollback(consumer.ask_one(), 0))
    request = consumer.ask_one()
    consumer.give(accept(request), marker(request, 1, 999), mutations(request, *range(21 - min(many, 20), 21 + many)))
    return consumer.feed, min(many, 20)


def other_collection(many):
    selection = CollectionSelection("inventory", ("nope",))
    consumer, request = collections.open_stream(selection=selection, follows_names=True)
    changes = [collections.mutation(request, seqno, collections.HOTEL) for seqno in range(1, many + 1)]
    consumer.give(marker(request, 1, 999), *changes)
    return consumer.feed, many


def behind_violation(many):
    consumer, request = open_stream()
    with pytest.raises(OrderViolation):
        consumer.give(marker(request, 1, 999), mutations(request, *range(2, many + 2), *range(1, many + 1)), noop(7))
    return consumer.feed, many + 1


def repeated_advance(many):
    consumer, request = open_stream()
    advanced = SeqnoAdvanced(vbucket=3, opaque=request.opaque, by_seqno=7).encode()
    consumer.give(marker(request, 1, 9), *[advanced] * (many + 1))
    return consumer.feed, many


def state(many):
    consumer, request = dialects.open_stream(UPR)
    consumer.give(*[UPR.state(request)] * many)
    return consumer.feed, many


def stream_start(many):
    consumer, _ = dialects.open_stream(UPR)
    return consumer.feed, 1


def unknown_opaque_message(many):
    consumer = tap.make_consumer()
    consumer.give(*[tap.opaque_message(2, 77, opaque=opaque) for opaque in range(many)])
    return consumer.feed, many


def behind_refusal(many):
    targets = {vbucket: StreamTarget() for vbucket in range(min(many, 7) + 1)}
    consumer = make_consumer(targets)
    refused = [refuse(request, Status.EACCESS) for request in consumer.ask()]
    with pytest.raises(AccessDenied, match=r"such as data_dcp_reader; the options scope and collections"):
        consumer.give(*refused)
    return consumer.feed, min(many, 7)


def unexpected_reply(many):
    consumer, _ = open_stream()
    consumer.give(*[DcpReply(opaque=4000).encode(Opcode.DCP_CLOSE_STREAM)] * many)
    return consumer.feed, many


def outdated_log(many):
    """A flush makes the feed give up the stream before the log after its request arrives."""
    consumer = dialects.make_consumer(UPR, {3: StreamTarget(policy=PinnedBranch(11))})
    request, again = consumer.decide()
    consumer.give(UPR.accept(request), UPR.flush(request), UPR.log(again))
    assert consumer.feed.given_up == [3]
    return consumer.feed, 1


FEEDS = {
    DropReason.CLOSED_STREAM: closed_stream,
    DropReason.EARLIER_STREAM: earlier_stream,
    DropReason.AFTER_END: behind_end,
    DropReason.RECEIVED_BEFORE: received_before,
    DropReason.OTHER_COLLECTION: other_collection,
    DropReason.AFTER_VIOLATION: behind_violation,
    DropReason.AFTER_ERROR: behind_refusal,
    DropReason.REPEATED_ADVANCE: repeated_advance,
    DropReason.VBUCKET_STATE: state,
    DropReason.STREAM_START: stream_start,
    DropReason.TAP_OPAQUE: unknown_opaque_message,
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
    """A new reason needs a case, and no frame can be dropped without a reason."""
    assert {*FEEDS, *LINKS} == {*DropReason}


@pytest.mark.parametrize("many", [1, MANY])
@pytest.mark.parametrize("reason", FEEDS, ids=lambda reason: reason.name)
def test_feed_counts_the_frames_that_it_drops(reason, many):
    feed, expected = FEEDS[reason](many)
    assert feed.dropped.frames[reason] == expected


@pytest.mark.parametrize("many", [1, MANY])
@pytest.mark.parametrize("make", [closed_stream, earlier_stream, behind_end, other_collection])
def test_dropped_frames_are_acknowledged(make, many):
    """Otherwise the producer would count them against its window for ever."""
    feed, _ = make(many)
    while feed.deliveries:
        feed.acknowledge(feed.deliveries.popleft())
    acknowledged = feed.take_last_acknowledgement()
    assert int.from_bytes(acknowledged[-4:], "big") > 24 * many


@pytest.mark.parametrize("reason", LINKS, ids=lambda reason: reason.name)
@in_loop
async def test_bucket_counts_frames_that_belong_to_no_stream(reason):
    def answer(peer, frame):
        return LINKS[reason] + script.set_up(frame) if frame.opcode == Opcode.STAT else None

    async with Script(answer) as script, connect(script.url()) as bucket:
        assert bucket.dropped == {}
        await bucket.stats()
        await bucket.stats()
        assert bucket.dropped == {reason: 2}


@in_loop
async def test_stream_counts_over_all_its_connections(caplog):
    """The server pushes a map on each of two connections, and sends one change twice on the first connection."""
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


def test_counts_are_described_as_text():
    assert describe_drops({}) == ""
    assert (
        describe_drops({DropReason.PUSHED: 3, DropReason.VBUCKET_STATE: 0})
        == "3 pushed by the server without a request"
    )


# No change is dropped without a count

KINDS = ["next", "next", "next", "skip", "repeat", "closed", "earlier", "unknown"]


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 40)), max_size=12), st.booleans())
def test_every_change_is_delivered_or_counted(parts, at_once):
    """The changes are those of an open stream, of closed and unknown streams, and some are out of order."""
    consumer = make_consumer({3: StreamTarget(), 5: StreamTarget(policy=PinnedBranch(99))})
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
            given_up = sent  # later messages of a broken connection are not received
            consumer.give(message)
            given_up = 0
    delivered_count = len(consumer.consume())
    counted = consumer.feed.dropped.frames.total()
    if not given_up or at_once:
        assert delivered_count + counted == sent
    assert delivered_count + counted <= sent
