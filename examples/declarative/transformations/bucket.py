"""A bucket's changes, and the documents that they leave. Which bucket, and who logs in, the environment says."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import declarative

declarative.changelog()
declarative.current()
declarative.changes_for_cdc()


@dp.table
def keyed() -> DataFrame:
    """What AUTO CDC would take, kept as a table."""
    return SparkSession.active().readStream.table("changes_for_cdc")
