"""Writes the rows of a task to a bucket, from a thread without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.blocking import LoopThread
from penstock.client.documents.bulk import BulkWriter
from penstock.client.documents.meta_requests import prepare_cas_reads
from penstock.client.documents.row_columns import PreparedRows
from penstock.client.documents.window_writer import (
    AcceptedStatuses,
    RefusedRows,
    WindowResult,
    WindowWriter,
    WriteCounts,
    divide_into_windows,
)
from penstock.client.documents.write_requests import Fault
from penstock.errors import Error, UnknownCollection, UnknownScope, UsageError
from penstock.spark.sink.request_rows import prepare_writes
from penstock.spark.sink.sink_options import Operation, SinkOptions


def write_tables(
    options: SinkOptions, tables: Iterable[pa.Table], on_refused: Callable[[RefusedRows], None]
) -> WriteCounts:
    """Write rows to the bucket. Raises the errors of BulkWriter.

    Args:
        options: the options of the write.
        tables: windows of rows, with columns that `check_columns` accepts.
        on_refused: called for each window with refused rows. An exception from it ends the task.

    Returns:
        The numbers of rows by outcome.
    """
    total = WriteCounts()
    for result in _write_windows(options, tables, partial(prepare_writes, options)):
        total += result.counts
        if result.refused is not None:
            on_refused(result.refused)
    return total


def read_cas(options: SinkOptions, table: pa.Table) -> npt.NDArray[np.uint64]:
    """Return the cas of the document, or tombstone, under the key of each row; 0 if there is none.

    Args:
        options: the options of the write.
        table: rows with a column key.
    """
    prepare = partial(prepare_cas_reads, scope=options.scope, collection=options.collection)
    windows = divide_into_windows(table.to_batches())
    found = [result.outcomes.cas for result in _write_windows(options, windows, prepare)]
    return np.concatenate([np.empty(0, np.uint64), *found])


def _write_windows(
    options: SinkOptions, tables: Iterable[pa.Table], prepare: Callable[[pa.Table], PreparedRows]
) -> Iterator[WindowResult]:
    """Yield the result of each table that has been written. The next table is read while the nodes answer."""
    with LoopThread("penstock-sink") as loop, _connect_writer(loop, options, prepare) as writer:
        for table in tables:
            if (result := loop.run(writer.submit(table))) is not None:
                yield result
        if (result := loop.run(writer.finish())) is not None:
            yield result


@contextmanager
def _connect_writer(
    loop: LoopThread, options: SinkOptions, prepare: Callable[[pa.Table], PreparedRows]
) -> Iterator[WindowWriter]:
    def handle_unknown(error: UnknownCollection | UnknownScope) -> Fault:
        if options.collection or options.scope:
            raise UsageError(str(error)) from None  # all rows go to this collection
        return Fault(error.status, str(error))

    removing = options.operation in (Operation.DELETE, Operation.CHANGE, Operation.WITH_META)
    accepted = AcceptedStatuses(missing=removing, older=options.operation is Operation.WITH_META)
    bucket = BulkWriter(options.address, options.max_bytes_in_flight)
    loop.run(bucket.__aenter__())
    writer = WindowWriter(bucket, prepare, accepted=accepted, on_unknown=handle_unknown)
    try:
        yield writer
    finally:
        loop.run(writer.close())
        loop.run(bucket.__aexit__())


class FirstRefusal:
    """Remembers the first refused row while the task continues, so that all refused rows are counted.

    Attributes:
        text: the key and the reason of the first refused row; empty if there is none.
    """

    def __init__(self) -> None:
        self.text = ""

    def record(self, refused: RefusedRows) -> None:
        """Remember the first of these rows, unless a row is already remembered."""
        self.text = self.text or refused.first_refusal


def make_refusal_error(counts: WriteCounts, first: str) -> Error:
    """Return the error that ends a task with refused rows."""
    seen = sum(getattr(counts, each.name) for each in fields(counts))
    return Error(f"{counts.failed} of {seen} rows sent by this task were refused; the first is {first}")
