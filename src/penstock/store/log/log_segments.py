"""The segments of a change log: the sealed ones, oldest first, and the active one, to which frames are appended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from penstock.store.log.logged_frames import Frame, FrameRun
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Rows, Segment


class LoggedChanges(Protocol):
    """The changes of a vbucket, as far as compaction needs them."""

    def list_collection_highs(self) -> tuple[int, ...]:
        """Return the seqno of the newest change of each collection. Any thread may call this."""


class LoggedVbucket(Protocol):
    """The part of a vbucket that its log uses."""

    @property
    def id(self) -> int:
        """The vbucket's number."""

    @property
    def index(self) -> RowIndex:
        """The rows of the vbucket."""

    @property
    def changes(self) -> LoggedChanges:
        """The changes of the vbucket."""

    def to_dict(self) -> dict[str, Any]:
        """Return the description of the vbucket that the log writes as a note."""


class ActiveSegment(Protocol):
    """The segment to which frames are appended, in the order of commits.

    Attributes:
        number: higher than the numbers of all earlier active segments.
        buffer: its memory, written up to `end`.
        limit: a frame that would end above the limit needs LogRoom.make_room. 0 while the log refuses changes.
        overhead: bytes in front of each frame.
    """

    buffer: memoryview
    end: int
    limit: int

    @property
    def number(self) -> int:
        """The number of the segment."""

    @property
    def overhead(self) -> int:
        """Bytes in front of each frame."""

    def append(self, frame: Frame, supersedes: int) -> int:
        """Write a frame and return its offset in the buffer. There must be room for it.

        Args:
            frame: the encoded change.
            supersedes: the seqno, in the same vbucket, of the change that it replaces; 0 for none.
        """

    def append_run(self, run: FrameRun, supersedes: Column) -> Column:
        """Write frames and return their offsets in the buffer. There must be room for them.

        Args:
            run: the encoded changes.
            supersedes: as of `append`, for each frame.
        """


class LogSegments:
    """All segments of a log, and the indexes that list their rows by vbucket.

    Attributes:
        indexes: the index of each vbucket.
        histories: the vbuckets themselves; the bucket sets them.
        sealed: the sealed segments, oldest first.
        active: the segment to which frames are appended.
    """

    def __init__(self, indexes: Sequence[RowIndex], active: ActiveSegment) -> None:
        self.indexes = indexes
        self.histories: Sequence[LoggedVbucket] = ()
        self.sealed: list[Segment] = []
        self.active = active

    def begin_active(self, active: ActiveSegment) -> None:
        """Append to another segment from now on. The rows of the previous one must be in a sealed segment."""
        self.active = active
        for index in self.indexes:
            index.begin_tail(active.buffer)

    def seal(self, now: int, *, keeps_empty: bool = False) -> None:
        """Add the active segment to the sealed ones, if it has rows. Another active segment must begin then.

        Args:
            now: nanoseconds since the epoch.
            keeps_empty: add it also without rows, so that the numbers of segments have no gaps.
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
        """Return the active segment as it is: rows by vbucket, frames in the order of commits."""
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
        segment.set_superseded(segment.superseded)  # rows that were cut off are not in it
        return segment

    @property
    def is_active_used(self) -> bool:
        """Whether the active segment has rows, or had rows that were cut off."""
        return any(index.offsets_at or index.dead_bytes for index in self.indexes)

    def replace(self, sources: Sequence[Segment], segment: Segment, *, keeps_empty: bool) -> None:
        """Replace neighbouring segments by one segment.

        Args:
            sources: the segments to replace.
            segment: the new segment.
            keeps_empty: keep it also without rows.
        """
        at = self.sealed.index(sources[0])
        self.sealed[at : at + len(sources)] = [segment] if keeps_empty or len(segment.seqnos) else []
        for index in self.indexes:
            index.replace(list(sources), segment)

    @property
    def unclustered_bytes(self) -> int:
        """Bytes of sealed segments that are not clustered yet."""
        return sum(len(segment.buffer) for segment in self.sealed if not segment.is_clustered)

    @property
    def frame_bytes(self) -> int:
        """Bytes of all frames, dead ones included."""
        return self.active.end + sum(segment.size for segment in self.sealed)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of frames that are parts of files, not in memory."""
        return sum(segment.size for segment in self.sealed if segment.is_mapped)

    @property
    def dead_bytes(self) -> int:
        """Bytes of frames that were superseded or cut off."""
        return sum(index.dead_bytes for index in self.indexes) + sum(segment.dead_bytes for segment in self.sealed)

    @property
    def index_bytes(self) -> int:
        """Bytes of the rows' columns."""
        return sum(index.index_bytes for index in self.indexes) + sum(segment.index_bytes for segment in self.sealed)
