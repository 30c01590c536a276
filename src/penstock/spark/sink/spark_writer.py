"""Spark's writers to a bucket: `write` runs in tasks, `commit` and `abort` in a process beside the driver.

A bucket cannot undo writes. So rows that tasks have written stay written if the job fails, and all writes happen at
least once. Only dead letters wait for the commit.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from penstock.client.documents.json_text import describe_odd_type
from penstock.client.documents.window_writer import WriteCounts, divide_into_windows
from penstock.errors import Error, UsageError
from penstock.spark.sink import dead_letters
from penstock.spark.sink.bucket_writes import FirstRefusal, make_refusal_error, write_tables
from penstock.spark.sink.sink_columns import check_columns
from penstock.spark.sink.sink_options import SinkOptions
from penstock.spark.storage.object_path import LakePath

logger = logging.getLogger("penstock.spark")


@dataclass
class WriteMessage(WriterCommitMessage):
    """The message of a task to the driver.

    Attributes:
        counts: the numbers of rows by outcome.
        letter_file: the file of refused rows; None without refused rows.
    """

    counts: WriteCounts = field(default_factory=WriteCounts)
    letter_file: LakePath | None = None


@dataclass(frozen=True)
class WriteJob:
    """The work of batch and streaming writers.

    Attributes:
        options: the options of the write.
        run: the name of the staging directory for dead letters.
    """

    options: SinkOptions
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriteMessage:
        """Write the rows of a task.

        Args:
            batches: the rows.

        Returns:
            The message for the driver.

        Raises:
            Error: rows were refused, and the options do not send them to the dead letters.
        """
        if self.options.dead_letter_path is None:
            first = FirstRefusal()
            counts = write_tables(self.options, divide_into_windows(batches), first.record)
            if first.text:
                refusal: Error = make_refusal_error(counts, first.text)
                raise refusal
            return WriteMessage(counts)
        with dead_letters.DeadLetterFile(self.options.dead_letter_path, self.run) as letters:
            counts = write_tables(self.options, divide_into_windows(batches), letters.write)
            return WriteMessage(counts, letters.close())

    def commit(self, messages: list[WriterCommitMessage | None], batch: str) -> None:
        """Publish the dead letters of a batch, and log the numbers of its rows."""
        written = [each for each in messages if isinstance(each, WriteMessage)]
        counts = sum((each.counts for each in written), WriteCounts())
        if self.options.dead_letter_path is not None:
            files = [each.letter_file for each in written if each.letter_file is not None]
            dead_letters.commit_letters(self.options.dead_letter_path, self.run, batch, files)
        level = logging.WARNING if counts.failed else logging.INFO
        logger.log(level, "%s, batch %s: %s", self.options.address, batch, counts)

    def abort(self) -> None:
        """Remove the dead letters of a failed batch."""
        if self.options.dead_letter_path is not None:
            dead_letters.discard_letters(self.options.dead_letter_path, self.run)


class DcpWriter(DataSourceArrowWriter):
    """The writer of a batch job. Its own id names the batch of its dead letters.

    Attributes:
        job: the work.
    """

    def __init__(self, options: SinkOptions) -> None:
        self.job = WriteJob(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteMessage:
        """Return the message of a task after writing its rows; called in a worker."""
        return self.job.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the job; called after all tasks."""
        self.job.commit(messages, self.job.run)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the job; called if a task failed."""
        self.job.abort()


class DcpStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query.

    Attributes:
        job: the work.
    """

    def __init__(self, options: SinkOptions, checkpoint: str | None = None) -> None:
        self.job = WriteJob(options)
        if options.dead_letter_path is not None and checkpoint is not None:
            query = dead_letters.claim_directory(options.dead_letter_path, checkpoint)
            self.job = WriteJob(options, f"{query}/{self.job.run}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteMessage:
        """Return the message of a task after writing its rows; called in a worker."""
        return self.job.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch; called after all tasks."""
        self.job.commit(messages, f"{batchId:09}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort a micro-batch; called if a task failed."""
        self.job.abort()


def make_batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DcpWriter:
    """Return the writer of a batch job.

    Args:
        given: the options as text.
        schema: the columns.
        overwrite: whether the mode is overwrite.

    Raises:
        UsageError: options or columns are invalid, or the write would replace a table.
    """
    return DcpWriter(_parse_write(given, schema, overwrite=overwrite))


def make_stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DcpStreamWriter:
    """Return the writer of a streaming query. Arguments and errors are those of `make_batch_writer`.

    The directory of its dead letters must not belong to another query.

    Args:
        given: the options as text.
        schema: the columns.
        overwrite: whether the query's output mode is complete.
    """
    checkpoints = [text for name, text in given.items() if name.lower() == "checkpointlocation"]
    return DcpStreamWriter(_parse_write(given, schema, overwrite=overwrite), *checkpoints)


def _parse_write(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise UsageError("a bucket is not a table that can be overwritten; expected mode append")
    options = SinkOptions.parse(given)
    for column in schema:
        _check_type(column.dataType, column.name)
    check_columns(options, to_arrow_schema(schema, timezone="UTC"))
    return options


def _check_type(of: DataType, path: str) -> None:
    """Check that Arrow has a type. Errors have the name of the type that users know.

    Args:
        of: the type.
        path: the column, and the field in it.

    Raises:
        UsageError: Arrow does not have the type, or a name stands twice in a struct.
    """
    if isinstance(of, StructType):
        if twice := [name for name in of.names if of.names.count(name) > 1]:
            raise UsageError(f"column {path!r} has the field {twice[0]!r} twice, expected it once")
        for member in of:
            _check_type(member.dataType, f"{path}.{member.name}")
    elif isinstance(of, ArrayType):
        _check_type(of.elementType, f"{path}[]")
    elif isinstance(of, MapType):
        _check_type(of.keyType, f"{path}.key")
        _check_type(of.valueType, f"{path}.value")
    else:
        try:
            to_arrow_type(of, timezone="UTC")
        except PySparkException:
            raise UsageError(describe_odd_type(path, of.simpleString())) from None
        if isinstance(of, VariantType):  # in Arrow it is a struct of two binary fields
            raise UsageError(describe_odd_type(path, of.simpleString()))
