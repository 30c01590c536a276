"""From a node to Arrow: all changes of a filled bucket, over loopback, as record batches.

The node and the consumer have separate processes. The consumer is `Bucket.batches` as users call it, with all columns,
copied keys and values, and flow control. It runs in turns with the extension module and without it. The peak memory of
the consumer is reported too.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import penstock
from benchmarks.report import Report, make_parser
from benchmarks.served import run_node
from penstock.wire.codec import native

WAYS = {"native": "1", "Python": "0"}
"""Name -> value of PENSTOCK_NATIVE."""


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


async def read_bucket(url: str) -> Consumed:
    """Read all changes once."""
    async with penstock.connect(url) as bucket:
        rows, wall, cpu = 0, time.perf_counter(), time.process_time()
        async for batch in bucket.batches(stop="now"):
            rows += batch.num_rows
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Consumed(rows, wall, cpu, peak, native.extension is not None)


def run_consumer(url: str) -> Consumed:
    return asyncio.run(read_bucket(url))


def measure_case(report: Report, chosen: argparse.Namespace, vbuckets: int, value_bytes: int, changes: int) -> None:
    pools, taken = {}, dict[str, list[Consumed]]()
    for way, setting in WAYS.items():
        os.environ["PENSTOCK_NATIVE"] = setting  # read when the process begins
        pools[way] = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        pools[way].submit(os.getpid).result()
        taken[way] = []
    del os.environ["PENSTOCK_NATIVE"]
    with run_node(vbuckets=vbuckets, changes=changes, value_bytes=value_bytes) as node:
        for _ in range(chosen.rounds):
            for way, pool in pools.items():  # in turn, so that a disturbance affects both
                taken[way].append(pool.submit(run_consumer, f"couchbase://127.0.0.1:{node.port}").result())
    for pool in pools.values():
        pool.shutdown()
    walls = {way: statistics.median(each.wall for each in runs) for way, runs in taken.items()}
    for way, runs in taken.items():
        if any(each.rows != changes for each in runs):
            raise RuntimeError(f"read {[each.rows for each in runs]} rows of {changes}")
        if runs[0].is_native != (way == "native"):
            raise RuntimeError("the extension module is not built: `make install` where there is a C compiler")
        cpu = statistics.median(each.cpu for each in runs)
        report.add_row(
            f"{changes} changes of {value_bytes} B, {vbuckets} vbuckets, {way}",
            f"{changes / walls[way] / 1e6:.2f} M changes/s (best {changes / min(r.wall for r in runs) / 1e6:.2f}), "
            f"{node.frame_bytes / walls[way] / 1e6:.0f} MB/s, {cpu / changes * 1e9:.0f} ns CPU of the consumer a "
            f"change, {walls['Python'] / walls[way]:.2f} times Python, peak {max(r.peak for r in runs)} MiB",
        )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=10_000_000, help="number of changes of 100 B; a fifth for 1 KB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vbuckets", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--value-bytes", type=int, nargs="*", default=[100, 1024])
    chosen = parser.parse_args()
    report = Report("From a node to Arrow over loopback, with the extension module and without", chosen)
    for value_bytes in chosen.value_bytes:
        changes = chosen.changes if value_bytes < 512 else chosen.changes // 5
        for vbuckets in chosen.vbuckets:
            measure_case(report, chosen, vbuckets, value_bytes, changes)
    report.finish()


if __name__ == "__main__":
    main()
