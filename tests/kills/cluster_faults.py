"""Processes of nodes behind proxies, an orchestrator, and faults: no write is lost that may not be.

    python -m tests.kills.cluster_faults --minutes 30 --seed 1

Each seed is a cluster of its own. Clients and the orchestrator reach its nodes through different proxies, so that a
node may be cut off from one of them. The exit status is 1 if a rule does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

import penstock
from penstock.client.blocking import LoopThread
from penstock.client.cluster.cluster_file import BucketEntry, ClusterFile, NodeEntry
from penstock.client.cluster.map_publisher import open_map
from penstock.client.cluster.node_failover import FailoverResult
from penstock.client.cluster.orchestrator import Orchestrator
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.errors import Error, UsageError
from penstock.pytest.fault_proxy import FaultProxy, ProxySide
from penstock.wire.codec.constants import VbucketState
from tests.client.alternate_addresses import ALTERNATE_PATH
from tests.kills.acknowledged_writes import COMMIT_SECONDS, AcknowledgedWrites
from tests.node.http.web_client import WebClient
from tests.node.serve_process import ServeProcess
from tests.patience import PATIENCE
from tests.ports import free_ports

_HOST, _NODE_HOST = "127.0.0.1", "127.0.0.2"
_BUCKET, _VBUCKETS, _WRITERS = "beer", 8, 12
_OPTIONS = "connectTimeout=2&operationTimeout=2&retrySeconds=4"
_CLIENT_OPTIONS = "connectTimeout=2&operationTimeout=2&retrySeconds=1"
_LAST_OPTIONS = f"retrySeconds={PATIENCE:g}"
_LONGEST_FAULT = 3.0
_HEAL_SECONDS = 30.0
"""Time until `run` has reached all replicas, once no fault is left."""
_FAULTS_OF_ROUND = 20
_FAULTS = {"kill": 3, "pause": 3, "cut": 5, "reset": 2, "move": 4, "rebalance": 2, "apply": 2, "fail_over": 5}
"""Fault -> how often it is chosen."""


class PlannedFault(NamedTuple):
    """A fault of a plan.

    Attributes:
        delay: seconds after the fault before.
        name: a method of `FaultyCluster`.
        node: the node that it meets.
        seconds: how long it lasts; of commands, the time after which they are killed, if they are.
        choice: decides the rest of the fault.
    """

    delay: float
    name: str
    node: int
    seconds: float
    choice: float

    def __str__(self) -> str:
        return f"{self.name} node {self.node}, {self.seconds:.1f} s, choice {self.choice:.3f}"


class FaultPlan(NamedTuple):
    """Everything that a seed decides.

    Attributes:
        seed: the seed.
        nodes: number of nodes.
        replicas: number of replicas.
        rounds: the faults of each round, in their order. All rules are checked after each.
    """

    seed: int
    nodes: int
    replicas: int
    rounds: tuple[tuple[PlannedFault, ...], ...]

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.nodes} nodes, {self.replicas} replicas"

    @classmethod
    def make(cls, seed: int, rounds: int) -> FaultPlan:
        """Return the plan of a seed with a number of rounds."""
        random = Random(seed)
        nodes, replicas = random.choice(((3, 1), (3, 2), (5, 1), (5, 2)))
        names, weights = [*_FAULTS], [*_FAULTS.values()]

        def plan_fault() -> PlannedFault:
            return PlannedFault(
                random.expovariate(1.5),
                random.choices(names, weights)[0],
                random.randrange(nodes),
                random.uniform(0.1, _LONGEST_FAULT),
                random.random(),
            )

        planned = tuple(tuple(plan_fault() for _ in range(_FAULTS_OF_ROUND)) for _ in range(rounds))
        return cls(seed, nodes, replicas, planned)


class FaultyNode:
    """A process of a node, and its proxies.

    Attributes:
        process: the process; it listens on a host of its own, so that the port of a proxy may be that of the node.
        inner: the proxy of the orchestrator, at the address that the cluster map names.
        outer: the proxy of clients, at the alternate address.
        resumed: the time at which the process continued after its last pause.
    """

    def __init__(self, directory: Path, loop: LoopThread, ports: list[int]) -> None:
        self._ports = ports
        self._directory = directory
        self.inner = FaultProxy((_NODE_HOST, ports[0]), loop, ports[0])
        self.outer = FaultProxy((_NODE_HOST, ports[0]), loop)
        self.process: ServeProcess | None = None
        self.resumed = -PATIENCE
        self.is_disturbed = False

    @property
    def name(self) -> str:
        return f"{_HOST}:{self._ports[0]}"

    def make_entry(self, options: str) -> NodeEntry:
        return NodeEntry(url=f"couchbase://{self.name}?{options}", http=f"{_NODE_HOST}:{self._ports[1]}")

    def start(self) -> None:
        """Start the process for the first time."""
        self.process = ServeProcess(self._directory, self._ports, ["--host", _NODE_HOST])
        web = WebClient(SimpleNamespace(host=_NODE_HOST), port=self._ports[1])
        answer = web.ask("PUT", ALTERNATE_PATH, {"hostname": _HOST, "kv": self.outer.port, "mgmt": self.outer.port})
        assert answer.status == 200, answer.body


class FaultyCluster:
    """The nodes of a plan, their orchestrator, their writers, and the faults."""

    def __init__(self, plan: FaultPlan, nodes: list[FaultyNode]) -> None:
        self.plan = plan
        self.nodes = nodes
        self.writes = AcknowledgedWrites()
        self.log: list[str] = []
        self._began = time.monotonic()
        self._bucket = BucketEntry(name=_BUCKET, vbuckets=_VBUCKETS, replicas=plan.replicas)
        self._orchestrator = Orchestrator(self._make_file(_OPTIONS))

    def _make_file(self, options: str) -> ClusterFile:
        return ClusterFile("the plan", tuple(node.make_entry(options) for node in self.nodes), (self._bucket,))

    def note(self, text: object) -> None:
        """Add a line to the log."""
        self.log.append(f"{time.monotonic() - self._began:8.3f} s  {text}")

    async def run(self) -> None:
        """Run the rounds of the plan, and check the rules after each."""
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in self.nodes))
        await Orchestrator(self._make_file(_LAST_OPTIONS)).apply(self.note)  # no fault delays it, a busy machine may
        run = asyncio.create_task(self._orchestrator.run(lambda *_: None))
        try:
            for number, faults in enumerate(self.plan.rounds):
                self.log.clear()
                self.writes = AcknowledgedWrites()
                await self._run_round(number, faults, run)
                print(f"{self.plan}, round {number}: {self.log[-1]}", flush=True)
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    async def _run_round(self, number: int, faults: Iterable[PlannedFault], run: asyncio.Task[None]) -> None:
        """Inject faults while clients write, end all faults, and check the rules."""
        writers = []
        for writer in range(_WRITERS):
            name = f"{number}-{writer}"
            writing = self.writes.write(self._make_url(_CLIENT_OPTIONS), _VBUCKETS, name, Random(name))
            writers.append(asyncio.create_task(writing))
        try:
            async with asyncio.TaskGroup() as group:
                for fault in faults:
                    await asyncio.sleep(fault.delay)
                    self._check_running([run, *writers])
                    group.create_task(self._inject(fault))
            await self._settle()
            self._check_running([run, *writers])
        finally:
            for each in writers:
                each.cancel()
            await asyncio.gather(*writers, return_exceptions=True)
        await self._check()

    def _make_url(self, options: str) -> str:
        hosts = ",".join(f"{_HOST}:{each.outer.port}" for each in self.nodes)
        return f"couchbase://{hosts}/{_BUCKET}?network=external&{options}"

    def _check_running(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done():
                task.result()
                raise AssertionError(f"{task} has ended")

    # Faults

    async def _inject(self, fault: PlannedFault) -> None:
        self.note(fault)
        node = self.nodes[fault.node]
        fault_of_process: dict[str, Callable[[FaultyNode, PlannedFault], Awaitable[object]]] = {
            "kill": self._kill,
            "pause": self._pause,
            "cut": self._cut,
            "reset": self._reset,
        }
        if fault.name in fault_of_process:
            await fault_of_process[fault.name](node, fault)
        else:
            await self._command(node, fault)

    async def _kill(self, node: FaultyNode, fault: PlannedFault) -> None:
        """Kill the process, and start it again. A paused one may have writes that are not on disk for long."""
        if node.is_disturbed or time.monotonic() < node.resumed + COMMIT_SECONDS:
            return
        assert node.process is not None
        node.is_disturbed = True
        node.process.kill()
        self.writes.kills.append(time.monotonic())
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(node.process.start)
        node.is_disturbed = False
        self.note(f"node {fault.node} has started")

    async def _pause(self, node: FaultyNode, fault: PlannedFault) -> None:
        if node.is_disturbed:
            return
        assert node.process is not None
        node.is_disturbed = True
        node.process.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        node.process.process.send_signal(signal.SIGCONT)
        node.resumed = time.monotonic()
        node.is_disturbed = False
        self.note(f"node {fault.node} continues")

    async def _cut(self, node: FaultyNode, fault: PlannedFault) -> None:
        """Cut a node off from the orchestrator, the clients or both, in one direction or both."""
        random = Random(fault.choice)
        proxies = random.choice(([node.inner], [node.outer], [node.inner, node.outer]))
        side = random.choice((None, *ProxySide))
        for proxy in proxies:
            proxy.black_hole(side)
        await asyncio.sleep(fault.seconds)
        for proxy in proxies:
            proxy.heal()
        self.note(f"node {fault.node} is no longer cut off")

    async def _reset(self, node: FaultyNode, fault: PlannedFault) -> None:
        for proxy in (node.inner, node.outer):
            proxy.cut()

    async def _command(self, node: FaultyNode, fault: PlannedFault) -> None:
        """Run a command of the orchestrator. A third of the commands is killed after some time."""
        commands: dict[str, Callable[[], Awaitable[object]]] = {
            "move": lambda: self._move(fault),
            "rebalance": lambda: self._orchestrator.rebalance(self.note),
            "apply": lambda: self._orchestrator.apply(self.note),
            "fail_over": lambda: self._fail_over(node, rebalances=fault.choice < 0.5),
        }
        limit = fault.seconds if fault.choice * 7 % 1 < 0.33 else None
        result = "has ended"
        try:
            async with asyncio.timeout(limit):
                await commands[fault.name]()
        except TimeoutError:
            result = "was killed"
        except (OSError, Error) as error:
            result = f"{type(error).__name__}: {error}"
        self.note(f"{fault.name} node {fault.node}: {result}")

    async def _move(self, fault: PlannedFault) -> None:
        """Move a vbucket to the node."""
        address, target = self._make_file(_OPTIONS).make_address(_BUCKET), self.nodes[fault.node]
        vbucket, endpoint = int(fault.choice * _VBUCKETS), target.make_entry(_OPTIONS).endpoint
        async with open_map(address, address.hosts) as publisher:
            layout = publisher.layout
            owner = layout.chains[vbucket][0]
            if owner not in (NO_NODE, layout.require_node(endpoint)):
                await VbucketMover(publisher, address).move([vbucket], layout.nodes[owner].endpoint, endpoint)

    async def _fail_over(self, node: FaultyNode, *, rebalances: bool) -> None:
        """Fail a node over. If this ends in the middle, any vbucket may have been promoted."""

        def report(bucket: str, result: FailoverResult) -> None:
            self.note(f"promoted {result.promoted}, lost {result.lost}, reachable {result.is_reachable}")
            self.writes.failed_over.update(result.promoted)
            is_refused.append(True)

        is_refused: list[bool] = []
        try:
            await self._orchestrator.fail_over(node.name, report, may_lose=False, rebalances=rebalances)
        except UsageError as error:
            if "Nothing has changed" not in str(error) and "drives" not in str(error) and not is_refused:
                self.writes.failed_over.update(range(_VBUCKETS))
            raise
        except BaseException:
            if not is_refused:
                self.writes.failed_over.update(range(_VBUCKETS))
            raise

    # Rules

    async def _settle(self) -> None:
        """End all faults, and apply the file."""
        for node in self.nodes:
            for proxy in (node.inner, node.outer):
                proxy.heal()
        self.note("no more faults")
        last = Orchestrator(self._make_file(_LAST_OPTIONS))
        for _ in self.nodes:
            try:
                await last.apply(self.note)
            except UsageError as error:
                if "changes of its own" not in str(error):
                    raise
                self.note(f"apply: {error}")
                await self._replace_strays()
            else:
                break
        assert not await last.apply(self.note, changes=False), "apply leaves differences"

    async def _replace_strays(self) -> None:
        """Lose the changes that dead vbuckets have of their own, as `apply` advises."""
        address = self._make_file(_LAST_OPTIONS).make_address(_BUCKET)
        for endpoint in address.hosts:
            async with NodeControl(address, endpoint) as control:
                dead = [vb for vb, state in (await control.read_states()).items() if state is VbucketState.DEAD]
            if dead:
                self.note(f"{endpoint} loses vbuckets {dead}")
                options = ReplicationOptions(vbuckets=dead, overwrite=True, until_caught_up=True)
                async with Replicator(address, control.address, options) as replicator:
                    await replicator.run()

    async def _check(self) -> None:
        """Check that each vbucket has one owner and whole replicas, serves durable writes, and has lost no write."""
        last = Orchestrator(self._make_file(_LAST_OPTIONS))
        rows = await last.read_rows(self._bucket)
        deadline = time.monotonic() + _HEAL_SECONDS
        while (faults := [row for row in rows if row.state != "ok"]) and time.monotonic() < deadline:
            rows = await last.read_rows(self._bucket)  # `run` has yet to feed the replicas
        assert not faults, faults
        address = self._make_file(_LAST_OPTIONS).make_address(_BUCKET)
        owners: Counter[int] = Counter()
        for endpoint in address.hosts:
            async with NodeControl(address, endpoint) as control:
                states = await control.read_states()
                owners.update(vb for vb, state in states.items() if state is VbucketState.ACTIVE)
        assert owners == Counter(range(_VBUCKETS)), owners
        self.note("apply has ended, all vbuckets are ok")
        async with penstock.connect(self._make_url(_LAST_OPTIONS)) as bucket:
            for number in range(4 * _VBUCKETS):
                await bucket.upsert(f"last-{number}", b"", durability="persistToMajority")
            keys = [entry.key for entry in self.writes.entries]
            documents = await bucket.get_many(keys)
        found = {key for key, document in zip(keys, documents, strict=True) if document is not None}
        lost = self.writes.find_lost(found)
        assert not lost, f"{len(lost)} writes are lost: {[(each, each.began - self._began) for each in lost[:10]]}"
        self.note(f"{dict(self.writes.count_levels())} acknowledged, {len(keys) - len(found)} lost that may be")


def run_plan(plan: FaultPlan, directory: Path) -> None:
    """Run a cluster with the faults of a plan.

    Raises:
        AssertionError: a rule does not hold. The note has the seed and the log of the round.
    """
    with ExitStack() as stack:
        loop = stack.enter_context(LoopThread("penstock-faults"))
        ports, nodes = free_ports(2 * plan.nodes), []
        for number in range(plan.nodes):
            node = FaultyNode(directory / str(number), loop, ports[2 * number : 2 * number + 2])
            nodes.append(node)
            stack.callback(_end_process, node)
            for proxy in (node.inner, node.outer):
                stack.enter_context(proxy)
        cluster = FaultyCluster(plan, nodes)
        try:
            asyncio.run(cluster.run())
        except BaseException as error:
            error.add_note("\n".join([str(plan), *cluster.log]))
            raise


def _end_process(node: FaultyNode) -> None:
    if node.process is not None:
        node.process.kill()


def main() -> int:
    """Run seeds for some time, at least one, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills.cluster_faults")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of a seed")
    options = parser.parse_args()
    end, failed = time.monotonic() + 60 * options.minutes, []
    for seed in count(options.seed):
        with tempfile.TemporaryDirectory(prefix="penstock-faults-") as directory:
            try:
                run_plan(FaultPlan.make(seed, options.rounds), Path(directory))
            except Exception:  # noqa: BLE001 any error is a finding
                failed.append(seed)
                traceback.print_exc()
        if time.monotonic() >= end:
            break
    print(f"{seed + 1 - options.seed} seeds, failed: {', '.join(map(str, failed)) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
