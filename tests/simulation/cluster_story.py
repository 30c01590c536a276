"""The story of a cluster: an orchestrator replicates, moves and fails over; writers write, and consumers follow."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.checks import find_differences, find_double_owners, is_quiet
from tests.simulation.clients import Consumer, Writer
from tests.simulation.cluster import SimulatedNode
from tests.simulation.orchestrator import ClusterDriver
from tests.simulation.promises import Promises
from tests.simulation.schedule import Schedule
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import World

_WATCH_SECONDS = 0.05


class ClusterStory(World):
    """A cluster with its orchestrator and clients."""

    def __init__(self, schedule: Schedule, loop: VirtualLoop) -> None:
        vbuckets = schedule.vbuckets[0]
        names = ("orchestrator", "writer0", "writer1", "consumer")
        super().__init__(schedule, loop, [vbuckets] * schedule.nodes, names)
        self.driver = ClusterDriver(self.cluster, vbuckets, self.clients[0])
        self.promises = Promises(self.cluster, self.driver)
        self.writers = [
            Writer(f"w{number}-", self.driver, self.promises, self.clients[1 + number].random, schedule.durable)
            for number in range(schedule.writers)
        ]
        self.consumers = [Consumer(vbucket, self.driver) for vbucket in range(vbuckets)]

    async def prepare(self) -> None:
        """Spread the vbuckets, and begin to replicate."""
        await self.driver.begin()

    def begin(self) -> list[asyncio.Task[Any]]:
        """Begin to write, to consume, and to watch the owners."""
        for consumer in self.consumers:
            self.loop.spawn(self.clients[3], consumer.run())
        self.loop.spawn(self.clients[0], self._watch_owners())
        return [
            self.loop.spawn(self.clients[1 + number], writer.run(self.schedule.writes, self.schedule.seconds))
            for number, writer in enumerate(self.writers)
        ]

    async def is_at_rest(self) -> bool:
        """Give all nodes their share again. Return whether all replicas and consumers have everything."""
        if not self.driver.is_settled:
            await self.driver.rebalance()
        return is_quiet(self.cluster, self.driver, self.consumers)

    def check(self) -> None:
        """Check the promises, the replicas and the consumers."""
        self.promises.check_all()
        self.problems += self.promises.broken
        self.problems += find_differences(self.cluster, self.driver, self.consumers, timed=not self.schedule.durable)

    async def _watch_owners(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self._check_owners()

    def _check_owners(self) -> None:
        self.problems += find_double_owners(self.cluster, self.driver)

    def describe_state(self) -> str:
        """Return owners, histories and positions."""
        owners = {vbucket: place.owner for vbucket, place in self.driver.map.items()}
        nodes = {
            node.name: None
            if node.node is None
            else [(vb.history.state, vb.history.failover_log, vb.changes.high_seqno) for vb in node.vbuckets]
            for node in self.cluster.nodes
        }
        return f"owners {owners}, nodes {nodes}, consumers {[each.position for each in self.consumers]}"

    def handle_crash(self, node: SimulatedNode) -> None:
        """Expect no writes that were only in the memory of the node."""
        super().handle_crash(node)
        self.promises.end_process(node)

    def count(self) -> dict[str, int]:
        """Return the numbers of writes, of those that faults were allowed to take, of rollbacks and maps."""
        return {
            "acknowledged": sum(writer.acknowledged for writer in self.writers),
            "promised": len(self.promises.writes),
            "released": self.promises.released,
            "rollbacks": sum(consumer.rollbacks for consumer in self.consumers),
            "maps": self.driver.maps,
        }

    # Faults

    async def lose_power(self, seconds: tuple[float, ...], vbucket: int | None) -> None:
        """End all nodes at once with their unsynced data, and start each again after some time.

        Args:
            seconds: the time of each node.
            vbucket: fail over this vbucket before its owner is back; None: none.
        """
        nodes = [node for node in self.cluster.nodes if node.node is not None]
        for node in nodes:
            self.cluster.crash(node, power=True, silent=False)
        owner = None if vbucket is None else self.cluster.nodes[self.driver.map[vbucket].owner]
        delays = dict(zip(self.cluster.nodes, seconds, strict=True))
        restarts = [asyncio.ensure_future(self.restart(node, delays[node])) for node in nodes if node is not owner]
        if owner is not None:
            await self.driver.fail_over(self.cluster.nodes.index(owner), rebalances=False)
        if owner in nodes:
            await self.restart(owner, delays[owner])
        for restart in restarts:
            await restart

    async def fail_over(self, node: int, rebalances: bool, kill: float | None) -> None:
        """Fail a node over, unless that may lose a durable write. The command may be killed after some time."""
        await self.driver.fail_over(node, rebalances=rebalances, seconds=kill)

    async def rebalance(self, kill: float | None) -> None:
        """Give all nodes their share of vbuckets and replicas. The command may be killed after some time."""
        await self.driver.rebalance(kill)

    async def move(self, vbucket: int, hops: int, kills: tuple[float, ...]) -> None:
        """Move a vbucket to another node by takeover. The command is killed after these times, and started again."""
        target = (self.driver.map[vbucket].owner + hops) % self.schedule.nodes
        for seconds in (*kills, None):
            await self.driver.move(vbucket, target, seconds)
