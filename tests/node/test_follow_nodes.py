"""A bridge to a bucket on several nodes, of which one is away for a while."""

import asyncio

import pytest

from penstock import connect
from penstock.node import Node
from penstock.node.mirror.bridge import Bridge
from tests.client.test_nodes_away import VBUCKETS, Cluster
from tests.node.watch import run, until


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    for node in cluster.nodes:
        node.kill()


def write(cluster, vbuckets):
    """Store 40 new documents in these vbuckets; none of them is written twice."""

    async def store():
        async with connect(cluster.url(0, 1)) as bucket:
            await cluster.write(bucket, vbuckets)

    asyncio.run(store())


def has(node, changes):
    """Return whether a node has so many changes."""
    vbuckets = node.buckets["beer"].store.vbuckets
    return lambda: sum(vbucket.changes.high_seqno for vbucket in vbuckets) == changes


@pytest.mark.process
def test_unreachable_node_delays_only_its_own_vbuckets(cluster):
    everything = {*range(VBUCKETS)}
    with Node.running(follow=cluster.url(0, 1)) as copy:
        bridge = copy.buckets["beer"].bridge
        assert isinstance(bridge, Bridge)
        write(cluster, everything)
        until(copy, has(copy, 40))
        owners = asyncio.run(owners_of(cluster))
        others = {vbucket for vbucket in everything if owners[vbucket] != 2}
        cluster.nodes[2].kill()
        for changes in (80, 120):
            write(cluster, others)
            until(copy, has(copy, changes))
        cluster.nodes[2].start()
        write(cluster, everything - others)
        write(cluster, everything)
        until(copy, has(copy, 200))
        assert run(copy, lambda: (bridge.connections, bridge.copies.rollbacks)) == (1, 0)


async def owners_of(cluster):
    async with connect(cluster.url(0)) as bucket:
        return (await bucket.cluster()).owners
