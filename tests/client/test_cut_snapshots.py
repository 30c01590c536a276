"""Connections that end inside a snapshot: the stream goes on without a lost and without a repeated change."""

import asyncio

from penstock import Node, connect
from penstock.client.blocking import LoopThread
from penstock.pytest import FaultProxy
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.observe import CompactDb
from tests.client.peer import in_loop
from tests.node.wire_client import connected


@in_loop
async def test_interrupted_read_of_a_purged_bucket_does_not_start_over(tmp_path):
    """The connection ends within the first snapshot, below the purge seqno of the bucket."""
    storage = {"data_dir": tmp_path, "settings": BucketSettings(purge_age=0)}
    with Node.running(["beer"], vbuckets=1, **storage) as node, LoopThread() as loop:
        async with connect(node.url("beer")) as bucket:
            await bucket.upsert_many((f"gone{number}", b"v") for number in range(20))
            await bucket.upsert_many((f"kept{number:03}", b"v" * 1000) for number in range(400))
            await bucket.remove_many(f"gone{number}" for number in range(20))
            await bucket.upsert("last", b"v")
            with connected(node, bucket="beer") as client:
                while not (await bucket.vbucket_infos())[0].purge_seqno:
                    assert client.status(CompactDb()) == Status.SUCCESS
        with FaultProxy(("127.0.0.1", node.kv_port), loop) as proxy:
            url = f"couchbase://127.0.0.1:{proxy.port}/beer?vbucketCount=1&flowControlBytes=65536"
            async with connect(url) as bucket, await bucket.stream(stop="now") as stream:
                changes = stream.changes()
                found = [await anext(changes)]
                await asyncio.to_thread(proxy.cut)
                found += [change async for change in changes]
            assert stream.counts.reconnects == 1
        assert [change.event for change in found if change.event != "deletion"] == ["mutation"] * 401
        seqnos = [change.seqno or 0 for change in found]
        assert seqnos == sorted(set(seqnos))
