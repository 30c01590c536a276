"""The tables of a lake in the text of `penstock pipeline status`: one line each, then the values that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.cli.pipeline.progress_display import SHOWN_TABLES, format_size

if TYPE_CHECKING:
    from penstock.spark.pipeline.state.lake_status import DependentStatus, LakeStatus
    from penstock.spark.tables.misfits import RestCount

MOST_LINES = 20
"""Fields with values that do not fit, of all tables together; --json has all of them."""
WIDTH = 80
"""Columns of a terminal. Names of tables are never cut."""
LONGEST_FIELD, LONGEST_TYPE = 30, 20
"""Characters of a field and of its types, so that most keys fit behind them."""

Cells = Sequence[str]


def list_table_lines(found: LakeStatus) -> list[str]:
    """Return lines about the tables and dependents of a lake."""
    removed = {(each.kind, each.name) for each in found.removed}
    kept = [each for each in found.dependents if (each.kind, each.name) not in removed]
    # Of many tables, those without pending changes and misfits are only counted.
    quiet = [each for each in kept if each.rest is not None and not (each.pending or each.error or each.rest.rows)]
    counted = quiet[SHOWN_TABLES:]
    tables = [each for each in kept if each not in counted]
    rows = [_list_cells(each) for each in tables]
    rows += [(each.name, each.kind, "", "", "", "", "no longer declared") for each in found.removed]
    if not rows:
        return []
    heads = ("table", "kind", "rows", "_rest", "size", "version", "state")
    lines = _align([heads, *rows], "<<>>>><")
    errors = [f"  {each.name}: {each.error}" for each in tables if each.error is not None]
    if counted:
        total = sum(each.size.rows or 0 for each in counted if each.size is not None)
        lines.append(f"  {len(counted):,} more tables of {total:,} rows are up to date; --json has each")
    if found.left_out is not None:
        lines.append(f"  without table: {found.left_out}")
    samples = [f"  {each.name}: {text}" for each in tables if (text := each.describe_sample()) is not None]
    return [*lines, *errors, *samples, *_list_misfits(tables)]


def _list_cells(table: DependentStatus) -> Cells:
    size, rest = table.size, table.rest
    counts = [None if size is None else size.rows, rest.rows if rest is not None and rest.rows else None]
    numbers = (
        *("" if count is None else f"{count:,}" for count in counts),
        "" if size is None else format_size(size.bytes),
    )
    is_there = table.version >= 0
    state = f"{table.pending:,} rows pending" if table.pending else "up to date" if is_there else "not there yet"
    return (table.name, table.kind, *numbers, f"{table.version:,}" if is_there else "", state)


def _list_misfits(tables: Iterable[DependentStatus]) -> Iterator[str]:
    """Yield lines about values that do not fit their column, the most frequent first."""
    rests = [(each.name, each.rest) for each in tables if each.rest is not None]
    for name, rest in rests:
        if rest.examined < rest.rows:
            yield f"  {name}: {rest.examined:,} of {rest.rows:,} rows with a _rest were examined"
    odd = [(name, each) for name, rest in rests for each in rest.misfits if each.is_conflict]
    odd.sort(key=lambda each: -each[1].values)
    if odd:
        heads = ("does not fit", "values", "found, expected", "document")
        lines = _align([heads, *(_list_misfit_cells(*each) for each in odd[:MOST_LINES])], "<><<")
        yield from map(_shorten, lines)
    if len(odd) > MOST_LINES:
        yield f"  {len(odd) - MOST_LINES:,} more; --json has all"


def _list_misfit_cells(name: str, misfit: RestCount) -> Cells:
    place = f"{name}.{misfit.field}" if misfit.field else name
    expected = f"{misfit.found}, {misfit.expected}" if misfit.expected is not None else misfit.reason
    place, expected = _shorten(place, LONGEST_FIELD), _shorten(expected, LONGEST_TYPE)
    return (place, f"{misfit.values:,}", expected, misfit.keys[0] if misfit.keys else "")


def _align(rows: Sequence[Cells], sides: str) -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(sides))]
    return [
        "  " + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]


def _shorten(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
