"""Random schedules of faults between a consumer and real nodes, by a seed.

    python -m tests.client.fault_schedules SEED [LAST]

The steps of a seed are always the same. Threads and sockets are real, so their timing is not.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, NamedTuple

import penstock
from penstock.client.blocking import LoopThread
from penstock.errors import BucketNotServed
from penstock.pytest import PenstockBucket, PenstockCluster, ProxySide
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Change
from penstock.wire.messages.dcp import Mutation
from tests.node.wire_client import WireClient, connected
from tests.patience import PATIENCE
from tests.store.failing import read_newest_changes

VBUCKETS = 4
KEYS = 12
LOSSES = {"rollback", "fail_over", "recreate"}
"""Steps after which a consumer may have to roll back."""


class Step(NamedTuple):
    """A step of a schedule: the name of a method of `FaultRun`, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"  {self.name}{self.arguments!r}"


Choose = Callable[[Random, int], tuple[Any, ...]]


def _any_node(random: Random, nodes: int) -> int:
    return random.randrange(nodes)


STEPS: dict[str, tuple[int, Choose]] = {
    "write": (10, lambda random, nodes: (random.randrange(1, 12), random.randrange(1 << 30))),
    "cut": (4, lambda random, nodes: (_any_node(random, nodes),)),
    "half_close": (2, lambda random, nodes: (_any_node(random, nodes), random.choice([*ProxySide]))),
    "single_bytes": (2, lambda random, nodes: (_any_node(random, nodes), random.choice((100, 2000)))),
    "delay": (1, lambda random, nodes: (_any_node(random, nodes), random.choice((0.001, 0.01)))),
    "reorder": (2, lambda random, nodes: (_any_node(random, nodes), 0.02)),
    "black_hole": (2, lambda random, nodes: (_any_node(random, nodes),)),
    "refuse": (2, lambda random, nodes: (_any_node(random, nodes),)),
    "heal": (4, lambda random, nodes: (_any_node(random, nodes),)),
    "move": (
        5,
        lambda random, nodes: (random.randrange(VBUCKETS), _any_node(random, nodes), random.randrange(1 << 30)),
    ),
    "remove_node": (1, lambda random, nodes: (_any_node(random, nodes),)),
    "restart": (1, lambda random, nodes: (_any_node(random, nodes),)),
    "fail_over": (
        2,
        lambda random, nodes: (_any_node(random, nodes), random.random() < 0.3, random.randrange(1 << 30)),
    ),
    "rollback": (2, lambda random, nodes: (random.randrange(VBUCKETS), random.randrange(8))),
    "recreate": (1, lambda random, nodes: ()),
    "resume": (3, lambda random, nodes: ()),
    "catch_up": (2, lambda random, nodes: ()),
}
"""All kinds of steps: how often each is chosen, and its arguments for a number of nodes."""


@dataclass(frozen=True)
class FaultSchedule:
    """Everything that a seed decides.

    Attributes:
        seed: the seed.
        nodes: the number of nodes.
        steps: the steps, one after the other.
    """

    seed: int
    nodes: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}: {self.nodes} nodes, {VBUCKETS} vbuckets", *map(str, self.steps)])


def make_steps(seed: int) -> FaultSchedule:
    """Return the schedule of a seed."""
    random = Random(f"{seed} faults")
    nodes = random.choice((1, 2, 2, 3))
    names = random.choices([*STEPS], [weight for weight, _ in STEPS.values()], k=random.randrange(3, 11))
    return FaultSchedule(seed, nodes, tuple(Step(name, STEPS[name][1](random, nodes)) for name in names))


Documents = dict[int, dict[bytes, tuple[int, str]]]
"""By vbucket: key -> seqno and event of its newest change."""


class ScheduleFailed(AssertionError):
    """A rule does not hold. The text has the schedule, and the command that repeats it."""


class FollowingConsumer:
    """A consumer that keeps the changes which no rollback has made void, and its positions.

    Attributes:
        changes: by vbucket, the valid changes in order.
        rollbacks: the number of rollbacks.
        problem: the first rule that did not hold; empty: all hold.
    """

    def __init__(self, url: str) -> None:
        self.changes: dict[int, list[Change]] = {vbucket: [] for vbucket in range(VBUCKETS)}
        self.rollbacks = 0
        self.problem = ""
        self._url = f"{url}?retrySeconds={PATIENCE:g}"
        self._positions: dict[int, penstock.Position] = {}
        self._progress = threading.Condition()

    async def follow(self) -> None:
        """Follow the bucket from the positions, until the task is cancelled."""
        while not self.problem:
            try:
                await self._follow_once()
            except BucketNotServed:
                pass  # a first connection does not wait for a bucket that is just being created again
            except (penstock.Error, OSError) as error:
                with self._progress:
                    self.problem = f"the stream ended: {error!r}"
                    self._progress.notify_all()

    async def _follow_once(self) -> None:
        async with penstock.connect(self._url) as bucket, await bucket.stream(self._positions) as stream:
            while (delivery := await stream.next_delivery()) is not None:
                with self._progress:
                    for change in delivery.changes:
                        self._take(change)
                    self._positions = dict(stream.positions)
                    self._progress.notify_all()

    def _take(self, change: Change) -> None:
        valid, seqno = self.changes[change.vbucket], change.seqno or 0
        if change.event == "rollback":
            self.rollbacks += 1
            valid[:] = [each for each in valid if (each.seqno or 0) <= seqno]
        elif valid and seqno <= (valid[-1].seqno or 0):
            self.problem = self.problem or f"vbucket {change.vbucket}: seqno {seqno} after {valid[-1].seqno}"
        else:
            valid.append(change)

    def wait_for(self, is_reached: Callable[[], bool]) -> Documents | None:
        """Return `describe` once a condition holds; None if a rule does not hold, or after PATIENCE."""
        with self._progress:
            self._progress.wait_for(lambda: bool(self.problem) or is_reached(), PATIENCE)
            return self.describe() if not self.problem and is_reached() else None

    def describe(self) -> Documents:
        """Return by vbucket: key -> seqno and event of its newest valid change."""
        return {
            vbucket: {each.key or b"": (each.seqno or 0, str(each.event)) for each in valid}
            for vbucket, valid in self.changes.items()
        }


class FaultRun:
    """A cluster, its writer and its consumer, while the steps of a schedule run."""

    def __init__(self, cluster: PenstockCluster, bucket: PenstockBucket, loop: LoopThread) -> None:
        self.consumer = FollowingConsumer(bucket.url)
        self._writers = ExitStack()
        self._clients: dict[int, WireClient] = {}
        self._checks = count()
        self._cluster = cluster
        self._bucket = bucket
        self._loop = loop
        self._following = loop.start(self.consumer.follow())

    def end(self) -> None:
        """Stop the consumer and the writer."""
        self._following.cancel()
        self._disconnect_writer()

    # Steps

    def write(self, documents: int, seed: int) -> None:
        random = Random(seed)
        for _ in range(documents):
            self._write_one(
                random.randrange(VBUCKETS), b"k%d" % random.randrange(KEYS), is_deletion=random.random() < 0.2
            )

    def _write_one(self, vbucket: int, key: bytes, *, is_deletion: bool = False) -> None:
        """Write to the owner of the vbucket, around the proxies. A move may change the owner meanwhile."""
        until = monotonic() + PATIENCE
        while monotonic() < until:
            owner = self._bucket.find_owner(vbucket)
            if owner is None:
                continue
            client = self._connect_writer(owner)
            done = client.delete(key, vbucket=vbucket) if is_deletion else client.set(key, b"v", vbucket=vbucket)
            if done.specific in (Status.SUCCESS, Status.KEY_ENOENT):
                return
        raise AssertionError(f"vbucket {vbucket} accepts no write")

    def _connect_writer(self, owner: int) -> WireClient:
        if owner not in self._clients:
            client = connected(self._cluster.nodes[owner].node, self._bucket.name)
            self._clients[owner] = self._writers.enter_context(client)
        return self._clients[owner]

    def _disconnect_writer(self) -> None:
        """Close the writer's connections: a node or the bucket is about to end."""
        self._clients.clear()
        self._writers.close()

    def cut(self, node: int) -> None:
        self._cluster.nodes[node].proxy.cut()

    def half_close(self, node: int, side: ProxySide) -> None:
        self._cluster.nodes[node].proxy.half_close(side)

    def single_bytes(self, node: int, count: int) -> None:
        self._cluster.nodes[node].proxy.single_bytes(count)

    def delay(self, node: int, seconds: float) -> None:
        self._cluster.nodes[node].proxy.delay(seconds)

    def reorder(self, node: int, seconds: float) -> None:
        self._cluster.nodes[node].proxy.reorder(seconds)

    def black_hole(self, node: int) -> None:
        self._cluster.nodes[node].proxy.black_hole()

    def refuse(self, node: int) -> None:
        self._cluster.nodes[node].proxy.refuse()

    def heal(self, node: int) -> None:
        self._cluster.nodes[node].proxy.heal()

    def move(self, vbucket: int, to: int, seed: int) -> None:
        """Move a vbucket while documents are written to it."""
        if not self._cluster.nodes[to].is_running:
            return
        with ThreadPoolExecutor(1) as threads:
            moving = threads.submit(self._bucket.move, vbucket, to)
            random = Random(seed)
            for _ in range(8):
                self._write_one(vbucket, b"k%d" % random.randrange(KEYS))
            moving.result(PATIENCE)

    def remove_node(self, node: int) -> None:
        others, owned = self._list_others(node), self._list_owned(node)
        if others and owned:
            self._bucket.move(owned, others[0])
            self._bucket.remove_node(node)

    def restart(self, node: int) -> None:
        self._disconnect_writer()
        if self._cluster.nodes[node].is_running:
            self._cluster.nodes[node].restart()

    def fail_over(self, node: int, is_stopped: bool, seed: int) -> None:
        """Fail over a node, whose last changes are on no replica."""
        lost, others = self._cluster.nodes[node], self._list_others(node)
        if not lost.is_running or not others or not (owned := self._list_owned(node)):
            return  # a node without vbuckets may have left the cluster map
        if len(owned) == VBUCKETS:
            self._bucket.move(0, others[0])  # the node may be the only one of the cluster map
        self._bucket.replicate()
        self.write(3, seed)
        self._disconnect_writer()
        if is_stopped:
            lost.stop()
        self._bucket.fail_over(node)

    def _list_others(self, node: int) -> list[int]:
        return [each.index for each in self._cluster.nodes if each.is_running and each.index != node]

    def _list_owned(self, node: int) -> list[int]:
        return [vbucket for vbucket in range(VBUCKETS) if self._bucket.find_owner(vbucket) == node]

    def rollback(self, vbucket: int, seqno: int) -> None:
        self._bucket.rollback(vbucket, seqno)

    def recreate(self) -> None:
        self._disconnect_writer()
        if all(node.is_running for node in self._cluster.nodes):
            self._bucket.recreate()

    def resume(self) -> None:
        """Start another stream at the positions of the present one, which ends."""
        ended = threading.Event()
        self._following.add_done_callback(lambda future: ended.set())
        self._following.cancel()
        ended.wait(PATIENCE)
        self._following = self._loop.start(self.consumer.follow())

    def catch_up(self) -> None:
        """Heal all nodes, and check that the consumer has the same documents as the nodes."""
        self._cluster.heal()
        last = b"last%d" % next(self._checks)
        for vbucket in range(VBUCKETS):
            self._write_one(vbucket, last)
        found = self.consumer.wait_for(lambda: all(last in keys for keys in self.consumer.describe().values()))
        if found is None:
            raise AssertionError(self.consumer.problem or f"{last!r} did not arrive: {self.consumer.describe()}")
        expected = {vbucket: self._read_owner(vbucket) for vbucket in range(VBUCKETS)}
        if found != expected:
            raise AssertionError(f"found {found}, expected {expected}")

    def _read_owner(self, vbucket: int) -> dict[bytes, tuple[int, str]]:
        owner = self._bucket.find_owner(vbucket)
        assert owner is not None
        changes = self._cluster.nodes[owner].call(
            lambda node: read_newest_changes(node.buckets[self._bucket.name].store.vbuckets[vbucket])
        )
        return {
            bytes(each.key).removeprefix(b"\0"): (
                each.by_seqno,
                "mutation" if isinstance(each, Mutation) else "deletion",
            )
            for each in changes
        }


def run_seed(seed: int, spoil: Callable[[FaultRun], None] = lambda run: None) -> FaultRun:
    """Run the schedule of a seed, and check the rules.

    Args:
        seed: the seed.
        spoil: changes the run, for tests of the rules.

    Raises:
        ScheduleFailed: a rule does not hold.
    """
    schedule = make_steps(seed)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-faults-") as directory,
        LoopThread("consumer") as loop,
        PenstockCluster.running(schedule.nodes, Path(directory), VBUCKETS) as cluster,
    ):
        run = FaultRun(cluster, cluster.create_bucket("beer"), loop)
        try:
            spoil(run)
            for step in (*schedule.steps, Step("catch_up")):
                getattr(run, step.name)(*step.arguments)
            if run.consumer.rollbacks and not LOSSES.intersection(step.name for step in schedule.steps):
                raise AssertionError(f"{run.consumer.rollbacks} rollbacks, although nothing was lost")
        except Exception as error:
            repeat = f"python -m tests.client.fault_schedules {seed}"
            raise ScheduleFailed(f"{type(error).__name__}: {error}\n{schedule}\n{repeat}") from error
        finally:
            run.end()
    return run


def run_seeds(first: int, behind: int, at_once: int = 5) -> Iterator[FaultRun]:
    """Run the schedules of seeds, some at once; yield the finished runs in the order of the seeds."""
    with ThreadPoolExecutor(at_once) as threads:
        yield from threads.map(partial(run_seed), range(first, behind))


if __name__ == "__main__":
    seeds = [int(text) for text in sys.argv[1:]]
    for number, _ in enumerate(run_seeds(seeds[0], seeds[-1] + 1), seeds[0]):
        sys.stdout.write(f"seed {number} holds\n")
