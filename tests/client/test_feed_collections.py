"""The feed with collections: keys have collection IDs, and the stream has events of collections."""

import json
from dataclasses import replace

import pytest

from penstock.client.connect.dropped_frames import DropReason
from penstock.client.feeds.collection_selection import (
    CollectionSelection,
    KnownCollections,
    StreamContent,
    parse_manifest,
    qualify_name,
)
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.errors import AccessDenied, RemoteProtocolError, UnknownCollection, UsageError
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.columns.run_decoder import SMALL_RUN
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages import system_event
from penstock.wire.messages.dcp import CloseStream, Mutation, SeqnoAdvanced, SnapshotMarkerV2, SystemEvent
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.values.collection_key import pack_collection_id
from tests.client.producer import AT_20, accept, end, make_consumer, marker, refuse, rollback

AIRLINE, HOTEL, HIGH = 8, 0x80, 0xCAFEF00D
KNOWN = KnownCollections(
    {"_default": 0, "inventory": 9},
    {("_default", "_default"): 0, ("inventory", "airline"): AIRLINE, ("inventory", "hotel"): HOTEL},
)


EVERYTHING = CollectionSelection()


def open_stream(targets=None, known=KNOWN, selection=EVERYTHING, **content):
    """Return a consumer and its stream request, which the producer has accepted."""
    consumer = make_consumer(targets, content=StreamContent(selection=selection, **content))
    consumer.feed.use_collections(known)
    request = consumer.ask_one()
    consumer.give(accept(request))
    return consumer, request


def mutation(request, seqno, collection_id=0, **fields):
    key = pack_collection_id(collection_id) + b"k%d" % seqno
    content = {"value": b"v", **fields, "key": key, "by_seqno": seqno}
    return Mutation(vbucket=request.vbucket, opaque=request.opaque, **content).encode()


def event(request, seqno, kind, subject, *, as_table=False):
    packed = system_event.pack_system_event(kind, subject, as_table=as_table)
    about = {"event": kind, "version": packed.version, "key": packed.key, "value": packed.value}
    return SystemEvent(vbucket=request.vbucket, opaque=request.opaque, by_seqno=seqno, **about).encode()


def advanced(request, seqno):
    return SeqnoAdvanced(vbucket=request.vbucket, opaque=request.opaque, by_seqno=seqno).encode()


@pytest.mark.parametrize("count", [1, SMALL_RUN + 5])
def test_changes_have_their_collections(count):
    consumer, request = open_stream()
    ids = [(0, AIRLINE, HOTEL, HIGH)[number % 4] for number in range(count)]
    sent = [mutation(request, number + 1, each) for number, each in enumerate(ids)]
    rows = consumer.get(marker(request, 1, count), *sent)
    names = {0: ("_default", "_default"), AIRLINE: ("inventory", "airline"), HOTEL: ("inventory", "hotel")}
    assert [(row.key, row.collection_id, row.scope, row.collection) for row in rows] == [
        (b"k%d" % (number + 1), each, *names.get(each, (None, None))) for number, each in enumerate(ids)
    ]


def test_keys_stay_as_received_on_a_node_without_collections():
    consumer, request = open_stream(known=None)
    (row,) = consumer.get(marker(request, 1, 1), mutation(request, 1))
    assert (row.key, row.collection_id, row.scope) == (b"\0k1", None, None)


@pytest.mark.parametrize("selection", [EVERYTHING, CollectionSelection("inventory")])
def test_stream_resumes_below_the_purge_seqno_of_its_snapshot(selection):
    """Without it, the producer would roll back to 0: the position is below deletions that were purged."""
    consumer, request = open_stream(selection=selection)
    snapshot = SnapshotMarkerV2(
        vbucket=3,
        opaque=request.opaque,
        version=2,
        end_seqno=9,
        start_seqno=0,
        flags=2,
        purge_seqno=5,
        high_prepared_seqno=0,
    )
    assert len(consumer.get(snapshot.encode(), mutation(request, 2, AIRLINE))) == 1
    filtered = json.loads(request.value or b"{}")

    def ask_again():
        consumer.reconnect()
        consumer.feed.use_collections(KNOWN)
        return consumer.ask_one()

    resumed = ask_again()
    assert (resumed.start_seqno, resumed.snap_end) == (2, 9)
    assert json.loads(resumed.value) == {**filtered, "purge_seqno": "5"}
    consumer.get(rollback(resumed, 0))
    request = consumer.ask_one()
    assert (request.start_seqno, json.loads(request.value or b"{}")) == (0, filtered)
    consumer.get(accept(request), replace(snapshot, opaque=request.opaque).encode(), mutation(request, 6, AIRLINE))
    assert json.loads(ask_again().value or b"{}") == filtered  # the position is above the purged deletions


@pytest.mark.parametrize("as_table", [False, True])
def test_events_are_rows_and_define_collection_names(as_table):
    consumer, request = open_stream()
    begun = system_event.CreatedCollection(5, 10, HIGH, "new", max_ttl=60)
    rows = consumer.get(
        marker(request, 1, 9),
        event(request, 1, SystemEventKind.SCOPE_CREATE, system_event.CreatedScope(4, 10, "sc"), as_table=as_table),
        event(request, 2, SystemEventKind.COLLECTION_BEGIN, begun, as_table=as_table),
        mutation(request, 3, HIGH),
        event(request, 4, SystemEventKind.COLLECTION_END, system_event.DroppedCollection(6, 10, HIGH)),
        event(request, 9, SystemEventKind.SCOPE_DROP, system_event.DroppedScope(0x1F, 10)),
    )
    assert [(row.seqno, row.event, row.collection_id, row.scope, row.collection) for row in rows] == [
        (1, Event.CREATE_SCOPE, None, "sc", None),
        (2, Event.BEGIN_COLLECTION, HIGH, "sc", "new"),
        (3, Event.MUTATION, HIGH, "sc", "new"),
        (4, Event.END_COLLECTION, HIGH, "sc", "new"),
        (9, Event.DROP_SCOPE, None, "sc", None),
    ]
    assert [row.key for row in rows] == [None, None, b"k3", None, None]
    assert json.loads(rows[1].value) == {"manifest_uid": "5", "scope_id": "a", "max_ttl": 60, "history": False}
    assert json.loads(rows[4].value) == {"manifest_uid": "1f", "scope_id": "a"}
    assert {(row.vbuuid, row.snapshot_start, row.snapshot_end, row.history) for row in rows} == {(11, 1, 9, 0)}
    consumer.reconnect()
    consumer.feed.use_collections(KNOWN)
    request = consumer.ask_one()
    assert (request.start_seqno, request.snap_end) == (9, 9)
    (row,) = consumer.get(accept(request), marker(request, 10, 10), mutation(request, 10, HIGH))
    assert (row.scope, row.collection) == ("sc", "new")


def test_changed_collection_is_a_row_with_its_new_settings():
    consumer, request = open_stream()
    changed = system_event.CreatedCollection(7, 9, AIRLINE, "airline", history=True)
    (row,) = consumer.get(
        marker(request, 1, 1), event(request, 1, SystemEventKind.COLLECTION_MODIFY, changed, as_table=True)
    )
    assert isinstance(row, Change)
    assert (row.event, row.scope, row.collection) == (Event.MODIFY_COLLECTION, "inventory", "airline")
    assert json.loads(row.value or b"") == {"manifest_uid": "7", "scope_id": "9", "max_ttl": None, "history": True}


def test_seqno_advance_completes_a_snapshot_without_a_row():
    consumer, request = open_stream({3: StreamTarget(end_seqno=30)})
    consumer.give(marker(request, 1, 20), mutation(request, 2), advanced(request, 20))
    (delivery,) = consumer.feed.deliveries
    assert (delivery.positions[3].seqno, delivery.positions[3].is_complete) == (20, True)
    assert [row.seqno for row in consumer.consume()] == [2]
    assert consumer.get(marker(request, 21, 30), advanced(request, 30), advanced(request, 30), end(request)) == []
    assert consumer.feed.is_done
    assert consumer.feed.take_positions()[3].seqno == 30


def test_seqno_advance_outside_its_snapshot_is_a_protocol_error():
    consumer, request = open_stream({3: StreamTarget(position=AT_20)})
    with pytest.raises(RemoteProtocolError, match="by_seqno 41 behind its snapshot's end 40"):
        consumer.give(marker(request, 21, 40), advanced(request, 41))
    consumer, request = open_stream({3: StreamTarget(position=AT_20)})
    with pytest.raises(RemoteProtocolError, match="by_seqno 19 after 20"):
        consumer.give(marker(request, 15, 40), advanced(request, 19))


def test_newer_version_of_the_marker_is_decoded():
    consumer, request = open_stream()
    newer = SnapshotMarkerV2(
        vbucket=3,
        opaque=request.opaque,
        version=2,
        start_seqno=1,
        end_seqno=5,
        flags=2,
        purge_seqno=0,
        high_prepared_seqno=0,
    )
    (row,) = consumer.get(newer.encode(), mutation(request, 5))
    assert (row.snapshot_start, row.snapshot_end, row.snapshot_flags) == (1, 5, 2)


BAD_EVENTS = [
    ({"event": 9, "version": 0, "key": b"", "value": b""}, "system event 9: version 0 is not known"),
    ({"event": 0, "version": 0, "key": b"c", "value": b"short"}, "value of 5 bytes, expected 16"),
]


@pytest.mark.parametrize(("about", "text"), BAD_EVENTS)
def test_malformed_event_ends_the_connection(about, text):
    consumer, request = open_stream()
    bad = SystemEvent(vbucket=3, opaque=request.opaque, by_seqno=1, **about).encode()
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        consumer.give(marker(request, 1, 1), bad)
    assert caught.value.fatal


def test_event_on_a_connection_without_collections_is_a_protocol_error():
    consumer, request = open_stream(known=None)
    begun = event(request, 1, SystemEventKind.COLLECTION_BEGIN, system_event.CreatedCollection(5, 9, HIGH, "new"))
    with pytest.raises(RemoteProtocolError, match="system event of a connection without collections"):
        consumer.give(marker(request, 1, 1), begun)


# Stream filters


FILTERS = [
    (CollectionSelection(), b""),
    (CollectionSelection("inventory"), b'{"scope": "9"}'),
    (CollectionSelection("inventory", ("hotel", "inventory.airline")), b'{"collections": ["8", "80"]}'),
    (CollectionSelection("", ("inventory.hotel", "_default", "_default._default")), b'{"collections": ["0", "80"]}'),
]


@pytest.mark.parametrize(("selection", "value"), FILTERS)
def test_selection_becomes_the_filter_of_stream_requests(selection, value):
    _, request = open_stream(selection=selection)
    assert request.value == value


def test_filter_keeps_its_collection_ids():
    """The same name may later be that of another collection, to which the positions do not apply."""
    consumer, request = open_stream(selection=CollectionSelection("inventory", ("hotel",)))
    consumer.reconnect()
    consumer.feed.use_collections(KnownCollections({"inventory": 9}, {("inventory", "hotel"): HIGH}))
    assert consumer.ask_one().value == request.value
    consumer.reconnect()
    consumer.feed.use_collections(KNOWN)
    request = consumer.ask_one()
    with pytest.raises(UnknownCollection, match="vbucket 3: stream from 0 refused, UNKNOWN_COLLECTION"):
        consumer.give(refuse(request, Status.UNKNOWN_COLLECTION))


@pytest.mark.parametrize(
    ("uid", "value"), [(4, b'{"collections": ["8", "80"]}'), (6, b'{"collections": ["80"]}')], ids=["older", "newer"]
)
def test_planned_ids_are_requested_unless_a_newer_manifest_lacks_them(uid, value):
    """A node with an older manifest than that of the plan may not know a new collection yet."""
    content = {"selection": BOTH, "skips_missing": True, "planned": KNOWN._replace(uid=5)}
    _, request = open_stream(known=WITH_NEW_AIRLINE._replace(uid=uid), **content)
    assert request.value == value


def test_stream_ends_when_all_its_collections_were_dropped():
    consumer, request = open_stream(selection=CollectionSelection("inventory"))
    ended = event(request, 5, SystemEventKind.COLLECTION_END, system_event.DroppedCollection(6, 9, HOTEL))
    rows = consumer.get(marker(request, 1, 5), ended, end(request, StreamEndReason.FILTER_EMPTY))
    assert [row.event for row in rows] == [Event.END_COLLECTION]
    assert consumer.feed.is_done


# Streams that follow names. The producer sends the messages of kv_engine, source collections/vbucket_filter.cc.

BOTH = CollectionSelection("inventory", ("airline", "hotel"))
WITHOUT_AIRLINE = KnownCollections({"inventory": 9}, {("inventory", "hotel"): HOTEL, ("inventory", "bar"): 0x81})
WITH_NEW_AIRLINE = KnownCollections({"inventory": 9}, {("inventory", "hotel"): HOTEL, ("inventory", "airline"): HIGH})


def ended(request, seqno, collection_id, scope_id=9):
    dropped = system_event.DroppedCollection(6, scope_id, collection_id)
    return event(request, seqno, SystemEventKind.COLLECTION_END, dropped)


def begun(request, seqno, collection_id, name):
    created = system_event.CreatedCollection(7, 9, collection_id, name)
    return event(request, seqno, SystemEventKind.COLLECTION_BEGIN, created)


@pytest.mark.parametrize("many", [1, SMALL_RUN + 5])
def test_request_is_wide_until_a_dropped_collection_exists_again(many):
    consumer, narrow = open_stream(selection=BOTH, follows_names=True)
    last = mutation(narrow, 6, HOTEL)
    rows = consumer.get(marker(narrow, 1, 9), mutation(narrow, 4, HOTEL), ended(narrow, 5, AIRLINE), last)
    assert [row.seqno for row in rows] == [4, 5]
    assert [type(message) for message in consumer.sent] == [CloseStream]
    assert consumer.feed.outdated_collections == {0}
    assert consumer.ask() == []
    assert consumer.feed.use_collections(WITHOUT_AIRLINE) == ("collection 'inventory.airline'",)
    wide = consumer.ask_one()
    assert (wide.start_seqno, wide.snap_end, wide.value) == (5, 9, b'{"scope": "9"}')
    first = 7 + many
    found = consumer.get(
        accept(wide),
        end(narrow, StreamEndReason.FILTER_EMPTY),
        marker(wide, 5, first + 9),
        mutation(wide, 6, HOTEL),
        *[mutation(wide, seqno, 0x81) for seqno in range(7, first)],
        begun(wide, first, 0x82, "pub"),
        begun(wide, first + 1, HIGH, "airline"),
        mutation(wide, first + 2, HIGH),
    )
    assert [(row.seqno, row.collection) for row in found] == [(6, "hotel"), (first + 1, "airline")]
    assert consumer.feed.dropped.frames[DropReason.OTHER_COLLECTION] == many + 1
    assert consumer.feed.use_collections(WITH_NEW_AIRLINE) == ()
    again = consumer.ask_one()
    assert (again.start_seqno, again.value) == (first + 1, b'{"collections": ["80", "cafef00d"]}')
    (row,) = consumer.get(accept(again), marker(again, first + 1, first + 9), mutation(again, first + 2, HIGH))
    assert row.collection == "airline"


def test_old_manifest_does_not_bring_a_dropped_collection_back():
    """After a failover, the manifest of a node may be older than its vbuckets."""
    consumer, request = open_stream(selection=BOTH, follows_names=True)
    consumer.give(marker(request, 1, 5), ended(request, 5, AIRLINE))
    consumer.feed.use_collections(KNOWN)
    assert consumer.ask_one().value == b'{"scope": "9"}'


def test_whole_bucket_is_requested_while_a_selected_scope_is_missing():
    consumer, request = open_stream(selection=CollectionSelection("inventory"), follows_names=True)
    assert request.value == b'{"scope": "9"}'
    dropped = event(request, 6, SystemEventKind.SCOPE_DROP, system_event.DroppedScope(6, 9))
    assert len(consumer.get(marker(request, 1, 6), ended(request, 5, HOTEL), dropped)) == 2
    consumer.feed.use_collections(KnownCollections({"_default": 0}, {("_default", "_default"): 0}))
    wide = consumer.ask_one()
    assert (wide.start_seqno, wide.value) == (6, b"")
    created = event(wide, 8, SystemEventKind.SCOPE_CREATE, system_event.CreatedScope(7, 10, "inventory"))
    (row,) = consumer.get(accept(wide), marker(wide, 7, 8), mutation(wide, 7), created)
    assert row.event == Event.CREATE_SCOPE
    consumer.feed.use_collections(KnownCollections({"_default": 0, "inventory": 10}, {}))
    assert consumer.ask_one().value == b'{"scope": "a"}'


@pytest.mark.parametrize(
    ("known", "status"),
    [(KNOWN, Status.UNKNOWN_COLLECTION), (WITHOUT_AIRLINE, Status.UNKNOWN_SCOPE), (WITHOUT_AIRLINE, Status.EACCESS)],
)
def test_refused_request_is_made_again_with_a_newer_manifest(known, status):
    """The manifest may change before the request arrives. A user may lack access to the scope of a wide request."""
    consumer = make_consumer(content=StreamContent(selection=BOTH, follows_names=True))
    consumer.feed.use_collections(known)
    consumer.give(refuse(consumer.ask_one(), status))
    (failure,) = consumer.feed.failures.pop_all()
    assert f"stream from 0 refused, {status.name}" in str(failure.error)
    consumer.feed.use_collections(WITH_NEW_AIRLINE)
    consumer.feed.request_again({3})
    assert consumer.ask_one().value == b'{"collections": ["80", "cafef00d"]}'


def test_refusal_of_selected_collections_to_the_user_is_an_error():
    consumer = make_consumer(content=StreamContent(selection=BOTH, follows_names=True))
    consumer.feed.use_collections(KNOWN)
    with pytest.raises(AccessDenied):
        consumer.give(refuse(consumer.ask_one(), Status.EACCESS))


def test_empty_filter_without_an_event_is_a_failed_stream():
    consumer, request = open_stream(selection=BOTH, follows_names=True)
    consumer.give(end(request, StreamEndReason.FILTER_EMPTY))
    assert consumer.feed.failures
    assert not consumer.feed.is_done
    assert consumer.feed.outdated_collections == {0}


MISSING = [
    (CollectionSelection("nope"), KNOWN, "the bucket has no scope 'nope'"),
    (CollectionSelection("inventory", ("nope",)), KNOWN, "the bucket has no collection 'inventory.nope'"),
    (CollectionSelection("", ("hotel",)), KNOWN, "the bucket has no collection '_default.hotel'"),
    (CollectionSelection("inventory"), None, "the node or the dialect does not support collections"),
    (CollectionSelection("", ("inventory.hotel",)), None, "the node or the dialect does not support collections"),
]


@pytest.mark.parametrize(("selection", "known", "text"), MISSING)
def test_missing_scope_or_collection_is_refused(selection, known, text):
    with pytest.raises(UsageError, match=text):
        make_consumer(content=StreamContent(selection=selection)).feed.use_collections(known)


def test_default_collection_exists_on_a_node_without_collections():
    consumer, request = open_stream(known=None, selection=CollectionSelection("", ("_default",)))
    assert request.value == b""
    consumer, _ = open_stream()
    with pytest.raises(UsageError, match="the node or the dialect does not support collections"):
        consumer.feed.use_collections(None)


@pytest.mark.parametrize(
    ("name", "scope", "expected"),
    [
        ("a", "", ("_default", "a")),
        ("a", "s", ("s", "a")),
        ("s.a", "", ("s", "a")),
        ("_default", "", ("_default", "_default")),
    ],
)
def test_names_are_qualified(name, scope, expected):
    assert qualify_name(name, scope) == expected


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a.b.c"])
def test_invalid_names_are_refused(name):
    with pytest.raises(UsageError, match=r"expected name or scope\.name"):
        qualify_name(name)


def test_collection_of_another_scope_is_refused():
    with pytest.raises(UsageError, match=r"collection 'b\.c' is not in scope 'a'"):
        CollectionSelection("a", ("c", "b.c"))


def test_manifest_is_parsed():
    manifest = {
        "uid": "1f",
        "scopes": [
            {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
            {"name": "_system", "uid": "8", "collections": [{"name": "_query", "uid": "9", "maxTTL": 5}]},
            {"name": "s", "uid": "a", "collections": []},
        ],
    }
    known = parse_manifest(json.dumps(manifest).encode())
    assert known.scopes == {"_default": 0, "_system": 8, "s": 10}
    assert known.collections == {("_default", "_default"): 0, ("_system", "_query"): 9}


BAD_MANIFESTS = [
    b"",
    b"[]",
    b"\xff",
    b'{"scopes": 1}',
    b'{"scopes": [{"name": "s"}]}',
    b'{"scopes": [{"name": "s", "uid": "x", "collections": []}]}',
    b'{"scopes": [{"name": "s", "uid": "100000000", "collections": []}]}',
    b'{"scopes": [{"name": "s", "uid": 1, "collections": []}]}',
]


@pytest.mark.parametrize("manifest", BAD_MANIFESTS)
def test_malformed_manifest_is_refused(manifest):
    with pytest.raises(RemoteProtocolError, match="collections manifest of"):
        parse_manifest(manifest)


# Extended attributes


def test_extended_attributes_are_separated_on_request():
    value = pack_xattrs({"_sync": b"{}"}, b"body")
    for xattrs in (False, True):
        consumer, request = open_stream(xattrs=xattrs)
        marked = mutation(request, 1, value=value, datatype=Datatype.XATTR | Datatype.JSON)
        (row,) = consumer.get(marker(request, 1, 1), marked)
        if xattrs:
            assert (row.value, row.datatype, row.xattrs) == (b"body", Datatype.JSON, {"_sync": b"{}"})
        else:
            assert (row.value, row.datatype, row.xattrs) == (value, Datatype.XATTR | Datatype.JSON, None)


# Several connections at a time


def test_each_connection_is_acknowledged_its_own_bytes():
    consumer = make_consumer({3: StreamTarget(), 5: StreamTarget()}, window=1 << 10)
    consumer.feed.connection_ids.update({3: 0, 5: 1})
    one, two = consumer.ask()
    acks = []
    for connection_id, request in ((0, one), (1, two)):
        data = accept(request) + marker(request, 1, 9) + mutation(request, 1, value=b"v" * (1 << 10))
        acks.append(consumer.feed.receive(consumer.incoming.feed(data), connection_id))
    assert acks == [b"", b""]
    first, second = consumer.feed.deliveries
    assert (first.connection_id, second.connection_id) == (0, 1)
    for delivery in (second, first):
        acks.append(consumer.feed.acknowledge(delivery))
    assert [int.from_bytes(ack[-4:], "big") for ack in acks[2:]] == [first.nbytes, first.nbytes]
