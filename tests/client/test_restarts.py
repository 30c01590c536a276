"""A node that restarts: a bucket that was served before is waited for, and a first connection fails at once."""

import pytest

from penstock import Node, connect
from penstock.errors import BucketNotServed, NoBucket, Unreachable
from penstock.node import Node as RunningNode
from tests.client.peer import in_loop
from tests.client.restarting import STAGES, RestartingServer
from tests.node.watch import until

VBUCKETS = 4


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        yield node


@pytest.fixture
def server(node):
    with RestartingServer(node) as server:
        yield server


async def store(node, key):
    async with connect(node.url("beer")) as bucket:
        await bucket.upsert(key, b"v")


@in_loop
async def test_stream_resumes_after_a_restart(node, server):
    await store(node, "before")
    async with connect(server.url()) as bucket, await bucket.stream() as stream:
        changes = stream.changes()
        assert (await anext(changes)).key == b"before"
        server.restart()
        await store(node, "after")
        assert (await anext(changes)).key == b"after"
    assert server.has_restarted


@in_loop
async def test_bucket_works_after_a_restart(node, server):
    async with connect(server.url()) as bucket:
        await bucket.upsert("k", b"v")
        server.restart()
        assert {vb: info.high_seqno for vb, info in (await bucket.vbucket_infos()).items()} == (
            await bucket.high_seqnos()
        )
        assert (await bucket.get("k")).value == b"v"
    assert server.has_restarted


def test_bridge_resumes_after_a_restart(node, server):
    with RunningNode.running(follow=server.url(retrySeconds=20)) as copy:
        served = copy.buckets["beer"]

        def has(count):
            return lambda: sum(vbucket.changes.items for vbucket in served.store.vbuckets) == count

        write(node, "before")
        until(copy, has(1))
        server.restart()
        write(node, "after")
        until(copy, has(2))
        assert copy.bridge is not None
        assert not copy.bridge.task.done()
    assert server.has_restarted


def write(node, key):
    in_loop(store)(node, key)


FIRST = [
    ("no bucket", BucketNotServed, "no bucket 'beer'"),
    ("no bucket on this connection", NoBucket, "NO_BUCKET"),
    ("no map", BucketNotServed, "has no cluster map"),
]


@pytest.mark.parametrize(("stage", "error", "found"), FIRST)
@in_loop
async def test_a_first_connection_fails_at_once(node, stage, error, found):
    with RestartingServer(node, STAGES[stage]) as server, pytest.raises(error, match=found):
        await connect(server.url(retrySeconds=86400)).connect()


@pytest.mark.parametrize(("stage", "error", "found"), FIRST)
@in_loop
async def test_deleted_bucket_ends_a_stream_after_a_while(server, stage, error, found):
    async with connect(server.url(retrySeconds=0.3)) as bucket, await bucket.stream() as stream:
        await bucket.upsert("k", b"v")
        await anext(stream.changes())
        server.restart()
        server.met.clear()  # this stage does not end
        server.release = STAGES[stage]
        with pytest.raises(Unreachable, match=rf"did not serve for .* \(limit 0.3 s\); last failure: .*{found}"):
            await anext(stream.changes())
