"""Reads the changes of the source ahead of the writes: a bounded queue of changes that the source has on disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.client.documents.window_writer import WINDOW_BYTES, WINDOW_ROWS
from penstock.client.feeds.stream_position import Position
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.persistence_gate import PersistenceGate


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
