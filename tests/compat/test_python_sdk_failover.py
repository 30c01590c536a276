"""Couchbase's Python SDK and Penstock's client write while a node is killed and failed over: both go on."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from threading import Event

import pytest

import penstock
from penstock.client.blocking import LoopThread
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.map_replication import MapReplication, place_replicas
from penstock.client.cluster.node_failover import fail_over
from tests.compat.installed import require_package
from tests.compat.kept_writer import KeptWriter, wait_for_more
from tests.node.serve_process import make_address, run_processes
from tests.patience import PATIENCE

require_package("couchbase")

from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.options import UpsertOptions

DURABLE = ServerDurability(DurabilityLevel.MAJORITY)
TIMEOUT = timedelta(seconds=10)


@pytest.fixture
def loop():
    with LoopThread() as running:
        yield running


@asynccontextmanager
async def orchestrating(nodes):
    """Yield the newest map of nodes, which are processes."""
    publisher = MapPublisher(make_address(nodes[0]))
    try:
        for node in nodes:
            await publisher.load(make_address(node).hosts[0])
        yield publisher
    finally:
        await publisher.close()


async def keep_replicas(nodes, placed):
    """Give the other nodes replicas of all vbuckets of the first one, and keep those of the map until the end.

    Args:
        nodes: the processes.
        placed: is set once the replicas are complete.
    """
    async with MapReplication(make_address(nodes[0]), planned={}) as replication:
        async with orchestrating(nodes) as publisher:
            await place_replicas(publisher, replication, len(nodes) - 1)
        placed.set()
        await replication.wait()


@pytest.fixture
def nodes(tmp_path, loop):
    """Three nodes; two of them have replicas of all vbuckets of the first one."""
    with run_processes(tmp_path, 3) as started:
        placed = Event()
        loop.start(keep_replicas(started, placed))
        assert placed.wait(PATIENCE)
        yield started


@pytest.fixture
def own_client(loop, nodes):
    """Penstock's client, which knows the first node."""
    client = penstock.connect(f"couchbase://127.0.0.1:{nodes[0].ports[0]}/default")
    loop.start(client.connect()).result(PATIENCE)
    yield client
    loop.start(client.close()).result(PATIENCE)


@pytest.fixture
def writers(loop, nodes, connect_cluster, own_client):
    collection = connect_cluster(f"couchbase://127.0.0.1:{nodes[0].ports[0]}").bucket("default").default_collection()

    def upsert(key, durability=None):
        loop.start(own_client.upsert(key, key.encode(), durability=durability)).result(PATIENCE)

    return [
        KeptWriter("sdk", lambda key: collection.upsert(key, key)),
        KeptWriter(
            "sdk-durable", lambda key: collection.upsert(key, key, UpsertOptions(durability=DURABLE, timeout=TIMEOUT))
        ),
        KeptWriter("own", upsert),
        KeptWriter("own-durable", lambda key: upsert(key, "majority")),
    ]


async def fail_over_first(nodes):
    """Kill the first node, and promote its replicas. Return the vbuckets without one."""
    first, *others = nodes
    async with orchestrating(others) as publisher:
        first.kill()
        return (await fail_over(publisher, make_address(first).hosts[0], make_address(others[0]))).lost


def test_durable_writes_survive_the_failover_and_clients_go_on(loop, nodes, writers, own_client, connect_cluster):
    over = Event()
    with ThreadPoolExecutor(len(writers)) as pool, ExitStack() as stack:
        stack.callback(over.set)
        running = [pool.submit(writer.run, over) for writer in writers]
        wait_for_more(writers)
        assert loop.start(fail_over_first(nodes)).result(PATIENCE) == ()
        wait_for_more(writers)
        over.set()
        for each in running:
            each.result(PATIENCE)
    collection = connect_cluster(f"couchbase://127.0.0.1:{nodes[1].ports[0]}").bucket("default").default_collection()
    _, durable, _, own_durable = writers
    assert {key: collection.get(key).value for key in durable.written} == {key: key for key in durable.written}
    for key in own_durable.written:
        assert loop.start(own_client.get(key)).result(PATIENCE).value == key.encode()
