"""Definitions for Spark Declarative Pipelines (`pyspark.pipelines`), and the Spark queries behind them.

A pipeline's definitions file calls `changelog`, `current`, `changes_for_cdc` or `current_by_cdc`, according to its
needs. The queries express the rules of `penstock.spark.lake.changelog.merge_rules` in Spark: which rows of a changelog
are still valid.

The queries work on changelogs in any table format. Their price is that each run reads the whole changelog. A lake's own
`current` reads only new changes.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.spark.lake.changelog.merge_rules import (
    COLLECTION_EVENTS,
    DOCUMENT_EVENTS,
    IDENTITY,
    ROLLBACK_EVENTS,
)
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS, MERGE_SCHEMA
from penstock.wire.columns.schema import Event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SEQNO_ORDER = "_place"
"""An additional column: the seqno as a number whose signed order is the unsigned order of seqnos."""

ORDERED_COLUMNS = (*MERGE_SCHEMA.names, SEQNO_ORDER)
"""The columns within a query. Queries name them all, because a pipeline's definitions must not ask a table for its
columns."""

SEQUENCE, IS_DELETE = "sequence", "is_delete"
"""Columns for AUTO CDC: the order of the changes of a document as DECIMAL(32, 0), and whether a change deletes it."""


# Declarations


def changelog(name: str = "changelog", **options: str | int) -> None:
    """Declare a streaming table of a bucket's changes.

    Args:
        name: the name of the table.
        options: options of `format("dcp")`.
    """
    from pyspark import pipelines as dp

    @dp.table(name=name, comment="Each change of the bucket, and each rollback, once.")
    def changes() -> DataFrame:
        return _get_session().readStream.format("dcp").options(**options).load()


def current(name: str = "current", source: str = "changelog") -> None:
    """Declare a materialized view of the present documents.

    Args:
        name: the name of the view.
        source: the table with the changelog.
    """
    from pyspark import pipelines as dp

    @dp.materialized_view(name=name, comment=f"The documents of the bucket, as {source} leaves them.")
    def documents() -> DataFrame:
        return documents_of(_get_session().read.table(source))


def changes_for_cdc(name: str = "changes_for_cdc", source: str = "changelog") -> None:
    """Declare a temporary view of the changes for AUTO CDC; see `keyed_changes`.

    Args:
        name: the name of the view.
        source: the table with the changelog.
    """
    from pyspark import pipelines as dp

    @dp.temporary_view(name=name)
    def changes() -> DataFrame:
        return keyed_changes(_get_session().readStream.table(source), _get_session().read.table(source))


def current_by_cdc(name: str = "current", source: str = "changes_for_cdc", **table: str) -> None:
    """Declare a table of the present documents, maintained by AUTO CDC.

    After a rollback the table needs a full refresh.

    Args:
        name: the name of the table.
        source: a view by `changes_for_cdc`.
        table: `format` and other arguments of `create_streaming_table`. Spark must be able to MERGE into the format.
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


def _get_session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.active()


# Queries


def documents_of(changes: DataFrame) -> DataFrame:
    """Return the present documents of a changelog, with the columns of a lake's current table.

    The result equals that of `penstock.spark.lake.changelog.merge_rules.merge_changes`.

    Args:
        changes: all rows of a changelog, in any order.
    """
    placed = _add_seqno_order(changes)
    newest = F.max_by(F.struct(*MERGE_SCHEMA.names), F.struct("history", SEQNO_ORDER)).alias("newest")
    documents = _select_surviving(placed, placed).groupBy(*IDENTITY).agg(newest).select("newest.*")
    is_text = F.is_valid_utf8(F.col("key").cast("string"))
    columns: dict[str, Column] = {name: F.col(name) for name in CURRENT_COLUMNS.names if name != "key_bytes"}
    columns["key"] = F.when(is_text, F.col("key").cast("string"))
    columns["key_bytes"] = F.when(~is_text, F.col("key"))
    return documents.where(F.col("event") == Event.MUTATION).select(
        *(columns[name].alias(name) for name in CURRENT_COLUMNS.names)
    )


def keyed_changes(changes: DataFrame, everything: DataFrame) -> DataFrame:
    """Return the valid changes of documents, with the columns SEQUENCE and IS_DELETE.

    A document's key is (vbucket, collection_id, key), of which none is null. Changes that a stream has already returned
    cannot be withdrawn. So after a rollback a consumer must restart from zero to equal the bucket.

    Args:
        changes: rows of a changelog, as a table or a stream.
        everything: the present changelog. Changes that its rollbacks and ended collections void are left out.
    """
    placed = _add_seqno_order(changes)
    high = F.col("history").cast("decimal(10,0)") * F.lit(Decimal(2**64))
    low = F.col(SEQNO_ORDER).cast("decimal(20,0)") + F.lit(Decimal(2**63))
    sequence = (high + low).cast("decimal(32,0)").alias(SEQUENCE)
    is_delete = (F.col("event") != Event.MUTATION).alias(IS_DELETE)
    return _select_surviving(placed, _add_seqno_order(everything)).select(*MERGE_SCHEMA.names, sequence, is_delete)


def _add_seqno_order(changes: DataFrame) -> DataFrame:
    """Return rows with SEQNO_ORDER. A document without a collection is in the default collection."""
    place = F.coalesce("seqno", F.lit(0)).bitwiseXOR(F.lit(-(2**63)))
    collection = F.coalesce("collection_id", F.lit(0)).alias("collection_id")
    others = [name for name in MERGE_SCHEMA.names if name != "collection_id"]
    return changes.select(*others, collection, place.alias(SEQNO_ORDER))


def _select_surviving(changes: DataFrame, everything: DataFrame) -> DataFrame:
    """Return the changes of documents that neither a rollback nor the end of their collection voids.

    Each row gets the list of its vbucket's rollbacks. They are few, so they are broadcast.
    """
    rollbacks = F.collect_list(F.struct("history", SEQNO_ORDER)).alias("rollbacks")
    cuts = everything.where(_is_event_in(ROLLBACK_EVENTS.to_pylist())).groupBy("vbucket").agg(rollbacks)
    ended = F.max(F.struct("history", SEQNO_ORDER)).alias("ended")
    ends = _drop_rolled_back(everything.where(_is_event_in(COLLECTION_EVENTS.to_pylist())), cuts)
    ends = ends.groupBy("vbucket", "collection_id").agg(ended)
    documents = _drop_rolled_back(changes.where(_is_event_in(DOCUMENT_EVENTS.to_pylist())), cuts)
    documents = documents.join(F.broadcast(ends), ["vbucket", "collection_id"], "left")
    is_later = F.struct("history", SEQNO_ORDER) > F.col("ended")
    return documents.where(F.col("ended").isNull() | is_later).select(*ORDERED_COLUMNS)


def _drop_rolled_back(changes: DataFrame, cuts: DataFrame) -> DataFrame:
    def takes_away(rollback: Column) -> Column:
        return (rollback["history"] > F.col("history")) & (F.col(SEQNO_ORDER) > rollback[SEQNO_ORDER])

    joined = changes.join(F.broadcast(cuts), "vbucket", "left")
    is_cut = F.coalesce(F.exists("rollbacks", takes_away), F.lit(False))
    return joined.where(~is_cut).select(*ORDERED_COLUMNS)


def _is_event_in(events: list[str]) -> Column:
    return F.col("event").isin(events)
