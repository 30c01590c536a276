"""Spark's side of the changelog: the streaming sink `format("penstock-changelog")`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from penstock.client.connect.address import MAX_VBUCKETS
from penstock.digits import read_digits
from penstock.errors import UsageError
from penstock.spark.lake.changelog.changelog_writer import abort_batch, commit_batch, write_files
from penstock.spark.lake.maintenance.time_travel import MOST_HOURS
from penstock.spark.lake.tables.data_files import DataFile
from penstock.spark.lake.tables.delta_store import DEFAULT_HOURS
from penstock.spark.lake.tables.directory import LakeDirectory, read_query_id
from penstock.spark.lake.tables.iceberg.iceberg_catalog import check_catalog, resolve_catalog
from penstock.spark.lake.tables.lake_checkpoint import publish_commit, publish_end
from penstock.spark.lake.tables.lake_lock import check_lock
from penstock.spark.storage.object_path import ObjectPath
from penstock.wire.columns.schema import CHANGE_SCHEMA

WRITTEN_FILES = StructType([StructField("file", StringType())])
"""The schema of rows that name finished files: a DataFile as JSON in each."""


@dataclass
class FilesWritten(WriterCommitMessage):
    """The message of a task to the driver.

    Attributes:
        files: the files that the task wrote.
    """

    files: list[DataFile] = field(default_factory=list)


class ChangelogWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches to the changelog of a lake.

    `write` runs in a task, `commit` and `abort` run in a new process beside the driver.

    Attributes:
        lake: the lake.
        checkpoint: the checkpoint of the query.
        query_id: the query's id; None to read it from the checkpoint.
        vbuckets: the number of vbuckets of the bucket.
        lock: the token of the lake's lock, if the lake has a lease.
    """

    def __init__(self, lake: LakeDirectory, checkpoint: Path, query: str | None, vbuckets: int, lock: str) -> None:
        self.lake = lake
        self.checkpoint = checkpoint
        self.query_id = query
        self.vbuckets = vbuckets
        self.lock = lock

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        """Return the message with the files of a task, after writing them; called in a worker."""
        return FilesWritten(write_files(iterator, self.lake.changelog_table.write_root, self.vbuckets))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the files of a micro-batch to the changelog."""
        self._prepare(batchId)
        self._commit_files(_list_files(messages), batchId)
        if self._has_scratch:
            publish_commit(self.lake, batchId)

    def _commit_files(self, files: list[DataFile], batch: int) -> None:
        commit_batch(self.lake, self._find_query_id(), batch, files, vbuckets=self.vbuckets)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the files of a failed micro-batch."""
        abort_batch(self.lake, _list_files(messages))

    @property
    def _has_scratch(self) -> bool:
        """Whether the checkpoint is a local copy that the lake does not have."""
        return isinstance(self.lake.path, ObjectPath)

    def _prepare(self, batch: int) -> None:
        """Store the end of a batch in an object store, unless another run has taken over the lake.

        Raises LakeRefused if another run has taken over.
        """
        check_lock(self.lake.path, self.lock)
        if self._has_scratch:
            publish_end(self.lake, self.checkpoint, batch)

    def _find_query_id(self) -> str:
        query = self.query_id or read_query_id(self.checkpoint)
        if query is None:
            raise UsageError(f"{self.checkpoint} has no metadata; expected the checkpoint of the running query")
        return query


FORMATS = ("delta", "iceberg", "parquet")
"""The formats of a changelog."""


def open_lake(options: Mapping[str, str], format_name: str) -> tuple[LakeDirectory, int]:
    """Return the lake that options name, and the number of vbuckets of its bucket.

    Args:
        options: `path`, and optionally `tableFormat`, `catalog`, `vbuckets` and `keepHours`; see `ChangelogSink`.
        format_name: the format that has these options, for errors.

    Raises:
        UsageError: an option is missing or invalid.
    """
    given = {name.lower(): text for name, text in options.items()}
    if not given.get("path"):
        raise UsageError(f"{format_name} has no option path; expected the lake's directory in it")
    vbuckets = read_digits(given.get("vbuckets", "1024"), MAX_VBUCKETS, 1)
    if vbuckets is None:
        raise UsageError(
            f"{format_name} has vbuckets {given['vbuckets']!r}; expected a number from 1 to {MAX_VBUCKETS}"
        )
    table_format = given.get("tableformat", "delta")
    if table_format not in FORMATS:
        raise UsageError(f"{format_name} has tableFormat {table_format!r}; expected one of {', '.join(FORMATS)}")
    hours = read_digits(given.get("keephours", str(DEFAULT_HOURS)), MOST_HOURS, 1)
    if hours is None:
        raise UsageError(f"{format_name} has keepHours {given['keephours']!r}; expected 1 to {MOST_HOURS}")
    catalog = given.get("catalog")
    if catalog:
        check_catalog(catalog)
        catalog = resolve_catalog(catalog, Path.cwd())
    return LakeDirectory(given["path"], table_format, catalog or None, hours), vbuckets


def _list_files(messages: Iterable[WriterCommitMessage | None]) -> list[DataFile]:
    return [file for message in messages if isinstance(message, FilesWritten) for file in message.files]


class FileListWriter(ChangelogWriter):
    """Commits files that the tasks of `format("penstock-changelog-files")` have written."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        """Return the message with the files that the rows name; called in a worker."""
        return FilesWritten([DataFile(**json.loads(text)) for batch in iterator for text in batch["file"].to_pylist()])


class ChangelogSink(DataSource):
    """`df.writeStream.format("penstock-changelog")`, for a frame with the columns of a change.

    Spark passes these options: `path`, the lake; `checkpointLocation`, the checkpoint of the query. `vbuckets` is the
    number of vbuckets of the bucket, 1024 by default. `queryId` replaces the id in the checkpoint. `tableFormat` is
    delta, iceberg, or parquet for plain files. `catalog` is the URI of the catalog of Iceberg tables. `keepHours` is
    the time for which past versions of new typed tables can be read. `lock` is the token of the lake's lease, if it has
    one.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "penstock-changelog"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ChangelogWriter:
        """Return the writer of a streaming query.

        Args:
            schema: the columns of the frame.
            overwrite: ignored.

        Raises:
            UsageError: an option is missing or invalid, or the columns are not those of a change.
        """
        lake, vbuckets = open_lake(self.options, self.name())
        if not self.options.get("checkpointLocation"):
            raise UsageError(
                f"{self.name()} has no option checkpointLocation; expected the checkpoint of the query in it"
            )
        query, lock = self.options.get("queryId"), self.options.get("lock", "")
        checkpoint = Path(self.options["checkpointLocation"].removeprefix("file://").removeprefix("file:"))
        if schema == WRITTEN_FILES:
            return FileListWriter(lake, checkpoint, query, vbuckets, lock)
        differing = sorted(set(CHANGE_SCHEMA.names) ^ set(schema.fieldNames()))
        if differing:
            raise UsageError(f"{self.name()} takes the columns of a change; these differ: {', '.join(differing)}")
        return ChangelogWriter(lake, checkpoint, query, vbuckets, lock)
