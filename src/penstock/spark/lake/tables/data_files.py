"""The Parquet files of a lake's tables: their entries in the log, and their rows in the table's types.

Penstock's own files have the types of the table's schema. Other programs that join files may store the same columns as
views: `deltalake` writes string_view and binary_view, for which Arrow lacks many functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pyarrow.dataset as ds

RANGE_COLUMN = "vbucket_range"
"""The partition column."""
_OWN_NAME = re.compile(r"/[0-9a-f]{32}\.parquet$")
"""The end of the path of a file that a RangeWriter has written."""


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
    """

    path: str
    size: int
    rows: int
    vbucket_range: int
    stats: str = ""
    modified: int = 0
    keyless_rows: int = -1

    @property
    def is_foreign(self) -> bool:
        """Whether another program wrote the file of a partitioned table."""
        return _OWN_NAME.search(self.path) is None


def remove_files(root: Path, files: Iterable[DataFile]) -> None:
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
    parts: list[ds.Dataset] = [ds.dataset(plain, schema=schema, format="parquet")] if plain else []
    for path in paths:
        if path in views:
            rows = pq.read_table(path, columns=schema.names, partitioning=None)
            parts.append(ds.dataset(match_types(rows, schema)))
    if len(parts) == 1:
        return parts[0]
    return ds.dataset(parts) if parts else ds.dataset(schema.empty_table())


def _has_views(path: str) -> bool:
    return any(pa.types.is_string_view(t) or pa.types.is_binary_view(t) for t in pq.read_schema(path).types)
