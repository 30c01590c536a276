"""Typed tables: one collection of a bucket as a plain table in the lake's format, with a column for each field.

Each row is a document that exists, or a deleted document if the table marks deletions. The rows are a function of the
changelog and of the shape. Only `_loaded_at` and `_batch` say when a merge wrote the row. They are the watermark of
jobs that read new rows, so a row that a rollback brings back has new values there.

A merge keeps rows that do not differ. So the change feed of Delta (`delta.enableChangeDataFeed`), and the comparison of
two snapshots of Iceberg, have only the rows that differ.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import UsageError
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta
from penstock.spark.lake.current.current_table import MergeProgress, merge_tables, read_merged_version
from penstock.spark.lake.current.document_table import DocumentTable, describe_current
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.misfit_shape import AnyShape, MisfitShape, parse_shape
from penstock.spark.lake.current.shape_changes import list_shape_changes
from penstock.spark.lake.current.table_shape import CURRENT, TableShape
from penstock.spark.lake.tables.data_files import ParquetLayout, add_range_column, match_types
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable, TableVersion
from penstock.spark.storage.object_files import open_parquet
from penstock.spark.storage.object_path import LakePath
from penstock.spark.tables.misfits import NOTE, REST, MisfitFinder, RestCounter, RestReport

DIRECTORY = "tables"
"""The directory of a lake that holds its typed tables."""
KIND = "table"
"""The kind of typed tables in progress, status and metrics."""
SHAPE = "penstock.shape"
"""The note of the table for the shape."""
FEED_PROPERTIES = {"delta": {"delta.enableChangeDataFeed": "true"}}
SAMPLE = "penstock.sample"
"""The note of the table for the number of documents from which the fields were inferred."""
SHOWN_CHANGES = 5
"""Differences between two declarations that an error names."""
EXAMINED_ROWS = 10_000
"""Rows with a `_rest` that a report examines in files of other programs, whose footers have no counts."""
LAYOUT = ParquetLayout(None, {}, (), ("_vbucket", "_history", "_seqno"))


class TypedTable:
    """The typed table of a collection in a lake.

    Args:
        lake: the lake of the changelog.
        shape: the collection and the columns.
        sample: number of documents from which the fields were inferred; None for declared fields.

    Attributes:
        table: the table in the lake's format.
    """

    def __init__(self, lake: LakeDirectory, shape: AnyShape, sample: int | None = None) -> None:
        self.lake = lake
        self.shape = shape
        self.sample = sample
        # The note with the shape decides whether the columns are the expected ones.
        self.table = _make_table(lake, shape.name, shape.columns)

    @classmethod
    def find(cls, lake: LakeDirectory, name: str) -> TypedTable | None:
        """Return the typed table that a lake has under a name, with its own shape; None without a first commit."""
        notes = _read_notes(lake, name)
        if notes is None:
            return None
        shape, sample = notes
        return cls(lake, parse_shape(name, shape), None if sample is None else int(sample))

    @property
    def name(self) -> str:
        """The table's name."""
        return self.shape.name

    def open(self) -> TableVersion | None:
        """Return the newest version of the table, None before its first commit.

        Raises UsageError if the table has another shape.

        Returns:
            The version.
        """
        found = TypedTable.find(self.lake, self.name)
        if found is not None and found.shape.to_json() != self.shape.to_json():
            refuse_other_shape(found, self.shape)
        return self.table.open()

    def list_changes(self) -> list[str]:
        """Return the differences between the table in the lake and its declaration, in words."""
        found = TypedTable.find(self.lake, self.name)
        return [] if found is None else list_shape_changes(found.shape, self.shape)

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that the table has merged, None if nothing was merged."""
        return read_merged_version(self.lake, self.table, self.open())

    def count_rows(self) -> int:
        """Return the number of rows of the table."""
        opened = self.table.open()
        return 0 if opened is None else sum(file.rows for file in self.table.list_files(opened))

    def report_rest(self) -> RestReport:
        """Return the rows with a `_rest`, and the fields in them: the footers of the files have the counts."""
        if isinstance(self.shape, MisfitShape):
            return RestReport()
        opened, parts = self.open(), list[RestReport]()
        for file in self.table.list_files(opened) if opened is not None else []:
            path = self.table.path / file.path
            known = _read_counts(path)
            parts.append(known or self._examine(path, EXAMINED_ROWS - sum(each.examined for each in parts)))
        return RestReport.join(parts)

    def _examine(self, path: LakePath, most: int) -> RestReport:
        """Return the counts of at most so many rows of a file that another program has written."""
        counter, rows, examined = self._create_counter(), 0, 0
        names = [REST, *self.shape.key_columns]
        with open_parquet(path) as read:
            for group in range(read.num_row_groups):
                found = _count_valid(read.metadata.row_group(group), REST)
                rows += found
                if found and examined < most:
                    values = match_types(read.read_row_group(group, columns=names), self.shape.columns)
                    chosen = values.filter(pc.is_valid(values[REST])).slice(0, most - examined)
                    counter.add(chosen)
                    examined += chosen.num_rows
        return replace(counter.make_report(), rows=rows)

    def _create_counter(self) -> RestCounter:
        assert not isinstance(self.shape, MisfitShape)
        finder = MisfitFinder(self.shape.parsed_fields, self.shape.parsed_rules)
        return RestCounter(finder, self.shape.key_columns)

    def describe(self) -> DocumentTable:
        """Return the table as a document table, for merges."""
        shape = self.shape
        layout = LAYOUT if isinstance(shape, MisfitShape) else replace(LAYOUT, create_counter=self._create_counter)
        if isinstance(shape, TableShape):
            layout = replace(layout, sorted_by=shape.find_order())
        found = DocumentTable(
            self.lake,
            self.table,
            shape.columns,
            shape.to_rows,
            shape.lookup,
            shape.position,
            layout,
            {SHAPE: shape.to_json()} | ({} if self.sample is None else {SAMPLE: str(self.sample)}),
            shape.name,
            KIND,
            row_number=shape.row_number,
        )
        if not isinstance(shape, TableShape) or shape.mode == CURRENT:
            return found
        return replace(found, to_rows=shape.make_rows, mode=shape.mode, mark_members=shape.mark_members)

    def find_next_fields(self) -> pa.Schema:
        """Return the fields that the table has after its next merge."""
        return self.shape.fields

    def describe_replacement(self) -> DocumentTable:
        """Return the table for a merge that replaces the existing table, which has other columns."""
        return replace(self.describe(), is_replacement=True)

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Merge the changes of a delta, and newer ones. Raises the errors of `merge_tables`."""
        self.merge()

    def merge(self, policy: MergePolicy | None = None) -> MergeProgress:
        """Merge the changes that the changelog has gained. Also raises the errors of `merge_tables`.

        Args:
            policy: decides whether a merge is due; None to merge in any case.

        Returns:
            The progress, also if no merge was due.
        """
        self.open()
        return merge_tables([self.describe()], policy)[0]


def refuse_other_shape(found: TypedTable, expected: AnyShape) -> NoReturn:
    """Raise the error for a table that a declaration does not describe.

    Raises:
        UsageError: always.
    """
    changes = list_shape_changes(found.shape, expected)
    more = f" and {len(changes) - SHOWN_CHANGES} more" if len(changes) > SHOWN_CHANGES else ""
    raise UsageError(
        f"{found.table.path} is a table of another declaration: {'; '.join(changes[:SHOWN_CHANGES])}{more}. Build it"
        f" again from the changelog with penstock pipeline retype FILE --table {found.name}, or choose another name"
    )


@lru_cache(maxsize=8192)
def _read_counts(path: LakePath) -> RestReport | None:
    """Return the counts in the footer of a file, which never changes; None if it has none for rows with a `_rest`."""
    with open_parquet(path) as read:
        note = (read.metadata.metadata or {}).get(NOTE.encode())
        if note is not None:
            return RestReport.from_json(note)
        groups = map(read.metadata.row_group, range(read.num_row_groups))
        return None if any(_count_valid(group, REST) for group in groups) else RestReport()


def _count_valid(group: pq.RowGroupMetaData, name: str) -> int:
    """Return the number of rows of a row group that are not null in a column."""
    columns = (group.column(number) for number in range(group.num_columns))
    return sum(group.num_rows - each.statistics.null_count for each in columns if each.path_in_schema == name)


def _make_table(lake: LakeDirectory, name: str, columns: pa.Schema) -> AnyTable:
    return lake.make_table(lake.path / DIRECTORY / name, add_range_column(columns), FEED_PROPERTIES)


def _read_notes(lake: LakeDirectory, name: str) -> tuple[str, str | None] | None:
    """Return the notes of a lake's typed table: its shape as JSON, and its sample. None without a first commit.

    Raises:
        UsageError: another program made the table.
    """
    table = _make_table(lake, name, pa.schema([]))
    opened = table.open()
    if opened is None:
        return None
    found = table.read_note(opened, SHAPE)
    if found is None:
        raise UsageError(f"{table.path} is a table of another program; expected a table of a pipeline, or nothing")
    return found, table.read_note(opened, SAMPLE)


def list_typed_tables(lake: LakeDirectory) -> list[TypedTable]:
    """Return the typed tables that a lake has, declared or not."""
    found = (TypedTable.find(lake, name) for name in _list_names(lake))
    return [table for table in found if table is not None]


def forget_typed_tables(lake: LakeDirectory, paths: Collection[LakePath]) -> None:
    """Remove typed tables from the catalog before their files are removed.

    Args:
        lake: the lake.
        paths: places of tables, or the place of all of them.
    """
    for name in _list_names(lake):
        if {lake.path / DIRECTORY, lake.path / DIRECTORY / name} & {*paths}:
            _make_table(lake, name, pa.schema([])).forget()


def _list_names(lake: LakeDirectory) -> list[str]:
    directory = lake.path / DIRECTORY
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def list_document_tables(lake: LakeDirectory) -> list[DocumentTable]:
    """Return the document tables that a lake has: `current`, and the typed tables, declared or not.

    Merges, status and maintenance go over this list, so that none of them leaves a table out.
    """
    found = [describe_current(lake)] if lake.current_table.open() is not None else []
    return found + [table.describe() for table in list_typed_tables(lake)]
