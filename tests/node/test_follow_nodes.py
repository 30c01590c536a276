"""A bridge to a bucket on several nodes, one of which is unreachable for a while."""

import asyncio

import pytest

from penstock import connect
from penstock.node import Node
from penstock.node.mirror.bridge import Bridge
from tests.client.test_nodes_away import NODES, VBUCKETS, Cluster
from tests.node.balanced_nodes import apply_bucket
from tests.node.serve_process import run_processes
from tests.node.watch import run, until


@pytest.fixture
def cluster(tmp_path):
    with run_processes(tmp_path, NODES) as processes:
        apply_bucket([process.ports for process in processes], "beer", VBUCKETS)
        yield Cluster(processes)


def write_documents(cluster, vbuckets):
    """Store 40 new documents in these vbuckets."""

    async def store():
        async with connect(cluster.url(0, 1)) as bucket:
            await cluster.write(bucket, vbuckets)

    asyncio.run(store())


def make_count_check(node, changes):
    """Return a function that checks whether a node has this number of changes."""
    vbuckets = node.buckets["beer"].store.vbuckets
    return lambda: sum(vbucket.changes.high_seqno for vbucket in vbuckets) == changes


@pytest.mark.process
def test_unreachable_node_delays_only_its_own_vbuckets(cluster):
    everything = {*range(VBUCKETS)}
    with Node.running(follow=cluster.url(0, 1)) as copy:
        bridge = copy.buckets["beer"].bridge
        assert isinstance(bridge, Bridge)
        write_documents(cluster, everything)
        until(copy, make_count_check(copy, 40))
        owners = asyncio.run(read_owners(cluster))
        others = {vbucket for vbucket in everything if owners[vbucket] != 2}
        cluster.nodes[2].kill()
        for changes in (80, 120):
            write_documents(cluster, others)
            until(copy, make_count_check(copy, changes))
        cluster.nodes[2].start()
        write_documents(cluster, everything - others)
        write_documents(cluster, everything)
        until(copy, make_count_check(copy, 200))
        assert run(copy, lambda: (bridge.connections, bridge.copies.rollbacks)) == (1, 0)


async def read_owners(cluster):
    async with connect(cluster.url(0)) as bucket:
        return (await bucket.cluster()).owners
