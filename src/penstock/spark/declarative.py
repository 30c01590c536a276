"""Definitions for Spark Declarative Pipelines (`pyspark.pipelines`), and what they are made of: queries in Spark.

A pipeline's definitions file calls what it wants of `changelog`, `current`, `changes_for_cdc` and `current_by_cdc`. The
functions behind these, from data frames to data frames, express in Spark the rules that
`penstock.spark.lake.changelog.merge_rules` expresses in Arrow: which rows of a changelog still count. They are for
changelogs in any table format, at the price of all of the changelog at each run; a lake's own `current` takes in only
what is new.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.spark.lake.changelog.merge_rules import CUTTING_EVENTS, DOCUMENT_EVENTS, ENDING_EVENTS, IDENTITY
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS, MERGE_SCHEMA
from penstock.wire.columns.schema import Event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["changelog", "changes_for_cdc", "current", "current_by_cdc", "documents_of", "keyed_changes"]

PLACE = "_place"
"""A column beside those of a change: its seqno as a number that orders as the unsigned one does."""

PLACED = (*MERGE_SCHEMA.names, PLACE)
"""The columns within a query. They are named throughout: a pipeline's definitions must not ask a table for its own."""

SEQUENCE, IS_DELETE = "sequence", "is_delete"
"""Columns for AUTO CDC: which of two changes of a document is the later one, DECIMAL(32, 0), and whether it ends it."""


# Declarations


def changelog(name: str = "changelog", **options: str | int) -> None:
    """Declare a streaming table of a bucket's changes. options: those of `format("dcp")`."""
    from pyspark import pipelines as dp

    @dp.table(name=name, comment="Each change of the bucket, and each rollback, once.")
    def changes() -> DataFrame:
        return _spark().readStream.format("dcp").options(**options).load()


def current(name: str = "current", source: str = "changelog") -> None:
    """Declare a materialized view of the documents that the changelog `source` leaves."""
    from pyspark import pipelines as dp

    @dp.materialized_view(name=name, comment=f"The documents of the bucket, as {source} leaves them.")
    def documents() -> DataFrame:
        return documents_of(_spark().read.table(source))


def changes_for_cdc(name: str = "changes_for_cdc", source: str = "changelog") -> None:
    """Declare a temporary view of the changelog's changes as AUTO CDC takes them: see `keyed_changes`."""
    from pyspark import pipelines as dp

    @dp.temporary_view(name=name)
    def changes() -> DataFrame:
        return keyed_changes(_spark().readStream.table(source), _spark().read.table(source))


def current_by_cdc(name: str = "current", source: str = "changes_for_cdc", **table: str) -> None:
    """Declare a table of the documents that AUTO CDC keeps; its format must be one that Spark can MERGE into.

    table: `format` and other arguments of `create_streaming_table`. A rollback takes a full refresh of this table.
    """
    from pyspark import pipelines as dp

    dp.create_streaming_table(name, **table)  # type: ignore[arg-type]
    dp.create_auto_cdc_flow(
        target=name,
        source=source,
        keys=list(IDENTITY),
        sequence_by=SEQUENCE,
        apply_as_deletes=IS_DELETE,
        except_column_list=[SEQUENCE, IS_DELETE],
        stored_as_scd_type=1,
    )


def _spark() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.active()


# Queries


def documents_of(changes: DataFrame) -> DataFrame:
    """Return the documents that `changes`, all rows of a changelog in any order, leave; columns as of a lake's current.

    Equal to `penstock.spark.lake.changelog.merge_rules.merge_changes`.
    """
    placed = _placed(changes)
    newest = F.max_by(F.struct(*MERGE_SCHEMA.names), F.struct("history", PLACE)).alias("newest")
    documents = _surviving(placed, placed).groupBy(*IDENTITY).agg(newest).select("newest.*")
    is_text = F.is_valid_utf8(F.col("key").cast("string"))
    columns: dict[str, Column] = {name: F.col(name) for name in CURRENT_COLUMNS.names if name != "key_bytes"}
    columns["key"] = F.when(is_text, F.col("key").cast("string"))
    columns["key_bytes"] = F.when(~is_text, F.col("key"))
    return documents.where(F.col("event") == Event.MUTATION).select(
        *(columns[name].alias(name) for name in CURRENT_COLUMNS.names)
    )


def keyed_changes(changes: DataFrame, everything: DataFrame) -> DataFrame:
    """Return the changes of documents among `changes`, a stream or not, each with SEQUENCE and IS_DELETE.

    A document's key is (vbucket, collection_id, key), none of them null. everything: the changelog as it is now; what
    its rollbacks and ended collections take away is left out. Of what was given before, nothing can be taken back: only
    a reader who starts anew when a rollback has come has no more than the bucket.
    """
    placed = _placed(changes)
    high = F.col("history").cast("decimal(10,0)") * F.lit(Decimal(2**64))
    low = F.col(PLACE).cast("decimal(20,0)") + F.lit(Decimal(2**63))
    sequence = (high + low).cast("decimal(32,0)").alias(SEQUENCE)
    is_delete = (F.col("event") != Event.MUTATION).alias(IS_DELETE)
    return _surviving(placed, _placed(everything)).select(*MERGE_SCHEMA.names, sequence, is_delete)


def _placed(changes: DataFrame) -> DataFrame:
    """Return rows with PLACE, in which a document without a collection is in the default one."""
    place = F.coalesce("seqno", F.lit(0)).bitwiseXOR(F.lit(-(2**63)))
    collection = F.coalesce("collection_id", F.lit(0)).alias("collection_id")
    others = [name for name in MERGE_SCHEMA.names if name != "collection_id"]
    return changes.select(*others, collection, place.alias(PLACE))


def _surviving(changes: DataFrame, everything: DataFrame) -> DataFrame:
    """Return the changes of documents that neither a rollback nor the end of their collection takes away.

    The rollbacks of a vbucket come to each of its rows as one list: they are few, and broadcast.
    """
    rollbacks = F.collect_list(F.struct("history", PLACE)).alias("rollbacks")
    cuts = everything.where(_is(CUTTING_EVENTS.to_pylist())).groupBy("vbucket").agg(rollbacks)
    ended = F.max(F.struct("history", PLACE)).alias("ended")
    ends = _uncut(everything.where(_is(ENDING_EVENTS.to_pylist())), cuts)
    ends = ends.groupBy("vbucket", "collection_id").agg(ended)
    documents = _uncut(changes.where(_is(DOCUMENT_EVENTS.to_pylist())), cuts)
    documents = documents.join(F.broadcast(ends), ["vbucket", "collection_id"], "left")
    is_later = F.struct("history", PLACE) > F.col("ended")
    return documents.where(F.col("ended").isNull() | is_later).select(*PLACED)


def _uncut(changes: DataFrame, cuts: DataFrame) -> DataFrame:
    def takes_away(rollback: Column) -> Column:
        return (rollback["history"] > F.col("history")) & (F.col(PLACE) > rollback[PLACE])

    joined = changes.join(F.broadcast(cuts), "vbucket", "left")
    is_cut = F.coalesce(F.exists("rollbacks", takes_away), F.lit(False))
    return joined.where(~is_cut).select(*PLACED)


def _is(events: list[str]) -> Column:
    return F.col("event").isin(events)
