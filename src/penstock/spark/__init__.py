"""Spark: the data source `format("dcp")`, the tables, and the pipeline between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("dcp")` known to a session; again is harmless."""
    from penstock.spark.source.source import DcpDataSource

    spark.dataSource.register(DcpDataSource)
