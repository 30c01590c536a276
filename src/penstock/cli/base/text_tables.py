"""A lake's tables on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.base.show import one_line

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.spark.lake.tables.directory import LakeDirectory

__all__ = ["read_rows", "show_table", "table_of", "table_with"]

_COLUMNS = {
    "current": ("key", "vbucket", "seqno", "rev_seqno", "cas", "value"),
    "changelog": ("vbucket", "history", "seqno", "event", "key", "cas", "value"),
}
"""Those that people see; programs get all."""

_HEADS = {"rev_seqno": "rev"}
_TEXTS = ("event", "collection")
_CUT = {"key": 48, "value": 120, "snippet": 120}
"""Columns that give way on a narrow terminal, and how wide they get on a wide one. The others are shown whole."""


def read_rows(lake: LakeDirectory, name: str, limit: int) -> list[dict[str, Any]]:
    """Return rows of `current` (first keys) or `changelog` (newest rows). Raises UsageError if it is not there."""
    from penstock.spark.lake.reading.lake_readers import read_changelog, read_current

    read = {"current": read_current, "changelog": read_changelog}[name]
    rows: list[dict[str, Any]] = read(lake, limit).to_pylist()
    return rows


def table_of(lake: LakeDirectory, name: str, limit: int) -> Table:
    """Return the same rows as a table, with how many there are of how many. Raises UsageError likewise."""
    from penstock.spark.lake.reading.lake_readers import count_documents, count_rows

    rows = read_rows(lake, name, limit)
    total = count_documents(lake) if name == "current" else count_rows(lake.changelog_table)
    return table_with(name, _COLUMNS[name], rows, f"{len(rows):,} of {total:,} rows")


def table_with(title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], caption: str) -> Table:
    """Return some columns of rows as a table. A key that is not UTF-8 is in `key_bytes`."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        box=None,
        pad_edge=False,
    )
    for column in columns:
        text = column in _CUT or column in _TEXTS
        table.add_column(_HEADS.get(column, column), justify="left" if text else "right", no_wrap=column not in _CUT)
    for row in rows:
        # The cell says that it does not wrap: a column that says so would not give way before the others.
        table.add_row(*(Text(_cell(row, column), no_wrap=True, overflow="ellipsis") for column in columns))
    return table


def show_table(table: Table) -> None:
    """Print a table; where nobody's window is the limit, values are shown at some length."""
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


def _cell(row: Mapping[str, Any], column: str) -> str:
    content = row[column]
    if column == "key" and content is None:
        content = row.get("key_bytes")
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, bytes):
        return one_line(content, _CUT.get(column, 120))
    return "" if content is None else str(content)
