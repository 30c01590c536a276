"""Cas values and expiry times: what the store makes of the clock it is given."""

from collections.abc import Callable

__all__ = ["LAST_SEEN", "HybridClock", "absolute_expiry"]

_LOGICAL = 0xFFFF
LAST_SEEN = 2**64 - 2**48
_LONGEST_RELATIVE = 30 * 24 * 60 * 60
_NANOSECONDS = 10**9


class HybridClock:
    """A hybrid logical clock: close to the wall clock, yet every value is above the one before it.

    The low 16 bits of a value are a counter, the others the wall clock's nanoseconds. now: ns since the epoch.
    Source: kv_engine hlc.h.
    """

    __slots__ = ("_now", "last")

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.last = 0

    def see(self, cas: int) -> None:
        """Take note of a value from elsewhere: those to come are above it. The last 2^48 values there are do not count.

        Otherwise one value could leave none for the changes after it.
        """
        if self.last < cas <= LAST_SEEN:
            self.last = cas

    def tick(self) -> int:
        """Return the next value. It does not go back when the wall clock does."""
        now = self._now() & ~_LOGICAL
        self.last = last = now if now > self.last else self.last + 1
        return last


def absolute_expiry(expiry: int, now: int) -> int:
    """Return the epoch second that `expiry` means at `now` (ns); memcached counts up to 30 days from now. 0: never."""
    return now // _NANOSECONDS + expiry if 0 < expiry <= _LONGEST_RELATIVE else expiry
