"""Writes the rows of a task in windows: a window is prepared while the node answers the one before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.blocking import LoopThread
from penstock.client.documents.bulk import BulkWriter, Outcomes
from penstock.client.documents.write_requests import Fault, WriteRequests, encode_writes
from penstock.errors import Error, UnknownCollection, UnknownScope, UsageError
from penstock.spark.sink.request_rows import PreparedRows, TargetCollection, prepare_cas_reads, prepare_writes
from penstock.spark.sink.sink_options import Operation, SinkOptions
from penstock.wire.codec.statuses import Status

__all__ = [
    "FirstRefusal",
    "RefusedRows",
    "WriteCounts",
    "divide_into_windows",
    "make_refusal_error",
    "read_cas",
    "write_tables",
]

WINDOW_ROWS, WINDOW_BYTES = 32_768, 8 << 20
"""Limits of a window, in rows and bytes. A window ends when all its rows are answered."""


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """Numbers of rows by outcome.

    Attributes:
        written: rows whose documents were stored or removed.
        older: rows that the bucket refused because its version wins the conflict.
        missing: rows to remove whose document did not exist.
        skipped: rows without a change of a document.
        failed: rows that were refused for other reasons.
    """

    written: int = 0
    older: int = 0
    missing: int = 0
    skipped: int = 0
    failed: int = 0

    def __add__(self, other: WriteCounts) -> WriteCounts:
        return WriteCounts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows that the bucket refused.

    Attributes:
        rows: the rows.
        faults: the reason of each row, in the same order.
    """

    rows: pa.Table
    faults: list[Fault]

    @property
    def first_refusal(self) -> str:
        """The key and the reason of the first refused row."""
        key = self.rows["key"][0].as_py()
        return f"key {key!r}: {self.faults[0].text}"


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
    with LoopThread("penstock-sink") as loop, _WindowWriter(loop, options) as writing:
        under_way: tuple[_RowWindow, Future[Outcomes]] | None = None
        for table in tables:
            window = writing.prepare(table, prepare_writes)
            if under_way is not None:
                total += _finish_window(options.operation, *under_way, writing, on_refused)
            under_way = window, writing.start(window)
        if under_way is not None:
            total += _finish_window(options.operation, *under_way, writing, on_refused)
    return total


def read_cas(options: SinkOptions, table: pa.Table) -> npt.NDArray[np.uint64]:
    """Return the cas of the document, or tombstone, under the key of each row; 0 if there is none.

    Args:
        options: the options of the write.
        table: rows with a column key.
    """
    found = [np.empty(0, np.uint64)]
    with LoopThread("penstock-sink") as loop, _WindowWriter(loop, options) as writing:
        for rows in divide_into_windows(table.to_batches()):
            found.append(writing.start(writing.prepare(rows, prepare_cas_reads)).result().cas)
    return np.concatenate(found)


def divide_into_windows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Divide rows into tables of a window's size or a little more.

    Args:
        batches: the rows.

    Yields:
        The same rows in the same order.
    """
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        step = max(1, min(WINDOW_ROWS, batch.num_rows * WINDOW_BYTES // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            held.append(piece)
            rows, nbytes = rows + piece.num_rows, nbytes + piece.nbytes
            if rows >= WINDOW_ROWS or nbytes >= WINDOW_BYTES:
                yield pa.Table.from_batches(held)
                held, rows, nbytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


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


@dataclass(frozen=True, slots=True)
class _RowWindow:
    """Rows that are written together.

    Attributes:
        table: the rows.
        prepared: their requests in columns.
        requests: their requests as bytes.
    """

    table: pa.Table
    prepared: PreparedRows
    requests: WriteRequests


class _WindowWriter:
    """Writes windows to a bucket from a thread without an event loop."""

    def __init__(self, loop: LoopThread, options: SinkOptions) -> None:
        self._loop = loop
        self._options = options
        self._bucket = BulkWriter(options.address, options.max_bytes_in_flight)

    def __enter__(self) -> Self:
        self._loop.run(self._bucket.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.run(self._bucket.__aexit__(*exc))

    def prepare(self, table: pa.Table, preparation: Callable[[SinkOptions, pa.Table], PreparedRows]) -> _RowWindow:
        prepared = preparation(self._options, table)
        rows = prepared.add_prefixes([self._find_prefix(name) for name in prepared.names])
        return _RowWindow(table, prepared, encode_writes(rows, self._bucket.vbuckets))

    def start(self, window: _RowWindow) -> Future[Outcomes]:
        return self._loop.start(self._bucket.write(window.requests))

    def finish(self, window: _RowWindow, future: Future[Outcomes]) -> Outcomes:
        """Return the outcomes of a window as soon as all its rows are answered.

        A collection may have been deleted and created again with another id. Rows of such a collection are sent a
        second time.
        """
        outcomes = future.result()
        unknown = [
            place
            for place, fault in outcomes.faults.items()
            if fault.status == Status.UNKNOWN_COLLECTION and place not in window.requests.faults
        ]
        if unknown:
            self._bucket.forget_collections()
            again = self.prepare(window.table.take(pa.array(window.prepared.sent_rows[unknown])), prepare_writes)
            found = self.start(again).result()
            outcomes.status[unknown], outcomes.cas[unknown] = found.status, found.cas
            for number, place in enumerate(unknown):
                del outcomes.faults[place]
                if number in found.faults:
                    outcomes.faults[place] = found.faults[number]
        return outcomes

    def _find_prefix(self, name: TargetCollection) -> bytes | Fault:
        try:
            return self._loop.run(self._bucket.find_key_prefix(*name))
        except (UnknownCollection, UnknownScope) as error:
            if self._options.collection or self._options.scope:
                raise UsageError(str(error)) from None  # all rows go to this collection
            return Fault(error.status, str(error))


def _finish_window(
    operation: Operation,
    window: _RowWindow,
    future: Future[Outcomes],
    writing: _WindowWriter,
    on_refused: Callable[[RefusedRows], None],
) -> WriteCounts:
    """Return the numbers of a window's rows by outcome as soon as all are answered."""
    outcomes = writing.finish(window, future)
    counts, refused = count_outcomes(operation, outcomes)
    kept = window.prepared.sent_rows
    counts += WriteCounts(skipped=window.table.num_rows - len(kept))
    if refused:
        faults = [outcomes.faults[place] for place in refused]
        on_refused(RefusedRows(window.table.take(pa.array(kept[refused])), faults))
    return counts


def count_outcomes(operation: Operation, outcomes: Outcomes) -> tuple[WriteCounts, list[int]]:
    """Return the numbers of requests by outcome, and the positions of refused requests.

    A task may run a second time. So two answers are not refusals: the document to remove does not exist, or the bucket
    has a version that is as new.
    """
    bad = np.flatnonzero(outcomes.status)
    status = outcomes.status[bad]
    removing = operation in (Operation.DELETE, Operation.CHANGE, Operation.WITH_META)
    missing = (status == Status.KEY_ENOENT) & removing
    older = (status == Status.KEY_EEXISTS) & (operation is Operation.WITH_META)
    refused = bad[~missing & ~older]
    written = len(outcomes.status) - len(bad)
    return WriteCounts(written, int(older.sum()), int(missing.sum()), 0, len(refused)), refused.tolist()
