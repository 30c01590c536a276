"""A lake: the tables that a pipeline keeps, and what can be read from them. Nothing here needs Spark."""

from penstock.spark.lake.tables import Lake

__all__ = ["Lake"]
