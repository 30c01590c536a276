"""Files of sorted entries: writing, merging, and finding the parts that a search has to read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.spark.lake.tables.data_files import DataFile, remove_files
from penstock.spark.lake.tables.delta_table import UNPARTITIONED
from penstock.spark.storage.object_files import close_sink, open_parquet, open_sink
from penstock.spark.storage.object_path import LakePath

FILE_ROWS = 1 << 19
"""Approximate rows of a file. Memory holds at most twice as many."""
GROUP_ROWS = 1 << 14
"""Rows of a row group. A search for one value reads at least one row group: about half a megabyte."""
SMALL_ROWS = FILE_ROWS // 4
"""A file with fewer rows is joined with the previous file when that is rewritten."""
STATS_CHARACTERS = 32
"""Characters of a text that the log keeps as least or greatest value of a file."""
LAST_CHARACTER = "\U0010ffff"
"""The greatest character: appended to a shortened text, it gives a text that is not below the original."""


class EntryWriter:
    """Writes sorted entries into new files at `root`.

    A context manager: if the block raises an error, all files of the writer are removed.
    """

    def __init__(self, root: LakePath) -> None:
        self._root = root
        self._pending: list[pa.Table] = []
        self._files: list[DataFile] = []

    @property
    def pending_rows(self) -> int:
        """Number of entries that are not written yet."""
        return sum(entries.num_rows for entries in self._pending)

    def is_joined(self, rows: int) -> bool:
        """Return whether the pending entries and those of a file with so many rows must go into the same files."""
        return self.pending_rows > 0 and min(self.pending_rows, rows) < SMALL_ROWS

    def write(self, entries: pa.Table) -> None:
        """Add entries, which must follow the earlier entries in their order."""
        self._pending.append(entries)
        if self.pending_rows >= 2 * FILE_ROWS:
            together = pa.concat_tables(self._pending)
            while together.num_rows >= 2 * FILE_ROWS:
                self._write_file(together.slice(0, FILE_ROWS))
                together = together.slice(FILE_ROWS)
            self._pending = [together]

    def finish_file(self) -> None:
        """Write the pending entries into one file, or into two of the same size. Later entries start a new file."""
        rows = self.pending_rows
        if rows:
            together = pa.concat_tables(self._pending)
            size = -(-rows // 2) if rows > FILE_ROWS * 3 // 2 else rows
            for start in range(0, rows, size):
                self._write_file(together.slice(start, size))
        self._pending = []

    def close(self) -> list[DataFile]:
        """Write the pending entries.

        Returns:
            The finished files.
        """
        self.finish_file()
        return self._files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            remove_files(self._root, self._files)

    def _write_file(self, entries: pa.Table) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        name = f"{UNPARTITIONED}{uuid.uuid4().hex}.parquet"
        path = self._root / name
        self._files.append(DataFile(name, 0, entries.num_rows, -1))
        sink = open_sink(path)
        pq.write_table(
            entries,
            sink,
            row_group_size=GROUP_ROWS,
            compression="zstd",
            compression_level=1,
            use_dictionary=["vbucket", "collection_id", "scope", "collection", "history", "misfit"],
            write_statistics=["value", "vbucket", "collection_id"],
        )
        close_sink(sink)
        self._files[-1] = DataFile(name, path.stat().st_size, entries.num_rows, -1, _make_entry_stats(entries))


def _make_entry_stats(entries: pa.Table) -> str:
    """Return Delta's statistics of a file of sorted entries, as JSON."""
    values = entries["value"]
    lowest = highest = None
    count = len(values) - values.null_count
    if count and not pa.types.is_boolean(values.type):
        lowest, highest = _round_down(values[0].as_py()), _round_up(values[count - 1].as_py())
    parts = {
        "numRecords": str(entries.num_rows),
        "minValues": _format_bound(lowest),
        "maxValues": _format_bound(highest),
        "nullCount": f'{{"value": {values.null_count}}}',
    }
    return "{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}"


def _format_bound(value: Any) -> str:
    """Return an object with a value, or an empty one if it is None. A decimal is a number with all its digits."""
    if value is None:
        return "{}"
    # Not escaped: deltalake reads some escaped characters above U+FFFF as other characters.
    text = f"{value:f}" if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=date.isoformat)
    return f'{{"value": {text}}}'


def _round_down(value: Any) -> Any:
    if isinstance(value, str):
        return value[:STATS_CHARACTERS]
    return _format_milliseconds(value) if isinstance(value, datetime) else value


def _round_up(value: Any) -> Any:
    """Return a value for the statistics that is not below this value, None if there is none."""
    # Statistics have milliseconds. At the end of the year 9999 the addition would leave the range of datetime.
    if isinstance(value, datetime):
        return _format_milliseconds(value + timedelta(microseconds=999)) if value.year < 9999 else None
    if isinstance(value, str) and len(value) > STATS_CHARACTERS:
        return None if value[STATS_CHARACTERS] == LAST_CHARACTER else value[:STATS_CHARACTERS] + LAST_CHARACTER
    return value


def _format_milliseconds(when: datetime) -> str:
    return when.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


@dataclass(frozen=True, slots=True)
class FilePart:
    """Row groups of one file that a search reads, in their order.

    Attributes:
        path: the file.
        groups: numbers of the row groups.
        total_groups: number of row groups in the file.
        rows: number of entries in the file.
        highest: the greatest value in the file, None if it has only misfits.
        has_misfits: whether the file has misfits. All later files then have only misfits.
    """

    path: LakePath
    groups: tuple[int, ...]
    total_groups: int
    rows: int
    highest: Any
    has_misfits: bool

    def read(self, descending: bool = False) -> Iterator[pa.Table]:
        """Yield the entries, one row group at a time. Raises FileNotFoundError if the file was removed."""
        with open_parquet(self.path) as file:
            for group in reversed(self.groups) if descending else self.groups:
                yield file.read_row_group(group)


def select_files(table: DeltaTable, low: pa.Scalar | None, high: pa.Scalar | None) -> list[str]:
    """Return the files that may hold values from `low` to `high`, by the log's statistics; None means no bound."""
    actions = pa.table(table.get_add_actions(flatten=True))
    kept = pa.repeat(True, actions.num_rows)
    for name, bound, outside in (("max.value", low, pc.less), ("min.value", high, pc.greater)):
        # A file without a bound in its statistics stays: its values may lie anywhere.
        if bound is not None and name in actions.column_names and actions[name].type != pa.null():
            kept = pc.and_not(kept, pc.fill_null(outside(actions[name].cast(bound.type), bound), False))
    paths: list[str] = actions["path"].filter(kept).to_pylist()
    return paths


def select_parts(root: LakePath, files: list[str], low: pa.Scalar | None, high: pa.Scalar | None) -> list[FilePart]:
    """Return the parts of files with values from `low` to `high`, by the files' footers, lowest values first.

    Without bounds, misfits are included. Raises FileNotFoundError if a file was removed.

    Args:
        root: the directory of the table.
        files: names of the files.
        low: the lower bound; None for no bound.
        high: the upper bound; None for no bound.

    Returns:
        The parts, at most one for each file.
    """
    found = []
    for name in files:
        with open_parquet(root / name) as file:
            bounds = [_read_bounds(file, group) for group in range(file.num_row_groups)]
            rows = file.metadata.num_rows
            has_misfits = any(_read_statistics(file, group).null_count for group in range(file.num_row_groups))
        groups = tuple(group for group, each in enumerate(bounds) if _overlaps(each, low, high))
        if groups:
            known = [each for each in bounds if each is not None]
            highest = known[-1][1] if known else None
            place = (not known, *(known[0][:1] if known else ()), highest)
            found.append((place, FilePart(root / name, groups, len(bounds), rows, highest, has_misfits)))
    return [part for _, part in sorted(found, key=lambda each: each[0])]


def _read_bounds(file: pq.ParquetFile, group: int) -> tuple[Any, Any] | None:
    """Return the least and greatest value of a row group, None if it has only misfits."""
    statistics = _read_statistics(file, group)
    if statistics.has_min_max:
        return statistics.min, statistics.max
    if statistics.null_count == file.metadata.row_group(group).num_rows:
        return None
    # Arrow writes no statistics for long values.
    values = file.read_row_group(group, columns=["value"])["value"]
    return values[0].as_py(), values[len(values) - values.null_count - 1].as_py()


def _read_statistics(file: pq.ParquetFile, group: int) -> pq.Statistics:
    return file.metadata.row_group(group).column(0).statistics


def _overlaps(bounds: tuple[Any, Any] | None, low: pa.Scalar | None, high: pa.Scalar | None) -> bool:
    if bounds is None:
        return low is None and high is None
    return (low is None or bounds[1] >= low.as_py()) and (high is None or bounds[0] <= high.as_py())
