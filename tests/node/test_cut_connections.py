"""Connections of clients and replicas are cut during durable writes: acknowledged ones survive, refused ones vanish."""

import asyncio
import random
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import count

import pytest

from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.errors import (
    ConnectionClosed,
    KeyExists,
    KeyNotFound,
    OperationTimeout,
    SyncWriteAmbiguous,
    SyncWriteRecommitInProgress,
    Unreachable,
)
from penstock.node import Node
from penstock.pytest import FaultProxy, ProxySide
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.opcodes import Magic, Opcode
from tests.client.peer import in_loop
from tests.node.frame_proxy import replicating
from tests.node.replication_chains import set_states
from tests.node.serve_process import wait_for
from tests.node.test_sync_replication import read_seqnos
from tests.patience import PATIENCE

VBUCKETS = 4
AMBIGUOUS = (SyncWriteAmbiguous, ConnectionClosed, OperationTimeout, Unreachable)


class CutPair:
    """An active node and its replica behind fault proxies. Clients have a proxy of their own before the active node.

    Attributes:
        active: the active node.
        replica: the other node.
        clients: the proxy between clients and the active node.
        source: the proxy between the relay and the active node.
        target: the proxy between the relay and the replica.
    """

    def __init__(self, stack):
        self.active, self.replica = (stack.enter_context(Node.running(["beer"], VBUCKETS)) for _ in range(2))
        loop = stack.enter_context(LoopThread("faults"))
        ports = (self.active.kv_port, self.active.kv_port, self.replica.kv_port)
        self.clients, self.source, self.target = (
            stack.enter_context(FaultProxy(("127.0.0.1", port), loop)) for port in ports
        )
        chain = [f"127.0.0.1:{node.kv_port}" for node in (self.active, self.replica)]
        set_states(self.replica, VbucketState.REPLICA, *chain)
        set_states(self.active, VbucketState.ACTIVE, *chain)

    def make_address(self, proxy):
        """Return the address of a node behind a proxy. Its client ignores the map, which names the node itself."""
        options = f"vbucketCount={VBUCKETS}&retrySeconds={PATIENCE}&operationTimeout={PATIENCE}"
        return parse_address(f"couchbase://127.0.0.1:{proxy.port}/beer?{options}")

    @asynccontextmanager
    async def replicating(self):
        """Replicate the active node to the replica, through both proxies."""
        addresses = self.make_address(self.source), self.make_address(self.target)
        async with Replicator(*addresses, ReplicationOptions(vbuckets=range(VBUCKETS))) as replicator:
            running = asyncio.create_task(replicator.run())
            try:
                yield
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

    def promote(self):
        """Let the replica replace the active node, without replicas of its own."""
        set_states(self.active, VbucketState.DEAD, f"127.0.0.1:{self.active.kv_port}")
        set_states(self.replica, VbucketState.ACTIVE, f"127.0.0.1:{self.replica.kv_port}")


@pytest.fixture
def pair():
    with ExitStack() as stack:
        yield CutPair(stack)


async def wait_until(condition):
    """Wait until a request has the expected reply."""
    await asyncio.to_thread(wait_for, condition, "the expected reply")


async def read_decided(bucket, key):
    """Return the value of a document once its writes are decided, None if there is none."""
    while True:
        try:
            return bytes((await bucket.get(key)).value)
        except KeyNotFound:
            return None
        except SyncWriteRecommitInProgress:
            await asyncio.sleep(0)


@in_loop
async def test_lost_answer_of_a_committed_write_is_no_refusal(pair):
    async with Bucket(pair.make_address(pair.clients)) as bucket:
        writing = asyncio.create_task(bucket.insert("k", b"v", durability="majority"))
        await wait_until(lambda: max(read_seqnos(pair.active, vbucket)[0] for vbucket in range(VBUCKETS)) == 1)
        pair.clients.black_hole()
        async with pair.replicating():
            await wait_until(lambda: max(read_seqnos(pair.replica, vbucket)[3] for vbucket in range(VBUCKETS)) == 2)
        pair.clients.cut()
        with pytest.raises(ConnectionClosed):
            await writing
        pair.clients.heal()
        assert await read_decided(bucket, "k") == b"v"


@in_loop
async def test_repeated_write_is_acknowledged_after_the_connection_was_cut(pair):
    async with Bucket(pair.make_address(pair.clients)) as bucket:
        writing = asyncio.create_task(bucket.upsert("k", b"v", durability="majority"))
        await wait_until(lambda: max(read_seqnos(pair.active, vbucket)[0] for vbucket in range(VBUCKETS)) == 1)
        before = pair.clients.accepted
        pair.clients.cut()
        await wait_until(lambda: pair.clients.accepted > before)
        async with pair.replicating():
            await writing
        pair.promote()
    async with Bucket(pair.make_address(pair.target)) as promoted:
        assert await read_decided(promoted, "k") == b"v"


MOMENTS = {
    "prepare": (Magic.REQUEST, Opcode.DCP_PREPARE),
    "acknowledgement": (Magic.REQUEST, Opcode.DCP_SEQNO_ACKNOWLEDGED),
    "commit": (Magic.REQUEST, Opcode.DCP_COMMIT),
}
"""The frame between the nodes instead of which both connections end."""


@pytest.mark.parametrize("moment", MOMENTS)
@in_loop
async def test_write_goes_on_when_the_replica_returns(pair, moment):
    name, cut = f"127.0.0.1:{pair.replica.kv_port}", asyncio.Event()
    loop = asyncio.get_running_loop()

    def cuts(frame):
        found = frame[:2] == bytes(MOMENTS[moment])
        if found:
            loop.call_soon_threadsafe(cut.set)
        return found

    async with Bucket(pair.make_address(pair.clients)) as bucket:
        vbuckets = range(VBUCKETS)
        with replicating(pair.active, pair.replica, "beer", vbuckets, cuts=cuts, consumer_name=name):
            writing = asyncio.create_task(bucket.insert("k", b"v", durability="majority"))
            await cut.wait()
        if moment == "commit":
            await writing  # the replica has the prepare, so the write is safe
        else:
            assert not writing.done()
            async with pair.replicating():
                await writing
        pair.promote()
    async with Bucket(pair.make_address(pair.target)) as promoted:
        assert await read_decided(promoted, "k") == b"v"


class Outcomes:
    """The outcomes of the writes of some clients.

    Attributes:
        possible: by key the values that the document may have: those since its last acknowledged write.
        over: no more writes are begun.
    """

    def __init__(self):
        self.possible: dict[str, set[bytes | None]] = {}
        self.over = False
        self._acknowledged = asyncio.Event()

    async def write(self, bucket, key, value, kind):
        """Change a document durably, and note the outcome. Any other error fails the test."""
        possible = self.possible.setdefault(key, {None})
        try:
            if kind == "remove":
                value = None
                await bucket.remove(key, durability="majority")
            else:
                await (bucket.upsert if kind == "upsert" else bucket.insert)(key, value, durability="majority")
        except AMBIGUOUS:
            possible.add(value)
        except (KeyExists, KeyNotFound):
            pass  # refused
        else:
            self.possible[key] = {value}
            self._acknowledged.set()

    async def wait_for_acknowledged(self):
        """Wait until one more write is acknowledged."""
        self._acknowledged.clear()
        await self._acknowledged.wait()


KINDS = ("upsert", "upsert", "insert", "remove")
WRITERS, FAULTS = 4, 12


async def run_writer(number, seed, bucket, outcomes):
    """Write the documents of one client, one write after the other."""
    draw = random.Random(f"{seed} {number}")
    for turn in count():
        if outcomes.over:
            return
        key = f"{number}-{draw.randrange(4)}"
        await outcomes.write(bucket, key, b"%d-%d" % (number, turn), draw.choice(KINDS))


async def inject_faults(draw, proxies, outcomes):
    """Inject some faults, each after the writes go on."""
    for _ in range(FAULTS):
        await outcomes.wait_for_acknowledged()
        proxy = draw.choice(proxies)
        faults = [
            proxy.cut,
            proxy.black_hole,
            proxy.single_bytes,
            *(partial(proxy.half_close, side) for side in ProxySide),
        ]
        await asyncio.to_thread(draw.choice(faults))
        await asyncio.sleep(draw.uniform(0, 0.05))  # a fault that lasts meets other steps of the writes
        await asyncio.to_thread(proxy.heal)
    outcomes.over = True


@pytest.mark.parametrize("seed", range(4))
@in_loop
async def test_promoted_replica_has_each_document_as_the_clients_know_it(pair, seed):
    outcomes, draw = Outcomes(), random.Random(seed)
    async with Bucket(pair.make_address(pair.clients)) as bucket, pair.replicating(), asyncio.TaskGroup() as group:
        for number in range(WRITERS):
            group.create_task(run_writer(number, seed, bucket, outcomes))
        group.create_task(inject_faults(draw, [pair.clients, pair.source, pair.target], outcomes))
    pair.promote()
    async with Bucket(pair.make_address(pair.target)) as promoted:
        for key, possible in outcomes.possible.items():
            assert await read_decided(promoted, key) in possible
