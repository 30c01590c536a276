"""How long a kind of work took: counts by powers of two of microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["Histogram"]

_MICROSECONDS = 1_000_000


class Histogram:
    """The durations of one kind of work.

    Attributes:
        count: how many durations were recorded.
        total: their sum, seconds.
        last: the newest one, seconds.
    """

    __slots__ = ("_counts", "count", "last", "total")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all durations."""
        self.count = 0
        self.total = self.last = 0.0
        self._counts: dict[int, int] = {}  # by the power of two that is above

    def record(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.last = seconds
        power = int(seconds * _MICROSECONDS).bit_length()
        self._counts[power] = self._counts.get(power, 0) + 1

    @classmethod
    def merged(cls, others: Iterable[Histogram]) -> Histogram:
        """Return one with the durations of all others."""
        merged = cls()
        for other in others:
            merged.count += other.count
            merged.total += other.total
            for power, count in other._counts.items():
                merged._counts[power] = merged._counts.get(power, 0) + count
        return merged

    def lines(self, name: str) -> Iterator[tuple[str, object]]:
        """Yield the statistics as ep-engine's cbstats reads histograms: `NAME_LOW,HIGH` is a count; microseconds.

        kv_engine's `NAME_mean` is left out: the cbstats of 2.5 and 3.x fails on it, and later ones do without.
        """
        for power, count in sorted(self._counts.items()):
            yield f"{name}_{1 << power >> 1},{1 << power}", count
