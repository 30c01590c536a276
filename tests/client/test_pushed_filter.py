"""Filters that the producer applies: the same changes and positions as without them, in fewer bytes."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import connect
from penstock.client.filters.change_filter import ChangeFilter
from penstock.client.filters.filter_control import FILTER_SETTING
from penstock.client.filters.unreadable_changes import UnreadableChanges
from penstock.node import Node
from penstock.store.documents.conflict import Meta
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.values.collection_key import pack_collection_id
from penstock.wire.values.snappy import deflate
from tests.client.peer import in_loop
from tests.client.restarting import RestartingServer
from tests.client.scripted_release import RELEASES, ReleaseServer
from tests.node.manifests import ALE, ALES, DEFAULT, LAGER, LAGERS, make_beers, set_scopes
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE

J, Z, X = Datatype.JSON, Datatype.SNAPPY, Datatype.XATTR
MINE = pack_xattrs({"owner": b'"me"', "_sync": b"1"})
LARGE = b'{"abv": 9, "name": "large", "text": "%s"}' % (b"x" * 40_000)
VALUES = [
    (b'{"abv": 4, "name": "bitter"}', J),
    (b'{"abv": 7}', J),
    (deflate(b'{"abv": 8, "name": "bock"}'), J | Z),
    (MINE + b'{"abv": 6}', J | X),
    (deflate(MINE + b'{"abv": 2, "name": "b"}'), J | X | Z),
    (b"no JSON", Datatype.RAW),
    (b'{"abv": 9, "name": "\\ud800", "x": 1e400}', J),
    (b'{"abv": -1e999, "name": "b", "x": "\\ud800"}', J),
    (b'{"abv": 9, "x": ' + b"[" * 2000 + b"]" * 2000 + b"}", J),
    (LARGE, J),
    (deflate(LARGE), J | Z),
]
FILTERS = [
    {"filter_key": "^ale"},
    {"filter_key": "[05]$|\xe9"},
    {"filter_key": "nothing"},
    {"filter_key_exclude": "^ale"},
    {"filter_key": "a", "filter_key_exclude": "[05]$", "filter_value": "abv < 500"},
    {"filter_value": "abv >= 6"},
    {"filter_key": "a", "filter_value": "EXISTS(name) OR abv < 5"},
    {"filter_value": "REGEXP_CONTAINS(name, '^b')"},
    {"filter_value": "META().id = 'gin1' OR META().expiration > 0"},
    {"filter_value": "META().xattrs.owner = 'me' AND abv > 2", "xattrs": True},
]

keys = st.sampled_from(["ale0", "ale1", "gin1", "gin5", "caf\xe9"]).map(str.encode)
edits = st.tuples(
    st.integers(0, 1),
    st.sampled_from([0, ALES, LAGERS]),
    keys,
    st.sampled_from([*VALUES, Event.DELETION, Event.EXPIRATION]),
    st.sampled_from([0, 2**31]),
)


def edit_documents(node, steps):
    """Store and delete documents in the log's forms."""
    served = node.buckets["beer"]
    for vb, collection, name, content, expiry in steps:
        vbucket, key = served.store.vbuckets[vb], pack_collection_id(collection) + name
        if isinstance(content, Event):
            meta = Meta(cas=1, rev_seqno=1, flags=0, expiry=0, datatype=0, deleted=True)
            vbucket.incoming.store_with_meta(content, key, b"", meta, resolve=False)
        else:
            vbucket.set(key, content[0], datatype=int(content[1]), expiry=expiry)
    served.notify()


async def read(bucket, start, **options):
    """Return the changes up to now, the positions after them, and the counts of the stream."""
    async with asyncio.timeout(PATIENCE), await bucket.stream(start, "now", **options) as stream:
        return [each async for each in stream.changes()], stream.positions, stream.counts


def arrange(changes):
    """Return changes in the order of their vbuckets and seqnos."""
    return sorted(changes, key=lambda each: (each.vbucket, each.seqno))


@pytest.fixture(scope="module")
def node():
    with Node.running(["beer"], vbuckets=2) as node:
        with connected(node, "beer") as client:
            set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER | {"maxTTL": 0}))
        yield node


@given(steps=st.lists(edits, max_size=40), later=st.lists(edits, max_size=10), options=st.sampled_from(FILTERS))
def test_pushed_filter_changes_nothing_but_the_bytes(node, steps, later, options):
    only = ChangeFilter(
        options.get("filter_key"), options.get("filter_value"), excluded_key=options.get("filter_key_exclude")
    )
    everything = {name: value for name, value in options.items() if name == "xattrs"}

    async def compare(bucket, start):
        expected, positions, _ = await read(bucket, start, **everything)
        found, found_positions, counts = await read(bucket, start, **options)
        unreadable = UnreadableChanges()
        assert arrange(found) == arrange(only.select_changes(expected, unreadable))
        assert counts.unreadable.count == unreadable.count
        assert found_positions == positions
        return positions

    async def main():
        async with connect(node.url("beer")) as bucket:
            run(node, lambda: edit_documents(node, steps))
            positions = await compare(bucket, "beginning")
            run(node, lambda: edit_documents(node, later))
            await compare(bucket, positions)

    asyncio.run(main())


@in_loop
async def test_snapshot_out_of_order_ends_after_changes_that_were_left_out(node):
    run(node, lambda: edit_documents(node, [(0, ALES, b"gin%d" % number, VALUES[0], 0) for number in range(20)]))
    url, chosen = node.url("beer"), {"collections": ["beers.ales"]}
    async with connect(url) as bucket:
        _, positions, _ = await read(bucket, "beginning", **chosen)
    async with connect(f"{url}?outOfOrder=true") as bucket:
        found, unordered, _ = await read(bucket, "beginning", filter_key="^rum", **chosen)
    assert not [each for each in found if each.key]
    assert [each.seqno for each in unordered.values()] == [each.seqno for each in positions.values()]


def fill(node, count):
    """Store documents, of which each hundredth has a key with "ale"."""
    names = [b"%s%d" % (b"ale" if number % 100 == 0 else b"gin", number) for number in range(count)]
    run(node, lambda: edit_documents(node, [(0, 0, name, (b"v" * 500, 0), 0) for name in names]))


@in_loop
async def test_cut_stream_resumes_after_the_changes_that_were_left_out():
    with Node.running(["beer"], vbuckets=1) as node, RestartingServer(node) as server:
        fill(node, 20_000)
        async with connect(server.url()) as bucket, await bucket.stream(filter_key="^ale") as stream:
            changes = stream.changes()
            found = [await anext(changes)]
            server.restart()
            fill(node, 20_000)
            while (found[-1].seqno or 0) < 39_901:
                found.append(await anext(changes))
            assert {each.key for each in found} == {b"ale%d" % number for number in range(0, 20_000, 100)}
            seqnos = [each.seqno or 0 for each in found]
            assert seqnos == sorted({*seqnos})
            settings = {frame.key: frame.value for frame in server.requests if frame.opcode == Opcode.DCP_CONTROL}
            assert json.loads(settings[FILTER_SETTING.encode()]) == {"key": "^ale"}
            assert len([frame for frame in server.requests if frame.key == FILTER_SETTING.encode()]) >= 2
            assert stream.counts.received_bytes < len(found) * 1000


@in_loop
async def test_filtered_stream_is_rolled_back():
    with Node.running(["beer"], vbuckets=1) as node:
        port = node.kv_port
        fill(node, 300)
        async with connect(node.url("beer")) as bucket:
            _, positions, _ = await read(bucket, "beginning", filter_key="^ale")
    with Node.running(["beer"], vbuckets=1, port=port) as node:
        fill(node, 150)
        async with connect(node.url("beer")) as bucket:
            found, positions, _ = await read(bucket, positions, filter_key="^ale")
    assert [each.key or each.event for each in found] == [Event.ROLLBACK, b"ale0", b"ale100"]
    assert (positions[0].seqno, positions[0].history) == (150, 1)


@pytest.mark.parametrize(
    "release", [each for each in RELEASES.values() if each.protocol == "dcp"], ids=lambda each: each.name
)
@in_loop
async def test_client_filters_by_itself_at_producers_that_refuse_the_setting(release):
    async with (
        ReleaseServer(release) as server,
        connect(server.url(), username=server.user, password=server.password) as bucket,
    ):
        changes = arrange([each async for each in bucket.changes(stop="now")])
        only = ChangeFilter("[aeiou1]")
        found = [each async for each in bucket.changes(stop="now", filter_key="[aeiou1]")]
        assert arrange(found) == only.select_changes(changes, UnreadableChanges())
        (asked,) = (frame for frame in server.find_requests(Opcode.DCP_CONTROL) if frame.key == b"penstock_filter")
        assert json.loads(asked.value) == {"key": "[aeiou1]"}


@in_loop
async def test_client_filters_by_itself_if_the_node_refuses_the_expression():
    with Node.running(["beer"], vbuckets=1) as node:
        fill(node, 300)
        async with connect(node.url("beer")) as bucket:
            found, _, counts = await read(bucket, "beginning", filter_key="^(ale[0-9]{1,50}){1,20}$")
            assert [each.key for each in found] == [b"ale0", b"ale100", b"ale200"]
            assert counts.received_bytes > 300 * 500
