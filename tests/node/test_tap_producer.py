"""TAP streams: their messages, acknowledgements, checkpoints and options."""

from dataclasses import replace

import pytest

from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import DelVbucket, Flush, Noop, SetVbucket
from penstock.wire.messages.tap import (
    ChangeVbFilter,
    CheckpointPersistence,
    CreateCheckpoint,
    LastClosedCheckpoint,
    ResetReplicationChain,
    TapConnect,
    TapMutation,
    pack_checkpoints,
)
from tests.node import tap_client
from tests.node.tap_client import BACKFILL, DUMP, FUTURE, F, abbreviate, connected_tap, set_tap_settings, summarize
from tests.node.wire_client import connected

node, client = tap_client.node, tap_client.client  # fixtures


def test_stream_sends_the_history_and_then_new_changes(node, client):
    with connected_tap(node) as tap:
        assert summarize(tap.read_messages(7)) == BACKFILL
        client.set(b"d", vbucket=1)
        client.delete(b"a", vbucket=0)
        assert summarize(tap.read_messages(2)) == "1+d 0-a"


def test_mutation_has_all_fields(node, client):
    item = client.get(b"a")
    with connected_tap(node, flags=F.FIX_FLAG_BYTEORDER) as tap:
        _, _, mutation, deletion, *_ = tap.read_messages(7)
    assert mutation == TapMutation(
        key=b"a",
        value=b"1",
        cas=item.cas,
        opaque=3,
        engine_private=bytes.fromhex("0000000000000001 00"),
        tap_flags=TapFlag.NETWORK_BYTE_ORDER,
        flags=0xDEADBEEF,
        expiry=4_000_000_000,
    )
    assert (deletion.engine_private, deletion.ttl, deletion.tap_flags) == (bytes.fromhex("0000000000000002"), 255, 0)


def test_item_flags_are_reversed_by_default(node, client):
    with connected_tap(node) as tap:
        mutation = tap.read_until(b"a")[-1]
    assert (mutation.flags, mutation.tap_flags) == (0xEFBEADDE, 0)


def test_keys_only_leaves_out_values(node, client):
    with connected_tap(node, flags=F.REQUEST_KEYS_ONLY) as tap:
        _, _, mutation, deletion, *_ = tap.read_messages(7)
    assert (mutation.key, mutation.value, mutation.tap_flags) == (b"a", b"", TapFlag.NO_VALUE)
    assert deletion.tap_flags == 0


def test_dump_ends_with_the_connection(node, client):
    with connected_tap(node, flags=DUMP, backfill=0) as tap:
        assert summarize(tap.read_to_end()) == BACKFILL


def test_dump_leaves_out_empty_vbuckets_and_copies(node, client):
    for vbucket, state in ((2, 1), (1, 2)):
        client.ask(SetVbucket(vbucket=vbucket, state=state))
    with connected_tap(node, flags=DUMP, backfill=0) as tap:
        assert summarize(tap.read_to_end()) == "0opaque1 0+a 0-b 0opaque8"


def test_stream_includes_copies(node, client):
    client.ask(SetVbucket(vbucket=1, state=2))
    with connected_tap(node) as tap:
        assert summarize(tap.read_messages(7)) == BACKFILL


@pytest.mark.parametrize(
    ("vbuckets", "expected"),
    [
        ((1,), "1opaque1 1+c 1opaque8"),
        ((1, 9, 3), "1opaque1 1+c 1opaque8"),
        ((9,), ""),
        ((), BACKFILL),
    ],
)
def test_list_of_vbuckets_limits_the_stream(node, client, vbuckets, expected):
    with connected_tap(node, flags=DUMP | F.LIST_VBUCKETS, backfill=0, vbuckets=vbuckets) as tap:
        assert summarize(tap.read_to_end()) == expected


@pytest.mark.parametrize("backfill", [FUTURE, 2**40])
def test_future_backfill_date_sends_only_new_changes(node, client, backfill):
    with connected_tap(node, flags=F.BACKFILL, backfill=backfill) as tap:
        assert tap.status(Noop()) == Status.SUCCESS
        client.set(b"d", vbucket=1)
        assert summarize([tap.read_message()]) == "1+d"


def test_past_backfill_date_sends_everything(node, client):
    with connected_tap(node, flags=F.BACKFILL, backfill=1_000_000) as tap:
        assert summarize(tap.read_messages(7)) == BACKFILL


# Acknowledgements


def test_stream_with_acks_requests_answers(node, client):
    with connected_tap(node, b"x", flags=F.SUPPORT_ACK) as tap:
        messages = tap.read_messages(8)
        assert summarize(messages) == "0opaque0 " + BACKFILL
        assert [message.opaque for message in messages] == list(range(1, 9))
        assert [message.tap_flags for message in messages] == [1, 1, 1, 0, 0, 1, 1, 1]
        client.set(b"d")
        assert (abbreviate(live := tap.read_message()), live.tap_flags) == ("0+d", TapFlag.ACK)


def test_unanswered_opaque_blocks_data(node, client):
    with connected_tap(node, flags=F.SUPPORT_ACK, acks=False) as tap:
        opaques = tap.read_messages(3)
        assert summarize(opaques) == "0opaque0 0opaque1 1opaque1"
        for opaque in opaques[:2]:
            tap.answer(opaque)
        assert tap.status(Noop()) == Status.SUCCESS
        assert tap.frames == []
        tap.answer(opaques[2])
        assert summarize(tap.read_messages(3)) == "0+a 0-b 1+c"


def test_dump_ends_when_all_messages_are_answered(node, client):
    with connected_tap(node, flags=F.SUPPORT_ACK | DUMP, backfill=0, acks=False) as tap:
        for opaque in tap.read_messages(3):
            tap.answer(opaque)
        data = tap.read_messages(3)
        assert tap.status(Noop()) == Status.SUCCESS
        assert tap.frames == []
        tap.answer(data[-1])
        ends = tap.read_messages(2)
        assert summarize(ends) == "0opaque8 1opaque8"
        tap.answer(ends[0])
        assert tap.status(Noop()) == Status.SUCCESS
        tap.answer(ends[1])
        assert tap.ended()


def test_window_limits_unanswered_messages(node, client):
    set_tap_settings(node, ack_interval=10, ack_window_size=2)
    for number in range(100):
        client.set(b"%d" % number, vbucket=1)
    with connected_tap(node, flags=F.SUPPORT_ACK, acks=False) as tap:
        for opaque in tap.read_messages(3):
            tap.answer(opaque)
        data = tap.read_messages(20)
        assert [message.opaque for message in data if message.tap_flags] == [11, 21]
        assert tap.status(Noop()) == Status.SUCCESS
        assert tap.frames == []
        tap.answer(data[7])  # this acknowledges all earlier messages too
        assert len(tap.read_messages(8)) == 8
        assert tap.status(Noop()) == Status.SUCCESS
        assert tap.frames == []


@pytest.mark.parametrize("status", [Status.EBUSY, Status.ETMPFAIL])
def test_temporarily_refused_change_is_sent_again(node, client, status):
    set_tap_settings(node, backoff_period=0)
    with connected_tap(node, flags=F.SUPPORT_ACK | F.BACKFILL, backfill=FUTURE, acks=False) as tap:
        tap.answer(tap.read_message())
        client.set(b"d", b"4")
        first = tap.read_message()
        tap.answer(first, status)
        again = tap.read_message()
        assert (abbreviate(again), again.value, again.opaque) == ("0+d", b"4", first.opaque + 1)
        tap.answer(again)
        client.set(b"e")
        assert abbreviate(tap.read_message()) == "0+e"


def test_refused_opaque_is_sent_again_first(node, client):
    set_tap_settings(node, backoff_period=0)
    with connected_tap(node, flags=F.SUPPORT_ACK | F.LIST_VBUCKETS, vbuckets=(1,), acks=False) as tap:
        _zero, one = tap.read_messages(2)
        tap.answer(one, Status.ETMPFAIL)
        again = tap.read_message()
        assert (abbreviate(again), again.opaque) == ("1opaque1", 3)
        tap.answer(again)
        assert abbreviate(tap.read_message()) == "1+c"


def test_superseded_refused_change_is_not_sent_again(node, client):
    set_tap_settings(node, backoff_period=0)
    with connected_tap(node, flags=F.SUPPORT_ACK | F.BACKFILL, backfill=FUTURE, acks=False) as tap:
        tap.answer(tap.read_message())
        client.set(b"d", b"old")
        old = tap.read_message()
        client.set(b"d", b"new")
        new = tap.read_message()
        tap.answer(old, Status.ETMPFAIL)
        tap.answer(new)
        client.set(b"e")
        assert (new.value, abbreviate(tap.read_message())) == (b"new", "0+e")


def test_backoff_delays_all_messages(node, client):
    set_tap_settings(node, backoff_period=1000)
    with connected_tap(node, flags=F.SUPPORT_ACK | F.BACKFILL, backfill=FUTURE, acks=False) as tap:
        tap.answer(tap.read_message(), Status.EBUSY)
        client.set(b"d")
        assert tap.status(Noop()) == Status.SUCCESS
        assert tap.frames == []


def test_any_other_status_ends_connection(node, client):
    with connected_tap(node, flags=F.SUPPORT_ACK, acks=False) as tap:
        tap.answer(tap.read_messages(3)[0], Status.EINVAL)
        assert tap.ended()


def test_answer_with_unknown_opaque_is_ignored(node, client):
    with connected_tap(node, flags=F.SUPPORT_ACK, acks=False) as tap:
        first = tap.read_message()
        tap.answer(replace(first, opaque=0x7777), Status.EINVAL)
        assert summarize(tap.read_messages(2)) == "0opaque1 1opaque1"
        assert tap.status(Noop()) == Status.SUCCESS


def test_consumer_that_never_answers_is_disconnected(node, client):
    set_tap_settings(node, ack_grace_period=0)
    with connected_tap(node, flags=F.SUPPORT_ACK, acks=False) as tap:
        assert summarize(tap.read_to_end()) in ("0opaque0 0opaque1 1opaque1", "")


def test_idle_connection_gets_noops(node, client):
    set_tap_settings(node, noop_interval=0.01)
    with connected_tap(node, flags=F.BACKFILL, backfill=FUTURE) as tap:
        for _ in range(2):
            frame = tap.receive()
            assert (frame.opcode, frame.opaque) == (Opcode.NOOP, 0)


# Checkpoints


def test_checkpoints_are_announced(node, client):
    flags = F.CHECKPOINT | F.LIST_VBUCKETS
    with connected_tap(node, flags=flags, vbuckets=(0,), checkpoints=((0, 1),)) as tap:
        assert summarize(tap.read_messages(4)) == "0opaque2 0checkpointstart2 0+a 0-b"
        reply = client.ask(CreateCheckpoint())
        assert reply.value == bytes.fromhex("0000000000000003 0000000000000002")
        assert summarize(tap.read_messages(2)) == "0checkpointend2 0checkpointstart3"
        client.set(b"d")
        assert summarize([tap.read_message()]) == "0+d"
        assert client.ask(LastClosedCheckpoint()).value[-1] == 2


def test_checkpoints_follow_the_backfill(node, client):
    with connected_tap(node, flags=F.CHECKPOINT | F.SUPPORT_ACK, checkpoints=()) as tap:
        expected = f"0opaque0 0opaque2 {BACKFILL} 0checkpointstart2 1checkpointstart2"
        messages = tap.read_messages(11)
        assert summarize(messages) == expected
        assert [message.tap_flags for message in messages[-2:]] == [TapFlag.ACK] * 2


def test_stream_starts_after_the_closed_checkpoint(node, client):
    client.ask(CreateCheckpoint())
    client.set(b"d")
    flags = F.CHECKPOINT | F.LIST_VBUCKETS
    with connected_tap(node, flags=flags, vbuckets=(0,), checkpoints=((0, 2),)) as tap:
        assert summarize(tap.read_messages(3)) == "0opaque2 0checkpointstart3 0+d"


@pytest.mark.parametrize("closed", [0, 3, 2**64 - 1])
def test_unknown_checkpoint_sends_everything(node, client, closed):
    client.ask(CreateCheckpoint())
    flags = F.CHECKPOINT | F.LIST_VBUCKETS
    with connected_tap(node, flags=flags, vbuckets=(0,), checkpoints=((0, closed),)) as tap:
        assert summarize(tap.read_messages(6)) == "0opaque2 0opaque1 0+a 0-b 0opaque8 0checkpointstart3"


def test_closed_only_stops_at_the_open_checkpoint(node, client):
    flags = F.REGISTERED_CLIENT | F.CHECKPOINT | F.LIST_VBUCKETS
    with connected_tap(node, b"r", flags, vbuckets=(0,), checkpoints=((0, 1),), closed_only=True) as tap:
        assert summarize(tap.read_messages(2)) == "0opaque2 0opaque3"
        client.set(b"d")
        client.ask(CreateCheckpoint())
        assert summarize(tap.read_messages(6)) == "0checkpointstart2 0+a 0-b 0+d 0checkpointend2 0opaque3"


def test_checkpoint_persistence_is_reported(client):
    assert client.status(CheckpointPersistence(checkpoint_id=1)) == Status.SUCCESS
    assert client.status(CheckpointPersistence(checkpoint_id=2)) == Status.ETMPFAIL
    assert client.status(CheckpointPersistence(checkpoint_id=1, vbucket=9)) == Status.NOT_MY_VBUCKET


# Changes of vbuckets


def test_flush_is_announced_once(node, client):
    with connected_tap(node) as tap:
        tap.read_messages(7)
        client.status(Flush())
        client.set(b"d")
        flush, change = tap.read_messages(2)
        assert summarize([flush, change]) == "0flush 0+d"
        assert flush.engine_private == b""


def test_flush_is_announced_to_a_stream_of_some_vbuckets(node, client):
    with connected_tap(node, flags=F.LIST_VBUCKETS, vbuckets=(1,)) as tap:
        assert "opaque1" in summarize(tap.read_messages(1))
        assert client.status(Flush()) == Status.SUCCESS
        client.set(b"d", vbucket=0)
        client.set(b"e", vbucket=1)
        assert summarize(tap.read_until(b"e")).endswith("0flush 1+e")


def test_stream_follows_created_and_deleted_vbuckets(node, client):
    with connected_tap(node) as tap:
        tap.read_messages(7)
        client.ask(SetVbucket(vbucket=2, state=1))
        assert summarize(tap.read_messages(2)) == "2opaque1 2opaque8"
        client.set(b"d", vbucket=2)
        assert summarize([tap.read_message()]) == "2+d"
        client.ask(DelVbucket(vbucket=2))
        client.set(b"e")
        assert summarize([tap.read_message()]) == "0+e"


def test_change_filter_selects_other_vbuckets(node, client):
    flags = F.CHECKPOINT | F.LIST_VBUCKETS | F.SUPPORT_ACK
    with connected_tap(node, b"x", flags, vbuckets=(0,), checkpoints=((0, 1),)) as tap:
        assert summarize(tap.read_messages(5)) == "0opaque0 0opaque2 0checkpointstart2 0+a 0-b"
        changed = ChangeVbFilter(key=b"x", value=pack_checkpoints([(1, 0)]))
        assert client.stats("tap")["eq_tapq:x:vb_filter"] == "0"
        assert client.status(changed) == Status.SUCCESS
        assert client.stats("tap")["eq_tapq:x:vb_filter"] == "1"
        assert summarize(tap.read_messages(5)) == "0opaque4 1opaque1 1+c 1opaque8 1checkpointstart2"
        client.set(b"d", vbucket=0)
        client.set(b"e", vbucket=1)
        assert summarize([tap.read_message()]) == "1+e"


def test_empty_filter_selects_all_vbuckets(node, client):
    with connected_tap(node, b"x", F.LIST_VBUCKETS, vbuckets=(0,)) as tap:
        assert summarize(tap.read_messages(4)) == "0opaque1 0+a 0-b 0opaque8"
        assert client.status(ChangeVbFilter(key=b"x", value=pack_checkpoints([]))) == Status.SUCCESS
        assert summarize(tap.read_messages(4)) == "0opaque4 1opaque1 1+c 1opaque8"
        client.set(b"d", vbucket=0)
        assert summarize([tap.read_message()]) == "0+d"


def test_waiting_notices_are_limited(node, client):
    set_tap_settings(node, backoff_period=1000)
    with connected_tap(node, b"x", F.SUPPORT_ACK, acks=False) as tap:
        tap.answer(tap.read_message(), Status.EBUSY)
        assert tap.status(Noop()) == Status.SUCCESS
        for _ in range(40):
            assert client.status(ResetReplicationChain()) == Status.SUCCESS
        tap.read_to_end()
    assert client.stats("tap")["ep_tap_count"] == "0"


def test_unsent_flushes_are_announced_once(node, client):
    set_tap_settings(node, ack_interval=1, ack_window_size=1)
    with connected_tap(node, b"x", F.SUPPORT_ACK | F.BACKFILL, backfill=FUTURE, acks=False) as tap:
        first = tap.read_message()
        for _ in range(10):
            assert client.status(Flush()) == Status.SUCCESS
        client.set(b"d")
        tap.acks = True
        tap.answer(first)
        assert summarize(tap.read_messages(2)) == "0flush 0+d"


@pytest.mark.parametrize(
    ("key", "value", "status"),
    [(b"y", pack_checkpoints([]), Status.KEY_ENOENT), (b"x", b"\0\2\0\0", Status.EINVAL)],
)
def test_invalid_filter_is_refused(node, client, key, value, status):
    with connected_tap(node, b"x") as tap:
        tap.read_message()
        assert client.status(ChangeVbFilter(key=key, value=value)) == status


def test_reset_replication_chain_restarts_streams(node, client):
    with connected_tap(node) as tap:
        assert summarize(tap.read_messages(7)) == BACKFILL
        assert client.status(ResetReplicationChain()) == Status.SUCCESS
        assert summarize(tap.read_messages(7)) == BACKFILL


# Invalid and unsupported options


@pytest.mark.parametrize("value", [b"", b"\0\0\0\0"])
def test_truncated_backfill_date_ends_connection_without_reply(node, value):
    with connected(node) as client:
        client.send(TapConnect(key=b"x", flags=int(F.BACKFILL), value=value))
        assert client.ended()


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (F.LIST_VBUCKETS, b""),
        (F.LIST_VBUCKETS, b"\0\2\0\1"),
        (F.CHECKPOINT, bytes.fromhex("0002 0000 0000000000000001")),
    ],
)
def test_unsupported_options_end_connection(node, flags, value):
    with connected(node) as client:
        client.send(TapConnect(key=b"x", flags=int(flags), value=value))
        refusal = client.receive()
        assert (refusal.opcode, refusal.specific) == (Opcode.TAP_CONNECT, Status.NOT_SUPPORTED)
        assert client.ended()


@pytest.mark.parametrize(("flags", "value"), [(F(0), b"junkjunk"), (F(0), b""), (F.CHECKPOINT, b"")])
def test_options_without_effect_are_ignored(node, client, flags, value):
    with connected(node) as other:
        other.send(TapConnect(key=b"x", flags=int(flags) | 0xFFFFFE00, value=value))
        assert other.receive().opcode == Opcode.TAP_OPAQUE


def test_many_changes_are_encoded_in_columns(node, client):
    for number in range(5000):
        client.send(
            Frame(Magic.REQUEST, Opcode.SETQ, 1, extras=bytes(8), key=b"key %d" % number, value=b"x" * (number % 50))
        )
    client.ask(Noop())
    with connected_tap(node, flags=F.SUPPORT_ACK | F.LIST_VBUCKETS | DUMP, backfill=0, vbuckets=(1,)) as tap:
        messages = tap.read_to_end()
    changes = [message for message in messages if isinstance(message, TapMutation)]
    assert [change.key for change in changes] == [b"c"] + [b"key %d" % number for number in range(5000)]
    assert [message.opaque for message in messages] == list(range(1, len(messages) + 1))
    assert all(message.tap_flags & TapFlag.ACK for message in messages if message.opaque % 1000 == 1)
    assert changes[-1].tap_flags & TapFlag.ACK


def test_statistics_describe_the_connection(node, client):
    stats = client.stats("tap")
    assert stats["ep_tap_count"] == "0"
    assert (stats["ep_tap_noop_interval"], stats["ep_tap_ack_interval"]) == ("200", "1000")
    with connected_tap(node, b"x") as tap:
        tap.read_messages(7)
        stats = client.stats("tap")
        assert (stats["ep_tap_queue_drain"], stats["ep_tap_deletes"]) == ("3", "1")
        assert stats["eq_tapq:x:stream_0_state"] == "live"


def test_checkpoint_statistics_are_returned(node, client):
    client.ask(CreateCheckpoint())
    client.set(b"d")
    with connected_tap(node, b"x") as tap:
        tap.read_message()
        assert client.stats("checkpoint 0") == {
            **{"vb_0:state": "active", "vb_0:open_checkpoint_id": "3", "vb_0:last_closed_checkpoint_id": "2"},
            **{"vb_0:num_tap_cursors": "1", "vb_0:num_checkpoint_items": "4", "vb_0:num_open_checkpoint_items": "1"},
            **{"vb_0:num_checkpoints": "2", "vb_0:num_items_for_persistence": "0", "vb_0:persisted_checkpoint_id": "2"},
        }
        assert client.stats("checkpoint")["vb_1:num_checkpoint_items"] == "1"


def test_idle_node_has_no_backlog(node, client):
    with connected_tap(node, b"x", flags=F.SUPPORT_ACK) as tap:
        tap.read_messages(8)
        assert tap.status(Noop()) == Status.SUCCESS
        stats = client.stats("tap")
        assert stats["eq_tapq:x:type"] == "producer"
        assert stats["ep_tap_count"] == "1"
        for name in ("items_remaining", "total_backlog_size", "streams_ready", "unacked_bytes"):
            assert stats[f"ep_tap_{name}"] == "0", name
        assert client.stats("tapagg")[":total:count"] == "1"
