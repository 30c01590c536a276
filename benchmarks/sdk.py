"""How many operations per second does Couchbase's Python SDK do with a node?

The client runs in this process, the node in a separate process. The client uses most of the time. So each figure has
the share of time in which the node was busy: its CPU time divided by the time on the clock. For comparison,
python-binary-memcached runs the same operations, one after the other, with the node and with memcached. The difference
is the cost of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import bmemcached
from acouchbase.cluster import AsyncCluster
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions

from benchmarks.process import PASSWORD, USER, Process, run_memcached, run_penstock
from benchmarks.report import Report, make_parser


class Figures(NamedTuple):
    """The speed of a series of operations.

    Attributes:
        rate: operations per second.
        share: share of one processor that the server used meanwhile.
    """

    rate: float
    share: float

    def __str__(self) -> str:
        return f"{self.rate:.0f} operations/s, the server busy for {self.share:.0%} of the time"


@contextmanager
def time_operations(server: Process, count: int) -> Iterator[Callable[[], Figures]]:
    """Time a block with `count` operations. Yield a function that returns the figures after the block."""
    started, used = time.perf_counter(), server.read_cpu_seconds()
    found: list[Figures] = []
    yield lambda: found[0]
    wall = time.perf_counter() - started
    found.append(Figures(count / wall, (server.read_cpu_seconds() - used) / wall))


def select_median(figures: list[Figures]) -> Figures:
    return sorted(figures)[len(figures) // 2]


def measure_sequential(node: Process, count: int, rounds: int, document: Any) -> dict[str, Figures]:
    cluster = Cluster(f"couchbase://127.0.0.1:{node.port}", ClusterOptions(PasswordAuthenticator(USER, PASSWORD)))
    try:
        collection = cluster.bucket("default").default_collection()
        keys = [f"key-{number}" for number in range(count)]
        found: dict[str, list[Figures]] = {"upsert": [], "get": []}
        for _ in range(rounds):
            with time_operations(node, count) as figures:
                for key in keys:
                    collection.upsert(key, document)
            found["upsert"].append(figures())
            with time_operations(node, count) as figures:
                for key in keys:
                    collection.get(key)
            found["get"].append(figures())
    finally:
        cluster.close()
    return {name: select_median(all_figures) for name, all_figures in found.items()}


async def measure_concurrent(node: Process, tasks: int, count: int, rounds: int, document: Any) -> dict[str, Figures]:
    url = f"couchbase://127.0.0.1:{node.port}"
    cluster = await AsyncCluster.connect(url, ClusterOptions(PasswordAuthenticator(USER, PASSWORD)))
    found: dict[str, list[Figures]] = {"upsert": [], "get": []}
    try:
        bucket = cluster.bucket("default")
        await bucket.on_connect()
        collection = bucket.default_collection()
        acts = {"upsert": lambda key: collection.upsert(key, document), "get": collection.get}
        for _ in range(rounds):
            for name, act in acts.items():
                numbers = iter(range(count))

                async def work(act: Any, numbers: Iterator[int]) -> None:
                    for number in numbers:
                        await act(f"key-{number}")

                with time_operations(node, count) as figures:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(tasks):
                            group.create_task(work(act, numbers))
                found[name].append(figures())
    finally:
        await cluster.close()
    return {name: select_median(all_figures) for name, all_figures in found.items()}


def measure_bmemcached(server: Process, count: int, rounds: int, value: str, **login: str) -> dict[str, Figures]:
    client = bmemcached.Client((f"127.0.0.1:{server.port}",), **login)
    keys = [f"key-{number}" for number in range(count)]
    found: dict[str, list[Figures]] = {"set": [], "get": []}
    for _ in range(rounds):
        with time_operations(server, count) as figures:
            for key in keys:
                client.set(key, value, compress_level=0)
        found["set"].append(figures())
        with time_operations(server, count) as figures:
            for key in keys:
                client.get(key)
        found["get"].append(figures())
    client.disconnect_all()
    return {name: select_median(all_figures) for name, all_figures in found.items()}


def measure_all(chosen: argparse.Namespace) -> None:
    report = Report(f"Couchbase's Python client, values of {chosen.value_bytes} B", chosen)
    document = {"text": "v" * chosen.value_bytes}
    count, rounds = chosen.operations, chosen.rounds
    with run_penstock() as node:
        for name, figures in measure_sequential(node, count, rounds, document).items():
            report.add_row(f"{name}, one after the other", str(figures))
        for name, figures in asyncio.run(measure_concurrent(node, chosen.tasks, count, rounds, document)).items():
            report.add_row(f"{name}, {chosen.tasks} at a time", str(figures))
    value = "v" * chosen.value_bytes
    with run_penstock("--vbuckets", 1) as node, run_memcached() as other:
        ours = measure_bmemcached(node, count, rounds, value, username=USER, password=PASSWORD)
        theirs = {} if other is None else measure_bmemcached(other, count, rounds, value)
    for name, figures in ours.items():
        ratio = f"; {figures.rate / theirs[name].rate:.2f}x memcached" if theirs else ""
        report.add_row(f"{name} by bmemcached, Penstock", f"{figures}{ratio}")
    for name, figures in theirs.items():
        report.add_row(f"{name} by bmemcached, memcached", str(figures))
    report.finish()


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--value-bytes", type=int, default=100)
    measure_all(parser.parse_args())


if __name__ == "__main__":
    main()
