"""Merging new entries into the files of an index, in bounded memory."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.spark.dependents.secondary.entries import count_up_to, join_outdated
from penstock.spark.dependents.secondary.entry_files import EntryWriter, FilePart
from penstock.spark.dependents.secondary.sorted_entries import EntryStream, count_all, merge_streams
from penstock.spark.lake.changelog.changelog_delta import LOOKUP_COLUMNS, RangeDelta
from penstock.spark.storage.object_files import read_parquet

MARK_ROWS = 1 << 20
"""Documents that are searched at once among as many entries. Memory holds the keys, and tables of their hashes."""

Bools = npt.NDArray[np.bool_]


class OutdatedEntries:
    """Finds the entries in an index's files that no longer count.

    Args:
        parts: the files.
    """

    def __init__(self, parts: list[FilePart]) -> None:
        self._parts = parts
        self._masks: list[Bools | None] = [None] * len(parts)
        self._deltas: list[RangeDelta] = []
        self._rows = 0

    def add(self, delta: RangeDelta) -> None:
        """Void the entries of the delta's documents. Raises FileNotFoundError if a file was removed.

        Args:
            delta: the newest changes of some documents, of which only the identities matter.
        """
        if self._parts:
            self._deltas.append(delta)
            self._rows += delta.changes.num_rows
            if self._rows >= MARK_ROWS:
                self._mark_files()

    def find_kept(self) -> list[Bools | None]:
        """Return a mask of the entries that still count for each file, None if all of them do."""
        self._mark_files()
        return [None if mask is None else ~mask for mask in self._masks]

    def _mark_files(self) -> None:
        """Mark the entries of the added documents in all files, and forget the documents."""
        delta = join_outdated(self._deltas)
        self._deltas, self._rows = [], 0
        vbuckets = delta.find_vbuckets()
        found: list[tuple[int, Bools, pa.Table]] = []
        for number, part in enumerate(self._parts if len(vbuckets) else ()):
            entries = read_parquet(part.path, list(LOOKUP_COLUMNS))
            concerned = np.isin(entries["vbucket"].to_numpy(), vbuckets)
            found.append((number, concerned, entries.filter(pa.array(concerned))))
            if sum(rows.num_rows for _, _, rows in found) >= MARK_ROWS:
                self._mark_entries(delta, found)
                found = []
        self._mark_entries(delta, found)

    def _mark_entries(self, delta: RangeDelta, found: list[tuple[int, Bools, pa.Table]]) -> None:
        """Mark the outdated entries among those of some files: together, because the delta is hashed at each search."""
        if not found:
            return
        is_outdated = delta.mark_outdated(pa.concat_tables(rows for _, _, rows in found)).to_numpy(zero_copy_only=False)
        start = 0
        for number, concerned, rows in found:
            outdated = is_outdated[start : start + rows.num_rows]
            start += rows.num_rows
            if outdated.any():
                mask = self._masks[number]
                if mask is None:
                    mask = self._masks[number] = np.zeros(len(concerned), bool)
                mask[concerned] |= outdated


def merge_entries(
    parts: list[FilePart], outdated: OutdatedEntries, new_entries: EntryStream, writer: EntryWriter
) -> list[str]:
    """Write the valid entries of files and new entries, sorted. A file stays if none of its entries changes.

    Args:
        parts: all parts of a table, lowest values first.
        outdated: the entries of these files that no longer count.
        new_entries: the new entries.
        writer: writes the entries.

    Returns:
        Names of the files that were replaced.
    """
    replaced = []
    for part, kept in zip(parts, outdated.find_kept(), strict=True):
        count = count_all if part is parts[-1] else partial(_count_until, part)
        first = new_entries.peek()
        has_new = first is not None and count(first) > 0
        if kept is None and not has_new and not writer.is_joined(part.rows):
            # This file stays, so entries above it must begin a file of their own.
            writer.finish_file()
            continue
        entries = read_parquet(part.path)
        replaced.append(part.path.name)
        valid = EntryStream([entries if kept is None else entries.filter(pa.array(kept))])
        for merged in merge_streams([valid, EntryStream(new_entries.read(count))]):
            writer.write(merged)
    for rest in new_entries.read(count_all):
        writer.write(rest)
    return replaced


def _count_until(part: FilePart, entries: pa.Table) -> int:
    """Return how many new entries go into a file that is not the last.

    Entries between two files go into the later file, but none behind misfits. Misfits go into the last file.
    """
    if part.has_misfits or part.highest is None:
        return count_up_to(entries, None)
    return count_up_to(entries, pa.scalar(part.highest, entries.schema.field("value").type))
