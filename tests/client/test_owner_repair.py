"""Vbuckets that are not active at their owner in the map become active where their changes are."""

import asyncio

import pytest

from penstock.client.bucket import Bucket
from penstock.client.cluster.cluster_file import BucketEntry, ClusterFile, NodeEntry
from penstock.client.cluster.orchestrator import Orchestrator
from penstock.client.cluster.owner_repair import choose_copy, find_idle, restore_owners
from penstock.client.cluster.replica_choice import NodeReport, ReplicaReport
from penstock.client.cluster.vbucket_mover import release_strays
from penstock.client.connect.address import parse_address
from penstock.client.replication.map_layout import MapLayout, MapNode
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from penstock.wire.messages.kv import FailoverEntry
from tests.client.peer import in_loop
from tests.client.test_vbucket_mover import VBUCKETS, check_documents, list_active, make_endpoint, moving
from tests.node.watch import run

A, B, C = (("h", number) for number in range(3))
ACTIVE, REPLICA, DEAD = VbucketState.ACTIVE, VbucketState.REPLICA, VbucketState.DEAD


def copy(endpoint, seqno, *vbuuids):
    return ReplicaReport(endpoint, tuple(FailoverEntry(vbuuid, 0) for vbuuid in vbuuids), seqno)


@pytest.mark.parametrize(
    ("chain", "copies", "chosen"),
    [
        ([A], [copy(A, 5, 1), copy(B, 9, 1)], B),  # the former owner of a move, whose target has lost changes
        ([A, B], [copy(A, 9, 1), copy(B, 5, 1)], A),
        ([A, None], [copy(A, 5, 2, 1), copy(B, 9, 1)], A),  # the branch of before a failover
        ([A, B], [copy(B, 5, 2), copy(C, 9, 3)], B),  # a branch of its own
        ([A], [copy(C, 9, 3)], C),
        ([A], [], None),
    ],
)
def test_copy_with_the_most_changes_of_the_branch_becomes_active(chain, copies, chosen):
    best = choose_copy(chain, copies)
    assert (best and best.endpoint) == chosen


def test_vbuckets_that_are_not_active_at_their_owner_are_found():
    layout = MapLayout((MapNode(A, {}), MapNode(B, {})), ((0, 1), (0, 1), (1, 0), (-1, 0), (1, -1)))
    reports = [NodeReport({0: ACTIVE, 1: DEAD, 2: ACTIVE, 3: REPLICA}, {}), NodeReport({1: ACTIVE, 2: REPLICA}, {})]
    assert find_idle(layout, reports) == {1, 2, 3, 4}


@pytest.fixture
def nodes():
    with Node.running(["beer"], VBUCKETS) as first, Node.running(["beer"], VBUCKETS) as second:
        yield first, second


@in_loop
async def lose_changes_of_a_move(first, second, published):
    """Leave two vbuckets dead at the first node: the second one lacks their last changes, and has them as replicas."""
    options = ReplicationOptions(vbuckets=[1, 2], overwrite=True, until_caught_up=True)
    keys = [str(number) for number in range(100)]
    async with Bucket(parse_address(first.url("beer"))) as bucket, moving(first, second) as (_, publisher):
        await bucket.upsert_many((key, b"v") for key in keys[:50])
        source, target = (parse_address(node.url("beer")) for node in (first, second))
        async with Replicator(source, target, options) as replicator:
            await replicator.run()
        await bucket.upsert_many((key, b"v") for key in keys[50:])
        owner = publisher.layout.require_node(make_endpoint(second))
        await publisher.publish(publisher.layout.set_owners(dict.fromkeys([1, 2], owner) if published else {}))
        await publisher.get_control(make_endpoint(first)).set_states([1, 2], DEAD)
    async with moving(first, second) as (_, publisher):
        await restore_owners(publisher)
        for node in (first, second):
            await release_strays(publisher, publisher.get_control(make_endpoint(node)))
    await asyncio.wait_for(check_documents(second, keys), 60)


@pytest.mark.parametrize("published", [False, True], ids=["before the map", "after the map"])
def test_vbuckets_of_an_unfinished_move_return_to_the_node_that_has_all_changes(nodes, published):
    first, second = nodes
    lose_changes_of_a_move(first, second, published)
    assert run(first, lambda: list_active(first)) == [*range(VBUCKETS)]


async def release_a_copy(first, second):
    """Make a complete replica active beside its owner, as a failover that is killed before its map does."""
    options = ReplicationOptions(vbuckets=[1], overwrite=True, until_caught_up=True)
    async with Bucket(parse_address(first.url("beer"))) as bucket, moving(first, second) as (_, publisher):
        await bucket.upsert_many((str(number), b"v") for number in range(50))
        source, target = (parse_address(node.url("beer")) for node in (first, second))
        async with Replicator(source, target, options) as replicator:
            await replicator.run()
        await publisher.publish(publisher.layout)
        control = publisher.get_control(make_endpoint(second))
        run(second, lambda: second.buckets["beer"].store.vbuckets[1].set_state(ACTIVE))
        await release_strays(publisher, control)
        return (await control.read_states())[1]


def test_active_copy_without_changes_of_its_own_becomes_a_replica(nodes):
    assert asyncio.run(release_a_copy(*nodes)) is REPLICA


async def place_without_moves(first, second):
    entries = tuple(NodeEntry(url=f"couchbase://127.0.0.1:{node.kv_port}?retrySeconds=5") for node in (first, second))
    bucket = BucketEntry(name="beer", vbuckets=1, replicas=1)
    async with Bucket(parse_address(first.url("beer"))) as documents:
        await documents.upsert("a", b"v")
    orchestrator = Orchestrator(ClusterFile("lab.toml", entries, (bucket,)))
    await orchestrator.rebalance(lambda difference: None)
    return [row.state for row in await orchestrator.read_rows(bucket)]


def test_replicas_of_a_bucket_that_needs_no_moves_are_copied_from_its_owner():
    """The new node has a newer map of its own, in which it owns the vbucket."""
    with Node.running(["beer"], 1) as first, Node.running(["beer"], 1) as second:
        assert asyncio.run(place_without_moves(first, second)) == ["ok"]
