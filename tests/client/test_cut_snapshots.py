"""Connections that end inside a snapshot: the stream goes on without a lost and without a repeated change."""

import asyncio
import random

import pytest

from penstock import Node, connect
from penstock.client.blocking import LoopThread
from penstock.client.feeds.resume_policy import RollbackPolicy
from penstock.errors import RolledBack
from penstock.pytest import FaultProxy
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Event
from penstock.wire.messages.observe import CompactDb
from tests.client.peer import in_loop
from tests.client.test_collections import change as change_manifest
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


HOTEL = ["shop.hotel"]
Documents = dict[tuple[int, bytes], tuple[int, bytes]]
"""(vbucket, key) -> seqno and value of the newest change."""


@pytest.fixture(scope="module")
def hotels():
    """A node with a collection whose keys are in another order than its seqnos, behind a proxy."""

    async def fill(url):
        async with connect(url) as bucket:
            numbers = random.Random(5).sample(range(500), 500)
            await bucket.upsert_many(((f"h{each:03}", b"v" * 1000) for each in numbers), collection="shop.hotel")
            await bucket.remove_many((f"h{each:03}" for each in range(0, 500, 9)), collection="shop.hotel")

    with Node.running(["beer"], vbuckets=2) as node, LoopThread() as loop:
        change_manifest(node, lambda manifest: manifest.with_scope("shop").with_collection("shop", "hotel"))
        asyncio.run(fill(node.url("beer")))
        with FaultProxy(("127.0.0.1", node.kv_port), loop) as proxy:
            yield node, proxy


def apply_change(documents, change):
    """Apply a change to the documents, each with the seqno of its newest change."""
    if change.event == Event.ROLLBACK:
        for key in [key for key in documents if key[0] == change.vbucket]:
            del documents[key]
    elif change.key is not None:
        assert documents.get((change.vbucket, change.key), (0, b""))[0] <= change.seqno
        documents[change.vbucket, change.key] = change.seqno, change.value


@pytest.mark.parametrize("rollback", RollbackPolicy)
@in_loop
async def test_interrupted_snapshot_out_of_order_begins_again(hotels, rollback):
    node, proxy = hotels
    expected: Documents = {}
    documents: Documents = {}
    async with connect(node.url("beer")) as bucket:
        async for change in bucket.changes(stop="now", collections=HOTEL):
            apply_change(expected, change)
    url = f"couchbase://127.0.0.1:{proxy.port}/beer?vbucketCount=2&flowControlBytes=65536&outOfOrder=true"
    async with connect(url) as bucket, await bucket.stream(stop="now", collections=HOTEL, rollback=rollback) as stream:
        changes, found = stream.changes(), []
        found += [await anext(changes) for _ in range(3)]
        assert not any(position.seqno for position in stream.positions.values())
        await asyncio.to_thread(proxy.cut)
        if rollback is RollbackPolicy.FAIL:
            with pytest.raises(RolledBack, match="to 0, expected none with rollback=fail"):
                found += [change async for change in changes]
            return
        found += [change async for change in changes]
    for change in found:
        apply_change(documents, change)
    assert documents == expected
    keys = [change.key for change in found[3:] if change.vbucket == found[0].vbucket and change.key]
    assert keys[-20:] == sorted(keys[-20:])  # the node sends keys in their order, not seqnos
    rollbacks = {change.vbucket for change in found if change.event == Event.ROLLBACK}
    assert bool(rollbacks) == (rollback is not RollbackPolicy.RESUME)
    async with connect(node.url("beer")) as bucket:
        ends = {change.vbucket: change.seqno async for change in bucket.changes(stop="now", collections=HOTEL)}
    assert {vbucket: position.seqno for vbucket, position in stream.positions.items()} == ends
