"""Spark frames over a lake's tables, by lists of files: Spark cannot read Delta without a connector."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.lake.changelog.changelog_delta import IDENTITY_SCHEMA, RangeDelta
from penstock.spark.lake.changelog.merge_rules import to_documents
from penstock.spark.lake.current.merged_state import MergedState, read_newest_state, refuse_missing_table
from penstock.spark.lake.tables.data_files import DataFile, match_types
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS
from penstock.spark.storage.object_files import open_parquet
from penstock.spark.storage.object_path import is_remote_path
from penstock.wire.columns.schema import CHANGE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def make_changelog_frame(lake: LakeDirectory, spark: SparkSession) -> DataFrame:
    """Return the changelog's rows in CHANGE_SCHEMA. Raises UsageError if the lake has no changelog."""
    opened = lake.changelog_table.open()
    if opened is None:
        refuse_missing_table(lake.changelog_table.path)
    return _read_files(spark, lake.changelog_table, lake.changelog_table.list_files(opened), CHANGE_SCHEMA)


def make_current_frame(lake: LakeDirectory, spark: SparkSession) -> DataFrame:
    """Return the documents as of the changelog's newest version. Raises UsageError if the lake has no changelog."""
    return read_newest_state(lake, lambda state: _merge_frame(state, spark))


def _merge_frame(state: MergedState, spark: SparkSession) -> DataFrame:
    """Return the documents of a state: the table's documents without the outdated ones, and the pending documents."""
    from pyspark.sql import functions as f

    documents = _read_files(spark, state.lake.current_table, state.files, CURRENT_COLUMNS)
    pending = [state.delta.read_range(part) for part in state.delta.ranges]
    if not pending:
        return documents
    changes = pa.concat_tables([delta.changes for delta in pending])
    if state.files:
        rolled = sorted(vbucket for delta in pending for vbucket in delta.rolled_back)
        # Documents have their key as text or as bytes, changes only as bytes.
        key = f.coalesce(f.col("key").cast("binary"), f.col("key_bytes"))
        documents = documents.where(~f.col("vbucket").isin(rolled)) if rolled else documents
        for outdated in (_list_ended_collections(pending), changes.select(IDENTITY_SCHEMA.names)):
            if outdated.num_rows:
                there = make_frame(spark, outdated).alias("outdated")
                same = [f.col(f"documents.{name}") == f.col(f"outdated.{name}") for name in outdated.column_names]
                named = documents.withColumn("text", f.col("key")).withColumn("key", key).alias("documents")
                found = named.join(there, reduce(lambda one, other: one & other, same), "left_anti")
                documents = found.withColumn("key", f.col("text")).drop("text")
    return documents.unionByName(make_frame(spark, to_documents(changes), _convert_schema(CURRENT_COLUMNS)))


def make_frame(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return the rows of a table as a Spark frame.

    Spark 4.2 ends a partition of such a frame at an empty chunk of the table, and loses the rows after it.

    Args:
        spark: the session.
        rows: the table.
        schema: the columns of the frame; None for those of the table.
    """
    filled = pa.Table.from_batches((each for each in rows.to_batches() if each.num_rows), rows.schema)
    return spark.createDataFrame(filled, schema)


def _list_ended_collections(pending: Iterable[RangeDelta]) -> pa.Table:
    """Return (vbucket, collection_id) of the collections whose known documents no longer count."""
    places = [place for delta in pending for place in delta.collection_ends.collections.tolist()]
    return pa.table(
        {
            "vbucket": pa.array([place >> 32 for place in places], pa.int32()),
            "collection_id": pa.array([place & 0xFFFF_FFFF for place in places], pa.int64()),
        }
    )


def _read_files(spark: SparkSession, table: AnyTable, files: Iterable[DataFile], schema: pa.Schema) -> DataFrame:
    return read_paths(spark, table.list_paths(files), schema)


def read_paths(spark: SparkSession, paths: Iterable[str], schema: pa.Schema) -> DataFrame:
    """Return the rows of a lake's Parquet files as a Spark frame; an empty frame for no files."""
    found = list(paths)
    if not found:
        return spark.createDataFrame([], _convert_schema(schema))
    if is_remote_path(found[0]):
        # Spark itself would need Hadoop's connectors, and credentials in its configuration. Its tasks need neither.
        places = spark.createDataFrame([(path,) for path in found], "path string").repartition(len(found), "path")
        return places.mapInArrow(partial(_read_objects, schema), _convert_schema(schema))
    # Spark reads a path as a glob pattern, so its special characters are escaped.
    escaped = [re.sub(r"([\\*?\[\]{}])", r"\\\1", path) for path in found]
    return spark.read.schema(_convert_schema(schema)).parquet(*escaped)


def _read_objects(schema: pa.Schema, places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in an object store; called in Spark's tasks."""
    for batch in places:
        for path in batch["path"].to_pylist():
            with open_parquet(path, is_sequential=True) as file:
                for rows in file.iter_batches(columns=schema.names):
                    yield from match_types(pa.Table.from_batches([rows]), schema).to_batches()


def _convert_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
