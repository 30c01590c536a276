"""The memory quota of a bucket: how much is in use, and how a change above the quota is refused."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import OutOfMemory, TemporaryFailure

SEGMENT_BYTES = 16 * 1024 * 1024
"""Bytes of a segment in memory: sealed in a few milliseconds, for which an event loop can be held."""

HIGH_WATER, LOW_WATER = 0.85, 0.75
"""Parts of the quota: above the first memory is freed, down to the second. Source: kv_engine, mem_high_wat."""

_LARGEST_SEGMENT = 1024 * 1024 * 1024  # its offsets, and twice them, fit into Arrow's 31 bits
_SMALLEST_SEGMENT = 1024 * 1024
_SEGMENTS = 16  # in a quota: the active one takes its whole length
_REQUESTS_PER_MEASUREMENT = (
    64  # refusals between two looks: a look takes up to a millisecond, and every change asks above the quota
)


class Quota:
    """The memory limit of a bucket, and the newest measurement of its usage.

    Attributes:
        nbytes: the quota; None: no quota.
        usual_segment_bytes: the length of a log segment, unless a small quota needs shorter ones.
        measure: returns how many bytes are in use now.
        used_bytes: bytes in use at the last measurement.
        is_freeing: whether memory was being freed at the last measurement, so that a refused client should try again.
        temporary_errors: changes that were refused while memory was being freed.
        errors: changes that were refused because nothing could be freed.
    """

    def __init__(self, nbytes: int | None = None, segment_bytes: int = SEGMENT_BYTES) -> None:
        if not 0 < segment_bytes <= _LARGEST_SEGMENT:
            raise ValueError(f"segments of {segment_bytes} bytes, expected 1 to {_LARGEST_SEGMENT}")
        self.nbytes = nbytes
        self.usual_segment_bytes = segment_bytes
        self.measure: Callable[[], int] = lambda: 0
        self.used_bytes = 0
        self.is_freeing = False
        self.temporary_errors = self.errors = 0
        self._requests = 0

    @property
    def segment_bytes(self) -> int:
        """Bytes of a log segment. A small quota needs small segments: all of the active one is in memory."""
        usual = self.usual_segment_bytes
        return usual if self.nbytes is None else min(usual, max(self.nbytes // _SEGMENTS, _SMALLEST_SEGMENT))

    @property
    def high_water(self) -> int:
        """Bytes in use above which memory is freed."""
        return int((self.nbytes or 0) * HIGH_WATER)

    @property
    def low_water(self) -> int:
        """Bytes in use down to which memory is freed."""
        return int((self.nbytes or 0) * LOW_WATER)

    @property
    def is_pressed(self) -> bool:
        """Whether the usage is above the high-water mark."""
        return self.nbytes is not None and self.used_bytes > self.high_water

    @property
    def is_exceeded(self) -> bool:
        """Whether the usage is above the quota."""
        return self.nbytes is not None and self.used_bytes > self.nbytes

    def invalidate(self) -> None:
        """Measure again at the next change, because memory was freed or the quota changed."""
        self._requests = 0

    def measure_again(self) -> bool:
        """Measure the usage, unless the last measurement is recent enough.

        Returns:
            False if the last measurement still counts.
        """
        if self.nbytes is None:
            self.used_bytes = 0
            return False
        if self.is_exceeded and self._requests % _REQUESTS_PER_MEASUREMENT:
            self._requests += 1
            return False
        self._requests = 1
        self.used_bytes = self.measure()
        return True

    def refuse(self) -> None:
        """Raise the error for a change above the quota.

        Raises:
            TemporaryFailure: memory is being freed.
            OutOfMemory: no memory can be freed.
        """
        usage = f"{self.used_bytes} bytes of memory in use, limit {self.nbytes}"
        if self.is_freeing:
            self.temporary_errors += 1
            raise TemporaryFailure(f"{usage}: memory is being freed, try again soon")
        self.errors += 1
        raise OutOfMemory(usage)
