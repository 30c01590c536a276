"""Repeated reads of vbucket infos: known infos may save requests, and never change the result."""

import random

import pytest

from penstock import Node, connect
from penstock.client.bucket import Bucket
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.observe import CompactDb
from tests.client.peer import in_loop
from tests.node.wire_client import connected

VBUCKETS = 64


@pytest.fixture(scope="module")
def node():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        yield node


async def write(bucket: Bucket, count: int) -> None:
    await bucket.upsert_many((f"k{random.Random(count).random()}-{number}", b"v") for number in range(count))


@in_loop
@pytest.mark.parametrize("count", [0, 1, 20, 500])
async def test_known_infos_give_the_same_result_after_changes(node, count):
    async with connect(node.url("beer")) as bucket:
        known = await bucket.vbucket_infos()
        await write(bucket, count)
        found = await bucket.vbucket_infos(None, known)
        assert found == await bucket.vbucket_infos()
        assert sum(info.high_seqno - known[vb].high_seqno for vb, info in found.items()) == count
        assert await bucket.vbucket_infos([5, 9], known) == {vb: found[vb] for vb in (5, 9)}
        assert await bucket.vbucket_infos(None, {5: known[5]}) == found


@in_loop
async def test_known_infos_give_the_same_result_after_a_flush(node):
    async with connect(node.url("beer")) as bucket:
        await write(bucket, 50)
        known = await bucket.vbucket_infos()
        await bucket.flush()
        found = await bucket.vbucket_infos(None, known)
        assert found == await bucket.vbucket_infos()
        assert all(found[vb].vbuuid != known[vb].vbuuid for vb in known)


@in_loop
async def test_purge_alone_is_found_only_in_rechecked_vbuckets(tmp_path):
    storage = {"data_dir": tmp_path, "settings": BucketSettings(purge_age=0)}
    with Node.running(["beer"], vbuckets=2, **storage) as node:
        async with connect(node.url("beer")) as bucket:
            await write(bucket, 20)
            await bucket.upsert_many((f"gone{number}", b"v") for number in range(20))
            await bucket.remove_many(f"gone{number}" for number in range(20))
            await write(bucket, 21)
            known = await bucket.vbucket_infos()
            with connected(node, bucket="beer") as client:
                for _ in range(10_000):
                    assert client.status(CompactDb()) == Status.SUCCESS
                    fresh = await bucket.vbucket_infos()
                    if all(info.purge_seqno for info in fresh.values()):
                        break
            assert await bucket.vbucket_infos(None, known) == known
            assert await bucket.vbucket_infos(None, known, recheck=[1]) == {0: known[0], 1: fresh[1]}
            assert fresh[1].purge_seqno > 0 == known[1].purge_seqno
