"""How long consumers have lacked changes, to the accuracy of samples."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

K = TypeVar("K")


class LagClock(Generic[K]):
    """Measures the lags of connections, each named by a key."""

    def __init__(self) -> None:
        self._behind_since: dict[K, float] = {}

    def measure(self, key: K, remaining: int, now: float) -> float:
        """Return the seconds since a consumer had all changes.

        Args:
            key: the connection.
            remaining: number of changes that are left to send.
            now: the time, in seconds.
        """
        if not remaining:
            self._behind_since.pop(key, None)
            return 0.0
        return now - self._behind_since.setdefault(key, now)

    def forget_others(self, keys: AbstractSet[K]) -> None:
        """Forget all connections but these."""
        for key in self._behind_since.keys() - keys:
            del self._behind_since[key]
