"""Consumers of real nodes behind fault proxies, while vbuckets move and nodes and buckets come and go."""

import asyncio
from itertools import count

import pytest

import penstock
from penstock.client.connect.cluster_map import ClusterMap, parse_cluster_map
from penstock.client.documents.document import compute_vbucket
from penstock.errors import BucketRecreated
from penstock.pytest import ProxySide
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Noop
from tests.client.peer import Script, in_loop, reply
from tests.client.test_nodes import config
from tests.patience import PATIENCE

VBUCKETS = 4
NUMBERS = count()


async def write(client, vbuckets=range(VBUCKETS), each=2):
    """Store new documents in each of these vbuckets; return their keys."""
    keys = []
    for vbucket in vbuckets:
        found = 0
        while found < each:
            key = f"key-{next(NUMBERS)}"
            if compute_vbucket(key.encode(), VBUCKETS) == vbucket:
                await client.upsert(key, b"v")
                keys.append(key.encode())
                found += 1
    return keys


async def take(changes, number):
    return [await anext(changes) for _ in range(number)]


def run_consumer(url, scenario, **options):
    """Run `scenario(client, changes)` with a stream of the bucket that is already open."""

    @in_loop
    async def run():
        query = "&".join(f"{name}={value}" for name, value in options.items())
        async with penstock.connect(f"{url}?{query}") as client, await client.stream() as stream:
            changes = stream.changes()
            first = await write(client)
            assert sorted(change.key for change in await take(changes, len(first))) == sorted(first)
            await scenario(client, changes)

    run()


async def check_next(client, changes):
    """Check that the next changes are those of new documents alone, so that nothing came twice and nothing is lost."""
    keys = await write(client)
    assert sorted(change.key for change in await take(changes, len(keys))) == sorted(keys)


def test_moved_vbuckets_continue_from_their_positions(penstock_cluster):
    bucket = penstock_cluster(2, vbuckets=VBUCKETS).bucket

    async def scenario(client, changes):
        for vbucket, to in ((0, 1), (3, 0), (0, 0)):
            await asyncio.to_thread(bucket.move, vbucket, to)
            await check_next(client, changes)

    run_consumer(bucket.url, scenario)


def test_stream_end_of_a_move_is_overtaken_by_the_new_owner(penstock_cluster):
    cluster = penstock_cluster(2, vbuckets=VBUCKETS)

    async def scenario(client, changes):
        cluster.nodes[0].proxy.reorder(0.2)
        await asyncio.to_thread(cluster.bucket.move, [0, 1], 1)
        await check_next(client, changes)

    run_consumer(cluster.bucket.url, scenario)


def test_cluster_shrinks_to_one_node_and_grows_again(penstock_cluster):
    bucket = penstock_cluster(3, vbuckets=VBUCKETS).bucket

    async def scenario(client, changes):
        for node in (0, 1):
            await asyncio.to_thread(bucket.remove_node, node)
            await check_next(client, changes)
        assert len((await client.cluster()).endpoints) == 1
        for vbucket, node in ((0, 0), (1, 1), (2, 0)):
            await asyncio.to_thread(bucket.move, vbucket, node)
            await check_next(client, changes)

    run_consumer(bucket.url, scenario)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_failover_without_lost_changes_continues_without_a_rollback(penstock_cluster, is_stopped):
    cluster = penstock_cluster(2, vbuckets=VBUCKETS)

    async def scenario(client, changes):
        await asyncio.to_thread(cluster.bucket.replicate)
        if is_stopped:
            await asyncio.to_thread(cluster.nodes[0].stop)
        await asyncio.to_thread(cluster.bucket.fail_over, 0)
        await check_next(client, changes)

    run_consumer(cluster.bucket.url, scenario)


def test_failover_that_loses_changes_is_reported_as_a_rollback(penstock_cluster):
    cluster = penstock_cluster(2, vbuckets=VBUCKETS)

    async def scenario(client, changes):
        await asyncio.to_thread(cluster.bucket.replicate)
        await check_next(client, changes)  # no replica has these changes
        await asyncio.to_thread(cluster.bucket.fail_over, 0)
        rollbacks = await take(changes, 2)
        assert sorted((each.event, each.vbucket, each.seqno) for each in rollbacks) == [
            ("rollback", 0, 2),
            ("rollback", 1, 2),
        ]
        await check_next(client, changes)

    run_consumer(cluster.bucket.url, scenario)


@pytest.mark.parametrize("side", ProxySide)
def test_half_closed_connections_are_replaced(penstock_cluster, side):
    cluster = penstock_cluster(2, vbuckets=VBUCKETS)

    async def scenario(client, changes):
        for node in cluster.nodes:
            node.proxy.half_close(side)
        await check_next(client, changes)

    run_consumer(cluster.bucket.url, scenario)


# A bucket that is deleted and created again


def test_recreated_bucket_is_reported_as_rollbacks_to_zero(penstock_cluster, caplog):
    bucket = penstock_cluster(2, vbuckets=VBUCKETS).bucket

    async def scenario(client, changes):
        await asyncio.to_thread(bucket.recreate)
        rollbacks = await take(changes, VBUCKETS)
        assert sorted((each.event, each.vbucket, each.seqno) for each in rollbacks) == [
            ("rollback", vbucket, 0) for vbucket in range(VBUCKETS)
        ]
        await check_next(client, changes)

    run_consumer(bucket.url, scenario)
    assert sum("was deleted and created again" in message for message in caplog.messages) == 1


def test_recreated_bucket_fails_the_stream_with_the_option(penstock_cluster):
    bucket = penstock_cluster(1, vbuckets=VBUCKETS).bucket

    async def scenario(client, changes):
        await asyncio.to_thread(bucket.recreate)
        with pytest.raises(BucketRecreated, match="was deleted and created again") as caught:
            await anext(changes)
        assert caught.value.old_uuid != caught.value.new_uuid

    run_consumer(bucket.url, scenario, recreatedBucket="fail")


def test_commands_and_streams_of_a_connection_have_different_opaques(penstock_cluster):
    """The connection to one node has sent more commands than the other one."""

    @in_loop
    async def run(url):
        async with penstock.connect(url) as client, await client.stream() as stream:
            keys = await write(client)
            await take(stream.changes(), len(keys))
            first, second = (each.link for each in stream._connections.by_id.values())
            for _ in range(20):
                await second.request(Noop(), PATIENCE)
            opaque = stream._connections._take_opaque()
            assert first.allocate_opaque() > opaque
            assert second.allocate_opaque() > opaque

    run(penstock_cluster(2, vbuckets=VBUCKETS).bucket.url)


# Revisions of maps


def make_map(version, uuid="u", owner=0):
    return ClusterMap((("a", 1), ("b", 2)), (owner,), uuid=uuid, version=version)


@pytest.mark.parametrize(
    ("known", "found", "is_found_newer"),
    [
        (make_map((1, 5)), make_map((1, 6), owner=1), True),
        (make_map((1, 5)), make_map((1, 4), owner=1), False),
        (make_map((1, 5)), make_map((2, 1), owner=1), True),
        (make_map((2, 1)), make_map((1, 9), owner=1), False),
        (make_map((1, 5)), make_map((0, 0), owner=1), True),
        (make_map((1, 5)), make_map((1, 4), "v", owner=1), True),
        (make_map((1, 5)), make_map((1, 4), "", owner=1), False),
        (ClusterMap((), ()), make_map((1, 4)), True),
    ],
)
def test_newest_revision_of_a_map_is_used(known, found, is_found_newer):
    assert known.choose_newer(found) is (found if is_found_newer else known)


def test_revision_of_a_map_is_parsed():
    found = parse_cluster_map(config(["a:1", "b:2"], [0], rev=7, revEpoch=2, uuid="u"), ("a", 1))
    assert found is not None
    assert (found.version, found.uuid) == ((2, 7), "u")


@in_loop
async def test_old_map_of_a_node_is_not_used():
    """A node that is behind sends its map for each refusal: the client stays with the newer map."""
    revisions = iter([6, 5, 5])

    def answer(peer, frame):
        if frame.opcode == Opcode.GET_CLUSTER_CONFIG:
            revision = next(revisions)
            owner = 1 if revision == 6 else 0
            servers = [f"127.0.0.1:{one.port}", f"127.0.0.1:{two.port}"]
            peer.script.config = {
                "rev": revision,
                "vBucketServerMap": {"serverList": servers, "vBucketMap": [[owner], [owner]]},
            }
        return reply(frame, Status.NOT_MY_VBUCKET) if frame.opcode == Opcode.GET else None

    refused = iter([True])

    def refuse_once(peer, frame):
        is_refused = frame.opcode == Opcode.GET and next(refused, False)
        return reply(frame, Status.NOT_MY_VBUCKET) if is_refused else None

    one, two = Script(answer), Script(refuse_once)
    async with one, two, penstock.connect(one.url()) as client:
        await client.get_many(["k1"])
        assert (await client.cluster()).version == (0, 6)
    assert next(revisions) == 5  # the old map was requested once, after the refusal
    assert not [frame for peer in one.peers for frame in peer.requests if frame.opcode == Opcode.GET]
