"""Files of sorted entries: how they are written, and which parts of them a search has to read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.spark.dependents.secondary.entries import PendingEntries, in_order, upto
from penstock.spark.lake.changelog.changelog_delta import LOOKED_UP
from penstock.spark.lake.tables.delta_table import UNPARTITIONED, DataFile, discard

FILE_ROWS = 1 << 19
"""What a file has about. Twice as much is held in memory at most."""
GROUP_ROWS = 1 << 14
"""A search for one value reads at least one row group: about half a megabyte."""
SMALL_ROWS = FILE_ROWS // 4
"""A file with fewer rows is joined with the one before it when that is rewritten."""
STATS_CHARACTERS = 32
"""How much of a text stands in the log as least or greatest value of a file."""
LAST_CHARACTER = "\U0010ffff"


class EntryWriter:
    """Writes entries, which come in their order, into new files at `root`; `close` finishes and returns them.

    A context manager: if its block raises, every file that it wrote is removed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pending: list[pa.Table] = []
        self._files: list[DataFile] = []

    @property
    def pending_rows(self) -> int:
        """Entries that are in no file yet."""
        return sum(entries.num_rows for entries in self._pending)

    def write(self, entries: pa.Table) -> None:
        self._pending.append(entries)
        if self.pending_rows >= 2 * FILE_ROWS:
            together = pa.concat_tables(self._pending)
            while together.num_rows >= 2 * FILE_ROWS:
                self._write_file(together.slice(0, FILE_ROWS))
                together = together.slice(FILE_ROWS)
            self._pending = [together]

    def cut(self) -> None:
        """Let the next entries begin a new file. What is left goes into one file or two of the same size."""
        rows = self.pending_rows
        if rows:
            together = pa.concat_tables(self._pending)
            size = -(-rows // 2) if rows > FILE_ROWS * 3 // 2 else rows
            for start in range(0, rows, size):
                self._write_file(together.slice(start, size))
        self._pending = []

    def close(self) -> list[DataFile]:
        self.cut()
        return self._files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            discard(self._root, self._files)

    def _write_file(self, entries: pa.Table) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        name = f"{UNPARTITIONED}{uuid.uuid4().hex}.parquet"
        path = self._root / name
        self._files.append(DataFile(name, 0, entries.num_rows, -1))
        pq.write_table(
            entries,
            path,
            row_group_size=GROUP_ROWS,
            compression="zstd",
            compression_level=1,
            use_dictionary=["vbucket", "collection_id", "scope", "collection", "history", "misfit"],
            write_statistics=["value", "vbucket", "collection_id"],
        )
        self._files[-1] = DataFile(name, path.stat().st_size, entries.num_rows, -1, _delta_stats(entries))


def _delta_stats(entries: pa.Table) -> str:
    """Return the statistics of a file of sorted entries as Delta writes them."""
    values = entries["value"]
    bounds: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}}
    count = len(values) - values.null_count
    if count and not pa.types.is_boolean(values.type):
        bounds["minValues"]["value"] = _floor(values[0].as_py())
        highest = _ceiling(values[count - 1].as_py())
        if highest is not None:
            bounds["maxValues"]["value"] = highest
    said = {"numRecords": entries.num_rows, **bounds, "nullCount": {"value": values.null_count}}
    # As they are: deltalake reads some escaped characters above U+FFFF as others.
    return json.dumps(said, ensure_ascii=False)


def _floor(value: Any) -> Any:
    if isinstance(value, str):
        return value[:STATS_CHARACTERS]
    return _milliseconds(value) if isinstance(value, datetime) else value


def _ceiling(value: Any) -> Any:
    """Return a value not below this one, None if there is none."""
    if isinstance(value, datetime):
        return _milliseconds(value + timedelta(microseconds=999)) if value.year < 9999 else None
    if isinstance(value, str) and len(value) > STATS_CHARACTERS:
        return None if value[STATS_CHARACTERS] == LAST_CHARACTER else value[:STATS_CHARACTERS] + LAST_CHARACTER
    return value


def _milliseconds(when: datetime) -> str:
    return when.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


@dataclass(frozen=True, slots=True)
class FilePart:
    """Row groups of one file that a search reads, in their order.

    of: how many the file has. highest: its greatest value, None if it has misfits only.
    """

    path: Path
    groups: tuple[int, ...]
    of: int
    highest: Any

    def read(self, descending: bool = False) -> Iterator[pa.Table]:
        """Yield the entries, a row group at a time. Raises FileNotFoundError."""
        with pq.ParquetFile(self.path) as file:
            for group in reversed(self.groups) if descending else self.groups:
                yield file.read_row_group(group)


def files_within(table: DeltaTable, low: pa.Scalar | None, high: pa.Scalar | None) -> list[str]:
    """Return the files that may hold values from `low` to `high`, by the log's statistics; None: no bound."""
    actions = pa.table(table.get_add_actions(flatten=True))
    kept = pa.repeat(True, actions.num_rows)
    for name, bound, outside in (("max.value", low, pc.less), ("min.value", high, pc.greater)):
        if bound is not None and name in actions.column_names and actions[name].type != pa.null():
            kept = pc.and_not(kept, pc.fill_null(outside(actions[name].cast(bound.type), bound), False))
    paths: list[str] = actions["path"].filter(kept).to_pylist()
    return paths


def parts_within(root: Path, files: list[str], low: pa.Scalar | None, high: pa.Scalar | None) -> list[FilePart]:
    """Return what of `files` holds values from `low` to `high`, by their footers, lowest values first.

    Without any bound misfits are included. Raises FileNotFoundError.
    """
    found = []
    for name in files:
        with pq.ParquetFile(root / name) as file:
            bounds = [_bounds(file, group) for group in range(file.num_row_groups)]
        groups = tuple(group for group, each in enumerate(bounds) if _meets(each, low, high))
        if groups:
            known = [each for each in bounds if each is not None]
            highest = known[-1][1] if known else None
            place = (not known, *(known[0][:1] if known else ()), highest)
            found.append((place, FilePart(root / name, groups, len(bounds), highest)))
    return [part for _, part in sorted(found, key=lambda each: each[0])]


def _bounds(file: pq.ParquetFile, group: int) -> tuple[Any, Any] | None:
    """Return the least and greatest value of a row group, None if it has misfits only."""
    footer = file.metadata.row_group(group)
    statistics = footer.column(0).statistics
    if statistics.has_min_max:
        return statistics.min, statistics.max
    if statistics.null_count == footer.num_rows:
        return None
    values = file.read_row_group(group, columns=["value"])["value"]  # Parquet has no statistics of long values
    return values[0].as_py(), values[len(values) - values.null_count - 1].as_py()


def _meets(bounds: tuple[Any, Any] | None, low: pa.Scalar | None, high: pa.Scalar | None) -> bool:
    if bounds is None:
        return low is None and high is None
    return (low is None or bounds[1] >= low.as_py()) and (high is None or bounds[0] <= high.as_py())


def merged(parts: list[FilePart], pending: PendingEntries, writer: EntryWriter) -> list[str]:
    """Write the entries of files that still count and the pending ones in their order; return the files replaced.

    parts: all of a table's, lowest values first. A file stays where nothing of it changes.
    """
    replaced = []
    fresh = pending.entries
    for part in parts:
        with pq.ParquetFile(part.path) as file:
            kept = pc.invert(pending.outdated.outdates(file.read(columns=LOOKED_UP)))
            # What lies between two files goes to the later one, misfits to the last.
            here = fresh.num_rows if part is parts[-1] else upto(fresh, _scalar(part.highest, fresh))
            small = min(writer.pending_rows, len(kept)) < SMALL_ROWS
            if kept.true_count == len(kept) and not here and not (writer.pending_rows and small):
                writer.cut()
                continue
            entries = file.read()
        replaced.append(part.path.name)
        writer.write(in_order(pa.concat_tables([entries.filter(kept), fresh.slice(0, here)])))
        fresh = fresh.slice(here)
    writer.write(fresh)
    return replaced


def _scalar(value: Any, entries: pa.Table) -> pa.Scalar | None:
    return None if value is None else pa.scalar(value, entries.schema.field("value").type)
