"""The progress of a long transfer: a bar with rate and time left on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from penstock.client.dumps.bucket_dump import TransferProgress

__all__ = ["show_transfer"]

_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 10.0
"""Seconds between lines where standard error is no terminal."""


@asynccontextmanager
async def show_transfer(
    name: str, read_progress: Callable[[], TransferProgress], *, is_quiet: bool
) -> AsyncIterator[None]:
    """Show the progress of a transfer on standard error, while the block runs.

    Args:
        name: the file of the transfer.
        read_progress: returns the progress.
        is_quiet: whether to show nothing.
    """
    if is_quiet:
        yield
        return
    showing = asyncio.create_task(
        _refresh_bar(name, read_progress) if sys.stderr.isatty() else _print_lines(name, read_progress)
    )
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _print_lines(name: str, read_progress: Callable[[], TransferProgress]) -> None:
    started = time.monotonic()
    while True:
        await asyncio.sleep(_LINE_SECONDS)
        rows, done, total = read_progress()
        seconds = time.monotonic() - started
        share = f"{100 * done / total:.0f} %, " if total else ""
        left = f", {seconds * (total - done) / done:.0f} s left" if done else ""
        print(f"{name}: {share}{rows} changes, {rows / seconds:,.0f}/s{left}", file=sys.stderr, flush=True)


async def _refresh_bar(name: str, read_progress: Callable[[], TransferProgress]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}")
    columns = (TextColumn(name), BarColumn(), TaskProgressColumn(), text, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task, started = bar.add_task("", total=None), time.monotonic()
        while True:
            _update_bar(bar, task, read_progress(), time.monotonic() - started)
            await asyncio.sleep(_REFRESH_SECONDS)


def _update_bar(bar: Progress, task: TaskID, progress: TransferProgress, seconds: float) -> None:
    rate = progress.rows / max(seconds, 0.001)
    description = f"{progress.rows} changes, {rate:,.0f}/s"
    bar.update(task, description=description, completed=progress.done, total=progress.total or None, refresh=True)
