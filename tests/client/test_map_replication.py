"""Replicas that the map names: they are placed evenly, kept up to date, and make durable writes possible."""

from contextlib import ExitStack, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.bucket import Bucket
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.map_replication import MapReplication, place_replicas
from penstock.client.cluster.node_failover import fail_over
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.connect.address import parse_address
from penstock.client.replication.replicator import Replicator
from penstock.client.topology.balance_plan import plan_balance, plan_replicas
from penstock.errors import UsageError
from tests.client.peer import in_loop
from tests.node.balanced_nodes import VBUCKETS, open_node
from tests.patience import PATIENCE

KEYS = [f"key-{number}" for number in range(40)]


@st.composite
def present_chains(draw):
    nodes = draw(st.integers(1, 6))
    owners = draw(st.lists(st.integers(-1, nodes - 1), min_size=1, max_size=32))
    chains = []
    for owner in owners:
        others = draw(st.lists(st.integers(0, nodes - 1), max_size=3, unique=True)) if owner >= 0 else []
        chains.append((owner, *[place if place != owner else -1 for place in others]))
    return nodes, chains


@given(present_chains(), st.integers(0, 3))
def test_replicas_are_on_other_nodes(found, count):
    nodes, chains = found
    if count >= nodes:
        with pytest.raises(UsageError, match="expected at most"):
            plan_replicas(chains, nodes, count)
        return
    planned = plan_replicas(chains, nodes, count)
    assert planned.keys() == {vbucket for vbucket, chain in enumerate(chains) if chain[0] >= 0}
    for vbucket, places in planned.items():
        owner = chains[vbucket][0]
        assert places == [] if owner < 0 else len(places) == len({*places, owner} - {-1}) - 1 == count


@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 10))
def test_replicas_of_balanced_owners_are_even(nodes, count, each):
    chains = [(vbucket % nodes,) for vbucket in range(nodes * each)]
    if count < nodes:
        # A further node has had all replicas, and leaves.
        planned = plan_replicas([(*chain, nodes) for chain in chains], nodes + 1, count, [nodes])
        loads = [sum(places.count(node) for places in planned.values()) for node in range(nodes + 1)]
        assert loads.pop() == 0
        assert max(loads) - min(loads) <= 1


def make_address(node):
    return parse_address(node.url("beer") + f"?operationTimeout={PATIENCE}&retrySeconds={PATIENCE}")


@asynccontextmanager
async def orchestrating(first):
    publisher = MapPublisher(make_address(first))
    try:
        await publisher.load(make_address(first).hosts[0])
        yield publisher
    finally:
        await publisher.close()


async def balance(first, replicas, *added):
    async with orchestrating(first) as publisher:
        for node in added:
            await publisher.load(make_address(node).hosts[0])
        layout, mover = publisher.layout, VbucketMover(publisher, make_address(first))
        nodes = publisher.list_endpoints(layout)
        for vbucket, source, target in plan_balance([chain[0] for chain in layout.chains], len(nodes)):
            await mover.move([vbucket], nodes[source], nodes[target])
        async with MapReplication(make_address(first), planned={}) as replication:
            await place_replicas(publisher, replication, replicas)
        return publisher.layout


async def write(node, value):
    async with Bucket(make_address(node)) as bucket:
        for key in KEYS:
            await bucket.upsert(key, value, durability="majority")


async def read(node):
    async with Bucket(make_address(node)) as bucket:
        return {found.value for found in await bucket.get_many(KEYS) if found is not None}


@in_loop
async def run_story(nodes, third):
    first, second = (web.node for web in nodes)
    layout = await balance(first, 1, second)
    assert {len(set(chain)) for chain in layout.chains} == {2}
    async with MapReplication(make_address(second)):
        await write(first, b"two nodes")
        extra = third.enter_context(open_node()).node
        layout = await balance(second, 2, extra)
        assert {len({*chain} - {-1}) for chain in layout.chains} == {3}
        assert sorted(len(layout.list_owned(at)) for at in range(3)) == [5, 5, 6]
        await write(extra, b"three nodes")
        async with orchestrating(first) as publisher:
            lost = ("127.0.0.1", extra.kv_port)
            result = await fail_over(publisher, lost, make_address(first))
            assert (len(result.promoted) >= VBUCKETS // 3, result.lost) == (True, ())
            assert {len({*chain} - {-1}) for chain in publisher.layout.chains} == {2}
        assert await read(first) == {b"three nodes"}
        await write(second, b"failed over")
        assert await read(first) == {b"failed over"}


@pytest.mark.long
def test_durable_writes_go_on_after_balances_and_a_failover():
    with ExitStack() as stack, ExitStack() as third:
        run_story([stack.enter_context(open_node()) for _ in range(2)], third)


@in_loop
async def replicate_with_a_fault(first, second, monkeypatch):
    async def fail(replicator, report):
        raise ZeroDivisionError("a fault of the program")

    await balance(first, 1, second)
    monkeypatch.setattr(Replicator, "run", fail)
    async with MapReplication(make_address(second)) as replication:
        await replication.wait()


def test_unexpected_error_of_a_replication_ends_it(monkeypatch):
    """Else it would be tried again for ever, without a word, and the replicas would stay behind."""
    with open_node() as first, open_node() as second, pytest.raises(ZeroDivisionError, match=r"^a fault of the"):
        replicate_with_a_fault(first.node, second.node, monkeypatch)
