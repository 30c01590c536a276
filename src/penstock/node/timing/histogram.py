"""Histograms of durations: counts by powers of two of microseconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

_MICROSECONDS = 1_000_000


class Histogram:
    """The durations of one kind of work.

    Attributes:
        count: number of recorded durations.
        total: their sum, seconds.
        last: the newest duration, seconds.
    """

    __slots__ = ("_counts", "count", "last", "total")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all durations."""
        self.count = 0
        self.total = self.last = 0.0
        self._counts = defaultdict[int, int](int)  # by the exponent of the next higher power of two

    def record(self, seconds: float, times: int = 1) -> None:
        """Count a duration, some times."""
        self.count += times
        self.total += seconds * times
        self.last = seconds
        power = int(seconds * _MICROSECONDS).bit_length()
        self._counts[power] += times

    @classmethod
    def merge(cls, others: Iterable[Histogram]) -> Histogram:
        """Return a histogram with the durations of all others."""
        merged = cls()
        for other in others:
            merged.count += other.count
            merged.total += other.total
            for power, count in other._counts.items():
                merged._counts[power] += count
        return merged

    def subtract(self, earlier: Histogram) -> Histogram:
        """Return a histogram of the durations that were recorded since an earlier state of this one."""
        rest = Histogram()
        rest.count, rest.total, rest.last = self.count - earlier.count, self.total - earlier.total, self.last
        for power, count in self._counts.items():
            if more := count - earlier._counts.get(power, 0):
                rest._counts[power] = more
        return rest

    def count_below(self, powers: Sequence[int]) -> list[int]:
        """Return the number of durations below each of some powers of two of microseconds, given by exponents."""
        counts = tuple(self._counts.items())
        return [sum(count for power, count in counts if power <= limit) for limit in powers]

    def estimate_quantile(self, part: float) -> float:
        """Return an upper bound of the duration that a part of all durations does not exceed, in seconds; 0 for none.

        Args:
            part: the part, 0 to 1.
        """
        wanted = part * self.count
        for power, count in sorted(self._counts.items()):
            wanted -= count
            if wanted <= 0:
                return (1 << power) / _MICROSECONDS
        return 0.0

    def list_stats(self, name: str) -> Iterator[tuple[str, object]]:
        """Yield the counts in the form that ep-engine's cbstats reads: `NAME_LOW,HIGH`, bounds in microseconds.

        kv_engine's `NAME_mean` is left out: the cbstats of 2.5 and 3.x fails on it, and later ones do not need it.
        """
        for power, count in sorted(self._counts.items()):
            yield f"{name}_{1 << power >> 1},{1 << power}", count
