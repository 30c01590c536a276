"""Progress on standard error: a bar or a status on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from penstock.cli.base.logs import log_as_json
from penstock.cli.base.show import print_text
from penstock.names import make_printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from penstock.client.dumps.bucket_dump import TransferProgress

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]

_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 10.0
"""Seconds between lines where standard error cannot be redrawn."""


def can_redraw(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


@contextmanager
def show_status(text: str, *, is_quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show the status of long work, with its duration, while the block runs.

    The block may keep its thread busy: another thread shows the status.

    Args:
        text: the first status.
        is_quiet: whether to show nothing.

    Yields:
        A function that replaces the status.
    """
    if is_quiet:
        yield lambda text: None
    elif can_redraw(sys.stderr):
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        status = TextColumn("{task.description}", markup=False, table_column=Column())  # wraps, unlike its default
        columns = (SpinnerColumn(), status, TimeElapsedColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as shown:
            task = shown.add_task(make_printable(text), total=None)
            yield lambda text: shown.update(task, description=make_printable(text))
    else:
        yield from _print_status(text)


def _print_status(text: str) -> Iterator[Callable[[str], None]]:
    latest, ended, started = [text], threading.Event(), time.monotonic()

    def repeat() -> None:
        while not ended.wait(_LINE_SECONDS):
            _print_line(f"{latest[0]} ({time.monotonic() - started:.0f} s)")

    def update(text: str) -> None:
        latest[0] = text

    thread = threading.Thread(target=repeat, name="penstock-status", daemon=True)
    thread.start()
    try:
        yield update
    finally:
        ended.set()
        thread.join()


@asynccontextmanager
async def show_transfer(
    name: str, read_progress: Callable[[], TransferProgress], *, is_quiet: bool, noun: str = "changes"
) -> AsyncIterator[None]:
    """Show the progress of a transfer, with its rate and the time left, while the block runs.

    Args:
        name: the file of the transfer.
        read_progress: returns the progress.
        is_quiet: whether to show nothing.
        noun: the things that are transferred.
    """
    if is_quiet:
        yield
        return
    show = _refresh_bar if can_redraw(sys.stderr) else _print_lines
    showing = asyncio.create_task(show(name, read_progress, noun))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _print_lines(name: str, read_progress: Callable[[], TransferProgress], noun: str) -> None:
    started = time.monotonic()
    while True:
        await asyncio.sleep(_LINE_SECONDS)
        rows, done, total = read_progress()
        seconds = time.monotonic() - started
        share = f"{100 * done / total:.0f} %, " if total else ""
        left = f", {seconds * (total - done) / done:.0f} s left" if done and total else ""
        _print_line(f"{name}: {share}{rows:,} {noun}, {rows / seconds:,.0f}/s{left}")


def _print_line(line: str) -> None:
    """Print a line, or log it as JSON if the log is JSON."""
    if not log_as_json(line, logging.INFO):
        print_text(line, on_stderr=True)


async def _refresh_bar(name: str, read_progress: Callable[[], TransferProgress], noun: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.description}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False
    ) as bar:
        task, started = bar.add_task("", total=None, name=make_printable(name)), time.monotonic()
        while True:
            _update_bar(bar, task, read_progress(), time.monotonic() - started, noun)
            await asyncio.sleep(_REFRESH_SECONDS)


def _update_bar(bar: Progress, task: TaskID, progress: TransferProgress, seconds: float, noun: str) -> None:
    rate = progress.rows / max(seconds, 0.001)
    description = f"{progress.rows:,} {noun}, {rate:,.0f}/s"
    bar.update(task, description=description, completed=progress.done, total=progress.total or None, refresh=True)
