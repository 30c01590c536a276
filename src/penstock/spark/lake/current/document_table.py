"""Document tables: tables with a row for each document, which merges keep equal to the changelog.

`current` is one, and each typed table is one. They differ in their columns, and in how a change becomes a row. A child
table is one too, although a document may have several rows there: all of them come and go together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.lake.changelog.changelog_delta import LOOKUP_COLUMNS
from penstock.spark.lake.changelog.merge_rules import to_documents
from penstock.spark.lake.tables.data_files import CHANGE_LAYOUT, ParquetLayout, match_types
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS

CURRENT = "current"
"""Name and kind of the table of all documents."""
POSITION_COLUMNS = ("vbucket", "history", "seqno")
"""The columns that name one change of a changelog."""

Positions = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class LoadStamp:
    """One merge, for the columns that say when a row came into its table.

    Attributes:
        batch: the changelog version that the merge reaches.
        at: microseconds since the epoch.
    """

    batch: int
    at: int


@dataclass(frozen=True, slots=True)
class DocumentTable:
    """A table with a row for each document.

    Attributes:
        lake: the lake of the changelog.
        table: the table.
        columns: its columns, without `vbucket_range`.
        to_rows: returns the rows of changes, which are the newest ones of their documents, deletions included.
        lookup: the names of the columns that LOOKUP_COLUMNS has in `current`.
        position: the names of the columns that POSITION_COLUMNS has in `current`; empty to replace equal rows too.
        layout: how the columns are stored.
        notes: notes of a new table.
        name: the table's name in progress, status and reports.
        kind: "current", or the kind of typed tables.
        row_number: the column that differs between the rows of a document; empty if a document has one row.
        is_replacement: whether the table in its place has other columns, so that the next merge replaces all rows.
        mode: the meaning of a row: "current" for a document, "history" for a version, "changes" for a change.
        mark_members: returns a mask of the changes in the collection of a table with another mode than "current".
    """

    lake: LakeDirectory
    table: AnyTable
    columns: pa.Schema
    to_rows: Callable[[pa.Table, LoadStamp], pa.Table]
    lookup: tuple[str, ...] = LOOKUP_COLUMNS
    position: tuple[str, ...] = ()
    layout: ParquetLayout = CHANGE_LAYOUT
    notes: Mapping[str, str] = field(default_factory=dict)
    name: str = CURRENT
    kind: str = CURRENT
    row_number: str = ""
    is_replacement: bool = False
    mode: str = CURRENT
    mark_members: Callable[[pa.Table], pa.ChunkedArray] = lambda changes: pa.repeat(True, changes.num_rows)

    def read_lookup(self, file: pq.ParquetFile) -> pa.Table:
        """Return the columns of a file that identify documents and their changes, under the names of `current`."""
        names = list(dict.fromkeys((*self.lookup, *self.position)))
        return self.rename_lookup(match_types(file.read(columns=names), self.columns))

    def rename_lookup(self, rows: pa.Table) -> pa.Table:
        """Return the columns of rows that identify documents and their changes, under the names of `current`."""
        wanted = dict(zip((*LOOKUP_COLUMNS, *POSITION_COLUMNS), (*self.lookup, *self.position), strict=False))
        return pa.table({name: rows[own] for name, own in wanted.items()})


def describe_current(lake: LakeDirectory) -> DocumentTable:
    """Return the current table of a lake as a document table."""
    return DocumentTable(lake, lake.current_table, CURRENT_COLUMNS, lambda changes, _: to_documents(changes))


def encode_positions(rows: pa.Table) -> Positions:
    """Return vbucket, history and seqno of each row as one comparable value."""
    found = np.empty(rows.num_rows, [(name, np.int64) for name in POSITION_COLUMNS])
    for name in POSITION_COLUMNS:
        found[name] = rows[name].to_numpy()
    return found
