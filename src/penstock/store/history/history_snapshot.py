"""A consistent state of a vbucket, as frames ready to send.

The snapshot of (start, end] holds each change in the range that no other change in the range superseded. A superseding
seqno only ever changes from 0 to a number above `end`. So the choice can be made late, segment by segment while the
snapshot is read. The result does not depend on writes, seals, rewrites and resets in between, because the snapshot
refers to the segments with which it was opened. After a rollback the same seqnos are assigned again, so the snapshot
takes a copy before the rollback.

A snapshot with change history also holds older versions, of collections that have history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.store.history.frame_chunks import NO_FRAMES, OFFSET_BITS, AdjacentFrames, Chunk, FewFrames, ManyFrames
from penstock.store.log.frame_fields import read_collection_ids
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Segment
from penstock.wire.codec.flags import SnapshotFlag

FEW = 8
"""Up to so many seqnos are looked up one by one: a stream that is up to date gets a snapshot for each change."""

_BATCH_ROWS = 16 * 1024  # columns are joined over so many rows: small next to a chunk's bytes, big next to a call
_NOTHING = FewFrames(())

_ANY_NUMBER = 2**62

# Computed once: `|` of flags takes longer than the rest of a small snapshot.
_FROM_DISK = SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT
_FROM_MEMORY = SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT

Mask = npt.NDArray[np.bool_]
_Select = Callable[[memoryview, Column, Column, Column], Mask]


class KeptVersions(NamedTuple):
    """The older versions that a snapshot holds.

    Attributes:
        floor: the history floor of the vbucket: older versions above this seqno are complete.
        begins: for each collection with history the seqno above which its history begins.
    """

    floor: int
    begins: Mapping[int, int]

    def select(self, buffer: memoryview, offsets: Column, seqnos: Column) -> Mask:
        """Return which superseded frames a snapshot holds.

        Args:
            buffer: the buffer of the frames.
            offsets: where they begin.
            seqnos: their seqnos.
        """
        wanted: Mask = seqnos > self.floor
        if not self.begins or not wanted.any():
            return np.zeros(len(seqnos), np.bool_)
        known = np.array(sorted(self.begins), np.int64)
        begins = np.array([self.begins[collection] for collection in known.tolist()], np.int64)
        ids = read_collection_ids(buffer, offsets)
        places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        wanted &= (known[places] == ids) & (seqnos > begins[places])
        return wanted


class _Part(NamedTuple):
    """The rows of a segment from start to end, and the seqnos that have superseded them."""

    segment: Segment
    superseded: Column
    start: int
    end: int


class Snapshot:
    """The changes of (start_seqno, end_seqno] that count at end_seqno, in order.

    The last change has the seqno end_seqno. If start_seqno == end_seqno, the snapshot is empty. Without `versions`, a
    snapshot has a document at most once. Each snapshot is a checkpoint.

    Args:
        index: the rows of the vbucket.
        start_seqno: the seqno after which the snapshot begins.
        end_seqno: the seqno of its last change.
        few: up to so many seqnos are looked up one by one.
        versions: the older versions that the snapshot holds, too; None: it holds none.
        up_to: read only the changes up to this seqno: the first of two parts.

    Attributes:
        start_seqno: the seqno after which the snapshot begins.
        end_seqno: the seqno at which its changes count; that of its last change unless it is the first of two parts.
        flags: the SnapshotFlag of the marker. DISK if the snapshot begins in a backfill; kv_engine sets it for buckets
            in memory, too.
    """

    __slots__ = (
        "__weakref__",
        "_frames",
        "_has_copies",
        "_parts",
        "_tail",
        "_versions",
        "end_seqno",
        "flags",
        "start_seqno",
    )

    def __init__(
        self,
        index: RowIndex,
        start_seqno: int,
        end_seqno: int,
        few: int = FEW,
        *,
        versions: KeptVersions | None = None,
        up_to: int | None = None,
    ) -> None:
        self.start_seqno = start_seqno
        self.end_seqno = end_seqno
        self._versions = versions
        last = end_seqno if up_to is None else up_to
        self.flags = _FROM_DISK if start_seqno < index.backfill_end else _FROM_MEMORY
        if versions is not None:
            self.flags |= SnapshotFlag.HISTORY
            if start_seqno < index.backfill_end:
                self.flags |= SnapshotFlag.MAY_CONTAIN_DUPLICATES
        self._frames: FewFrames | ManyFrames | AdjacentFrames
        self._tail: ManyFrames | None = None
        self._parts: list[_Part] = []  # those to come, last one first
        self._has_copies = False
        if last - start_seqno <= few:
            self._frames = _look_up_frames(index, start_seqno, last, self._select)
            return
        self._frames = _NOTHING
        first = max(bisect_right(index.first_seqnos, start_seqno) - 1, 0)
        for segment in reversed(index.segments[first : bisect_right(index.first_seqnos, last)]):
            start, end = segment.starts[index.vbucket], segment.ends[index.vbucket]
            if segment.seqnos_at[start] <= start_seqno:
                start = bisect_right(segment.seqnos_at, start_seqno, start, end)
            if start < end and segment.seqnos_at[end - 1] > last:
                end = bisect_right(segment.seqnos_at, last, start, end)
            self._parts.append(_Part(segment, segment.superseded[start:end], start, end))
        if self._parts:
            index.readers.add(self)
        self._tail = _choose_from_tail(index, start_seqno, last, self._select)

    def copy_superseded(self) -> None:
        """Copy the superseding seqnos of the rows that are left."""
        self._parts = [part._replace(superseded=part.superseded.copy()) for part in self._parts]
        self._has_copies = True

    def _select(self, buffer: memoryview, offsets: Column, seqnos: Column, superseded: Column) -> Mask:
        """Return which of some rows the snapshot holds."""
        live: Mask = (superseded == 0) | (superseded > self.end_seqno)
        if self._versions is not None:
            older = np.flatnonzero(~live)
            live[older] = self._versions.select(buffer, offsets[older], seqnos[older])
        return live

    def find_frames(self) -> bool:
        """Return whether the snapshot has a frame left to read."""
        while not self._frames.remaining:
            if not self._advance():
                return False
        return True

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
        if not self.find_frames():
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
        offsets = np.concatenate([part.segment.offsets[rows] for part, rows in slices])
        lengths = np.concatenate([part.segment.lengths[rows] for part, rows in slices])
        counts = [part.end - part.start for part in parts]
        where = np.repeat(np.arange(len(parts)) << OFFSET_BITS, counts) + offsets
        if any(part.superseded.any() for part in parts):
            live = np.concatenate(
                [
                    self._select(
                        part.segment.buffer,
                        part.segment.offsets[rows].astype(np.int64),
                        part.segment.seqnos[rows],
                        part.superseded,
                    )
                    for part, rows in slices
                ]
            )
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


def open_parts(index: RowIndex, start_seqno: int, end_seqno: int, versions: KeptVersions) -> list[Snapshot]:
    """Return the parts of a snapshot with change history. They are read one after the other.

    From the history floor on, the snapshot holds all versions. Below, it holds a document at most once. So there are
    one or two parts. All of them count at `end_seqno`, and a part without a frame is left out.

    Args:
        index: the rows of the vbucket.
        start_seqno: the seqno after which the snapshot begins.
        end_seqno: the seqno of its last change.
        versions: the older versions that the snapshot holds.
    """
    floor = versions.floor
    if end_seqno <= floor:
        return [Snapshot(index, start_seqno, end_seqno)]
    if start_seqno >= floor:
        return [Snapshot(index, start_seqno, end_seqno, versions=versions)]
    older = Snapshot(index, start_seqno, end_seqno, up_to=floor)
    newer = Snapshot(index, floor, end_seqno, versions=versions)
    newer.start_seqno = start_seqno
    older.flags = _FROM_DISK
    newer.flags = older.flags | SnapshotFlag.HISTORY | SnapshotFlag.MAY_CONTAIN_DUPLICATES
    return [part for part in (older, newer) if part.find_frames()]


def _look_up_frames(index: RowIndex, start_seqno: int, end_seqno: int, select: _Select) -> FewFrames:
    frames = []
    for seqno in range(start_seqno + 1, end_seqno + 1):
        found = index.find(seqno)
        if found is not None:
            rows, row = found
            at, superseded = rows.offsets_at[row], rows.superseded_at[row]
            if not superseded or select(rows.buffer, *(np.array([one]) for one in (at, seqno, superseded)))[0]:
                frames.append((rows.buffer, at, rows.lengths_at[row]))
    return FewFrames(frames)


def _choose_from_tail(index: RowIndex, start_seqno: int, end_seqno: int, select: _Select) -> ManyFrames | None:
    """Return the frames of the tail that count. It is read at once, because its columns grow."""
    start, end = bisect_right(index.seqnos_at, start_seqno), bisect_right(index.seqnos_at, end_seqno)
    if end <= start:
        return None
    # Copies; no view of these arrays may outlive the call, or they could not grow.
    superseded = np.array(index.superseded_at[start:end], np.int64)
    seqnos = np.array(index.seqnos_at[start:end], np.int64)
    offsets = np.array(index.offsets_at[start:end], np.uint32)
    live = select(index.buffer, offsets.astype(np.int64), seqnos, superseded)
    lengths = np.array(index.lengths_at[start:end], np.uint32)[live]
    return ManyFrames([index.buffer], offsets[live].astype(np.int64), lengths)
