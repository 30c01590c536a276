"""A consumer under load and faults for a long time: every change arrives in order, and its memory stays flat.

    python -m tests.client.fault_soak --minutes 30 --rate 5000 --fault-seconds 20

Two nodes behind fault proxies and the writer are in this process, the consumer is in a process of its own. The exit
status is 1 if a rule does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import penstock
from penstock.pytest import PenstockBucket, PenstockCluster, ProxySide
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Set
from tests.node.wire_client import WireClient, connected
from tests.patience import PATIENCE

VBUCKETS = 64
KEYS = 20_000
LAST = b"last"
"""The key that is written to each vbucket at the end."""
BATCH = 250
SAMPLE_SECONDS = 5.0
HEAL_SECONDS = 5.0
"""Time until faults that last are healed."""


class SoakOptions(NamedTuple):
    """The options of a run.

    Attributes:
        minutes: the duration.
        rate: changes a second.
        fault_seconds: the time between two faults.
        growth: the percentage by which the memory of the consumer may grow.
    """

    minutes: float = 30.0
    rate: int = 5000
    fault_seconds: float = 20.0
    growth: float = 5.0


# The process of the consumer


async def consume(url: str, positions: str) -> dict[str, object]:
    """Follow the bucket up to the last key of each vbucket, and return the findings."""
    newest: dict[int, dict[str, int]] = {vbucket: {} for vbucket in range(VBUCKETS)}
    seqnos, ended, changes = Counter[int](), set[int](), 0
    async with (
        penstock.connect(f"{url}?retrySeconds={PATIENCE:g}") as bucket,
        penstock.Consumer(bucket, penstock.FilePositions(positions)) as consumer,
    ):
        async for change in consumer.changes():
            changes += 1
            seqno, key = change.seqno or 0, change.key or b""
            if change.event != "mutation" or seqno <= seqnos[change.vbucket]:
                return {"problem": f"{change} after seqno {seqnos[change.vbucket]}"}
            seqnos[change.vbucket] = newest[change.vbucket][key.decode()] = seqno
            if key == LAST:
                ended.add(change.vbucket)
                if len(ended) == VBUCKETS:
                    break
        counts = (await consumer.report()).counts
    return {"problem": "", "newest": newest, "changes": changes, "reconnects": counts.reconnects}


# The process of the nodes


class SoakWriter:
    """Writes documents to the owners of their vbuckets, around the proxies.

    Attributes:
        written: the number of changes.
    """

    def __init__(self, cluster: PenstockCluster, bucket: PenstockBucket, stack: ExitStack) -> None:
        self.written = 0
        self._clients: list[WireClient] = [
            stack.enter_context(connected(each.node, bucket.name)) for each in cluster.nodes
        ]
        self._bucket = bucket
        self._random = Random(1)
        self._owners = self._find_owners()

    def write(self, changes: int) -> None:
        """Write some documents. Writes that a move refuses are left out."""
        by_owner: dict[int, list[Set]] = {}
        for _ in range(changes):
            number = self._random.randrange(KEYS)
            owner = self._owners.get(number % VBUCKETS)
            if owner is not None:
                request = Set(key=b"k%d" % number, value=b"v" * 100, vbucket=number % VBUCKETS)
                by_owner.setdefault(owner, []).append(request)
        for owner, requests in by_owner.items():
            client = self._clients[owner]
            client.send(*requests)
            statuses = Counter(client.receive().specific for _ in requests)
            self.written += statuses[Status.SUCCESS]
            if statuses[Status.NOT_MY_VBUCKET]:
                self._owners = self._find_owners()

    def write_last(self) -> None:
        """Write the last key to each vbucket."""
        for vbucket, owner in self._find_owners().items():
            assert self._clients[owner].set(LAST, vbucket=vbucket).specific == Status.SUCCESS

    def _find_owners(self) -> dict[int, int]:
        """Return the node of each vbucket that is active."""
        return {vb: owner for vb in range(VBUCKETS) if (owner := self._bucket.find_owner(vb)) is not None}

    def read_newest(self) -> dict[int, dict[str, int]]:
        """Read by vbucket: key -> seqno of its newest change, with a client that no fault has met."""
        newest: dict[int, dict[str, int]] = {vbucket: {} for vbucket in range(VBUCKETS)}
        for batch in penstock.read_changes(self._bucket.url, stop="now", values=False):
            columns = (batch.column(name).to_pylist() for name in ("vbucket", "key", "seqno"))
            for vbucket, key, seqno in zip(*columns, strict=True):
                newest[vbucket][key.decode()] = seqno
        return newest


def inject_faults(cluster: PenstockCluster, bucket: PenstockBucket) -> Iterator[str]:
    """Inject a fault for each item, in turn; yield its name."""
    random = Random(2)
    for turn in count():
        proxy, vbucket = cluster.nodes[turn % len(cluster.nodes)].proxy, random.randrange(VBUCKETS)
        faults: dict[str, Callable[[], object]] = {
            "cut": proxy.cut,
            "half-close": partial(proxy.half_close, random.choice([*ProxySide])),
            "single bytes": partial(proxy.single_bytes, 4096),
            "delay": partial(proxy.delay, 0.01),
            "reorder": partial(proxy.reorder, 0.02),
            "black hole": proxy.black_hole,
            "refuse": proxy.refuse,
            "move": partial(bucket.move, vbucket, 1 - (bucket.find_owner(vbucket) or 0)),
        }
        # Each fault meets every node before the next fault.
        name = [*faults][(turn // len(cluster.nodes)) % len(faults)]
        faults[name]()
        yield name


def read_memory(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def find_growth(samples: list[float]) -> float:
    """Return the growth of memory in percent: from the second fifth of the samples to the last one."""
    fifth = max(len(samples) // 5, 1)
    return (statistics.median(samples[-fifth:]) / statistics.median(samples[fifth : 2 * fifth] or samples) - 1) * 100


def run_soak(options: SoakOptions, directory: Path) -> None:
    """Run the soak, and print the memory of the consumer.

    Raises:
        AssertionError: a rule does not hold.
    """
    with ExitStack() as stack:
        cluster = stack.enter_context(PenstockCluster.running(2, directory, VBUCKETS))
        bucket = cluster.create_bucket("beer")
        bucket.move(range(VBUCKETS // 2), 1)
        writer = SoakWriter(cluster, bucket, stack)
        command = [sys.executable, "-m", "tests.client.fault_soak", "--consume", bucket.url, str(directory / "p.json")]
        consumer = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(consumer.kill)
        samples, faults = load(options, cluster, bucket, writer, consumer)
        writer.write_last()
        output, _ = consumer.communicate(timeout=PATIENCE)
        found = json.loads(output)
        assert not found["problem"], found["problem"]
        newest = writer.read_newest()
        assert {int(vb): keys for vb, keys in found["newest"].items()} == newest, "the newest changes differ"
    growth = find_growth(samples)
    print(
        f"{writer.written} changes written, {found['changes']} received, {sum(faults.values())} faults, "
        f"{found['reconnects']} reconnects; memory {min(samples):.0f} to {max(samples):.0f} MiB, growth {growth:+.1f} %"
    )
    assert growth <= options.growth, f"the memory has grown by {growth:.1f} %, expected at most {options.growth:g} %"


def load(
    options: SoakOptions,
    cluster: PenstockCluster,
    bucket: PenstockBucket,
    writer: SoakWriter,
    consumer: subprocess.Popen[str],
) -> tuple[list[float], Counter[str]]:
    """Write and inject faults for the duration, and heal all. Return samples of the memory, and the faults."""
    samples, faults, injected = list[float](), Counter[str](), inject_faults(cluster, bucket)
    started = now = time.monotonic()
    end, next_fault, next_sample, heal_at = now + options.minutes * 60, now + options.fault_seconds, now, now
    for turn in count(1):
        writer.write(BATCH)
        # Without this limit, a pause of the machine would be followed by a burst.
        started = max(started, time.monotonic() - 1 - turn * BATCH / options.rate)
        time.sleep(max(started + turn * BATCH / options.rate - time.monotonic(), 0))
        now = time.monotonic()
        assert consumer.poll() is None, "the consumer has ended"
        if now >= heal_at:
            cluster.heal()
            heal_at = end
        if now >= next_fault:
            faults[next(injected)] += 1
            next_fault, heal_at = now + options.fault_seconds, now + min(HEAL_SECONDS, options.fault_seconds / 2)
        if now >= next_sample:
            samples.append(read_memory(consumer.pid))
            next_sample = now + min(SAMPLE_SECONDS, options.minutes * 6)
            print(f"{(now - end) / 60 + options.minutes:6.2f} min {writer.written:>9} changes {samples[-1]:7.1f} MiB")
        if now >= end:
            cluster.heal()
            return samples, faults
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    defaults = SoakOptions()
    parser.add_argument("--minutes", type=float, default=defaults.minutes)
    parser.add_argument("--rate", type=int, default=defaults.rate)
    parser.add_argument("--fault-seconds", type=float, default=defaults.fault_seconds)
    parser.add_argument("--growth", type=float, default=defaults.growth)
    parser.add_argument("--consume", nargs=2, metavar=("URL", "POSITIONS"), help=argparse.SUPPRESS)
    chosen = vars(parser.parse_args())
    if consumed := chosen.pop("consume"):
        print(json.dumps(asyncio.run(consume(*consumed))))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as directory:
        run_soak(SoakOptions(**chosen), Path(directory))


if __name__ == "__main__":
    main()
