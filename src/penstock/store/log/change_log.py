"""The change log of a bucket: the encoded frames of all vbuckets in one sequence of segments.

Frames are packed into the active segment in the order of commits. A full segment is *sealed*, and the next one begins.
Compaction then *clusters* a sealed segment. The new segment holds the frames of each vbucket next to each other, so
that a backfill copies a few long runs. It lacks the frames that were superseded meanwhile. Later, compaction rewrites
segments with many dead frames in the same way.

`Log` is the interface that vbuckets and the bucket use. MemoryLog lives in memory, DurableLog in files. Appends never
move a frame or a row; LogRoom.make_room may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import TemporaryFailure
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.log.compaction import CompactionPlanner, RetentionWindow
from penstock.store.log.log_room import LogRoom, RolledLog
from penstock.store.log.log_segments import LoggedVbucket, LogSegments
from penstock.store.log.logged_frames import Frame, FrameRun
from penstock.store.log.quota import SEGMENT_BYTES, Quota
from penstock.store.log.rewrite import RewrittenSegment
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Segment, new_active_buffer

_ANY_SEQNO = 2**63 - 1


class Commits(Protocol):
    """Writes appended records to disk."""

    @property
    def is_broken(self) -> bool:
        """Whether the content of the disk is unknown, so that the log accepts no changes."""

    @property
    def uncommitted_records(self) -> int:
        """How many records no commit has taken yet; 0 in memory."""

    @property
    def unpersisted_records(self) -> int:
        """How many records are not on disk yet, those of a running commit included; 0 in memory."""

    def run(self) -> None:
        """Write all appended records to disk."""


class Log(RolledLog, Protocol):
    """The log of a bucket. Its vbuckets append changes; the bucket commits and compacts them.

    Attributes:
        room: makes room in the active segment.
        commits: writes appended records to disk.
    """

    room: LogRoom

    @property
    def commits(self) -> Commits:
        """The object that writes appended records to disk."""

    def set_settings(self, settings: BucketSettings) -> None:
        """Apply other settings from now on."""

    def make_room_for_note(self, history: LoggedVbucket) -> None:
        """Make sure that a note about a vbucket can be written.

        Raises:
            TemporaryFailure: the log accepts no records at the moment.
        """

    def write_note(self, history: LoggedVbucket, cut: int | None = None) -> None:
        """Write a note of a vbucket's state.

        Args:
            history: the vbucket.
            cut: a seqno; the vbucket's earlier records above it no longer count. None: no such cut.
        """

    def write_cas_note(self, vbucket: int, cas: int) -> None:
        """Write a note of a cas that was assigned without a change.

        Raises:
            TemporaryFailure: the log accepts no records at the moment.
        """

    def find_persisted_seqno(self, index: RowIndex) -> int | None:
        """Return the seqno up to which a vbucket's changes are on disk; None in memory."""

    def close(self) -> None:
        """Commit all records and release the files."""


class MemorySegment:
    """An active segment in memory. Its attributes are those of ActiveSegment."""

    __slots__ = ("buffer", "end", "limit", "number")

    overhead = 0

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.buffer = new_active_buffer(nbytes)
        self.end = self.limit = 0

    def append(self, frame: Frame, supersedes: int) -> int:
        """Return the offset of a frame that this appends. There must be room."""
        offset = self.end
        self.end = end = offset + len(frame)
        if isinstance(frame, bytes):
            self.buffer[offset:end] = frame
        else:
            frame.write_to(self.buffer[offset:end])
        return offset

    def append_run(self, run: FrameRun, supersedes: Column) -> Column:
        """Return the offsets of frames that this appends. There must be room."""
        first, last = int(run.bounds[0]), int(run.bounds[-1])
        offsets = run.bounds[:-1] + (self.end - first)
        self.buffer[self.end : self.end + last - first] = memoryview(run.data)[first:last]
        self.end += last - first
        return offsets


class MemoryStorage:
    """Stores rewritten segments of a log in memory: they stay where they were made."""

    keeps_empty_segments = rewrites_in_order = False

    def begin_rewrite(self) -> None:
        """Do nothing: in memory nothing depends on the end of the log."""

    def find_protected_changes(self, sources: Sequence[Segment]) -> Column | None:
        """Return None: no program reads this log from its beginning."""
        return None

    def store(self, rewritten: RewrittenSegment) -> RewrittenSegment:
        """Return the segment as it is."""
        return rewritten

    def discard(self, rewritten: RewrittenSegment | None) -> None:
        """Do nothing: the memory is freed with the last reference."""

    def install(self, sources: Sequence[Segment], rewritten: RewrittenSegment) -> None:
        """Do nothing: the segment is in memory already."""


class NoFiles:
    """The unwritten segments of a log in memory: there are none, since no segment needs a disk."""

    def list_numbers(self) -> set[int]:
        """Return no number."""
        return set()

    def find_persisted_seqno(self, index: RowIndex) -> int:
        """Return a seqno above all others."""
        return _ANY_SEQNO


class NoCommits:
    """Commits of a log in memory: there is no disk to write to."""

    is_broken = False
    uncommitted_records = unpersisted_records = 0

    def run(self) -> None:
        """Do nothing."""


class MemoryLog:
    """A log in memory. It writes no notes. Its attributes are those of Log."""

    durable = False
    commits: Commits = NoCommits()

    def __init__(
        self,
        indexes: Sequence[RowIndex],
        settings: BucketSettings,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Callable[[], int],
    ) -> None:
        self._clock = clock
        self.quota = Quota(settings.memory_bytes, segment_bytes)
        self.segments = LogSegments(indexes, MemorySegment(0, 0))
        self._retention = RetentionWindow(settings, self.segments, NoFiles(), clock)
        self.compactions = CompactionPlanner(
            self.segments,
            self.quota,
            settings,
            storage=MemoryStorage(),
            retention=self._retention,
            clock=clock,
        )
        self.room = LogRoom(self)
        self._begin(self._make_segment(0))

    def set_settings(self, settings: BucketSettings) -> None:
        """Apply other settings from now on."""
        self.compactions.settings = self._retention.settings = settings
        self.quota.nbytes = settings.memory_bytes
        self.quota.invalidate()

    def roll(self, nbytes: int) -> None:
        """Seal the active segment and begin one with room for nbytes."""
        segment = self._make_segment(nbytes)  # first: where there is no memory for it, nothing changes
        self.segments.seal(self._clock())
        self._begin(segment)

    def _make_segment(self, nbytes: int) -> MemorySegment:
        return MemorySegment(self.segments.active.number + 1, max(self.quota.segment_bytes, nbytes))

    def _begin(self, segment: MemorySegment) -> None:
        self.segments.begin_active(segment)
        self.room.raise_limit(0)

    def check_backlog(self, most: int) -> None:
        """Raise TemporaryFailure if more than `most` bytes wait for compaction.

        Raises:
            TemporaryFailure: compaction is behind.
        """
        if self.segments.unclustered_bytes > most:
            raise TemporaryFailure("too many changes wait for compaction, try again soon")

    def make_room_for_note(self, history: LoggedVbucket) -> None:
        """Do nothing: a log in memory writes no notes."""

    def write_note(self, history: LoggedVbucket, cut: int | None = None) -> None:
        """Mark the memory measurement as outdated after a cut."""
        if cut is not None:
            self.quota.invalidate()

    def write_cas_note(self, vbucket: int, cas: int) -> None:
        """Do nothing: the clock lives as long as the bucket."""

    def find_persisted_seqno(self, index: RowIndex) -> int | None:
        """Return None: there is no disk."""
        return None

    def close(self) -> None:
        """Do nothing: there are no files."""
