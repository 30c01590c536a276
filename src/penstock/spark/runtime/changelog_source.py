"""The source of a pipeline that stores changes as they are: its tasks write changelog files.

Spark passes the names of the files to the sink, which commits them. So no row crosses into Java and back. A task that
runs again writes other files. Only the files of the run that Spark counts get into the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.lake.changelog.changelog_writer import GATHERED_BYTES, GATHERED_ROWS, write_files
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.runtime.changelog_sink import WRITTEN_FILES, open_lake
from penstock.spark.source.partition_reader import BatchSize, read_partition
from penstock.spark.source.readers import DcpStreamReader
from penstock.spark.source.shape import Shape

_BATCH_SIZE = BatchSize(GATHERED_ROWS, GATHERED_BYTES)
_LAKE = "lake."
"""The beginning of the options of the lake. Those of the bucket have none."""


class ChangelogFileReader(DcpStreamReader):
    """A streaming read of a bucket whose tasks write files.

    Args:
        given: the options of `format("dcp")`.
        lake: the lake with the changelog.
        vbuckets: number of vbuckets in the bucket.
    """

    def __init__(self, given: Mapping[str, str], lake: LakeDirectory, vbuckets: int) -> None:
        super().__init__(given, WRITTEN_FILES)
        self._lake = lake
        self._vbuckets = vbuckets

    @cached_property
    def _shape(self) -> Shape:
        return self.options.shape

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the rows of a partition into files; called in a worker.

        Yields:
            The names of the files.
        """
        files = write_files(
            read_partition(partition, _BATCH_SIZE), self._lake.changelog_table.write_root, self._vbuckets
        )
        yield pa.RecordBatch.from_pydict({"file": [json.dumps(asdict(file)) for file in files]}, _ARROW_SCHEMA)


_ARROW_SCHEMA = pa.schema([("file", pa.string())])


class ChangelogFileSource(DataSource):
    """`spark.readStream.format("penstock-changelog-files")`, for the sink `format("penstock-changelog")`.

    Its options are those of `format("dcp")`, and, after `lake.`, those of the sink that say where the lake is: `path`,
    `tableFormat`, `catalog`, `vbuckets` and `keepHours`. The sink must have the same.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "penstock-changelog-files"

    def schema(self) -> StructType:
        """Return the schema of rows that name files."""
        return WRITTEN_FILES

    def streamReader(self, schema: StructType) -> ChangelogFileReader:
        """Return the reader of a streaming query."""
        of_lake = {name.removeprefix(_LAKE): text for name, text in self.options.items() if name.startswith(_LAKE)}
        given = {name: text for name, text in self.options.items() if not name.startswith(_LAKE)}
        return ChangelogFileReader(given, *open_lake(of_lake, self.name()))
