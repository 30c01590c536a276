"""Merges into the inferred tables of many collections, as a pipeline without declarations makes them.

The first merge creates the tables. Each later round merges changes of all collections or of a few. Seconds are CPU
times of all threads, because other load affects them less than the clock. Spark takes no part in merges.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.report import Report, make_parser
from penstock.spark import Lake
from penstock.spark.lake.changelog.changelog_writer import append_changes
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.typed_table import list_typed_tables
from penstock.spark.pipeline.run.table_tasks import TableTargets, TableTasks
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event

VBUCKETS = 64


def make_changes(collections: Sequence[int], rows: int, revision: int) -> pa.RecordBatch:
    """Return mutations of documents, the same number in each collection."""
    documents = [(number, key) for number in collections for key in range(rows // len(collections))]
    documents.sort(key=lambda document: document[1] % VBUCKETS)
    found = [
        {
            "event": Event.MUTATION,
            "vbucket": key % VBUCKETS,
            "seqno": revision * 1_000_000 + at,
            "history": 0,
            "key": b"document-%d" % key,
            "value": b'{"n": %d, "name": "number %d", "parts": [%d]}' % (revision, key, number),
            "collection_id": number + 8,
            "scope": "shop",
            "collection": f"part{number}",
        }
        for at, (number, key) in enumerate(documents)
    ]
    return pa.RecordBatch.from_pylist(found, schema=CHANGE_SCHEMA)


def count_commits(lake: Lake) -> int:
    """Return the number of commits of all typed tables."""
    opened = (table.open() for table in list_typed_tables(lake))
    return sum(each.version() for each in opened if each is not None)


def run(chosen: argparse.Namespace, report: Report, directory: Path) -> None:
    """Merge all rounds, and add a row for each kind of round."""
    lake = Lake(directory / "lake")
    tasks = TableTasks(lake, TableTargets(lake, (), has_current=True, is_inferring=True), MergePolicy())
    everything = range(chosen.collections)
    batch = 0

    def merge(collections: Sequence[int], rows: int) -> float:
        nonlocal batch
        append_changes(lake, "benchmark", batch, [make_changes(collections, rows, batch + 1)], vbuckets=VBUCKETS)
        batch += 1
        began = time.process_time()
        tasks.run()
        return time.process_time() - began

    report.add_row(f"first load, {chosen.collections} collections", f"{merge(everything, chosen.documents):.2f} s CPU")
    for name, collections in (("all collections", everything), ("2 collections", everything[:2])):
        before = count_commits(lake)
        seconds = [merge(collections, chosen.changes) for _ in range(chosen.rounds)]
        commits = (count_commits(lake) - before) / chosen.rounds
        report.add_row(
            f"{chosen.changes:,} changes in {name}",
            f"{median(seconds):.2f} s CPU a merge ({min(seconds):.2f} to {max(seconds):.2f}), {commits:.0f} commits",
        )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--collections", type=int, default=40)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--changes", type=int, default=4_000, help="changes of a merge")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    report = Report("Merges into the inferred tables of many collections", chosen)
    with tempfile.TemporaryDirectory() as directory:
        run(chosen, report, Path(directory))
    report.finish()


if __name__ == "__main__":
    main()
