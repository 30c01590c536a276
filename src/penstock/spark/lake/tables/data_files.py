"""The Parquet files of a lake's tables: their entries in the log, and their rows in the table's types.

Penstock's own files have the types of the table's schema. Other programs that join files may store the same columns as
views: `deltalake` writes string_view and binary_view, for which Arrow lacks many functions.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.storage.object_files import close_sink, discard_sink, open_parquet, open_sink, select_filesystem
from penstock.spark.storage.object_path import LakePath

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from penstock.spark.tables.misfits import RestCounter

RANGE_COLUMN = "vbucket_range"
"""The partition column."""
FIELD_ID = b"PARQUET:field_id"
"""The key of a field's metadata for the id that Iceberg's readers find it by."""
_OWN_NAME = re.compile(r"/([0-9a-f]{12})[0-9a-f]{20}(?:-(\d+)-(\d+))?\.parquet$")
"""The end of the path of a file that a RangeWriter has written: time, random digits, version and time if joined."""

STATISTICS = ("vbucket", "seqno", "history")
"""Columns whose least and greatest value in a file are known."""
Bounds: TypeAlias = tuple[tuple[str, int, int], ...]
"""Columns, each with its least and its greatest value."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file.

    Attributes:
        path: relative to the table's directory.
        size: bytes on disk.
        rows: number of rows.
        vbucket_range: -1 in a table without partitions.
        stats: Delta's statistics as JSON.
        modified: milliseconds since the epoch at which its newest row was committed, 0 before the commit.
        keyless_rows: rows without a key (rollbacks, flushes), -1 if unknown.
        version: the version that added its newest row, -1 if the format does not record it.
        bounds: columns with their least and greatest value, of a new file.
    """

    path: str
    size: int
    rows: int
    vbucket_range: int
    stats: str = ""
    modified: int = 0
    keyless_rows: int = -1
    version: int = -1
    bounds: Bounds = ()

    @property
    def is_foreign(self) -> bool:
        """Whether another program wrote the file of a partitioned table."""
        return _OWN_NAME.search(self.path) is None


def make_name(joined: str = "", written: int | None = None) -> str:
    """Return a new name of a file, which begins with the time in milliseconds since the epoch.

    Args:
        joined: the end of the name of a file with the rows of other files, as `LakeTable.name_joined` returns it.
        written: the time; None for now.

    Returns:
        The name.
    """
    milliseconds = time.time_ns() // 1_000_000 if written is None else written
    return f"{milliseconds:012x}{uuid.uuid4().hex[12:]}{joined}.parquet"


def parse_write_time(path: str) -> int:
    """Return when the writing of an own file began, 0 for a file of another program."""
    found = _OWN_NAME.search(path)
    return 0 if found is None else int(found[1], 16)


def parse_joined_name(path: str) -> tuple[int, int] | None:
    """Return version and time of the newest row of a joined file, None for all other files."""
    found = _OWN_NAME.search(path)
    return None if found is None or found[2] is None else (int(found[2]), int(found[3]))


def number_fields(schema: pa.Schema, known: Mapping[str, int] | None = None) -> pa.Schema:
    """Return a schema with the field ids of Parquet, in the order in which Iceberg numbers the columns of a new table.

    The fields of a struct, and the columns, are numbered before the fields within them.

    Args:
        schema: the schema. If its columns have ids, they keep them.
        known: the ids of fields by their path in Iceberg's form, such as `lines.element.sku`; None for a new table.
    """
    if any(FIELD_ID in (field.metadata or {}) for field in schema):
        return schema
    ids = {} if known is None else known
    numbers = count(1)

    def number_all(fields: Sequence[pa.Field], places: Sequence[str]) -> list[pa.Field]:
        own = [ids[place] if known is not None else next(numbers) for place in places]
        return [
            field.with_type(number_type(field.type, place)).with_metadata({FIELD_ID: str(at)})
            for field, place, at in zip(fields, places, own, strict=True)
        ]

    def number_type(of: pa.DataType, place: str) -> pa.DataType:
        if pa.types.is_struct(of):
            return pa.struct(number_all(list(of), [f"{place}.{each.name}" for each in of]))
        if pa.types.is_list(of):
            return pa.list_(*number_all([of.value_field], [f"{place}.element"]))
        if pa.types.is_map(of):
            return pa.map_(*number_all([of.key_field, of.item_field], [f"{place}.key", f"{place}.value"]))
        return of

    return pa.schema(number_all(list(schema), schema.names))


def add_range_column(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the partition column as its last one."""
    return schema if RANGE_COLUMN in schema.names else schema.append(pa.field(RANGE_COLUMN, pa.int32()))


def make_range_stats(footer: pq.FileMetaData, statistics: Collection[str] = STATISTICS) -> tuple[str, Bounds]:
    """Return Delta's statistics of a file as JSON, and the least and greatest values of columns.

    The values are not in the JSON. deltalake makes a condition of each column in `to_pyarrow_dataset()` as soon as one
    column has them: "at least null" for all others. So a filter on another column would find no rows.

    Args:
        footer: the footer of the Parquet file.
        statistics: columns with least and greatest value.
    """
    groups = range(footer.num_row_groups)
    bounds: list[tuple[str, int, int]] = []
    nulls: dict[str, int] = {}
    for column in range(footer.num_columns):
        name = footer.schema.column(column).path
        if name not in (*statistics, "key"):
            continue
        parts = [footer.row_group(group).column(column).statistics for group in groups]
        nulls[name] = sum(part.null_count for part in parts)
        if name in statistics and all(part.has_min_max for part in parts):
            bounds.append((name, min(part.min for part in parts), max(part.max for part in parts)))
    return json.dumps({"numRecords": footer.num_rows, "nullCount": nulls}), tuple(bounds)


def remove_files(root: LakePath, files: Iterable[DataFile]) -> None:
    """Remove files of the table at `root` that no commit names."""
    for file in files:
        (root / file.path).unlink(missing_ok=True)


def match_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of a file in the types of the table's schema, which may have more columns."""
    types = [schema.field(name).type for name in rows.column_names]
    if rows.schema.types == types:
        return rows
    return rows.cast(pa.schema(list(zip(rows.column_names, types, strict=True))))


def open_dataset(paths: list[str], schema: pa.Schema) -> ds.Dataset:
    """Return the rows of Parquet files as one dataset; an empty dataset for no files.

    The rows keep the order of the files, except that rows of files with views come last.
    """
    import pyarrow.dataset as ds  # imported late: it imports pandas, which would slow down each commit's process

    # Arrow cannot compare a condition with the statistics of a view, so such a file is read whole.
    views = {path for path in paths if not _OWN_NAME.search(path) and _has_views(path)}
    plain = [path for path in paths if path not in views]
    keys, filesystem = select_filesystem(plain)
    parts: list[ds.Dataset] = [ds.dataset(keys, schema, "parquet", filesystem=filesystem)] if plain else []
    for path in paths:
        if path in views:
            with open_parquet(path) as file:
                rows = file.read(columns=schema.names)
            parts.append(ds.dataset(match_types(rows, schema)))
    if len(parts) == 1:
        return parts[0]
    return ds.dataset(parts) if parts else ds.dataset(schema.empty_table())


def _has_views(path: str) -> bool:
    with open_parquet(path) as file:
        return any(pa.types.is_string_view(t) or pa.types.is_binary_view(t) for t in file.schema_arrow.types)


ROW_GROUP_ROWS = 131_072
"""Rows after which a row group is written."""
ROW_GROUP_BYTES = 16 << 20
"""Arrow bytes after which a row group is written."""
FILE_BYTES = 128 << 20
"""Arrow bytes after which a new file begins: a process that rewrites a file holds that much in memory."""
SORTED_BYTES = 64 << 20
"""Arrow bytes that are sorted at once, in a table with an order of rows."""
SORTED_ROWS = 16_384
"""Rows of a row group there. It has a narrow range of values, so that readers skip most groups."""

REPEATING = (
    "vbucket", "vbuuid", "event", "collection_id", "scope", "collection", "datatype", "flags", "expiry", "lock_time",
    "delete_time", "snapshot_start", "snapshot_end", "snapshot_flags", "history", "requested_seqno", RANGE_COLUMN,
)  # fmt: skip
"""Columns with few distinct values: only there dictionary encoding saves space; on keys and values it wastes time."""

ENCODINGS = {
    **dict.fromkeys(("seqno", "rev_seqno", "cas"), "DELTA_BINARY_PACKED"),
    **dict.fromkeys(("key", "key_bytes", "value"), "DELTA_LENGTH_BYTE_ARRAY"),
}
"""Rising numbers are stored as differences, bytes with separate lengths: faster to write than plain, and smaller."""


@dataclass(frozen=True, slots=True)
class ParquetLayout:
    """How the columns of a table's files are stored, and the counts in their footers.

    Attributes:
        repeating: columns with dictionaries; None for all.
        encodings: the encodings of columns without dictionaries.
        large: columns without statistics in the file.
        statistics: columns whose least and greatest value in a file are known.
        create_counter: makes the counter of a file; None for no counts in its footer.
        sorted_by: columns whose values decide the order of rows within a file.
    """

    repeating: tuple[str, ...] | None
    encodings: Mapping[str, str]
    large: tuple[str, ...]
    statistics: tuple[str, ...]
    create_counter: Callable[[], RestCounter] | None = None
    sorted_by: tuple[str, ...] = ()


CHANGE_LAYOUT = ParquetLayout(REPEATING, ENCODINGS, ("value", "xattrs"), STATISTICS)
"""The layout of changes and documents, whose columns Penstock knows."""


class RangeWriter:
    """Writes rows of one vbucket range into new files of a table.

    A context manager: if the block raises an error, all files of the writer are removed.

    Args:
        root: the directory of the table.
        vbucket_range: the range of all rows.
        schema: the schema of the rows; `vbucket_range` is added where it is missing.
        joined: the end of the files' names, for rows of other files.
        written: the time in the files' names, in milliseconds since the epoch; None for that of each file.
        layout: how the columns are stored.

    Attributes:
        pending_bytes: Arrow bytes of the rows that are not written yet.
    """

    def __init__(
        self,
        root: LakePath,
        vbucket_range: int,
        schema: pa.Schema,
        joined: str = "",
        *,
        written: int | None = None,
        layout: ParquetLayout = CHANGE_LAYOUT,
    ) -> None:
        self.pending_bytes = 0
        self._root = root
        self._range = vbucket_range
        self._joined = joined
        self._written_at = written
        self._layout = layout
        self._schema = number_fields(add_range_column(schema))
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._files: list[DataFile] = []
        self._path = ""  # of the file that is written, empty between files
        self._writer: pq.ParquetWriter | None = None
        self._sink: Any = None
        self._written = 0
        self._footers: list[pq.FileMetaData] = []
        self._counter: RestCounter | None = None
        self._most_bytes = SORTED_BYTES if layout.sorted_by else ROW_GROUP_BYTES

    def write(self, rows: pa.Table) -> None:
        """Add rows; they are written once they fill a row group, or once they are many enough to be sorted."""
        if not rows.num_rows:
            return
        nbytes = rows.nbytes  # read once, because Arrow computes it from all buffers at each access
        step = max(1, min(ROW_GROUP_ROWS, rows.num_rows * ROW_GROUP_BYTES // max(1, nbytes)))
        for start in range(0, rows.num_rows, step):
            piece = rows.slice(start, step)
            self._pending.append(piece)
            self._pending_rows += piece.num_rows
            self.pending_bytes += nbytes * piece.num_rows // rows.num_rows
            is_full = self._pending_rows >= ROW_GROUP_ROWS and not self._layout.sorted_by
            if self.pending_bytes >= self._most_bytes or is_full:
                self.flush()

    def flush(self) -> None:
        """Write the pending rows as a row group, or as several if they are sorted."""
        if not self._pending:
            return
        rows, order = pa.concat_tables(self._pending), self._layout.sorted_by
        if order:
            rows = rows.sort_by([(name, "ascending") for name in order])
        writer = self._writer or self._open()
        column = pa.repeat(pa.scalar(self._range, pa.int32()), rows.num_rows)
        whole = rows.append_column(self._schema.field(RANGE_COLUMN), column)
        writer.write_table(whole, row_group_size=SORTED_ROWS if order else None)
        if self._counter is not None:
            self._counter.add(rows)
        self._written += self.pending_bytes
        self._pending, self._pending_rows, self.pending_bytes = [], 0, 0
        if self._written >= FILE_BYTES:
            self._finish()

    def close(self) -> list[DataFile]:
        """Write the pending rows.

        Returns:
            The finished files.
        """
        self.flush()
        self._finish()
        return self._files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            return
        if self._path:
            if self._writer is not None:
                # On a full disk, close fails too. The error of the block is the one to report.
                with suppress(Exception):
                    self._writer.close()
            discard_sink(self._sink)
            self._writer = None
            (self._root / self._path).unlink(missing_ok=True)
        remove_files(self._root, self._files)

    def _open(self) -> pq.ParquetWriter:
        directory = f"{RANGE_COLUMN}={self._range}"
        (self._root / directory).mkdir(parents=True, exist_ok=True)
        self._path, self._written, self._footers = f"{directory}/{make_name(self._joined, self._written_at)}", 0, []
        self._sink = open_sink(self._root / self._path)
        layout, names = self._layout, self._schema.names
        self._counter = None if layout.create_counter is None else layout.create_counter()
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=True if layout.repeating is None else [n for n in layout.repeating if n in names],
            column_encoding={name: how for name, how in layout.encodings.items() if name in names} or None,
            write_statistics=[name for name in names if name not in layout.large] if layout.large else True,
            metadata_collector=self._footers,
        )
        return self._writer

    def _finish(self) -> None:
        if self._writer is None:
            return
        if self._counter is not None:
            self._writer.add_key_value_metadata(self._counter.make_notes())
        self._writer.close()
        close_sink(self._sink)
        self._writer = None
        size, footer = (self._root / self._path).stat().st_size, self._footers[0]
        stats, bounds = make_range_stats(footer, self._layout.statistics)
        self._files.append(DataFile(self._path, size, footer.num_rows, self._range, stats, bounds=bounds))
        self._path = ""
