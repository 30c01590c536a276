"""A lake's tables as Spark frames, by lists of files: Spark reads no Delta without a connector."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.lake.changelog.changelog_delta import IDENTITIES, RangeDelta
from penstock.spark.lake.changelog.merge_rules import to_documents
from penstock.spark.lake.current.merged_state import Merged, newest_state, no_table
from penstock.spark.lake.tables.delta_table import DataFile, LakeTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS
from penstock.wire.columns.schema import CHANGE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def changelog_frame(lake: LakeDirectory, spark: SparkSession) -> DataFrame:
    """Return the changelog's rows, in the columns of a change. Raises UsageError if the lake has none."""
    opened = lake.changelog_table.open()
    if opened is None:
        raise no_table(lake.changelog_table.path)
    return _files(spark, lake.changelog_table, lake.changelog_table.files(opened), CHANGE_SCHEMA)


def current_frame(lake: LakeDirectory, spark: SparkSession) -> DataFrame:
    """Return the documents as of the changelog's newest version. Raises UsageError if the lake has no changelog."""
    return newest_state(lake, lambda state: _merged(state, spark))


def _merged(state: Merged, spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as f

    documents = _files(spark, state.lake.current_table, state.files, CURRENT_COLUMNS)
    pending = [state.delta.read(part) for part in state.delta.ranges]
    if not pending:
        return documents
    changes = pa.concat_tables([delta.changes for delta in pending])
    if state.files:
        rolled = sorted(vbucket for delta in pending for vbucket in delta.rolled_back)
        key = f.coalesce(f.col("key").cast("binary"), f.col("key_bytes"))
        documents = documents.where(~f.col("vbucket").isin(rolled)) if rolled else documents
        for outdated in (_ended(pending), changes.select(IDENTITIES.names)):
            if outdated.num_rows:
                there = spark.createDataFrame(outdated).alias("outdated")
                same = [f.col(f"documents.{name}") == f.col(f"outdated.{name}") for name in outdated.column_names]
                named = documents.withColumn("text", f.col("key")).withColumn("key", key).alias("documents")
                found = named.join(there, reduce(lambda one, other: one & other, same), "left_anti")
                documents = found.withColumn("key", f.col("text")).drop("text")
    return documents.unionByName(spark.createDataFrame(to_documents(changes), _type(CURRENT_COLUMNS)))


def _ended(pending: Iterable[RangeDelta]) -> pa.Table:
    """Return (vbucket, collection_id) of the collections of which nothing that was known before counts."""
    places = [place for delta in pending for place in delta.ended.collections.tolist()]
    return pa.table(
        {
            "vbucket": pa.array([place >> 32 for place in places], pa.int32()),
            "collection_id": pa.array([place & 0xFFFF_FFFF for place in places], pa.int64()),
        }
    )


def _files(spark: SparkSession, table: LakeTable, files: Iterable[DataFile], schema: pa.Schema) -> DataFrame:
    # Spark takes a path for a pattern.
    paths = [re.sub(r"([\\*?\[\]{}])", r"\\\1", path) for path in table.paths(files)]
    if not paths:
        return spark.createDataFrame([], _type(schema))
    return spark.read.schema(_type(schema)).parquet(*paths)


def _type(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
