"""What one task does with its rows: requests in windows, the next one made while the last one is answered."""

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
from penstock.client.documents.write_requests import Fault, WriteRequests, encode
from penstock.errors import Error, UnknownCollection, UnknownScope, UsageError
from penstock.spark.sink.request_rows import Prepared, TargetCollection, asking, prepare
from penstock.spark.sink.sink_options import Operation, SinkOptions
from penstock.wire.codec.statuses import Status

__all__ = ["Counts", "FirstRefused", "RefusedRows", "found_cas", "refusal_of", "windows", "write_tables"]

WINDOW_ROWS, WINDOW_BYTES = 32_768, 8 << 20
"""Rows that are on their way together: a window ends when all its rows are answered."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of rows. written: documents stored or removed. older: refused, because the bucket has a version that
    wins. missing: to be removed, and not there. skipped: with nothing to say of a document. failed: refused."""

    written: int = 0
    older: int = 0
    missing: int = 0
    skipped: int = 0
    failed: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows that were refused, and why, in the same order."""

    rows: pa.Table
    faults: list[Fault]

    @property
    def first(self) -> str:
        key = self.rows["key"][0].as_py()
        return f"key {key!r}: {self.faults[0].text}"


def write_tables(options: SinkOptions, tables: Iterable[pa.Table], on_refused: Callable[[RefusedRows], None]) -> Counts:
    """Write rows to the bucket; return what became of them.

    tables: windows of rows, with columns that `check_columns` lets pass. on_refused: called for each window in which
    rows were refused; what it raises ends the task. Raises as BulkWriter does.
    """
    total = Counts()
    with LoopThread("penstock-sink") as loop, _Writing(loop, options) as writing:
        under_way: tuple[_Window, Future[Outcomes]] | None = None
        for table in tables:
            window = writing.prepare(table, prepare)
            if under_way is not None:
                total += _end(options.operation, *under_way, writing, on_refused)
            under_way = window, writing.start(window)
        if under_way is not None:
            total += _end(options.operation, *under_way, writing, on_refused)
    return total


def found_cas(options: SinkOptions, table: pa.Table) -> npt.NDArray[np.uint64]:
    """Return the cas of what the bucket has under each row's key, tombstones included; 0 where there is nothing."""
    found = [np.empty(0, np.uint64)]
    with LoopThread("penstock-sink") as loop, _Writing(loop, options) as writing:
        for rows in windows(table.to_batches()):
            found.append(writing.start(writing.prepare(rows, asking)).result().cas)
    return np.concatenate(found)


def windows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Give the same rows in pieces of a window's size, or little more."""
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


class FirstRefused:
    """Remembers the first refused row, and lets the task go on, so that all of them are counted."""

    def __init__(self) -> None:
        self.text = ""

    def take(self, refused: RefusedRows) -> None:
        self.text = self.text or refused.first


def refusal_of(counts: Counts, first: str) -> Error:
    """Return what ends a job whose rows must not fail."""
    seen = sum(getattr(counts, each.name) for each in fields(counts))
    return Error(f"{counts.failed} of {seen} rows sent by this task were refused; the first is {first}")


@dataclass(frozen=True, slots=True)
class _Window:
    table: pa.Table
    prepared: Prepared
    requests: WriteRequests


class _Writing:
    """A bucket that is written to, from a thread that has no event loop."""

    def __init__(self, loop: LoopThread, options: SinkOptions) -> None:
        self._loop = loop
        self._options = options
        self._bucket = BulkWriter(options.address, options.max_bytes_in_flight)

    def __enter__(self) -> Self:
        self._loop.run(self._bucket.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.run(self._bucket.__aexit__(*exc))

    def prepare(self, table: pa.Table, how: Callable[[SinkOptions, pa.Table], Prepared]) -> _Window:
        prepared = how(self._options, table)
        rows = prepared.with_prefixes([self._prefix(name) for name in prepared.names])
        return _Window(table, prepared, encode(rows, self._bucket.vbuckets))

    def start(self, window: _Window) -> Future[Outcomes]:
        return self._loop.start(self._bucket.write(window.requests))

    def end(self, window: _Window, future: Future[Outcomes]) -> Outcomes:
        """Wait for the answers of a window. Rows of a collection that has become another one are sent once more."""
        outcomes = future.result()
        unknown = [
            place
            for place, fault in outcomes.faults.items()
            if fault.status == Status.UNKNOWN_COLLECTION and place not in window.requests.faults
        ]
        if unknown:
            self._bucket.forget_collections()
            again = self.prepare(window.table.take(pa.array(window.prepared.kept[unknown])), prepare)
            found = self.start(again).result()
            outcomes.status[unknown], outcomes.cas[unknown] = found.status, found.cas
            for number, place in enumerate(unknown):
                del outcomes.faults[place]
                if number in found.faults:
                    outcomes.faults[place] = found.faults[number]
        return outcomes

    def _prefix(self, name: TargetCollection) -> bytes | Fault:
        try:
            return self._loop.run(self._bucket.prefix(*name))
        except (UnknownCollection, UnknownScope) as error:
            if self._options.collection or self._options.scope:
                raise UsageError(str(error)) from None  # all rows go there
            return Fault(error.status, str(error))


def _end(
    operation: Operation,
    window: _Window,
    future: Future[Outcomes],
    writing: _Writing,
    on_refused: Callable[[RefusedRows], None],
) -> Counts:
    """Wait for the answers of a window, and count them."""
    outcomes = writing.end(window, future)
    counts, refused = judge(operation, outcomes)
    kept = window.prepared.kept
    counts += Counts(skipped=window.table.num_rows - len(kept))
    if refused:
        faults = [outcomes.faults[place] for place in refused]
        on_refused(RefusedRows(window.table.take(pa.array(kept[refused])), faults))
    return counts


def judge(operation: Operation, outcomes: Outcomes) -> tuple[Counts, list[int]]:
    """Count what became of requests; return also which were refused.

    What an operation that is done once more meets of its first time is no refusal: a document that is gone already, or
    one that is as new.
    """
    bad = np.flatnonzero(outcomes.status)
    status = outcomes.status[bad]
    removing = operation in (Operation.DELETE, Operation.CHANGE, Operation.WITH_META)
    missing = (status == Status.KEY_ENOENT) & removing
    older = (status == Status.KEY_EEXISTS) & (operation is Operation.WITH_META)
    refused = bad[~missing & ~older]
    written = len(outcomes.status) - len(bad)
    return Counts(written, int(older.sum()), int(missing.sum()), 0, len(refused)), refused.tolist()
