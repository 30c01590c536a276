"""The memory quota of a bucket: how much of it is in use, and how a change is refused above it."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import OutOfMemory, TemporaryFailure

__all__ = ["HIGH_WATER", "LOW_WATER", "SEGMENT_BYTES", "Quota"]

SEGMENT_BYTES = 16 * 1024 * 1024
"""Bytes of a segment in memory: sealed in a few milliseconds, for which an event loop can be held."""

HIGH_WATER, LOW_WATER = 0.85, 0.75
"""Parts of the quota: above the first memory is freed, down to the second. Source: kv_engine, mem_high_wat."""

_LARGEST_SEGMENT = 1024 * 1024 * 1024  # its offsets, and twice them, fit into Arrow's 31 bits
_SMALLEST_SEGMENT = 1024 * 1024
_SEGMENTS = 16  # in a quota: the active one takes its whole length
_ASKED = 64  # refusals between two looks: a look takes up to a millisecond, and every change asks above the quota


class Quota:
    """What a bucket may occupy in memory, and whether it does.

    Attributes:
        nbytes: the quota; None: no quota.
        usual_segment_bytes: the length of a log segment where the quota asks for no shorter ones.
        measure: returns how many bytes are in use now.
        occupied: bytes that were in use at the last look.
        helps: whether memory was being freed at the last look, so that a refused client should try again.
        temporary_errors: changes that were refused while memory was being freed.
        errors: changes that were refused because nothing could be freed.
    """

    def __init__(self, nbytes: int | None = None, segment_bytes: int = SEGMENT_BYTES) -> None:
        if not 0 < segment_bytes <= _LARGEST_SEGMENT:
            raise ValueError(f"segments of {segment_bytes} bytes, expected 1 to {_LARGEST_SEGMENT}")
        self.nbytes = nbytes
        self.usual_segment_bytes = segment_bytes
        self.measure: Callable[[], int] = lambda: 0
        self.occupied = 0
        self.helps = False
        self.temporary_errors = self.errors = 0
        self._asked = 0

    @property
    def segment_bytes(self) -> int:
        """Bytes of a log segment. A small quota makes small segments: the active one is in memory as a whole."""
        usual = self.usual_segment_bytes
        return usual if self.nbytes is None else min(usual, max(self.nbytes // _SEGMENTS, _SMALLEST_SEGMENT))

    @property
    def high_water(self) -> int:
        return int((self.nbytes or 0) * HIGH_WATER)

    @property
    def low_water(self) -> int:
        return int((self.nbytes or 0) * LOW_WATER)

    @property
    def is_pressed(self) -> bool:
        """Whether so much is in use that memory should be freed."""
        return self.nbytes is not None and self.occupied > self.high_water

    @property
    def is_exceeded(self) -> bool:
        return self.nbytes is not None and self.occupied > self.nbytes

    def doubt(self) -> None:
        """Look again when the next change asks: memory was freed, or the quota changed."""
        self._asked = 0

    def look(self) -> bool:
        """Measure what is in use; False: the last measurement still counts."""
        if self.nbytes is None:
            self.occupied = 0
            return False
        if self.is_exceeded and self._asked % _ASKED:
            self._asked += 1
            return False
        self._asked = 1
        self.occupied = self.measure()
        return True

    def refuse(self) -> None:
        """Raise TemporaryFailure if memory is being freed, else OutOfMemory."""
        said = f"{self.occupied} bytes of memory in use, limit {self.nbytes}"
        if self.helps:
            self.temporary_errors += 1
            raise TemporaryFailure(f"{said}: memory is being freed, try again soon")
        self.errors += 1
        raise OutOfMemory(said)
