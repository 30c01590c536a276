"""Collections of a node: documents in them, and their changes."""

import json

import pytest

from penstock import BulkWriter, Node, connect
from penstock.errors import (
    KeyExists,
    KeyNotFound,
    NoSuchCollection,
    RemoteProtocolError,
    UnknownCollection,
    UnknownScope,
    UsageError,
)
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Event
from penstock.wire.messages.collections import CollectionIdReply
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import pack_features
from tests.client.peer import Script, in_loop, reply
from tests.node.watch import run

VBUCKETS = 4


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        change(node, lambda manifest: manifest.with_scope("inventory"))
        change(node, lambda manifest: manifest.with_collection("inventory", "airline"))
        change(node, lambda manifest: manifest.with_collection("inventory", "hotel", 60))
        yield node


@pytest.fixture
def url(node):
    return node.url("beer")


def change(node, edit):
    """Change the collections of a node's bucket: `edit` returns the new manifest from the current one."""
    bucket = node.buckets["beer"]
    run(node, lambda: bucket.change_manifest(edit(bucket.store.manifests.current)))


AIRLINE = "inventory.airline"


@in_loop
async def test_columns_are_written_to_a_collection(url):
    async with BulkWriter(url) as writer, connect(url) as bucket:
        assert (await writer.upsert(["k"], ["column"], collection=AIRLINE)).faults == {}
        assert (await bucket.get("k", collection=AIRLINE)).value == b"column"
        assert (await writer.delete(["k"], collection=AIRLINE)).faults == {}
        with pytest.raises(UnknownCollection):
            await writer.upsert(["k"], ["column"], collection="inventory.none")


@in_loop
async def test_a_key_is_a_different_document_in_each_collection(url):
    async with connect(url) as bucket:
        await bucket.upsert("k", b"default")
        cas = await bucket.insert("k", b"airline", collection=AIRLINE)
        with pytest.raises(KeyExists, match=r"^ADD b'k': KEY_EEXISTS"):
            await bucket.insert("k", b"again", collection=AIRLINE)
        await bucket.replace("k", b"another", cas=cas, collection=AIRLINE)
        assert (await bucket.get("k")).value == b"default"
        assert (await bucket.get("k", collection=AIRLINE)).value == b"another"
        assert await bucket.get_many(["k", "l"], collection="inventory.hotel") == [None, None]
        assert await bucket.remove_many(["k", "l"], collection=AIRLINE) == 1
        with pytest.raises(KeyNotFound):
            await bucket.remove("k", collection=AIRLINE)
        assert (await bucket.get("k", collection="_default")).value == b"default"
        assert len(await bucket.upsert_many([(f"k{number}", b"") for number in range(900)], collection=AIRLINE)) == 900
        assert None not in await bucket.get_many([f"k{number}" for number in range(900)], collection=AIRLINE)


@pytest.mark.parametrize("name", ["nope.c", "inventory.nope", "nope", "_default.nope"])
@in_loop
async def test_missing_collection_is_an_error(url, name):
    path = name if "." in name else f"_default.{name}"
    async with connect(url) as bucket:
        with pytest.raises((UnknownCollection, UnknownScope)) as caught:
            await bucket.upsert("k", b"v", collection=name)
        assert str(caught.value) == f"no collection {path!r} in {bucket.address}"


@pytest.mark.parametrize("name", ["a.b.c", ".", "a."])
@in_loop
async def test_invalid_collection_name_is_refused(url, name):
    async with connect(url) as bucket:
        with pytest.raises(UsageError, match=r"expected name or scope\.name"):
            await bucket.get("k", collection=name)


@pytest.mark.long
@in_loop
async def test_recreated_collection_has_a_new_id(node, url):
    async with connect(url) as bucket:
        await bucket.upsert("k", b"v", collection=AIRLINE)
        change(node, lambda manifest: manifest.without_collection("inventory", "airline"))
        with pytest.raises(UnknownCollection):
            await bucket.upsert("k", b"v", collection=AIRLINE)
        change(node, lambda manifest: manifest.with_collection("inventory", "airline"))
        assert await bucket.get_many(["k"], collection=AIRLINE) == [None]
        await bucket.insert("k", b"v", collection=AIRLINE)
        change(node, lambda manifest: manifest.without_collection("inventory", "airline"))
        change(node, lambda manifest: manifest.with_collection("inventory", "airline"))
        await bucket.insert("k", b"w", collection=AIRLINE)
        assert (await bucket.get("k", collection=AIRLINE)).value == b"w"


@in_loop
async def test_unknown_collection_id_is_requested_once_more():
    asked = []

    def answer(peer, frame):
        if frame.opcode == Opcode.HELLO:
            return reply(frame, value=pack_features([Feature.COLLECTIONS]))
        if frame.opcode == Opcode.COLLECTIONS_GET_ID:
            asked.append(frame.value)
            return CollectionIdReply(opaque=frame.opaque, manifest_uid=1, collection_id=len(asked) + 7).encode()
        if frame.opcode == Opcode.GET:
            return reply(frame, Status.UNKNOWN_COLLECTION)
        return None

    async with Script(answer) as script, connect(script.url()) as bucket:
        with pytest.raises(UnknownCollection, match=r"^GET b'k': UNKNOWN_COLLECTION$"):
            await bucket.get("k", collection="s.c")
        assert asked == [b"s.c"] * 2
        keys = [frame.key for frame in script.peers[0].requests if frame.opcode == Opcode.GET]
        assert keys == [b"\x08k", b"\x09k"]


@in_loop
async def test_node_without_collections_has_only_the_default_collection():
    async with Script() as script, connect(script.url()) as bucket:
        await bucket.get("k", collection="_default._default")
        assert script.peers[0].requests[-1].key == b"k"
        with pytest.raises(UsageError, match=r"collection 's\.c' of a node that has none"):
            await bucket.get("k", collection="s.c")


@in_loop
async def test_collections_that_appear_on_a_new_connection_are_an_error():
    """Otherwise keys without a collection ID would be taken for keys with one."""
    features = [b"", pack_features([Feature.COLLECTIONS])]

    def answer(peer, frame):
        return reply(frame, value=features.pop(0)) if frame.opcode == Opcode.HELLO else None

    async with Script(answer) as script, connect(script.url(retrySeconds=0.2)) as bucket:
        script.peers[0].transport.abort()
        with pytest.raises(RemoteProtocolError, match="has collections now, it had none, or does so on another node"):
            await bucket.get("k")


# Changes


async def fill(bucket):
    await bucket.upsert("d", b"default")
    await bucket.upsert("a", b"airline", collection=AIRLINE)
    await bucket.upsert("h", b"hotel", collection="inventory.hotel")
    await bucket.remove("h", collection="inventory.hotel")


async def changes(bucket, **filters):
    found = [change async for change in bucket.changes(stop="now", **filters)]
    return {(change.event, change.scope, change.collection, change.key) for change in found}


EVENTS = {
    (Event.BEGIN_COLLECTION, "inventory", "airline", None),
    (Event.BEGIN_COLLECTION, "inventory", "hotel", None),
    (Event.CREATE_SCOPE, "inventory", None, None),
}
DEFAULT = (Event.MUTATION, "_default", "_default", b"d")
OF_AIRLINE = (Event.MUTATION, "inventory", "airline", b"a")
OF_HOTEL = (Event.DELETION, "inventory", "hotel", b"h")


@in_loop
async def test_stream_has_events_and_documents_of_all_collections(url):
    async with connect(url) as bucket:
        await fill(bucket)
        assert await changes(bucket) == {*EVENTS, DEFAULT, OF_AIRLINE, OF_HOTEL}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"scope": "inventory"}, {OF_AIRLINE, OF_HOTEL}),
        ({"scope": "inventory", "collections": ["airline"]}, {OF_AIRLINE}),
        ({"collections": [AIRLINE, "_default"]}, {OF_AIRLINE, DEFAULT}),
        ({"collections": ["_default"]}, {DEFAULT}),
    ],
)
@in_loop
async def test_filtered_stream_has_only_the_selected_collections(node, filters, expected):
    async with connect(node.url("beer")) as bucket:
        await fill(bucket)
        rows = await changes(bucket, **filters)
        assert rows - EVENTS == expected
        options = f"?scope={filters.get('scope', '')}" if "scope" in filters else "?"
        if "collections" in filters:
            options += "&collections=" + ",".join(filters["collections"])
    async with connect(node.url("beer") + options) as bucket:
        assert await changes(bucket) == rows


@in_loop
async def test_filtered_stream_resumes_at_its_positions(url):
    async with connect(url) as bucket:
        await fill(bucket)
        async with await bucket.stream(stop="now", collections=[AIRLINE]) as stream:
            assert [change.key async for change in stream.changes() if change.key] == [b"a"]
        positions = stream.positions
        high_seqnos = await bucket.high_seqnos()
        assert {vb: position.seqno for vb, position in positions.items()} == high_seqnos
        await fill(bucket)
        async with await bucket.stream(positions, "now", collections=[AIRLINE]) as stream:
            assert [change.key async for change in stream.changes()] == [b"a"]


@in_loop
async def test_stream_of_a_dropped_collection_has_its_end_in_each_vbucket(node, url):
    async with connect(url) as bucket, await bucket.stream(collections=[AIRLINE]) as stream:
        found = stream.changes()
        for _ in range(VBUCKETS):
            assert (await anext(found)).event == Event.BEGIN_COLLECTION
        await bucket.upsert("a", b"v", collection=AIRLINE)
        assert (await anext(found)).key == b"a"
        change(node, lambda manifest: manifest.without_collection("inventory", "airline"))
        ended = [await anext(found) for _ in range(VBUCKETS)]
        assert [(row.event, row.collection) for row in ended] == [(Event.END_COLLECTION, "airline")] * VBUCKETS
        assert sorted(row.vbucket for row in ended) == [*range(VBUCKETS)]


@in_loop
async def test_collection_names_are_learned_from_the_stream(node, url):
    async with connect(url) as bucket, await bucket.stream("now", vbuckets=[0]) as stream:
        found = stream.changes()
        waiting = anext(found)
        change(node, lambda manifest: manifest.with_scope("later"))
        assert (await waiting).event == Event.CREATE_SCOPE
        change(node, lambda manifest: manifest.with_collection("later", "on"))
        begun = await anext(found)
        assert (begun.event, begun.scope, begun.collection) == (Event.BEGIN_COLLECTION, "later", "on")
        assert json.loads(begun.value or b"")["max_ttl"] is None
        change(node, lambda manifest: manifest.with_max_ttl("later", "on", 7))
        changed = await anext(found)
        assert (changed.event, json.loads(changed.value or b"")["max_ttl"]) == (Event.MODIFY_COLLECTION, 7)


@in_loop
async def test_impossible_filter_is_an_error(url):
    async with connect(url) as bucket:
        with pytest.raises(NoSuchCollection, match="the bucket has no scope 'nope'"):
            await bucket.stream(scope="nope")
        with pytest.raises(UsageError, match="upr has no collections; protocol dcp has"):
            await bucket.stream(scope="inventory", protocol="upr")


@pytest.mark.parametrize("protocol", [each for each in Dialect if each is not Dialect.DCP])
@in_loop
async def test_other_dialects_have_only_the_default_collection(url, protocol):
    async with connect(url) as bucket:
        await fill(bucket)
        assert await changes(bucket, protocol=protocol) == {(Event.MUTATION, None, None, b"d")}


@in_loop
async def test_extended_attributes_are_delivered_on_request(node, url):
    value = pack_xattrs({"_sync": b'{"rev":1}', "own": b"1"}, b'{"a":1}')
    vbucket = node.buckets["beer"].store.vbuckets[3]
    run(node, lambda: vbucket.set(b"\0x", value, datatype=Datatype.XATTR | Datatype.JSON))
    async with connect(url) as bucket:
        for xattrs, expected in ((False, None), (True, {"_sync": b'{"rev":1}', "own": b"1"})):
            (row,) = [row async for row in bucket.changes(stop="now", vbuckets=[3], xattrs=xattrs) if row.key]
            assert (row.value, row.datatype, row.xattrs) == (b'{"a":1}', Datatype.JSON, expected)


@in_loop
async def test_a_tap_dump_is_compared_with_the_default_collection(node, url):
    """TAP has only the default collection: other documents are neither sent nor counted as missing."""
    async with connect(url) as bucket:
        await bucket.upsert_many([(f"k{number}", b"v") for number in range(20)])
        await bucket.upsert_many([(f"k{number}", b"v") for number in range(30)], collection=AIRLINE)
        counts = await bucket.reports.item_counts()
        assert counts is not None
        assert sum(count.items for count in counts.values()) == 20
        assert len([change async for change in bucket.changes(stop="now", protocol="tap")]) == 20
