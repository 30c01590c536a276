"""Takeover by a TAP consumer: the messages, the writers of the vbucket, and consumers that fail."""

from contextlib import contextmanager

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import Dialect, Feature, VbucketState
from penstock.wire.codec.flags import TapConnectFlag as F
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Noop, SetVbucket
from penstock.wire.messages.observe import StopPersistence
from penstock.wire.messages.tap import TapConnect, TapMessage, TapReply, TapVbucketSet
from tests.node.manifests import ALE, DEFAULT, make_beers, set_scopes
from tests.node.tap_client import abbreviate, connected_tap, set_tap_settings
from tests.node.wire_client import connected

ACTIVE, PENDING, DEAD, REPLICA = (
    VbucketState.ACTIVE,
    VbucketState.PENDING,
    VbucketState.DEAD,
    VbucketState.REPLICA,
)
TAKEOVER = F.BACKFILL | F.LIST_VBUCKETS | F.TAKEOVER_VBUCKETS
WITH_ACKS = TAKEOVER | F.SUPPORT_ACK


@pytest.fixture
def filled(client):
    """A client of a node whose vbuckets 0 and 1 have a document each."""
    client.set(b"a", b"1", vbucket=0)
    client.set(b"b", b"2", vbucket=1)
    return client


def taking_over(node, *vbuckets, flags=WITH_ACKS, **options):
    return connected_tap(node, b"taker", flags=flags, backfill=0, vbuckets=vbuckets, **options)


def describe(message):
    """Return a message in a few letters; a vbucket state as vbucket, = and its number."""
    if isinstance(message, TapVbucketSet):
        return f"{message.vbucket}={message.engine_private[-1]}"
    return abbreviate(message)


def describe_all(messages):
    return " ".join(map(describe, messages))


def get_state(node, vbucket=0):
    return node.buckets["default"].store.vbuckets[vbucket].history.state


@pytest.mark.parametrize("flags", [TAKEOVER, WITH_ACKS])
def test_consumer_owns_the_vbuckets_at_the_end(node, filled, flags):
    with taking_over(node, 0, 1, flags=flags) as tap:
        messages = describe_all(tap.read_to_end())
    start = "0opaque0 " if flags & F.SUPPORT_ACK else ""
    assert messages == f"{start}0=3 1=3 0opaque1 1opaque1 0+a 1+b 0opaque8 1opaque8 0=1 1=1"
    assert [get_state(node, vbucket) for vbucket in (0, 1, 2)] == [DEAD, DEAD, ACTIVE]
    assert filled.set(b"a").specific == Status.NOT_MY_VBUCKET


def read_to(tap, last):
    """Read and answer all messages up to the one of this description, and return their descriptions."""
    messages = [describe(tap.read_message())]
    while messages[-1] != last:
        messages.append(describe(tap.read_message()))
    return messages


def test_changes_during_the_copy_are_sent_before_the_active_state(node, filled):
    with taking_over(node, 0, acks=False) as tap:
        seen: list[str] = []
        while not seen or seen[-1] != "0+a":
            message = tap.read_message()
            seen.append(describe(message))
            if message.tap_flags & TapFlag.ACK and seen[-1] != "0+a":
                tap.answer(message)
        assert filled.set(b"late").specific == Status.SUCCESS  # the copy is unacknowledged: the vbucket is active
        tap.acks = True
        tap.answer(message)
        assert read_to(tap, "0=1") == ["0opaque8", "0+late", "0=1"]
        assert tap.ended()
    assert get_state(node) is DEAD


def test_refused_change_is_sent_again(node, filled):
    set_tap_settings(node, backoff_period=0.01)
    with taking_over(node, 0, acks=False) as tap:
        refused = False
        seen: list[str] = []
        while not seen or seen[-1] != "0=1":
            message = tap.read_message()
            seen.append(describe(message))
            if message.tap_flags & TapFlag.ACK:
                is_first = seen[-1] == "0+a" and not refused
                refused = refused or is_first
                tap.answer(message, Status.ETMPFAIL if is_first else Status.SUCCESS)
        assert seen.count("0+a") == 2
        assert tap.ended()


def test_consumer_that_refuses_the_pending_state_leaves_the_vbucket_active(node, filled):
    with taking_over(node, 0, acks=False) as tap:
        tap.answer(tap.read_message())
        message = tap.read_message()
        assert describe(message) == "0=3"
        tap.answer(message, Status.NOT_MY_VBUCKET)
        while not tap.ended():
            pass
    assert get_state(node) is ACTIVE
    assert filled.set(b"b").specific == Status.SUCCESS


def test_lost_connection_leaves_the_vbucket_dead(node, filled):
    with taking_over(node, 0, acks=False) as tap:
        while describe(message := tap.read_message()) != "0=1":
            tap.answer(message)
        tap.disconnect()
    assert get_state(node) is DEAD
    assert filled.status(SetVbucket(state=ACTIVE)) == Status.SUCCESS
    assert filled.set(b"b").specific == Status.SUCCESS


def test_state_change_by_others_ends_the_takeover(node, filled):
    with taking_over(node, 0, acks=False) as tap:
        tap.read_message()
        assert filled.status(SetVbucket(state=REPLICA)) == Status.SUCCESS
        tap.read_to_end()
    assert get_state(node) is REPLICA


def test_second_takeover_ends_the_connection(node, filled):
    with taking_over(node, 0, acks=False) as first:
        first.read_message()
        with connected_tap(node, b"other", flags=WITH_ACKS, backfill=0, vbuckets=(0,)) as second:
            assert describe_all(second.read_to_end()).endswith("0=1")
        first.read_to_end()
    assert get_state(node) is DEAD


@pytest.mark.parametrize(
    ("flags", "options", "status"),
    [
        (F.TAKEOVER_VBUCKETS, {}, Status.NOT_SUPPORTED),
        (TAKEOVER, {"vbuckets": ()}, Status.NOT_SUPPORTED),
        (TAKEOVER | F.DUMP, {"vbuckets": (0,)}, Status.NOT_SUPPORTED),
        (TAKEOVER | F.REGISTERED_CLIENT, {"vbuckets": (0,), "closed_only": True}, Status.NOT_SUPPORTED),
        (TAKEOVER, {"vbuckets": (0, 99)}, Status.NOT_MY_VBUCKET),
        (TAKEOVER, {"vbuckets": (0, 2)}, Status.NOT_MY_VBUCKET),
    ],
)
def test_impossible_takeovers_are_refused(node, client, flags, options, status):
    assert client.status(SetVbucket(vbucket=2, state=REPLICA)) == Status.SUCCESS
    with connected_tap(node, b"taker", flags=flags, backfill=0, **options) as tap:
        refusal = tap.receive()
        assert (refusal.opcode, refusal.specific) == (Opcode.TAP_CONNECT, status)
        assert tap.ended()
    assert get_state(node) is ACTIVE


def test_vbucket_with_collections_is_not_taken_over(node, client):
    client.hello(Feature.COLLECTIONS)
    set_scopes(client, 1, DEFAULT, make_beers(ALE))
    with taking_over(node, 0) as tap:
        assert tap.receive().specific == Status.NOT_SUPPORTED


def test_consumer_is_active_only_after_the_dead_state_is_on_disk(tmp_path):
    with Node.running(vbuckets=2, data_dir=tmp_path) as node, connected(node) as client:
        client.set(b"a", b"1")
        assert client.status(StopPersistence()) == Status.SUCCESS
        with taking_over(node, 0) as tap:
            assert "0=1" not in describe_all(tap.read_to_end())
        assert get_state(node) is DEAD


# Between two nodes


@contextmanager
def relaying(source, target, *vbuckets):
    """Pass the messages of a takeover to another node, and its answers back, until the source closes the connection."""
    with taking_over(source, *vbuckets, acks=False) as tap, connected(target) as receiver:
        yield lambda: relay(tap, receiver)


def relay(tap, receiver):
    while True:
        try:
            frame = tap.receive()
        except EOFError:
            return
        message = decode_frame(frame, Dialect.TAP)
        assert isinstance(message, TapMessage)
        if message.tap_flags & TapFlag.ACK:
            reply = receiver.ask(frame)
            tap.send(TapReply(opaque=frame.opaque, status=reply.specific).encode(frame.opcode))
        else:
            receiver.send(frame)


def test_vbucket_moves_to_another_node(node, filled):
    with Node.running(vbuckets=16) as target, connected(target) as other:
        assert other.status(SetVbucket(state=REPLICA)) == Status.SUCCESS
        history = target.buckets["default"].store.vbuckets[0].history
        for number in range(50):
            filled.set(b"%d" % number, b"v")
        filled.delete(b"7")
        with relaying(node, target, 0) as run:
            run()
        assert (get_state(node), get_state(target)) == (DEAD, ACTIVE)
        assert len(history.failover_log) == 1
        assert other.get(b"a").value == b"1"
        assert [number for number in range(50) if other.get(b"%d" % number).specific != Status.SUCCESS] == [7]
        assert other.set(b"a").specific == Status.SUCCESS
        assert filled.status(Noop()) == Status.SUCCESS


def test_takeover_request_has_the_recorded_form():
    request = TapConnect(key=b"take", flags=int(WITH_ACKS), value=bytes(8) + b"\0\1\0\2")
    assert request.encode()[:28].hex() == "8040000404000000000000140000000000000000000000000000001d"
