"""Rows of a lake's tables, printed as text tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.base.show import format_name, format_one_line

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.spark.lake.tables.directory import LakeDirectory

__all__ = ["make_lake_table", "make_table", "print_table", "read_rows"]

_COLUMNS = {
    "current": ("key", "vbucket", "seqno", "rev_seqno", "cas", "value"),
    "changelog": ("vbucket", "history", "seqno", "event", "key", "cas", "value"),
}
"""Columns of text tables; JSON has all columns."""

_HEADINGS = {"rev_seqno": "rev"}
_TEXT_COLUMNS = ("event", "collection", "bucket", "owner", "replicas", "state")
_MAX_WIDTHS = {"key": 48, "value": 120, "snippet": 120}
"""Columns that are cut on a narrow terminal, and their widths on a wide one. Other columns are never cut."""


def read_rows(lake: LakeDirectory, name: str, limit: int) -> list[dict[str, Any]]:
    """Return rows of a table: the first keys of `current`, or the newest rows of `changelog`.

    Raises:
        UsageError: the table does not exist.
    """
    from penstock.spark.lake.reading.lake_readers import read_changelog, read_current

    read = {"current": read_current, "changelog": read_changelog}[name]
    rows: list[dict[str, Any]] = read(lake, limit).to_pylist()
    return rows


def make_lake_table(lake: LakeDirectory, name: str, limit: int) -> Table:
    """Return the rows of `read_rows` as a text table, with the numbers of shown and of all rows.

    Raises:
        UsageError: the table does not exist.
    """
    from penstock.spark.lake.reading.lake_readers import count_documents, count_rows

    rows = read_rows(lake, name, limit)
    total = count_documents(lake) if name == "current" else count_rows(lake.changelog_table)
    return make_table(name, _COLUMNS[name], rows, f"{len(rows):,} of {total:,} rows")


def make_table(title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], caption: str) -> Table:
    """Return some columns of rows as a text table. A key that is not UTF-8 is read from `key_bytes`."""
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
        text = column in _MAX_WIDTHS or column in _TEXT_COLUMNS
        table.add_column(
            _HEADINGS.get(column, column), justify="left" if text else "right", no_wrap=column not in _MAX_WIDTHS
        )
    for row in rows:
        # no_wrap is set on the cell: rich would not shrink a column with no_wrap before the others.
        table.add_row(*(Text(_format_cell(row, column), no_wrap=True, overflow="ellipsis") for column in columns))
    return table


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or 160 characters wide if standard output is no terminal."""
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


def _format_cell(row: Mapping[str, Any], column: str) -> str:
    content = row[column]
    if column == "key" and content is None:
        content = row.get("key_bytes")
    if column == "key" and content is not None:
        return format_name(content, _MAX_WIDTHS[column])
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, bytes):
        return format_one_line(content, _MAX_WIDTHS.get(column, 120))
    return "" if content is None else str(content)
