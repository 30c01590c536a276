"""A consistent state of a vbucket, as frames ready to send.

The snapshot of (start, end] holds each change in there that no other change in there superseded. Superseding seqnos
only ever grow from 0 to something above `end`, so the choice may be made late, segment by segment while the snapshot
is read, and comes out the same however many writes, seals, rewrites and resets lie between: the snapshot holds on to
the segments it was opened on. After a rollback the same seqnos come again: before it, the snapshot takes a copy.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from penstock.store.history.frame_chunks import NO_FRAMES, OFFSET_BITS, AdjacentFrames, Chunk, FewFrames, ManyFrames
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Segment
from penstock.wire.codec.flags import SnapshotFlag

__all__ = ["FEW", "Snapshot"]

FEW = 8
"""Up to so many seqnos are looked up one by one: a stream that is up to date gets a snapshot for each change."""

_BATCH_ROWS = 16 * 1024  # columns are joined over so many rows: small next to a chunk's bytes, big next to a call
_NOTHING = FewFrames(())

_ANY_NUMBER = 2**62


class _Part(NamedTuple):
    """The rows of a segment from start to end, and which seqnos have superseded them."""

    segment: Segment
    superseded: Column
    start: int
    end: int


class Snapshot:
    """The changes of (start_seqno, end_seqno] that count at end_seqno, in order; the last has end_seqno itself.

    flags: a SnapshotFlag for the marker. DISK where the snapshot begins in a backfill; kv_engine says so of buckets in
    memory, too. Every snapshot shows a document once, so each is a checkpoint.
    A snapshot with start_seqno == end_seqno is empty.
    """

    __slots__ = ("__weakref__", "_frames", "_has_copies", "_parts", "_tail", "end_seqno", "flags", "start_seqno")

    def __init__(self, index: RowIndex, start_seqno: int, end_seqno: int, few: int = FEW) -> None:
        self.start_seqno = start_seqno
        self.end_seqno = end_seqno
        origin = SnapshotFlag.DISK if start_seqno < index.backfill_end else SnapshotFlag.MEMORY
        self.flags = origin | SnapshotFlag.CHECKPOINT
        self._frames: FewFrames | ManyFrames | AdjacentFrames
        self._tail: ManyFrames | None = None
        self._parts: list[_Part] = []  # those to come, last one first
        self._has_copies = False
        if end_seqno - start_seqno <= few:
            self._frames = _look_up(index, start_seqno, end_seqno)
            return
        self._frames = _NOTHING
        first = max(bisect_right(index.firsts, start_seqno) - 1, 0)
        for segment in reversed(index.segments[first : bisect_right(index.firsts, end_seqno)]):
            start, end = segment.starts[index.vbucket], segment.ends[index.vbucket]
            if segment.seqnos_at[start] <= start_seqno:
                start = bisect_right(segment.seqnos_at, start_seqno, start, end)
            if start < end and segment.seqnos_at[end - 1] > end_seqno:
                end = bisect_right(segment.seqnos_at, end_seqno, start, end)
            self._parts.append(_Part(segment, segment.superseded[start:end], start, end))
        if self._parts:
            index.readers.add(self)
        self._tail = _choose_from_tail(index, start_seqno, end_seqno)

    def hold(self) -> None:
        """Take a copy of what has superseded the rows to come."""
        self._parts = [part._replace(superseded=part.superseded.copy()) for part in self._parts]
        self._has_copies = True

    @property
    def remaining(self) -> int:
        """How many frames are left, at most; 0 only when none is."""
        tail = self._tail.remaining if self._tail else 0
        return self._frames.remaining + tail + sum(part.end - part.start for part in self._parts)

    def read(self, opaque: int, max_bytes: int, window: int | None = None, max_frames: int = _ANY_NUMBER) -> Chunk:
        """Return the next frames with this opaque: at most max_bytes of them, but at least one, unless none is left.

        Never more than 256 MiB of them.
        window: how many bytes the consumer can still take (flow control). A frame may go out while there are any, so
        the last one may exceed it. None: any number. max_frames: at least 1.
        """
        if window is None:
            window = max(max_bytes, 1)
        if window <= 0:
            return NO_FRAMES
        while not self._frames.remaining:
            if not self._advance():
                return NO_FRAMES
        return self._frames.read(opaque, max_bytes, window, max_frames)

    def _advance(self) -> bool:
        """Go on to the next segments, or to the tail. False: that was all."""
        if self._parts:
            self._frames = self._choose()
        elif self._tail:
            self._frames, self._tail = self._tail, None
        else:
            self._frames = _NOTHING  # lets go of the last segments
            return False
        return True

    def _choose(self) -> FewFrames | ManyFrames | AdjacentFrames:
        """Choose among the rows of the next segments."""
        if not self._has_copies and (adjacent := self._take_whole()):
            return _join(adjacent)
        if not self._parts:  # there were only parts without a row
            return _NOTHING
        parts: list[_Part] = []
        total = 0
        while self._parts and total < _BATCH_ROWS:
            if parts and not (parts[0].segment.clustered and self._parts[-1].segment.clustered):
                break  # what lies in between, in a segment that is not clustered, is not worth copying
            parts.append(self._parts.pop())
            total += parts[-1].end - parts[-1].start
        slices = [(part, slice(part.start, part.end)) for part in parts]
        superseded = np.concatenate([part.superseded for part in parts])
        offsets = np.concatenate([part.segment.offsets[rows] for part, rows in slices])
        lengths = np.concatenate([part.segment.lengths[rows] for part, rows in slices])
        counts = [part.end - part.start for part in parts]
        where = np.repeat(np.arange(len(parts)) << OFFSET_BITS, counts) + offsets
        if superseded.any():
            live = (superseded == 0) | (superseded > self.end_seqno)
            where, lengths = where[live], lengths[live]
        return ManyFrames([part.segment.buffer for part in parts], where, lengths)

    def _take_whole(self) -> list[_Part]:
        """Return the next parts as far as every frame in them counts, and lies behind the one before."""
        parts: list[_Part] = []
        total = 0
        while self._parts and total < _BATCH_ROWS:
            segment, _, start, end = self._parts[-1]
            if segment.dead or not segment.clustered:
                break
            part = self._parts.pop()
            if start < end:
                parts.append(part)
                total += end - start
        return parts


def _join(parts: list[_Part]) -> AdjacentFrames:
    spans, lengths = [], []
    for segment, _, start, end in parts:
        begin, stop = segment.offsets_at[start], segment.offsets_at[end - 1] + segment.lengths_at[end - 1]
        spans.append(segment.buffer[begin:stop])
        lengths.append(segment.lengths[start:end])
    return AdjacentFrames(spans, lengths[0] if len(lengths) == 1 else np.concatenate(lengths))


def _look_up(index: RowIndex, start_seqno: int, end_seqno: int) -> FewFrames:
    frames = []
    for seqno in range(start_seqno + 1, end_seqno + 1):
        found = index.find(seqno)
        if found is not None:
            rows, row = found
            if not 0 < rows.superseded_at[row] <= end_seqno:
                frames.append((rows.buffer, rows.offsets_at[row], rows.lengths_at[row]))
    return FewFrames(frames)


def _choose_from_tail(index: RowIndex, start_seqno: int, end_seqno: int) -> ManyFrames | None:
    """Choose among the rows of the tail at once: its columns are on the move."""
    start, end = bisect_right(index.seqnos_at, start_seqno), bisect_right(index.seqnos_at, end_seqno)
    if end <= start:
        return None
    # Copies; no view of these arrays may outlive the call, or they could not grow.
    superseded = np.frombuffer(index.superseded_at, np.int64)[start:end]
    live = (superseded == 0) | (superseded > end_seqno)
    where = np.frombuffer(index.offsets_at, np.uint32)[start:end][live].astype(np.int64)
    lengths = np.frombuffer(index.lengths_at, np.uint32)[start:end][live]
    return ManyFrames([index.buffer], where, lengths)
