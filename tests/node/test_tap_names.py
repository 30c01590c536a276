"""TAP consumers with a name: a new connection replaces the older one and continues at its position."""

from penstock.node.tap import tap_commands as tap_module
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import CloseProducer, Flush, Noop
from penstock.wire.messages.tap import (
    DeregisterTapClient,
    TapConnect,
)
from tests.node import tap_client
from tests.node.tap_client import BACKFILL, DUMP, FUTURE, F, abbreviate, connected_tap, set_tap_settings, summarize
from tests.node.wire_client import connected

node, client = tap_client.node, tap_client.client  # fixtures


def test_new_connection_ends_the_older_one_of_its_name(node, client):
    with connected_tap(node, b"x") as older, connected_tap(node, b"x") as newer:
        assert summarize(newer.read_messages(7)) == BACKFILL
        assert summarize(older.read_to_end()) in (BACKFILL, "")


def test_connections_without_a_name_are_independent(node, client):
    with connected_tap(node) as one, connected_tap(node) as other:
        assert summarize(one.read_messages(7)) == summarize(other.read_messages(7)) == BACKFILL


def test_second_connect_starts_from_zero(node, client):
    with connected_tap(node, b"x", flags=F.BACKFILL, backfill=FUTURE) as tap:
        tap.connect(b"x")
        assert summarize(tap.read_messages(7)) == BACKFILL
    both = TapConnect(key=b"y", flags=0).encode() + TapConnect(key=b"z", flags=int(DUMP), value=bytes(8)).encode()
    with connected_tap(node, b"x", flags=F.BACKFILL, backfill=FUTURE) as tap:
        tap.send(both)
        assert summarize(tap.read_to_end()) == BACKFILL


def test_registered_client_continues_at_its_position(node, client):
    flags = F.REGISTERED_CLIENT | F.SUPPORT_ACK
    with connected_tap(node, b"r", flags) as tap:
        tap.read_messages(8)
        client.set(b"d")
        assert abbreviate(tap.read_message()) == "0+d"
        tap.acks = False
        client.set(b"e")
        assert abbreviate(tap.read_message()) == "0+e"
        assert tap.status(Noop()) == Status.SUCCESS  # now the node has the answers
    client.set(b"f")
    with connected_tap(node, b"r", flags) as tap:
        assert summarize(tap.read_messages(3)) == "0opaque0 0+e 0+f", "e was not answered"


def test_second_connection_of_a_registered_client_continues_the_first(node, client):
    flags = F.REGISTERED_CLIENT | F.SUPPORT_ACK
    with connected_tap(node, b"r", flags) as first:
        first.read_messages(8)
        first.acks = False
        for key in (b"d", b"e"):
            client.set(key)
        answered, _ = first.read_messages(2)
        first.answer(answered)
        assert first.status(Noop()) == Status.SUCCESS
        with connected_tap(node, b"r", flags) as second:
            assert summarize(second.read_messages(2)) == "0opaque0 0+e", "d was answered, e was not"
            assert first.ended()
            client.set(b"f")
            assert abbreviate(second.read_message()) == "0+f"
            assert second.status(Noop()) == Status.SUCCESS
    client.set(b"g")
    with connected_tap(node, b"r", flags) as third:
        assert summarize(third.read_messages(2)) == "0opaque0 0+g"
    assert [*node.buckets["default"].tap.clients] == [b"r"]


def test_checkpoint_list_is_optional(node, client):
    """cbadm-tap-registration 2.x sends a date and the byte of REGISTERED_CLIENT, but no list of checkpoints."""
    flags = F.BACKFILL | F.CHECKPOINT | F.REGISTERED_CLIENT | F.SUPPORT_ACK
    with connected_tap(node, b"r", flags, backfill=0xFFFFFFFF, closed_only=True) as tap:
        assert summarize(tap.read_messages(2)) == "0opaque0 0opaque2"
    assert node.buckets["default"].tap.clients[b"r"].is_registered


def test_registered_client_continues_after_a_forced_end(node, client):
    with connected_tap(node, b"r", F.REGISTERED_CLIENT) as tap:
        tap.read_messages(7)
        assert client.status(CloseProducer(key=b"r")) == Status.SUCCESS
        assert tap.ended()
    client.set(b"d")
    with connected_tap(node, b"r", F.REGISTERED_CLIENT) as tap:
        assert abbreviate(tap.read_message()) == "0+d"


def test_client_with_a_replaced_connection_is_kept(node, client):
    set_tap_settings(node, keepalive=1000)
    with connected_tap(node, b"x") as first:
        first.read_messages(7)
        with connected_tap(node, b"x") as second:
            assert first.ended()
            assert second.status(Noop()) == Status.SUCCESS
            assert node.buckets["default"].tap.clients[b"x"].forget_timer is None, "the client is connected"


def test_interrupted_backfill_continues(node, client):
    set_tap_settings(node, ack_interval=10, ack_window_size=2)
    for number in range(100):
        client.set(b"%d" % number, vbucket=1)
    flags = F.REGISTERED_CLIENT | F.SUPPORT_ACK | F.LIST_VBUCKETS
    with connected_tap(node, b"r", flags, vbuckets=(1,)) as tap:
        messages = tap.read_messages(30)
        assert tap.status(Noop()) == Status.SUCCESS
    answered = next(message for message in reversed(messages) if message.tap_flags & TapFlag.ACK)
    with connected_tap(node, b"r", flags, vbuckets=(1,)) as tap:
        first, *changes, last = tap.read_until(b"99")
        assert (abbreviate(first), abbreviate(last)) == ("0opaque0", "1+99")
        assert changes[0].key == b"%d" % (int(answered.key) + 1)
        assert abbreviate(tap.read_message()) == "1opaque8"


def test_refused_changes_are_sent_on_the_next_connection(node, client):
    set_tap_settings(node, backoff_period=1000)
    flags = F.REGISTERED_CLIENT | F.SUPPORT_ACK | F.BACKFILL
    with connected_tap(node, b"r", flags, backfill=FUTURE, acks=False) as tap:
        tap.answer(tap.read_message())
        for key in (b"d", b"e"):
            client.set(key)
        refused, other = tap.read_messages(2)
        tap.answer(refused, Status.ETMPFAIL)
        tap.answer(other)
        assert tap.status(Noop()) == Status.SUCCESS
    with connected_tap(node, b"r", flags, backfill=FUTURE) as tap:
        assert summarize(tap.read_messages(2)) == "0opaque0 0+d"


def test_refused_changes_of_an_unrequested_vbucket_are_dropped(node, client):
    set_tap_settings(node, backoff_period=1000)
    flags = F.REGISTERED_CLIENT | F.SUPPORT_ACK | F.BACKFILL
    with connected_tap(node, b"r", flags, backfill=FUTURE, acks=False) as tap:
        tap.answer(tap.read_message())
        client.set(b"d")
        tap.answer(tap.read_message(), Status.ETMPFAIL)
        assert tap.status(Noop()) == Status.SUCCESS
    with connected_tap(node, b"r", flags | F.LIST_VBUCKETS, backfill=FUTURE, vbuckets=(1,)) as tap:
        client.set(b"e", vbucket=1)
        assert summarize(tap.read_messages(2)) == "0opaque0 1+e"


def test_deregistered_client_is_forgotten(node, client):
    with connected_tap(node, b"r", F.REGISTERED_CLIENT) as tap:
        tap.read_messages(7)
    assert client.status(DeregisterTapClient(key=b"r")) == Status.SUCCESS
    assert client.status(DeregisterTapClient(key=b"r")) == Status.SUCCESS
    with connected_tap(node, b"r", F.REGISTERED_CLIENT) as tap:
        assert summarize(tap.read_messages(7)) == BACKFILL
        client.status(DeregisterTapClient(key=b"r"))
        assert tap.ended()
    assert node.buckets["default"].tap.clients == {}


def test_named_client_can_return_within_keepalive(node, client):
    set_tap_settings(node, keepalive=1000)
    with connected_tap(node, b"x") as tap:
        tap.read_messages(7)
        assert tap.status(Noop()) == Status.SUCCESS
    client.set(b"d")
    with connected_tap(node, b"x") as tap:
        assert summarize([tap.read_message()]) == "0+d"


def test_late_named_client_starts_from_zero(node, client):
    with connected_tap(node, b"x") as tap:
        tap.read_messages(7)
    with connected_tap(node, b"x") as tap:
        assert summarize(tap.read_messages(7)) == BACKFILL


def test_client_of_a_lost_history_starts_from_zero(node, client):
    with connected_tap(node, b"r", F.REGISTERED_CLIENT) as tap:
        tap.read_messages(7)
        assert tap.status(Noop()) == Status.SUCCESS
    client.status(Flush())
    client.set(b"d")
    with connected_tap(node, b"r", F.REGISTERED_CLIENT) as tap:
        assert summarize(tap.read_messages(5)) == "0opaque1 1opaque1 0+d 0opaque8 1opaque8"


def test_kept_clients_are_limited(node, client, monkeypatch):
    monkeypatch.setattr(tap_module, "MAX_CLIENTS", 1)
    with connected_tap(node, b"r", F.REGISTERED_CLIENT) as tap, connected(node) as other:
        tap.read_messages(7)
        other.send(TapConnect(key=b"s", flags=int(F.REGISTERED_CLIENT)))
        assert other.receive().specific == Status.ENOMEM
        assert other.ended()
        tap.connect(b"r", F.REGISTERED_CLIENT)
        assert tap.status(Noop()) == Status.SUCCESS
