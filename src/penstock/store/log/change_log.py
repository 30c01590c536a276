"""The change log of a bucket: encoded frames of all vbuckets in one sequence of segments.

Frames are packed into the active segment in the order of commits. When it is full it is *sealed*, and the next one
begins. Compaction then *clusters* it: a new segment has the frames of each vbucket next to each other, so that a
backfill copies a few long runs, and lacks the frames that were superseded meanwhile. Later it rewrites the segments
with many dead frames in the same way.

`Log` is what the vbuckets and the bucket know of a log. MemoryLog lives in memory; DurableLog keeps the same on disk.
Appends never move anything; LogRoom.make may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from penstock.errors import TemporaryFailure
from penstock.store.definition.bucket_settings import Settings
from penstock.store.log.compaction import CompactionPlanner
from penstock.store.log.log_room import LogRoom, RolledLog
from penstock.store.log.log_segments import LoggedVbucket, LogSegments
from penstock.store.log.long_frame import Frame
from penstock.store.log.quota import SEGMENT_BYTES, Quota
from penstock.store.log.rewrite import Choice, Rewritten
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Segment, new_buffer

__all__ = ["Log", "MemoryLog"]

_ANY_SEQNO = 2**63 - 1


class Commits(Protocol):
    """Brings to disk what was appended."""

    @property
    def broken(self) -> bool:
        """Whether nobody knows what is on disk, so that nothing is stored any more."""

    @property
    def uncommitted(self) -> int:
        """How many changes and notes no commit has taken yet; 0 in memory."""

    @property
    def unpersisted(self) -> int:
        """How many changes and notes are not on disk yet, those of the commit under way included; 0 in memory."""

    def run(self) -> None:
        """Write to disk what was appended."""


class Log(RolledLog, Protocol):
    """The log of a bucket's vbuckets. They append to its active segment, the bucket has it committed and compacted.

    Attributes:
        room: makes room in the active segment.
        commits: brings to disk what was appended.
    """

    room: LogRoom

    @property
    def commits(self) -> Commits: ...

    def set_settings(self, settings: Settings) -> None:
        """Take other settings from now on."""

    def make_room_for_note(self, history: LoggedVbucket) -> None:
        """See to it that a note about a vbucket can be written. Raises TemporaryFailure."""

    def note(self, history: LoggedVbucket, cut: int | None = None) -> None:
        """Write down how things stand with a vbucket but for its changes.

        cut: those that it has above this seqno count no more.
        """

    def note_cas(self, vbucket: int, cas: int) -> None:
        """Write down a cas that was given without a change. Raises TemporaryFailure while the log cannot take it."""

    def persisted(self, index: RowIndex) -> int | None:
        """Return the seqno up to which a vbucket's changes are on disk, None in memory."""

    def close(self) -> None:
        """End well."""


class MemorySegment:
    """An active segment in memory. Attributes as of ActiveSegment."""

    __slots__ = ("buffer", "end", "limit", "number")

    overhead = 0

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.buffer = new_buffer(nbytes)
        self.end = self.limit = 0

    def append(self, frame: Frame, supersedes: int) -> int:
        offset = self.end
        self.end = end = offset + len(frame)
        if isinstance(frame, bytes):
            self.buffer[offset:end] = frame
        else:
            frame.write_to(self.buffer[offset:end])
        return offset


class MemoryKeeper:
    """Keeps rewritten segments where they were made: in memory."""

    keeps_empty = in_order = False

    def prepare(self) -> None:
        """Nothing depends on where the log ends."""

    def held(self, sources: Sequence[Segment]) -> Column | None:
        """Return None: nobody reads this log from its beginning."""
        return None

    def keep(self, rewritten: Rewritten) -> Rewritten:
        return rewritten

    def discard(self, rewritten: Rewritten | None) -> None:
        """It goes by itself."""

    def install(self, sources: Sequence[Segment], rewritten: Rewritten) -> None:
        """It is where it has to be."""


class NoRetention:
    """Superseded frames of a log in memory may go at once."""

    def __init__(self, vbuckets: int) -> None:
        self._vbuckets = vbuckets

    def unready(self) -> set[int]:
        return set()

    def floors(self) -> Column:
        return np.full(self._vbuckets, _ANY_SEQNO, np.int64)

    def retained(self, choice: Choice) -> int:
        return choice.held


class NoCommits:
    """There is no disk to bring anything to."""

    broken = False
    uncommitted = unpersisted = 0

    def run(self) -> None:
        """Nothing is written."""


class MemoryLog:
    """A log in memory. Attributes as of Log. Notes are not written."""

    durable = False
    commits: Commits = NoCommits()

    def __init__(
        self,
        indexes: Sequence[RowIndex],
        settings: Settings,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Callable[[], int],
    ) -> None:
        self._clock = clock
        self.quota = Quota(settings.memory_bytes, segment_bytes)
        self.segments = LogSegments(indexes, MemorySegment(0, 0))
        self.compactions = CompactionPlanner(
            self.segments,
            self.quota,
            settings,
            keeper=MemoryKeeper(),
            retention=NoRetention(len(indexes)),
            clock=clock,
        )
        self.room = LogRoom(self)
        self._begin(self._make_segment(0))

    def set_settings(self, settings: Settings) -> None:
        self.compactions.settings = settings
        self.quota.nbytes = settings.memory_bytes
        self.quota.doubt()

    def roll(self, nbytes: int) -> None:
        segment = self._make_segment(nbytes)  # first: where there is no memory for it, nothing changes
        self.segments.seal(self._clock())
        self._begin(segment)

    def _make_segment(self, nbytes: int) -> MemorySegment:
        return MemorySegment(self.segments.active.number + 1, max(self.quota.segment_bytes, nbytes))

    def _begin(self, segment: MemorySegment) -> None:
        self.segments.begin(segment)
        self.room.raise_limit(0)

    def check_backlog(self, most: int) -> None:
        if self.segments.waiting_bytes > most:
            raise TemporaryFailure("too many changes wait for compaction, try again soon")

    def make_room_for_note(self, history: LoggedVbucket) -> None:
        """Notes take no room."""

    def note(self, history: LoggedVbucket, cut: int | None = None) -> None:
        if cut is not None:
            self.quota.doubt()

    def note_cas(self, vbucket: int, cas: int) -> None:
        """Nobody asks for it again."""

    def persisted(self, index: RowIndex) -> int | None:
        return None

    def close(self) -> None:
        """Nothing has to end."""
