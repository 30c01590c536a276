"""The settings of the automatic failover of a cluster. Pure."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import UsageError

__all__ = ["CLOCK_MARGIN", "FailoverSettings"]

CLOCK_MARGIN = 1.25
"""The factor from the lease to the shortest timeout: the clocks of two nodes may differ by 10 % in each direction."""

_LONGEST_SECONDS = 3600.0
_MOST_FAILOVERS = 100


class FailoverSettings(Struct, frozen=True, kw_only=True):
    """The settings, and the number of failovers.

    Attributes:
        enabled: lost members are failed over.
        timeout: seconds of silence after which a member is lost.
        max_count: most failovers until the count is reset.
        count: failovers since the count was reset.
    """

    enabled: bool = False
    timeout: float = 120.0
    max_count: int = 1
    count: int = 0

    def count_failover(self) -> FailoverSettings:
        """Return the settings after a failover."""
        return replace(self, count=self.count + 1)

    def check(self, lease_seconds: float) -> None:
        """Raise UsageError for invalid settings.

        Args:
            lease_seconds: duration of the leases.
        """
        shortest = lease_seconds * CLOCK_MARGIN
        if not self.enabled:
            return
        if not shortest <= self.timeout <= _LONGEST_SECONDS:
            raise UsageError(
                f"automatic failover after {self.timeout:g} s: expected {shortest:g} (the lease and a quarter) to "
                f"{_LONGEST_SECONDS:g}"
            )
        if not 1 <= self.max_count <= _MOST_FAILOVERS:
            raise UsageError(f"{self.max_count} failovers: expected 1 to {_MOST_FAILOVERS}")
