"""Writes rows to a bucket in windows: a window is prepared while the nodes answer the one before it.

XDCR and the sinks of Spark write with it. A window is limited in rows and bytes, and so is the memory of a writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.client.documents.bulk import BulkWriter, Outcomes
from penstock.client.documents.row_columns import PreparedRows, TargetCollection
from penstock.client.documents.write_requests import Fault, WriteRequests, encode_writes
from penstock.errors import UnknownCollection, UnknownScope
from penstock.wire.codec.statuses import Status

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
        """The first refused row."""
        return self.describe(1)[0]

    def describe(self, most: int) -> list[str]:
        """Return key, place and reason of the first rows.

        Args:
            most: the number of rows, at most.
        """
        names = [name for name in ("key", *_PLACES) if name in self.rows.column_names]
        rows = self.rows.select(names).slice(0, most).to_pylist()
        return [
            f"key {row['key']!r}: {fault.text}{_describe_place(row)}"
            for row, fault in zip(rows, self.faults[:most], strict=True)
        ]


_PLACES = ("scope", "collection", "vbucket", "seqno")
"""Columns of changes that say which change a row is."""


def _describe_place(row: Mapping[str, Any]) -> str:
    """Return the collection, vbucket and seqno of a change in brackets; nothing for a row that is no change."""
    parts = [f"collection {row.get('scope')}.{row['collection']}"] if row.get("collection") else []
    parts += [f"vbucket {row.get('vbucket')}, seqno {row['seqno']}"] if row.get("seqno") is not None else []
    return f" ({', '.join(parts)})" if parts else ""


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


@dataclass(frozen=True, slots=True)
class WindowResult:
    """The result of writing a window.

    Attributes:
        outcomes: the outcome of each request.
        counts: the numbers of rows by outcome.
        refused: the refused rows; None if there are none.
    """

    outcomes: Outcomes
    counts: WriteCounts
    refused: RefusedRows | None


UnknownHandler = Callable[[UnknownCollection | UnknownScope], Fault]
"""Returns the fault of all rows of an unknown collection, or raises an error."""


class WindowWriter:
    """Writes one table after another to a bucket, each while the next one is prepared.

    Args:
        bucket: the connected bucket.
        prepare: makes the requests of a table; it is called in another thread.
        accepted: the answers that are not refusals.
        on_unknown: handles collections that the bucket does not have; None raises the error.
    """

    def __init__(
        self,
        bucket: BulkWriter,
        prepare: Callable[[pa.Table], PreparedRows],
        *,
        accepted: AcceptedStatuses,
        on_unknown: UnknownHandler | None = None,
    ) -> None:
        self._bucket = bucket
        self._prepare = prepare
        self._accepted = accepted
        self._on_unknown = on_unknown
        self._under_way: asyncio.Task[WindowResult] | None = None

    async def submit(self, table: pa.Table) -> WindowResult | None:
        """Start to write rows as soon as the rows before them are answered.

        Returns:
            The result of the rows before; None if there were none. Raises the errors of BulkWriter.write.
        """
        window = await self._make_window(table)
        result = await self.finish()
        self._under_way = asyncio.create_task(self._write(window))
        return result

    async def finish(self) -> WindowResult | None:
        """Return the result of the submitted rows as soon as all are answered; None if all were returned before.

        Raises the errors of BulkWriter.write. After a cancellation no row is under way.
        """
        task, self._under_way = self._under_way, None
        return None if task is None else await task  # a cancellation cancels the task too

    async def close(self) -> None:
        """Give up the rows that are under way. Nodes may have executed their requests."""
        task, self._under_way = self._under_way, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _make_window(self, table: pa.Table) -> _RowWindow:
        prepared = await asyncio.to_thread(self._prepare, table)
        found = [await self._find_prefix(name) for name in prepared.names]
        rows, vbuckets = prepared.add_prefixes(found), self._bucket.vbuckets
        return _RowWindow(table, prepared, await asyncio.to_thread(encode_writes, rows, vbuckets))

    async def _find_prefix(self, name: TargetCollection) -> bytes | Fault:
        try:
            return await self._bucket.find_key_prefix(*name)
        except (UnknownCollection, UnknownScope) as error:
            if self._on_unknown is None:
                raise
            return self._on_unknown(error)

    async def _write(self, window: _RowWindow) -> WindowResult:
        """Write a window.

        A collection may have been deleted and created again with another id. Rows of such a collection are sent a
        second time.
        """
        outcomes = await self._bucket.write(window.requests, self._accepted.statuses)
        unknown = [
            place
            for place, fault in outcomes.faults.items()
            if fault.status == Status.UNKNOWN_COLLECTION and place not in window.requests.faults
        ]
        if unknown:
            self._bucket.forget_collections()
            again = await self._make_window(window.table.take(pa.array(window.prepared.sent_rows[unknown])))
            found = await self._bucket.write(again.requests, self._accepted.statuses)
            outcomes.status[unknown], outcomes.cas[unknown] = found.status, found.cas
            for number, place in enumerate(unknown):
                del outcomes.faults[place]
                if number in found.faults:
                    outcomes.faults[place] = found.faults[number]
        return self._make_result(window, outcomes)

    def _make_result(self, window: _RowWindow, outcomes: Outcomes) -> WindowResult:
        kept = window.prepared.sent_rows
        counts, failed = count_outcomes(self._accepted, outcomes)
        counts += WriteCounts(skipped=window.table.num_rows - len(kept))
        refused = None
        if failed:
            faults = [outcomes.faults[place] for place in failed]
            refused = RefusedRows(window.table.take(pa.array(kept[failed])), faults)
        return WindowResult(outcomes, counts, refused)


@dataclass(frozen=True, slots=True)
class AcceptedStatuses:
    """The answers that are not refusals, because a row may be sent a second time.

    Attributes:
        missing: the document to remove does not exist (KEY_ENOENT).
        older: the bucket has a version that is as new (KEY_EEXISTS).
    """

    missing: bool = False
    older: bool = False

    @property
    def statuses(self) -> list[int]:
        """The statuses."""
        chosen = ((Status.KEY_ENOENT, self.missing), (Status.KEY_EEXISTS, self.older))
        return [int(status) for status, is_accepted in chosen if is_accepted]


def count_outcomes(accepted: AcceptedStatuses, outcomes: Outcomes) -> tuple[WriteCounts, Sequence[int]]:
    """Return the numbers of requests by outcome, and the positions of refused requests."""
    bad = np.flatnonzero(outcomes.status)
    status = outcomes.status[bad]
    missing = (status == Status.KEY_ENOENT) & accepted.missing
    older = (status == Status.KEY_EEXISTS) & accepted.older
    refused = bad[~missing & ~older]
    written = len(outcomes.status) - len(bad)
    return WriteCounts(written, int(older.sum()), int(missing.sum()), 0, len(refused)), refused.tolist()
