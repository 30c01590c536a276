"""Spark's side of writing to a bucket: `write` runs in tasks, `commit` and `abort` in a process beside the driver.

What tasks have written stays written whatever becomes of the job: a bucket takes nothing back. So all writing is at
least once, and only dead letters wait for the commit.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import UsageError
from penstock.spark.sink import dead_letters
from penstock.spark.sink.bucket_writes import Counts, FirstRefused, refusal_of, windows, write_tables
from penstock.spark.sink.sink_columns import check_columns
from penstock.spark.sink.sink_options import SinkOptions

__all__ = ["DcpStreamWriter", "DcpWriter", "Written", "batch_writer", "stream_writer"]

logger = logging.getLogger("penstock.spark")


@dataclass
class Written(WriterCommitMessage):
    """The message of a task to the driver. letters: its file of refused rows, if there are any."""

    counts: Counts = field(default_factory=Counts)
    letters: Path | None = None


@dataclass(frozen=True)
class Writing:
    """What both kinds of writers do. run: what this writer's dead letters are staged under."""

    options: SinkOptions
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write a task's rows. Raises Error for rows that are refused, unless they go to the dead letters."""
        if self.options.dead_letter_path is None:
            first = FirstRefused()
            counts = write_tables(self.options, windows(batches), first.take)
            if first.text:
                raise refusal_of(counts, first.text)
            return Written(counts)
        with dead_letters.LetterFile(self.options.dead_letter_path, self.run) as letters:
            counts = write_tables(self.options, windows(batches), letters.write)
            return Written(counts, letters.close())

    def commit(self, messages: list[WriterCommitMessage | None], batch: str) -> None:
        written = [each for each in messages if isinstance(each, Written)]
        counts = sum((each.counts for each in written), Counts())
        if self.options.dead_letter_path is not None:
            files = [each.letters for each in written if each.letters is not None]
            dead_letters.commit(self.options.dead_letter_path, self.run, batch, files)
        level = logging.WARNING if counts.failed else logging.INFO
        logger.log(level, "%s, batch %s: %s", self.options.address, batch, counts)

    def abort(self) -> None:
        if self.options.dead_letter_path is not None:
            dead_letters.abort(self.options.dead_letter_path, self.run)


class DcpWriter(DataSourceArrowWriter):
    """A batch job's. Its dead letters are those of a batch with this writer's own id."""

    def __init__(self, options: SinkOptions) -> None:
        self.writing = Writing(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.writing.commit(messages, self.writing.run)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.writing.abort()


class DcpStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's."""

    def __init__(self, options: SinkOptions) -> None:
        self.writing = Writing(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.writing.commit(messages, f"{batchId:09}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.writing.abort()


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DcpWriter:
    """Raises UsageError for options or columns that cannot be, and for what would replace a table."""
    return DcpWriter(_checked(given, schema, overwrite=overwrite))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DcpStreamWriter:
    """As batch_writer; overwrite: the query's output mode is complete."""
    return DcpStreamWriter(_checked(given, schema, overwrite=overwrite))


def _checked(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise UsageError("a bucket is not a table that can be overwritten; expected mode append")
    options = SinkOptions.parse(given)
    check_columns(options, to_arrow_schema(schema, timezone="UTC"))
    return options
