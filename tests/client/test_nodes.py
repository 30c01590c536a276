"""Buckets on several nodes: which node gets which request, and the effect of a new cluster map."""

import asyncio
import json
from contextlib import ExitStack

import pytest

from penstock import connect
from penstock.client.connect.cluster_map import ClusterMap, parse_cluster_map
from penstock.client.documents.document import compute_vbucket
from penstock.errors import KeyExists, NotMyVbucket, RemoteProtocolError, ServiceMissing, Unreachable, UsageError
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import StreamReq
from penstock.wire.messages.kv import SetVbucket
from tests.client.peer import Script, documents, in_loop, reply
from tests.client.producer import accept, end, marker, mutations
from tests.node.balanced_nodes import run_nodes
from tests.node.wire_client import connected
from tests.waiting import pass_turns

# Maps


def config(servers, owners, **others):
    content = {"vBucketServerMap": {"serverList": servers, "vBucketMap": [[owner, -1] for owner in owners]}, **others}
    return json.dumps(content).encode()


HERE = ("here", 11210)
EXTENDED = [
    {"services": {"kv": 1, "kvSSL": 101, "mgmt": 9}, "hostname": "a"},
    {"services": {"kv": 2, "kvSSL": 102}, "thisNode": True},
    {"services": {"mgmt": 9}, "hostname": "c"},
]

MAPS = [
    (config(["h:1"], [0, 0]), {}, ((HERE,), (0, 0))),
    (config(["$HOST:1"], [-1, 0]), {}, ((HERE,), (0, 0))),
    (config(["a:1"], [0], nodesExt=EXTENDED[:1]), {}, ((("a", 1),), (0,))),  # the dialled node was removed
    (config(["a:1"], [0], nodesExt=[{"services": {}, "hostname": "a", "thisNode": True}]), {}, ((HERE,), (0,))),
    (config(["a:1", "b:2"], [1, 0, -1]), {}, ((("a", 1), ("b", 2)), (1, 0, -1))),
    (config(["$HOST:1", "[::1]:2"], [0, 1]), {}, ((("here", 1), ("::1", 2)), (0, 1))),
    (config(["a:1", "$HOST:2"], [0, 1], nodesExt=EXTENDED), {}, ((("a", 1), HERE), (0, 1))),
    (config(["a:1", "$HOST:2"], [0, 1], nodesExt=EXTENDED), {"tls": True}, ((("a", 101), HERE), (0, 1))),
    (config(["a:101", "here:11210"], [0, 1], nodesExt=EXTENDED), {}, ((("a", 101), HERE), (0, 1))),
]


@pytest.mark.parametrize(("data", "options", "expected"), MAPS)
def test_cluster_map_is_parsed(data, options, expected):
    found = parse_cluster_map(data, HERE, **options)
    assert found == ClusterMap(*expected)
    assert found.version == (0, 0)
    assert found.vbuckets == len(expected[1])


BAD_MAPS = [
    (config(["a:1", "b:2"], [2]), "a vbucket on node 2 of 2"),
    (config(["a:1", "b:2"], [-2]), "a vbucket on node -2 of 2"),
    (config(["a:1", "b"], [0]), "the server 'b', expected host:port"),
    (config(["a:1", "b:x"], [0]), "the server 'b:x', expected host:port"),
    (config(["a:1", "a:1"] * 600, [0]), "1200 nodes, expected 1 to 1024"),
    (config(["a:1", "b:2"], [0]).replace(b"[0, -1]", b"[]"), "Expected `array` of length >= 1"),
    (config(["a:1", "b:2"], [0] * 70_000), "70000 vbuckets, expected 1 to 65536"),
]


@pytest.mark.parametrize(("data", "text"), BAD_MAPS)
def test_impossible_cluster_map_is_refused(data, text):
    with pytest.raises(RemoteProtocolError, match=text):
        parse_cluster_map(data, HERE)


def test_cluster_map_without_a_tls_port_is_refused():
    with pytest.raises(ServiceMissing, match="no data port with TLS of b:2"):
        parse_cluster_map(config(["a:1", "b:2"], [0], nodesExt=EXTENDED), HERE, tls=True)


# Real nodes


VBUCKETS, NODES = 8, 3


@pytest.fixture(scope="module")
def nodes():
    with ExitStack() as stack:
        yield run_nodes(stack, NODES, vbuckets=VBUCKETS)


@pytest.fixture
def url(nodes):
    return f"couchbase://127.0.0.1:{nodes[1].kv_port}/beer"


@in_loop
async def test_documents_are_stored_on_the_nodes_of_their_vbuckets(nodes, url):
    async with connect(url) as bucket:
        await bucket.upsert_many(documents(0, 600))
        found = await bucket.get_many([key for key, _ in documents(0, 601)])
        assert [document and document.value for document in found] == [*(value for _, value in documents(0, 600)), None]
        with pytest.raises(KeyExists):
            await bucket.insert("k1", b"")
        high_seqnos = await bucket.high_seqnos()
        assert sorted(high_seqnos) == [*range(VBUCKETS)]
        assert sum(high_seqnos.values()) >= 600
        infos = await bucket.vbucket_infos()
        assert {vb: info.high_seqno for vb, info in infos.items()} == high_seqnos
        stored = [sum(vbucket.changes.high_seqno for vbucket in node.buckets["beer"].store.vbuckets) for node in nodes]
        assert all(stored)
        assert sum(stored) == sum(high_seqnos.values())
        assert await bucket.remove_many(key for key, _ in documents(0, 601)) == 600


@pytest.mark.parametrize("protocol", ["dcp", "upr", "upr-draft"])
@in_loop
async def test_changes_come_from_all_nodes(url, protocol):
    async with connect(url) as bucket:
        await bucket.upsert_many(documents(0, 600))
        rows = [row async for row in bucket.changes(stop="now", protocol=protocol)]
        latest = {row.key: row for row in rows}
        assert sum(row.event == "mutation" for row in latest.values()) == 600
        assert {row.vbucket for row in rows} == {*range(VBUCKETS)}
        async with await bucket.stream("now", protocol=protocol) as stream:
            found = stream.changes()
            for vbucket in range(VBUCKETS):
                key = next(
                    f"n{number}" for number in range(1000) if compute_vbucket(b"n%d" % number, VBUCKETS) == vbucket
                )
                await bucket.upsert(key, protocol.encode())
                change = await anext(found)
                assert (change.vbucket, change.key) == (vbucket, key.encode())
        await bucket.flush()
        assert await bucket.get_many(["k1", "n1"]) == [None, None]


@in_loop
async def test_stream_connects_only_to_the_nodes_that_it_needs(nodes, url):
    async with connect(url) as bucket, await bucket.stream(vbuckets=[0]) as stream:
        await bucket.upsert_many(documents(0, 50))
        await anext(stream.changes())
        assert len(stream._connections.by_id) == 2  # to the node in the URL, and to the node of the vbucket
    async with connect(url) as bucket:
        assert await bucket.stats("vbucket-seqno")


@in_loop
async def test_totals_are_sums_over_all_nodes(nodes, url):
    async with connect(url) as bucket:
        await bucket.upsert_many(documents(0, 100))
        totals = await bucket.total_stats()
        assert totals["curr_items"] >= 100
        assert 0 < int((await bucket.stats())["curr_items"]) < totals["curr_items"]
        assert "ep_version" not in totals


@in_loop
async def test_tap_stream_of_several_nodes_is_refused(url):
    async with connect(url) as bucket, await bucket.stream(protocol="tap") as stream:
        with pytest.raises(UsageError, match="is on 3 nodes, expected one node for TAP"):
            await anext(stream.changes())


@in_loop
async def test_vbucket_on_no_node_is_waited_for(nodes, url):
    def set_state(state):
        with connected(nodes[0], "beer") as client:
            assert client.status(SetVbucket(vbucket=0, state=state)) == Status.SUCCESS

    key = next(f"n{number}" for number in range(1000) if compute_vbucket(b"n%d" % number, VBUCKETS) == 0)
    async with connect(url) as bucket:
        await bucket.upsert(key, b"v")
        set_state(VbucketState.DEAD)
        # The map does not change: it is the orchestrator's.
        async with connect(url + "?retrySeconds=0.2") as hasty:
            with pytest.raises(Unreachable, match="NOT_MY_VBUCKET"):
                await hasty.remove(key)
        writing = asyncio.ensure_future(bucket.remove(key))
        reading = asyncio.ensure_future(bucket.get_many([key]))
        await pass_turns()
        set_state(VbucketState.ACTIVE)
        await writing
        await reading


@in_loop
async def test_vbucket_without_a_node_in_the_map_is_named(penstock_cluster):
    cluster = await asyncio.to_thread(penstock_cluster, 3, vbuckets=VBUCKETS)
    result = await asyncio.to_thread(cluster.bucket.fail_over, 0)
    assert result.lost[0] == 0
    key = next(f"n{number}" for number in range(1000) if compute_vbucket(b"n%d" % number, VBUCKETS) == 0)
    async with (
        connect(cluster.bucket.url + "?retrySeconds=0.2") as hasty,
        await hasty.stream(vbuckets=[0]) as stream,
    ):
        for call in (hasty.remove(key), anext(stream.changes())):
            with pytest.raises(Unreachable, match=r"vbucket 0 \(1 of 8\) is not served by couchbase://127.0.0.1"):
                await call


@pytest.mark.parametrize("asked", [0, 1], ids=["its node", "another node"])
@in_loop
async def test_read_up_to_now_names_a_vbucket_on_no_node(nodes, asked):
    """The map of the orchestrator still has the vbucket on its node."""
    url = f"couchbase://127.0.0.1:{nodes[asked].kv_port}/beer"
    with connected(nodes[0], "beer") as client:
        assert client.status(SetVbucket(vbucket=0, state=VbucketState.DEAD)) == Status.SUCCESS
        try:
            async with connect(url + "?retrySeconds=0.2") as bucket:
                with pytest.raises(Unreachable, match=rf"vbucket 0 \(1 of {VBUCKETS}\) is not served by"):
                    await anext(bucket.changes(stop="now"))
                with pytest.raises(Unreachable, match=rf"vbucket 0 \(1 of {VBUCKETS}\) is not served by"):
                    await bucket.vbucket_infos()
            async with connect(url + "?missingVbuckets=skip") as bucket:
                found = {row.vbucket async for row in bucket.changes(stop="now")}
                infos = await bucket.vbucket_infos()
                assert (0 in found, bucket.missing, [*infos]) == (False, (0,), [*range(1, VBUCKETS)])
        finally:
            assert client.status(SetVbucket(vbucket=0, state=VbucketState.ACTIVE)) == Status.SUCCESS


# Scripted nodes


def make_two_scripts(vbuckets=2):
    """Return two scripts. The first one has all vbuckets until `assign_vbuckets` assigns them."""
    one, two = Script(vbuckets=vbuckets), Script(vbuckets=vbuckets)
    return one, two


def assign_vbuckets(scripts, owners):
    """Give the scripts a cluster map.

    Args:
        scripts: the nodes of the map.
        owners: for each vbucket, the place in `scripts` of the node that has it.
    """
    servers = [f"127.0.0.1:{script.port}" for script in scripts]
    for script in scripts:
        script.config = {"vBucketServerMap": {"serverList": servers, "vBucketMap": [[owner] for owner in owners]}}


def keys_of(script, opcode):
    return [frame.key for peer in script.peers for frame in peer.requests if frame.opcode == opcode]


@in_loop
async def test_moved_vbucket_is_requested_from_its_new_node():
    one, two = make_two_scripts()
    async with one, two:
        assign_vbuckets((one, two), [0, 0])

        def moved(peer, frame):
            if frame.opcode in (Opcode.ADD, Opcode.GET) and frame.specific == 1:
                assign_vbuckets((one, two), [0, 1])
                return reply(frame, Status.NOT_MY_VBUCKET, value=json.dumps(one.config).encode())
            return None

        one.answer = moved
        keys = {compute_vbucket(b"k%d" % number, 2): b"k%d" % number for number in range(20)}
        async with connect(one.url()) as bucket:
            await bucket.insert(keys[0], b"")
            await bucket.insert(keys[1], b"")
            await bucket.get_many(keys.values())
        assert keys_of(two, Opcode.ADD) == [keys[1]]
        assert keys_of(two, Opcode.GET) == [keys[1]]
        assert keys_of(one, Opcode.ADD) == [keys[0], keys[1]]
        assert keys_of(one, Opcode.GET) == [keys[0]]


@in_loop
async def test_vbucket_that_every_node_refuses_is_given_up_after_a_time():
    def never(peer, frame):
        return reply(frame, Status.NOT_MY_VBUCKET) if frame.opcode in (Opcode.SET, Opcode.DELETE) else None

    async with Script(never) as script, connect(script.url(retrySeconds=0.2)) as bucket:
        for call in (bucket.upsert("k", b""), bucket.remove("k")):
            with pytest.raises(Unreachable, match="NOT_MY_VBUCKET") as caught:
                await call
            assert isinstance(caught.value.__cause__, NotMyVbucket)


@in_loop
async def test_streams_follow_a_vbucket_that_moves():
    one, two = make_two_scripts()
    asked = []

    def producer(name):
        def answer(peer, frame):
            if frame.opcode != Opcode.DCP_STREAM_REQ:
                return None
            request = decode_frame(frame)
            assert isinstance(request, StreamReq)
            asked.append((name, request.vbucket, request.start_seqno))
            first = accept(request) + marker(request, request.start_seqno, request.start_seqno + 1)
            data = first + mutations(request, request.start_seqno + 1)
            if name == "one" and request.vbucket == 1:
                assign_vbuckets((one, two), [0, 1])
                data += end(request, 2)
            return data

        return answer

    one.answer, two.answer = producer("one"), producer("two")
    async with one, two:
        assign_vbuckets((one, two), [0, 0])
        async with connect(one.url()) as bucket, await bucket.stream() as stream:
            found = stream.changes()
            rows = [await anext(found) for _ in range(3)]
            assert stream.missing == ()
        assert sorted((row.vbucket, row.seqno) for row in rows) == [(0, 1), (1, 1), (1, 2)]
        assert asked == [("one", 0, 0), ("one", 1, 0), ("two", 1, 1)]


@in_loop
async def test_bucket_works_without_the_node_in_its_url():
    one, two = make_two_scripts()
    async with two:
        async with one:
            assign_vbuckets((one, two), [0, 1])
            bucket = connect(one.url(retrySeconds=5))
            await bucket.connect()
            await bucket.get_many(["k1", "k2", "k3"])
        assign_vbuckets((one, two), [1, 1])
        await bucket.get_many(["k1", "k2", "k3"])
        await bucket.close()


@in_loop
async def test_statistics_come_from_the_owner_in_the_newest_map():
    def reporting(seqno):
        def answer(peer, frame):
            if frame.opcode != Opcode.STAT:
                return None
            lines = (reply(frame, key=b"vb_%d:high_seqno" % vbucket, value=seqno) for vbucket in range(2))
            return b"".join(lines) + reply(frame)

        return answer

    one, two = make_two_scripts()
    one.answer, two.answer = reporting(b"1"), reporting(b"2")
    async with one, two:
        assign_vbuckets((one, two), [0, 1])
        async with connect(one.url()) as bucket:
            expected = {"vb_0:high_seqno": "1", "vb_1:high_seqno": "2"}
            assert await bucket.reports.seqno_stats() == expected
            assign_vbuckets((two, one), [1, 0])  # the same owners with other numbers
            bucket._nodes.invalidate_map()
            assert await bucket.reports.seqno_stats() == expected
            assign_vbuckets((one, two), [0, 1])
            bucket._nodes.invalidate_map()
            assert (await bucket.reports.seqno_stats(1))["vb_1:high_seqno"] == "2"
