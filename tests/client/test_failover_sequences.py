"""Failovers and changed chains one after the other: no acknowledged durable write is lost."""

import asyncio
import json
from contextlib import ExitStack, asynccontextmanager

import pytest

from penstock.client.bucket import Bucket
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.map_replication import MapReplication, place_replicas
from penstock.client.cluster.node_failover import fail_over
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.connect.address import parse_host
from penstock.errors import UsageError
from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status
from tests.client.peer import in_loop
from tests.client.test_replicator import make_address, replicating
from tests.client.test_vbucket_mover import list_active, make_endpoint
from tests.node.test_follow_collections import wait_until_copied
from tests.node.test_replication import set_states
from tests.node.test_stored_chains import write_durably
from tests.node.watch import run
from tests.node.wire_client import connected

VBUCKETS = 4
KEYS = [f"key-{number}" for number in range(20)]
REFUSED = r"vbuckets 0-3: 2 of 3 places of its chain do not answer \(1 without a node until the next rebalance\)"


@pytest.fixture
def nodes():
    """Three nodes with one bucket, whose vbuckets are active at the first one and have replicas at the others."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node.running(["beer"], VBUCKETS)) for _ in range(3)]
        asyncio.run(place(nodes, 2))
        yield nodes


@asynccontextmanager
async def orchestrating(nodes):
    publisher = MapPublisher(make_address(nodes[0]))
    try:
        for node in nodes:
            await publisher.load(make_endpoint(node))
        yield publisher
    finally:
        await publisher.close()


async def place(nodes, replicas, *leaving):
    """Give each vbucket replicas."""
    async with orchestrating(nodes) as publisher, MapReplication(make_address(nodes[0]), planned={}) as replication:
        await place_replicas(publisher, replication, replicas, [make_endpoint(node) for node in leaving])


async def fail(node, *others):
    async with orchestrating(others) as publisher:
        return await fail_over(publisher, make_endpoint(node), make_address(others[0]))


async def write(owner, keys=KEYS):
    async with Bucket(make_address(owner)) as bucket:
        for key in keys:
            await bucket.upsert(key, b"v", durability="majority")


async def write_to(owner, replica, keys=KEYS):
    """Write documents that are acknowledged by one of two replicas. The other one is cut off."""
    async with replicating(owner, replica):
        await write(owner, keys)
        await asyncio.to_thread(wait_until_copied, replica, owner)  # the commits too


def refuse_write(owner):
    """Expect that too few nodes acknowledge a durable write within a millisecond."""
    with connected(owner, "beer") as client:
        assert write_durably(client, 0) == Status.SYNC_WRITE_AMBIGUOUS


def read_chains(owner):
    """Return the replication chains of vbucket 0 as endpoints."""
    with connected(owner, "beer") as client:
        stats = client.stats("durability-monitor 0")
    chains = [json.loads(text) for name, text in sorted(stats.items()) if "replication_chain" in name]
    return [[parse_host(name, 0) for name in chain] for chain in chains]


async def check(node):
    async with Bucket(make_address(node)) as bucket:
        assert None not in await bucket.get_many(KEYS)


@in_loop
async def fail_over_twice(first, second, third):
    await write_to(first, second)
    assert len((await fail(first, second, third)).promoted) == VBUCKETS
    with pytest.raises(UsageError, match=REFUSED):
        await fail(second, third)
    await check(second)
    await place([second, third], 1)  # the replica that was cut off gets everything first
    assert len((await fail(second, third)).promoted) == VBUCKETS
    await check(third)


def test_owner_is_not_failed_over_to_a_replica_that_has_not_caught_up_with_it(nodes):
    fail_over_twice(*nodes)


@in_loop
async def fail_over_replica(first, second, third):
    await write_to(first, second)
    assert (await fail(second, first, third)).promoted == {}
    with pytest.raises(UsageError, match=REFUSED):
        await fail(first, third)
    await check(first)


def test_lost_replica_may_have_had_the_only_other_copy(nodes):
    fail_over_replica(*nodes)


@in_loop
async def write_after_failover(first, second, third):
    await write_to(first, second, KEYS[:10])
    await fail(first, second, third)
    await asyncio.to_thread(refuse_write, second)
    await write_to(second, third, KEYS[10:])
    with pytest.raises(UsageError, match=REFUSED):
        await fail(second, third)
    await place([second, third], 1)
    await fail(second, third)
    await check(third)


def test_writes_of_the_new_owner_wait_for_the_replica(nodes):
    write_after_failover(*nodes)


@in_loop
async def drop_replica(first, second, third):
    await write_to(first, second)
    await place([first, second, third], 1, second)
    assert {*(await fail(first, second, third)).promoted.values()} == {make_endpoint(third)}
    await check(third)


def test_replica_that_stays_has_caught_up_before_another_one_leaves(nodes):
    drop_replica(*nodes)


@in_loop
async def move_to_replica(first, second, third):
    """Move all vbuckets to a replica, so that the chains of all are one node shorter."""
    await write_to(first, second)
    async with orchestrating([first, second, third]) as publisher:
        mover = VbucketMover(publisher, make_address(first))
        await mover.move(range(VBUCKETS), make_endpoint(first), make_endpoint(second))
        assert {len(chain) for chain in publisher.layout.chains} == {3}
    with pytest.raises(UsageError, match=REFUSED):
        await fail(second, first, third)
    await place([first, second, third], 1, first)
    await fail(second, third, first)
    await check(third)


def test_move_to_a_replica_leaves_its_place_in_the_chain(nodes):
    move_to_replica(*nodes)


class KilledError(Exception):
    """The program was killed."""


class KilledPublisher(MapPublisher):
    """A publisher whose program is killed before it sends a map."""

    async def publish(self, layout, first=None, removed=()):
        raise KilledError


@in_loop
async def kill_before_publish(first, second, third):
    nodes = [make_endpoint(node) for node in (first, second, third)]
    await place([first, second, third], 1, third)
    publisher = KilledPublisher(make_address(first))
    try:
        for node in nodes:
            await publisher.load(node)
        async with MapReplication(make_address(first), planned={}) as replication:
            with pytest.raises(KilledError):
                await place_replicas(publisher, replication, 1, [nodes[1]])
    finally:
        await publisher.close()
    assert await asyncio.to_thread(read_chains, first) == [[nodes[0], nodes[1]], [nodes[0], nodes[2]]]
    async with replicating(first, second):
        await write_to(first, third)
        await asyncio.to_thread(wait_until_copied, second, first)
    assert {*(await fail(first, second, third)).promoted.values()} == {nodes[1]}
    await check(second)


def test_writes_need_both_chains_while_the_map_changes(nodes):
    """A failover by either map finds them."""
    kill_before_publish(*nodes)


class StateWatch:
    """Calls a function in the loop of a node when vbucket 0 enters a state there."""

    def __init__(self, node, state, call):
        self._state, self._call, self._node = state, call, node

    def __enter__(self):
        run(self._node, lambda: self._node.buckets["beer"].listeners.setdefault(self))
        return self

    def __exit__(self, *_):
        run(self._node, lambda: self._node.buckets["beer"].listeners.pop(self))

    def vbucket_changed(self, vbucket, event):
        if vbucket.id == 0 and vbucket.history.state is self._state:
            self._call(vbucket)


def test_stopped_node_goes_on_if_a_copy_is_lost_meanwhile(nodes):
    first, second, third = nodes

    def lose_copies(vbucket):
        for node in (second, third):
            run(node, lambda node=node: node.buckets["beer"].store.vbuckets[0].remove())

    chains = read_chains(first)
    refused = pytest.raises(UsageError, match=r"vbuckets 0: no node has a copy.*Nothing has changed")
    with StateWatch(first, VbucketState.DEAD, lose_copies), refused:
        asyncio.run(fail(first, second, third))
    assert run(first, lambda: list_active(first)) == [*range(VBUCKETS)]
    assert [read_chains(first), run(second, lambda: list_active(second))] == [chains, []]


def test_owner_that_gets_its_vbucket_back_has_its_replicas(nodes):
    """A takeover was killed. Without the chain, the owner alone would acknowledge durable writes."""
    first, second, third = nodes
    found = []
    asyncio.run(place(nodes, 1, third))
    for node, state in ((first, VbucketState.DEAD), (third, VbucketState.REPLICA)):
        set_states(node, state, vbuckets=[0])

    async def move():
        async with orchestrating(nodes) as publisher:
            mover = VbucketMover(publisher, make_address(first))
            await mover.move([0], make_endpoint(first), make_endpoint(third))

    with StateWatch(first, VbucketState.ACTIVE, lambda vbucket: found.append(vbucket.history.prepares.chains)):
        asyncio.run(move())
    names = [f"127.0.0.1:{node.kv_port}" for node in (first, second, third)]
    assert found == [((names[0], names[1]),)]
