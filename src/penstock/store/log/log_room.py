"""Room for the next frame: a full segment is sealed, memory is freed, or the change is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from penstock.errors import OutOfMemory, TemporaryFailure
from penstock.store.log.compaction import CompactionPlanner
from penstock.store.log.log_segments import LogSegments
from penstock.store.log.quota import Quota
from penstock.store.log.rewrite_choice import PRESSED

_CHECKS_PER_SEGMENT = 8  # at even distances between two seals
_MOST_WAITING_BYTES = 256 * 1024 * 1024  # bytes that wait for compaction or the disk, or as many as four segments have


class RolledLog(Protocol):
    """A log whose active segment can be sealed.

    Attributes:
        durable: the log is on disk. Dead frames of its active segment stay in memory as long as live ones, so it is not
            sealed to free memory.
        segments: all segments of the log.
        quota: the bucket's memory quota.
        compactions: plans which segments are rewritten.
    """

    durable: bool
    segments: LogSegments
    quota: Quota
    compactions: CompactionPlanner

    def roll(self, nbytes: int) -> None:
        """Seal the active segment if it has records, and begin one with room for nbytes more."""

    def check_backlog(self, most: int) -> None:
        """Raise TemporaryFailure if more than `most` bytes wait for compaction or the disk."""


class LogRoom:
    """Makes room for frames in the active segment, or refuses changes.

    Attributes:
        fault: the reason why the log refuses changes; None if it accepts them.
        compact: called after a seal, and several times while a segment fills. It begins or runs a compaction.
        can_delete: returns whether documents may and can be deleted to free memory.
    """

    def __init__(self, log: RolledLog) -> None:
        self.fault: str | None = None
        self.compact: Callable[[], None] = lambda: None
        self.can_delete: Callable[[], bool] = lambda: False
        self._log = log
        self._quota = log.quota
        self._segments = log.segments

    def make_room(self, nbytes: int, *, frees: bool = False) -> None:
        """Make room for a frame of nbytes. Rows may move.

        Call it when `end` + nbytes of the active segment is above its `limit`.

        Args:
            nbytes: the length of the frame.
            frees: the frame supersedes a document and is a tombstone, so it is accepted above the quota.

        Raises:
            TemporaryFailure: the log accepts no changes, or memory is about to be freed.
            OutOfMemory: the quota is used up, and no memory can be freed.
        """
        self.check_fault()
        self.check_quota(frees=frees)
        segments = self._segments  # no reference to the active one: its memory must go while others are compacted
        nbytes += segments.active.overhead
        if segments.active.end + nbytes > len(segments.active.buffer):
            self.check_backlog()
            self._log.roll(nbytes)
        self.compact()
        self.raise_limit(nbytes)

    def begin_segment_for(self, nbytes: int) -> bool:
        """Make room for frames of nbytes together, if the log accepts changes.

        Returns:
            True if that took a new segment.
        """
        segments = self._segments
        number = segments.active.number
        if segments.active.end + nbytes > segments.active.limit and not self._quota.is_exceeded:
            with suppress(TemporaryFailure, OutOfMemory):
                self.make_room(nbytes)
        return segments.active.number != number

    def seal_active(self) -> None:
        """Seal the active segment, so that a pass over all segments includes it."""
        self._log.compactions.restart_pass()
        if self._segments.is_active_used:
            self._log.roll(0)

    def check_fault(self) -> None:
        """Raise TemporaryFailure while the log refuses changes.

        Raises:
            TemporaryFailure: the log refuses changes.
        """
        if self.fault is not None:
            raise TemporaryFailure(self.fault)

    def check_backlog(self) -> None:
        """Raise TemporaryFailure if too many bytes wait for compaction or the disk."""
        self._log.check_backlog(max(_MOST_WAITING_BYTES, 4 * self._quota.usual_segment_bytes))

    def check_quota(self, *, frees: bool = False) -> None:
        """Free memory where much is in use.

        Above the quota, raise as Quota.refuse does, unless the change frees memory. The usage is measured a few times
        while a segment fills.
        """
        quota = self._quota
        if quota.is_exceeded and frees:
            quota.invalidate()  # a rewrite may help the next change that frees nothing
            return
        if quota.measure_again() and quota.is_pressed:
            self._seal_dead_frames()
            self.compact()
            quota.measure_again()
            quota.is_freeing = self._log.compactions.can_free_memory() or self.can_delete()
        if quota.is_exceeded and not frees:
            self._segments.active.limit = 0  # so that the next change asks again
            quota.refuse()

    def _seal_dead_frames(self) -> None:
        """Seal the active segment if compaction can free much of it."""
        segments = self._segments
        if self._log.durable or self._log.compactions.is_running:
            return
        if PRESSED * segments.active.end < sum(index.dead_bytes for index in segments.indexes):
            self._log.roll(0)

    def raise_limit(self, nbytes: int) -> None:
        """Allow appends up to the next check of the quota, and nbytes in any case.

        On disk only a quota needs checks.
        """
        active = self._segments.active
        size = len(active.buffer)
        step = 0 if self._quota.is_exceeded else size // _CHECKS_PER_SEGMENT
        if self._log.durable and self._quota.nbytes is None:
            step = size
        active.limit = min(size - active.overhead, active.end + max(nbytes, step))
        if self.fault is not None:  # whether before, or on another thread just now
            active.limit = 0

    def refuse_changes(self, reason: str) -> None:
        """Refuse changes from now on. Any thread may call this and `accept_changes`."""
        self.fault = reason
        self._segments.active.limit = 0  # so that the next change asks for room, and is refused

    def accept_changes(self) -> None:
        """Accept changes again: the next change asks for room and gets it."""
        self.fault = None
