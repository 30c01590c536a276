"""Moves of vbuckets under writers: the clients learn the map and lose no write."""

import asyncio
from contextlib import asynccontextmanager, suppress
from itertools import chain

import pytest

from penstock.client.bucket import Bucket
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.vbucket_mover import MovedVbucket, VbucketMover, release_strays
from penstock.client.connect.address import parse_address
from penstock.client.documents.document import compute_vbucket
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.client.topology.balance_plan import plan_balance
from penstock.errors import KeyExists, UsageError
from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from tests.client.peer import in_loop
from tests.node.watch import run

VBUCKETS = 8
ACTIVE = VbucketState.ACTIVE


def make_endpoint(node):
    return ("127.0.0.1", node.kv_port)


@pytest.fixture
def nodes():
    with Node.running(["beer"], VBUCKETS) as first, Node.running(["beer"], VBUCKETS) as second:
        yield first, second


def list_active(node):
    return [each.id for each in node.buckets["beer"].store.vbuckets if each.history.state is ACTIVE]


class Writers:
    """Clients that write numbered documents one after the other, until they are stopped.

    Attributes:
        written: the keys whose writes were acknowledged.
    """

    def __init__(self, url):
        self.written: list[str] = []
        self._url = url
        self._left: int | None = None
        self._stopped = asyncio.Event()
        self._started = asyncio.Event()

    async def write(self, name):
        async with Bucket(parse_address(self._url)) as bucket:
            number = 0
            while not self._stopped.is_set():
                key = f"{name}-{number}"
                await bucket.upsert(key, b"v")
                self.written.append(key)
                self._started.set()
                number += 1
                if self._left is not None:
                    self._left -= 1
                    if not self._left:
                        self._stopped.set()

    @asynccontextmanager
    async def running(self, count=3):
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self.write(f"writer-{number}"))
            await self._started.wait()
            yield
            self._left = 50
            await self._stopped.wait()


@asynccontextmanager
async def moving(first, *others, report=lambda moved: None):
    address = parse_address(first.url("beer"))
    publisher = MapPublisher(address)
    try:
        for node in (first, *others):
            await publisher.load(make_endpoint(node))
        yield VbucketMover(publisher, address, report), publisher
    finally:
        await publisher.close()


async def check_documents(node, keys):
    async with Bucket(parse_address(node.url("beer"))) as bucket:
        missing = [key for key in keys if await bucket.get(key) is None]
    assert missing == []


@in_loop
async def move_half(first, second):
    moved: list[MovedVbucket] = []
    writers = Writers(first.url("beer"))
    async with moving(first, second, report=moved.append) as (mover, _), writers.running():
        await mover.move([1, 3, 5], make_endpoint(first), make_endpoint(second))
    assert [each.vbucket for each in moved] == [1, 3, 5]
    await check_documents(second, writers.written)


def test_writers_lose_nothing_while_vbuckets_move(nodes):
    first, second = nodes
    move_half(first, second)
    assert run(first, lambda: list_active(first)) == [0, 2, 4, 6, 7]
    assert run(second, lambda: list_active(second)) == [1, 3, 5]


@in_loop
async def move_while_replicating(first, second):
    source, target = (parse_address(node.url("beer")) for node in (first, second))
    running = asyncio.Event()
    writers = Writers(first.url("beer"))
    async with Replicator(source, target, ReplicationOptions(overwrite=True)) as replicator, writers.running():
        # Once all replicas run, the moves find them busy. The replication ends when the target owns all vbuckets.
        replicating = asyncio.create_task(
            replicator.run(lambda progress: running.set() if progress.running == VBUCKETS else None)
        )
        await running.wait()
        async with moving(first, second) as (mover, _):
            await mover.move([3], make_endpoint(first), make_endpoint(second))
            assert not replicating.done()
            await mover.move(range(VBUCKETS), make_endpoint(first), make_endpoint(second))
        await replicating
    await check_documents(second, writers.written)


def test_moves_take_vbuckets_over_from_a_running_replication(nodes):
    first, second = nodes
    move_while_replicating(first, second)
    assert run(first, lambda: list_active(first)) == []
    assert run(second, lambda: list_active(second)) == [*range(VBUCKETS)]


@in_loop
async def balance(*nodes):
    writers = Writers(nodes[0].url("beer"))
    async with moving(*nodes) as (mover, publisher), writers.running():
        layout = publisher.layout
        endpoints = [node.endpoint for node in layout.nodes]
        for vbucket, source, target in plan_balance([places[0] for places in layout.chains], len(endpoints)):
            await mover.move([vbucket], endpoints[source], endpoints[target])
    for node in nodes:
        await check_documents(node, writers.written)


def test_balance_spreads_the_vbuckets_over_three_nodes(nodes):
    with Node.running(["beer"], VBUCKETS) as third:
        balance(*nodes, third)
        active = [run(node, lambda node=node: list_active(node)) for node in (*nodes, third)]
    assert sorted(map(len, active)) == [2, 3, 3]
    assert sorted(chain.from_iterable(active)) == list(range(VBUCKETS))


@in_loop
async def move_missing(first, second):
    async with moving(first, second) as (mover, _):
        await mover.move([1], make_endpoint(second), make_endpoint(first))


def test_vbucket_that_is_not_active_is_not_moved(nodes):
    first, second = nodes

    def stop():
        second.buckets["beer"].store.vbuckets[1].set_state(VbucketState.DEAD)

    run(second, stop)
    with pytest.raises(UsageError, match="vbucket 1 is dead at "):
        move_missing(first, second)


@in_loop
async def finish_move_with_lost_changes(first, second):
    """Repeat a move whose source has a change that its target has lost: two documents, and the first one is there."""
    options = ReplicationOptions(vbuckets=[1], overwrite=True, until_caught_up=True)
    async with Bucket(parse_address(first.url("beer"))) as bucket, moving(first, second) as (mover, publisher):
        keys = [key for key in map(str, range(100)) if compute_vbucket(key.encode(), VBUCKETS) == 1]
        await bucket.upsert(keys[0], b"v")
        source, target = (parse_address(node.url("beer")) for node in (first, second))
        async with Replicator(source, target, options) as replicator:
            await replicator.run()
        await bucket.upsert(keys[1], b"v")
        await publisher.get_control(make_endpoint(second)).set_states([1], ACTIVE)
        await publisher.get_control(make_endpoint(first)).set_states([1], VbucketState.DEAD)
        await mover.move([1], make_endpoint(first), make_endpoint(second))


def test_changes_that_the_target_has_lost_are_kept_at_the_source(nodes):
    first, second = nodes
    with pytest.raises(UsageError, match="has lost changes of vbucket 1, expected all up to seqno 2"):
        finish_move_with_lost_changes(first, second)
    assert run(first, lambda: first.buckets["beer"].store.vbuckets[1].history.state) is VbucketState.DEAD


@in_loop
async def release_changes_of_its_own(first, second, state):
    """Give vbuckets 1 and 2 to a node without their changes, and release them at the former owner."""
    async with Bucket(parse_address(first.url("beer"))) as bucket, moving(first, second) as (_, publisher):
        await bucket.upsert_many((str(number), b"v") for number in range(100))
        layout, control = publisher.layout, publisher.get_control(make_endpoint(first))
        target = layout.require_node(make_endpoint(second))
        await publisher.publish(layout.set_owners({1: target, 2: target}))
        await control.set_states([1, 2], state)
        await release_strays(publisher, control)


@pytest.mark.parametrize("state", [ACTIVE, VbucketState.DEAD])
def test_changes_of_a_former_owner_alone_are_kept_and_named(nodes, state):
    first, second = nodes
    with pytest.raises(UsageError, match="has changes of its own in vbuckets 1-2, which belong to other nodes"):
        release_changes_of_its_own(first, second, state)
    kept = run(first, lambda: [each.history.state for each in first.buckets["beer"].store.vbuckets[1:3]])
    assert kept == [VbucketState.DEAD] * 2


@in_loop
async def move_with_an_older_map(first, second):
    """Move vbucket 3 with a map from before the failover of vbucket 2, which has no changes, to the target."""
    async with moving(first, second) as (mover, _):
        await mover.move([1], make_endpoint(first), make_endpoint(second))
    async with moving(first, second) as (mover, _), moving(first, second) as (_, publisher):
        target = publisher.layout.require_node(make_endpoint(second))
        await publisher.get_control(make_endpoint(second)).set_states([2], ACTIVE)
        await publisher.publish(publisher.layout.set_owners({2: target}))
        await mover.move([3], make_endpoint(first), make_endpoint(second))


def test_vbucket_of_a_failover_that_the_mover_does_not_know_is_kept(nodes):
    first, second = nodes
    with pytest.raises(KeyExists, match="another program has placed vbuckets"):
        move_with_an_older_map(first, second)
    assert run(second, lambda: list_active(second)) == [1, 2]


@in_loop
async def move_between_other_maps(first, second):
    """Move vbuckets while another program publishes maps, in which vbucket 7 goes to and fro."""

    async def publish_often():
        async with moving(first, second) as (_, publisher):
            for owner in (1, 0) * 30:
                with suppress(KeyExists):
                    await publisher.publish(publisher.layout.set_owners({7: owner}))

    async with moving(first, second) as (mover, _):
        await mover.move([0], make_endpoint(first), make_endpoint(second))
        async with asyncio.TaskGroup() as group:
            group.create_task(publish_often())
            await mover.move([0, 1, 2, 3, 4, 5], make_endpoint(first), make_endpoint(second))
    async with moving(first, second) as (_, publisher):
        assert [chain[0] for chain in publisher.layout.chains[:7]] == [1, 1, 1, 1, 1, 1, 0]


def test_maps_of_another_program_delay_a_move(nodes):
    """A map that does not know of a takeover ends it. The new owner has served no client yet, and is tried again."""
    first, second = nodes
    move_between_other_maps(first, second)
    assert run(second, lambda: list_active(second)) == [*range(6)]


@in_loop
async def move_with_cuts(first, second):
    cuts = 0

    def cut():
        """Close the connection of a relay, if there is one. Runs on the loop of the first node."""
        nonlocal cuts
        names = [report.name for report in first.streams("beer") if report.name.startswith("replication:")]
        for name in names:
            cuts += first.close_streams(name, "beer")

    async def cut_often():
        while cuts < 3:  # each one delays the move, and the writers work at full speed meanwhile
            await asyncio.to_thread(run, first, cut)

    writers = Writers(first.url("beer"))
    async with moving(first, second) as (mover, _), writers.running():
        cutting = asyncio.create_task(cut_often())
        await mover.move(range(VBUCKETS), make_endpoint(first), make_endpoint(second))
        cutting.cancel()
        await asyncio.wait([cutting])
    await check_documents(second, writers.written)
    return cuts


@pytest.mark.long
def test_lost_connections_delay_a_move_and_lose_no_write(nodes):
    first, second = nodes
    move_with_cuts(first, second)
    assert run(first, lambda: list_active(first)) == []
    assert run(second, lambda: list_active(second)) == [*range(VBUCKETS)]
