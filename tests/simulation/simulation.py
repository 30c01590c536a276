"""Runs a schedule on a simulated cluster, and checks the result."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from tests.simulation.checks import find_differences, find_double_owners, is_quiet
from tests.simulation.clients import Consumer, Writer
from tests.simulation.cluster import Cluster, SimulatedNode
from tests.simulation.network import Link, Network
from tests.simulation.orchestrator import Orchestrator
from tests.simulation.promises import Promises
from tests.simulation.schedule import Action, Schedule
from tests.simulation.vbucket_moves import move_vbucket
from tests.simulation.virtual_loop import Process, Stalled, VirtualLoop

__all__ = ["Report", "Simulation", "SimulationFailed", "find_shortest_failure", "run_schedule", "run_seed"]

_QUIET_SECONDS = 150.0
"""Virtual seconds in which the cluster must come to rest after the last fault."""
_WATCH_SECONDS = 0.05


class SimulationFailed(AssertionError):
    """A rule does not hold. The message has the schedule of the seed and the command that repeats it."""


class Report(NamedTuple):
    """The result of a simulation.

    Attributes:
        trace: all segments of the network and all faults, in order.
        seconds: virtual seconds.
        acknowledged: acknowledged writes.
        promised: those that were checked at the end.
        released: those that faults were allowed to take.
        rollbacks: rollbacks of consumers.
        failovers: changes of the map.
    """

    trace: list[tuple[object, ...]]
    seconds: float
    acknowledged: int
    promised: int
    released: int
    rollbacks: int
    failovers: int


class _ErrorLog(logging.Handler):
    """Keeps the errors that the product logs, which are defects."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


class Simulation:
    """A cluster with its orchestrator, clients and faults.

    Each kind of fault is a method; the schedule has its arguments.
    """

    def __init__(self, schedule: Schedule, loop: VirtualLoop) -> None:
        self.schedule = schedule
        self.trace: list[tuple[object, ...]] = []
        self.problems: list[str] = []
        self.loop = loop
        seed = schedule.seed
        self.network = Network(loop, seed, lambda *segment: self.trace.append((loop.time(), *segment)))
        self.cluster = Cluster(seed, loop, self.network, nodes=schedule.nodes, vbuckets=schedule.vbuckets)
        self.cluster.crashed = self._handle_crash
        self.clients = [
            Process(name, f"127.0.1.{number}", Random(f"{seed} {name}"))
            for number, name in enumerate(("orchestrator", "writer0", "writer1", "consumer"))
        ]
        self.hosts = [*(node.host for node in self.cluster.nodes), *(client.host for client in self.clients)]
        self.orchestrator = Orchestrator(self.cluster, self.clients[0])
        self.promises = Promises(self.cluster, self.orchestrator)
        self.writers = [
            Writer(f"w{number}-", self.orchestrator, self.promises, self.clients[1 + number].random, schedule.durable)
            for number in range(schedule.writers)
        ]
        self.consumers = [Consumer(vbucket, self.orchestrator) for vbucket in range(schedule.vbuckets)]

    async def run(self) -> Report:
        """Run the schedule, wait until the cluster is at rest, and check it."""
        spawn = self.loop.spawn
        await self.cluster.start()
        self.orchestrator.run()
        for consumer in self.consumers:
            spawn(self.clients[3], consumer.run())
        writing = [
            spawn(self.clients[1 + number], writer.run(self.schedule.writes, self.schedule.seconds))
            for number, writer in enumerate(self.writers)
        ]
        began = self.loop.time()
        spawn(self.clients[0], self._watch_owners())
        faults = [spawn(self.clients[0], self._act(began, action)) for action in self.schedule.actions]
        for task in [*faults, *writing]:
            await task
        await self._come_to_rest()
        self.promises.check_all()
        self.problems += self.promises.broken
        self.problems += find_differences(self.cluster, self.orchestrator, self.consumers)
        return self._make_report()

    async def _act(self, began: float, action: Action) -> None:
        await asyncio.sleep(began + action.at - self.loop.time())
        self.trace.append((self.loop.time(), str(action)))
        await getattr(self, action.name)(**action.arguments)

    async def _come_to_rest(self) -> None:
        until = self.loop.time() + _QUIET_SECONDS
        while not is_quiet(self.cluster, self.orchestrator, self.consumers):
            if self.loop.time() > until:
                self.problems.append(f"not at rest after {_QUIET_SECONDS:g} s: {self._describe_state()}")
                return
            await asyncio.sleep(0.25)

    async def _watch_owners(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self._check_owners()

    def _check_owners(self) -> None:
        self.problems += find_double_owners(self.cluster, self.orchestrator)

    def _describe_state(self) -> str:
        owners = {vbucket: place.owner for vbucket, place in self.orchestrator.map.items()}
        nodes = {
            node.name: None
            if node.node is None
            else [(vb.history.state, vb.history.failover_log, vb.changes.high_seqno) for vb in node.vbuckets]
            for node in self.cluster.nodes
        }
        return f"owners {owners}, nodes {nodes}, consumers {[each.position for each in self.consumers]}"

    def _handle_crash(self, node: SimulatedNode) -> None:
        self.trace.append((self.loop.time(), f"{node.name} ends"))
        self.orchestrator.forget(node)
        self.promises.end_process(node)

    def _make_report(self) -> Report:
        return Report(
            self.trace,
            self.loop.time(),
            sum(writer.acknowledged for writer in self.writers),
            len(self.promises.writes),
            self.promises.released,
            sum(consumer.rollbacks for consumer in self.consumers),
            self.orchestrator.revision - 1,
        )

    # Faults

    async def crash(self, node: int, power: bool, silent: bool, seconds: float) -> None:
        """End a node, and start it again after some time."""
        found = self.cluster.nodes[node]
        if found.node is None:
            return
        self.cluster.crash(found, power=power, silent=silent)
        await self._restart(found, seconds)

    async def lose_power(self, seconds: tuple[float, ...], vbucket: int | None) -> None:
        """End all nodes at once with their unsynced data, and start each again after some time.

        Args:
            seconds: the time of each node.
            vbucket: fail over this vbucket before its owner is back; None: none.
        """
        nodes = [node for node in self.cluster.nodes if node.node is not None]
        for node in nodes:
            self.cluster.crash(node, power=True, silent=False)
        owner = None if vbucket is None else self.cluster.nodes[self.orchestrator.map[vbucket].owner]
        delays = dict(zip(self.cluster.nodes, seconds, strict=True))
        restarts = [asyncio.ensure_future(self._restart(node, delays[node])) for node in nodes if node is not owner]
        if vbucket is not None:
            for _ in range(60):
                if self.orchestrator.fail_over_best(vbucket):
                    break
                await asyncio.sleep(0.05)
        if owner in nodes:
            await self._restart(owner, delays[owner])
        for restart in restarts:
            await restart

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
        await self._restart(found, seconds)

    async def _restart(self, node: SimulatedNode, seconds: float) -> None:
        await asyncio.sleep(seconds)
        while node.node is None:
            await node.start()

    async def cut_link(self, hosts: tuple[int, int], seconds: float) -> None:
        """Hold everything between two hosts for some time."""
        link = self._find_link(hosts)
        link.cut()
        await asyncio.sleep(seconds)
        link.heal()

    async def reset_link(self, hosts: tuple[int, int]) -> None:
        """Reset all connections between two hosts."""
        self.network.reset_link(self._find_link(hosts))

    async def fail_over(self, vbucket: int, hops: int) -> None:
        """Make another node the owner of a vbucket."""
        self.orchestrator.fail_over(vbucket, self._find_target(vbucket, hops))

    async def fail_over_best(self, vbucket: int) -> None:
        """Make the node with the best replica the owner of a vbucket."""
        self.orchestrator.fail_over_best(vbucket)

    async def move(self, vbucket: int, hops: int, kills: tuple[float, ...]) -> None:
        """Move a vbucket to another node by takeover. The command is killed after these times, and started again."""
        await move_vbucket(self.orchestrator, self.promises, vbucket, self._find_target(vbucket, hops), kills)

    def _find_target(self, vbucket: int, hops: int) -> int:
        """Return the node that comes so many places after the owner."""
        return (self.orchestrator.map[vbucket].owner + hops) % self.schedule.nodes

    def _find_link(self, hosts: tuple[int, int]) -> Link:
        return self.network.find_link(self.hosts[hosts[0]], self.hosts[hosts[1]])


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    log, logger = _ErrorLog(), logging.getLogger("penstock")
    logger.addHandler(log)
    try:
        yield log.lines
    finally:
        logger.removeHandler(log)


def find_shortest_failure(schedule: Schedule) -> str:
    """Return the report of the shortest beginning of a schedule that fails; empty: all of it passes."""
    for faults in range(len(schedule.actions) + 1):
        try:
            run_schedule(schedule.shorten(faults))
        except SimulationFailed as error:
            return str(error)
    return ""


def run_seed(seed: int, prepare: Callable[[Simulation], object] = lambda simulation: None) -> Report:
    """Run the simulation of a seed, as `run_schedule` does."""
    return run_schedule(Schedule.make(seed), prepare)


def run_schedule(schedule: Schedule, prepare: Callable[[Simulation], object] = lambda simulation: None) -> Report:
    """Run a simulation.

    Args:
        schedule: the schedule.
        prepare: changes the simulation before it runs.

    Returns:
        The trace and some numbers.

    Raises:
        SimulationFailed: a rule does not hold.
    """
    loop = VirtualLoop()
    simulation = Simulation(schedule, loop)
    prepare(simulation)
    report: Report | None = None
    with _logged_errors() as lines:
        try:
            report = loop.run_until_complete(loop.spawn(simulation.clients[0], simulation.run()))
        except Stalled as error:
            simulation.problems.append(f"stalled {error}")
        except Exception:  # noqa: BLE001 any error is a finding, and needs its schedule
            simulation.problems.append(traceback.format_exc())
        finally:
            problems = [*simulation.problems, *lines, *map(str, loop.failures)]
            loop.bury()
            loop.close()
    if problems or report is None:
        text = "\n".join(dict.fromkeys(problems))
        command = f"python -m tests.simulation {schedule.seed} --faults {len(schedule.actions)}"
        raise SimulationFailed(f"{text}\n\n{schedule}\n\nrepeat it: {command}")
    return report
