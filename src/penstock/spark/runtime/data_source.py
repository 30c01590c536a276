"""`format("dcp")`: a bucket as a Spark data source: its changes, batch and streaming, and writing to it."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.spark.sink.spark_writer import DcpStreamWriter, DcpWriter, batch_writer, stream_writer
from penstock.spark.source.readers import DcpReader, DcpStreamReader, FilteringReader
from penstock.spark.source.source_options import SourceOptions
from penstock.spark.source.source_schema import schema_of


class DcpDataSource(DataSource):
    """Registered as "dcp"."""

    @classmethod
    def name(cls) -> str:
        return "dcp"

    def schema(self) -> StructType:
        return schema_of(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> DcpReader:
        options = SourceOptions.parse(self.options)
        return (FilteringReader if options.filter_pushdown else DcpReader)(options, schema)

    def streamReader(self, schema: StructType) -> DcpStreamReader:
        return DcpStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DcpWriter:
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DcpStreamWriter:
        return stream_writer(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make `format("dcp")` known to a session; again is harmless."""
    spark.dataSource.register(DcpDataSource)
