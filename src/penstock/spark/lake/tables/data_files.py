"""The Parquet files of a lake's tables: their entries in the log, and their rows in the table's types.

Penstock's own files have the types of the table's schema. Other programs that join files may store the same columns as
views: `deltalake` writes string_view and binary_view, for which Arrow lacks many functions.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.storage.object_files import open_parquet, select_filesystem
from penstock.spark.storage.object_path import LakePath

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

RANGE_COLUMN = "vbucket_range"
"""The partition column."""
_OWN_NAME = re.compile(r"/([0-9a-f]{12})[0-9a-f]{20}(?:-(\d+)-(\d+))?\.parquet$")
"""The end of the path of a file that a RangeWriter has written: time, random digits, version and time if joined."""

STATISTICS = ("vbucket", "seqno", "history")
"""Columns with least and greatest value in each file's log entry."""
COUNTED = (*STATISTICS, "key")
"""Columns with the number of nulls in each file's log entry."""


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
    """

    path: str
    size: int
    rows: int
    vbucket_range: int
    stats: str = ""
    modified: int = 0
    keyless_rows: int = -1
    version: int = -1

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


def number_fields(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the field ids of Parquet, in the order in which Iceberg numbers the columns of a new table.

    The columns are numbered first, then the keys and values of maps.
    """
    numbers = count(len(schema) + 1)

    def number(field: pa.Field, at: int) -> pa.Field:
        kind = field.type
        if pa.types.is_map(kind):
            kind = pa.map_(number(kind.key_field, next(numbers)), number(kind.item_field, next(numbers)))
        return field.with_type(kind).with_metadata({"PARQUET:field_id": str(at)})

    return pa.schema([number(field, at) for at, field in enumerate(schema, 1)])


def make_range_stats(footer: pq.FileMetaData) -> str:
    """Return Delta's statistics of a file as JSON, from the footer of the Parquet file."""
    groups = range(footer.num_row_groups)
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    nulls: dict[str, int] = {}
    for column in range(footer.num_columns):
        name = footer.schema.column(column).path
        if name not in COUNTED:
            continue
        parts = [footer.row_group(group).column(column).statistics for group in groups]
        nulls[name] = sum(part.null_count for part in parts)
        if name in STATISTICS and all(part.has_min_max for part in parts):
            least[name] = min(part.min for part in parts)
            greatest[name] = max(part.max for part in parts)
    return json.dumps({"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


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
