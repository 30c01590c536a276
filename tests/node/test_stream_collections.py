"""Streams of buckets with collections: what who sees, and how a snapshot ends whose last change is somebody else's."""

import json
from contextlib import closing
from typing import Any

import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import account_of
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
from penstock.wire.messages.dcp_values import framing_of
from penstock.wire.messages.kv import Noop, SelectBucket, Set
from penstock.wire.messages.system_event import CreatedCollection, CreatedScope, DroppedCollection, unpack_system_event
from penstock.wire.messages.tap import TapConnect, TapMutation, TapOptions
from penstock.wire.messages.upr import UprMutation, UprStreamReq
from penstock.wire.values.collection_key import split_collection_key
from tests.node.manifests import ALE, ALES, BEERS, DEFAULT, LAGER, LAGERS, beers, give, ids, key, wish
from tests.node.test_login import ITERATIONS, log_in
from tests.node.upr_client import UprClient
from tests.node.wire_client import connected

S, F, K, R = Status, OpenFlag, SystemEventKind, StreamEndReason


@pytest.fixture
def writer(node):
    """A connection with collections, in a bucket that has three. vbucket 0 has seqnos 1 to 3: two begin, one scope."""
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS)
        give(client, 1, DEFAULT, beers(ALE, LAGER))
        yield client


@pytest.fixture
def modern(node, writer):
    """A consumer that has agreed on collections."""
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open("modern")
        client.control("enable_noop", "true")
        yield client


@pytest.fixture
def legacy(node, writer):
    with connected(node) as client:
        yield client.open("legacy")


def to_now(consumer, **asked):
    """Stream what there is; return the messages, without the end."""
    assert consumer.stream(flags=StreamFlag.TO_LATEST, **asked).specific == S.SUCCESS
    return list(consumer.changes())


def seen(messages):
    """What came, as (kind, seqno, key or name)."""
    return [(type(each).__name__, getattr(each, "by_seqno", None) or each.end_seqno, each.key) for each in messages]


def test_up_to_latest_is_up_to_the_newest_change_of_the_collections(node, writer, modern):
    """As kv_engine, adjustSeqnosForStreamRequest: nothing begins behind it."""
    writer.set(key(LAGERS), b"l")
    writer.set(key(0), b"d")
    vbuuid = node.buckets["default"].store.vbuckets[0].history.vbuuid
    asked = {"vbuuid": vbuuid, "flags": StreamFlag.TO_LATEST, "value": ids(LAGERS)}
    assert modern.stream(start=4, **asked).specific == S.SUCCESS
    assert modern.message().reason == 0
    assert modern.stream(start=5, **asked).specific == S.ERANGE


def test_all_with_events(writer, modern):
    writer.set(key(0))
    writer.set(key(LAGERS), b"v")
    marker, scope, ale, lager, first, second = to_now(modern)
    assert (marker.start_seqno, marker.end_seqno) == (0, 5)
    assert [(each.by_seqno, each.event, each.version, each.key) for each in (scope, ale, lager)] == [
        (1, K.SCOPE_CREATE, 0, b"beers"),
        (2, K.COLLECTION_BEGIN, 0, b"ales"),
        (3, K.COLLECTION_BEGIN, 1, b"lagers"),
    ]
    assert unpack_system_event(scope.event, scope.version, scope.key, scope.value) == CreatedScope(0, BEERS, "beers")
    assert unpack_system_event(ale.event, ale.version, ale.key, ale.value) == CreatedCollection(0, BEERS, ALES, "ales")
    said = unpack_system_event(lager.event, lager.version, lager.key, lager.value)
    assert said == CreatedCollection(1, BEERS, LAGERS, "lagers", max_ttl=100)
    assert [(each.key, each.value) for each in (first, second)] == [(key(0), b""), (key(LAGERS), b"v")]


def test_events_as_tables(modern):
    assert modern.control("flatbuffers_system_events", "true") == S.SUCCESS
    _, scope, _, lager = to_now(modern)
    assert (scope.version, lager.version) == (2, 2)
    said = unpack_system_event(lager.event, lager.version, lager.key, lager.value)
    assert said == CreatedCollection(1, BEERS, LAGERS, "lagers", max_ttl=100)


def test_who_knows_no_collections_sees_the_default_one_in_snapshots_that_end_with_it(writer, legacy):
    for collection in (0, ALES, 0, LAGERS):
        writer.set(key(collection, b"%d" % collection))
    writer.set(key(0, b"last"))
    writer.set(key(ALES))
    legacy.stream()
    assert seen([legacy.message() for _ in range(3)]) == [
        ("SnapshotMarker", 8, b""),
        ("Mutation", 6, b"0"),
        ("Mutation", 8, b"last"),
    ]
    writer.set(key(LAGERS))
    writer.delete(key(0, b"last"))
    marker, gone = legacy.message(), legacy.message()
    assert marker.start_seqno in {10, 11}  # whether it has looked in between is timing
    assert marker.end_seqno == 11
    assert (type(gone), gone.key, gone.by_seqno) == (Deletion, b"last", 11)


def test_who_knows_no_collections_is_told_nothing_where_there_is_nothing(writer, legacy):
    assert to_now(legacy) == []
    writer.set(key(ALES))
    assert to_now(legacy) == []


@pytest.mark.parametrize("end", [4, 5, 6, 7])
def test_an_end_at_somebody_else_s_change(writer, legacy, end):
    for collection in (0, ALES, ALES, 0):
        writer.set(key(collection, b"%d" % collection), b"v")
    writer.set(key(0, b"another"))
    legacy.stream(end=end)
    marker, *changes = legacy.changes()
    # The change at 4 is superseded by that at 7 in whatever goes so far.
    expected = {4: [4], 5: [4], 6: [4], 7: [7]}[end]
    assert (marker.end_seqno, [change.by_seqno for change in changes]) == (expected[-1], expected)


def test_an_end_far_behind_the_last_change_that_is_seen(writer, legacy):
    writer.set(key(0, b"first"))
    for number in range(70_000):
        writer.send(Set(key=key(ALES, b"%d" % (number % 7)), opaque=number))
    for _ in range(70_000):
        writer.receive()
    writer.set(key(0, b"second"))
    legacy.stream(end=70_003)
    marker, *changes = legacy.changes()
    assert marker.end_seqno == changes[-1].by_seqno
    assert changes[0].key == b"first"


FILTERS = [
    (ids(ALES), [(ALES, b"a")], [b"ales"], 7),
    (ids(LAGERS), [(LAGERS, b"l")], [b"lagers"], 6),
    (ids(0), [(0, b"d")], [], 4),
    (ids(0, LAGERS), [(0, b"d"), (LAGERS, b"l")], [b"lagers"], 6),
    (wish(scope=f"{BEERS:x}"), [(LAGERS, b"l"), (ALES, b"a")], [b"beers", b"ales", b"lagers"], 7),
    (wish(scope="0"), [(0, b"d")], [], 4),
    (b"{}", [(0, b"d"), (LAGERS, b"l"), (ALES, b"a")], [b"beers", b"ales", b"lagers"], 7),
    (wish(uid="1"), [(0, b"d"), (LAGERS, b"l"), (ALES, b"a")], [b"beers", b"ales", b"lagers"], 7),
]


@pytest.mark.parametrize(("value", "documents", "events", "end"), FILTERS)
def test_filters(writer, modern, value, documents, events, end):
    for collection, name in ((0, b"d"), (ALES, b"old"), (LAGERS, b"l"), (ALES, b"a")):
        writer.set(key(collection, name))
    marker, *messages = to_now(modern, value=value)
    assert marker.end_seqno >= end
    keys = [split_collection_key(each.key) for each in messages if isinstance(each, Mutation)]
    assert [each for each in keys if each[1] != b"old"] == documents
    assert [each.key for each in messages if isinstance(each, SystemEvent)] == events
    assert messages[-1].by_seqno == marker.end_seqno


def test_the_end_of_a_snapshot_that_is_all_somebody_else_s(writer, modern):
    writer.set(key(ALES))
    modern.stream(value=ids(0))
    assert seen([modern.message() for _ in range(2)]) == [("SnapshotMarker", 4, b""), ("SeqnoAdvanced", 4, b"")]
    writer.set(key(LAGERS))
    writer.set(key(0))
    messages: list[Any] = []
    while not (messages and isinstance(messages[-1], Mutation)):
        messages.append(modern.message())
    assert messages[-1].by_seqno == 6
    assert {type(each) for each in messages[:-1]} <= {SnapshotMarker, SeqnoAdvanced}


def test_a_scope_s_stream_follows_what_begins_in_it_and_ends_with_it(writer, modern):
    modern.stream(value=wish(scope=f"{BEERS:x}"))
    assert [each.key for each in (modern.message() for _ in range(4))] == [b"", b"beers", b"ales", b"lagers"]
    stout = {"name": "stouts", "uid": "200"}
    elsewhere = {"name": "wines", "uid": "201", "collections": [{"name": "reds", "uid": "202"}]}
    give(writer, 2, DEFAULT, beers(ALE, LAGER, stout), elsewhere)
    for collection in (0x202, 0x200, 0):
        writer.set(key(collection, b"new"))
    messages: list[Any] = []
    while not (messages and isinstance(messages[-1], Mutation)):
        messages.append(modern.message())
    told = [each.key for each in messages if isinstance(each, SystemEvent | Mutation)]
    assert told == [b"stouts", key(0x200, b"new")]
    give(writer, 3, DEFAULT, elsewhere)
    while not isinstance(messages[-1], StreamEnd):
        messages.append(modern.message())
    ends = [each.event for each in messages if isinstance(each, SystemEvent)][-4:]
    assert ends == [K.COLLECTION_END, K.COLLECTION_END, K.COLLECTION_END, K.SCOPE_DROP]
    assert messages[-1].reason == R.FILTER_EMPTY


def test_a_stream_ends_when_its_last_collection_is_dropped(writer, modern):
    modern.stream(value=ids(ALES, LAGERS))
    assert [each.key for each in (modern.message() for _ in range(3))] == [b"", b"ales", b"lagers"]
    give(writer, 2, DEFAULT, beers(LAGER))
    _, ended = modern.message(), modern.message()
    said = unpack_system_event(ended.event, ended.version, ended.key, ended.value)
    assert (ended.key, said) == (b"", DroppedCollection(2, BEERS, ALES))
    give(writer, 3, DEFAULT)
    messages = list(modern.changes())
    assert [each.event for each in messages if isinstance(each, SystemEvent)] == [K.COLLECTION_END]
    assert modern.stream(value=ids(ALES)).specific == S.UNKNOWN_COLLECTION


def test_the_default_collection_may_be_dropped(node, writer, legacy):
    legacy.stream()
    with connected(node) as other:
        other.open("other")
        give(writer, 2, {**DEFAULT, "collections": []}, beers(ALE))
        assert legacy.message().reason == R.OK  # such consumers know no other reason
        assert other.stream().specific == S.UNKNOWN_COLLECTION


def test_who_knows_no_tables_is_not_told_that_a_collection_has_changed(node, writer, modern):
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open("with tables")
        for name in ("enable_noop", "flatbuffers_system_events"):
            client.control(name, "true")
        for consumer in (modern, client):
            consumer.stream()
            for _ in range(4):
                consumer.message()
        give(writer, 2, DEFAULT, beers({**ALE, "maxTTL": 7}, LAGER))
        assert seen([modern.message() for _ in range(2)]) == [("SnapshotMarker", 4, b""), ("SeqnoAdvanced", 4, b"")]
        marker, event = client.message(), client.message()
        assert (marker.end_seqno, event.by_seqno, event.event, event.version) == (4, 4, K.COLLECTION_MODIFY, 2)
        said = unpack_system_event(event.event, event.version, event.key, event.value)
        assert said == CreatedCollection(2, BEERS, ALES, "ales", max_ttl=7)


def everything(node, *controls):
    """Return the events that a consumer is told that starts at 0 and has made these settings."""
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open(f"with {controls}")
        for name in ("enable_noop", *controls):
            assert client.control(name, "true") == S.SUCCESS
        marker, *messages = to_now(client)
        assert messages[-1].by_seqno == marker.end_seqno
        return [(each.by_seqno, each.event, each.key) for each in messages if isinstance(each, SystemEvent)]


def test_a_collection_that_has_changed_has_begun_for_who_starts_at_0(node, writer):
    give(writer, 2, DEFAULT, beers({**ALE, "maxTTL": 6}, LAGER))
    give(writer, 3, DEFAULT, beers({**ALE, "maxTTL": 7}, LAGER))
    begun = [(1, K.SCOPE_CREATE, b"beers"), (2, K.COLLECTION_BEGIN, b"ales"), (3, K.COLLECTION_BEGIN, b"lagers")]
    assert everything(node) == begun
    assert everything(node, "flatbuffers_system_events") == [*begun, (5, K.COLLECTION_MODIFY, b"ales")]
    give(writer, 4, DEFAULT, beers(LAGER))
    ended = [begun[0], begun[2], (6, K.COLLECTION_END, b"")]
    assert everything(node) == everything(node, "flatbuffers_system_events") == ended


REFUSED = [
    (b"[]", S.EINVAL),
    (b"1", S.EINVAL),
    (b"{", S.EINVAL),
    (b"[" * 100_000, S.EINVAL),
    (b'{"collections":' + b"[" * 100_000 + b"]" * 100_000 + b"}", S.EINVAL),
    (b"\xff", S.EINVAL),
    (wish(whatever=1), S.EINVAL),
    (wish(collections=[]), S.EINVAL),
    (wish(collections="8"), S.EINVAL),
    (wish(collections=[8]), S.EINVAL),
    (wish(collections=["x"]), S.EINVAL),
    (wish(collections=["123456789"]), S.EINVAL),
    (wish(collections=["8"], scope="8"), S.EINVAL),
    (wish(scope=8), S.EINVAL),
    (wish(uid=1), S.EINVAL),
    (wish(purge_seqno=1), S.EINVAL),
    (wish(purge_seqno="-1"), S.EINVAL),
    (wish(purge_seqno=str(2**64)), S.EINVAL),
    (wish(cts=1), S.EINVAL),
    (wish(sid="1"), S.EINVAL),
    (wish(sid=True), S.EINVAL),
    (wish(sid=0), S.DCP_STREAMID_INVALID),
    (wish(sid=65536), S.DCP_STREAMID_INVALID),
    (wish(sid=1), S.DCP_STREAMID_INVALID),
    (wish(collections=["7"]), S.UNKNOWN_COLLECTION),
    (wish(collections=["0", "ffffffff"]), S.UNKNOWN_COLLECTION),
    (wish(scope="9"), S.UNKNOWN_SCOPE),
]


@pytest.mark.parametrize(("value", "status"), REFUSED)
def test_values_that_are_refused(modern, value, status):
    reply = modern.stream(value=value)
    assert Status(reply.specific) == status
    if status in (S.UNKNOWN_COLLECTION, S.UNKNOWN_SCOPE):
        assert json.loads(reply.value) == {"manifest_uid": "1"}
    assert modern.stream(value=wish(uid="1", whatever=[], cts={}, purge_seqno="5")).specific == S.SUCCESS


def test_who_knows_no_collections_must_not_name_any(legacy):
    assert legacy.stream(value=b"{}").specific == S.EINVAL


def test_noops_must_be_on(node, writer):
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open("quiet")
        assert client.stream().specific == S.NOT_SUPPORTED
        client.control("enable_noop", "true")
        assert client.stream().specific == S.SUCCESS


def test_what_is_agreed_on_behind_open_changes_no_stream(writer, legacy):
    legacy.hello(Feature.COLLECTIONS)
    writer.set(key(ALES))
    writer.set(key(0))
    assert legacy.stream(value=b"{}").specific == S.EINVAL
    assert [each.key for each in to_now(legacy)] == [b"", b"k"]


def test_several_streams_of_a_vbucket(node, writer, modern):
    assert modern.control("enable_stream_id", "true") == S.SUCCESS
    writer.set(key(ALES))
    writer.set(key(LAGERS))
    for stream_id, collection in ((1, ALES), (0xFFFF, LAGERS)):
        value = wish(collections=[f"{collection:x}"], sid=stream_id)
        assert modern.stream(value=value, opaque=stream_id).specific == S.SUCCESS
        assert modern.stream(value=value).specific == S.KEY_EEXISTS
        assert modern.stream(value=ids(collection)).specific == S.DCP_STREAMID_INVALID
        messages = [modern.message() for _ in range(4 if collection == ALES else 3)]
        assert {(each.opaque, each.framing) for each in messages} == {(stream_id, framing_of(stream_id))}
        assert isinstance(messages[0], SnapshotMarker)
        assert messages[2].key == key(collection)
    reports = [
        (stream.filters, stream.details["sid"])
        for producer in node.buckets["default"].producers.values()
        for stream in producer.report().streams
    ]
    assert reports == [(("collections",), 1), (("collections",), 0xFFFF)]
    assert modern.status(CloseStream()) == S.DCP_STREAMID_INVALID
    assert modern.status(CloseStream(framing=framing_of(2))) == S.DCP_STREAMID_INVALID
    assert modern.status(CloseStream(vbucket=1, framing=framing_of(1))) == S.KEY_ENOENT
    assert modern.status(CloseStream(framing=framing_of(1))) == S.SUCCESS
    assert modern.control("send_stream_end_on_client_close_stream", "true") == S.SUCCESS
    assert modern.status(CloseStream(framing=framing_of(0xFFFF))) == S.SUCCESS
    assert modern.message() == StreamEnd(opaque=0xFFFF, framing=framing_of(0xFFFF), reason=R.CLOSED)


def test_stream_ids_without_having_asked_for_them(modern):
    assert modern.status(CloseStream(framing=framing_of(1))) == S.DCP_STREAMID_INVALID


def test_the_framing_counts_for_flow_control(node, writer, modern):
    modern.control("enable_stream_id", "true")
    modern.control("connection_buffer_size", "1")
    modern.stream(value=wish(sid=3))
    for size in (44 + 3, 37 + 3 + 5 + 12, 37 + 3 + 4 + 16, 37 + 3 + 6 + 20):
        frame = modern.receive()
        assert frame.size == size
        assert int(writer.stats()["ep_dcp_unacked_bytes"]) == size
        modern.acknowledge(size)


def test_markers_that_tell_the_purge_seqno(writer, legacy, modern):
    assert legacy.control("max_marker_version", "2.2") == S.NOT_SUPPORTED
    assert modern.control("max_marker_version", "2.2") == S.SUCCESS
    modern.stream()
    marker = modern.message()
    assert isinstance(marker, SnapshotMarkerV2)
    assert (marker.start_seqno, marker.end_seqno, marker.max_visible_seqno, marker.purge_seqno) == (0, 3, 3, 0)
    writer.set(key(0))
    while not isinstance(modern.message(), SystemEvent | Mutation):
        pass
    writer.set(key(0))
    messages = [modern.message() for _ in range(3)]
    assert any(type(each) is SnapshotMarker for each in messages)


@pytest.mark.parametrize("collections", [True, False])
def test_without_what_was_deleted_before(node, writer, collections):
    writer.set(key(0, b"kept"))
    writer.set(key(0, b"gone"))
    writer.delete(key(0, b"gone"))
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
        writer.delete(key(0, b"kept"))
        while not isinstance(messages[-1], Deletion):
            messages.append(client.message())


@pytest.mark.parametrize("count", [1, 40])
def test_upr_and_tap_see_the_default_collection(node, writer, count):
    names = [b"%d" % number for number in range(count)]
    for name in names:
        for collection in (ALES, 0, LAGERS):
            writer.set(key(collection, name), b"v")
    with closing(UprClient(node, Dialect.UPR)) as upr:
        upr.send(UprStreamReq(start_seqno=0, end_seqno=3 + 3 * count, opaque=1))
        _, *messages = upr.said(4 + count)
        assert [each.key for each in messages if isinstance(each, UprMutation)] == names
    options = TapOptions(TapConnectFlag.SUPPORT_ACK)
    with connected(node) as tap:
        tap.send(TapConnect(key=b"live", flags=options.flags, value=options.pack()))
        found: list[Any] = []
        for round_ in (0, 1):
            while len(found) < count + round_:
                message = tap.message()
                if message.tap_flags & TapFlag.ACK:
                    tap.send(Frame(Magic.RESPONSE, message.opcode, opaque=message.opaque))
                found += [message.key] if isinstance(message, TapMutation) else []
            for collection in (ALES, 0, LAGERS):
                writer.set(key(collection, b"new"))
        assert found == [*names, b"new"]


# Who may see what

ALLOWED = [
    ("stream_reader[default]", {"all", "beers", "ales", "lagers", "default", "bare"}),
    ("stream_reader[default:beers]", {"beers", "ales", "lagers"}),
    ("stream_reader[default:beers:ales]", {"ales"}),
    ("stream_reader[default:_default:_default]", {"default", "bare"}),
]
ASKED = {
    "all": b"",
    "beers": wish(scope=f"{BEERS:x}"),
    "ales": ids(ALES),
    "lagers": ids(LAGERS),
    "default": ids(0),
    "ales and lagers": ids(ALES, LAGERS),
    "bare": None,
}


@pytest.mark.parametrize(("role", "allowed"), ALLOWED)
def test_users_stream_what_is_theirs(tmp_path, role, allowed):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        for name, roles in {"root": ["admin"], "reader": [role, "stream_reader[beer]"]}.items():
            accounts[name] = account_of(User.of(name, roles), f"{name}'s", ITERATIONS)
    with Node.running(["default", "beer"], vbuckets=1, users=path) as node, connected(node) as root:
        assert log_in(root.hello(Feature.COLLECTIONS), "root") == S.SUCCESS
        assert root.status(SelectBucket(key=b"default")) == S.SUCCESS
        give(root, 1, DEFAULT, beers(ALE, LAGER))
        found = set()
        for what, value in ASKED.items():
            with connected(node) as client:
                if value is not None:
                    client.hello(Feature.COLLECTIONS)
                assert log_in(client, "reader") == S.SUCCESS
                client.ask(SelectBucket(key=b"default"))
                client.open(what.replace(" ", "-")).control("enable_noop", "true")
                client.ask(SelectBucket(key=b"beer"))  # which makes no difference: all of that one is the user's
                status = client.stream(value=value or b"").specific
                assert status in {S.SUCCESS, S.EACCESS, S.UNKNOWN_COLLECTION, S.UNKNOWN_SCOPE}
                found |= {what} if status == S.SUCCESS else set()
        assert found - {"ales and lagers"} == allowed
        assert ("ales and lagers" in found) == ({"ales", "lagers"} <= allowed)
        with connected(node) as client:
            assert log_in(client, "reader") == S.SUCCESS
            client.ask(SelectBucket(key=b"default"))
            client.send(TapConnect(), Noop())
            assert (client.receive().specific == S.EACCESS) == ("bare" not in allowed)
