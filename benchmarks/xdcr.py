"""From one bucket to another: XDCR beside its two halves, a consumer alone and a consumer with a bulk writer.

Source, target and replicator have separate processes. Every case begins with an empty target, which has half as many
vbuckets as the source. The consumer with a bulk writer stores values only: no metadata, filters, checkpoints, or waits
for the disk.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import penstock
from benchmarks.report import Report, make_parser
from benchmarks.served import run_node

Case = Callable[[str, str], Coroutine[Any, Any, int]]


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=300_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    report = Report("How many changes a second does XDCR carry to another bucket?", chosen)
    cases: dict[str, Case] = {
        "consumer alone": _consume,
        "consumer and bulk writer": _copy,
        "XDCR": _make_replication(),
        "XDCR of unpersisted changes": _make_replication(unpersisted=True),
        "XDCR with a filter on keys": _make_replication(filter_key="^key-"),
        "XDCR, the target has all changes": _replicate_again,
    }
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    with run_node(vbuckets=chosen.vbuckets, changes=chosen.changes, value_bytes=chosen.value_bytes) as node:
        source = f"couchbase://127.0.0.1:{node.port}/default"
        for _ in range(chosen.rounds):
            for case, run in cases.items():
                seconds[case].append(_time_case(run, source, chosen.vbuckets // 2, chosen.changes))
    usual = statistics.median(seconds["consumer and bulk writer"])
    for case, taken in seconds.items():
        median = statistics.median(taken)
        rate = f"{chosen.changes / median / 1e3:.0f} k changes/s (best {chosen.changes / min(taken) / 1e3:.0f})"
        report.add_row(f"{case}, {chosen.value_bytes} B", f"{rate}, {usual / median:.2f} of consumer and bulk writer")
    report.finish()


def _time_case(run: Case, source: str, vbuckets: int, changes: int) -> float:
    """Return the seconds of a case with an empty target."""
    with run_node(vbuckets=max(1, vbuckets)) as target:
        url = f"couchbase://127.0.0.1:{target.port}/default"
        if run is _replicate_again:
            asyncio.run(_replicate(source, url, penstock.XdcrOptions(until="now")))
        target.settle()
        start = time.perf_counter()
        found = asyncio.run(run(source, url))
        taken = time.perf_counter() - start
    if found != changes:
        raise RuntimeError(f"{found} changes, expected {changes}")
    return taken


async def _consume(source: str, target: str) -> int:
    async with penstock.connect(source) as bucket:
        return sum([batch.num_rows async for batch in bucket.batches(stop="now", xattrs=True)])


async def _copy(source: str, target: str) -> int:
    rows = 0
    async with penstock.connect(source) as bucket, penstock.BulkWriter(target) as writer:
        async for batch in bucket.batches(stop="now", xattrs=True):
            outcomes = await writer.upsert(batch["key"], batch["value"])
            rows += batch.num_rows - len(outcomes.faults)
    return rows


def _make_replication(*, unpersisted: bool = False, filter_key: str | None = None) -> Case:
    return partial(
        _replicate, options=penstock.XdcrOptions(until="now", unpersisted=unpersisted, filter_key=filter_key)
    )


async def _replicate(source: str, target: str, options: penstock.XdcrOptions) -> int:
    return (await penstock.BucketReplication(source, target, options).run()).written


async def _replicate_again(source: str, target: str) -> int:
    return (await penstock.BucketReplication(source, target, penstock.XdcrOptions(until="now")).run()).older


if __name__ == "__main__":
    main()
