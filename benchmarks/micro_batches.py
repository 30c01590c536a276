"""Many small micro-batches into a changelog and a typed table: time, files and memory from the first to the last one.

Each batch has a few changes of the same documents. It passes through the parts of a pipeline in one process: the plan
and the tasks of `format("dcp")`, and the commit of the changelog. The typed table is merged once that is due, and then
the changelog is maintained. Spark itself is left out: it would add about 0.3 s to a batch. Rows of the report are
tenths of the run. Times of parts are medians of CPU times of all threads, because other load affects them less than the
clock.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.report import Report, make_parser
from benchmarks.served import run_node
from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.spark import Lake
from penstock.spark.lake.changelog.changelog_writer import append_changes
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.maintenance.lake_compaction import maintain_changelog
from penstock.spark.runtime.data_source import DcpDataSource
from penstock.spark.values.json_types import from_ddl

TENTHS = 10
VBUCKETS = 64


class BatchTimes(NamedTuple):
    """CPU seconds of the parts of a micro-batch.

    Attributes:
        read: plan and tasks.
        commit: commit of the changelog.
        merge: merge and maintenance; mostly there is none.
    """

    read: float
    commit: float
    merge: float


class SmallPipeline:
    """A source, a changelog and a typed table.

    Args:
        url: the bucket.
        lake: the lake.
        merge_seconds: time from one merge to the next.
    """

    def __init__(self, url: str, lake: Lake, merge_seconds: float) -> None:
        self._source = DcpDataSource({"url": url, "maxPartitions": "1"})
        self._reader = self._source.streamReader(self._source.schema())
        self._lake, self._merge_seconds, self._merged_at = lake, merge_seconds, 0.0
        self._start: Any = self._reader.initialOffset()
        self._batches = self.rows = self.merges = 0
        self.table = TypedTable(lake, TableShape(name="documents", fields=from_ddl("n BIGINT, name STRING")))

    def run_batch(self) -> BatchTimes:
        times = [time.process_time()]
        end = self._reader.latestOffset(self._start, self._reader.getDefaultReadLimit())
        parts = self._reader.partitions(self._start, end)
        batches = [batch for part in parts for batch in self._reader.read(part)]
        self._start = end
        times.append(time.process_time())
        append_changes(self._lake, "benchmark", self._batches, batches, vbuckets=VBUCKETS)
        self._batches += 1
        self.rows += sum(batch.num_rows for batch in batches)
        times.append(time.process_time())
        if time.monotonic() - self._merged_at >= self._merge_seconds:
            self.table.merge()
            maintain_changelog(self._lake)
            self.merges, self._merged_at = self.merges + 1, time.monotonic()
        times.append(time.process_time())
        return BatchTimes(*(after - before for before, after in pairwise(times)))

    def close(self) -> None:
        self._reader.stop()


def read_memory() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def describe_files(name: str, directory: Path) -> str:
    """Return the data files and the log of a Delta table."""
    data = [file for file in directory.rglob("*.parquet") if "_delta_log" not in file.parts]
    log = [file.stat().st_size for file in (directory / "_delta_log").glob("*") if file.is_file()]
    return f"{name}: {len(data)} data files, log {len(log)} files, {sum(log) / 1e6:.1f} MB"


def run(chosen: argparse.Namespace, report: Report, directory: Path) -> None:
    """Run all micro-batches, and add a row for each tenth of them."""
    lake = Lake(directory / "lake")
    with run_node(vbuckets=VBUCKETS, changes=0) as node, LoopThread() as loop:
        url = f"couchbase://127.0.0.1:{node.port}/default"
        bucket = Bucket(parse_address(url))
        loop.run(bucket.connect())
        pipeline = SmallPipeline(url, lake, chosen.merge_seconds)
        for tenth in range(1, TENTHS + 1):
            times, begun = [], time.perf_counter()
            for number in range(chosen.batches // TENTHS):
                values = [
                    (f"document-{key}", b'{"n": %d, "name": "number %d"}' % (number, key)) for key in range(chosen.rows)
                ]
                loop.run(bucket.upsert_many(values))
                times.append(pipeline.run_batch())
            read, commit, merge = (median(part) * 1e3 for part in zip(*times, strict=True))
            longest = max(each.merge for each in times) * 1e3
            report.add_row(
                f"batch {tenth * len(times)}, {pipeline.merges} merges",
                f"{(time.perf_counter() - begun) / len(times):.2f} s a batch; "
                f"CPU {read:.0f} ms read, {commit:.0f} ms commit, {merge:.0f} ms merge (longest {longest:.0f} ms); "
                f"{describe_files('changelog', directory / 'lake' / 'changelog')}; "
                f"{describe_files('table', directory / 'lake' / 'tables' / 'documents')}; "
                f"{read_memory() / 2**20:.0f} MiB",
            )
        if pipeline.rows != chosen.rows * (chosen.batches // TENTHS) * TENTHS:
            raise RuntimeError(f"{pipeline.rows} rows were read")
        pipeline.close()
        loop.run(bucket.close())


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=100, help="changes of a batch")
    parser.add_argument("--merge-seconds", type=float, default=5.0, help="time from one merge to the next")
    chosen = parser.parse_args()
    report = Report("Many small micro-batches", chosen)
    with tempfile.TemporaryDirectory() as directory:
        run(chosen, report, Path(directory))
    report.finish()


if __name__ == "__main__":
    main()
