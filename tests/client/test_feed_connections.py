"""The feed over one connection after another: where it resumes, and the bytes that it acknowledges to each."""

from itertools import cycle, zip_longest

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import BEGINNING
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import DcpReply
from tests.client.producer import (
    AT_20,
    INSIDE,
    WINDOW,
    History,
    accept,
    deletion,
    end,
    make_consumer,
    marker,
    mutation,
    mutations,
    noop,
    open_stream,
)

# Snapshots over connections


def test_an_interrupted_snapshot_is_complete_only_at_its_end():
    consumer, request = open_stream({3: StreamTarget(position=INSIDE)})
    assert (request.start_seqno, request.snap_start, request.snap_end) == (20, 5, 30)
    consumer.give(marker(request, 5, 24), mutations(request, 24))
    (delivery,) = consumer.feed.deliveries
    position = delivery.positions[3]
    assert (position.seqno, position.snap_start, position.snap_end) == (24, 5, 30)
    consumer.consume()
    consumer.give(marker(request, 25, 33), mutations(request, 30, 33))
    position = consumer.feed.deliveries[0].positions[3]
    assert position.is_complete
    assert [each.seqno for each in position.ends] == [5, 33]


def test_a_marker_alone_does_not_move_a_position():
    consumer, request = open_stream({3: StreamTarget(position=AT_20)})
    consumer.give(marker(request, 15, 40))
    consumer.reconnect()
    request = consumer.ask_one()
    assert (request.start_seqno, request.snap_start, request.snap_end) == (20, 20, 20)


@st.composite
def histories(draw):
    """Histories of up to three vbuckets, with short and long snapshots."""
    found = {}
    for vbucket in draw(st.sets(st.integers(0, 7), min_size=1, max_size=3)):
        snapshots, low = [], 1
        for _ in range(draw(st.integers(0, 4))):
            many = draw(st.sampled_from([1, 2, 3, 40]))
            gaps = draw(st.lists(st.integers(1, 3), min_size=many, max_size=many))
            seqnos = tuple(low - 1 + sum(gaps[: place + 1]) for place in range(many))
            snapshots.append((low, seqnos[-1], seqnos))
            low = seqnos[-1] + 1
        found[vbucket] = History(tuple(snapshots))
    return found


def interleave_streams(consumer, histories):
    """Return the messages of all streams that the consumer requests, one of each stream in turn."""
    streams = [histories[request.vbucket].serve(request) for request in consumer.ask()]
    return [message for several in zip_longest(*streams) for message in several if message is not None]


def follow(histories, cuts):
    """Follow histories to their ends; return the rows and the last position of each vbucket.

    Args:
        histories: vbucket -> history.
        cuts: for each connection, the number of messages after which it ends.
    """
    consumer = make_consumer({vb: StreamTarget(end_seqno=each.high_seqno) for vb, each in histories.items()})
    saved = {}
    for cut in (*cuts, MAX_SEQNO):
        messages = interleave_streams(consumer, histories)[:cut]
        for first in range(0, len(messages), 50):
            consumer.give(*messages[first : first + 50])
            for delivery in consumer.feed.deliveries:
                saved.update(delivery.positions)
            consumer.consume()
        if consumer.feed.is_done:
            break
        consumer.reconnect()
    assert consumer.feed.is_done
    assert consumer.feed.queued_bytes == 0
    return consumer.rows, saved


def sort_rows(rows):
    return sorted((row.vbucket, row.history, row.seqno, row.event, row.key, row.value) for row in rows)


@given(histories(), st.lists(st.integers(0, 60), max_size=6))
def test_connections_that_end_anywhere_neither_lose_nor_repeat_changes(histories, cuts):
    whole, positions = follow(histories, ())
    assert seqnos_by_vbucket(whole) == {
        vb: [seqno for *_, seqnos in each.snapshots for seqno in seqnos]
        for vb, each in histories.items()
        if each.snapshots
    }
    rows, ends = follow(histories, cuts)
    assert sort_rows(rows) == sort_rows(whole)
    assert {vb: each.seqno for vb, each in ends.items()} == {vb: each.seqno for vb, each in positions.items()}
    assert all(each.is_complete for each in ends.values())


def seqnos_by_vbucket(rows):
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row.vbucket, []).append(row.seqno)
    return found


@given(histories(), st.integers(0, 120))
def test_another_consumer_resumes_at_saved_positions(histories, cut):
    """The next process starts at the positions that were saved with the last consumed delivery."""
    whole, _ = follow(histories, ())
    targets = {vb: StreamTarget(end_seqno=each.high_seqno) for vb, each in histories.items()}
    first = make_consumer(targets)
    first.give(*interleave_streams(first, histories)[:cut])
    saved = {}
    for delivery in list(first.feed.deliveries)[:1]:
        saved = delivery.positions
        first.consume(1)
    second = make_consumer(
        {vb: StreamTarget(position=saved.get(vb, BEGINNING), end_seqno=each.end_seqno) for vb, each in targets.items()}
    )
    for request in second.ask():
        second.give(*histories[request.vbucket].serve(request))
    second.consume()
    assert second.feed.is_done
    assert sort_rows(first.rows + second.rows) == sort_rows(whole)


# Flow control and liveness


def test_acknowledged_bytes_are_the_charged_bytes():
    """Every kind of message counts with its size on the wire. Source: dcp.md, sizes for flow control."""
    consumer, request = open_stream()
    value = b"v" * 7
    consumer.give(marker(request, 1, 9), mutation(request, 1, value), deletion(request, 2), end(request, 4), noop(1))
    assert consumer.charged == 44 + (55 + 2 + 7) + (42 + 2) + 28
    assert consumer.acknowledged == 0
    assert consumer.feed.queued_bytes == consumer.charged
    consumer.consume()
    consumer.give(noop(2))
    assert consumer.acknowledged == consumer.charged
    assert consumer.feed.queued_bytes == 0


def test_only_consumed_bytes_are_acknowledged():
    consumer, request = open_stream()
    consumer.give(marker(request, 1, 1000), mutation(request, 1, b"v" * WINDOW))
    assert consumer.feed.queued_bytes > WINDOW
    consumer.give(noop(1))
    assert consumer.acknowledged == 0
    consumer.consume()
    assert consumer.acknowledged == consumer.charged
    assert consumer.feed.queued_bytes == 0


def test_a_fifth_of_the_window_is_acknowledged_at_once():
    consumer, request = open_stream()
    consumer.get(marker(request, 1, 1000), mutation(request, 1, b"v" * (WINDOW // 5 - 200)))
    assert consumer.acknowledged == 0
    consumer.get(mutation(request, 2, b"v" * 200))
    assert consumer.acknowledged == consumer.charged


def test_dropped_changes_are_acknowledged_before_pending_deliveries():
    """Otherwise the producer's window would fill with bytes that are never acknowledged."""
    consumer = make_consumer({3: StreamTarget(), 5: StreamTarget(policy=PinnedBranch(99))})
    one, two = consumer.ask()
    consumer.give(accept(one), accept(two), marker(one, 1, 9), mutations(one, 1))
    kept = consumer.feed.queued_bytes
    consumer.give(mutation(two, 1, b"v" * WINDOW))
    assert consumer.acknowledged == consumer.charged - kept
    assert consumer.feed.queued_bytes == kept


def test_delivery_is_acknowledged_only_on_its_own_connection():
    consumer, request = open_stream()
    consumer.give(marker(request, 1, 9), mutation(request, 1, b"v" * WINDOW))
    consumer.reconnect()
    assert consumer.feed.queued_bytes > WINDOW
    consumer.consume()
    assert consumer.acknowledged == 0
    assert consumer.feed.queued_bytes == 0
    request = consumer.ask_one()
    consumer.get(accept(request), marker(request, 0, 9), mutations(request, 9))
    consumer.give(noop(1))
    assert consumer.acknowledged == consumer.charged > 0


@given(histories(), st.lists(st.integers(0, 60), max_size=4), st.lists(st.integers(0, 2), min_size=1), st.data())
def test_no_connection_is_acknowledged_more_than_it_charged(histories, cuts, takes, data):
    takes = cycle(takes)
    consumer = make_consumer(
        {vb: StreamTarget(end_seqno=each.high_seqno) for vb, each in histories.items()}, window=1 << 10
    )
    for cut in (*cuts, MAX_SEQNO):
        messages = interleave_streams(consumer, histories)[:cut]
        step = data.draw(st.integers(1, 60))
        for first in range(0, len(messages), step):
            consumer.give(*messages[first : first + step])
            consumer.consume(next(takes))
            assert consumer.acknowledged <= consumer.charged
            assert consumer.feed.queued_bytes >= 0
        if consumer.feed.is_done:
            break
        consumer.reconnect()
    if all(each.connection == consumer.feed.deliveries[-1].connection for each in consumer.feed.deliveries):
        consumer.consume()
        consumer.give(noop(1))
        assert consumer.acknowledged == consumer.charged


def test_a_noop_is_answered_with_its_opaque():
    consumer, _ = open_stream()
    consumer.give(noop(77))
    (answer,) = consumer.sent
    assert isinstance(answer, DcpReply)
    assert (answer.opaque, answer.status) == (77, Status.SUCCESS)


def test_unexpected_replies_are_ignored():
    consumer, _ = open_stream()
    consumer.give(DcpReply(opaque=4242, status=Status.KEY_ENOENT).encode(Opcode.DCP_CLOSE_STREAM))
    assert not consumer.feed.receive([Frame(Magic.RESPONSE, Opcode.GET, opaque=1)])
    assert not consumer.sent
