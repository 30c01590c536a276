"""The progress of a run: a table that is updated on a terminal, a line for each change elsewhere, JSON for programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.show import format_json_line, print_text
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.names import make_printable

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from penstock.spark.pipeline.state.run_progress import DependentProgress, SourceProgress

SHOWN_WAITING = 5
"""Tables and sinks with pending changes in a line."""
SHOWN_TABLES = 20
"""Typed tables that are shown, beside those with an error."""


class ProgressDisplay:
    """Prints the progress of a run whenever it changes.

    A context manager: at its end the last lines stay on the terminal.
    """

    def __init__(self, *, as_json: bool, on_terminal: bool, is_quiet: bool = False) -> None:
        self._as_json = as_json
        self._is_quiet = is_quiet
        self._last: dict[str | None, SourceProgress] = {}
        self._live: Live | None = None
        if on_terminal and not as_json and not is_quiet:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(highlight=False), auto_refresh=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def print_line(self, text: str) -> None:
        """Print a line, unless the output is JSON or the display is quiet."""
        if not self._as_json and not self._is_quiet:
            print_text(text)

    def show(self, progress: SourceProgress) -> None:
        """Print the progress of one source, unless nothing changed since it was printed last."""
        before = self._last.get(progress.source)
        if (
            (self._is_quiet and not self._as_json)
            or not progress.batches
            or (before is not None and _is_unchanged(before, progress))
        ):
            return
        self._last[progress.source] = progress
        if self._live is not None:
            self._live.start()
            self._live.update(_make_progress_table(self._last.values()), refresh=True)
        elif self._as_json:
            print_text(format_json_line(make_progress_object(progress)))
        else:
            print_text(_format_line(progress))


def _is_unchanged(before: SourceProgress, now: SourceProgress) -> bool:
    """Return whether two progresses of a source differ in nothing that is printed."""
    return all(
        getattr(before, name) == getattr(now, name)
        for name in (
            *("rows", "lag", "batches", "version", "dependents", "rollbacks", "schema_changes", "missing_vbuckets"),
        )
    )


def make_progress_object(progress: SourceProgress) -> dict[str, Any]:
    """Return the JSON object of a progress, with `dependents` by name."""
    shown = asdict(progress)
    dependents = shown.pop("dependents")
    return {**shown, "merged": progress.merged, "dependents": {each.pop("name"): each for each in dependents}}


def _format_line(progress: SourceProgress) -> str:
    name = "" if progress.source is None else f"{progress.source:<12} "
    rows = f"{name}{progress.rows:>12,} rows written {progress.rows_per_second:>9,.0f} rows/s"
    parts = [rows, f"lag {_format_lag(progress)}"]
    waiting = [_format_dependent(each) for each in progress.dependents if each.error or each.pending]
    parts += _shorten(waiting, SHOWN_WAITING)
    if progress.rollbacks:
        parts.append(f"{progress.rollbacks:,} vbuckets rolled back")
    parts += [f"values have {change}" for change in progress.schema_changes[-1:]]
    if progress.missing_vbuckets:
        parts.append(f"vbuckets {format_ranges(progress.missing_vbuckets)} are not served")
    return "   ".join(parts)


def _format_lag(progress: SourceProgress) -> str:
    return "unknown" if progress.lag is None else f"{progress.lag:,} seqnos"


def _format_dependent(each: DependentProgress) -> str:
    return f"{each.name} {each.error}" if each.error else f"{each.name} {each.pending:,} pending"


def _make_progress_table(sources: Any) -> Table:
    """Return a table with a line for each source and each dependent."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for head in ("", "rows", "written", "rows/s", "bytes/s", "lag", "rolled back", ""):
        table.add_column(head, justify="right" if head else "left")
    for progress in sources:
        table.add_row(
            progress.source or "changelog",
            f"{progress.changelog_rows:,}",
            f"{progress.rows:,}",
            f"{progress.rows_per_second:,.0f}",
            format_size(progress.bytes_per_second),
            _format_lag(progress),
            f"{progress.rollbacks:,}",
            Text(make_printable("; ".join(progress.schema_changes[-2:]))),
        )
        tables = [each for each in progress.dependents if each.kind == "table"]
        hidden = [each for each in tables if not each.error][SHOWN_TABLES:]
        for each in (each for each in progress.dependents if each not in hidden):
            rows = "" if each.rows is None else f"{each.rows:,}"
            applied, pending = f"{each.applied_rows:,}", f"{each.pending:,} rows"
            error = Text(make_printable(each.error or ""))
            table.add_row(f"  {each.name}", rows, applied, "", "", pending, "", error)
        if hidden:
            table.add_row(f"  {len(hidden):,} more tables", f"{sum(each.rows or 0 for each in hidden):,}")
    return table


def _shorten(names: list[str], most: int) -> list[str]:
    """Return at most `most` names, and the number of the others."""
    return names if len(names) <= most else [*names[:most], f"and {len(names) - most:,} more"]


def format_size(octets: float) -> str:
    """Return a number of bytes with a decimal unit, such as `1.5 MB`."""
    if octets < 1000:
        return f"{octets:.0f} B"
    scale = min(4, int(math.log10(octets) // 3))
    return f"{octets / 1000**scale:.3g} {' kMGT'[scale]}B"


def print_result(sources: tuple[SourceProgress, ...], *, as_json: bool) -> None:
    """Print the result of a run.

    Raises:
        typer.Exit: with code 1, if a dependent failed.
    """
    for progress in sources:
        if not as_json:
            name = "" if progress.source is None else f"{progress.source}: "
            print_text(f"{name}{progress.rows:,} rows written; the changelog has {progress.changelog_rows:,}.")
            tables = [f"{each.name} ({each.rows or 0:,} rows)" for each in progress.dependents if each.kind == "table"]
            if tables:
                print_text(f"{name}Tables: {', '.join(_shorten(tables, SHOWN_TABLES))}.")
            for each in progress.dependents:
                if each.error:
                    print_text(f"{name}{each.kind} {each.name} is {each.pending:,} rows behind: {each.error}")
    if any(each.error for progress in sources for each in progress.dependents):
        raise typer.Exit(ExitCode.FAILURE)
