"""A run of the demonstration: a node in its own process, documents, a pipeline, and the comparison at the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from penstock.cli.base.json_lines import BadLine, LoadedDocument, encode_compact_json, open_input, read_documents
from penstock.cli.base.show import warn
from penstock.cli.base.text_tables import make_lake_table
from penstock.cli.bucket.demo_node import run_demo_node
from penstock.cli.bucket.demo_plan import DemoPlan
from penstock.cli.bucket.load import LoadResult, load_documents
from penstock.cli.bucket.random_changes import ChangeMix, Workload, WorkloadTally, read_live_keys
from penstock.cli.bucket.samples import make_samples
from penstock.errors import Error
from penstock.names import make_printable
from penstock.text_files import LineReader

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.client.bucket import Bucket
    from penstock.spark.lake.tables.directory import LakeDirectory
    from penstock.spark.pipeline.state.run_progress import SourceProgress

_STOP_SECONDS = 10.0
_SEED = 7


class DemoRun:
    """A run from an empty node to the comparison of table and bucket.

    Args:
        plan: the options.
        lake: the directory of the tables.
        console: where progress is printed.
        check: raises an exception if the user interrupts the run.

    Attributes:
        tally: the random changes so far.
    """

    def __init__(self, plan: DemoPlan, lake: Path, console: Console, check: Callable[[], None]) -> None:
        self.plan = plan
        self.lake = lake
        self.console = console
        self.check = check
        self.started = time.monotonic()
        self.tally = WorkloadTally()

    def run(self) -> bool:
        """Return whether the tables equal the bucket."""
        from deltalake import DeltaTable

        from penstock.spark.lake.tables.directory import LakeDirectory

        with run_demo_node() as node:
            self.print_progress(f"[bold]Node[/] serving {node.url}, process {node.pid}")
            loaded = asyncio.run(self.load_documents(node.url))
            self.print_progress(f"[bold]Documents[/] {loaded}")
            self.print_progress("[bold]Spark[/] starting a query that follows the bucket")
            with open_session() as spark:
                progress = self.run_pipeline(node.url, spark)
                answers = self.query_table(spark)
            lake = LakeDirectory(self.lake)
            differences, documents = asyncio.run(compare_documents(node.url, lake))
        rows = DeltaTable(str(self.lake / "tables" / self.table)).count()
        if rows != documents:
            differences.append(f"the table {self.table} has {rows:,} rows, and the bucket {documents:,} documents")
        self.print_summary(progress, differences, documents, lake)
        self.print_answers(answers)
        return not differences

    @property
    def query(self) -> str:
        """The query of the typed table."""
        column, value = ("style", "avg(abv)") if self.plan.file is None else ("_batch", "count(*)")
        return f"SELECT {column}, {value} FROM {self.table} GROUP BY {column}"

    def query_table(self, spark: SparkSession) -> dict[str, list[tuple[Any, ...]]]:
        """Return the first rows of the query by engine: of Spark, and of one that knows no Penstock."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self.lake / "tables" / self.table))
        query = f"{self.query} ORDER BY 1 NULLS LAST LIMIT 5"
        # The files, because this session has no jar of Delta Lake. With it: FROM delta.`PATH`.
        spark.read.parquet(*map(unquote, table.file_uris())).createOrReplaceTempView(self.table)
        engine, rows = _query_plainly(table, self.table, query)
        return {engine: rows, "Spark SQL": [tuple(row) for row in spark.sql(query).collect()]}

    def print_answers(self, answers: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Print the query of the typed table, and the rows of each engine side by side."""
        lines = [self.query, f"of {self.lake / 'tables' / self.table}, in {' and in '.join(answers)}"]
        for rows in zip(*answers.values(), strict=True):
            lines.append("  ".join(map(_format_cell, [rows[0][0], *(value for _, value in rows)])))
        self.console.print("\n[bold]Query[/]", end="")
        for indent, line in zip([6, *[11] * len(lines)], lines, strict=False):
            self.console.print(" " * indent + line, highlight=False, markup=False, soft_wrap=True)

    def print_progress(self, text: str) -> None:
        """Print a line with the time since the start."""
        self.console.print(f"[dim]{time.monotonic() - self.started:6.1f} s[/]  {text}")

    async def load_documents(self, url: str) -> LoadResult:
        """Return the result of the load. Raises Error if not all documents can be loaded."""
        from penstock.client.bucket import connect

        done, started = LoadResult(), time.monotonic()
        async with connect(url) as bucket:
            with self.open_documents() as documents:
                await load_documents(bucket, self.report_loading(documents, done), done, self.report_bad_line)
        done.seconds = time.monotonic() - started
        if done.stopped_at_line is not None or not done.loaded:
            raise Error(f"{self.plan.file} gave {done}; expected a file whose lines can all be loaded")
        return done

    @property
    def table(self) -> str:
        """The name of the typed table."""
        return "beers" if self.plan.file is None else "documents"

    @contextmanager
    def open_documents(self) -> Iterator[Iterable[LoadedDocument | BadLine]]:
        """Yield the documents of the file, or samples."""
        if self.plan.file is None:
            made = make_samples(self.plan.count, _SEED)
            yield (LoadedDocument(key.encode(), encode_compact_json(document)) for key, document in made)
            return
        with open_input(self.plan.file) as source:
            yield read_documents(LineReader(source, self.plan.file), self.plan.key, self.plan.value)

    def report_loading(
        self, documents: Iterable[LoadedDocument | BadLine], done: LoadResult
    ) -> Iterator[LoadedDocument | BadLine]:
        """Yield the documents, and print once a second how many were loaded."""
        last_report = time.monotonic()
        for document in documents:
            self.check()
            if time.monotonic() - last_report > 1:
                last_report = time.monotonic()
                self.print_progress(f"{done.loaded:,} documents loaded")
            yield document

    def report_bad_line(self, bad: BadLine) -> bool:
        """Print why a line cannot be loaded.

        Returns:
            False: the load ends there.
        """
        warn(f"{self.plan.file} line {bad.line}: {bad.reason}")
        return False

    def run_pipeline(self, url: str, spark: SparkSession) -> SourceProgress:
        """Run the pipeline, and change documents after its first batch.

        The pipeline stops when the changes have ended and are in the tables.

        Args:
            url: the bucket.
            spark: the session.

        Returns:
            The last progress of the pipeline.
        """
        from penstock.client.blocking import LoopThread
        from penstock.spark.dependents.kinds.table_definition import TableDefinition
        from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
        from penstock.spark.pipeline.run.pipeline_run import run_pipeline

        finish = threading.Event()
        changing: list[Future[None]] = []
        with LoopThread("penstock-workload") as loop:

            def report(progress: SourceProgress) -> None:
                self.check()
                if not progress.rows:
                    return
                self.print_progress(_format_progress(progress, self.tally))
                if not changing:
                    changing.append(loop.start(self.change_documents(url)))
                    changing[0].add_done_callback(lambda _: finish.set())

            table = TableDefinition(name=self.table, collection="_default", schema="infer", key="key STRING")
            definition = replace(define_bucket_pipeline(str(self.lake), url=url), dependents=(table,))
            (progress,) = run_pipeline(definition, spark=spark, report=report, finish=finish)
            changing[0].result(_STOP_SECONDS)
        return progress

    async def change_documents(self, url: str) -> None:
        """Change documents at random, for the time of the plan."""
        from penstock.client.bucket import connect

        async with connect(url) as bucket:
            workload = Workload(bucket, await read_live_keys(bucket), mix=ChangeMix(), rate=self.plan.rate, seed=_SEED)
            self.tally = workload.tally
            await workload.run(asyncio.Event(), seconds=self.plan.seconds)

    def print_summary(
        self, progress: SourceProgress, differences: list[str], documents: int, lake: LakeDirectory
    ) -> None:
        """Print some rows of the tables, and the result of the comparison."""
        from rich.text import Text

        for name in ("changelog", self.table):
            self.console.print()
            self.console.print(make_lake_table(lake, name, 5), soft_wrap=False)
        self.console.print()
        if self.tally.changes:
            self.console.print(f"[bold]Workload[/]   {self.tally}")
        self.console.print(
            f"[bold]Changelog[/]  {progress.changelog_rows:,} rows from {progress.batches} micro-batches"
        )
        for difference in differences[:5]:
            self.console.print(Text(make_printable(difference), style="red"))
        verdict = (
            f"[red]{len(differences):,} differences between the tables and the bucket[/]"
            if differences
            else f"[green]{documents:,} documents, equal to the bucket key by key (cas and value)[/]"
        )
        self.console.print(f"[bold]Tables[/]     {verdict}")
        self.console.print(f"[bold]Time[/]       {time.monotonic() - self.started:.0f} s")


@contextmanager
def open_session() -> Iterator[SparkSession]:
    """Yield a session of Spark on this machine, which is stopped at the end."""
    from penstock.spark.runtime.spark_session import local_session

    spark = local_session()
    try:
        yield spark
    finally:
        spark.stop()


def _query_plainly(table: DeltaTable, name: str, query: str) -> tuple[str, list[tuple[Any, ...]]]:
    """Return an engine without Spark, and the rows that it finds: DuckDB if it is installed."""
    if find_spec("duckdb"):  # no dependency, but a program that most readers of tables know
        with import_module("duckdb").connect() as engine:
            return "DuckDB", engine.register(name, table.to_pyarrow_dataset()).execute(query).fetchall()
    import pyarrow as pa
    from deltalake import QueryBuilder

    found = pa.table(QueryBuilder().register(name, table).execute(query).read_all())
    return "DataFusion", [tuple(line.values()) for line in found.to_pylist()]


def _format_cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "null" if value is None else str(value)


def _format_progress(progress: SourceProgress, tally: WorkloadTally) -> str:
    parts = [f"changelog {progress.rows:>7,} rows", f"lag {progress.lag or 0:>5,} seqnos"]
    if tally.changes:
        parts.append(f"{tally.changes:>6,} changes, {tally.rate:,.0f}/s")
    return "   ".join(parts)


async def compare_documents(url: str, lake: LakeDirectory) -> tuple[list[str], int]:
    """Compare the current table with the bucket.

    Returns:
        A sentence for each difference, and the number of documents in the bucket.
    """
    from penstock.client.bucket import connect
    from penstock.spark.lake.reading.lake_readers import read_documents
    from penstock.wire.columns.schema import unsigned64

    rows = read_documents(lake)
    table = {
        key: (unsigned64(cas), value)
        for key, cas, value in zip(*(rows[name].to_pylist() for name in ("key", "cas", "value")), strict=True)
    }
    async with connect(url) as bucket:
        held = await _read_bucket(bucket)
    differences = [
        f"{key!r}: bucket has {_describe_version(held.get(key))}, current has {_describe_version(table.get(key))}"
        for key in held.keys() | table.keys()
        if held.get(key) != table.get(key)
    ]
    if len(table) != rows.num_rows:
        differences.append(f"current has {rows.num_rows} rows of {len(table)} keys")
    return sorted(differences), len(held)


async def _read_bucket(bucket: Bucket) -> dict[bytes, tuple[int, bytes]]:
    keys = await read_live_keys(bucket)
    found = await bucket.get_many(keys)
    return {key: (document.cas, document.value) for key, document in zip(keys, found, strict=True) if document}


def _describe_version(held: tuple[int, bytes] | None) -> str:
    return "nothing" if held is None else f"cas {held[0]}, {len(held[1])} bytes"
