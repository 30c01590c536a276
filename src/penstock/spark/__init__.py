"""Spark: the data source `format("dcp")`, the tables, and the pipeline between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["latest_offsets", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("dcp")` known to a session; again is harmless."""
    from penstock.spark.data_source import DcpDataSource

    spark.dataSource.register(DcpDataSource)


def latest_offsets(url: str | None = None, **options: object) -> str:
    """Return where a bucket's changes end now, as JSON for the options endingOffsets and startingOffsets.

    options: those of `format("dcp")` that say which bucket, who logs in and which vbuckets. A batch read that ends
    here, and a stream that starts here once that has ended, have all changes, each once. Raises UsageError for what
    cannot be, and as `connect` does.
    """
    from penstock.spark.source.readers import latest_offsets

    given = {**({} if url is None else {"url": url}), **options}
    return latest_offsets({name: str(value) for name, value in given.items()})
