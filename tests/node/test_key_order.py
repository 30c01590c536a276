"""Snapshots out of order (OSO): a stream of one collection begins with its documents in the order of their keys."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.node import Node
from penstock.store.documents import key_order
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import OsoFlag, StreamFlag
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.statuses import Status as S
from penstock.wire.codec.statuses import StreamEndReason
from penstock.wire.messages.dcp import (
    Deletion,
    Mutation,
    OsoSnapshot,
    SeqnoAdvanced,
    SnapshotMarker,
    StreamEnd,
    SystemEvent,
)
from tests.examples import scaled
from tests.node.manifests import ALE, ALES, DEFAULT, LAGER, LAGERS, make_beers, make_key, set_scopes
from tests.node.wire_client import connected

OPTION = "enable_out_of_order_snapshots"
FILTER = json.dumps({"collections": [f"{ALES:x}"]}).encode()


@pytest.fixture
def writer(node):
    """A client of a bucket with two collections. The newest change is in another collection than ALES."""
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS)
        set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER))
        for key in (b"c", b"a", b"d", b"b", b"a"):
            client.set(make_key(ALES, key), b"ale")
        client.delete(make_key(ALES, b"d"))
        client.set(make_key(LAGERS, b"a"), b"lager")
        yield client


@pytest.fixture
def consumer(node):
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open("consumer")
        assert client.control("enable_noop", "true") == S.SUCCESS
        yield client


def describe(message):
    """Return a message in a few letters."""
    match message:
        case Mutation():
            return f"+{message.key[1:].decode()}"
        case Deletion():
            return f"-{message.key[1:].decode()}"
        case OsoSnapshot():
            return f"out of order {OsoFlag(message.flags).name}"
        case SnapshotMarker():
            return f"{message.start_seqno}..{message.end_seqno}"
        case SeqnoAdvanced():
            return f"to {message.by_seqno}"
        case SystemEvent():
            return f"event {message.event}"
        case StreamEnd():
            return StreamEndReason(message.reason).name
    raise AssertionError(message)


def read(consumer, count):
    return [describe(consumer.message()) for _ in range(count)]


def read_all(consumer):
    """Return the messages of a stream up to its end."""
    return [describe(message) for message in consumer.changes()]


IN_ORDER_OF_KEYS = ["out of order START", "event 0", "+a", "+b", "+c", "-d"]


@pytest.fixture
def high(node, writer):
    """The newest seqno of the vbucket."""
    return node.buckets["default"].store.vbuckets[0].changes.high_seqno


@pytest.mark.parametrize(("value", "advances"), [("true", False), ("true_with_seqno_advanced", True)])
def test_stream_begins_with_the_keys_in_their_order(writer, consumer, high, value, advances):
    assert consumer.control(OPTION, value) == S.SUCCESS
    assert consumer.stream(value=FILTER).specific == S.SUCCESS
    expected = [*IN_ORDER_OF_KEYS, *([f"to {high}"] if advances else []), "out of order END"]
    assert read(consumer, len(expected)) == expected
    writer.set(make_key(ALES, b"a"), b"new")
    assert read(consumer, 2) == [f"{high + 1}..{high + 1}", "+a"]


def test_stream_continues_behind_the_keys(node, writer, consumer, high):
    assert consumer.control(OPTION, "true") == S.SUCCESS
    reply = consumer.stream(value=FILTER)
    vbuuid = int.from_bytes(reply.value[:8], "big")
    read(consumer, 7)
    assert consumer.close_stream() == S.SUCCESS
    writer.set(make_key(ALES, b"z"), b"new")
    assert consumer.stream(start=high, vbuuid=vbuuid, value=FILTER).specific == S.SUCCESS
    marker = consumer.message()
    assert (marker.start_seqno, marker.end_seqno) == (high, high + 1)
    assert read(consumer, 1) == ["+z"]


def test_stream_to_the_newest_change_ends_behind_the_keys(writer, consumer):
    assert consumer.control(OPTION, "true") == S.SUCCESS
    assert consumer.stream(value=FILTER, flags=StreamFlag.TO_LATEST).specific == S.SUCCESS
    assert read_all(consumer) == [*IN_ORDER_OF_KEYS, "out of order END"]


ORDERED = [
    ("no filter", {}),
    ("two collections", {"value": json.dumps({"collections": [f"{ALES:x}", f"{LAGERS:x}"]}).encode()}),
    ("a scope", {"value": json.dumps({"scope": "8"}).encode()}),
    ("an end inside", {"value": FILTER, "end": 5}),
    ("a start inside", {"value": FILTER, "start": 4}),
]


@pytest.mark.parametrize(("case", "request_fields"), ORDERED, ids=[row[0] for row in ORDERED])
def test_other_streams_are_ordered(node, writer, consumer, case, request_fields):
    assert consumer.control(OPTION, "true") == S.SUCCESS
    if "start" in request_fields:
        (entry, *_) = node.buckets["default"].store.vbuckets[0].history.failover_log
        request_fields = {**request_fields, "vbuuid": entry.vbuuid}
    assert consumer.stream(**request_fields).specific == S.SUCCESS
    assert isinstance(consumer.message(), SnapshotMarker)


def test_stream_without_the_option_is_ordered(writer, consumer):
    assert consumer.stream(value=FILTER).specific == S.SUCCESS
    assert isinstance(consumer.message(), SnapshotMarker)


def test_large_collections_are_ordered(writer, consumer, monkeypatch):
    monkeypatch.setattr(key_order, "MOST_KEYS", 3)
    assert consumer.control(OPTION, "true") == S.SUCCESS
    assert consumer.stream(value=FILTER).specific == S.SUCCESS
    assert isinstance(consumer.message(), SnapshotMarker)


def test_flow_control_counts_the_keys(writer, consumer):
    assert consumer.control(OPTION, "true") == S.SUCCESS
    assert consumer.control("connection_buffer_size", "1") == S.SUCCESS
    assert consumer.stream(value=FILTER, flags=StreamFlag.TO_LATEST).specific == S.SUCCESS
    seen: list[str] = []
    while not seen or seen[-1] != "OK":
        frame = consumer.receive()
        seen.append(describe(decode_frame(frame)))
        consumer.acknowledge(24 + len(frame.extras) + len(frame.key) + len(frame.value))
    assert seen == [*IN_ORDER_OF_KEYS, "out of order END", "OK"]


def test_dropped_collection_ends_the_stream_behind_the_keys(writer, consumer):
    assert consumer.control(OPTION, "true") == S.SUCCESS
    assert consumer.stream(value=FILTER).specific == S.SUCCESS
    read(consumer, 7)
    set_scopes(writer, 2, DEFAULT, make_beers(LAGER))
    assert read_all(consumer)[-1] == "event 1"


def test_keys_are_in_order_after_a_restart(tmp_path):
    for is_first in (True, False):
        with Node.running(vbuckets=1, data_dir=tmp_path) as node, connected(node) as client:
            client.hello(Feature.COLLECTIONS)
            if is_first:
                set_scopes(client, 1, DEFAULT, make_beers(ALE))
                for key in (b"c", b"a", b"b"):
                    client.set(make_key(ALES, key), b"ale")
                continue
            client.open("consumer")
            for name in ("enable_noop", OPTION):
                assert client.control(name, "true") == S.SUCCESS
            assert client.stream(value=FILTER, flags=StreamFlag.TO_LATEST).specific == S.SUCCESS
            assert read_all(client) == ["out of order START", "event 0", "+a", "+b", "+c", "out of order END"]


@settings(max_examples=scaled(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.booleans()), max_size=30))
def test_keys_have_the_same_documents_as_the_ordered_stream(node, writer, changes):
    for key, deletes in changes:
        (writer.delete if deletes else writer.set)(make_key(ALES, key))
    found = []
    for option in (None, "true"):
        with connected(node) as client:
            client.hello(Feature.COLLECTIONS).open("consumer")
            for name in ("enable_noop", *([OPTION] if option else [])):
                assert client.control(name, "true") == S.SUCCESS
            client.stream(value=FILTER, flags=StreamFlag.TO_LATEST, opaque=9)
            found.append([each for each in client.changes() if isinstance(each, Mutation | Deletion)])
    ordered, keys = found
    assert keys == sorted(ordered, key=lambda change: change.key)
