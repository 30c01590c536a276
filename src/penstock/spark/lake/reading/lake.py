"""The class Lake: documents, changes and positions of a pipeline's tables, for programs that read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.argument_types import check_arguments
from penstock.client.documents.mutation_tokens import MutationToken
from penstock.spark.lake.current.merged_state import MergedState
from penstock.spark.lake.current.typed_table import list_typed_tables
from penstock.spark.lake.reading import lake_positions, lake_readers, lake_views, spark_frames, spark_tables
from penstock.spark.lake.reading.lake_positions import LakePosition
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.source.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@check_arguments
class Lake(LakeDirectory):
    """The tables of a bucket in a directory, which programs read as Arrow tables or Spark frames.

    Raises UsageError if the path cannot be a local directory.

    Args:
        path: a directory of this machine, as a pipeline's `lake` names it.
    """

    def tables(self) -> dict[str, str]:
        """Return the places of the typed tables by name, for programs that read Delta tables."""
        return {each.name: str(each.table.path) for each in list_typed_tables(self)}

    def table(self, name: str) -> pa.Table:
        """Return the rows of a typed table as of its last merge, sorted by key.

        Raises UsageError if the lake has no such table.

        Args:
            name: the name of the table, as `tables` has it.

        Returns:
            The columns of the fields, and those that Penstock adds.
        """
        return lake_readers.read_typed_table(self, name)

    def current(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        """Return the documents as of the changelog's newest version, in no order.

        Pending changes are merged with the current table on read. Raises UsageError if the lake has no changelog.

        Args:
            columns: names of CURRENT_COLUMNS; None for all.
            where: an Arrow expression over these columns; None for all documents.

        Returns:
            One row for each document.
        """
        return lake_readers.scan_current(self, columns, where)

    def current_batches(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the documents of `current` in batches, so that memory holds a part of them.

        All batches are of the changelog's version at the first one. Its files stay on disk for a day after a merge
        replaces them; a batch after that raises FileNotFoundError. UsageError means that there is no changelog.

        Args:
            columns: names of CURRENT_COLUMNS; None for all.
            where: an Arrow expression over these columns; None for all documents.

        Yields:
            One row for each document.
        """
        for documents in MergedState.open(self).read_tables(columns, where):
            yield from documents.to_batches()

    def changelog(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        """Return the changelog's rows, in no order.

        Raises UsageError if the lake has no changelog.

        Args:
            columns: names of CHANGE_SCHEMA; None for all.
            where: an Arrow expression over these columns; None for all rows.

        Returns:
            One row for each change or rollback.
        """
        return lake_readers.scan_changelog(self, columns, where)

    def current_frame(self, spark: SparkSession) -> DataFrame:
        """Return the documents as a Spark frame, as of the changelog's newest version.

        The frame reads the files of this version, which stay on disk for a day after a merge replaces them. An
        action after that fails; then call this method again.

        Args:
            spark: the session of the frame.

        Returns:
            A frame with CURRENT_COLUMNS.
        """
        return spark_frames.make_current_frame(self, spark)

    def changelog_frame(self, spark: SparkSession) -> DataFrame:
        """Return the changelog's rows as a Spark frame, as of its newest version."""
        return spark_frames.make_changelog_frame(self, spark)

    def position(self, batch: int | None = None) -> LakePosition | None:
        """Return the bucket position at which the changelog ends, None before its first batch.

        Raises UsageError if the changelog does not have the batch, or if the checkpoint no longer has it.

        Args:
            batch: the position at the end of this older batch; None for the newest batch.

        Returns:
            The position with its batch.
        """
        return lake_positions.read_position(self, batch)

    def wait_for(self, tokens: Iterable[MutationToken], timeout: float = 60.0) -> None:
        """Wait until both tables hold the writes of some tokens, as `current` and `changelog` read them.

        Raises OperationTimeout after the timeout, WriteLost at once for a write that was rolled back, and UsageError
        for tokens of another bucket.

        Args:
            tokens: mutation tokens, as `Bucket.tokens` returns them.
            timeout: seconds.
        """
        lake_positions.wait_for_writes(self, tokens, timeout)

    def as_of(self, at: LakePosition | Offset | datetime) -> pa.Table:
        """Return the documents of a consistent past state, in CURRENT_COLUMNS and no order.

        Each vbucket is at its newest boundary up to the position. A boundary is a seqno at which the changelog
        certainly has all documents of the vbucket. Raises UsageError for a position that the lake has not reached, and
        for a time whose files compaction has joined with later files.

        Args:
            at: a position of this lake, or a time with a time zone.

        Returns:
            One row for each document. A vbucket without a boundary has no rows.
        """
        return lake_views.read_as_of(self, at)

    def as_of_batches(self, at: LakePosition | Offset | datetime) -> Iterator[pa.RecordBatch]:
        """Yield the documents of `as_of` in batches, so that memory holds those of one vbucket range.

        Raises the errors of `as_of`, and FileNotFoundError if compaction and vacuum removed a file meanwhile.

        Args:
            at: a position of this lake, or a time with a time zone.

        Yields:
            One row for each document.
        """
        for documents in lake_views.read_as_of_ranges(self, at):
            yield from documents.to_batches()

    def as_of_frame(self, spark: SparkSession, at: LakePosition | Offset | datetime) -> DataFrame:
        """Return the documents of `as_of` as a Spark frame; they pass through the driver's memory."""
        return lake_views.make_as_of_frame(self, spark, at)

    def json_view(self, schema: pa.Schema | str | None = None) -> pa.Table:
        """Return the documents with the fields of their JSON as typed columns.

        `key`, `key_bytes`, `scope` and `collection` come first. The column `_rest` has, as JSON, the parts of a value
        that do not fit the schema.

        Args:
            schema: an Arrow schema or Spark's DDL; None to infer the fields from a sample of the documents.

        Returns:
            One row for each document.
        """
        return lake_views.read_json_view(self, schema)

    def json_frame(self, spark: SparkSession, schema: pa.Schema | str | None = None) -> DataFrame:
        """Return the documents of `json_view` as a Spark frame, whose values are parsed in Spark's tasks.

        An action reads the version that is the newest one when it is planned.

        Args:
            spark: a session with Penstock's formats, see `register`.
            schema: as of `json_view`.

        Returns:
            A frame with one row for each document.
        """
        return lake_views.make_json_frame(self, spark, schema)

    def create_tables(self, spark: SparkSession, name: str, schema: str | None = None) -> list[str]:
        """Create tables of this lake in the catalog of a session, for SQL: `name`, `name_changelog` and `name_json`.

        Each query reads the newest version. Tables that exist already stay as they are. DROP TABLE removes a table from
        the catalog and keeps the files.

        Args:
            spark: a session with Penstock's formats, see `register`.
            name: the name of the first table, also with catalog and database: `sales.beers`.
            schema: the fields of the JSON in `name_json` as DDL; None to infer them from the present documents.

        Returns:
            The names of the tables.
        """
        return spark_tables.create_tables(self, spark, name, schema)

    def register_tables(self, spark: SparkSession, schema: str) -> list[str]:
        """Create the typed tables of this lake in a catalog as plain Delta tables, which any Spark with Delta reads.

        Each query reads the newest version, and new columns appear by themselves. Tables that exist already stay as
        they are. DROP TABLE removes a table from the catalog and keeps the files.

        Args:
            spark: a session with Delta's own package. Raises UsageError without it, and for Iceberg tables.
            schema: the schema of the tables, also with its catalog: `main.shop`. It is created if it does not exist.

        Returns:
            The names of the tables.
        """
        return spark_tables.register_tables(self, spark, schema)
