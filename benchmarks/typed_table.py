"""Changes merged into a typed Delta table: Penstock against its own binary merge, deltalake and Delta's MERGE INTO.

The documents are JSON of about 300 B with 12 fields. Each round changes a share of them, either random ones or those of
a few vbuckets. All cases of a round merge the same changes: into the typed table, and into `current`, which keeps
values as bytes. `deltalake` (values parsed by DuckDB) and Spark (`from_json` and `MERGE INTO`, if --jars has
delta-spark) merge them into plain tables without a change feed. Seconds are on the clock. The first round is the first
load.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from benchmarks.current import BATCH_ROWS, append_changes, find_vbuckets, make_mutations
from benchmarks.orders import DDL, make_orders
from benchmarks.report import Report, make_parser
from penstock.spark import Lake
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.values.json_types import from_ddl

DUCKDB_SHAPE = (
    '{"order_id":"BIGINT","customer":"VARCHAR","email":"VARCHAR","city":"VARCHAR","status":"VARCHAR","total":"DOUBLE",'
    '"quantity":"INTEGER","paid":"BOOLEAN","ordered_at":"VARCHAR","note":"VARCHAR","discount":"DOUBLE","revision":"BIGINT"}'
)


def make_changes(numbers: np.ndarray, revision: int) -> Iterator[pa.RecordBatch]:
    """Yield mutations of documents, which are given by numbers."""
    for start in range(0, len(numbers), BATCH_ROWS):
        part = numbers[start : start + BATCH_ROWS]
        yield make_mutations(part, 1 + revision * 100_000_000 + start, make_orders(part, revision))


def choose_documents(documents: int, share: float, *, is_clustered: bool) -> np.ndarray:
    """Return the numbers of the documents to change: random ones, or those of the first vbuckets."""
    count = round(documents * share)
    numbers = np.arange(documents)
    if is_clustered:
        return numbers[np.argsort(find_vbuckets(numbers), kind="stable")][:count]
    return np.random.default_rng(7).choice(documents, count, replace=False)


class LakeCase:
    """A table of a lake, to which changes are merged from the changelog.

    Args:
        table: the directory of the table.
        merge: merges the changelog into the table.
    """

    def __init__(self, table: Path, merge: Callable[[], object]) -> None:
        self.directory = table
        self._merge = merge

    def prepare(self, changes: pa.Table) -> None:
        """Do nothing: the changes are in the changelog already, as in a pipeline."""

    def merge(self) -> None:
        self._merge()


class DeltalakeCase:
    """A plain table, into which `deltalake` merges rows that DuckDB parses."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._changes = pa.table({})

    def prepare(self, changes: pa.Table) -> None:
        self._changes = changes

    def merge(self) -> None:
        rows = _parse_with_duckdb(self._changes)
        if not DeltaTable.is_deltatable(str(self.directory)):
            write_deltalake(self.directory, rows)
            return
        merge = DeltaTable(self.directory).merge(rows, "t._key = s._key", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _parse_with_duckdb(changes: pa.Table) -> pa.Table:
    with duckdb.connect() as connection:
        connection.register("changes", pa.table({name: changes[name].cast(pa.string()) for name in ("key", "value")}))
        connection.execute("SET VARIABLE shape = ?", [DUCKDB_SHAPE])
        columns = "key AS _key, unnest(json_transform(value, getvariable('shape')))"
        return connection.sql(f"SELECT {columns} FROM changes").to_arrow_table()


class SparkCase:
    """A plain table, into which Spark merges rows with `from_json` and `MERGE INTO` of delta-spark.

    Args:
        directory: the directory of the table.
        python: a Python with a pyspark for which the jars are.
        jars: the jars of delta-spark and delta-storage, with a comma between them.
    """

    def __init__(self, directory: Path, python: str, jars: str) -> None:
        self.directory = directory
        self._source = directory.with_name("changes.parquet")
        command = [python, str(Path(__file__).with_name("merge_into.py")), jars, str(directory), DDL]
        self._spark = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._receive("ready")

    def prepare(self, changes: pa.Table) -> None:
        pq.write_table(changes, self._source, row_group_size=BATCH_ROWS)

    def merge(self) -> None:
        assert self._spark.stdin is not None
        self._spark.stdin.write(f"{self._source}\n")
        self._spark.stdin.flush()
        self._receive("merged")

    def _receive(self, expected: str) -> None:
        assert self._spark.stdout is not None
        if self._spark.stdout.readline().strip() != expected:
            raise RuntimeError("Spark has failed; run merge_into.py by hand to see its message")

    def close(self) -> None:
        self._spark.communicate()


Case = LakeCase | DeltalakeCase | SparkCase


def list_files(directory: Path) -> dict[Path, int]:
    return {file: file.stat().st_size for file in directory.rglob("*.parquet") if "_delta_log" not in file.parts}


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.1])
    parser.add_argument("--jars", help="measure Spark: the jars delta-spark,delta-storage")
    parser.add_argument("--spark-python", default=sys.executable, help="a Python with the pyspark of the jars")
    parser.add_argument("--directory", type=Path, help="directory for the tables; default: that of temporary files")
    chosen = parser.parse_args()
    report = Report("Changes merged into a typed table", chosen)
    with tempfile.TemporaryDirectory(dir=chosen.directory) as directory, ExitStack() as stack:
        run(Path(directory), report, chosen, stack)
    report.finish()


def run(directory: Path, report: Report, chosen: argparse.Namespace, stack: ExitStack) -> None:
    """Load all tables, then merge each kind of changes into all of them, and add the figures to the report."""
    lake = Lake(directory / "lake")
    typed = TypedTable(lake, TableShape(name="orders", fields=from_ddl(DDL)))
    cases: dict[str, Case] = {
        "current": LakeCase(directory / "lake" / "current", lambda: merge_current(lake)),
        "typed": LakeCase(directory / "lake" / "tables" / "orders", typed.merge),
        "deltalake": DeltalakeCase(directory / "deltalake"),
    }
    if chosen.jars:
        spark = SparkCase(directory / "spark", chosen.spark_python, chosen.jars)
        stack.callback(spark.close)
        cases["MERGE INTO"] = spark
    kinds = [(share, is_clustered) for share in chosen.shares for is_clustered in (False, True)]
    rounds = [("first load", np.arange(chosen.documents))]
    for share, is_clustered in kinds:
        name = f"{share:.0%} of the documents, {'clustered' if is_clustered else 'random'}"
        rounds.append((name, choose_documents(chosen.documents, share, is_clustered=is_clustered)))
    for revision, (title, numbers) in enumerate(rounds):
        append_changes(lake, revision, make_changes(numbers, revision))
        changes = pa.Table.from_batches(make_changes(numbers, revision)).select(["key", "value"])
        if not revision:
            report.add_row("documents", f"{len(numbers)} of {changes['value'].nbytes // len(numbers)} B")
        seconds: dict[str, float] = {}
        for name, case in cases.items():
            case.prepare(changes)
            before, begun, spent = list_files(case.directory), time.perf_counter(), time.process_time()
            case.merge()
            seconds[name], spent = time.perf_counter() - begun, time.process_time() - spent
            written = sum(size for file, size in list_files(case.directory).items() if file not in before)
            report.add_row(
                f"{title}, {name}",
                f"{seconds[name]:.2f} s, {len(numbers) / seconds[name] / 1e3:.0f} k rows/s, "
                f"{seconds[name] / seconds['current']:.2f} of current; {spent:.2f} s of this process's processors; "
                f"{written / len(numbers):.0f} bytes written a row",
            )
    check(typed, chosen.documents, rounds[-1][1], len(rounds) - 1)


def check(typed: TypedTable, documents: int, newest: np.ndarray, revision: int) -> None:
    """Raise RuntimeError if the typed table does not have all documents with their newest revision."""
    found = DeltaTable(str(typed.table.path)).to_pyarrow_table(columns=["order_id", "revision", "_rest"])
    fresh = found.filter(pc.equal(found["revision"], revision))
    if found.num_rows != documents or {*fresh["order_id"].to_pylist()} != {*newest.tolist()}:
        raise RuntimeError(f"the typed table has {found.num_rows} of {documents} documents, {fresh.num_rows} changed")
    if found["_rest"].null_count != documents:
        raise RuntimeError("some fields of the documents have no column")


if __name__ == "__main__":
    main()
