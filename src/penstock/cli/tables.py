"""A lake's tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.show import one_line

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.spark.lake import Lake

__all__ = ["read_rows", "table_of"]

_COLUMNS = {
    "current": ("key", "vbucket", "seqno", "rev_seqno", "cas", "value"),
    "changelog": ("vbucket", "history", "seqno", "event", "key", "cas", "value"),
}
"""Those that people see; programs get all."""

_TEXT = ("event", "key")
_LONGEST_KEY = 30


def read_rows(lake: Lake, name: str, limit: int) -> list[dict[str, Any]]:
    """Return rows of `current` (first keys) or `changelog` (newest rows). Raises UsageError if it is not there."""
    from penstock.spark.lake import read_changelog, read_current

    read = {"current": read_current, "changelog": read_changelog}[name]
    rows: list[dict[str, Any]] = read(lake, limit).to_pylist()
    return rows


def table_of(lake: Lake, name: str, limit: int) -> Table:
    """Return the same rows as a table, with how many there are of how many. Raises UsageError likewise."""
    from rich.table import Table
    from rich.text import Text

    from penstock.spark.lake import count_rows

    rows = read_rows(lake, name, limit)
    total = count_rows(lake.current if name == "current" else lake.changelog)
    table = Table(
        title=name,
        title_justify="left",
        title_style="bold",
        caption=f"{len(rows):,} of {total:,} rows",
        caption_justify="left",
        box=None,
        expand=True,
        pad_edge=False,
    )
    for column in _COLUMNS[name]:
        cells = [_cell(row, column) for row in rows]
        widest = max(map(len, [column, *cells]))
        if column == "value":
            # What room there is goes here; everything else is shown whole, long keys apart.
            table.add_column(column, no_wrap=True, overflow="ellipsis", ratio=1)
        elif column in _TEXT:
            table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=min(widest, _LONGEST_KEY))
        else:
            table.add_column(column, justify="right", no_wrap=True, min_width=widest)
    for row in rows:
        table.add_row(*(Text(_cell(row, column)) for column in _COLUMNS[name]))
    return table


def _cell(row: dict[str, Any], column: str) -> str:
    content = row[column]
    if column == "key" and content is None:
        content = row.get("key_bytes")
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, bytes):
        return one_line(content, 120)
    return "" if content is None else str(content)
