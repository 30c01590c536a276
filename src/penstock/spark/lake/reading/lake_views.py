"""Views of a lake's documents: a consistent state of the past, and JSON values as typed columns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import UsageError
from penstock.spark.lake.changelog.boundaries import EVIDENCE, Boundary, boundaries, rows_below
from penstock.spark.lake.changelog.merge_rules import merge_changes
from penstock.spark.lake.current.merged_state import no_table, retried
from penstock.spark.lake.reading.lake_positions import LakePosition, position, position_at
from penstock.spark.lake.reading.lake_readers import current
from penstock.spark.lake.reading.spark_frames import current_frame
from penstock.spark.lake.tables.delta_table import DataFile, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS, MERGE_SCHEMA
from penstock.spark.source.offsets import Offset
from penstock.spark.values.json_columns import from_ddl, infer_all, parse
from penstock.wire.columns.schema import CHANGE_SCHEMA

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["as_of", "as_of_frame", "boundaries_of", "json_frame", "json_view"]

BESIDE = ("key", "key_bytes", "scope", "collection")
"""Columns of the current table beside the typed ones of `json_view`."""
REST = "_rest"


# A state of the past


def as_of(lake: LakeDirectory, at: LakePosition | Offset | datetime) -> pa.Table:
    """Return the documents of a consistent state, in CURRENT_COLUMNS and no order.

    Of each vbucket that is its newest boundary (module boundaries) not behind the position, or that the changelog had
    at the time, by the rollbacks that it knew then; of one without a boundary it is nothing. at: a
    position of this lake, or a time with a time zone. Raises UsageError for a position that the lake has not reached,
    for a time before which files were joined with later ones, and without a changelog.
    """
    return retried(lambda: _as_of(lake, at))


def as_of_frame(lake: LakeDirectory, spark: SparkSession, at: LakePosition | Offset | datetime) -> DataFrame:
    """Return what `as_of` does as a Spark frame; all of it goes through the driver's memory."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(as_of(lake, at), from_arrow_schema(CURRENT_COLUMNS))


def boundaries_of(lake: LakeDirectory, at: LakePosition | Offset | datetime) -> dict[int, Boundary]:
    """Return the boundary of each vbucket that `as_of` gives the documents of."""
    return retried(lambda: {vbucket: found for _, bounds in _bounds(lake, at) for vbucket, found in bounds.items()})


def _as_of(lake: LakeDirectory, at: LakePosition | Offset | datetime) -> pa.Table:
    parts = [CURRENT_COLUMNS.empty_table()]
    for files, bounds in _bounds(lake, at):
        if bounds:
            batches = _dataset(lake, files).to_batches(columns=MERGE_SCHEMA.names)
            rows = [rows_below(pa.Table.from_batches([batch]), bounds) for batch in batches if batch.num_rows]
            parts.append(merge_changes(pa.concat_tables([MERGE_SCHEMA.empty_table(), *rows])))
    return pa.concat_tables(parts)


def _bounds(
    lake: LakeDirectory, at: LakePosition | Offset | datetime
) -> Iterator[tuple[list[DataFile], dict[int, Boundary]]]:
    """Yield for each vbucket range its files and the boundaries in them."""
    opened = lake.changelog_table.open()
    if opened is None:
        raise no_table(lake.changelog_table.path)
    files, offset = lake.changelog_table.files(opened), None
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise UsageError(f"the time {at} has no time zone; expected one, such as datetime.now(timezone.utc)")
        found = position_at(lake, at)
        if found is None:
            files = _until(lake, files, at)
        offset = found.offset if found is not None else None
    else:
        offset = at.offset if isinstance(at, LakePosition) else at
        _check_reached(lake, offset)
    for part in sorted({file.vbucket_range for file in files}):
        own = [file for file in files if file.vbucket_range == part]
        yield own, boundaries(_dataset(lake, own).to_table(columns=list(EVIDENCE)), offset)


def _dataset(lake: LakeDirectory, files: Iterable[DataFile]) -> ds.Dataset:
    return open_dataset(lake.changelog_table.paths(files), CHANGE_SCHEMA)


def _check_reached(lake: LakeDirectory, offset: Offset) -> None:
    newest = position(lake)
    if newest is None or len(newest.offset.vbuckets) != len(offset.vbuckets):
        raise UsageError(f"a position in {len(offset.vbuckets)} vbuckets; {lake.path} is of another bucket")
    for vbucket, (wanted, reached) in enumerate(zip(offset.vbuckets, newest.offset.vbuckets, strict=True)):
        if (wanted.history, wanted.seqno) > (reached.history, reached.seqno):
            raise UsageError(
                f"a position at seqno {wanted.seqno} of vbucket {vbucket} (history {wanted.history}), and {lake.path}"
                f" ends at {reached.seqno} (history {reached.history})"
            )


def _until(lake: LakeDirectory, files: Sequence[DataFile], when: datetime) -> list[DataFile]:
    """Return the files that were committed at a time. Raises UsageError where files of then lie in later ones."""
    moment = when.timestamp() * 1000
    later = [file for file in files if file.modified > moment]
    for file, path in zip(later, lake.changelog_table.paths(later), strict=True):
        # A file is written before its rows are committed, in whole milliseconds, unless it was made of others.
        if os.stat(path).st_mtime_ns // 1_000_000 > file.modified:
            known = datetime.fromtimestamp(file.modified / 1000, UTC)
            raise UsageError(
                f"of {lake.path} at {when.isoformat()} nothing can be told: its files were joined with later ones;"
                f" expected a time from {known.isoformat()} on, or a position"
            )
    return [file for file in files if file.modified <= moment]


# JSON values as columns


def json_view(lake: LakeDirectory, schema: pa.Schema | str | None = None) -> pa.Table:
    """Return the documents with a column for each field of `schema`, beside BESIDE, and what did not fit in `_rest`.

    schema: of Arrow or Spark's DDL; None: inferred from all documents. What fits: see the module json_columns. A
    field with the name of a column before it (whether in upper or lower case) gets underscores behind its own.
    """
    documents = current(lake, [*BESIDE, "value"])
    batches = documents.to_batches()
    fields = _fields(schema, (batch["value"] for batch in batches))
    named = _named(fields)
    return pa.Table.from_batches([_typed(batch, fields, named) for batch in batches], named)


def json_frame(lake: LakeDirectory, spark: SparkSession, schema: pa.Schema | str | None = None) -> DataFrame:
    """Return what `json_view` does as a Spark frame, whose values are parsed in Spark's tasks. Same arguments."""
    from pyspark.sql.functions import arrow_udf, col  # type: ignore[attr-defined]
    from pyspark.sql.pandas.types import from_arrow_schema

    values = () if schema is not None else (batch["value"] for batch in current(lake, ["value"]).to_batches())
    fields = _fields(schema, values)
    columns = _named(fields).names[len(BESIDE) :]
    types = [*(field.type for field in fields), pa.string()]
    numbered = pa.schema([(f"c{number}", of) for number, of in enumerate(types)])

    def typed(values: pa.Array) -> pa.Array:
        found, rest = parse(values, fields)
        return pa.StructArray.from_arrays([*found.flatten(), rest], fields=list(numbered))

    # Not mapInArrow, which asks for pandas.
    parsed = arrow_udf(typed, from_arrow_schema(numbered))(col("value"))
    documents = current_frame(lake, spark).select(*BESIDE, parsed.alias("typed"))
    return documents.select(*BESIDE, *(col(f"typed.c{number}").alias(name) for number, name in enumerate(columns)))


def _fields(schema: pa.Schema | str | None, values: Iterable[pa.Array]) -> pa.Schema:
    if schema is None:
        return infer_all(values)
    return from_ddl(schema) if isinstance(schema, str) else schema


def _named(fields: pa.Schema) -> pa.Schema:
    """Return the columns of a view."""
    columns = [CURRENT_COLUMNS.field(name) for name in BESIDE]
    taken = {*BESIDE, REST}
    for field in fields:
        name = field.name
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        columns.append(pa.field(name, field.type))
    return pa.schema([*columns, pa.field(REST, pa.string())])


def _typed(batch: pa.RecordBatch, fields: pa.Schema, named: pa.Schema) -> pa.RecordBatch:
    columns, rest = parse(batch["value"], fields)
    return pa.RecordBatch.from_arrays([*(batch[name] for name in BESIDE), *columns.flatten(), rest], schema=named)
