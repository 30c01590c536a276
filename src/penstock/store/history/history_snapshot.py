"""A consistent state of a vbucket, as frames ready to send.

The snapshot of (start, end] holds each change in the range that no other change in the range superseded. A superseding
seqno only ever changes from 0 to a number above `end`. So the choice can be made late, segment by segment while the
snapshot is read. The result does not depend on writes, seals, rewrites and resets in between, because the snapshot
refers to the segments with which it was opened. After a rollback the same seqnos are assigned again, so the snapshot
takes a copy before the rollback.
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
    """The rows of a segment from start to end, and the seqnos that have superseded them."""

    segment: Segment
    superseded: Column
    start: int
    end: int


class Snapshot:
    """The changes of (start_seqno, end_seqno] that count at end_seqno, in order.

    The last change has the seqno end_seqno. If start_seqno == end_seqno, the snapshot is empty. Every snapshot has a
    document at most once, so each is a checkpoint.

    Attributes:
        start_seqno: the seqno after which the snapshot begins.
        end_seqno: the seqno of its last change.
        flags: the SnapshotFlag of the marker. DISK if the snapshot begins in a backfill; kv_engine sets it for buckets
            in memory, too.
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
            self._frames = _look_up_frames(index, start_seqno, end_seqno)
            return
        self._frames = _NOTHING
        first = max(bisect_right(index.first_seqnos, start_seqno) - 1, 0)
        for segment in reversed(index.segments[first : bisect_right(index.first_seqnos, end_seqno)]):
            start, end = segment.starts[index.vbucket], segment.ends[index.vbucket]
            if segment.seqnos_at[start] <= start_seqno:
                start = bisect_right(segment.seqnos_at, start_seqno, start, end)
            if start < end and segment.seqnos_at[end - 1] > end_seqno:
                end = bisect_right(segment.seqnos_at, end_seqno, start, end)
            self._parts.append(_Part(segment, segment.superseded[start:end], start, end))
        if self._parts:
            index.readers.add(self)
        self._tail = _choose_from_tail(index, start_seqno, end_seqno)

    def copy_superseded(self) -> None:
        """Copy the superseding seqnos of the rows that are left."""
        self._parts = [part._replace(superseded=part.superseded.copy()) for part in self._parts]
        self._has_copies = True

    @property
    def remaining(self) -> int:
        """How many frames are left, at most; 0 only if none is left."""
        tail = self._tail.remaining if self._tail else 0
        return self._frames.remaining + tail + sum(part.end - part.start for part in self._parts)

    def read(self, opaque: int, max_bytes: int, window: int | None = None, max_frames: int = _ANY_NUMBER) -> Chunk:
        """Return the next frames with this opaque: at most max_bytes and 256 MiB, but at least one frame.

        The chunk is empty if no frame is left, or the window is used up.

        Args:
            opaque: the stream's opaque.
            max_bytes: the greatest length of the chunk, unless one frame is longer.
            window: bytes that the consumer accepts (flow control). A frame may be sent while the window is above 0, so
                the last frame may exceed it. None: no limit.
            max_frames: the greatest number of frames, at least 1.
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
        """Go on to the next segments, or to the tail.

        Returns:
            False if there were none left.
        """
        if self._parts:
            self._frames = self._choose()
        elif self._tail:
            self._frames, self._tail = self._tail, None
        else:
            self._frames = _NOTHING  # lets go of the last segments
            return False
        return True

    def _choose(self) -> FewFrames | ManyFrames | AdjacentFrames:
        """Return the frames that count among the rows of the next segments."""
        if not self._has_copies and (adjacent := self._take_whole()):
            return _join_parts(adjacent)
        if not self._parts:  # there were only parts without a row
            return _NOTHING
        parts: list[_Part] = []
        total = 0
        while self._parts and total < _BATCH_ROWS:
            if parts and not (parts[0].segment.is_clustered and self._parts[-1].segment.is_clustered):
                break  # an unclustered segment has other vbuckets in between, which are not worth copying
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
        """Return the next parts, as long as all of their frames count and lie in order."""
        parts: list[_Part] = []
        total = 0
        while self._parts and total < _BATCH_ROWS:
            segment, _, start, end = self._parts[-1]
            if segment.dead_bytes or not segment.is_clustered:
                break
            part = self._parts.pop()
            if start < end:
                parts.append(part)
                total += end - start
        return parts


def _join_parts(parts: list[_Part]) -> AdjacentFrames:
    spans, lengths = [], []
    for segment, _, start, end in parts:
        begin, stop = segment.offsets_at[start], segment.offsets_at[end - 1] + segment.lengths_at[end - 1]
        spans.append(segment.buffer[begin:stop])
        lengths.append(segment.lengths[start:end])
    return AdjacentFrames(spans, lengths[0] if len(lengths) == 1 else np.concatenate(lengths))


def _look_up_frames(index: RowIndex, start_seqno: int, end_seqno: int) -> FewFrames:
    frames = []
    for seqno in range(start_seqno + 1, end_seqno + 1):
        found = index.find(seqno)
        if found is not None:
            rows, row = found
            if not 0 < rows.superseded_at[row] <= end_seqno:
                frames.append((rows.buffer, rows.offsets_at[row], rows.lengths_at[row]))
    return FewFrames(frames)


def _choose_from_tail(index: RowIndex, start_seqno: int, end_seqno: int) -> ManyFrames | None:
    """Return the frames of the tail that count. It is read at once, because its columns grow."""
    start, end = bisect_right(index.seqnos_at, start_seqno), bisect_right(index.seqnos_at, end_seqno)
    if end <= start:
        return None
    # Copies; no view of these arrays may outlive the call, or they could not grow.
    superseded = np.frombuffer(index.superseded_at, np.int64)[start:end]
    live = (superseded == 0) | (superseded > end_seqno)
    where = np.frombuffer(index.offsets_at, np.uint32)[start:end][live].astype(np.int64)
    lengths = np.frombuffer(index.lengths_at, np.uint32)[start:end][live]
    return ManyFrames([index.buffer], where, lengths)
