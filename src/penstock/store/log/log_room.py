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

__all__ = ["LogRoom", "RolledLog"]

_LOOKS_PER_SEGMENT = 8  # at even distances between two seals
_BEHIND = 256 * 1024 * 1024  # bytes that wait for compaction or the disk, or as many as four segments have


class RolledLog(Protocol):
    """A log whose active segment can be sealed.

    Attributes:
        durable: the log is on disk. Dead frames of its active segment take as much memory as live ones, and go with
            them; so it is not sealed to free memory.
        segments: all it holds, and the active segment.
        quota: what the bucket may occupy in memory.
        compactions: plans what is rewritten.
    """

    durable: bool
    segments: LogSegments
    quota: Quota
    compactions: CompactionPlanner

    def roll(self, nbytes: int) -> None:
        """Seal the active segment, if there is anything in it, and begin the next one, with room for nbytes more."""

    def check_backlog(self, most: int) -> None:
        """Raise TemporaryFailure if more bytes than that wait for compaction or the disk."""


class LogRoom:
    """Sees to it that frames can be appended.

    Attributes:
        fault: why nothing can be appended, None if it can.
        compact: called after a seal, and several times while a segment fills; begins or does a compaction.
        can_delete: tells whether documents may and can be deleted to free memory.
    """

    def __init__(self, log: RolledLog) -> None:
        self.fault: str | None = None
        self.compact: Callable[[], None] = lambda: None
        self.can_delete: Callable[[], bool] = lambda: False
        self._log = log
        self._quota = log.quota
        self._segments = log.segments

    def make(self, nbytes: int, *, frees: bool = False) -> None:
        """See to it that a frame of nbytes can be appended. Rows may move.

        To be called when `end` + nbytes of the active segment is above its `limit`.
        frees: the frame supersedes a document and has none itself, so it is taken above the quota, too.
        Raises TemporaryFailure while the log cannot take it, and where memory is about to be freed; OutOfMemory.
        """
        self.check()
        self.check_quota(frees=frees)
        segments = self._segments  # no reference to the active one: its memory must go while others are compacted
        nbytes += segments.active.overhead
        if segments.active.end + nbytes > len(segments.active.buffer):
            self.check_backlog()
            self._log.roll(nbytes)
        self.compact()
        self.raise_limit(nbytes)

    def begin_segment_for(self, nbytes: int) -> bool:
        """Make room for frames of nbytes together, if the log takes anything; True: that took a new segment."""
        segments = self._segments
        number = segments.active.number
        if segments.active.end + nbytes > segments.active.limit and not self._quota.is_exceeded:
            with suppress(TemporaryFailure, OutOfMemory):
                self.make(nbytes)
        return segments.active.number != number

    def seal(self) -> None:
        """Let what was appended be in a sealed segment, so that a pass over everything comes to it."""
        self._log.compactions.restart_pass()
        if self._segments.active_is_used:
            self._log.roll(0)

    def check(self) -> None:
        """Raise TemporaryFailure while nothing can be appended."""
        if self.fault is not None:
            raise TemporaryFailure(self.fault)

    def check_backlog(self) -> None:
        """Raise TemporaryFailure if too much waits for compaction or the disk."""
        self._log.check_backlog(max(_BEHIND, 4 * self._quota.usual_segment_bytes))

    def check_quota(self, *, frees: bool = False) -> None:
        """Free memory where much is in use. Raises as Quota.refuse does above the quota, unless the change frees some.

        That is looked at some times while a segment fills.
        """
        quota = self._quota
        if quota.is_exceeded and frees:
            quota.doubt()  # a rewrite may help the next change that frees nothing
            return
        if quota.look() and quota.is_pressed:
            self._seal_dead()
            self.compact()
            quota.look()
            quota.helps = self._log.compactions.frees() or self.can_delete()
        if quota.is_exceeded and not frees:
            self._segments.active.limit = 0  # so that the next change asks again
            quota.refuse()

    def _seal_dead(self) -> None:
        """Seal the active segment if compaction can free much of it."""
        segments = self._segments
        if self._log.durable or self._log.compactions.is_running:
            return
        if PRESSED * segments.active.end < sum(index.dead for index in segments.indexes):
            self._log.roll(0)

    def raise_limit(self, nbytes: int) -> None:
        """Let frames be appended up to the next look, and nbytes in any case. On disk only the quota asks for looks."""
        active = self._segments.active
        size = len(active.buffer)
        step = 0 if self._quota.is_exceeded else size // _LOOKS_PER_SEGMENT
        if self._log.durable and self._quota.nbytes is None:
            step = size
        active.limit = min(size - active.overhead, active.end + max(nbytes, step))
        if self.fault is not None:  # whether before, or on another thread just now
            active.limit = 0

    def shut(self, why: str) -> None:
        """Refuse changes from now on. Called from any thread, as `open` is."""
        self.fault = why
        self._segments.active.limit = 0  # so that the next change asks for room, and is refused

    def open(self) -> None:
        """Take changes again: the next one asks for room, and gets it."""
        self.fault = None
