"""The segments of a change log: the sealed ones, oldest first, and the active one, to which frames are appended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from penstock.store.log.long_frame import Frame
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Rows, Segment

__all__ = ["ActiveSegment", "LogSegments", "LoggedVbucket"]


class LoggedVbucket(Protocol):
    """What the log asks of each vbucket."""

    @property
    def id(self) -> int: ...
    @property
    def index(self) -> RowIndex: ...

    def collection_highs(self) -> tuple[int, ...]:
        """Return the seqno of the newest change of each collection. Called from any thread."""

    def described(self) -> dict[str, Any]:
        """Return what the log notes of the vbucket, to be restored with it."""


class ActiveSegment(Protocol):
    """The segment that is written: frames in the order of commits.

    Attributes:
        number: each active segment has a higher one than those before it.
        buffer: its memory, written up to `end`.
        limit: a frame that would end above it needs LogRoom.make. 0 while nothing can be appended.
        overhead: bytes that are written in front of each frame.
    """

    buffer: memoryview
    end: int
    limit: int

    @property
    def number(self) -> int: ...
    @property
    def overhead(self) -> int: ...

    def append(self, frame: Frame, supersedes: int) -> int:
        """Write a frame for which there is room and return its offset in the buffer.

        supersedes: the seqno, in the same vbucket, of the change that it replaces; 0 for none.
        """


class LogSegments:
    """All segments of a log, and the indexes that list their rows by vbucket.

    Attributes:
        indexes: of all vbuckets.
        histories: the vbuckets themselves; their bucket sets them.
        sealed: oldest first.
        active: the segment that is written.
    """

    def __init__(self, indexes: Sequence[RowIndex], active: ActiveSegment) -> None:
        self.indexes = indexes
        self.histories: Sequence[LoggedVbucket] = ()
        self.sealed: list[Segment] = []
        self.active = active

    def begin(self, active: ActiveSegment) -> None:
        """Append to another segment from now on. The rows of the one before must be in a sealed segment."""
        self.active = active
        for index in self.indexes:
            index.begin_tail(active.buffer)

    def seal(self, now: int, *, keeps_empty: bool = False) -> None:
        """List the active segment among the sealed ones, if it has rows. Another one must begin then.

        Args:
            now: nanoseconds since the epoch.
            keeps_empty: list it also without rows, so that the numbers of segments have no gaps.
        """
        segment = self._read_tails()
        if not len(segment.seqnos):
            if not keeps_empty:
                return
            segment.buffer = memoryview(b"")
        segment.ids = self.active.number, self.active.number
        segment.sealed_at = now
        self.sealed.append(segment)
        for index in self.indexes:
            index.replace([], segment)

    def _read_tails(self) -> Segment:
        """Return the active segment as it is: its rows by vbucket, its frames in the order of commits."""
        indexes = self.indexes
        starts = np.zeros(len(indexes) + 1, np.int32)
        np.cumsum([len(index.offsets_at) for index in indexes], out=starts[1:])
        rows = Rows(
            seqnos=np.frombuffer(b"".join([index.seqnos_at for index in indexes]), np.int64),
            offsets=np.frombuffer(b"".join([index.offsets_at for index in indexes]), np.uint32),
            lengths=np.frombuffer(b"".join([index.lengths_at for index in indexes]), np.uint32),
            superseded=np.frombuffer(bytearray().join([index.superseded_at for index in indexes]), np.int64),
        )
        segment = Segment(self.active.buffer, starts, rows, clustered=False)
        segment.mark(segment.superseded)  # what was cut off is not in it
        return segment

    @property
    def active_is_used(self) -> bool:
        """Whether the active segment has rows, or had some that were cut off."""
        return any(index.offsets_at or index.dead for index in self.indexes)

    def replace(self, sources: Sequence[Segment], segment: Segment, *, keeps_empty: bool) -> None:
        """Put a segment in the place of others, which are neighbours.

        keeps_empty: as of `seal`.
        """
        at = self.sealed.index(sources[0])
        self.sealed[at : at + len(sources)] = [segment] if keeps_empty or len(segment.seqnos) else []
        for index in self.indexes:
            index.replace(list(sources), segment)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of sealed segments that are not clustered yet."""
        return sum(len(segment.buffer) for segment in self.sealed if not segment.clustered)

    @property
    def frame_bytes(self) -> int:
        """Bytes of all frames, dead ones included."""
        return self.active.end + sum(segment.size for segment in self.sealed)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of frames that are parts of files, not in memory."""
        return sum(segment.size for segment in self.sealed if segment.mapped)

    @property
    def dead_bytes(self) -> int:
        """Bytes of frames that have been superseded, or forgotten with their vbucket's history."""
        return sum(index.dead for index in self.indexes) + sum(segment.dead for segment in self.sealed)

    @property
    def index_bytes(self) -> int:
        """Bytes of the rows' columns."""
        return sum(index.index_bytes for index in self.indexes) + sum(segment.index_bytes for segment in self.sealed)
