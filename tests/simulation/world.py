"""The world of a simulated story: loop, network, machines, and the faults of links and machines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from tests.simulation.cluster import Cluster, SimulatedNode
from tests.simulation.network import Link, Network
from tests.simulation.schedule import Action, Schedule
from tests.simulation.virtual_loop import Process, VirtualLoop


class Report(NamedTuple):
    """The result of a simulation.

    Attributes:
        trace: all segments of the network and all faults, in order.
        seconds: virtual seconds.
        counts: numbers of the story, by their names.
    """

    trace: list[tuple[object, ...]]
    seconds: float
    counts: dict[str, int]


class World:
    """Loop, network and machines of a story.

    Each kind of fault is a method; the schedule has its arguments. A story is a subclass with its own work and rules.

    Args:
        schedule: the schedule.
        loop: the event loop.
        vbuckets: number of vbuckets of the bucket, on each node.
        clients: names of the machines without nodes.

    Attributes:
        schedule: as the argument.
        trace: all segments of the network and all faults, in order.
        problems: the rules that do not hold.
        loop: as the argument.
        network: connects the machines.
        cluster: the machines with nodes.
        clients: the processes of the other machines.
        quiet_seconds: virtual seconds in which the story must come to rest after the last fault.
    """

    quiet_seconds = 150.0

    def __init__(self, schedule: Schedule, loop: VirtualLoop, vbuckets: Sequence[int], clients: Sequence[str]) -> None:
        self.schedule = schedule
        self.trace: list[tuple[object, ...]] = []
        self.problems: list[str] = []
        self.loop = loop
        seed = schedule.seed
        self.network = Network(loop, seed, self.record_segment)
        self.cluster = Cluster(seed, loop, self.network, vbuckets)
        self.cluster.crashed = self.handle_crash
        self.clients = [
            Process(name, f"127.0.1.{number}", Random(f"{seed} {name}")) for number, name in enumerate(clients)
        ]
        self.hosts = [*(node.host for node in self.cluster.nodes), *(client.host for client in self.clients)]

    async def run(self) -> Report:
        """Run the schedule, wait until the story is at rest, and check it."""
        await self.cluster.start()
        await self.prepare()
        work = self.begin()
        began = self.loop.time()
        faults = [self.loop.spawn(self.clients[0], self._act(began, action)) for action in self.schedule.actions]
        for task in [*faults, *work]:
            await task
        until = self.loop.time() + self.quiet_seconds
        while not self.problems and not await self.is_at_rest():
            if self.loop.time() > until:
                self.problems.append(f"not at rest after {self.quiet_seconds:g} s: {self.describe_state()}")
            await asyncio.sleep(0.25)
        self.check()
        return Report(self.trace, self.loop.time(), self.count())

    # A story

    async def prepare(self) -> None:
        """Do the work that precedes all faults."""

    def begin(self) -> list[asyncio.Task[Any]]:
        """Begin the work. Returns the tasks that end by themselves."""
        raise NotImplementedError

    async def is_at_rest(self) -> bool:
        """Return whether nothing is left to do."""
        raise NotImplementedError

    def check(self) -> None:
        """Check the rules at the end."""
        raise NotImplementedError

    def describe_state(self) -> str:
        """Return the state of a story that does not come to rest."""
        raise NotImplementedError

    def count(self) -> dict[str, int]:
        """Return numbers for the report."""
        raise NotImplementedError

    def record_segment(self, connection: str, nbytes: int, checksum: int) -> None:
        """Add a segment to the trace."""
        self.trace.append((self.loop.time(), connection, nbytes, checksum))

    def handle_crash(self, node: SimulatedNode) -> None:
        """Note the end of a node."""
        self.trace.append((self.loop.time(), f"{node.name} ends"))

    async def _act(self, began: float, action: Action) -> None:
        await asyncio.sleep(began + action.at - self.loop.time())
        self.trace.append((self.loop.time(), str(action)))
        await getattr(self, action.name)(**action.arguments)

    # Faults

    async def crash(self, node: int, power: bool, silent: bool, seconds: float) -> None:
        """End a node, and start it again after some time."""
        found = self.cluster.nodes[node]
        if found.node is None:
            return
        self.cluster.crash(found, power=power, silent=silent)
        await self.restart(found, seconds)

    async def die_in_write(self, node: int, calls: int, seconds: float) -> None:
        """End a node in the middle of a call of its disk, and start it again after some time."""
        found = self.cluster.nodes[node]
        if found.node is None:
            return
        process = found.process
        found.plan_death(calls)
        for _ in range(40):
            if not process.is_alive:
                break
            await asyncio.sleep(0.05)
        else:
            self.cluster.crash(found, power=True, silent=False)
        await self.restart(found, seconds)

    async def restart(self, node: SimulatedNode, seconds: float) -> None:
        """Start a node after some time, once more if it dies again."""
        await asyncio.sleep(seconds)
        while node.node is None:
            await node.start()

    async def cut_link(self, hosts: tuple[int, int], seconds: float) -> None:
        """Hold everything between two hosts for some time."""
        link = self.find_link(hosts)
        link.cut()
        await asyncio.sleep(seconds)
        link.heal()

    async def pause(self, node: int, seconds: float) -> None:
        """Stop the process of a node for some time. Its clock goes on."""
        self.cluster.nodes[node].process.paused_until = self.loop.time() + seconds

    async def reset_link(self, hosts: tuple[int, int]) -> None:
        """Reset all connections between two hosts."""
        self.network.reset_link(self.find_link(hosts))

    def find_link(self, hosts: tuple[int, int]) -> Link:
        """Return the link between two machines."""
        return self.network.find_link(self.hosts[hosts[0]], self.hosts[hosts[1]])
