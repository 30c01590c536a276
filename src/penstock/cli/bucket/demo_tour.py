"""`penstock demo --tour`: the main job as a walk, which loses a bucket on the way and sees its tables heal."""

from __future__ import annotations

import asyncio
import select
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock.cli.base.json_lines import BadLine, LoadedDocument
from penstock.cli.bucket.demo_node import DemoNode, run_demo_node
from penstock.cli.bucket.demo_run import DemoRun, compare_documents
from penstock.errors import Error

if TYPE_CHECKING:
    from penstock.spark.pipeline.state.run_progress import SourceProgress

_LEFT_OUT = 10
"""Every tenth document is missing after the loss."""
_LOOK_SECONDS = 0.2
_WAIT_SECONDS = 300.0
"""Limit of the wait for a state of the tables."""
_AWAY_SECONDS = 3600
"""Limit of the time without a node."""
_WIDTH = 78
_STEPS = 6


class TourRun(DemoRun):
    """A run that explains each step before it, and waits for Enter on a terminal.

    Attributes:
        waits: whether it waits for Enter.
    """

    waits = False
    _step = 0
    _has_lost_some = False

    def run(self) -> bool:
        """Return whether the current table equals the bucket."""
        from penstock.spark.lake.tables.directory import LakeDirectory

        with run_demo_node() as node:
            self.explain(
                "Load",
                f"A node runs in process {node.pid}. Its bucket is empty, and in memory only. Now it gets documents.",
                f"Look at {node.dashboard}: vbuckets that grow light up.",
            )
            self.print_progress(f"[bold]Documents[/] {asyncio.run(self.load_documents(node.url))}")
            self.explain(
                "Follow",
                "Spark starts, and a streaming query follows the bucket into tables. The changelog has every change."
                " The typed table has the newest version of each document, with a column for each field.",
            )
            with _FollowingPipeline(self.lake, node.url, self.check) as pipeline:
                progress = pipeline.wait_for(lambda found: found.changelog_rows > 0 and found.lag == 0)
                self.print_progress(f"[bold]Tables[/] {progress.changelog_rows:,} rows, as far as the bucket")
                self.lose_documents(node)
                progress = pipeline.wait_for(lambda found: found.rollbacks > 0 and found.lag == 0)
                self.print_progress(f"[bold]Rollback[/] of {progress.rollbacks:,} vbuckets, as rows of the changelog")
                self.explain(
                    "See the table heal",
                    "A rollback deletes no row of the changelog. It makes older rows of its vbucket void. The typed"
                    " table follows the new history, and drops the documents that were lost.",
                )
                progress = pipeline.finish()
            self.explain(
                "Compare",
                "Each document of the bucket is compared with its row, by cas and value.",
            )
            lake = LakeDirectory(self.lake)
            differences, documents = asyncio.run(compare_documents(node.url, lake))
        self.print_summary(progress, differences, documents, lake)
        return not differences

    def lose_documents(self, node: DemoNode) -> None:
        """Kill the node, start it again, and load most of the documents."""
        self.explain(
            "Kill the node",
            "SIGKILL ends the node while the query runs. With it all documents are lost.",
            "The dashboard reports that the node does not answer. The query waits for it.",
        )
        node.kill()
        self.print_progress("[bold]Node[/] killed")
        self.explain(
            "Watch the rollback",
            "The node starts again at the same place, with an empty bucket. It gets the documents once more,"
            f" without every {_LEFT_OUT}th. The tables have seqnos of a history that the bucket does not know."
            " So each vbucket rolls back to the last common point: to zero.",
            "On the dashboard all vbuckets have new vbuuids in their failover logs.",
        )
        node.start()
        self._has_lost_some = True
        self.print_progress(f"[bold]Node[/] serving {node.url} again, process {node.pid}")
        self.print_progress(f"[bold]Documents[/] {asyncio.run(self.load_documents(node.url))}")

    @property
    def table(self) -> str:
        """The name of the typed table, which no file declares."""
        return "default"

    @contextmanager
    def open_documents(self) -> Iterator[Iterable[LoadedDocument | BadLine]]:
        """Yield the documents, without those that are missing after the loss."""
        with super().open_documents() as documents:
            yield (
                document
                for number, document in enumerate(documents, 1)
                if not self._has_lost_some or number % _LEFT_OUT
            )

    def explain(self, title: str, *paragraphs: str) -> None:
        """Print the next step, and wait for Enter."""
        self._step += 1
        self.console.print(f"\n[bold]Step {self._step} of {_STEPS}: {title}[/]")
        for paragraph in paragraphs:
            self.console.print(textwrap.fill(paragraph, _WIDTH, break_long_words=False), markup=False)
        if self.waits:
            self.console.print("[dim]Enter goes on, Ctrl-C ends the tour.[/]")
            while not select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
                self.check()
            if not sys.stdin.readline():  # the terminal was closed
                self.waits = False
        self.console.print()


class _FollowingPipeline:
    """A pipeline that runs on a thread of its own while the tour goes on. A context manager: at its end the run ends.

    Args:
        lake: the directory of the tables.
        url: the bucket. Another bucket of the same name may replace it.
        check: raises an exception if the user interrupts the tour.
    """

    def __init__(self, lake: Path, url: str, check: Callable[[], None]) -> None:
        self._lake = lake
        self._url = url
        self._check = check
        self._changed = threading.Condition()
        self._progress: SourceProgress | None = None
        self._finish = threading.Event()
        self._aborted = False
        self._pool = ThreadPoolExecutor(1, "penstock-tour")
        self._ended: Future[tuple[SourceProgress, ...]] | None = None

    def __enter__(self) -> Self:
        self._ended = self._pool.submit(self._run)
        return self

    def __exit__(self, *error: object) -> None:
        self._aborted = True
        self._pool.shutdown()

    def _run(self) -> tuple[SourceProgress, ...]:
        from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
        from penstock.spark.pipeline.run.pipeline_run import run_pipeline

        # The node is away for as long as the user reads.
        given = {"url": self._url, "recreated_bucket": "rollback", "retry_seconds": str(_AWAY_SECONDS)}
        definition = define_bucket_pipeline(str(self._lake), **given)
        return run_pipeline(definition, report=self._report, finish=self._finish)

    def _report(self, progress: SourceProgress) -> None:
        if self._aborted:
            raise KeyboardInterrupt
        with self._changed:
            self._progress = progress
            self._changed.notify_all()

    def wait_for(self, is_reached: Callable[[SourceProgress], bool]) -> SourceProgress:
        """Return the first progress that meets a condition.

        Raises:
            Error: the run ended, or took too long.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            with self._changed:
                self._changed.wait(_LOOK_SECONDS)
                found = self._progress
            if found is not None and is_reached(found):
                return found
            self._check()
            assert self._ended is not None
            if self._ended.done():
                self._ended.result()
                raise Error("the pipeline ended; expected it to follow the bucket")
            if time.monotonic() > deadline:
                raise Error(f"the tables did not follow the bucket within {_WAIT_SECONDS:g} s")

    def finish(self) -> SourceProgress:
        """Let the run end once the tables have all changes.

        Returns:
            Its last progress.
        """
        self._finish.set()
        assert self._ended is not None
        while not self._ended.done():
            with self._changed:
                self._changed.wait(_LOOK_SECONDS)
            self._check()
        (progress,) = self._ended.result()
        return progress
