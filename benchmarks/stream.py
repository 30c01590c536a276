"""From a node to Arrow: all changes of a filled bucket, over loopback, as record batches.

The node and the consumer have separate processes. The consumer is `Bucket.batches` as users call it, with all columns,
copied keys and values, and flow control. It runs in turns with the extension module and without it, and as
`read_changes`, the front without an event loop. The peak memory of the consumer is reported too.

With `--filtered` the consumer takes one key of a hundred, in two ways. A node applies the first filter. It refuses the
second one, which is equal but large, so the consumer applies it alone.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import penstock
from benchmarks.report import Report, make_parser
from benchmarks.served import run_node
from penstock.client.streams.stream_choice import ChangeOptions
from penstock.wire.codec import native


class Consumed(NamedTuple):
    """One read of the bucket.

    Attributes:
        rows: number of rows.
        wall: seconds on the clock.
        cpu: CPU seconds.
        peak: peak memory of the process so far, in MiB.
        is_native: whether the extension module was used.
    """

    rows: int
    wall: float
    cpu: float
    peak: int
    is_native: bool


async def count_in_loop(url: str, filter_key: str | None = None) -> int:
    """Read all changes once with `Bucket.batches`, and return their number."""
    chosen: ChangeOptions = {} if filter_key is None else {"filter_key": filter_key}
    async with penstock.connect(url) as bucket:
        return sum([batch.num_rows async for batch in bucket.batches(stop="now", **chosen)])


def count_blocking(url: str) -> int:
    """Read all changes once with `read_changes`, and return their number."""
    return sum(batch.num_rows for batch in penstock.read_changes(url, stop="now"))


class Way(NamedTuple):
    """A way to read the bucket.

    Attributes:
        setting: the value of PENSTOCK_NATIVE.
        count: reads all changes once, with the connection.
    """

    setting: str
    count: Callable[[str], int]


def count_with_loop(url: str, filter_key: str | None = None) -> int:
    return asyncio.run(count_in_loop(url, filter_key))


WAYS = {
    "native": Way("1", count_with_loop),
    "read_changes": Way("1", count_blocking),
    "Python": Way("0", count_with_loop),
}


FILTERED = {
    "filtered by the node": Way("1", partial(count_with_loop, filter_key="00$")),
    "filtered by the consumer": Way("1", partial(count_with_loop, filter_key=r"00$|^\pZ")),
}


def run_consumer(url: str, way: str) -> Consumed:
    wall, cpu = time.perf_counter(), time.process_time()
    rows = (WAYS | FILTERED)[way].count(url)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Consumed(rows, wall, cpu, peak, native.extension is not None)


def measure_case(report: Report, chosen: argparse.Namespace, vbuckets: int, value_bytes: int, changes: int) -> None:
    ways, taken_part = (FILTERED, 100) if chosen.filtered else (WAYS, 1)
    first, *_, baseline = ways
    node_cpus = {name: list[float]() for name in ways}
    pools, taken = {}, dict[str, list[Consumed]]()
    for name, way in ways.items():
        os.environ["PENSTOCK_NATIVE"] = way.setting  # read when the process begins
        pools[name] = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        pools[name].submit(os.getpid).result()
        taken[name] = []
    del os.environ["PENSTOCK_NATIVE"]
    with run_node(vbuckets=vbuckets, changes=changes, value_bytes=value_bytes) as node:
        for turn in range(-1, chosen.rounds):  # the first turn imports, and does not count
            for name, pool in pools.items():  # in turn, so that a disturbance affects all
                before = node.read_cpu_seconds()
                read = pool.submit(run_consumer, f"couchbase://127.0.0.1:{node.port}", name).result()
                if turn >= 0:
                    taken[name].append(read)
                    node_cpus[name].append(node.read_cpu_seconds() - before)
    for pool in pools.values():
        pool.shutdown()
    walls = {name: statistics.median(each.wall for each in runs) for name, runs in taken.items()}
    cpus = {name: statistics.median(each.cpu for each in runs) for name, runs in taken.items()}
    served = {name: statistics.median(runs) / changes * 1e9 for name, runs in node_cpus.items()}
    for name, runs in taken.items():
        if any(each.rows != changes // taken_part for each in runs):
            raise RuntimeError(f"read {[each.rows for each in runs]} rows of {changes // taken_part}")
        if runs[0].is_native != (ways[name].setting == "1"):
            raise RuntimeError("the extension module is not built: `make install` where there is a C compiler")
        report.add_row(
            f"{changes} changes of {value_bytes} B, {vbuckets} vbuckets, {name}",
            f"{changes / walls[name] / 1e6:.2f} M changes/s (best {changes / min(r.wall for r in runs) / 1e6:.2f}), "
            f"{node.frame_bytes / walls[name] / 1e6:.0f} MB/s, {cpus[name] / changes * 1e9:.0f} ns CPU of the consumer "
            f"a change ({cpus[name] / cpus[first]:.2f} of {first}), {served[name]:.0f} ns of the node, "
            f"{walls[baseline] / walls[name]:.2f} times {baseline}, peak {max(r.peak for r in runs)} MiB",
        )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=10_000_000, help="number of changes of 100 B; a fifth for 1 KB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--filtered", action="store_true", help="measure a filter in the node and in the consumer")
    parser.add_argument("--vbuckets", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--value-bytes", type=int, nargs="*", default=[100, 1024])
    chosen = parser.parse_args()
    report = Report(
        "From a node to Arrow over loopback, with the extension module and without, and from read_changes", chosen
    )
    for value_bytes in chosen.value_bytes:
        changes = chosen.changes if value_bytes < 512 else chosen.changes // 5
        for vbuckets in chosen.vbuckets:
            measure_case(report, chosen, vbuckets, value_bytes, changes)
    report.finish()


if __name__ == "__main__":
    main()
