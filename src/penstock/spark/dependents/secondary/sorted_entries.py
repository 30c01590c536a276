"""Sorted entries as streams: more of them than memory holds are sorted and merged table by table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from penstock.spark.dependents.secondary.entries import count_up_to, sort_entries
from penstock.spark.storage.object_path import LakePath
from penstock.spark.storage.scratch_file import ScratchFile, ScratchPlace

RUN_BYTES = 128 << 20
"""Arrow bytes of the entries that are sorted at once. Sorting needs three times as much memory."""
TABLE_BYTES = 2 << 20
"""Approximate Arrow bytes of the tables of a sorted run. A merge holds one table of each run."""

CountEntries = Callable[[pa.Table], int]
"""Returns how many of the first entries of a table belong to something."""


class EntryStream:
    """Sorted entries, which are read once, from the lowest value on.

    Args:
        tables: the entries, sorted within and across the tables.
    """

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = iter(tables)
        self._first: pa.Table | None = None

    def peek(self) -> pa.Table | None:
        """Return the first of the remaining entries, None at the end."""
        while self._first is None or not self._first.num_rows:
            self._first = next(self._tables, None)
            if self._first is None:
                return None
        return self._first

    def take(self, count: CountEntries) -> pa.Table | None:
        """Return the entries at the start of `peek()` that `count` counts, and go on behind them; None at the end."""
        entries = self.peek()
        if entries is None:
            return None
        rows = count(entries)
        self._first = entries.slice(rows) if rows < entries.num_rows else None
        return entries.slice(0, rows)

    def read(self, count: CountEntries) -> Iterator[pa.Table]:
        """Yield entries up to the first that `count` leaves out."""
        while (entries := self.take(count)) is not None and entries.num_rows:
            yield entries


def merge_streams(streams: Iterable[EntryStream]) -> Iterator[pa.Table]:
    """Yield the entries of all streams, sorted. Memory holds one table of each stream, and its sorted copy."""
    remaining = list(streams)
    while remaining := [stream for stream in remaining if stream.peek() is not None]:
        if len(remaining) == 1:
            yield from remaining[0].read(count_all)
            return
        # No later table has an entry below the least of the last values, so all entries up to it are complete.
        last = [entries["value"][-1] for stream in remaining if (entries := stream.peek()) is not None]
        values = [value for value in last if value.is_valid]  # a misfit is above all values
        count = partial(count_up_to, high=min(values, key=lambda value: value.as_py())) if values else count_all
        yield sort_entries(pa.concat_tables(part for stream in remaining if (part := stream.take(count)) is not None))


def count_all(entries: pa.Table) -> int:
    """Return the number of all entries, for `EntryStream.read`."""
    return int(entries.num_rows)


class EntrySorter:
    """Sorts entries in bounded memory. If they are many, sorted runs of them are kept in a scratch file and merged.

    A context manager: the scratch file exists up to the end of the block at most.

    Args:
        directory: where a scratch file lies.
        schema: the columns of the entries.
    """

    def __init__(self, directory: LakePath, schema: pa.Schema) -> None:
        self._directory = directory
        self._held = [schema.empty_table()]
        self._bytes = 0
        self._scratch: ScratchFile | None = None
        self._runs: list[list[ScratchPlace]] = []

    def add(self, entries: pa.Table) -> None:
        """Add entries in any order. Raises DiskFull if the scratch file has no room.

        Args:
            entries: the entries.
        """
        self._held.append(entries)
        self._bytes += entries.nbytes
        if self._bytes > RUN_BYTES:
            self._write_run()

    def read(self) -> EntryStream:
        """Return all added entries, sorted. No entries may be added afterwards."""
        held = EntryStream([self._sort_held()])
        return EntryStream(merge_streams([*(EntryStream(self._read_run(run)) for run in self._runs), held]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scratch is not None:
            self._scratch.close()

    def _sort_held(self) -> pa.Table:
        """Return the entries in memory, sorted, and forget them."""
        entries = pa.concat_tables(self._held)
        self._held, self._bytes = [entries.schema.empty_table()], 0
        return sort_entries(entries)

    def _write_run(self) -> None:
        if self._scratch is None:
            self._scratch = ScratchFile(self._directory)
        size, entries = self._bytes, self._sort_held()
        step = max(1, entries.num_rows * TABLE_BYTES // size)
        tables = (entries.slice(at, step) for at in range(0, entries.num_rows, step))
        self._runs.append([self._scratch.write(table) for table in tables])

    def _read_run(self, run: list[ScratchPlace]) -> Iterator[pa.Table]:
        for place in run:
            if self._scratch is not None:
                yield self._scratch.read(place)
