"""`format("dcp")`: a bucket as a Spark data source, for reading in batches and streams, and for writing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.argument_types import check_arguments
from penstock.spark.runtime.catalog_tables import (
    find_options,
    keep_options,
    list_names,
    read_table_options,
    refuse_location,
    remove_options,
)
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
        """Return the schema of a read, or that of a table in Spark's catalog."""
        self._is_described = True  # Spark sends this object to the process that makes the reader
        table = read_table_options(self.options)
        if table is None:
            return make_read_schema(SourceOptions.parse(self.options))
        refuse_location(self.options)
        from penstock.spark.sink.sink_options import SinkOptions  # late: most queries create no table

        only_for_writes = list_names(SinkOptions) - list_names(SourceOptions)
        for_reads = {name: text for name, text in table.items() if name not in only_for_writes}
        return keep_options(make_read_schema(SourceOptions.parse(for_reads)), table)

    def reader(self, schema: StructType) -> DcpReader:
        """Return the reader of a batch read."""
        options = SourceOptions.parse(self._find_read_options(schema))
        return (FilteringReader if options.filter_pushdown else DcpReader)(options, remove_options(schema))

    def streamReader(self, schema: StructType) -> DcpStreamReader:
        """Return the reader of a streaming query."""
        return DcpStreamReader(self._find_read_options(schema), remove_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DcpWriter:
        """Return the writer of a batch job."""
        from penstock.spark.sink.spark_writer import (
            make_batch_writer,
        )  # late: it loads pandas, and most queries only read

        return make_batch_writer(self._find_write_options(schema), remove_options(schema), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DcpStreamWriter:
        """Return the writer of a streaming query."""
        from penstock.spark.sink.spark_writer import (
            make_stream_writer,
        )  # late: it loads pandas, and most queries only read

        return make_stream_writer(self._find_write_options(schema), remove_options(schema), overwrite=overwrite)

    def _find_read_options(self, schema: StructType) -> dict[str, str]:
        is_described = getattr(self, "_is_described", False)
        return find_options(self.options, schema, SourceOptions, "url", is_described=is_described)

    def _find_write_options(self, schema: StructType) -> dict[str, str]:
        from penstock.spark.sink.sink_options import SinkOptions  # late, as its writers

        return find_options(self.options, schema, SinkOptions, "url")


@check_arguments
def register(spark: SparkSession) -> None:
    """Register all formats of Penstock with a session. Repeated calls are harmless.

    Spark on this machine then starts its workers with this process's Python, unless PYSPARK_PYTHON or the setting
    `spark.pyspark.python` names another Python. Raises UsageError if the Python that Spark starts does not have
    Penstock.
    """
    from penstock.spark.runtime.changelog_sink import ChangelogSink  # late: workers load this module, and only read
    from penstock.spark.runtime.changelog_source import ChangelogFileSource
    from penstock.spark.runtime.lake_source import LakeSource
    from penstock.spark.runtime.worker_python import choose_worker_python

    if isinstance(spark, SparkSession):  # a session of Spark Connect has its workers elsewhere
        choose_worker_python(spark.sparkContext)
    for source in (DcpDataSource, LakeSource, ChangelogSink, ChangelogFileSource):
        spark.dataSource.register(source)
