"""TAP messages that the node receives: their effects and the answers."""

from typing import Any

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import DelVbucket, Flush, GetVbucket, Noop, SetVbucket
from penstock.wire.messages.tap import (
    CreateCheckpoint,
    LastClosedCheckpoint,
    TapCheckpointEnd,
    TapCheckpointStart,
    TapDelete,
    TapFlush,
    TapMutation,
    TapOpaqueMessage,
    TapVbucketSet,
)
from tests.node import tap_client
from tests.node.tap_client import FUTURE, F, abbreviate, connected_tap, summarize
from tests.node.wire_client import connected

ACK = TapFlag.ACK
REV_7 = bytes.fromhex("0000000000000007 02")

node = tap_client.node  # fixture


@pytest.fixture
def client(node):
    with connected(node) as client:
        assert client.status(SetVbucket(vbucket=1, state=VbucketState.REPLICA)) == Status.SUCCESS
        yield client


def make_mutation(**fields):
    defaults: dict[str, Any] = {"key": b"k", "value": b"v", "cas": 0x99, "engine_private": REV_7, "tap_flags": ACK}
    return TapMutation(**(defaults | fields))


def make_opaque(command, **fields):
    return TapOpaqueMessage(**({"engine_private": command.to_bytes(4, "big"), "tap_flags": ACK} | fields))


def make_state(number, **fields):
    return TapVbucketSet(**({"engine_private": number.to_bytes(4, "big"), "tap_flags": ACK} | fields))


def make_checkpoint(cls, number, **fields):
    defaults = {"key": b"checkpoint", "value": number.to_bytes(8, "big"), "tap_flags": ACK, "flags": 0, "expiry": 0}
    return cls(**(defaults | fields))


def get_vbucket(node, number=0):
    return node.buckets["default"].store.vbuckets[number]


def test_mutation_is_stored_with_its_metadata(node, client):
    flags = ACK | TapFlag.NETWORK_BYTE_ORDER
    reply = client.ask(make_mutation(opaque=5, flags=0xDEADBEEF, expiry=4_000_000_000, tap_flags=flags))
    assert (reply.specific, reply.opaque, reply.value) == (Status.SUCCESS, 5, b"")
    assert get_vbucket(node).get(b"\0k")[:6] == (0x99, 0xDEADBEEF, 0, b"v", 4_000_000_000, 7)


def test_item_flags_are_reversed_without_network_byte_order(node, client):
    client.ask(make_mutation(flags=0x06000002))
    assert get_vbucket(node).get(b"\0k").flags == 0x02000006


@pytest.mark.parametrize(("private", "rev_seqno"), [(b"", 1), (b"\0\0", 1), (REV_7[:8], 7), (REV_7, 7), (REV_7 * 5, 7)])
def test_engine_private_data_can_have_any_length(node, client, private, rev_seqno):
    assert client.status(make_mutation(engine_private=private)) == Status.SUCCESS
    assert get_vbucket(node).get(b"\0k").rev_seqno == rev_seqno


def test_older_revision_is_stored_too(node, client):
    client.ask(make_mutation())
    assert client.status(make_mutation(value=b"old", cas=0x98, engine_private=bytes(7) + b"\3\0")) == Status.SUCCESS
    assert get_vbucket(node).get(b"\0k").value == b"old"


def test_mutation_without_cas_gets_one(node, client):
    client.ask(make_mutation(cas=0))
    assert get_vbucket(node).get(b"\0k").cas > 0


def test_success_without_ack_is_not_answered(node, client):
    client.send(make_mutation(tap_flags=0))
    client.send(make_mutation(key=b"l", tap_flags=0, ttl=0, opaque=3))
    refusal = client.receive()
    assert (refusal.specific, refusal.opaque) == (Status.EINVAL, 3), "failures are always answered"
    assert client.get(b"k").value == b"v"


@pytest.mark.parametrize("number", [3, 4, 99])
def test_unknown_vbucket_is_refused(client, number):
    client.ask(SetVbucket(vbucket=3, state=VbucketState.DEAD))
    for message in (make_mutation(vbucket=number), TapDelete(key=b"k", vbucket=number), make_opaque(1, vbucket=number)):
        reply = client.ask(message)
        assert (reply.specific, reply.value) == (Status.NOT_MY_VBUCKET, b"")


@pytest.mark.parametrize(
    "message", [make_mutation(ttl=0), TapDelete(key=b"k", ttl=0), TapFlush(ttl=0), make_opaque(1, ttl=0)]
)
def test_message_without_ttl_is_refused(client, message):
    assert client.status(message) == Status.EINVAL
    assert client.status(make_mutation(ttl=1)) == Status.SUCCESS


@pytest.mark.parametrize("message", [make_mutation(key=b"k" * 251), TapDelete(key=b"k" * 251, tap_flags=ACK)])
def test_long_key_is_refused(client, message):
    assert client.status(message) == Status.EINVAL


def test_missing_engine_private_data_is_refused(client):
    cut = bytearray(make_mutation(engine_private=b"").encode())
    cut[24:26] = b"\xff\xff"
    client.send(bytes(cut))
    assert client.receive().specific == Status.EINVAL


def test_deletion_is_stored(node, client):
    client.set(b"k", b"v")
    assert client.status(TapDelete(key=b"k", cas=0x99, engine_private=REV_7[:8], tap_flags=ACK)) == Status.SUCCESS
    assert client.get(b"k").specific == Status.KEY_ENOENT
    high = get_vbucket(node).changes.high_seqno
    assert client.status(TapDelete(key=b"k", cas=0x99, engine_private=REV_7[:8], tap_flags=ACK)) == Status.SUCCESS
    assert get_vbucket(node).changes.high_seqno == high, "the document was deleted already"


def test_flush_empties_all_vbuckets(node, client):
    client.set(b"k")
    client.ask(make_mutation(vbucket=1))
    assert client.status(TapFlush(tap_flags=ACK)) == Status.SUCCESS
    assert [get_vbucket(node, number).changes.items for number in (0, 1)] == [0, 0]


@pytest.mark.parametrize("command", [0, 2, 3, 7, 8, 99])
def test_opaque_messages_without_effect_are_accepted(node, client, command):
    client.set(b"k")
    assert client.status(make_opaque(command)) == Status.SUCCESS
    assert get_vbucket(node).changes.items == 1


def test_opaque_message_of_wrong_length_is_ignored(node, client):
    client.set(b"k")
    assert client.status(make_opaque(1, engine_private=b"\0\1")) == Status.SUCCESS
    assert get_vbucket(node).changes.items == 1


def test_start_of_a_backfill_empties_the_vbucket(node, client):
    client.ask(make_mutation(vbucket=1))
    assert client.status(make_opaque(1, vbucket=1)) == Status.SUCCESS
    assert get_vbucket(node, 1).changes.items == 0


def test_start_of_a_backfill_empties_no_active_vbucket_with_changes(node, client):
    assert client.status(make_opaque(1)) == Status.SUCCESS
    client.set(b"k")
    assert client.status(make_opaque(1)) == Status.NOT_MY_VBUCKET
    assert get_vbucket(node).changes.items == 1


def test_vbucket_state_is_set(client):
    assert client.status(make_state(3, vbucket=1)) == Status.SUCCESS
    assert client.ask(GetVbucket(vbucket=1)).value == b"\0\0\0\3"
    assert client.status(make_state(3, vbucket=99)) == Status.NOT_MY_VBUCKET


@pytest.mark.parametrize("private", [b"", b"\3", b"\0\0\0\0", b"\0\0\0\5", b"\0\0\0\0\3"])
def test_invalid_vbucket_state_ends_connection(client, private):
    client.send(make_state(0, engine_private=private))
    assert client.ended()


def test_receiver_follows_a_whole_session(client):
    """The producer fills a vbucket, and the copy takes over its checkpoints."""
    messages = [make_opaque(0), make_opaque(2), make_state(2, vbucket=1), make_opaque(1, vbucket=1)]
    messages += [make_mutation(vbucket=1, key=b"s%d" % number) for number in range(3)]
    messages += [make_opaque(8, vbucket=1), make_checkpoint(TapCheckpointStart, 5, vbucket=1)]
    messages += [make_mutation(vbucket=1, key=b"s9")]
    messages += [make_checkpoint(TapCheckpointEnd, 5, vbucket=1), make_checkpoint(TapCheckpointStart, 6, vbucket=1)]
    assert [client.status(message) for message in messages] == [Status.SUCCESS] * len(messages)
    assert client.ask(LastClosedCheckpoint(vbucket=1)).value == (5).to_bytes(8, "big")
    client.ask(make_state(1, vbucket=1))
    client.set(b"k", vbucket=1)
    assert client.ask(CreateCheckpoint(vbucket=1)).value[:8] == (7).to_bytes(8, "big")


def test_active_vbucket_keeps_its_own_checkpoints(client):
    for cls in (TapCheckpointStart, TapCheckpointEnd):
        assert client.status(make_checkpoint(cls, 9)) == Status.SUCCESS
        assert client.status(make_checkpoint(cls, 9, value=b"")) == Status.SUCCESS
    assert client.ask(LastClosedCheckpoint()).value[-1] == 1


def test_checkpoint_in_the_documented_form_is_accepted(client):
    id_5 = (5).to_bytes(8, "big")
    short_form = TapCheckpointStart(vbucket=1, engine_private=id_5, tap_flags=ACK)
    assert client.status(short_form) == Status.SUCCESS
    assert client.ask(LastClosedCheckpoint(vbucket=1)).value[-1] == 4


@pytest.mark.parametrize(
    "message",
    [
        make_checkpoint(TapCheckpointStart, 5, vbucket=1, value=b""),
        make_checkpoint(TapCheckpointStart, 5, vbucket=1, value=bytes(9)),
        make_checkpoint(TapCheckpointEnd, 5, vbucket=1),
    ],
)
def test_unexpected_checkpoint_ends_connection(client, message):
    client.send(message)
    assert client.ended()


@pytest.mark.parametrize(
    "message",
    [
        make_mutation(vbucket=1, engine_private=bytes((128, 0, 0, 0, 0, 0, 0, 0, 0))),
        make_checkpoint(TapCheckpointStart, 2**63, vbucket=1),
    ],
)
def test_number_without_successor_is_refused(client, message):
    """Otherwise the node would have no numbers left for its own changes and checkpoints."""
    assert client.status(message) == Status.ERANGE
    assert client.status(SetVbucket(vbucket=1, state=VbucketState.ACTIVE)) == Status.SUCCESS
    assert client.set(b"k", vbucket=1).specific == Status.SUCCESS
    assert client.status(CreateCheckpoint(vbucket=1)) == Status.SUCCESS


# From node to node


def test_relayed_change_has_a_lower_ttl(node, client):
    with connected_tap(node, flags=F.BACKFILL, backfill=FUTURE) as tap:
        assert tap.status(Noop()) == Status.SUCCESS
        client.ask(make_mutation(ttl=200))
        client.set(b"own")
        client.ask(make_mutation(key=b"spent", ttl=1))
        client.ask(make_mutation(key=b"last", ttl=2))
        changes = tap.read_messages(3)
    assert [(abbreviate(change), change.ttl) for change in changes] == [("0+k", 199), ("0+own", 255), ("0+last", 1)]


def test_documents_with_expired_ttl_are_not_counted(node, client):
    client.set(b"own")
    assert client.stats("vbucket-details 0")["vb_0:tap_items"] == "1"
    client.ask(make_mutation(key=b"spent", ttl=1))
    details = client.stats("vbucket-details 0")
    assert (details["vb_0:num_items"], details["vb_0:tap_items"]) == ("2", "0")


@pytest.mark.parametrize("messages", [[Flush()], [DelVbucket(), SetVbucket(state=VbucketState.ACTIVE)]])
def test_lost_history_removes_ttls_and_checkpoints(node, client, messages):
    client.ask(make_mutation(ttl=1))
    client.ask(CreateCheckpoint())
    for message in messages:
        assert client.status(message) == Status.SUCCESS
    client.set(b"own")
    assert client.ask(LastClosedCheckpoint()).value == bytes((0, 0, 0, 0, 0, 0, 0, 1))
    with connected_tap(node, flags=F.DUMP) as tap:
        assert [(abbreviate(message), message.ttl) for message in tap.read_to_end()][1] == ("0+own", 255)


def test_received_checkpoints_are_announced_at_once(node, client):
    """A consumer of the copy gets each checkpoint when it arrives, not with the next change."""
    flags = F.CHECKPOINT | F.LIST_VBUCKETS
    with connected_tap(node, flags=flags, vbuckets=(1,)) as tap:
        assert summarize(tap.read_messages(3)) == "0opaque2 1opaque1 1opaque8"
        client.ask(make_checkpoint(TapCheckpointStart, 5, vbucket=1))
        client.ask(make_mutation(vbucket=1))
        tap.read_until(b"k")
        client.ask(make_checkpoint(TapCheckpointEnd, 5, vbucket=1))
        client.ask(make_checkpoint(TapCheckpointStart, 6, vbucket=1))
        assert summarize(tap.read_messages(2)) == "1checkpointend5 1checkpointstart6"


def test_returned_change_is_not_relayed(node, client):
    with connected_tap(node, flags=F.BACKFILL, backfill=FUTURE) as tap:
        assert tap.status(Noop()) == Status.SUCCESS
        for _ in range(2):
            client.ask(make_mutation())
        client.set(b"own")
        assert summarize(tap.read_messages(2)) == "0+k 0+own"


def test_node_feeds_another_node(node, client):
    for number in range(300):
        client.set(b"key %d" % number, b"%d" % number, flags=number)
    client.delete(b"key 5")
    flags = F.SUPPORT_ACK | F.BACKFILL | F.DUMP | F.LIST_VBUCKETS
    with (
        Node.running(vbuckets=4) as copy,
        connected(copy) as receiver,
        connected_tap(node, flags=flags, acks=False, backfill=0, vbuckets=(0,)) as tap,
    ):
        try:
            while True:
                frame = tap.receive()
                receiver.send(frame)
                if int.from_bytes(frame.extras[2:4], "big") & ACK:
                    tap.send(receiver.receive())
        except EOFError:
            pass
        source, target = get_vbucket(node), get_vbucket(copy)
        assert target.changes.items == source.changes.items == 299
        for number in (0, 5, 150, 299):
            here, there = source.get(b"key %d" % number), target.get(b"key %d" % number)
            assert (here and here[:6]) == (there and there[:6])
