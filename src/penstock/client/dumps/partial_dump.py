"""The rows of a dump that is not complete: a file that only grows, and the positions that belong to its length.

A format such as Parquet cannot be continued, so the rows are kept as a stream of Arrow until the dump is complete.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, convert

from penstock.client.documents.meta_requests import select_documents
from penstock.client.feeds.stream_position import BEGINNING, Position
from penstock.client.positions.file_positions import FilePositions
from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.positions.synced_file import remove_file
from penstock.errors import Error, PositionsUnreadable, UsageError
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event

_NOTE = "dump"
_ORDER = ("vbucket", "history", "seqno")
"""The columns that a rollback compares."""


class _Note(Struct):
    """The note of a dump in its positions.

    Attributes:
        nbytes: the length of the file of rows at these positions.
        rows: the number of its rows.
        rollbacks: [vbucket, history, seqno]: rows of that vbucket and a lower history are void above the seqno.
        choice: the options that choose changes.
    """

    nbytes: int
    rows: int
    rollbacks: list[tuple[int, int, int]]
    choice: dict[str, Any]


class PartialDump(PositionStore):
    """Keeps the rows of a dump in `FILE.partial`, and its positions in `FILE.positions`.

    Positions are written after the rows before them are on disk. A later process cuts off the rows after the last
    positions, and continues there. So no row is lost, and none is there twice.

    Args:
        target: the file of the complete dump.
        choice: the options that choose changes. Positions of another choice are refused.

    Attributes:
        path: the file of rows.
        rows: the number of rows.
        is_continued: whether the rows of an earlier process are kept.

    Raises:
        UsageError: another process writes the dump.
        Error: the file cannot be written.
    """

    def __init__(self, target: Path, choice: Mapping[str, Any]) -> None:
        self.path = target.with_name(f"{target.name}.partial")
        self.rows = 0
        self.is_continued = False
        self._choice = dict(choice)
        self._positions = FilePositions(target.with_name(f"{target.name}.positions"))
        self._rollbacks: list[tuple[int, int, int]] = []
        try:
            self._file = self.path.open("ab")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(f"{self.path} is in use, expected no other process that writes {target}") from None
        except OSError as error:
            raise Error(f"{self.path} cannot be written: {error.strerror or error}") from error

    def __str__(self) -> str:
        return str(self._positions)

    def close(self) -> None:
        """Close the file, and let other processes write the dump."""
        self._file.close()

    async def read(self) -> SavedPositions | None:
        """Return the positions, and cut off the rows after them; None for a new dump.

        Raises:
            UsageError: the dump has other options.
            PositionsUnreadable: the positions do not belong to the file of rows.
        """
        saved = await self._positions.read()
        if saved is None:
            self._file.truncate(0)
            self._file.write(CHANGE_SCHEMA.serialize())
            return None
        try:
            note = convert(saved.notes.get(_NOTE), _Note)
        except ValueError as error:
            raise PositionsUnreadable(f"{self._positions}: {error}, expected the positions of a dump") from None
        if note.choice != self._choice:
            changed = sorted(name for name in self._choice if note.choice.get(name) != self._choice[name])
            raise UsageError(
                f"{self._positions} belongs to a dump with other options: {', '.join(changed) or 'unknown'}; "
                "use the same options, or the option replace to start over"
            )
        if os.fstat(self._file.fileno()).st_size < note.nbytes:
            raise PositionsUnreadable(f"{self.path} is shorter than {note.nbytes} bytes; remove {self._positions.path}")
        self._file.truncate(note.nbytes)
        self.rows, self._rollbacks, self.is_continued = note.rows, note.rollbacks, True
        return replace(saved, by_vbucket={**saved.by_vbucket, **self._restart_unordered(saved.by_vbucket)})

    async def write(self, saved: SavedPositions) -> None:
        """Write the positions after all rows, once the rows are on disk."""
        self._file.flush()
        await asyncio.to_thread(os.fdatasync, self._file.fileno())
        note = {
            "nbytes": os.fstat(self._file.fileno()).st_size,
            "rows": self.rows,
            "rollbacks": self._rollbacks,
            "choice": self._choice,
        }
        await self._positions.write(replace(saved, notes={_NOTE: note}))

    async def discard(self) -> None:
        """Forget the rows of an earlier process."""
        await self._positions.remove()

    async def remove(self) -> None:
        """Remove the positions and the rows."""
        await self._positions.remove()  # first: rows without positions are of no use, and do no harm
        remove_file(self.path)

    def append(self, batch: pa.RecordBatch) -> None:
        """Append the changes of documents in a batch, and note its rollbacks."""
        documents = select_documents(batch)
        if len(documents) < batch.num_rows:
            for row in batch.filter(pc.equal(batch.column("event"), str(Event.ROLLBACK))).to_pylist():
                self._rollbacks.append((row["vbucket"], row["history"], row["seqno"]))
            batch = batch.take(pa.array(documents))
        if batch.num_rows:
            self._file.write(batch.serialize())
            self.rows += batch.num_rows

    def _restart_unordered(self, positions: Mapping[int, Position]) -> dict[int, Position]:
        """Make rows of vbuckets without progress void: they come from snapshots out of order, which begin again.

        Returns:
            vbucket -> position from which it begins again, in a history above that of its rows.
        """
        self._file.flush()
        with pa.memory_map(str(self.path)) as source:
            written = {vb for batch in pa.ipc.open_stream(source) for vb in pc.unique(batch["vbucket"]).to_pylist()}
        found = {vb: positions.get(vb, BEGINNING) for vb in sorted(written)}
        restarted = {vb: Position(history=each.history + 1) for vb, each in found.items() if not each.seqno}
        self._rollbacks += [(vb, position.history, 0) for vb, position in restarted.items()]
        return restarted

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that no rollback has made void."""
        self._file.flush()
        with pa.memory_map(str(self.path)) as source:
            for batch in pa.ipc.open_stream(source):
                void = np.zeros(batch.num_rows, bool)
                for vbucket, history, seqno in self._rollbacks:
                    vbuckets, histories, seqnos = (np.asarray(batch.column(name)) for name in _ORDER)
                    void |= (vbuckets == vbucket) & (histories < history) & (seqnos > seqno)
                yield batch.filter(pa.array(~void)) if void.any() else batch
