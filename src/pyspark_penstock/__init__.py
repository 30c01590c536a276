"""How Spark finds `format("dcp")` by itself: it asks each module named pyspark_* on its path for a DefaultSource."""

from penstock.spark.runtime.data_source import DcpDataSource as DefaultSource

__all__ = ["DefaultSource"]
