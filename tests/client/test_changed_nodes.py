"""An orchestrator whose map has nodes that are down, or that have left since."""

import asyncio
import socket
from contextlib import ExitStack, asynccontextmanager

import pytest

from penstock.client.bucket import Bucket
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.connect.address import parse_address
from penstock.client.replication.map_layout import MapLayout, MapNode, make_map_document, read_map_layout
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from tests.client.peer import in_loop
from tests.patience import PATIENCE

VBUCKETS = 4
KEYS = [f"key-{number}" for number in range(20)]


@pytest.fixture
def nodes():
    with ExitStack() as stack:
        yield [stack.enter_context(Node.running(["beer"], VBUCKETS)) for _ in range(2)]


@pytest.fixture
def closed_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def make_address(node):
    # A node that is down must not be tried for this long.
    return parse_address(node.url("beer") + f"?operationTimeout={PATIENCE}&retrySeconds={2 * PATIENCE}")


def make_node(port):
    return MapNode(("127.0.0.1", port), {"kv": port})


@asynccontextmanager
async def orchestrating(*nodes):
    publisher = MapPublisher(make_address(nodes[0]))
    try:
        for node in nodes:
            await publisher.load(("127.0.0.1", node.kv_port))
        yield publisher
    finally:
        await publisher.close()


async def push_map(publisher, node, layout, version):
    endpoint = ("127.0.0.1", node.kv_port)
    await publisher.get_control(endpoint).push_map(make_map_document({"name": "beer"}, layout, version, endpoint))


@in_loop
async def check_replication(first, second, closed_port):
    async with Bucket(make_address(first)) as bucket:
        for key in KEYS:
            await bucket.upsert(key, b"value")
    layout = MapLayout(tuple(map(make_node, (first.kv_port, second.kv_port, closed_port))), ((0,), (0,), (1,), (2,)))
    async with orchestrating(first) as publisher:
        for node in (first, second):
            await push_map(publisher, node, layout, (2, 9))
    options = ReplicationOptions(vbuckets=[0, 1], until_caught_up=True)
    async with Replicator(make_address(first), make_address(second), options) as replicator:
        progress = await replicator.run()
    assert (progress.running, progress.lag) == (2, 0)


def test_replication_asks_only_the_nodes_that_it_needs(nodes, closed_port):
    check_replication(*nodes, closed_port)


@in_loop
async def check_older_map(first, second):
    async with Bucket(make_address(first)) as bucket:
        for key in KEYS:
            await bucket.upsert(key, b"value")
    places = tuple(map(make_node, (first.kv_port, second.kv_port)))
    older, newer = (MapLayout(places, (chain,) * VBUCKETS) for chain in ((1, 0), (0, 1)))
    options = ReplicationOptions(vbuckets=[0], keeps_active=True, until_caught_up=True)
    async with orchestrating(first) as publisher:
        await publisher.get_control(places[1].endpoint).set_states([0, 1], VbucketState.REPLICA)
        for node in (first, second):
            await push_map(publisher, node, older, (2, 5))
        async with Replicator(make_address(first), make_address(second), options) as replicator:
            replicator.add_vbuckets({1})
            attempted = asyncio.Event()
            running = asyncio.create_task(replicator.run(lambda progress: attempted.set()))
            await asyncio.wait({running, asyncio.create_task(attempted.wait())}, return_when=asyncio.FIRST_COMPLETED)
            for node in (first, second):
                await push_map(publisher, node, newer, (2, 6))
            assert (await running).running == 2


def test_replica_is_copied_once_the_map_of_its_source_is_new(nodes):
    check_older_map(*nodes)


@in_loop
async def check_newest_map(loaded, first, second, closed_port):
    three = tuple(make_node(port) for port in (first.kv_port, second.kv_port, closed_port))
    newest = MapLayout(three[:2], ((0,), (1,), (0,), (1,)))
    async with orchestrating(first) as publisher:
        await push_map(publisher, first, MapLayout(three, ((0,), (1,), (2,), (2,))), (2, 5))
        await push_map(publisher, second, newest, (2, 6))
    async with orchestrating(*loaded) as publisher:
        assert publisher.layout == newest
        await publisher.publish(newest)
        control = publisher.get_control(("127.0.0.1", first.kv_port))
        assert read_map_layout(await control.read_map(), control.endpoint).nodes == three[:2]


@pytest.mark.parametrize("order", [1, -1])
def test_newest_map_is_used_after_a_node_has_left(nodes, closed_port, order):
    check_newest_map(nodes[::order], *nodes, closed_port)


@in_loop
async def test_node_that_returns_keeps_its_alternate_address(nodes):
    """The node itself forgets the address when it restarts."""
    first, second = nodes
    outer = {"external": {"hostname": "localhost", "ports": {"kv": 31210}}}
    gone = MapNode(("127.0.0.1", second.kv_port), {"kv": second.kv_port}, outer)
    layout = MapLayout((make_node(first.kv_port), gone), ((0,),) * VBUCKETS)
    async with orchestrating(first, second) as publisher:
        await publisher.publish(layout)
        await publisher.publish(layout.remove_node(gone.endpoint), removed=[gone.endpoint])
    async with orchestrating(first) as publisher:
        await publisher.add_node(gone.endpoint)
        found = publisher.layout.nodes[publisher.layout.require_node(gone.endpoint)]
    assert (found.alternates, found.services["mgmt"]) == (outer, second.http_port)
