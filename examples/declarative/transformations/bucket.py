"""A bucket's changes, and its documents. The environment names the bucket and the user."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import declarative

declarative.changelog()
declarative.current()
declarative.changes_for_cdc()


@dp.table
def keyed() -> DataFrame:
    """Return the input of AUTO CDC, kept as a table."""
    return SparkSession.active().readStream.table("changes_for_cdc")
