"""The decision that another member died: its document stayed the same for its whole lease. Without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Beat(NamedTuple):
    """The document of a member, as it was read.

    Attributes:
        cas: its version, which each beat changes; 0: there is no document.
        lease_seconds: the member counts as dead after this time without a beat.
    """

    cas: int
    lease_seconds: float


class BeatWatch:
    """Finds members whose beat stays the same, by the clock of the observer alone. So clocks need not agree.

    Args:
        lease_seconds: the lease of the observer. After a pause of half of it, the observer knows nothing of the
            members, and begins to watch them.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._longest_gap = lease_seconds / 2
        self._looked_at = float("-inf")
        self._since: dict[str, tuple[int, float]] = {}

    def find_dead(self, beats: Mapping[str, Beat], now: float) -> set[str]:
        """Return the dead members.

        Args:
            beats: member -> its beat, of the other members.
            now: the monotonic time of the observer in seconds.
        """
        known = self._since if now - self._looked_at <= self._longest_gap else {}
        self._looked_at = now
        self._since = {}
        for member, beat in beats.items():
            cas, since = known.get(member, (beat.cas, now))
            self._since[member] = (cas, since) if cas == beat.cas else (beat.cas, now)
        return {member for member, beat in beats.items() if now - self._since[member][1] >= beat.lease_seconds}
