"""The change log of a bucket: encoded frames of all vbuckets in one sequence of segments.

Frames are packed into the active segment in the order of commits. When it is full it is *sealed*: rewritten with the
frames of each vbucket next to each other, so that a backfill copies a few long runs, and without the frames that have
been superseded meanwhile. A sealed segment that is more than half superseded is rewritten in the same way.

This is what a log on disk would replace: make_room, append, and what the indexes refer to. Appends never move
anything; make_room may.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.store.index import RowIndex
from penstock.store.segment import Rows, Segment, new_buffer, rewrite

__all__ = ["SEGMENT_BYTES", "Log"]

SEGMENT_BYTES = 16 * 1024 * 1024  # sealed in about 15 ms, for which an event loop can be held

_LARGEST_SEGMENT = 1024 * 1024 * 1024  # its offsets, and twice them, fit into Arrow's 31 bits
_REWRITES_PER_SEGMENT = 8  # at even distances between two seals: two halves are all that a full one can leave behind


class Log:
    """The log of the vbuckets with these indexes, in memory."""

    persisted_seqno = 0
    """The seqno up to which a vbucket's changes survive a restart."""

    def __init__(self, indexes: Sequence[RowIndex], segment_bytes: int = SEGMENT_BYTES) -> None:
        if not 0 < segment_bytes <= _LARGEST_SEGMENT:
            raise ValueError(f"segments of {segment_bytes} bytes, expected 1 to {_LARGEST_SEGMENT}")
        self.indexes = indexes
        self._segment_bytes = segment_bytes
        self.sealed: list[Segment] = []
        self._begin(segment_bytes)

    def _begin(self, nbytes: int) -> None:
        self.buffer = new_buffer(nbytes)
        self.end = 0
        self.limit = nbytes // _REWRITES_PER_SEGMENT
        for index in self.indexes:
            index.begin_tail(self.buffer)

    def append(self, frame: bytes | memoryview) -> int:
        """Write a frame for which there is room and return its offset in the active segment."""
        offset = self.end
        self.end = end = offset + len(frame)
        self.buffer[offset:end] = frame
        return offset

    def make_room(self, nbytes: int) -> None:
        """See to it that a frame of nbytes can be appended. Rows may move; call it when `end` + nbytes > `limit`.

        Does at most one seal or one rewrite, so that no call takes long.
        """
        if self.end + nbytes > len(self.buffer):
            self._seal()
            self._begin(max(self._segment_bytes, nbytes))
        else:
            self._rewrite_one()
        step = max(nbytes, len(self.buffer) // _REWRITES_PER_SEGMENT)
        self.limit = min(len(self.buffer), self.end + step)

    def _seal(self) -> None:
        active = self._active()
        if active is not None:
            self._replace([], len(self.sealed), active)

    def _active(self) -> Segment | None:
        """Return the active segment as it is, if it holds anything: its rows by vbucket, its frames in commit order."""
        indexes = self.indexes
        counts = [len(index.offsets_at) for index in indexes]
        starts = np.zeros(len(indexes) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        if not starts[-1]:
            return None
        rows = Rows(
            seqnos=np.frombuffer(b"".join([index.seqnos_at for index in indexes]), np.int64),
            offsets=np.frombuffer(b"".join([index.offsets_at for index in indexes]), np.uint32),
            lengths=np.frombuffer(b"".join([index.lengths_at for index in indexes]), np.uint32),
            superseded=np.frombuffer(b"".join([index.superseded_at for index in indexes]), np.int64),
        )
        return Segment(self.buffer, starts, rows)

    def _rewrite_one(self) -> None:
        """Rewrite the segment with most to gain, if more than half of it is dead, with neighbours that fit in."""
        most = max(self.sealed, key=_dead_share, default=None)
        if most is None or 2 * most.dead <= most.size:
            return
        start = self.sealed.index(most)
        end, live = start + 1, most.live
        while end < len(self.sealed) and live + self.sealed[end].live <= self._segment_bytes:
            live += self.sealed[end].live
            end += 1
        while start > 0 and live + self.sealed[start - 1].live <= self._segment_bytes:
            start -= 1
            live += self.sealed[start].live
        self._replace(self.sealed[start:end], start, None)

    def _replace(self, sources: list[Segment], at: int, active: Segment | None) -> None:
        segment, passed = rewrite(sources if active is None else [active])
        self.sealed[at : at + len(sources)] = [] if segment is None else [segment]
        for index, seqno in zip(self.indexes, passed.tolist(), strict=True):
            index.replace(sources, segment, seqno)

    @property
    def frame_bytes(self) -> int:
        """Bytes of all frames in it, dead ones included."""
        return self.end + sum(segment.size for segment in self.sealed)

    @property
    def dead_bytes(self) -> int:
        """Bytes of frames that have been superseded, or forgotten with their vbucket's history."""
        return sum(index.dead for index in self.indexes) + sum(segment.dead for segment in self.sealed)

    @property
    def index_bytes(self) -> int:
        """Bytes of the rows' columns."""
        return sum(index.index_bytes for index in self.indexes) + sum(segment.index_bytes for segment in self.sealed)


def _dead_share(segment: Segment) -> float:
    return segment.dead / segment.size
