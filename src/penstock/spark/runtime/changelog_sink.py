"""Spark's side of the changelog: the streaming sink `format("penstock-changelog")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.errors import UsageError
from penstock.spark.lake.changelog import plain_changelog as plain
from penstock.spark.lake.changelog.changelog_writer import abort, commit, write_files
from penstock.spark.lake.tables.delta_table import DataFile
from penstock.spark.lake.tables.directory import LakeDirectory, query_id
from penstock.wire.columns.schema import CHANGE_SCHEMA


@dataclass
class FilesWritten(WriterCommitMessage):
    """The message of a task to the driver: the files that it wrote."""

    files: list[DataFile] = field(default_factory=list)


class ChangelogWriter(DataSourceStreamArrowWriter):
    """Spark's view of this module: `write` runs in a task, `commit` and `abort` in a new process beside the driver.

    query: the query's id, or None to read it from the checkpoint.
    """

    def __init__(self, lake: LakeDirectory, checkpoint: Path, query: str | None, vbuckets: int) -> None:
        self.lake = lake
        self.checkpoint = checkpoint
        self.query = query
        self.vbuckets = vbuckets

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        return FilesWritten(write_files(iterator, self.lake.changelog_table.path, self.vbuckets))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit(self.lake, self._query(), batchId, _files(messages), vbuckets=self.vbuckets)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort(self.lake, _files(messages))

    def _query(self) -> str:
        query = self.query or query_id(self.checkpoint)
        if query is None:
            raise UsageError(f"{self.checkpoint} has no metadata; expected the checkpoint of the running query")
        return query


class PlainWriter(ChangelogWriter):
    """The same for a changelog of plain Parquet files."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        return FilesWritten(write_files(iterator, plain.pending(self.lake), self.vbuckets))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        plain.commit(self.lake, self._query(), batchId, _files(messages), vbuckets=self.vbuckets)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        plain.abort(self.lake, _files(messages))


WRITERS = {"delta": ChangelogWriter, "parquet": PlainWriter}


def _files(messages: Iterable[WriterCommitMessage | None]) -> list[DataFile]:
    return [file for message in messages if isinstance(message, FilesWritten) for file in message.files]


class ChangelogSink(DataSource):
    """`df.writeStream.format("penstock-changelog")`, for a frame with the columns of a change.

    Options: `path`, the lake; `checkpointLocation`, whose query writes it; `vbuckets`, how many the bucket has (1024);
    `queryId` instead of the id in the checkpoint; `tableFormat`, delta or parquet (plain files; see lake/plain.py).
    """

    @classmethod
    def name(cls) -> str:
        return "penstock-changelog"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ChangelogWriter:
        for option in ("path", "checkpointLocation"):
            if not self.options.get(option):
                raise UsageError(f"penstock-changelog has no option {option}; expected the lake's directory in it")
        differing = sorted(set(CHANGE_SCHEMA.names) ^ set(schema.fieldNames()))
        if differing:
            raise UsageError(f"penstock-changelog takes the columns of a change; these differ: {', '.join(differing)}")
        checkpoint = Path(self.options["checkpointLocation"].removeprefix("file://").removeprefix("file:"))
        vbuckets = self.options.get("vbuckets", "1024")
        if not vbuckets.isdigit() or not int(vbuckets):
            raise UsageError(f"penstock-changelog has vbuckets {vbuckets!r}; expected a number above 0")
        table_format = self.options.get("tableFormat", "delta")
        if table_format not in WRITERS:
            raise UsageError(
                f"penstock-changelog has tableFormat {table_format!r}; expected one of {', '.join(WRITERS)}"
            )
        writer = WRITERS[table_format]
        return writer(LakeDirectory(self.options["path"]), checkpoint, self.options.get("queryId"), int(vbuckets))
