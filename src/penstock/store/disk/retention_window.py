"""Retention of superseded frames on disk: those that were superseded recently stay, and those not on disk yet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.pending_files import PendingFiles
from penstock.store.log.log_segments import LogSegments
from penstock.store.log.rewrite import RowChoice
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column

__all__ = ["RetentionWindow"]

_NANOSECONDS = 10**9


class RetentionWindow:
    """The newest log files, up to the limits of the bucket's settings. Frames that their changes superseded stay.

    Attributes:
        settings: the bucket's settings, with the retention in seconds and in bytes.
    """

    def __init__(
        self, settings: BucketSettings, segments: LogSegments, pending: PendingFiles, clock: Callable[[], int]
    ) -> None:
        self.settings = settings
        self._segments = segments
        self._pending = pending
        self._clock = clock

    def find_unready_segments(self) -> set[int]:
        """Return the numbers of sealed segments that cannot be rewritten yet: they are not completely on disk."""
        return self._pending.list_numbers()

    def find_floors(self) -> Column:
        """Return for each vbucket the highest seqno whose superseded frame may be dropped.

        The change with that seqno is on disk and older than the retention.

        Returns:
            An array of seqnos, one for each vbucket.
        """
        first, persisted = self._find_first_file(self._clock()), self._pending.find_persisted_seqno
        floors = [min(persisted(index), self._find_last_seqno_before(index, first)) for index in self._segments.indexes]
        return np.array(floors, np.int64)

    def count_retained_bytes(self, choice: RowChoice) -> int:
        """Return how many bytes of dead frames a rewrite had to keep. The next rewrite has to keep them, too."""
        return choice.held_bytes + (0 if self._is_empty else choice.recent_bytes)

    @property
    def _is_empty(self) -> bool:
        return self.settings.retention_seconds == 0 or self.settings.retention_bytes == 0

    def _find_first_file(self, now: int) -> int:
        """Return the number of the first log file in the window.

        Args:
            now: the present time, ns.
        """
        active = self._segments.active
        if self._is_empty:
            return active.number + 1
        seconds, nbytes = self.settings.retention_seconds, self.settings.retention_bytes
        first, size = active.number, active.end
        for segment in reversed(self._segments.sealed):
            if nbytes is not None and size > nbytes:
                break
            if seconds is not None and segment.sealed_at < now - seconds * _NANOSECONDS:
                break
            size += segment.size
            first = segment.ids[0]
        return first

    def _find_last_seqno_before(self, index: RowIndex, number: int) -> int:
        """Return the last seqno of a vbucket before the log file with this number."""
        for segment, first in zip(index.segments, index.first_seqnos, strict=True):
            if segment.ids[0] >= number:
                return first - 1
        if index.seqnos_at and self._segments.active.number >= number:
            return index.seqnos_at[0] - 1
        return index.last_seqno
