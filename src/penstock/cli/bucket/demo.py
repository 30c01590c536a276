"""`penstock demo`: documents, changes, a pipeline and its tables in one run, with a check that nothing was lost."""

from __future__ import annotations

import asyncio
import atexit
import json
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.base.app import Panel, app, format_examples
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.interrupt import run_interruptibly
from penstock.cli.base.json_lines import BadLine, LoadedDocument, encode_compact_json, open_input, read_documents
from penstock.cli.base.option_parameters import add_options
from penstock.cli.base.show import warn
from penstock.cli.base.text_tables import make_lake_table
from penstock.cli.bucket.load import LoadResult, load_documents
from penstock.cli.bucket.random_changes import ChangeMix, Workload, WorkloadTally, read_live_keys
from penstock.cli.bucket.samples import make_samples
from penstock.errors import Error
from penstock.options import POSITIVE, nonempty, number, option

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.client.bucket import Bucket
    from penstock.spark.lake.tables.directory import LakeDirectory
    from penstock.spark.pipeline.state.run_progress import SourceProgress

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_BUCKET = "demo"
_SEED = 7


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """The options of `penstock demo`."""

    file: str | None = option(
        nonempty(metavar="FILE"), "load this file of JSON lines instead of sample documents", default=None
    )
    key: str = option(nonempty(metavar="FIELD"), "field of FILE that holds the key", default="id")
    value: str | None = option(
        nonempty(metavar="FIELD"), "field of FILE that holds the document", default=None, shown="the whole object"
    )
    count: int = option(POSITIVE, "number of sample documents", default=10_000)
    rate: float = option(number(1, metavar="PER_SECOND"), "changes per second while Spark follows", default=300)
    seconds: float = option(number(1), "seconds for which documents are changed", default=20)
    lake: str | None = option(
        nonempty(metavar="DIR"), "keep the tables in this new directory", default=None, shown="removed at the end"
    )


@app.command(
    rich_help_panel=Panel.SPARK,
    epilog=format_examples("penstock demo", "penstock demo --file beer.jsonl --key id --value doc --lake ./lake"),
)
@add_options("chosen", DemoPlan)
def demo(*, chosen: dict[str, Any]) -> None:
    """Run a complete demonstration.

    Starts a node, loads documents, changes them, follows the bucket with Spark
    into two tables, and compares the result with the bucket key by key.

    The exit code is 0 only if the current table equals the bucket.
    """
    from rich.console import Console

    plan = DemoPlan(**chosen)
    with _open_directory(plan.lake) as place:
        console = Console(highlight=False, soft_wrap=True)
        if not run_interruptibly(lambda check: _DemoRun(plan, place, console, check).run()):
            raise typer.Exit(ExitCode.FAILURE)
        if plan.lake is not None:
            console.print(f"The tables are in {plan.lake}: penstock pipeline show {plan.lake} current", markup=False)


class _DemoRun:
    def __init__(self, plan: DemoPlan, lake: Path, console: Console, check: Callable[[], None]) -> None:
        self.plan = plan
        self.lake = lake
        self.console = console
        self.check = check
        self.started = time.monotonic()
        self.tally = WorkloadTally()

    def run(self) -> bool:
        """Return whether the current table equals the bucket."""
        from penstock.spark.lake.tables.directory import LakeDirectory

        with _start_node() as node:
            self.print_progress(f"[bold]Node[/] serving {node['url']}, process {node['pid']}")
            loaded = asyncio.run(self.load_documents(node["url"]))
            self.print_progress(f"[bold]Documents[/] {loaded}")
            progress = self.run_pipeline(node["url"])
            lake = LakeDirectory(self.lake)
            differences, documents = asyncio.run(compare_documents(node["url"], lake))
        self.print_summary(progress, differences, documents, lake)
        return not differences

    def print_progress(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.started:6.1f} s[/]  {text}")

    async def load_documents(self, url: str) -> LoadResult:
        from penstock.client.bucket import connect

        done, started = LoadResult(), time.monotonic()
        async with connect(url) as bucket:
            with self.open_documents() as documents:
                await load_documents(bucket, self.report_loading(documents, done), done, self.report_bad_line)
        done.seconds = time.monotonic() - started
        if done.stopped_at_line is not None or not done.loaded:
            raise Error(f"{self.plan.file} gave {done}; expected a file whose lines can all be loaded")
        return done

    @contextmanager
    def open_documents(self) -> Iterator[Iterable[LoadedDocument | BadLine]]:
        if self.plan.file is None:
            made = make_samples(self.plan.count, _SEED)
            yield (LoadedDocument(key.encode(), encode_compact_json(document)) for key, document in made)
            return
        with open_input(self.plan.file) as source:
            yield read_documents(source, self.plan.key, self.plan.value)

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
        warn(f"{self.plan.file} line {bad.line}: {bad.reason}")
        return False

    def run_pipeline(self, url: str) -> SourceProgress:
        """Run the pipeline, and change documents after its first batch.

        The pipeline stops when the changes have ended and are in the tables.

        Returns:
            The last progress of the pipeline.
        """
        from penstock.client.blocking import LoopThread
        from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
        from penstock.spark.pipeline.run.pipeline_run import run_pipeline

        finish = threading.Event()
        changing: list[Future[None]] = []
        self.print_progress("[bold]Spark[/] starting a query that follows the bucket")
        with LoopThread("penstock-workload") as loop:

            def report(progress: SourceProgress) -> None:
                self.check()
                if not progress.rows:
                    return
                self.print_progress(_format_progress(progress, self.tally))
                if not changing:
                    changing.append(loop.start(self.change_documents(url)))
                    changing[0].add_done_callback(lambda _: finish.set())

            (progress,) = run_pipeline(define_bucket_pipeline(str(self.lake), url=url), report=report, finish=finish)
            changing[0].result(_STOP_SECONDS)
        return progress

    async def change_documents(self, url: str) -> None:
        from penstock.client.bucket import connect

        async with connect(url) as bucket:
            workload = Workload(bucket, await read_live_keys(bucket), mix=ChangeMix(), rate=self.plan.rate, seed=_SEED)
            self.tally = workload.tally
            await workload.run(asyncio.Event(), seconds=self.plan.seconds)

    def print_summary(
        self, progress: SourceProgress, differences: list[str], documents: int, lake: LakeDirectory
    ) -> None:
        for name in ("changelog", "current"):
            self.console.print()
            self.console.print(make_lake_table(lake, name, 5), soft_wrap=False)
        self.console.print()
        self.console.print(f"[bold]Workload[/]   {self.tally}")
        self.console.print(
            f"[bold]Changelog[/]  {progress.changelog_rows:,} rows from {progress.batches} micro-batches"
        )
        for difference in differences[:5]:
            self.console.print(f"[red]{difference}[/]")
        verdict = (
            f"[red]{len(differences):,} differences between the current table and the bucket[/]"
            if differences
            else f"[green]{documents:,} documents, equal to the bucket key by key (cas and value)[/]"
        )
        self.console.print(f"[bold]Current[/]    {verdict}")
        self.console.print(f"[bold]Time[/]       {time.monotonic() - self.started:.0f} s")


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


@contextmanager
def _start_node() -> Iterator[dict[str, Any]]:
    """Run a node in its own process.

    Yields:
        The JSON object that the node prints at its start.
    """
    command = [sys.executable, "-m", "penstock", "serve", "--json", "--port", "0", "--bucket", _BUCKET]
    # A new session keeps Ctrl-C away from the node: the demo stops it last.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        atexit.register(process.kill)
        try:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
            line = process.stdout.readline() if ready else ""
            if not line:
                raise Error(f"the node did not start within {_START_SECONDS:g} s")
            yield json.loads(line)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            atexit.unregister(process.kill)


@contextmanager
def _open_directory(lake: str | None) -> Iterator[Path]:
    if lake is not None:
        if Path(lake).exists():
            raise Error(f"{lake} exists; --lake expects a new directory")
        yield Path(lake)
        return
    place = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield place / "lake"
    finally:
        shutil.rmtree(place, ignore_errors=True)
