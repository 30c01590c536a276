"""`penstock demo`: the whole way once, from documents to tables, and a check that nothing was lost on it."""

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

from penstock.cli.base.app import Panel, app, examples
from penstock.cli.base.interrupt import interruptible
from penstock.cli.base.json_lines import BadLine, LoadedDocument, compact, open_input, read_documents
from penstock.cli.base.option_parameters import takes_options
from penstock.cli.base.text_tables import table_of
from penstock.cli.bucket.load import Loaded, load_documents
from penstock.cli.bucket.random_changes import Mix, Tally, Workload, live_keys
from penstock.cli.bucket.samples import sample_documents
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
    """What the demo does."""

    file: str | None = option(nonempty(metavar="FILE"), "your JSON lines instead of made-up documents", default=None)
    key: str = option(nonempty(metavar="FIELD"), "the field of FILE with the key", default="id")
    value: str | None = option(
        nonempty(metavar="FIELD"), "the field of FILE that is the document", default=None, shown="the whole object"
    )
    count: int = option(POSITIVE, "documents to make up", default=10_000)
    rate: float = option(number(1, metavar="PER_SECOND"), "changes a second while Spark follows", default=300)
    seconds: float = option(number(1), "how long the documents change", default=20)
    lake: str | None = option(
        nonempty(metavar="DIR"), "keep the tables here; it must not exist", default=None, shown="removed at the end"
    )


@app.command(
    rich_help_panel=Panel.SPARK,
    epilog=examples("penstock demo", "penstock demo --file beer.jsonl --key id --value doc --lake ./lake"),
)
@takes_options("chosen", DemoPlan)
def demo(*, chosen: dict[str, Any]) -> None:
    """Run it all: a node, documents, changes, a Spark query into two tables, and a comparison key by key.

    Exit code 0 only if the current table equals the bucket.
    """
    from rich.console import Console

    plan = DemoPlan(**chosen)
    with _directory(plan.lake) as place:
        console = Console(highlight=False, soft_wrap=True)
        if not interruptible(lambda check: _Demo(plan, place, console, check).run()):
            raise typer.Exit(1)
        if plan.lake is not None:
            print(f"The tables are in {plan.lake}: penstock pipeline show {plan.lake} current")


class _Demo:
    def __init__(self, plan: DemoPlan, lake: Path, console: Console, check: Callable[[], None]) -> None:
        self.plan = plan
        self.lake = lake
        self.console = console
        self.check = check
        self.started = time.monotonic()
        self.tally = Tally()

    def run(self) -> bool:
        """Return whether the current table equals the bucket."""
        from penstock.spark.lake.tables.directory import LakeDirectory

        with _node() as node:
            self.say(f"[bold]Node[/] serving {node['url']}, process {node['pid']}")
            loaded = asyncio.run(self.load(node["url"]))
            self.say(f"[bold]Documents[/] {loaded}")
            progress = self.follow(node["url"])
            lake = LakeDirectory(self.lake)
            differences, documents = asyncio.run(compare(node["url"], lake))
        self.summary(progress, differences, documents, lake)
        return not differences

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.started:6.1f} s[/]  {text}")

    async def load(self, url: str) -> Loaded:
        from penstock.client.bucket import connect

        done, started = Loaded(), time.monotonic()
        async with connect(url) as bucket:
            with self.documents() as documents:
                await load_documents(bucket, self.counted(documents, done), done, self.report_bad_line)
        done.seconds = time.monotonic() - started
        if done.stopped_at_line is not None or not done.loaded:
            raise Error(f"{self.plan.file} gave {done}; the demo needs documents it can load")
        return done

    @contextmanager
    def documents(self) -> Iterator[Iterable[LoadedDocument | BadLine]]:
        if self.plan.file is None:
            made = sample_documents(self.plan.count, _SEED)
            yield (LoadedDocument(key.encode(), compact(document)) for key, document in made)
            return
        with open_input(self.plan.file) as source:
            yield read_documents(source, self.plan.key, self.plan.value)

    def counted(
        self, documents: Iterable[LoadedDocument | BadLine], done: Loaded
    ) -> Iterator[LoadedDocument | BadLine]:
        """Pass documents on and say now and then how many there were."""
        said = time.monotonic()
        for document in documents:
            self.check()
            if time.monotonic() - said > 1:
                said = time.monotonic()
                self.say(f"{done.loaded:,} documents loaded")
            yield document

    def report_bad_line(self, bad: BadLine) -> bool:
        print(f"penstock: {self.plan.file} line {bad.line}: {bad.reason}", file=sys.stderr)
        return False

    def follow(self, url: str) -> SourceProgress:
        """Run the pipeline; once its first batch is written, change documents for a while, then let it catch up."""
        from penstock.client.blocking import LoopThread
        from penstock.spark.pipeline.definition.definition import of_one
        from penstock.spark.pipeline.run.pipeline_run import run

        finish = threading.Event()
        changing: list[Future[None]] = []
        self.say("[bold]Spark[/] starting a query that follows the bucket")
        with LoopThread("penstock-workload") as loop:

            def report(progress: SourceProgress) -> None:
                self.check()
                if not progress.rows:
                    return
                self.say(_progress_line(progress, self.tally))
                if not changing:
                    changing.append(loop.start(self.change(url)))
                    changing[0].add_done_callback(lambda _: finish.set())

            (progress,) = run(of_one(str(self.lake), url=url), report=report, finish=finish)
            changing[0].result(_STOP_SECONDS)
        return progress

    async def change(self, url: str) -> None:
        from penstock.client.bucket import connect

        async with connect(url) as bucket:
            workload = Workload(bucket, await live_keys(bucket), mix=Mix(), rate=self.plan.rate, seed=_SEED)
            self.tally = workload.tally
            await workload.run(asyncio.Event(), seconds=self.plan.seconds)

    def summary(self, progress: SourceProgress, differences: list[str], documents: int, lake: LakeDirectory) -> None:
        for name in ("changelog", "current"):
            self.console.print()
            self.console.print(table_of(lake, name, 5), soft_wrap=False)
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


def _progress_line(progress: SourceProgress, tally: Tally) -> str:
    parts = [f"changelog {progress.rows:>7,} rows", f"lag {progress.lag or 0:>5,} seqnos"]
    if tally.changes:
        parts.append(f"{tally.changes:>6,} changes, {tally.rate:,.0f}/s")
    return "   ".join(parts)


async def compare(url: str, lake: LakeDirectory) -> tuple[list[str], int]:
    """Return a sentence for each difference between the current table and the bucket, and how many documents it has."""
    from penstock.client.bucket import connect
    from penstock.spark.lake.reading.lake_readers import documents
    from penstock.wire.columns.schema import unsigned64

    rows = documents(lake)
    table = {
        key: (unsigned64(cas), value)
        for key, cas, value in zip(*(rows[name].to_pylist() for name in ("key", "cas", "value")), strict=True)
    }
    async with connect(url) as bucket:
        held = await _held(bucket)
    differences = [
        f"{key!r}: bucket has {_brief(held.get(key))}, current has {_brief(table.get(key))}"
        for key in held.keys() | table.keys()
        if held.get(key) != table.get(key)
    ]
    if len(table) != rows.num_rows:
        differences.append(f"current has {rows.num_rows} rows of {len(table)} keys")
    return sorted(differences), len(held)


async def _held(bucket: Bucket) -> dict[bytes, tuple[int, bytes]]:
    keys = await live_keys(bucket)
    found = await bucket.get_many(keys)
    return {key: (document.cas, document.value) for key, document in zip(keys, found, strict=True) if document}


def _brief(held: tuple[int, bytes] | None) -> str:
    return "nothing" if held is None else f"cas {held[0]}, {len(held[1])} bytes"


@contextmanager
def _node() -> Iterator[dict[str, Any]]:
    """Run a node as a process of its own and yield what it says of itself."""
    command = [sys.executable, "-m", "penstock", "serve", "--json", "--port", "0", "--bucket", _BUCKET]
    # In a session of its own: Ctrl-C is for the demo, which stops its node last.
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
def _directory(lake: str | None) -> Iterator[Path]:
    if lake is not None:
        if Path(lake).exists():
            raise Error(f"{lake} exists; --lake takes a directory that the demo makes")
        yield Path(lake)
        return
    place = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield place / "lake"
    finally:
        shutil.rmtree(place, ignore_errors=True)
