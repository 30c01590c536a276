"""Reads the changes of the source ahead of the writes: a bounded queue of changes that the source has on disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.client.documents.window_writer import WINDOW_BYTES, WINDOW_ROWS
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.topology.persisted_seqnos import PersistedSeqno
from penstock.client.topology.vbucket_reports import VbucketReports
from penstock.errors import Error, Unreachable

__all__ = ["BranchLost", "ChangeReader", "ChangeWindow", "PersistenceGate"]

_FIRST_DELAY, _MOST_DELAY = 0.005, 0.25
"""Seconds between two questions whether changes are on disk. A disk takes some milliseconds."""


class BranchLost(Error):
    """A vbucket has a new branch, which may lack changes that the replication has read or written."""


class PersistenceGate:
    """Holds changes back until the source has them on disk.

    Args:
        reports: requests the source's seqnos.
        patience: seconds without progress of the source's disk, after which waiting ends with an error.
    """

    def __init__(self, reports: VbucketReports, patience: float) -> None:
        self._reports = reports
        self._patience = patience
        self._known: dict[int, PersistedSeqno] = {}
        self._branches: dict[int, int] = {}

    async def wait_until_persisted(self, delivery: Delivery) -> None:
        """Wait until the changes of a delivery are on disk.

        Raises:
            BranchLost: a vbucket has a new branch. The stream must resume at an earlier position.
            Unreachable: the source's disk makes no progress.
        """
        self._branches.update({vbucket: log[0].vbuuid for vbucket, log in delivery.logs.items() if log})
        missing, delay, waited = self._find_missing(delivery.positions), _FIRST_DELAY, 0.0
        while missing:
            before = {vbucket: self._known.get(vbucket) for vbucket in missing}
            self._known.update(await self._reports.persisted_seqnos(missing))
            for vbucket in missing:
                self._check_branch(vbucket)
            missing = self._find_missing(delivery.positions)
            if not missing:
                return
            waited = waited + delay if before == {vbucket: self._known.get(vbucket) for vbucket in before} else 0.0
            if waited > self._patience:
                raise Unreachable(f"vbucket {min(missing)}: its changes are not on disk after {self._patience:g} s")
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MOST_DELAY)

    def _check_branch(self, vbucket: int) -> None:
        known, expected = self._known.get(vbucket), self._branches.get(vbucket)
        if known is not None and expected is not None and known.vbuuid != expected:
            raise BranchLost(f"vbucket {vbucket} of the source has a new branch")

    def _find_missing(self, positions: Mapping[int, Position]) -> list[int]:
        """Return the vbuckets whose positions are not known to be on disk."""
        known = self._known
        return [
            vbucket
            for vbucket, position in positions.items()
            if vbucket not in known
            or known[vbucket].persisted_seqno < position.seqno
            or known[vbucket].vbuuid != self._branches.get(vbucket, known[vbucket].vbuuid)
        ]


@dataclass(slots=True)
class ChangeWindow:
    """Changes that are written together.

    Attributes:
        batches: the changes.
        positions: source vbucket -> position after the changes.
        rows: the number of changes.
        nbytes: their size in memory.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)
    positions: dict[int, Position] = field(default_factory=dict)
    rows: int = 0
    nbytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the window has as many changes as are written together."""
        return self.rows >= WINDOW_ROWS or self.nbytes >= WINDOW_BYTES

    def add(self, batch: pa.RecordBatch, positions: Mapping[int, Position]) -> None:
        """Add changes, and the positions after them."""
        self.batches.append(batch)
        self.positions.update(positions)
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes


class ChangeReader:
    """Reads a stream into windows. It holds at most one window beyond the one that is being written.

    Args:
        stream: the stream.
        gate: holds changes back until they are on disk; None: changes pass at once.
    """

    def __init__(self, stream: ChangeStream, gate: PersistenceGate | None) -> None:
        self._stream = stream
        self._gate = gate
        self._windows: deque[ChangeWindow] = deque()
        self._has_ended = False
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def has_waiting(self) -> bool:
        """Whether a window is waiting, or the stream has ended."""
        return bool(self._windows) or self._has_ended

    async def read_stream(self) -> None:
        """Read until the end of the stream. Raises the errors of the stream, and those of PersistenceGate."""
        while (delivery := await self._stream.next_delivery()) is not None:
            if self._gate is not None:
                await self._gate.wait_until_persisted(delivery)
            if not self._windows or self._windows[-1].is_full:
                self._windows.append(ChangeWindow())
            self._windows[-1].add(delivery.batch, delivery.positions)
            self._changed.set()
            while self._windows and self._windows[-1].is_full:
                self._taken.clear()
                await self._taken.wait()
        if not self._windows:
            self._windows.append(ChangeWindow())
        self._windows[-1].positions.update(self._stream.positions)
        self._has_ended = True
        self._changed.set()

    async def take_window(self) -> ChangeWindow | None:
        """Return the next window as soon as it has a change; None after the end of the stream."""
        while not self._windows:
            if self._has_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        self._taken.set()
        return self._windows.popleft()
