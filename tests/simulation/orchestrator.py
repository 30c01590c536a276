"""The product's orchestrator in a simulated process, and the map that its nodes have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from penstock.client.cluster.cluster_file import BucketEntry, ClusterFile, NodeEntry
from penstock.client.cluster.map_publisher import open_map
from penstock.client.cluster.orchestrator import Orchestrator
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.replication.map_layout import MapVersion, read_map_layout
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.errors import Error, UsageError
from penstock.node.cluster.pushed_map import PushedMap
from penstock.wire.codec.constants import VbucketState
from tests.simulation.cluster import BUCKET, PORT, Cluster
from tests.simulation.virtual_loop import Process

_OPTIONS = "connectTimeout=10&operationTimeout=10&retrySeconds=3"
_LOOK_SECONDS = 0.05
_RETRY_SECONDS = 0.5
_FAILURES = (OSError, Error, TimeoutError)


class VbucketPlace(NamedTuple):
    """The place of a vbucket.

    Attributes:
        number: counts the places that it has had.
        owner: number of the node that owns it.
    """

    number: int
    owner: int


class ClusterDriver:
    """Runs the commands of an orchestrator, one at a time, and notes where the vbuckets are then.

    Attributes:
        cluster: the machines.
        map: the place of each vbucket, as of the end of the last command.
        maps: number of maps that have changed a place.
        is_settled: whether the last command has given all nodes their share.
        changed: set and replaced at each change of the map.
        promoted: called with a vbucket that got a new owner: its number, the former owner, and whether the owner has
            all changes of the former one.
        restarted: called with the number of a vbucket whose owner has started again.
    """

    def __init__(self, cluster: Cluster, vbuckets: int, process: Process) -> None:
        self.cluster = cluster
        self.map = {vbucket: VbucketPlace(0, 0) for vbucket in range(vbuckets)}
        self.maps = 0
        self.is_settled = False
        self.changed = asyncio.Event()
        self.promoted: Callable[[int, int, bool], None] = lambda vbucket, former, has_all: None
        self.restarted: Callable[[int], None] = lambda vbucket: None
        nodes = tuple(NodeEntry(url=f"couchbase://{node.host}:{PORT}?{_OPTIONS}") for node in cluster.nodes)
        self._bucket = BucketEntry(name=BUCKET, vbuckets=vbuckets, replicas=len(nodes) - 1)
        self._file = ClusterFile("the simulation", nodes, (self._bucket,))
        self._address = self._file.make_address(BUCKET)
        self._orchestrator = Orchestrator(self._file)
        self._processes: dict[int, Process] = {}  # of the owners, by vbucket
        self._commands = asyncio.Lock()
        self._process = process

    async def begin(self) -> None:
        """Spread the vbuckets, and begin to keep replicas and maps."""
        while not self.is_settled:  # in a bucket with change history, each vbucket begins with an event of its own
            await self.rebalance()
        self.cluster.loop.spawn(self._process, self._run())
        self.cluster.loop.spawn(self._process, self._look())

    async def _run(self) -> None:
        """Run `penstock cluster run`, again after each of its errors."""
        while True:
            with suppress(*_FAILURES):
                await self._orchestrator.run(lambda *_: None)
            await asyncio.sleep(_RETRY_SECONDS)

    # The map

    def read_map(self, number: int) -> PushedMap | None:
        """Return the map that a node has; None: it is down, or has none."""
        node = self.cluster.nodes[number].node
        return None if node is None else node.buckets[BUCKET].cluster_map.pushed

    def read_version(self, number: int) -> MapVersion | None:
        """Return the version of the map that a node has; None: it is down, or has none."""
        pushed = self.read_map(number)
        return None if pushed is None else (pushed.epoch, pushed.revision)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if not self._commands.locked():
                self.note_places()

    def note_places(self, complete: frozenset[Process] = frozenset()) -> None:
        """Note the owners of the newest map, and whether they have started again.

        Args:
            complete: processes that have lived while a command has moved vbuckets to its end: nothing was lost there.
        """
        maps = [found for found in map(self.read_map, range(len(self.cluster.nodes))) if found is not None]
        if not maps:
            return
        newest = max(maps, key=lambda found: (found.epoch, found.revision))
        layout = read_map_layout(newest.content, ("", PORT))
        numbers = {(node.host, PORT): number for number, node in enumerate(self.cluster.nodes)}
        for vbucket, place in self.map.items():
            owner = layout.chains[vbucket][0]
            if owner == NO_NODE:
                continue
            number = numbers[layout.nodes[owner].endpoint]
            node, former = self.cluster.nodes[number], self.cluster.nodes[place.owner]
            if former.process is not self._processes.get(vbucket, former.process) and former.node is not None:
                self._processes[vbucket] = former.process
                self.restarted(vbucket)
            if number != place.owner:
                self.map[vbucket] = VbucketPlace(place.number + 1, number)
                self._processes[vbucket] = node.process
                self.maps += 1
                self.promoted(vbucket, place.owner, {node.process, former.process} <= complete)
                self.changed.set()
                self.changed = asyncio.Event()
            self._processes.setdefault(vbucket, node.process)

    # Commands

    async def _command(self, work: Callable[[], Awaitable[None]], seconds: float | None, *, moves: bool = True) -> bool:
        """Run a command. Return whether it has ended without an error.

        Args:
            work: runs the command.
            seconds: the command is killed after this time; None: it is not.
            moves: the command moves vbuckets, and promotes none.
        """
        async with self._commands:
            self.note_places()
            self.is_settled, has_ended = False, False
            processes = frozenset(node.process for node in self.cluster.nodes)
            with suppress(*_FAILURES):
                async with asyncio.timeout(seconds):
                    await work()
                has_ended = True
            alive = frozenset(process for process in processes if process.is_alive)
            self.note_places(alive if has_ended and moves else frozenset())
            return has_ended

    async def rebalance(self, seconds: float | None = None) -> None:
        """Give each node its share of vbuckets and replicas."""

        async def work() -> None:
            try:
                await self._orchestrator.rebalance(lambda difference: None)
            except UsageError as error:
                if "changes of its own" not in str(error):
                    raise
                await self._replace_strays()
                raise

        self.is_settled = await self._command(work, seconds)

    async def fail_over(self, number: int, *, rebalances: bool, seconds: float | None = None) -> None:
        """Fail a node over, unless that may lose a durable write."""
        name = self._file.nodes[number].name

        async def work() -> None:
            await self._orchestrator.fail_over(name, lambda *_: None, may_lose=False, rebalances=rebalances)

        await self._command(work, seconds, moves=False)

    async def move(self, vbucket: int, number: int, seconds: float | None = None) -> None:
        """Move a vbucket to a node."""

        async def work() -> None:
            async with open_map(self._address, self._address.hosts) as publisher:
                layout = publisher.layout
                owner, target = layout.chains[vbucket][0], self._file.nodes[number].endpoint
                if owner not in (NO_NODE, layout.require_node(target)):
                    await VbucketMover(publisher, self._address).move([vbucket], layout.nodes[owner].endpoint, target)

        await self._command(work, seconds)

    async def _replace_strays(self) -> None:
        """Lose the changes that dead vbuckets have of their own, as `apply` advises."""
        for endpoint in self._address.hosts:
            async with NodeControl(self._address, endpoint) as control:
                dead = [vb for vb, state in (await control.read_states()).items() if state is VbucketState.DEAD]
                if dead:
                    options = ReplicationOptions(vbuckets=dead, overwrite=True, until_caught_up=True)
                    async with Replicator(self._address, control.address, options) as replicator:
                        await replicator.run()
