"""`format("penstock-lake")`: the tables of a lake as a Spark data source, for SQL and for tables of a catalog."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.client.streams.time_search import parse_time
from penstock.errors import UsageError
from penstock.options import BOOLEAN, TEXT, one_of, option, parsed, read_options
from penstock.spark.lake.current.merged_state import MergedState, refuse_missing_table
from penstock.spark.lake.reading.lake_views import JsonView, infer_view_fields, read_as_of_ranges
from penstock.spark.lake.tables.data_files import DataFile, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS
from penstock.spark.runtime.catalog_tables import find_options, keep_options, read_table_options, remove_options
from penstock.spark.source.pushdown import PushedFilters, push_filters
from penstock.spark.source.shape import ColumnFilter
from penstock.spark.source.source_schema import check_schema
from penstock.spark.values.json_types import from_ddl, to_ddl
from penstock.wire.columns.schema import CHANGE_SCHEMA

_BATCH_ROWS = 1 << 14
"""Rows of a batch that goes to Spark: few enough that large values do not fill Java's memory."""

_LOCATION = "location"
"""The name under which Spark passes the path of CREATE TABLE, from OPTIONS (path ...) or LOCATION."""

TableName = Literal["current", "changelog", "json"]


@dataclass(frozen=True, kw_only=True)
class LakeReadOptions:
    """The options of a read of a lake."""

    path: str = option(TEXT, "the directory or URL of the lake", default="", shown="", example="/data/lake")
    table: TableName = option(
        one_of("current", "changelog", "json"),
        "the rows: the documents, all changes, or the documents with the fields of their JSON as columns",
        default="current",
        example="changelog",
    )
    value_schema: str = option(
        TEXT,
        "the fields of the table json, as DDL",
        default="",
        shown="inferred from a sample of the documents",
        example="name STRING, abv DOUBLE",
    )
    as_of: datetime | None = option(
        parsed(lambda _, text: parse_time(text)),
        "the documents as they were at this time; only of the table current",
        default=None,
        shown="now",
        example="2026-11-23T08:00:00Z",
    )
    columns: tuple[str, ...] | None = option(
        parsed(lambda _, text: tuple(name.strip() for name in text.split(","))),
        "columns of the result, in this order; the others are not read from disk",
        default=None,
        shown="all",
        example="key,value",
    )
    filter_pushdown: bool = option(
        BOOLEAN,
        "apply Spark's filters where the files are read; needs spark.sql.python.filterPushdown.enabled",
        default=False,
        example="true",
    )

    @classmethod
    def parse(cls, given: dict[str, str]) -> LakeReadOptions:
        """Return the options of the texts that a user gave to Spark, whose names are in lower case.

        Raises:
            UsageError: an option is unknown, missing or invalid, or options exclude each other.
        """
        options = cls(**read_options(cls, given, "of format penstock-lake", any_case=True))
        if not options.path:
            raise UsageError("penstock-lake has no option path; expected the directory of a lake")
        if options.as_of is not None and options.table != "current":
            raise UsageError(f"options asOf and table {options.table!r}, expected asOf with the table current")
        if options.value_schema and options.table != "json":
            raise UsageError(f"option valueSchema for the table {options.table!r}, expected it for the table json")
        return options

    @property
    def lake(self) -> LakeDirectory:
        """The lake."""
        return LakeDirectory(self.path)

    def resolve_schema(self) -> str:
        """Return the fields of the table json as DDL; they are inferred from the documents if no option has them."""
        if self.table != "json" or self.value_schema:
            return self.value_schema
        return to_ddl(infer_view_fields(self.lake))

    def make_schema(self, value_schema: str) -> pa.Schema:
        """Return the columns of the table.

        Args:
            value_schema: the fields of the table json as DDL.

        Raises:
            UsageError: the table has no such column, or a column stands twice.
        """
        match self.table:
            case "changelog":
                schema = CHANGE_SCHEMA
            case "current":
                schema = CURRENT_COLUMNS
            case "json":
                schema = _make_view(value_schema).schema
        names = schema.names if self.columns is None else self.columns
        if wrong := [name for name in names if name not in schema.names or list(names).count(name) > 1]:
            raise UsageError(f"option columns has {wrong[0]!r}, expected some of {', '.join(schema.names)}, each once")
        return pa.schema([schema.field(name) for name in names])


@dataclass(frozen=True)
class LakePartition(InputPartition, ABC):
    """A part of a read, as Spark sends it to a worker.

    Attributes:
        schema: the columns of the result.
        filters: the conditions that all rows meet.
    """

    schema: pa.Schema
    filters: tuple[ColumnFilter, ...]

    @abstractmethod
    def read_tables(self) -> Iterator[pa.Table]:
        """Yield the rows of the partition, in all columns that the result needs."""


@dataclass(frozen=True)
class ChangelogPartition(LakePartition):
    """Files of the changelog.

    Attributes:
        paths: the files.
    """

    paths: tuple[str, ...]

    def read_tables(self) -> Iterator[pa.Table]:
        """Yield the rows of the partition."""
        for batch in open_dataset(list(self.paths), CHANGE_SCHEMA).to_batches(columns=self.schema.names):
            yield pa.Table.from_batches([batch])


@dataclass(frozen=True)
class CurrentPartition(LakePartition):
    """The documents of a vbucket range.

    Attributes:
        state: the state of the documents when the read was planned.
        view: the JSON view that the rows become; None for the documents as they are.
    """

    state: MergedState
    view: JsonView | None

    def read_tables(self) -> Iterator[pa.Table]:
        """Yield the rows of the partition."""
        if self.view is None:
            yield from self.state.read_tables(self.schema.names)
            return
        for table in self.state.read_tables(self.view.source_columns):
            for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
                yield pa.Table.from_batches([self.view.parse_batch(batch)])


@dataclass(frozen=True)
class PastPartition(LakePartition):
    """The documents at a time in the past.

    Attributes:
        lake: the lake.
        moment: the time.
    """

    lake: LakeDirectory
    moment: datetime

    def read_tables(self) -> Iterator[pa.Table]:
        """Yield the rows of the partition."""
        yield from read_as_of_ranges(self.lake, self.moment)


class LakeReader(DataSourceReader):
    """A batch read of a table of a lake: its newest version when the read is planned.

    Attributes:
        options: the options of the read.
        value_schema: the fields of the table json as DDL.
        pushed: filters that the read applies in place of Spark.
    """

    def __init__(self, options: LakeReadOptions, value_schema: str, promised: StructType) -> None:
        self.options = options
        self.value_schema = value_schema
        self.pushed = PushedFilters()
        check_schema(promised, from_arrow_schema(self.schema))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the result, in the types in which Spark expects them."""
        return to_arrow_schema(from_arrow_schema(self.options.make_schema(self.value_schema)), timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the read: one for each vbucket range."""
        lake, filters = self.options.lake, self.pushed.filters
        if self.options.as_of is not None:
            return [PastPartition(self.schema, filters, lake, self.options.as_of)]
        if self.options.table == "changelog":
            files = _list_changelog_files(lake)
            parts = [[file for file in files if file.vbucket_range == part] for part in _list_ranges(files)]
            paths = [tuple(lake.changelog_table.list_paths(part)) for part in parts]
            return [ChangelogPartition(self.schema, filters, each) for each in paths]
        view = _make_view(self.value_schema) if self.options.table == "json" else None
        return [CurrentPartition(self.schema, filters, each, view) for each in MergedState.open(lake).split()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; called in a worker."""
        assert isinstance(partition, LakePartition)
        for table in partition.read_tables():
            rows = table.select(partition.schema.names).cast(partition.schema)
            for each in partition.filters:
                rows = rows.filter(each.evaluate(rows[each.column].combine_chunks()))
            yield from rows.to_batches(max_chunksize=_BATCH_ROWS)


class FilteringLakeReader(LakeReader):
    """A read that applies Spark's filters. Spark refuses a reader with pushFilters unless a setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that the read can apply.

        Args:
            filters: Spark's filters.

        Returns:
            The filters that Spark must apply itself.
        """
        self.pushed, left = push_filters(filters, self.schema)
        return left


class LakeSource(DataSource):
    """The data source that is registered as "penstock-lake"."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "penstock-lake"

    def schema(self) -> StructType:
        """Return the schema of a read, or that of a table in Spark's catalog.

        Raises:
            UsageError: an option is invalid, or a table has no fields.
        """
        table = read_table_options(self.options)
        if table is not None and _LOCATION in self.options:
            table = {"path": self.options[_LOCATION], **table}
        options = LakeReadOptions.parse(dict(self.options) if table is None else table)
        self._value_schema = options.resolve_schema()  # Spark sends this object to the process that makes the reader
        schema = from_arrow_schema(options.make_schema(self._value_schema))
        if table is None:
            return schema
        if options.table == "json" and not self._value_schema:
            raise UsageError(f"{options.path} has no JSON objects to infer option valueSchema from; expected it as DDL")
        resolved = {"path": str(options.lake.path), "valueschema": self._value_schema}
        return keep_options(schema, {**table, **{name: text for name, text in resolved.items() if text}})

    def reader(self, schema: StructType) -> LakeReader:
        """Return the reader of a batch read."""
        options = LakeReadOptions.parse(find_options(self.options, schema, LakeReadOptions, "path"))
        fields = options.value_schema or getattr(self, "_value_schema", "")
        reader = FilteringLakeReader if options.filter_pushdown else LakeReader
        return reader(options, fields, remove_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse an INSERT.

        Args:
            schema: ignored.
            overwrite: ignored.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "found a write to format penstock-lake, expected a read: a pipeline writes the tables of a lake"
        )


def _make_view(value_schema: str) -> JsonView:
    """Return the view with these fields: none if no document is a JSON object."""
    return JsonView(from_ddl(value_schema) if value_schema else pa.schema([]))


def _list_changelog_files(lake: LakeDirectory) -> list[DataFile]:
    opened = lake.changelog_table.open()
    if opened is None:
        refuse_missing_table(lake.changelog_table.path)
    return lake.changelog_table.list_files(opened)


def _list_ranges(files: Iterable[DataFile]) -> list[int]:
    return sorted({file.vbucket_range for file in files})
