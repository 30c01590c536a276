"""The TAP feed without a socket: one stream for all vbuckets, its requests, and streams that cannot resume."""

import re
from itertools import count

import pytest

from penstock.client.tap.tap_feed import TapFeed
from penstock.client.topology.item_counts import ItemCount
from penstock.errors import NotSupported, RemoteProtocolError, TemporaryFailure, Unreachable, UsageError
from penstock.wire.codec.constants import MAX_SEQNO, TapOpaque
from penstock.wire.codec.flags import TapConnectFlag, TapFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.run_decoder import SMALL_RUN
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp import DcpNoop
from penstock.wire.messages.kv import Get, Noop
from penstock.wire.messages.tap import (
    TapCheckpointEnd,
    TapCheckpointStart,
    TapConnect,
    TapDelete,
    TapFlush,
    TapMutation,
    TapOpaqueMessage,
    TapReply,
    TapVbucketSet,
    unpack_tap_options,
)
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from tests.client.receiver import Receiver

ACK = int(TapFlag.ACK)
NUMBERS = count(1)


def mutation(vbucket, key, flags=0, ttl=255):
    return TapMutation(
        vbucket=vbucket,
        opaque=next(NUMBERS),
        key=key,
        value=b"value",
        cas=7,
        engine_private=(5).to_bytes(8, "big") + b"\2",
        tap_flags=flags | TapFlag.NETWORK_BYTE_ORDER,
        flags=0xDEADBEEF,
        ttl=ttl,
    ).encode()


def mutations(vbucket, many, **fields):
    return b"".join(mutation(vbucket, b"k%d" % number, **fields) for number in range(many))


def opaque_message(vbucket, command, opaque=900, flags=ACK):
    private = int(command).to_bytes(4, "big")
    return TapOpaqueMessage(vbucket=vbucket, opaque=opaque, engine_private=private, tap_flags=flags).encode()


def begin(vbucket, **fields):
    return opaque_message(vbucket, TapOpaque.INITIAL_VBUCKET_STREAM, **fields)


def close(vbucket, **fields):
    return opaque_message(vbucket, TapOpaque.CLOSE_BACKFILL, **fields)


class TapConsumer(Receiver):
    def reconnect(self):
        super().reconnect()
        self.feed.take_requests(lambda: 1)

    def consume(self, count=MAX_SEQNO):
        for delivery in self.feed.deliveries:
            assert delivery.batch.num_rows == len(delivery.changes)
            assert delivery.positions == {}
        return super().consume(count)

    @property
    def acknowledged(self):
        assert {(type(reply), reply.status) for reply in self.sent} <= {(TapReply, Status.SUCCESS)}
        return [reply.opaque for reply in self.sent]


def make_consumer(chosen=range(8), **options):
    consumer = TapConsumer(TapFeed(8, chosen, window=1 << 16, **options))
    consumer.feed.take_requests(lambda: 1)
    return consumer


def rollback(vbucket, history):
    return Change(vbucket, None, 0, event=Event.ROLLBACK, history=history, requested_seqno=0)


# Requests


ALWAYS = TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_FLAG_BYTEORDER


@pytest.mark.parametrize(
    ("options", "chosen", "flags", "value"),
    [
        ({}, range(8), 0, b""),
        ({"until_now": True}, range(8), TapConnectFlag.DUMP, b""),
        ({"from_now": True}, range(8), TapConnectFlag.BACKFILL, b"\xff" * 8),
        ({}, [5, 2], TapConnectFlag.LIST_VBUCKETS, bytes([0, 2, 0, 2, 0, 5])),
        (
            {"from_now": True},
            [5],
            TapConnectFlag.BACKFILL | TapConnectFlag.LIST_VBUCKETS,
            b"\xff" * 8 + bytes([0, 1, 0, 5]),
        ),
    ],
)
def test_connect_request_has_the_options_of_the_feed(options, chosen, flags, value):
    feed = TapFeed(8, chosen, window=1, **options)
    (request,) = feed.take_requests(lambda: 1)
    assert isinstance(request, TapConnect)
    assert (request.key, request.flags, request.value) == (b"", ALWAYS | flags, value)
    assert unpack_tap_options(ALWAYS | flags, request.value).pack() == value
    assert not feed.take_requests(lambda: 2)
    feed.forget_connection()
    assert feed.take_requests(lambda: 3)[0].value == value


@pytest.mark.parametrize(("chosen", "options"), [([], {}), ([1], {"from_now": True, "until_now": True})])
def test_feed_without_changes_to_read_sends_no_request(chosen, options):
    feed = TapFeed(8, chosen, window=1, **options)
    assert feed.is_done
    assert not feed.take_requests(lambda: 1)


def test_impossible_vbucket_is_refused():
    with pytest.raises(UsageError, match="vbucket 8, expected one below 8"):
        TapFeed(8, [8], window=1)


# Rows


@pytest.mark.parametrize("many", [1, SMALL_RUN - 1, SMALL_RUN, 200])
@pytest.mark.parametrize("ttl", [0, 255])
def test_changes_are_rows_without_seqnos(many, ttl):
    consumer = make_consumer()
    deletion = TapDelete(vbucket=2, key=b"k", engine_private=(6).to_bytes(8, "big"), cas=8).encode()
    *found, last = consumer.get(begin(2), mutations(2, many, ttl=ttl), close(2), deletion)
    assert len(found) == many
    assert found[0] == Change(
        vbucket=2,
        vbuuid=None,
        seqno=None,
        rev_seqno=5,
        cas=7,
        key=b"k0",
        value=b"value",
        datatype=0,
        flags=0xDEADBEEF,
        expiry=0,
        history=0,
    )
    assert (last.event, last.rev_seqno, last.cas, last.value) == (Event.DELETION, 6, 8, None)


def test_messages_without_effect_are_acknowledged():
    consumer = make_consumer()
    assert not consumer.get(
        Noop().encode(),
        opaque_message(0, TapOpaque.ENABLE_AUTO_NACK, opaque=1),
        opaque_message(0, 4711, opaque=2),
        TapOpaqueMessage(opaque=3, engine_private=b"\0\0\0\0\1", tap_flags=ACK).encode(),
        TapVbucketSet(vbucket=3, opaque=4, engine_private=bytes([0, 0, 0, 3]), tap_flags=ACK).encode(),
        TapCheckpointStart(vbucket=3, opaque=5, key=b"checkpoint_start", value=bytes(8), tap_flags=ACK).encode(),
        TapCheckpointEnd(vbucket=3, opaque=6, key=b"checkpoint_end", value=bytes(8), tap_flags=ACK).encode(),
        TapReply().encode(Opcode.TAP_CONNECT),
    )
    assert consumer.acknowledged == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        (lambda: mutations(3, 1), "data of vbucket 3, which was not requested"),
        (lambda: mutations(3, 100), "data of vbucket 3, which was not requested"),
        (lambda: mutations(2, 100) + mutations(8, 1), "vbucket 8"),
        (lambda: begin(8), "backfill start of vbucket 8, which was not requested"),
        (lambda: close(2), "vbucket 2: backfill end while the stream is open"),
        (lambda: Get(key=b"k").encode(), "GET from a producer"),
        (lambda: DcpNoop().encode(), "DCP_NOOP from a producer"),
        (lambda: TapConnect(flags=0).encode(), "TAP_CONNECT from a producer"),
    ],
)
def test_broken_order_is_a_protocol_error(messages, found):
    consumer = make_consumer([2])
    with pytest.raises(RemoteProtocolError, match=found):
        consumer.give(messages())


# Acknowledgements


@pytest.mark.parametrize("many", [1, 200])
def test_changes_are_acknowledged_when_they_are_consumed(many):
    consumer = make_consumer()
    consumer.give(mutations(2, many), mutation(2, b"last", flags=ACK))
    opaque = next(NUMBERS) - 1
    assert not consumer.sent
    consumer.consume()
    assert consumer.acknowledged == [opaque]
    assert consumer.feed.queued_bytes == 0


def test_opaque_message_is_acknowledged_at_once_if_no_change_waits_before_it():
    consumer = make_consumer()
    consumer.give(begin(2, opaque=1))
    assert consumer.acknowledged == [1]
    consumer.give(mutations(2, 50), close(2, opaque=2))
    consumer.give(begin(3, opaque=3), mutations(3, 5), close(3, opaque=4))
    assert consumer.acknowledged == [1]
    consumer.consume(1)
    assert consumer.acknowledged == [1, 2]
    consumer.consume(1)
    assert consumer.acknowledged == [1, 2, 3, 4]


def test_only_messages_with_the_ack_flag_are_acknowledged():
    consumer = make_consumer()
    consumer.get(begin(2, flags=0), mutations(2, 100), TapFlush(opaque=7).encode())
    assert not consumer.sent


def test_an_earlier_connection_gets_no_acknowledgement():
    consumer = make_consumer()
    consumer.give(mutations(2, 50, flags=ACK))
    consumer.reconnect()
    consumer.give(begin(2, opaque=1, flags=0))
    consumer.consume()
    assert not consumer.sent


# Restarted vbuckets


def test_restarted_vbucket_is_rolled_back():
    consumer = make_consumer()
    assert not consumer.get(begin(2), begin(3))
    consumer.get(mutations(2, 1), close(2))
    found = consumer.get(begin(2), mutations(2, 1))
    assert found[0] == rollback(2, 1)
    assert found[1].history == 1
    assert not consumer.get(begin(3))


@pytest.mark.parametrize("many", [2, 100])
def test_flush_rolls_back_every_vbucket(many):
    consumer = make_consumer([2, 3])
    consumer.get(mutations(3, many))
    found = consumer.get(mutations(3, many), TapFlush(vbucket=0).encode(), mutations(3, many))
    assert [row.history for row in found if row.vbucket == 3] == [0] * many + [1] * (many + 1)
    assert [row for row in found if row.event == Event.ROLLBACK] == [rollback(2, 1), rollback(3, 1)]
    assert found[many : many + 2] == [rollback(2, 1), rollback(3, 1)]


def test_flush_of_an_empty_vbucket_makes_no_row():
    consumer = make_consumer([2, 3])
    flush = TapFlush(vbucket=0).encode()
    assert consumer.get(flush, flush) == [rollback(2, 1), rollback(3, 1)]
    assert consumer.get(mutations(3, 1), flush * 1000)[1:] == [rollback(3, 2)]
    assert consumer.get(mutations(2, 1), begin(2), begin(2))[1:] == [rollback(2, 2)]
    assert not consumer.get(flush)


@pytest.mark.parametrize("many", [2, 100])
def test_new_connection_rolls_back_only_the_vbuckets_that_it_announces(many):
    """ep-engine 3.1.6 announces nothing after a crash: the changes that it has sent are still valid."""
    consumer = make_consumer([2, 3, 4])
    consumer.get(begin(2), mutations(2, many), begin(3), mutations(3, many))
    consumer.reconnect()
    assert consumer.feed.can_resume
    assert consumer.feed.recovering == {2, 3, 4}
    assert not consumer.consume()
    found = consumer.get(begin(3), mutations(3, many), begin(4), mutations(4, 1))
    assert found[0] == rollback(3, 1)
    assert [row.history for row in found[1:]] == [1] * many + [0]
    assert consumer.feed.recovering
    assert [row.history for row in consumer.get(mutations(2, many))] == [0] * many
    assert not consumer.feed.recovering


@pytest.mark.parametrize("announced", [begin(2), TapFlush().encode()])
def test_vbucket_that_became_empty_is_rolled_back(announced):
    consumer = make_consumer([2])
    consumer.get(begin(2), mutations(2, 3), close(2))
    consumer.reconnect()
    assert consumer.get(announced, close(2) if announced == begin(2) else b"") == [rollback(2, 1)]


def test_stream_from_now_cannot_resume():
    feed = TapFeed(8, range(8), window=1, from_now=True)
    assert feed.can_resume
    feed.take_requests(lambda: 1)
    assert not feed.can_resume


# The end


def counts(**items):
    return {int(name.removeprefix("vb")): ItemCount(number) for name, number in items.items()}


def start_dump(before, messages, chosen=range(8)):
    """Return a consumer of a dump that has received these messages.

    Args:
        before: the counts at the start of the dump; None: the node has no counts.
        messages: messages of the dump.
        chosen: vbuckets of the dump.
    """
    consumer = TapConsumer(TapFeed(8, chosen, window=1 << 16, until_now=True))
    assert consumer.feed.dump.needs_counts
    assert not consumer.feed.dump.set_counts(before)
    consumer.feed.take_requests(lambda: 1)
    consumer.give(*messages)
    assert not consumer.feed.dump.needs_counts
    return consumer


@pytest.mark.parametrize(
    ("messages", "whole"),
    [
        ([opaque_message(0, TapOpaque.ENABLE_AUTO_NACK)], True),
        ([begin(2)], True),
        ([begin(2), mutations(2, 100), begin(3)], True),
        ([begin(2), mutations(2, 100), begin(3), close(2)], False),
        ([begin(2), mutations(2, 100), close(2), begin(3), close(3)], True),
        ([mutations(2, 3)], True),
    ],
)
def test_a_dump_without_counts_ends_with_its_connection(messages, whole):
    """ep-engine 2.5.1 mostly sends no CLOSE_BACKFILL. If it sends one, each started vbucket must have one."""
    consumer = start_dump(None, messages)
    assert consumer.feed.dump.record_connection_end()
    consumer.feed.dump.set_counts(None)
    assert consumer.feed.is_done == whole
    assert (consumer.feed.failures.newest is None) == whole


def test_dump_without_any_message_is_lost():
    assert not start_dump(None, []).feed.dump.record_connection_end()


@pytest.mark.parametrize("many", [3, 100])
@pytest.mark.parametrize(
    ("before", "after", "again"),
    [
        (counts(vb2=0, vb3=0), counts(vb2=0, vb3=0), []),
        (counts(vb2=3, vb3=3), counts(vb2=3, vb3=3), []),
        (counts(vb2=3, vb3=2), counts(vb2=9, vb3=9), []),  # stored meanwhile
        (counts(vb2=9, vb3=9), counts(vb2=3, vb3=2), []),  # removed meanwhile
        (counts(vb2=1000, vb3=3), counts(vb2=1000, vb3=3), [2]),
        (counts(vb2=1000, vb3=1000), counts(vb2=999, vb3=1000), [2, 3]),
        (counts(vb2=3, vb3=3, vb5=1), counts(vb2=3, vb3=3, vb5=1), [5]),
        (counts(vb5=1), counts(vb2=1000), []),  # only one of the two counts
        ({2: ItemCount(1, "a"), 5: ItemCount(0, "a")}, {2: ItemCount(1, "b"), 5: ItemCount(0, "b")}, [2]),
    ],
)
def test_dump_ends_when_the_counts_agree(many, before, after, again):
    consumer = start_dump(before, [begin(2), mutations(2, many), begin(3), mutations(3, many)])
    assert consumer.feed.dump.record_connection_end()
    assert consumer.feed.dump.needs_counts
    assert not consumer.feed.dump.set_counts(after)
    assert {row.event for row in consumer.consume()} == {Event.MUTATION}
    assert consumer.feed.is_done == (not again)
    assert (consumer.feed.failures.newest is None) == (not again)
    consumer.feed.forget_connection()
    consumer.feed.dump.set_counts(after)
    assert [(row.event, row.vbucket) for row in consumer.consume()] == [(Event.ROLLBACK, vb) for vb in again if vb != 5]
    requests = consumer.feed.take_requests(lambda: 2)
    assert [list(unpack_tap_options(each.flags, each.value).vbuckets or ()) for each in requests] == (
        [again] if again else []
    )


def deletions(vbucket, many):
    return b"".join(TapDelete(vbucket=vbucket, key=b"x%d" % number, cas=9).encode() for number in range(many))


@pytest.mark.parametrize("many", [3, 100])
def test_expired_documents_that_are_still_counted_cause_no_second_dump(many):
    """ep-engine 2.5.1 sends them as deletions, and deletes them afterwards."""
    consumer = start_dump(counts(vb2=2 * many), [begin(2), mutations(2, many), deletions(2, many)])
    consumer.feed.dump.record_connection_end()
    consumer.feed.dump.set_counts(counts(vb2=2 * many))
    assert not consumer.feed.is_done
    consumer.feed.forget_connection()
    consumer.feed.dump.set_counts(counts(vb2=many))
    assert consumer.feed.is_done
    assert {row.event for row in consumer.consume()} == {Event.MUTATION, Event.DELETION}


def test_lost_dump_resumes_with_the_incomplete_vbuckets():
    consumer = start_dump(counts(vb2=3, vb3=3), [begin(2), mutations(2, 3), begin(3), mutations(3, 1)])
    consumer.feed.forget_connection()
    assert consumer.feed.dump.needs_counts
    consumer.feed.dump.set_counts(counts(vb2=3, vb3=3))
    assert consumer.consume()[-1] == rollback(3, 1)
    (request,) = consumer.feed.take_requests(lambda: 2)
    assert unpack_tap_options(request.flags, request.value).vbuckets == (3,)
    consumer.give(begin(3), mutations(3, 3))
    consumer.feed.dump.record_connection_end()
    consumer.feed.dump.set_counts(counts(vb2=4, vb3=3))
    assert consumer.feed.is_done


def test_dump_skips_vbuckets_that_are_not_served():
    feed = TapFeed(8, range(3), window=1, until_now=True)
    assert feed.pending_ends == {0, 1, 2}
    feed.skip_vbucket(1)
    feed.set_end(0, 0)
    feed.set_end(2, 0)
    assert not feed.pending_ends
    (request,) = feed.take_requests(lambda: 1)
    assert unpack_tap_options(request.flags or 0, request.value).vbuckets == (0, 2)
    for vbucket in (0, 2):
        assert not feed.is_done
        feed.skip_vbucket(vbucket)
    assert feed.is_done


def test_lost_dump_that_was_complete_is_not_requested_again():
    consumer = start_dump(counts(vb2=3), [begin(2), mutations(2, 3)])
    consumer.feed.forget_connection()
    consumer.feed.dump.set_counts(counts(vb2=3))
    assert consumer.feed.is_done
    assert not consumer.feed.take_requests(lambda: 2)


@pytest.mark.parametrize("counted", [counts(vb2=5), None])
def test_dumps_without_progress_are_an_error(counted):
    consumer = start_dump(counted, [begin(2), mutations(2, 1)])
    found = r"vbucket 2: 1 of 5" if counted else "closed the connection during a backfill"
    for _ in range(5):
        consumer.feed.forget_connection()
        consumer.feed.dump.set_counts(counted)
        consumer.feed.take_requests(lambda: 2)
        consumer.give(begin(2), mutations(2, 1))
    consumer.feed.forget_connection()
    with pytest.raises(Unreachable, match=rf"5 consecutive TAP dumps made no progress: .*{found}"):
        consumer.feed.dump.set_counts(counted)


def test_dumps_with_progress_continue():
    """The documents on disk are behind the counts."""
    consumer = start_dump(counts(vb2=20), [begin(2), mutations(2, 1)])
    for many in range(2, 20):
        consumer.feed.forget_connection()
        consumer.feed.dump.set_counts(counts(vb2=20))
        assert not consumer.feed.is_done
        consumer.feed.take_requests(lambda: 2)
        consumer.give(begin(2), mutations(2, many))


# Is a stream complete?


def start_stream(before, *messages):
    consumer = TapConsumer(TapFeed(8, range(8), window=1 << 16))
    assert consumer.feed.dump.needs_counts
    assert not consumer.feed.dump.set_counts(before)
    consumer.feed.take_requests(lambda: 1)
    consumer.give(*messages)
    return consumer.feed


@pytest.mark.parametrize(
    "messages", [[mutations(3, 2)], [mutations(3, 2), mutations(2, 100)], [begin(2), mutations(2, 1), close(2)]]
)
def test_a_stream_without_a_backfill_is_reported(messages):
    feed = start_stream(counts(vb2=101, vb3=14, vb4=0), *messages)
    assert feed.dump.needs_counts
    warning = feed.dump.set_counts(counts(vb2=101, vb3=14, vb4=0))
    assert re.search(r"has \d+ of 115 documents \(vbucket 2: \d+ of 101, vbucket 3: \d of 14\)", warning)
    assert not feed.dump.needs_counts
    assert not feed.dump.is_unsettled


@pytest.mark.parametrize(
    ("branches", "messages", "lost"),
    [
        (("a", "b"), [], "vbuckets 2-3 than"),
        (("a", "b"), [begin(2), mutations(2, 3), close(2)], "vbuckets 3 than"),
        (("a", "a"), [], ""),
        (("", ""), [], ""),
    ],
)
def test_changes_that_a_crash_may_have_lost_are_reported_once(branches, messages, lost):
    """Couchbase 3.1.6 goes on after a crash without a rollback, and without the documents that it lost."""

    def count(branch):
        return {vbucket: ItemCount(0, branch) for vbucket in (2, 3, 4)}

    before, after = map(count, branches)
    consumer = TapConsumer(TapFeed(8, range(8), window=1 << 16))
    consumer.feed.dump.set_counts(before)
    consumer.feed.take_requests(lambda: 1)
    consumer.give(mutations(2, 3), mutations(3, 1))
    for warning in (lost, ""):
        consumer.feed.forget_connection()
        consumer.feed.dump.set_counts(after)
        consumer.feed.take_requests(lambda: 2)
        consumer.give(*messages)
        consumer.feed.dump.record_silence()
        found = consumer.feed.dump.set_counts(after)
        assert warning in found
        assert bool(found) == bool(warning)


def test_stream_that_sends_nothing_is_checked_after_a_silence():
    feed = start_stream(counts(vb2=1), opaque_message(0, TapOpaque.ENABLE_AUTO_NACK))
    assert not feed.dump.needs_counts
    assert feed.dump.is_unsettled
    feed.dump.record_silence()
    assert feed.dump.needs_counts
    assert "0 of 1 documents (vbucket 2: 0 of 1)" in feed.dump.set_counts(counts(vb2=1))


def test_vbucket_that_restarts_during_the_count_is_checked_at_its_end():
    """Its earlier documents are rolled back by then, so that it would seem to have none."""
    feed = start_stream(counts(vb2=41), begin(2), mutations(2, 41), close(2))
    assert feed.dump.needs_counts
    feed.receive(FrameReceiver(Slab(1 << 16), run_dialect=feed.dialect).feed(begin(2)))
    assert not feed.dump.set_counts(counts(vb2=41))
    feed.receive(FrameReceiver(Slab(1 << 16), run_dialect=feed.dialect).feed(mutations(2, 40) + close(2)))
    assert feed.dump.needs_counts
    assert "40 of 41 documents" in feed.dump.set_counts(counts(vb2=41))


def test_a_backfill_is_not_checked_before_its_end():
    feed = start_stream(counts(vb2=3), begin(2), mutations(2, 3), begin(3), close(2))
    assert not feed.dump.is_unsettled
    assert not feed.dump.needs_counts
    feed.receive(FrameReceiver(Slab(1 << 16), run_dialect=feed.dialect).feed(close(3)))
    assert feed.dump.needs_counts
    assert not feed.dump.set_counts(counts(vb2=3, vb3=0))


@pytest.mark.parametrize(
    ("before", "after"), [(None, counts(vb2=9)), (counts(vb2=9), None), (counts(vb2=1), counts(vb2=9))]
)
def test_stream_is_not_reported_without_certainty(before, after):
    assert not start_stream(before, begin(2), mutations(2, 1), close(2)).dump.set_counts(after)


@pytest.mark.parametrize("many", [3, 100])
def test_expired_documents_do_not_count_as_missing(many):
    feed = start_stream(counts(vb2=many + 2), begin(2), mutations(2, 2), deletions(2, many), close(2))
    assert not feed.dump.set_counts(counts(vb2=many + 2))


def test_stream_from_now_is_not_checked():
    feed = TapFeed(8, range(8), window=1, from_now=True)
    assert not feed.dump.needs_counts
    feed.take_requests(lambda: 1)
    assert not feed.dump.is_unsettled


def test_closed_connection_of_a_stream_without_an_end_is_lost():
    consumer = make_consumer()
    consumer.get(begin(2), close(2))
    assert not consumer.feed.dump.record_connection_end()


def test_temporary_refusal_is_recorded_and_lasting_refusal_is_raised():
    consumer = make_consumer()
    consumer.give(TapReply(status=Status.ETMPFAIL).encode(Opcode.TAP_CONNECT))
    assert isinstance(consumer.feed.failures.newest, TemporaryFailure)
    with pytest.raises(NotSupported, match="TAP_CONNECT refused, NOT_SUPPORTED"):
        consumer.give(TapReply(status=Status.NOT_SUPPORTED).encode(Opcode.TAP_CONNECT))
