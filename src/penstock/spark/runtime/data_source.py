"""`format("dcp")`: a bucket as a Spark data source, for reading in batches and streams, and for writing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.spark.source.readers import DcpReader, DcpStreamReader, FilteringReader
from penstock.spark.source.source_options import SourceOptions
from penstock.spark.source.source_schema import make_read_schema

if TYPE_CHECKING:
    from penstock.spark.sink.spark_writer import DcpStreamWriter, DcpWriter


class DcpDataSource(DataSource):
    """The data source that is registered as "dcp"."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "dcp"

    def schema(self) -> StructType:
        """Return the schema of a read."""
        return make_read_schema(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> DcpReader:
        """Return the reader of a batch read."""
        options = SourceOptions.parse(self.options)
        return (FilteringReader if options.filter_pushdown else DcpReader)(options, schema)

    def streamReader(self, schema: StructType) -> DcpStreamReader:
        """Return the reader of a streaming query."""
        return DcpStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DcpWriter:
        """Return the writer of a batch job."""
        from penstock.spark.sink.spark_writer import (
            make_batch_writer,
        )  # late: it loads pandas, and most queries only read

        return make_batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DcpStreamWriter:
        """Return the writer of a streaming query."""
        from penstock.spark.sink.spark_writer import (
            make_stream_writer,
        )  # late: it loads pandas, and most queries only read

        return make_stream_writer(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Register `format("dcp")` with a session. Repeated calls are harmless."""
    spark.dataSource.register(DcpDataSource)
