"""Views of a lake's documents: consistent past states, and JSON values as typed columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.argument_types import check_arguments
from penstock.errors import UsageError
from penstock.spark.lake.changelog.boundaries import (
    EVIDENCE,
    RETAINED_EVENT,
    Boundary,
    find_boundaries,
    find_floors,
    select_rows_below,
)
from penstock.spark.lake.changelog.changelog_delta import read_marker_rows, read_rows, reduce_rows
from penstock.spark.lake.changelog.merge_rules import RowMarkers, to_documents
from penstock.spark.lake.current.merged_state import refuse_missing_table, retry_missing_files
from penstock.spark.lake.reading.lake_positions import LakePosition, find_position_at, read_position
from penstock.spark.lake.reading.lake_readers import scan_current
from penstock.spark.lake.reading.spark_frames import make_frame
from penstock.spark.lake.tables.data_files import DataFile, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS
from penstock.spark.source.offsets import Offset
from penstock.spark.tables.column_rules import parse_columns
from penstock.spark.tables.inference import infer_from_sample
from penstock.spark.values.json_types import from_ddl, make_column_names, to_ddl
from penstock.wire.columns.schema import CHANGE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY_COLUMNS = ("key", "key_bytes", "scope", "collection")
"""Columns of the current table that stand before the typed columns of a JSON view."""
REST = "_rest"
"""The column for the parts of a value that do not fit the schema, as JSON."""


# Past states


def read_as_of(lake: LakeDirectory, at: LakePosition | Offset | datetime) -> pa.Table:
    """Return the documents of a consistent past state, in CURRENT_COLUMNS and no order.

    Each vbucket is at its newest boundary (module boundaries) up to the position, after the rollbacks that were known
    then. Raises UsageError for a position that the lake has not reached, and without a changelog. It is also raised for
    a time whose files compaction has joined with later files.

    Args:
        lake: the lake of the changelog.
        at: a position of this lake, or a time with a time zone.

    Returns:
        One row for each document. A vbucket without a boundary has no rows.
    """
    return retry_missing_files(lambda: pa.concat_tables([CURRENT_COLUMNS.empty_table(), *read_as_of_ranges(lake, at)]))


def read_as_of_ranges(lake: LakeDirectory, at: LakePosition | Offset | datetime) -> Iterator[pa.Table]:
    """Yield the documents of `read_as_of`, one vbucket range at a time, so that memory holds one range.

    Raises FileNotFoundError if compaction and vacuum removed a file meanwhile.

    Args:
        lake: the lake of the changelog.
        at: a position of this lake, or a time with a time zone.

    Yields:
        A table for each range that has a boundary.
    """
    for files, bounds in _find_range_boundaries(lake, at):
        if bounds:
            yield _merge_range(lake.changelog_table.list_paths(files), bounds)


def make_as_of_frame(lake: LakeDirectory, spark: SparkSession, at: LakePosition | Offset | datetime) -> DataFrame:
    """Return the documents of `read_as_of` as a Spark frame; all of them pass through the driver's memory."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return make_frame(spark, read_as_of(lake, at), from_arrow_schema(CURRENT_COLUMNS))


@check_arguments
def boundaries_of(lake: LakeDirectory, at: LakePosition | Offset | datetime) -> dict[int, Boundary]:
    """Return the boundary of each vbucket at which `as_of` reads the documents."""
    return retry_missing_files(
        lambda: {vbucket: found for _, bounds in _find_range_boundaries(lake, at) for vbucket, found in bounds.items()}
    )


def _merge_range(paths: list[str], bounds: dict[int, Boundary]) -> pa.Table:
    """Return the documents of one vbucket range at its boundaries, as `merge_changes` does with all rows at once."""
    markers = RowMarkers.collect(select_rows_below(read_marker_rows(paths), bounds))
    survivors = (markers.select_survivors(select_rows_below(rows, bounds)) for rows in read_rows(paths, None))
    return to_documents(reduce_rows(survivors))


def _find_range_boundaries(
    lake: LakeDirectory, at: LakePosition | Offset | datetime
) -> Iterator[tuple[list[DataFile], dict[int, Boundary]]]:
    """Yield for each vbucket range its files and the boundaries in them.

    Raises:
        UsageError: the time has no time zone.
    """
    opened = lake.changelog_table.open()
    if opened is None:
        refuse_missing_table(lake.changelog_table.path)
    lake.changelog_table.refuse_foreign_changes(opened)
    lake.changelog_table.check_versions()
    files, offset = lake.changelog_table.list_files(opened), None
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise UsageError(f"the time {at} has no time zone; expected one, such as datetime.now(timezone.utc)")
        found = find_position_at(lake, at)
        if found is None:
            files = lake.changelog_table.list_files_at(opened, at)
        offset = found.offset if found is not None else None
    else:
        offset = at.offset if isinstance(at, LakePosition) else at
        _check_reached(lake, offset)
    for part in sorted({file.vbucket_range for file in files}):
        own = [file for file in files if file.vbucket_range == part]
        yield own, _read_boundaries(lake, own, offset)


def _read_boundaries(lake: LakeDirectory, files: list[DataFile], offset: Offset | None) -> dict[int, Boundary]:
    """Return the newest boundary of each vbucket up to an offset, from the files of one range."""
    # In a function of its own, so that the rows are freed before documents are read.
    rows = open_dataset(lake.changelog_table.list_paths(files), CHANGE_SCHEMA).to_table(columns=[*EVIDENCE, "cas"])
    if offset is not None:
        _check_retained(lake, rows, offset)
    return find_boundaries(rows, offset)


def _check_retained(lake: LakeDirectory, rows: pa.Table, offset: Offset) -> None:
    """Check that no version of the state at an offset was dropped.

    Raises:
        UsageError: retention has dropped versions of this state.
    """
    for vbucket, floor in find_floors(rows).items():
        at = offset.vbuckets[vbucket]
        if (at.history, at.seqno) < floor:
            oldest = pc.max(rows.filter(pc.equal(rows["event"], RETAINED_EVENT))["cas"]).as_py() / 10**9
            raise UsageError(
                f"retention has dropped the state of {lake.path} at seqno {at.seqno} of vbucket {vbucket};"
                f" the oldest state that is left is that of {datetime.fromtimestamp(oldest, UTC).isoformat()}"
            )


def _check_reached(lake: LakeDirectory, offset: Offset) -> None:
    """Check that the lake has reached a position.

    Raises:
        UsageError: the position belongs to another bucket, or lies above the end of the changelog.
    """
    newest = read_position(lake)
    if newest is None or len(newest.offset.vbuckets) != len(offset.vbuckets):
        raise UsageError(f"a position in {len(offset.vbuckets)} vbuckets; {lake.path} is of another bucket")
    for vbucket, (wanted, reached) in enumerate(zip(offset.vbuckets, newest.offset.vbuckets, strict=True)):
        if (wanted.history, wanted.seqno) > (reached.history, reached.seqno):
            raise UsageError(
                f"a position at seqno {wanted.seqno} of vbucket {vbucket} (history {wanted.history}), and {lake.path}"
                f" ends at {reached.seqno} (history {reached.history})"
            )


# JSON values as columns


class JsonView:
    """The documents with the fields of their JSON as columns.

    A field whose name equals that of an earlier column, in upper or lower case, gets underscores at its end.

    Attributes:
        fields: the fields of the values.
        schema: the columns: KEY_COLUMNS, the fields, and `_rest`.
        source_columns: the columns of a document that it needs.
    """

    def __init__(self, fields: pa.Schema) -> None:
        self.fields = fields
        self.schema = _name_columns(fields)
        self.source_columns = [*KEY_COLUMNS, "value"]

    def parse_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of documents, which have at least the columns `source_columns`."""
        columns, rest = parse_columns(batch["value"], (), self.fields)
        arrays = [*(batch[name] for name in KEY_COLUMNS), *columns, rest]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def read_json_view(lake: LakeDirectory, schema: pa.Schema | str | None = None) -> pa.Table:
    """Return the documents as a JsonView. The module json_columns defines which values fit a type.

    Args:
        lake: the lake of the tables.
        schema: an Arrow schema or Spark's DDL; None to infer the fields from a sample of the documents.

    Returns:
        One row for each document.
    """
    documents = scan_current(lake, [*KEY_COLUMNS, "value"])
    if schema is None:
        fields = infer_from_sample(documents["value"])
    else:
        fields = from_ddl(schema) if isinstance(schema, str) else schema
    view = JsonView(fields)
    return pa.Table.from_batches([view.parse_batch(batch) for batch in documents.to_batches()], view.schema)


def make_json_frame(lake: LakeDirectory, spark: SparkSession, schema: pa.Schema | str | None = None) -> DataFrame:
    """Return the documents of `read_json_view` as a Spark frame, whose values are parsed in Spark's tasks.

    Args:
        lake: the lake of the tables.
        spark: the session of the frame.
        schema: an Arrow schema or Spark's DDL; None to infer the fields from a sample of the documents.

    Returns:
        A frame with one row for each document.
    """
    options = {"table": "json"}
    if schema is not None:
        options["valueSchema"] = schema if isinstance(schema, str) else to_ddl(schema)
    return spark.read.format("penstock-lake").options(**options).load(str(lake.path))


def infer_view_fields(lake: LakeDirectory) -> pa.Schema:
    """Return the fields of a JSON view, inferred from a sample of the documents."""
    return infer_from_sample(scan_current(lake, ["value"])["value"])


def _name_columns(fields: pa.Schema) -> pa.Schema:
    """Return the columns of a view, with unique names."""
    names = make_column_names(fields, (*KEY_COLUMNS, REST))
    columns = [pa.field(name, field.type) for name, field in zip(names, fields, strict=True)]
    return pa.schema([*(CURRENT_COLUMNS.field(name) for name in KEY_COLUMNS), *columns, pa.field(REST, pa.string())])
