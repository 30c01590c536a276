"""Rows of a lake's tables, printed as text tables."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.base.show import format_name, format_one_line
from penstock.client.dumps.json_objects import make_json_object

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.spark.lake.tables.directory import LakeDirectory

_COLUMNS = {
    "current": ("key", "vbucket", "seqno", "rev_seqno", "cas", "value"),
    "changelog": ("vbucket", "history", "seqno", "event", "key", "cas", "value"),
}
"""Columns of text tables; JSON has all columns."""

_MOST_COLUMNS, _CELL_WIDTH = 8, 24
"""Columns of a typed table that fit on a terminal, and the width of each but the first."""
_HEADINGS = {"rev_seqno": "rev"}
_TEXT_COLUMNS = ("event", "collection", "bucket", "owner", "replicas", "state")
_MAX_WIDTHS = {"key": 48, "value": 120, "snippet": 120}
"""Columns that are cut on a narrow terminal, and their widths on a wide one. Other columns are never cut."""


def read_rows(lake: LakeDirectory, name: str, limit: int) -> list[dict[str, Any]]:
    """Return rows of a table: the newest rows of `changelog`, the first keys of `current` or of a typed table.

    Raises:
        UsageError: the table does not exist.
    """
    from penstock.spark.lake.reading.lake_readers import read_changelog, read_current, read_typed_table

    readers = {"current": read_current, "changelog": read_changelog}
    found = readers[name](lake, limit) if name in readers else read_typed_table(lake, name, limit)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def make_row_object(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `read_rows` as an object for JSON, without null columns. In a typed table bytes are base64."""
    if name in _COLUMNS:
        return make_json_object(row)
    return {column: _make_json_value(value) for column, value in row.items() if value is not None}


def _make_json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _make_json_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_make_json_value(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def make_lake_table(lake: LakeDirectory, name: str, limit: int) -> Table:
    """Return the rows of `read_rows` as a text table, with the numbers of shown and of all rows.

    Raises:
        UsageError: the table does not exist.
    """
    from penstock.spark.lake.reading.lake_readers import count_documents, count_rows

    rows = read_rows(lake, name, limit)
    if name not in _COLUMNS:
        return _make_typed_table(lake, name, rows)
    total = count_documents(lake) if name == "current" else count_rows(lake.changelog_table)
    return make_table(name, _COLUMNS[name], rows, f"{len(rows):,} of {total:,} rows")


def _make_typed_table(lake: LakeDirectory, name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows of a typed table as a text table: the key, the fields, and `_rest` if a row has one."""
    from penstock.spark.lake.current.typed_table import TypedTable

    found = TypedTable.find(lake, name)
    names = [] if found is None else [each for each in found.shape.columns.names if _is_shown(each, rows)]
    total = 0 if found is None else found.count_rows()
    caption = f"{len(rows):,} of {total:,} rows"
    if len(names) > _MOST_COLUMNS:
        caption += f", {_MOST_COLUMNS} of {len(names)} columns; --json has all"
    names = names[:_MOST_COLUMNS]
    shown = [{names[0]: row[names[0]]} | {each: _cut(_format_value(row[each])) for each in names[1:]} for row in rows]
    is_number = {each: any(isinstance(row[each], int | float) for row in rows) for each in names}
    return make_table(name, names, shown, caption, [each for each in names if not is_number[each]])


def _is_shown(column: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    is_added = column.startswith("_") and not column.startswith("_x")
    return column == "_key" or not is_added or (column == "_rest" and any(row[column] is not None for row in rows))


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_WIDTH else text[: _CELL_WIDTH - 1] + "…"


def _format_value(value: Any) -> str:
    found = _make_json_value(value)
    if isinstance(found, dict | list):
        return json.dumps(found, ensure_ascii=False)
    return "" if found is None else str(found)


def make_table(
    title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], caption: str, texts: Sequence[str] = ()
) -> Table:
    """Return some columns of rows as a text table. A key that is not UTF-8 is read from `key_bytes`.

    Args:
        title: the title.
        columns: names of the columns.
        rows: the rows.
        caption: the line below the table.
        texts: columns that hold texts, beside those that do in each table. They are cut on a narrow terminal.
    """
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
        is_cut = column in _MAX_WIDTHS or column in texts
        text = is_cut or column in _TEXT_COLUMNS
        table.add_column(_HEADINGS.get(column, column), justify="left" if text else "right", no_wrap=not is_cut)
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
