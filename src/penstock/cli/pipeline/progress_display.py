"""Where a run stands: lines that stay in place on a terminal, a line for each change elsewhere, JSON for programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

from penstock.cli.base.show import json_line
from penstock.client.topology.missing import ranges_of

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from penstock.spark.pipeline.state.run_progress import DependentProgress, SourceProgress

__all__ = ["Display", "as_json_object", "end", "size"]


class Display:
    """Shows each progress that is worth it. A context manager: leaving it leaves the last lines standing."""

    def __init__(self, *, as_json: bool, on_terminal: bool) -> None:
        self._as_json = as_json
        self._last: dict[str | None, SourceProgress] = {}
        self._live: Live | None = None
        if on_terminal and not as_json:
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

    def say(self, text: str) -> None:
        """Print a line for people."""
        if not self._as_json:
            print(text, flush=True)

    def show(self, progress: SourceProgress) -> None:
        """Show where one source's tables stand, unless that was shown last."""
        before = self._last.get(progress.source)
        if not progress.batches or (before is not None and _same(before, progress)):
            return
        self._last[progress.source] = progress
        if self._live is not None:
            self._live.start()
            self._live.update(_table(self._last.values()), refresh=True)
        elif self._as_json:
            print(json_line(as_json_object(progress)), flush=True)
        else:
            print(_line(progress), flush=True)


def _same(before: SourceProgress, now: SourceProgress) -> bool:
    """Tell whether nothing has happened between two."""
    return all(
        getattr(before, name) == getattr(now, name)
        for name in (
            *("rows", "lag", "batches", "version", "dependents", "rollbacks", "schema_changes", "missing_vbuckets"),
        )
    )


def as_json_object(progress: SourceProgress) -> dict[str, Any]:
    """Return a progress as --json prints it, `dependents` by name."""
    said = asdict(progress)
    dependents = said.pop("dependents")
    return {**said, "merged": progress.merged, "dependents": {each.pop("name"): each for each in dependents}}


def _line(progress: SourceProgress) -> str:
    name = "" if progress.source is None else f"{progress.source:<12} "
    rows = f"{name}{progress.rows:>12,} rows written {progress.rows_per_second:>9,.0f} rows/s"
    parts = [rows, f"lag {_lag(progress)}"]
    parts += [_dependents(each) for each in progress.dependents if each.error or each.pending]
    if progress.rollbacks:
        parts.append(f"{progress.rollbacks:,} vbuckets rolled back")
    parts += [f"values have {change}" for change in progress.schema_changes[-1:]]
    if progress.missing_vbuckets:
        parts.append(f"vbuckets {ranges_of(progress.missing_vbuckets)} are not served")
    return "   ".join(parts)


def _lag(progress: SourceProgress) -> str:
    return "unknown" if progress.lag is None else f"{progress.lag:,} seqnos"


def _dependents(each: DependentProgress) -> str:
    return f"{each.name} {each.error}" if each.error else f"{each.name} {each.pending:,} pending"


def _table(sources: Any) -> Table:
    """Return all sources and their dependents, a line each."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("", "rows", "rows/s", "bytes/s", "lag", "rolled back", ""):
        table.add_column(head, justify="right" if head else "left")
    for progress in sources:
        table.add_row(
            progress.source or "changelog",
            f"{progress.rows:,}",
            f"{progress.rows_per_second:,.0f}",
            size(progress.bytes_per_second),
            _lag(progress),
            f"{progress.rollbacks:,}",
            "; ".join(progress.schema_changes[-2:]),
        )
        for each in progress.dependents:
            table.add_row(f"  {each.name}", f"{each.taken:,}", "", "", f"{each.pending:,} rows", "", each.error or "")
    return table


def size(octets: float) -> str:
    """Return bytes as people read them."""
    if octets < 1000:
        return f"{octets:.0f} B"
    scale = min(4, int(math.log10(octets) // 3))
    return f"{octets / 1000**scale:.3g} {' kMGT'[scale]}B"


def end(sources: tuple[SourceProgress, ...], *, as_json: bool) -> None:
    """Say what a run has done. Exits with 1 where something is behind because it failed."""
    for progress in sources:
        if not as_json:
            name = "" if progress.source is None else f"{progress.source}: "
            print(f"{name}{progress.rows:,} rows written; the changelog has {progress.changelog_rows:,}.")
            for each in progress.dependents:
                if each.error:
                    print(f"{name}{each.kind} {each.name} is {each.pending:,} rows behind: {each.error}")
    if any(each.error for progress in sources for each in progress.dependents):
        raise typer.Exit(1)
