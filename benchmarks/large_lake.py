"""A lake of many changelog rows: the time and the memory of its operations.

A process writes the rows through the lake's own writer, without node and Spark. Each key has four changes on average,
one of sixteen is a deletion. Then each operation runs in a process of its own, so that its peak of memory is its own.
`--rows 100000000` needs about 5 GB of disk, and minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.report import Report, make_parser
from penstock.spark import Lake, SecondaryIndex
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.lake.changelog.changelog_writer import append_changes
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.source.offsets import Offset, VbucketOffset
from penstock.wire.columns.schema import CHANGE_SCHEMA

VBUCKETS = 1024
QUERY = "benchmark"
CHANGES_OF_A_KEY = 4
STRIDE = 7_368_787
"""A prime, so that multiples of it visit all keys in a scattered order before one comes again."""
VBUUID = 77


class Bucket:
    """Makes the changes of a bucket, batch by batch.

    Args:
        lake: the lake that gets the changes.
        rows: the number of changes, without those that bring the tables up to date later.
        batch_rows: the number of changes of a batch.
    """

    def __init__(self, lake: Lake, rows: int, batch_rows: int) -> None:
        self._lake = lake
        self._keys = max(1, rows // CHANGES_OF_A_KEY)
        self._batch_rows = batch_rows
        self._made = 0
        self._seqnos = np.zeros(VBUCKETS, np.int64)
        self._random = np.random.default_rng(1)

    def append_batches(self, first: int, count: int) -> None:
        """Append batches to the changelog, with the checkpoint that a query of Spark writes."""
        for number in range(first, first + count):
            append_changes(self._lake, QUERY, number, [self._make_batch()], vbuckets=VBUCKETS)
            self._write_checkpoint(number)

    def _make_batch(self) -> pa.RecordBatch:
        count = self._batch_rows
        numbers = (np.arange(self._made, self._made + count) * STRIDE) % self._keys
        self._made += count
        vbuckets = numbers % VBUCKETS
        order = np.argsort(vbuckets, kind="stable")
        numbers, vbuckets = numbers[order], vbuckets[order]
        counts = np.bincount(vbuckets, minlength=VBUCKETS)
        first = self._seqnos + 1
        within = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
        seqnos = first[vbuckets] + within
        self._seqnos += counts
        is_deleted = pa.array(self._random.integers(0, 16, count) == 0)
        numbers_text = pc.cast(pa.array(numbers), pa.string())
        values = pc.binary_join_element_wise(
            '{"n": ', pc.cast(pa.array(self._random.integers(0, 1 << 40, count)), pa.string()), "}", ""
        ).cast(pa.binary())
        known = {
            "vbucket": pa.array(vbuckets, pa.int32()),
            "vbuuid": pa.repeat(pa.scalar(VBUUID), count),
            "seqno": pa.array(seqnos),
            "rev_seqno": pa.array(seqnos),
            "cas": pa.array((1 << 60) + (self._made << 16) + order),
            "event": pc.if_else(is_deleted, "deletion", "mutation"),
            "key": pc.binary_join_element_wise("document-", numbers_text, "").cast(pa.binary()),
            "value": pc.if_else(is_deleted, pa.scalar(None, pa.binary()), values),
            "collection_id": pa.repeat(pa.scalar(0), count),
            "datatype": pa.repeat(pa.scalar(1, pa.int32()), count),
            "flags": pa.repeat(pa.scalar(0), count),
            "expiry": pa.repeat(pa.scalar(0), count),
            "snapshot_start": pa.array(first[vbuckets]),
            "snapshot_end": pa.array(self._seqnos[vbuckets]),
            "history": pa.repeat(pa.scalar(0, pa.int32()), count),
        }
        columns = [known.get(field.name, pa.nulls(count, field.type)) for field in CHANGE_SCHEMA]
        return pa.record_batch(columns, schema=CHANGE_SCHEMA)

    def _write_checkpoint(self, batch: int) -> None:
        directory = Path(str(self._lake.checkpoint))
        offset = Offset(tuple(VbucketOffset(vbuuid=VBUUID, seqno=seqno) for seqno in self._seqnos.tolist()))
        for name in ("offsets", "commits"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "metadata").write_text(json.dumps({"id": QUERY}))
        (directory / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset.to_json())}")
        (directory / "commits" / str(batch)).write_text("v1\n{}")


def fill_lake(lake: Lake, rows: int) -> int:
    batch_rows = min(1_000_000, rows)
    Bucket(lake, rows, batch_rows).append_batches(0, rows // batch_rows)
    return rows


def append_more(lake: Lake, rows: int) -> int:
    """Append one batch more, which changes keys of the earlier ones."""
    return _append_changes(lake, rows, max(1, rows // 100), 1)


def change_all(lake: Lake, rows: int) -> int:
    """Change each document once."""
    changes = max(1, rows // CHANGES_OF_A_KEY)
    batch_rows = min(1_000_000, changes)
    return _append_changes(lake, rows, batch_rows, -(-changes // batch_rows))


def _append_changes(lake: Lake, rows: int, batch_rows: int, batches: int) -> int:
    position = lake.position()
    assert position is not None
    more = Bucket(lake, rows, batch_rows)
    more._seqnos = np.array([each.seqno for each in position.offset.vbuckets])
    more.append_batches(position.batch + 1, batches)
    return batch_rows * batches


def merge(lake: Lake, rows: int) -> int:
    return merge_current(lake).changes


def read_current(lake: Lake, rows: int) -> int:
    return sum(batch.num_rows for batch in lake.current_batches())


def read_as_of(lake: Lake, rows: int) -> int:
    position = lake.position()
    assert position is not None
    middle = lake.position(position.batch // 2)
    assert middle is not None
    return sum(batch.num_rows for batch in lake.as_of_batches(middle))


def update_index(lake: Lake, rows: int) -> int:
    index = SecondaryIndex(lake, "by_n", "n", "long")
    catch_up(index, lake)
    return index.count_rows()


def find_by_index(lake: Lake, rows: int) -> int:
    found: int = SecondaryIndex(lake, "by_n", "n", "long").range(0, 1 << 24).num_rows
    return found


OPERATIONS: dict[str, tuple[str, Callable[[Lake, int], int]]] = {
    "fill": ("write the changelog, rows", fill_lake),
    "merge": ("first merge into current, rows", merge),
    "more": ("write one batch more, rows", append_more),
    "catch-up": ("merge of this batch, rows", merge),
    "current": ("read current, documents", read_current),
    "as-of": ("read the state at the middle, documents", read_as_of),
    "index": ("build an index, entries", update_index),
    "find": ("find by the index, documents", find_by_index),
    "change": ("write a change of each document, rows", change_all),
    "index-merge": ("merge these changes into the index, entries", update_index),
}


def measure(report: Report, name: str, directory: Path, rows: int) -> None:
    """Run an operation in a process and report its time and memory."""
    command = [sys.executable, "-m", "benchmarks.large_lake", "--operation", name, "--rows", str(rows)]
    began = time.perf_counter()
    process = subprocess.Popen([*command, "--directory", str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    shown = process.stdout.read()
    _, status, spent = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{name} failed with exit code {process.returncode}")
    cpu = spent.ru_utime + spent.ru_stime
    report.add_row(
        f"{OPERATIONS[name][0]}: {int(shown):,}",
        f"{seconds:.1f} s; CPU {cpu:.1f} s; peak {spent.ru_maxrss / 1024:.0f} MiB",
    )


def report_size(report: Report, directory: Path) -> None:
    """Report the size of the tables on disk."""
    sizes = [path.stat().st_size for path in directory.rglob("*.parquet")]
    report.add_row("files on disk", f"{len(sizes)} of {sum(sizes) / 1e9:.2f} GB")


def run(chosen: argparse.Namespace, directory: Path) -> None:
    report = Report("A large lake: merge, read and search", chosen)
    for name in chosen.only or OPERATIONS:
        measure(report, name, directory, chosen.rows)
        if name == "fill":
            report_size(report, directory)
    report.finish()


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the changelog")
    parser.add_argument(
        "--directory", type=Path, help="where the lake is made and kept; default: a temporary directory"
    )
    parser.add_argument("--only", nargs="*", choices=OPERATIONS, help="these operations, on an existing lake")
    parser.add_argument("--operation", choices=OPERATIONS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.operation is not None:
        print(OPERATIONS[chosen.operation][1](Lake(str(chosen.directory)), chosen.rows))
    elif chosen.directory is not None:
        run(chosen, chosen.directory)
    else:
        with tempfile.TemporaryDirectory() as directory:
            run(chosen, Path(directory))


if __name__ == "__main__":
    main()
