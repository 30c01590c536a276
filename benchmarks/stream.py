"""From a node to Arrow: everything a filled bucket holds, over loopback, as record batches.

The node has a process of its own. The consumer is `Bucket.batches` as users call it: every column of a change, keys
and values copied, flow control on. The
consuming process's peak memory is given too.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import time

import penstock
from benchmarks.report import Report, options
from benchmarks.served import served


async def consume(url: str) -> tuple[int, float, float]:
    """Return rows, wall seconds and CPU seconds of reading everything once."""
    async with penstock.connect(url) as bucket:
        rows, wall, cpu = 0, time.perf_counter(), time.process_time()
        async for batch in bucket.batches(stop="now"):
            rows += batch.num_rows
        return rows, time.perf_counter() - wall, time.process_time() - cpu


def case(report: Report, chosen: argparse.Namespace, vbuckets: int, value_bytes: int, changes: int) -> None:
    with served(vbuckets=vbuckets, changes=changes, value_bytes=value_bytes) as node:
        runs = [asyncio.run(consume(f"couchbase://127.0.0.1:{node.port}")) for _ in range(chosen.rounds)]
    if any(rows != changes for rows, _, _ in runs):
        raise RuntimeError(f"read {[rows for rows, _, _ in runs]} rows of {changes}")
    wall = statistics.median(seconds for _, seconds, _ in runs)
    cpu = statistics.median(seconds for _, _, seconds in runs)
    best = min(seconds for _, seconds, _ in runs)
    report.row(
        f"{changes} changes of {value_bytes} B, {vbuckets} vbuckets",
        f"{changes / wall / 1e6:.2f} M changes/s (best {changes / best / 1e6:.2f}), "
        f"{node.frame_bytes / wall / 1e6:.0f} MB/s, {cpu / changes * 1e9:.0f} ns CPU of the consumer a change, "
        f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB",
    )


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=10_000_000, help="of 100 B; of 1 KB a fifth")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vbuckets", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--value-bytes", type=int, nargs="*", default=[100, 1024])
    chosen = parser.parse_args()
    report = Report("From a node to Arrow over loopback", chosen)
    for value_bytes in chosen.value_bytes:
        changes = chosen.changes if value_bytes < 512 else chosen.changes // 5
        for vbuckets in chosen.vbuckets:
            case(report, chosen, vbuckets, value_bytes, changes)
    report.finish()


if __name__ == "__main__":
    main()
