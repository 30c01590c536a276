"""Cas values and expiry times, made from the clock that the store is given."""

from collections.abc import Callable

from penstock.wire.codec.constants import LONGEST_RELATIVE

_LOGICAL = 0xFFFF
LAST_SEEN = 2**64 - 2**48
_NANOSECONDS = 10**9


class HybridClock:
    """A hybrid logical clock: close to the wall clock, and each value is above the previous one.

    The low 16 bits of a value are a counter, the others the wall clock's nanoseconds. Source: kv_engine hlc.h.

    Args:
        now: returns nanoseconds since the epoch.

    Attributes:
        last: the newest value.
    """

    __slots__ = ("_now", "last")

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.last = 0

    def observe(self, cas: int) -> None:
        """Make all later values higher than a value from another node.

        The last 2^48 numbers are ignored: otherwise one value could leave no numbers for later changes.
        """
        if self.last < cas <= LAST_SEEN:
            self.last = cas

    def tick(self) -> int:
        """Return the next value. It does not go back if the wall clock does."""
        now = self._now() & ~_LOGICAL
        self.last = last = now if now > self.last else self.last + 1
        return last


def resolve_expiry(expiry: int, now: int) -> int:
    """Return the epoch second that `expiry` means at `now` (ns); 0 for never.

    As in memcached, up to 30 days count from now, larger numbers are epoch seconds.
    """
    return now // _NANOSECONDS + expiry if 0 < expiry <= LONGEST_RELATIVE else expiry
