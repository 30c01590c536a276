"""The machines of a simulated cluster: real nodes on simulated disks, which crash and start again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from penstock.node import Node
from penstock.node.transport.machine import Machine
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.documents.vbucket import Vbucket
from tests.simulation.disk import MachineDisks
from tests.simulation.network import Network
from tests.simulation.virtual_loop import Process, VirtualLoop

BUCKET, PORT = "b", 11210
_BUCKET_UUID = f"{1:032x}"
_EPOCH = 1_800_000_000 * 10**9  # of the virtual clock, ns since 1970
_SKEW = 10**9  # ns between the clocks of two machines, at most


class SimulatedNode:
    """A machine with one node.

    Attributes:
        name: for the schedule.
        host: the address of the machine.
        disks: the disks, which outlive the processes.
        commit_seconds: time between two commits to disk.
        process: the process of the node; a dead one while the node is down.
        node: the running node; None while it is down or starts.
    """

    def __init__(self, cluster: Cluster, number: int, vbuckets: int) -> None:
        self.name = f"n{number}"
        self._own_uuid = f"{number + 2:032x}"
        self.host = f"127.0.0.{number + 1}"
        self.node: Node | None = None
        self._cluster = cluster
        self.disks = MachineDisks(lambda: cluster.crash(self, power=False, silent=False))
        self._count = vbuckets
        self._random = Random(f"{cluster.seed} {self.name}")
        self.commit_seconds = self._random.choice((0.005, 0.2))
        self._skew = self._random.randrange(_SKEW)
        self._lives = 0
        self._power = True
        self._starting = asyncio.Lock()
        self.process = self._make_process()

    def _make_process(self) -> Process:
        self._lives += 1
        return Process(self.name, self.host, Random(f"{self._cluster.seed} {self.name} {self._lives}"))

    def _make_machine(self) -> Machine:
        loop = self._cluster.loop
        return Machine(
            time_ns=lambda: _EPOCH + self._skew + int(loop.time() * 1e9),
            monotonic_ns=lambda: int(loop.time() * 1e9),
            random=self.process.random,
            directory=self.disks.open,
            acceptor=self._cluster.network.bind,
        )

    async def start(self) -> None:
        """Start the node, after a crash with the files that survived. Return when it serves, or has died again.

        A node has one process. A second call waits until the first one has started it.
        """
        async with self._starting:
            if self.node is None:
                await self._start()

    async def _start(self) -> None:
        if not self.process.is_alive:
            self.disks.end_process(self._random, power=not self._power)
            self._cluster.network.restore_host(self.process)
            self.process = self._make_process()
        self._power = True
        process = self.process
        starting = self._cluster.loop.spawn(process, self._open(self._make_machine()))
        ended = asyncio.ensure_future(process.ended.wait())
        await asyncio.wait([starting, ended], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if process.is_alive:
            self.node = starting.result()

    async def _open(self, machine: Machine) -> Node:
        """Start the node. If its bucket has replicas, it commits no durable write before they are named."""
        settings = replace(self._cluster.settings, commit_seconds=self.commit_seconds)
        node = await Node.start(
            self.host, PORT, [BUCKET], self._count, data_dir=self.data_dir, machine=machine, settings=settings
        )
        spec = node.buckets[BUCKET].spec
        uuid = _BUCKET_UUID if self._cluster.shares_bucket else self._own_uuid
        node.buckets.change_spec(replace(spec, replicas=self._cluster.replicas, uuid=uuid))
        return node

    @property
    def data_dir(self) -> Path:
        """The data directory on the simulated disks."""
        return Path("/simulated", self.name)

    def end(self, *, power: bool) -> None:
        """End the process.

        Args:
            power: the machine loses its power too, and with it unsynced data.
        """
        self.process.kill()
        self.node = None
        self._power = not power

    def plan_death(self, calls: int) -> None:
        """Let the process die in the middle of a call of the operating system."""
        self.disks.plan_death(calls)

    @property
    def vbuckets(self) -> list[Vbucket]:
        """The vbuckets of the running node."""
        assert self.node is not None
        return self.node.buckets[BUCKET].store.vbuckets


class Cluster:
    """All machines.

    Attributes:
        seed: the seed of all random numbers.
        loop: the event loop.
        network: connects the machines.
        replicas: number of replicas of the bucket.
        settings: of the bucket, without the time of commits.
        nodes: the machines with nodes.
        crashed: called with a node that has crashed.
        shares_bucket: whether all nodes have parts of one bucket, or each has a bucket of its own.
    """

    def __init__(self, seed: int, loop: VirtualLoop, network: Network, vbuckets: Sequence[int]) -> None:
        self.seed = seed
        self.loop = loop
        self.network = network
        self.replicas = len(vbuckets) - 1
        random = Random(f"{seed} settings")
        self.settings = BucketSettings(
            segment_bytes=random.choice((2_000, 64_000)),
            retention_seconds=random.choice((0.0, None)),
        )
        self.nodes = [SimulatedNode(self, number, count) for number, count in enumerate(vbuckets)]
        self.crashed = lambda node: None
        self.shares_bucket = True

    def crash(self, node: SimulatedNode, *, power: bool, silent: bool) -> None:
        """End the process of a node.

        Args:
            node: the node.
            power: unsynced data may be lost.
            silent: peers notice nothing until the node starts again.
        """
        if not node.process.is_alive:
            return
        node.end(power=power)
        self.network.end_process(node.process, silent=silent)
        self.crashed(node)

    async def start(self) -> None:
        """Start all nodes."""
        for node in self.nodes:
            await node.start()
