"""Streams with collections: visible changes, and snapshots whose last change is not visible."""

import json
from contextlib import closing
from typing import Any

import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.constants import Dialect, Feature, SystemEventKind
from penstock.wire.codec.flags import OpenFlag, StreamFlag, TapConnectFlag, TapFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.messages.dcp import (
    CloseStream,
    Deletion,
    Mutation,
    SeqnoAdvanced,
    SnapshotMarker,
    SnapshotMarkerV2,
    StreamEnd,
    SystemEvent,
)
from penstock.wire.messages.dcp_values import pack_stream_id
from penstock.wire.messages.kv import Noop, SelectBucket, Set
from penstock.wire.messages.system_event import CreatedCollection, CreatedScope, DroppedCollection, unpack_system_event
from penstock.wire.messages.tap import TapConnect, TapMutation, TapOptions
from penstock.wire.messages.upr import UprMutation, UprStreamReq
from penstock.wire.values.collection_key import split_collection_key
from tests.node.manifests import (
    ALE,
    ALES,
    BEERS,
    DEFAULT,
    LAGER,
    LAGERS,
    make_beers,
    make_collection_filter,
    make_filter_value,
    make_key,
    set_scopes,
)
from tests.node.test_login import ITERATIONS, log_in
from tests.node.upr_client import UprClient
from tests.node.wire_client import connected

S, F, K, R = Status, OpenFlag, SystemEventKind, StreamEndReason


@pytest.fixture
def legacy(node, beer_writer):
    with connected(node) as client:
        yield client.open("legacy")


def stream_to_now(consumer, **fields):
    """Stream up to the current end, and return the messages before STREAM_END."""
    assert consumer.stream(flags=StreamFlag.TO_LATEST, **fields).specific == S.SUCCESS
    return list(consumer.changes())


def summarize(messages):
    """Return messages as tuples (class name, seqno, key)."""
    return [(type(each).__name__, getattr(each, "by_seqno", None) or each.end_seqno, each.key) for each in messages]


def test_stream_to_latest_ends_at_the_newest_change_of_its_collections(node, beer_writer, beer_consumer):
    """As in kv_engine's adjustSeqnosForStreamRequest, no stream starts after the end."""
    beer_writer.set(make_key(LAGERS), b"l")
    beer_writer.set(make_key(0), b"d")
    vbuuid = node.buckets["default"].store.vbuckets[0].history.vbuuid
    fields = {"vbuuid": vbuuid, "flags": StreamFlag.TO_LATEST, "value": make_collection_filter(LAGERS)}
    assert beer_consumer.stream(start=4, **fields).specific == S.SUCCESS
    assert beer_consumer.message().reason == 0
    assert beer_consumer.stream(start=5, **fields).specific == S.ERANGE


def test_unfiltered_stream_has_system_events(beer_writer, beer_consumer):
    beer_writer.set(make_key(0))
    beer_writer.set(make_key(LAGERS), b"v")
    marker, scope, ale, lager, first, second = stream_to_now(beer_consumer)
    assert (marker.start_seqno, marker.end_seqno) == (0, 5)
    assert [(each.by_seqno, each.event, each.version, each.key) for each in (scope, ale, lager)] == [
        (1, K.SCOPE_CREATE, 0, b"beers"),
        (2, K.COLLECTION_BEGIN, 0, b"ales"),
        (3, K.COLLECTION_BEGIN, 1, b"lagers"),
    ]
    assert unpack_system_event(scope.event, scope.version, scope.key, scope.value) == CreatedScope(0, BEERS, "beers")
    assert unpack_system_event(ale.event, ale.version, ale.key, ale.value) == CreatedCollection(0, BEERS, ALES, "ales")
    decoded = unpack_system_event(lager.event, lager.version, lager.key, lager.value)
    assert decoded == CreatedCollection(1, BEERS, LAGERS, "lagers", max_ttl=100)
    assert [(each.key, each.value) for each in (first, second)] == [(make_key(0), b""), (make_key(LAGERS), b"v")]


def test_system_events_can_be_flatbuffers(beer_consumer):
    assert beer_consumer.control("flatbuffers_system_events", "true") == S.SUCCESS
    _, scope, _, lager = stream_to_now(beer_consumer)
    assert (scope.version, lager.version) == (2, 2)
    decoded = unpack_system_event(lager.event, lager.version, lager.key, lager.value)
    assert decoded == CreatedCollection(1, BEERS, LAGERS, "lagers", max_ttl=100)


def test_consumer_without_collections_gets_snapshots_of_the_default_one(beer_writer, legacy):
    for collection in (0, ALES, 0, LAGERS):
        beer_writer.set(make_key(collection, b"%d" % collection))
    beer_writer.set(make_key(0, b"last"))
    beer_writer.set(make_key(ALES))
    legacy.stream()
    assert summarize([legacy.message() for _ in range(3)]) == [
        ("SnapshotMarker", 8, b""),
        ("Mutation", 6, b"0"),
        ("Mutation", 8, b"last"),
    ]
    beer_writer.set(make_key(LAGERS))
    beer_writer.delete(make_key(0, b"last"))
    marker, deletion = legacy.message(), legacy.message()
    assert marker.start_seqno in {10, 11}  # depends on timing: the stream may have passed seqno 10 before
    assert marker.end_seqno == 11
    assert (type(deletion), deletion.key, deletion.by_seqno) == (Deletion, b"last", 11)


def test_consumer_without_collections_gets_no_empty_snapshot(beer_writer, legacy):
    assert stream_to_now(legacy) == []
    beer_writer.set(make_key(ALES))
    assert stream_to_now(legacy) == []


@pytest.mark.parametrize("end", [4, 5, 6, 7])
def test_stream_ends_at_a_change_of_another_collection(beer_writer, legacy, end):
    for collection in (0, ALES, ALES, 0):
        beer_writer.set(make_key(collection, b"%d" % collection), b"v")
    beer_writer.set(make_key(0, b"another"))
    legacy.stream(end=end)
    marker, *changes = legacy.changes()
    # The change at 4 is superseded by the change at 7 in every snapshot that reaches 7.
    expected = {4: [4], 5: [4], 6: [4], 7: [7]}[end]
    assert (marker.end_seqno, [change.by_seqno for change in changes]) == (expected[-1], expected)


@pytest.mark.long
def test_stream_ends_far_behind_the_last_visible_change(beer_writer, legacy):
    beer_writer.set(make_key(0, b"first"))
    for number in range(70_000):
        beer_writer.send(Set(key=make_key(ALES, b"%d" % (number % 7)), opaque=number))
    for _ in range(70_000):
        beer_writer.receive()
    beer_writer.set(make_key(0, b"second"))
    legacy.stream(end=70_003)
    marker, *changes = legacy.changes()
    assert marker.end_seqno == changes[-1].by_seqno
    assert changes[0].key == b"first"


FILTERS = [
    (make_collection_filter(ALES), [(ALES, b"a")], [b"ales"], 7),
    (make_collection_filter(LAGERS), [(LAGERS, b"l")], [b"lagers"], 6),
    (make_collection_filter(0), [(0, b"d")], [], 4),
    (make_collection_filter(0, LAGERS), [(0, b"d"), (LAGERS, b"l")], [b"lagers"], 6),
    (make_filter_value(scope=f"{BEERS:x}"), [(LAGERS, b"l"), (ALES, b"a")], [b"beers", b"ales", b"lagers"], 7),
    (make_filter_value(scope="0"), [(0, b"d")], [], 4),
    (b'{"uid":"7"}', [(0, b"d"), (LAGERS, b"l"), (ALES, b"a")], [b"beers", b"ales", b"lagers"], 7),
    (make_filter_value(uid="1"), [(0, b"d"), (LAGERS, b"l"), (ALES, b"a")], [b"beers", b"ales", b"lagers"], 7),
]


@pytest.mark.parametrize(("value", "documents", "events", "end"), FILTERS)
def test_filter_selects_changes(beer_writer, beer_consumer, value, documents, events, end):
    for collection, name in ((0, b"d"), (ALES, b"old"), (LAGERS, b"l"), (ALES, b"a")):
        beer_writer.set(make_key(collection, name))
    marker, *messages = stream_to_now(beer_consumer, value=value)
    assert marker.end_seqno >= end
    keys = [split_collection_key(each.key) for each in messages if isinstance(each, Mutation)]
    assert [each for each in keys if each[1] != b"old"] == documents
    assert [each.key for each in messages if isinstance(each, SystemEvent)] == events
    assert messages[-1].by_seqno == marker.end_seqno


def test_snapshot_without_visible_changes_has_an_end(beer_writer, beer_consumer):
    beer_writer.set(make_key(ALES))
    beer_consumer.stream(value=make_collection_filter(0))
    assert summarize([beer_consumer.message() for _ in range(2)]) == [
        ("SnapshotMarker", 4, b""),
        ("SeqnoAdvanced", 4, b""),
    ]
    beer_writer.set(make_key(LAGERS))
    beer_writer.set(make_key(0))
    messages: list[Any] = []
    while not (messages and isinstance(messages[-1], Mutation)):
        messages.append(beer_consumer.message())
    assert messages[-1].by_seqno == 6
    assert {type(each) for each in messages[:-1]} <= {SnapshotMarker, SeqnoAdvanced}


@pytest.mark.parametrize("value", [make_collection_filter(ALES), make_filter_value(scope=f"{BEERS:x}")])
def test_live_changes_of_other_collections_are_not_sent(beer_writer, beer_consumer, value):
    """As from Couchbase 7.2.8: a later marker ends at the last selected change, so it needs no SEQNO_ADVANCED."""
    beer_writer.set(make_key(ALES))
    beer_writer.set(make_key(0))
    beer_consumer.stream(value=value)
    messages = [beer_consumer.message()]
    while not isinstance(messages[-1], SeqnoAdvanced):
        messages.append(beer_consumer.message())
    high = messages[-1].by_seqno
    assert high == messages[0].end_seqno
    for number in range(3):
        beer_writer.set(make_key(0, b"%d" % number))
    beer_writer.set(make_key(ALES, b"new"))
    beer_writer.set(make_key(0, b"later"))
    beer_writer.set(make_key(ALES, b"newest"))
    found = [beer_consumer.message()]
    while getattr(found[-1], "by_seqno", 0) < high + 6:
        found.append(beer_consumer.message())
    assert {type(each) for each in found} == {SnapshotMarker, Mutation}
    ends = [each.end_seqno for each in found if isinstance(each, SnapshotMarker)]
    assert {*ends} <= {high + 4, high + 6}
    assert [each.by_seqno for each in found if isinstance(each, Mutation)] == [high + 4, high + 6]


def test_scope_stream_follows_its_collections_and_ends_with_the_scope(beer_writer, beer_consumer):
    beer_consumer.stream(value=make_filter_value(scope=f"{BEERS:x}"))
    assert [each.key for each in (beer_consumer.message() for _ in range(4))] == [b"", b"beers", b"ales", b"lagers"]
    stout = {"name": "stouts", "uid": "200"}
    elsewhere = {"name": "wines", "uid": "201", "collections": [{"name": "reds", "uid": "202"}]}
    set_scopes(beer_writer, 2, DEFAULT, make_beers(ALE, LAGER, stout), elsewhere)
    for collection in (0x202, 0x200, 0):
        beer_writer.set(make_key(collection, b"new"))
    messages: list[Any] = []
    while not (messages and isinstance(messages[-1], Mutation)):
        messages.append(beer_consumer.message())
    sent_keys = [each.key for each in messages if isinstance(each, SystemEvent | Mutation)]
    assert sent_keys == [b"stouts", make_key(0x200, b"new")]
    set_scopes(beer_writer, 3, DEFAULT, elsewhere)
    while not isinstance(messages[-1], StreamEnd):
        messages.append(beer_consumer.message())
    ends = [each.event for each in messages if isinstance(each, SystemEvent)][-4:]
    assert ends == [K.COLLECTION_END, K.COLLECTION_END, K.COLLECTION_END, K.SCOPE_DROP]
    assert messages[-1].reason == R.FILTER_EMPTY


def test_stream_ends_when_its_last_collection_is_dropped(beer_writer, beer_consumer):
    beer_consumer.stream(value=make_collection_filter(ALES, LAGERS))
    assert [each.key for each in (beer_consumer.message() for _ in range(3))] == [b"", b"ales", b"lagers"]
    set_scopes(beer_writer, 2, DEFAULT, make_beers(LAGER))
    _, ended = beer_consumer.message(), beer_consumer.message()
    decoded = unpack_system_event(ended.event, ended.version, ended.key, ended.value)
    assert (ended.key, decoded) == (b"", DroppedCollection(2, BEERS, ALES))
    set_scopes(beer_writer, 3, DEFAULT)
    messages = list(beer_consumer.changes())
    assert [each.event for each in messages if isinstance(each, SystemEvent)] == [K.COLLECTION_END]
    assert beer_consumer.stream(value=make_collection_filter(ALES)).specific == S.UNKNOWN_COLLECTION


def test_streams_follow_the_drop_of_the_default_collection(node, beer_writer, legacy):
    legacy.stream()
    with connected(node) as other:
        other.open("other")
        set_scopes(beer_writer, 2, {**DEFAULT, "collections": []}, make_beers(ALE))
        assert legacy.message().reason == R.OK  # consumers without collections know no other reason
        assert other.stream().specific == S.UNKNOWN_COLLECTION


def test_modify_event_needs_flatbuffers(node, beer_writer, beer_consumer):
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open("with tables")
        for name in ("enable_noop", "flatbuffers_system_events"):
            client.control(name, "true")
        for consumer in (beer_consumer, client):
            consumer.stream()
            for _ in range(4):
                consumer.message()
        set_scopes(beer_writer, 2, DEFAULT, make_beers({**ALE, "maxTTL": 7}, LAGER))
        without_event = [beer_consumer.message() for _ in range(2)]
        assert summarize(without_event) == [("SnapshotMarker", 4, b""), ("SeqnoAdvanced", 4, b"")]
        marker, event = client.message(), client.message()
        assert (marker.end_seqno, event.by_seqno, event.event, event.version) == (4, 4, K.COLLECTION_MODIFY, 2)
        decoded = unpack_system_event(event.event, event.version, event.key, event.value)
        assert decoded == CreatedCollection(2, BEERS, ALES, "ales", max_ttl=7)


def read_events(node, *controls):
    """Return the system events that a new consumer with these controls receives."""
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open(f"with {controls}")
        for name in ("enable_noop", *controls):
            assert client.control(name, "true") == S.SUCCESS
        marker, *messages = stream_to_now(client)
        assert messages[-1].by_seqno == marker.end_seqno
        return [(each.by_seqno, each.event, each.key) for each in messages if isinstance(each, SystemEvent)]


def test_modified_collection_is_created_for_a_new_consumer(node, beer_writer):
    set_scopes(beer_writer, 2, DEFAULT, make_beers({**ALE, "maxTTL": 6}, LAGER))
    set_scopes(beer_writer, 3, DEFAULT, make_beers({**ALE, "maxTTL": 7}, LAGER))
    created = [(1, K.SCOPE_CREATE, b"beers"), (2, K.COLLECTION_BEGIN, b"ales"), (3, K.COLLECTION_BEGIN, b"lagers")]
    assert read_events(node) == created
    assert read_events(node, "flatbuffers_system_events") == [*created, (5, K.COLLECTION_MODIFY, b"ales")]
    set_scopes(beer_writer, 4, DEFAULT, make_beers(LAGER))
    ended = [created[0], created[2], (6, K.COLLECTION_END, b"")]
    assert read_events(node) == read_events(node, "flatbuffers_system_events") == ended


REFUSED = [
    (b"[]", S.EINVAL),
    (b"1", S.EINVAL),
    (b"{", S.EINVAL),
    (b"[" * 100_000, S.EINVAL),
    (b'{"collections":' + b"[" * 100_000 + b"]" * 100_000 + b"}", S.EINVAL),
    (b"\xff", S.EINVAL),
    (make_filter_value(unknown=1), S.EINVAL),
    (b"{}", S.EINVAL),
    (make_filter_value(collections="8"), S.EINVAL),
    (make_filter_value(collections=[8]), S.EINVAL),
    (make_filter_value(collections=["x"]), S.EINVAL),
    (make_filter_value(collections=["123456789"]), S.EINVAL),
    (make_filter_value(collections=["8"], scope="8"), S.EINVAL),
    (make_filter_value(scope=8), S.EINVAL),
    (make_filter_value(purge_seqno=1), S.EINVAL),
    (make_filter_value(purge_seqno="-1"), S.EINVAL),
    (make_filter_value(purge_seqno=str(2**64)), S.EINVAL),
    (make_filter_value(cts=1), S.EINVAL),
    (make_filter_value(sid="1"), S.EINVAL),
    (make_filter_value(sid=True), S.EINVAL),
    (make_filter_value(sid=0), S.DCP_STREAMID_INVALID),
    (make_filter_value(sid=65536), S.DCP_STREAMID_INVALID),
    (make_filter_value(sid=1), S.DCP_STREAMID_INVALID),
    (make_filter_value(collections=["7"]), S.EINVAL),
    (make_filter_value(collections=["1"]), S.UNKNOWN_COLLECTION),
    (make_filter_value(collections=["0", "ffffffff"]), S.UNKNOWN_COLLECTION),
    (make_filter_value(scope="9"), S.UNKNOWN_SCOPE),
]


@pytest.mark.parametrize(("value", "status"), REFUSED)
def test_invalid_filters_are_refused(beer_consumer, value, status):
    reply = beer_consumer.stream(value=value)
    assert Status(reply.specific) == status
    if status in (S.UNKNOWN_COLLECTION, S.UNKNOWN_SCOPE):
        assert json.loads(reply.value) == {"manifest_uid": "1"}
    assert (
        beer_consumer.stream(value=make_filter_value(uid="1", unknown=[], cts={}, purge_seqno="5")).specific
        == S.SUCCESS
    )


def test_stream_of_no_collections_ends(beer_writer, beer_consumer):
    beer_writer.set(make_key(ALES))
    assert beer_consumer.stream(value=make_filter_value(collections=[])).specific == S.SUCCESS
    end = beer_consumer.message()
    assert (type(end), end.reason) == (StreamEnd, R.FILTER_EMPTY)
    assert beer_consumer.stream().specific == S.SUCCESS


def test_filter_without_collections_is_refused(legacy):
    assert legacy.stream(value=b"{}").specific == S.EINVAL


def test_collections_need_noops(node, beer_writer):
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open("quiet")
        assert client.stream().specific == S.NOT_SUPPORTED
        client.control("enable_noop", "true")
        assert client.stream().specific == S.SUCCESS


def test_hello_after_open_changes_no_stream(beer_writer, legacy):
    legacy.hello(Feature.COLLECTIONS)
    beer_writer.set(make_key(ALES))
    beer_writer.set(make_key(0))
    assert legacy.stream(value=b"{}").specific == S.EINVAL
    assert [each.key for each in stream_to_now(legacy)] == [b"", b"k"]


def test_vbucket_can_have_several_streams(node, beer_writer, beer_consumer):
    assert beer_consumer.control("enable_stream_id", "true") == S.SUCCESS
    beer_writer.set(make_key(ALES))
    beer_writer.set(make_key(LAGERS))
    for stream_id, collection in ((1, ALES), (0xFFFF, LAGERS)):
        value = make_filter_value(collections=[f"{collection:x}"], sid=stream_id)
        assert beer_consumer.stream(value=value, opaque=stream_id).specific == S.SUCCESS
        assert beer_consumer.stream(value=value).specific == S.KEY_EEXISTS
        assert beer_consumer.stream(value=make_collection_filter(collection)).specific == S.DCP_STREAMID_INVALID
        messages = [beer_consumer.message() for _ in range(4 if collection == ALES else 3)]
        assert {(each.opaque, each.framing) for each in messages} == {(stream_id, pack_stream_id(stream_id))}
        assert isinstance(messages[0], SnapshotMarker)
        assert messages[2].key == make_key(collection)
    reports = [
        (stream.filters, stream.details["sid"]) for report in node.streams("default") for stream in report.streams
    ]
    assert reports == [(("collections",), 1), (("collections",), 0xFFFF)]
    assert beer_consumer.status(CloseStream()) == S.DCP_STREAMID_INVALID
    assert beer_consumer.status(CloseStream(framing=pack_stream_id(2))) == S.DCP_STREAMID_INVALID
    assert beer_consumer.status(CloseStream(vbucket=1, framing=pack_stream_id(1))) == S.KEY_ENOENT
    assert beer_consumer.status(CloseStream(framing=pack_stream_id(1))) == S.SUCCESS
    assert beer_consumer.control("send_stream_end_on_client_close_stream", "true") == S.SUCCESS
    assert beer_consumer.status(CloseStream(framing=pack_stream_id(0xFFFF))) == S.SUCCESS
    assert beer_consumer.message() == StreamEnd(opaque=0xFFFF, framing=pack_stream_id(0xFFFF), reason=R.CLOSED)


def test_stream_id_needs_its_setting(beer_consumer):
    assert beer_consumer.status(CloseStream(framing=pack_stream_id(1))) == S.DCP_STREAMID_INVALID


def test_framing_extras_count_for_flow_control(node, beer_writer, beer_consumer):
    beer_consumer.control("enable_stream_id", "true")
    beer_consumer.control("connection_buffer_size", "1")
    beer_consumer.stream(value=make_filter_value(sid=3))
    for size in (44 + 3, 37 + 3 + 5 + 12, 37 + 3 + 4 + 16, 37 + 3 + 6 + 20):
        frame = beer_consumer.receive()
        assert frame.size == size
        assert int(beer_writer.stats()["ep_dcp_unacked_bytes"]) == size
        beer_consumer.acknowledge(size)


def test_markers_have_the_purge_seqno(beer_writer, legacy, beer_consumer):
    assert legacy.control("max_marker_version", "2.2") == S.NOT_SUPPORTED
    assert beer_consumer.control("max_marker_version", "2.2") == S.SUCCESS
    beer_consumer.stream()
    marker = beer_consumer.message()
    assert isinstance(marker, SnapshotMarkerV2)
    assert (marker.start_seqno, marker.end_seqno, marker.max_visible_seqno, marker.purge_seqno) == (0, 3, 3, 0)
    beer_writer.set(make_key(0))
    while not isinstance(beer_consumer.message(), SystemEvent | Mutation):
        pass
    beer_writer.set(make_key(0))
    messages = [beer_consumer.message() for _ in range(3)]
    assert any(type(each) is SnapshotMarker for each in messages)


@pytest.mark.parametrize("collections", [True, False])
def test_first_snapshot_can_skip_deletions(node, beer_writer, collections):
    beer_writer.set(make_key(0, b"kept"))
    beer_writer.set(make_key(0, b"gone"))
    beer_writer.delete(make_key(0, b"gone"))
    with connected(node) as client:
        if collections:
            client.hello(Feature.COLLECTIONS)
        client.open("fresh", flags=F.PRODUCER | F.SKIP_DELETES_IN_INITIAL_BACKFILL)
        client.control("enable_noop", "true")
        client.stream()
        messages = [client.message()]
        while not isinstance(messages[-1], SeqnoAdvanced):
            messages.append(client.message())
        assert messages[-1].by_seqno == messages[0].end_seqno == 6
        assert [each.by_seqno for each in messages if isinstance(each, Mutation)] == [4]
        beer_writer.delete(make_key(0, b"kept"))
        while not isinstance(messages[-1], Deletion):
            messages.append(client.message())


@pytest.mark.parametrize("count", [1, 40])
def test_upr_and_tap_send_the_default_collection(node, beer_writer, count):
    names = [b"%d" % number for number in range(count)]
    for name in names:
        for collection in (ALES, 0, LAGERS):
            beer_writer.set(make_key(collection, name), b"v")
    with closing(UprClient(node, Dialect.UPR)) as upr:
        upr.send(UprStreamReq(start_seqno=0, end_seqno=3 + 3 * count, opaque=1))
        _, *messages = upr.read_messages(4 + count)
        assert [each.key for each in messages if isinstance(each, UprMutation)] == names
    options = TapOptions(TapConnectFlag.SUPPORT_ACK)
    with connected(node) as tap:
        tap.send(TapConnect(key=b"live", flags=options.flags, value=options.pack()))
        found: list[Any] = []
        for turn in (0, 1):
            while len(found) < count + turn:
                message = tap.message()
                if message.tap_flags & TapFlag.ACK:
                    tap.send(Frame(Magic.RESPONSE, message.opcode, opaque=message.opaque))
                found += [message.key] if isinstance(message, TapMutation) else []
            for collection in (ALES, 0, LAGERS):
                beer_writer.set(make_key(collection, b"new"))
        assert found == [*names, b"new"]


# Privileges

ALLOWED = [
    ("data_dcp_reader[default]", {"all", "beers", "ales", "lagers", "default", "bare"}),
    ("data_dcp_reader[default:beers]", {"beers", "ales", "lagers"}),
    ("data_dcp_reader[default:beers:ales]", {"ales"}),
    ("data_dcp_reader[default:_default:_default]", {"default", "bare"}),
]
STREAMS = {
    "all": b"",
    "beers": make_filter_value(scope=f"{BEERS:x}"),
    "ales": make_collection_filter(ALES),
    "lagers": make_collection_filter(LAGERS),
    "default": make_collection_filter(0),
    "ales and lagers": make_collection_filter(ALES, LAGERS),
    "bare": None,
}


@pytest.mark.parametrize(("role", "allowed"), ALLOWED)
def test_users_stream_only_allowed_collections(tmp_path, role, allowed):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        for name, roles in {"root": ["admin"], "reader": [role, "data_dcp_reader[beer]"]}.items():
            accounts[name] = make_account(User.from_texts(name, roles), f"{name}'s", ITERATIONS)
    with Node.running(["default", "beer"], vbuckets=1, users=path) as node, connected(node) as root:
        assert log_in(root.hello(Feature.COLLECTIONS), "root") == S.SUCCESS
        assert root.status(SelectBucket(key=b"default")) == S.SUCCESS
        set_scopes(root, 1, DEFAULT, make_beers(ALE, LAGER))
        found = set()
        for name, value in STREAMS.items():
            with connected(node) as client:
                if value is not None:
                    client.hello(Feature.COLLECTIONS)
                assert log_in(client, "reader") == S.SUCCESS
                client.ask(SelectBucket(key=b"default"))
                client.open(name.replace(" ", "-")).control("enable_noop", "true")
                client.ask(SelectBucket(key=b"beer"))  # changes no result, though the user may stream all of `beer`
                status = client.stream(value=value or b"").specific
                assert status in {S.SUCCESS, S.EACCESS, S.UNKNOWN_COLLECTION, S.UNKNOWN_SCOPE}
                found |= {name} if status == S.SUCCESS else set()
        assert found - {"ales and lagers"} == allowed
        assert ("ales and lagers" in found) == ({"ales", "lagers"} <= allowed)
        with connected(node) as client:
            assert log_in(client, "reader") == S.SUCCESS
            client.ask(SelectBucket(key=b"default"))
            client.send(TapConnect(), Noop())
            assert (client.receive().specific == S.EACCESS) == ("bare" not in allowed)
