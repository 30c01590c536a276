"""Merging changes into the current table: the cost of a changed row as the table grows, against `deltalake`'s merge.

Each round changes random documents of the whole bucket, as many as the policy waits for, and merges them. The values
are random bytes, which cannot be compressed. Seconds are on the clock. CPU seconds of all threads are reported too,
because other load affects them less.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from benchmarks.report import Report, make_parser
from penstock.spark import Lake
from penstock.spark.lake.changelog.changelog_writer import commit_batch, write_files
from penstock.spark.lake.changelog.merge_rules import to_documents
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.reading.lake_readers import count_documents
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.wire.columns.schema import CHANGE_SCHEMA

VBUCKETS = 1024
BATCH_ROWS = 100_000
NOISE = np.random.default_rng(1).integers(0, 256, 64 << 20, np.uint8)


class Merge(NamedTuple):
    """One merge.

    Attributes:
        changes: number of merged changes.
        clock: seconds on the clock.
        processor: CPU seconds of all threads.
    """

    changes: int
    clock: float
    processor: float


def time_merge(merge: Callable[[], int]) -> Merge:
    """Return the number of merged changes with the seconds of the merge."""
    clock, processor = time.perf_counter(), time.process_time()
    changed = merge()
    return Merge(changed, time.perf_counter() - clock, time.process_time() - processor)


def make_changes(documents: np.ndarray, seqno: int, value_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield mutations of documents, which are given by numbers. Seqnos start at `seqno`."""
    for start in range(0, len(documents), BATCH_ROWS):
        numbers = documents[start : start + BATCH_ROWS]
        count = len(numbers)
        places = (np.arange(seqno + start, seqno + start + count) * value_bytes) % (len(NOISE) - value_bytes)
        values = NOISE[places[:, None] + np.arange(value_bytes)].tobytes()
        offsets = pa.array(np.arange(count + 1) * value_bytes, pa.int32())
        column = pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(values)])
        yield make_mutations(numbers, seqno + start, column)


def find_vbuckets(numbers: np.ndarray) -> np.ndarray:
    """Return the vbuckets of documents, which are given by numbers."""
    return (numbers * 2654435761 >> 7) % VBUCKETS


def make_mutations(numbers: np.ndarray, seqno: int, values: pa.Array) -> pa.RecordBatch:
    """Return mutations of documents, which are given by numbers. Seqnos start at `seqno`."""
    count = len(numbers)
    keys = pc.binary_join_element_wise("document-", pc.cast(pa.array(numbers), pa.string()), "").cast(pa.binary())
    seqnos = np.arange(seqno, seqno + count)
    known = {
        "vbucket": pa.array(find_vbuckets(numbers), pa.int32()),
        "vbuuid": pa.repeat(pa.scalar(77), count),
        "seqno": pa.array(seqnos),
        "rev_seqno": pa.array(seqnos),
        "cas": pa.array(seqnos * 65536 + (1 << 60)),
        "event": pa.repeat("mutation", count),
        "key": keys,
        "value": values,
        "collection_id": pa.repeat(pa.scalar(0), count),
        "datatype": pa.repeat(pa.scalar(0, pa.int32()), count),
        "flags": pa.repeat(pa.scalar(0), count),
        "expiry": pa.repeat(pa.scalar(0), count),
        "history": pa.repeat(pa.scalar(0, pa.int32()), count),
    }
    columns = [known.get(field.name, pa.nulls(count, field.type)) for field in CHANGE_SCHEMA]
    return pa.record_batch(columns, schema=CHANGE_SCHEMA)


def append_changes(lake: Lake, batch: int, rows: Iterator[pa.RecordBatch]) -> None:
    files = write_files(rows, lake.changelog_table.path, VBUCKETS)
    commit_batch(lake, "benchmark", batch, files, vbuckets=VBUCKETS)


def merge_by_penstock(directory: Path, documents: int, value_bytes: int, rounds: int) -> list[Merge]:
    """Return the merge of each round, by Penstock."""
    lake, random, seqno = Lake(directory), np.random.default_rng(7), 1
    policy = replace(MergePolicy(), rows=min(MergePolicy().rows, documents))
    append_changes(lake, 0, make_changes(np.arange(documents), seqno, value_bytes))
    merge_current(lake, policy)
    times = []
    for round_ in range(rounds):
        seqno += documents
        chosen = random.choice(documents, count_pending_changes(documents), replace=False)
        append_changes(lake, 1 + round_, make_changes(chosen, seqno, value_bytes))
        times.append(time_merge(lambda: merge_current(lake, policy).changes))
    if count_documents(lake) != documents or lake.current(["seqno"], pc.field("seqno") >= seqno).num_rows != len(
        chosen
    ):
        raise RuntimeError("the current table lacks merged changes")
    return times


def merge_by_deltalake(directory: Path, documents: int, value_bytes: int, rounds: int) -> list[Merge]:
    """Return the merge of each round, by `deltalake`, into a table with the same columns."""
    random, seqno, times = np.random.default_rng(7), 1, []
    batches = (_make_documents(batch) for batch in make_changes(np.arange(documents), seqno, value_bytes))
    for batch in batches:
        write_deltalake(directory, batch, mode="append", partition_by=["vbucket_range"])
    for _ in range(rounds):
        seqno += documents
        chosen = random.choice(documents, count_pending_changes(documents), replace=False)
        source = pa.concat_tables([_make_documents(batch) for batch in make_changes(chosen, seqno, value_bytes)])
        times.append(time_merge(partial(_run_deltalake_merge, directory, source)))
    return times


def _run_deltalake_merge(directory: Path, source: pa.Table) -> int:
    same = "t.vbucket_range = s.vbucket_range AND t.vbucket = s.vbucket AND t.key = s.key"
    merge = DeltaTable(directory).merge(source, same, source_alias="s", target_alias="t")
    changed: int = merge.when_matched_update_all().when_not_matched_insert_all().execute()["num_source_rows"]
    return changed


def _make_documents(batch: pa.RecordBatch) -> pa.Table:
    rows = to_documents(pa.Table.from_batches([batch]).select(MERGE_SCHEMA.names))
    return rows.append_column("vbucket_range", pc.divide(rows["vbucket"], VBUCKETS // 16))


def count_pending_changes(documents: int) -> int:
    """Return the number of changes that the merge policy waits for."""
    policy = MergePolicy()
    return min(documents, max(policy.rows, round(policy.share * documents)))


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000, 8_000_000])
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--against", action=argparse.BooleanOptionalAction, default=True, help="measure deltalake's merge too"
    )
    chosen = parser.parse_args()
    report = Report("Merging changes into the current table", chosen)
    costs = []
    for documents in chosen.documents:
        cases = (
            {"Penstock": merge_by_penstock, "deltalake's merge": merge_by_deltalake}
            if chosen.against
            else {"Penstock": merge_by_penstock}
        )
        for name, case in cases.items():
            with tempfile.TemporaryDirectory() as directory:
                times = case(Path(directory) / "table", documents, chosen.value_bytes, chosen.rounds)
            changed, clock, processor = (median(figures) for figures in zip(*times, strict=True))
            report.add_row(
                f"{changed:.0f} changes into {documents} documents of {chosen.value_bytes} B, {name}",
                f"{clock:.2f} s ({processor:.2f} s of processors), {clock / changed * 1e6:.1f} us/change"
                f" ({processor / changed * 1e6:.1f})",
            )
            if case is merge_by_penstock:
                costs.append((clock / changed, processor / changed))
    if len(costs) > 1:
        clock, processor = (last / first for first, last in zip(costs[0], costs[-1], strict=True))
        report.add_row(
            "a changed row in the largest table against one in the smallest", f"{clock:.2f} times ({processor:.2f})"
        )
    report.finish()


if __name__ == "__main__":
    main()
