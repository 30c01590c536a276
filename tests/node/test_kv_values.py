"""Counters, and values that are extended."""

import struct
import time

import pytest

from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE, Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Append, Count, CountReply, Get, Hello, Noop, pack_features
from penstock.wire.values.snappy import deflate
from tests.node.wire_client import connected, find_session

S = Status
LAST = 2**64 - 1
MAKE_NONE = 2**32 - 1
LONG = b"k" * (MAX_KEY + 1)


def make_count(opcode=Opcode.INCREMENT, **fields):
    return Count(**{"key": b"k", "delta": 1, **fields}).encode(opcode)


def make_append(opcode=Opcode.APPEND, **fields):
    return Append(**{"key": b"k", **fields}).encode(opcode)


def read_number(reply: Frame) -> int:
    assert reply.specific == S.SUCCESS
    assert len(reply.value) == 8
    return int.from_bytes(reply.value, "big")


# Counters


def test_counter_starts_at_its_initial_value(client):
    created = client.ask(make_count(delta=3, initial=10))
    assert (read_number(created), created.extras, created.key, created.datatype) == (10, b"", b"", 0)
    stored = client.get(b"k")
    assert (stored.value, stored.cas, stored.extras) == (b"10", created.cas, bytes(4))
    counted = client.ask(make_count(delta=3))
    assert read_number(counted) == 13
    assert counted.cas > created.cas
    assert read_number(client.ask(make_count(Opcode.DECREMENT, delta=4))) == 9
    assert client.get(b"k").value == b"9"


COUNTS = [
    # Columns: stored value, opcode, delta, new value.
    (b"%d" % LAST, Opcode.INCREMENT, 1, 0),
    (b"%d" % LAST, Opcode.INCREMENT, LAST, LAST - 1),
    (b"5", Opcode.DECREMENT, 6, 0),
    (b"5", Opcode.DECREMENT, LAST, 0),
    (b"0", Opcode.DECREMENT, 1, 0),
    (b"007", Opcode.INCREMENT, 0, 7),
    (b" 5", Opcode.INCREMENT, 1, 6),
    (b"5 ", Opcode.INCREMENT, 1, 6),
    (b"\r\n\t\v\f+5\n", Opcode.DECREMENT, 1, 4),
    (b"5 apples", Opcode.INCREMENT, 1, 6),
    (b"0" * 5000 + b"5", Opcode.INCREMENT, 1, 6),
]


@pytest.mark.parametrize(("before", "opcode", "delta", "after"), COUNTS)
def test_counter_wraps_and_stops_at_its_limits(client, before, opcode, delta, after):
    client.set(b"k", before)
    assert read_number(client.ask(make_count(opcode, delta=delta))) == after
    assert client.get(b"k").value == b"%d" % after


@pytest.mark.parametrize("opcode", [Opcode.INCREMENT, Opcode.DECREMENT])
def test_counter_is_not_created_if_not_requested(client, opcode):
    assert client.status(make_count(opcode, expiry=MAKE_NONE)) == S.KEY_ENOENT
    assert client.status(Get(key=b"k")) == S.KEY_ENOENT
    client.set(b"k", b"5")
    assert client.status(make_count(opcode, expiry=MAKE_NONE)) == S.SUCCESS


def test_counter_keeps_its_expiry_and_flags(client):
    expiry = int(time.time()) + 1000
    client.set(b"k", b"5", flags=7, expiry=expiry)
    client.ask(make_count(expiry=5))
    meta = client.meta(b"k")
    assert (meta.expiry, meta.flags, meta.rev_seqno) == (expiry, 7, 2)


def test_relative_expiry_of_a_new_counter_counts_from_now(client):
    before = int(time.time())
    client.ask(make_count(expiry=1000))
    assert before + 1000 <= client.meta(b"k").expiry <= int(time.time()) + 1000


@pytest.mark.parametrize(
    "value",
    [b"", b" ", b"one", b"-1", b"+", b"+ 1", b"++1", b"1.5", b"1\0", b"\x001", b"%d" % 2**64, b"1" * 21, b"1" * 5000],
)
def test_value_that_is_no_number_is_refused(client, value):
    client.set(b"k", value)
    refused = client.ask(make_count())
    assert (refused.specific, refused.value) == (S.DELTA_BADVAL, b"")
    assert client.get(b"k").value == value


# Extended values


def test_append_and_prepend_extend_a_value(client):
    first = client.set(b"k", b"m", flags=7)
    second = client.ask(make_append(value=b"z"))
    third = client.ask(make_append(Opcode.PREPEND, value=b"a"))
    assert first.cas < second.cas < third.cas
    assert client.get(b"k") == Frame(Magic.RESPONSE, Opcode.GET, cas=third.cas, extras=b"\0\0\0\7", value=b"amz")
    assert client.status(make_append(value=b"")) == S.SUCCESS


def test_extended_value_keeps_its_expiry(client):
    expiry = int(time.time()) + 1000
    client.set(b"k", b"m", expiry=expiry)
    client.ask(make_append(value=b"z"))
    assert client.meta(b"k").expiry == expiry


@pytest.mark.parametrize("opcode", [Opcode.APPEND, Opcode.PREPEND])
def test_append_checks_the_cas(client, opcode):
    old, new = client.set(b"k", b"1").cas, client.set(b"k", b"2").cas
    assert client.status(make_append(opcode, value=b"3", cas=old)) == S.KEY_EEXISTS
    assert client.status(make_append(opcode, value=b"3", cas=new)) == S.SUCCESS


def test_value_can_be_extended_up_to_the_limit(client):
    client.set(b"k", bytes(MAX_VALUE - 1))
    assert client.status(make_append(value=b"12")) == S.E2BIG
    assert client.status(make_append(value=b"1")) == S.SUCCESS
    assert client.status(make_append(Opcode.PREPEND, value=b"1")) == S.E2BIG
    assert len(client.get(b"k").value) == MAX_VALUE


def test_compressed_value_can_be_extended_up_to_the_limit(node, client):
    """A document above the limit fits into no frame: it could neither be read nor streamed."""
    with connected(node) as modern:
        modern.hello(Feature.SNAPPY)
        assert modern.set(b"k", deflate(bytes(MAX_VALUE - 1)), datatype=Datatype.SNAPPY).specific == S.SUCCESS
    assert client.status(make_append(value=b"12")) == S.E2BIG
    assert client.status(make_append(value=b"1")) == S.SUCCESS
    assert len(client.get(b"k").value) == MAX_VALUE


def test_compressed_value_has_the_same_limit(node):
    with connected(node) as modern:
        modern.hello(Feature.SNAPPY)
        for nbytes, status in ((MAX_VALUE, S.SUCCESS), (MAX_VALUE + 1, S.EINVAL)):
            assert modern.set(b"k", deflate(bytes(nbytes)), datatype=Datatype.SNAPPY).specific == status


def test_extended_json_is_no_longer_json(node, client):
    find_session(node, client).datatypes = Datatype.JSON
    client.set(b"k", b"[1]", datatype=Datatype.JSON)
    assert client.get(b"k").datatype == Datatype.JSON
    assert client.status(make_append(value=b",", datatype=Datatype.JSON)) == S.SUCCESS
    assert (client.get(b"k").value, client.get(b"k").datatype) == (b"[1],", 0)


# Counters and extended values


REFUSED = [
    ("append to a missing document", make_append(value=b"v"), S.NOT_STORED),
    ("append with a cas to a missing document", make_append(value=b"v", cas=1), S.NOT_STORED),
    ("prepend to a missing document", make_append(Opcode.PREPEND, value=b"v"), S.NOT_STORED),
    ("quiet append to a missing document", make_append(Opcode.APPENDQ, value=b"v"), S.NOT_STORED),
    ("quiet prepend to a missing document", make_append(Opcode.PREPENDQ, value=b"v"), S.NOT_STORED),
    ("append to a long key", make_append(key=LONG), S.EINVAL),
    ("append without a key", make_append(key=b""), S.EINVAL),
    ("append in a missing vbucket", make_append(vbucket=16), S.NOT_MY_VBUCKET),
    ("append of JSON, not agreed on", make_append(value=b"1", datatype=1), S.EINVAL),
    ("quiet increment of a missing counter", make_count(Opcode.INCREMENTQ, expiry=MAKE_NONE), S.KEY_ENOENT),
    ("quiet decrement of a missing counter", make_count(Opcode.DECREMENTQ, expiry=MAKE_NONE), S.KEY_ENOENT),
    ("count of a long key", make_count(key=LONG), S.EINVAL),
    ("count without a key", make_count(key=b""), S.EINVAL),
    ("count in a missing vbucket", make_count(vbucket=16), S.NOT_MY_VBUCKET),
    ("count with a cas", make_count(cas=1), S.EINVAL),
    ("count with a value", make_count(value=b"1"), S.EINVAL),
    ("count with short extras", Frame(Magic.REQUEST, Opcode.INCREMENT, key=b"k", extras=bytes(16)), S.EINVAL),
]


@pytest.mark.parametrize(("case", "request_", "status"), REFUSED, ids=[row[0] for row in REFUSED])
def test_invalid_requests_are_refused(client, case, request_, status):
    client.send(request_, Noop())
    reply = client.receive()
    assert (reply.specific, reply.extras, reply.cas) == (status, b"", 0)
    assert client.receive().opcode == Opcode.NOOP
    assert client.status(Get(key=b"k")) == S.KEY_ENOENT


def test_quiet_commands_have_the_same_effect_without_a_reply(client):
    client.send(
        make_count(Opcode.INCREMENTQ, initial=5),
        make_count(Opcode.INCREMENTQ, delta=3),
        make_count(Opcode.DECREMENTQ, delta=1),
        make_append(Opcode.APPENDQ, value=b"1"),
        make_append(Opcode.PREPENDQ, value=b"2"),
        Get(key=b"k"),
    )
    assert client.receive().value == b"271"


def test_replies_have_tokens_once_agreed_on(client):
    client.ask(Hello(value=pack_features([Feature.MUTATION_SEQNO])))
    requests = (make_count(initial=5), make_count(), make_append(value=b"1"), make_count())
    replies = [client.ask(request) for request in requests]
    assert [struct.unpack(">QQ", reply.extras)[1] for reply in replies] == [1, 2, 3, 4]
    counted = decode_frame(replies[3])
    assert isinstance(counted, CountReply)
    assert (counted.seqno, read_number(replies[3])) == (4, 62)


def test_value_commands_are_counted_as_stores(client):
    client.send(make_count(Opcode.INCREMENTQ), make_append(Opcode.APPENDQ, value=b"1"))
    assert client.stats()["cmd_set"] == "2"
