"""Which superseded frames of a log on disk stay: those that were superseded lately, and those not on disk yet."""

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
    """The newest log files, as many as the settings say: their changes keep what they superseded.

    Attributes:
        settings: the bucket's.
    """

    def __init__(
        self, settings: BucketSettings, segments: LogSegments, pending: PendingFiles, clock: Callable[[], int]
    ) -> None:
        self.settings = settings
        self._segments = segments
        self._pending = pending
        self._clock = clock

    def find_unready_segments(self) -> set[int]:
        return self._pending.list_numbers()

    def find_floors(self) -> Column:
        """What is superseded by a change on disk that is older than the retention may be dropped."""
        first, persisted = self._find_first_file(self._clock()), self._pending.find_persisted_seqno
        floors = [min(persisted(index), self._find_last_seqno_before(index, first)) for index in self._segments.indexes]
        return np.array(floors, np.int64)

    def count_retained_bytes(self, choice: RowChoice) -> int:
        return choice.held_bytes + (0 if self._is_empty else choice.recent_bytes)

    @property
    def _is_empty(self) -> bool:
        return self.settings.retention_seconds == 0 or self.settings.retention_bytes == 0

    def _find_first_file(self, now: int) -> int:
        """Return the number of the first log file whose changes keep what they superseded."""
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
        """Return the last seqno of a vbucket in front of a log file."""
        for segment, first in zip(index.segments, index.first_seqnos, strict=True):
            if segment.ids[0] >= number:
                return first - 1
        if index.seqnos_at and self._segments.active.number >= number:
            return index.seqnos_at[0] - 1
        return index.last_seqno
