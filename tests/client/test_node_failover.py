"""Failover: the best replica becomes active, the map follows, consumers and other replicas roll back and go on."""

import asyncio
from contextlib import ExitStack

import pytest

from penstock.client.bucket import Bucket
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.map_replication import MapReplication, place_replicas
from penstock.client.cluster.node_failover import fail_over
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.connect.address import parse_address
from penstock.errors import UsageError
from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from tests.client.test_replicator import make_address, replicate_once, replicating
from tests.client.test_vbucket_mover import list_active, make_endpoint
from tests.node.test_follow import VBUCKETS
from tests.node.test_follow_collections import get_history, wait_until_copied
from tests.node.test_replication import set_states, write
from tests.node.watch import run


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def start(stack):
    return stack.enter_context(Node.running(["beer"], VBUCKETS))


async def fail(node, *others):
    publisher = MapPublisher(make_address(others[0]))
    try:
        for other in others:
            await publisher.load(make_endpoint(other))
        return await fail_over(publisher, make_endpoint(node), make_address(others[0]), may_lose=True)
    finally:
        await publisher.close()


def get_logs(node):
    return run(node, lambda: [log for log, _, _ in get_history(node)])


def test_best_replica_becomes_active_and_the_other_rolls_back(stack):
    lost = ExitStack()
    with lost:
        active, behind, ahead = start(lost), start(stack), start(stack)
        write(active, 0, 100)
        replicate_once(active, behind)
        write(active, 100, 200)
        replicate_once(active, ahead)
        logs = get_logs(active)
        write(active, 200, 240)  # no replica has these changes
    result = asyncio.run(fail(active, behind, ahead))
    assert result.promoted == dict.fromkeys(range(VBUCKETS), make_endpoint(ahead))
    assert (result.lost, result.is_reachable) == ((), False)
    assert run(ahead, lambda: list_active(ahead)) == [*range(VBUCKETS)]
    assert [log[1:] for log in get_logs(ahead)] == logs

    asyncio.run(write_through(behind))
    write(ahead, 240, 300)
    replicate_once(ahead, behind)
    assert run(behind, lambda: get_history(behind)) == run(ahead, lambda: get_history(ahead))


async def write_through(node):
    """Write by the cluster map of a node without active vbuckets."""
    async with Bucket(parse_address(node.url("beer"))) as bucket:
        await bucket.upsert("new", b"v")
        document = await bucket.get("new")
    assert document is not None
    assert document.value == b"v"


def test_replica_ahead_of_the_new_owner_rolls_back(stack):
    active, first, second = (start(stack) for _ in range(3))
    write(active, 0, 100)
    replicate_once(active, first)
    write(active, 100, 150)
    replicate_once(active, second)
    set_states(second, VbucketState.DEAD)  # not a candidate
    result = asyncio.run(fail(active, first, second))
    assert {*result.promoted.values()} == {make_endpoint(first)}
    write(first, 150, 170)
    replicate_once(first, second)
    assert run(second, lambda: get_history(second)) == run(first, lambda: get_history(first))


def test_reachable_node_loses_its_vbuckets_first(stack):
    active, replica = start(stack), start(stack)
    write(active, 0, 50)
    replicate_once(active, replica)
    assert asyncio.run(fail(active, replica)).is_reachable
    assert run(active, lambda: list_active(active)) == []
    # The former owner becomes a replica of the new one.
    replicate_once(replica, active)
    assert run(active, lambda: get_history(active)) == run(replica, lambda: get_history(replica))


def test_vbuckets_without_a_replica_are_reported(stack):
    active, replica = start(stack), start(stack)
    write(active, 0, 50)
    replicate_once(active, replica, vbuckets=[0, 2])  # its other vbuckets are active and empty
    result = asyncio.run(fail(active, replica))
    assert (sorted(result.promoted), result.lost) == ([0, 2], (1, 3))


def test_empty_vbuckets_of_a_new_node_are_no_owners(stack):
    active, new, replica = start(stack), start(stack), start(stack)
    write(active, 0, 50)
    replicate_once(active, replica)
    result = asyncio.run(fail(active, new, replica))
    assert result.promoted == dict.fromkeys(range(VBUCKETS), make_endpoint(replica))
    assert (run(new, lambda: list_active(new)), run(replica, lambda: list_active(replica))) == ([], [*range(VBUCKETS)])


def test_empty_vbuckets_of_an_owner_in_the_map_stay(stack):
    active, other = start(stack), start(stack)

    async def main():
        publisher = MapPublisher(make_address(active))
        try:
            for node in (active, other):
                await publisher.load(make_endpoint(node))
            mover = VbucketMover(publisher, make_address(active))
            await mover.move([1], make_endpoint(active), make_endpoint(other))
        finally:
            await publisher.close()

    asyncio.run(main())
    result = asyncio.run(fail(active, other))
    assert (result.promoted, result.lost) == ({}, (0, 2, 3))
    assert run(other, lambda: list_active(other)) == [1]


async def copy_to(source, *targets):
    """Give all vbuckets of a node replicas on other nodes, in its map too."""
    publisher = MapPublisher(make_address(source))
    try:
        for node in (source, *targets):
            await publisher.load(make_endpoint(node))
        async with MapReplication(make_address(source), planned={}) as replication:
            await place_replicas(publisher, replication, len(targets))
    finally:
        await publisher.close()


async def fail_safely(node, *others):
    publisher = MapPublisher(make_address(others[0]))
    try:
        for other in others:
            await publisher.load(make_endpoint(other))
        return await fail_over(publisher, make_endpoint(node), make_address(others[0]))
    finally:
        await publisher.close()


def test_copies_of_the_chain_are_promoted_without_risk(stack):
    active, first, second = (start(stack) for _ in range(3))
    write(active, 0, 50)
    asyncio.run(copy_to(active, first, second))
    result = asyncio.run(fail_safely(active, first, second))
    assert (len(result.promoted), result.lost, result.risks) == (VBUCKETS, (), {})


def test_node_that_is_failed_over_again_knows_that_it_owns_nothing(stack):
    """The second failover reaches it, and the map of the others does not have it any more."""
    active, first, second = (start(stack) for _ in range(3))
    write(active, 0, 50)
    asyncio.run(copy_to(active, first, second))
    nodes = [make_endpoint(first), make_endpoint(second)]
    for promoted in (VBUCKETS, 0):
        result = asyncio.run(fail_safely(active, first, second))
        assert (len(result.promoted), result.is_reachable) == (promoted, True)
        pushed = run(active, lambda: active.buckets["beer"].cluster_map.pushed)
        owned = pushed.find_owned()
        assert (set(owned.own), {*owned.foreign}) == (set(), {*range(VBUCKETS)})
        assert asyncio.run(list_nodes(active, first, second)) == [*nodes, make_endpoint(active)]


async def list_nodes(*nodes):
    """Return the nodes of the newest map, and the first one if the map has left it out."""
    publisher = MapPublisher(make_address(nodes[0]))
    try:
        for node in nodes:
            await publisher.load(make_endpoint(node))
        await publisher.add_node(make_endpoint(nodes[0]))
        return publisher.list_endpoints(publisher.layout)
    finally:
        await publisher.close()


def test_nothing_changes_if_changes_may_be_lost(stack):
    active, first, second = (start(stack) for _ in range(3))
    write(active, 0, 50)
    asyncio.run(copy_to(active, first, second))
    run(second, lambda: [vbucket.remove() for vbucket in second.buckets["beer"].store.vbuckets])
    with pytest.raises(UsageError, match=r"vbuckets 0-3: 2 of 3 places of its chain do not answer.*--lose"):
        asyncio.run(fail_safely(active, first, second))
    assert run(active, lambda: list_active(active)) == [*range(VBUCKETS)]
    assert run(first, lambda: list_active(first)) == []


def test_copy_is_promoted_once_a_stream_has_reached_it_since_the_start(stack, tmp_path):
    active = start(stack)
    write(active, 0, 50)
    with Node.running(["beer"], VBUCKETS, data_dir=tmp_path) as copy:
        asyncio.run(copy_to(active, copy))
        port = copy.kv_port
    copy = stack.enter_context(Node.running(["beer"], VBUCKETS, port=port, data_dir=tmp_path))
    reason = rf"vbuckets 0-3: no stream has reached the copy at 127\.0\.0\.1:{port} since that node's start; .*--lose"
    with pytest.raises(UsageError, match=reason):
        asyncio.run(fail_safely(active, copy))
    assert run(active, lambda: list_active(active)) == [*range(VBUCKETS)]
    replicate_once(active, copy)
    result = asyncio.run(fail_safely(active, copy))
    assert (len(result.promoted), result.risks) == (VBUCKETS, {})


def test_copy_outside_of_the_chain_is_promoted_on_request_alone(stack):
    active, replica = start(stack), start(stack)
    write(active, 0, 50)
    replicate_once(active, replica)
    with pytest.raises(UsageError, match="no copy is in its chain"):
        asyncio.run(fail_safely(active, replica))
    assert {*asyncio.run(fail(active, replica)).risks} == {*range(VBUCKETS)}


def test_last_node_is_not_failed_over(stack):
    node = start(stack)
    with pytest.raises(UsageError, match="is the only node"):
        asyncio.run(fail(node, node))


def test_running_replication_follows_the_new_owner(stack):
    active, best, other = (start(stack) for _ in range(3))
    write(active, 0, 100)
    replicate_once(active, best)

    async def main():
        publisher = MapPublisher(make_address(active))
        try:
            for node in (active, best):
                await publisher.load(make_endpoint(node))
            await publisher.publish(publisher.layout)  # both nodes know of each other
            async with replicating(active, other):
                await asyncio.to_thread(wait_until_copied, other, active)
                await fail_over(publisher, make_endpoint(active), make_address(best), may_lose=True)
                await asyncio.to_thread(write, best, 100, 150)
                await asyncio.to_thread(wait_until_copied, other, best)
        finally:
            await publisher.close()

    asyncio.run(main())
