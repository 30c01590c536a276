"""Erases the documents of collections that have ended.

The event that ended a collection supersedes the collection's documents. Snapshots that end before the event show them.
Snapshots that end behind it do not, once they are erased. Erasing takes time in proportion to the vbucket, so it is
done bit by bit. Until it is done, a snapshot may still show some of the documents, in front of the event.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from penstock.store.history.vbucket_changes import VbucketChanges
from penstock.store.log.frame_fields import mask_mutations, read_collection_ids, read_keys
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Segment
from penstock.store.slices import run_slices


class _Slice(NamedTuple):
    """Rows of a vbucket, next to each other in the columns of a segment or of its tail."""

    rows: Segment | RowIndex
    start: int
    end: int


class CollectionEraser:
    """Erases the documents of ended collections in a vbucket.

    Args:
        changes: the vbucket's changes.
        forget_document: called with the key of each erased change.
    """

    __slots__ = ("_changes", "_forget_document")

    def __init__(self, changes: VbucketChanges, forget_document: Callable[[bytes], None]) -> None:
        self._changes = changes
        self._forget_document = forget_document

    @property
    def is_due(self) -> bool:
        """Whether changes of ended collections are left."""
        state = self._changes.collection_state
        return state is not None and bool(state.erasing)

    def erase_some(self, most: int = 16 * 1024) -> int:
        """Erase changes of ended collections in up to `most` rows, a few milliseconds of work.

        Returns:
            How many rows that took; 0 when all are erased.
        """
        state = self._changes.collection_state
        if state is None or not state.erasing:
            return 0
        erasing, emptied = state.erasing, state.emptied
        # One pass for all of them: those that have come furthest wait for the others.
        done = min(erasing.values())
        ends = {collection: emptied[collection] for collection, at in erasing.items() if at == done}
        further = min((at for at in erasing.values() if at > done), default=None)
        end = max(ends.values()) if further is None else further + 1
        found = self._next(done, end, most)
        taken = 1
        if found is None:
            done = end - 1
        else:
            rows, start, stop = found
            done, taken = rows.seqnos_at[stop - 1], stop - start
            self._erase(found, ends)
        for collection, emptied_at in ends.items():
            if done >= emptied_at - 1:
                del erasing[collection]
            else:
                erasing[collection] = done
        return taken

    def erase_all(self) -> None:
        """Erase all changes of ended collections."""
        run_slices(self.erase_some)

    def _next(self, done: int, end: int, most: int) -> _Slice | None:
        """Return the next rows above the seqno `done` and below the seqno `end`."""
        index = self._changes.index
        for segment in index.segments[max(bisect_right(index.first_seqnos, done) - 1, 0) :]:
            first, last = segment.starts[index.vbucket], segment.ends[index.vbucket]
            start = bisect_right(segment.seqnos_at, done, first, last)
            stop = min(start + most, bisect_left(segment.seqnos_at, end, start, last))
            if start < stop:
                return _Slice(segment, start, stop)
        start = bisect_right(index.seqnos_at, done)
        stop = min(start + most, bisect_left(index.seqnos_at, end))
        return _Slice(index, start, stop) if start < stop else None

    def _erase(self, found: _Slice, ends: Mapping[int, int]) -> None:
        """Supersede the rows that are in an ended collection. ends: the seqno of each collection's end."""
        rows, start, stop = found
        live = start + np.flatnonzero(np.array(rows.superseded_at[start:stop], np.int64) == 0)
        offsets = np.array(rows.offsets_at[start:stop], np.int64)[live - start]
        seqnos = np.array(rows.seqnos_at[start:stop], np.int64)[live - start]
        ended = np.array(sorted(ends), np.int64)
        ids = read_collection_ids(rows.buffer, offsets)
        places = np.minimum(np.searchsorted(ended, ids), len(ended) - 1)
        row_ends = np.array([ends[collection] for collection in ended.tolist()], np.int64)[places]
        inside = (ended[places] == ids) & (seqnos < row_ends)
        offsets = offsets[inside]
        for row, end in zip(live[inside].tolist(), row_ends[inside].tolist(), strict=True):
            rows.superseded_at[row] = end
            rows.dead_bytes += rows.lengths_at[row]
        self._changes.items -= int(np.count_nonzero(mask_mutations(rows.buffer, offsets)))
        for key in read_keys(rows.buffer, offsets):
            del self._changes.newest[key]
            self._forget_document(key)
