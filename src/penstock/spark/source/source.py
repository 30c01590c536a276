"""`format("dcp")`: a bucket's changes as a Spark data source, batch and streaming."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark.source.options import SourceOptions
from penstock.spark.source.readers import DcpReader, DcpStreamReader
from penstock.wire.schema import CHANGE_SCHEMA


class DcpDataSource(DataSource):
    """Registered as "dcp"."""

    @classmethod
    def name(cls) -> str:
        return "dcp"

    def schema(self) -> StructType:
        return from_arrow_schema(CHANGE_SCHEMA)

    def reader(self, schema: StructType) -> DcpReader:
        return DcpReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DcpStreamReader:
        return DcpStreamReader(self.options)
