"""Times the requests of one connection: from the read that has received them to the write of their replies.

The replies of a turn are sent with one write. So one reading of the clock times all requests of the turn. Each request
of a timed read costs one byte in a list of opcodes. A read costs more than a microsecond, a tenth of the work for
a client that waits for each reply. Therefore a busy connection has one of about 32 reads timed. The timed read
counts for the reads before it too. So a quantile is that of all commands, and a count is about that of all commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, cycle, repeat
from typing import Final, NamedTuple

from penstock.node.timing.command_times import CommandTimes

_BUSY_SECONDS = 0.001
"""A connection with more than one read in this time is busy. All reads of other connections are timed."""

_DISTANCES: Final = (23, 47, 13, 37, 27, 59, 17)
"""Reads from one timed read of a busy connection to the next.

Their sum is a prime, so that a client whose commands repeat in another rhythm has each of them timed.
"""

_FIRST_READS = 16
"""Reads of a new connection that are timed in any case: a program of few commands has all of them timed."""


class TimedRead(NamedTuple):
    """A read whose requests are timed.

    Attributes:
        received_at: its event-loop time.
        reads: the reads that it counts for, with itself.
    """

    received_at: float
    reads: int


class RequestTimer:
    """Times the requests of a connection that have a reply which is not sent yet.

    Args:
        clock: returns the event-loop time.

    Attributes:
        reads_left: reads until the next one is timed. The queue counts it down, because a call would cost more.
        read: the read whose requests are served; None if it is not timed.
        late: answered requests that had to wait: opcode, and their own read.
        answered: opcodes of the answered requests of this read; those of a read that is not timed are left out.
    """

    __slots__ = ("_clock", "_distance", "_distances", "_timed_at", "answered", "late", "read", "reads_left")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.reads_left = self._distance = 1
        self.read: TimedRead | None = None
        self.answered = bytearray()
        self.late: list[tuple[int, TimedRead]] = []
        self._clock = clock
        self._distances: Iterator[int] = chain(repeat(1, _FIRST_READS), cycle(_DISTANCES))
        self._timed_at = float("-inf")

    def begin_read(self) -> None:
        """Time the requests of a new read, if `reads_left` has come to 0. Call it too after a read that was timed."""
        if self.reads_left > 0:
            self.read = None
            return
        now = self._clock()
        is_busy = now - self._timed_at < self._distance * _BUSY_SECONDS
        self.read, self._timed_at = TimedRead(now, self._distance), now
        self.reads_left = self._distance = next(self._distances) if is_busy else 1

    def note_late(self, opcode: int, read: TimedRead | None) -> None:
        """Note that a request that had to wait is answered.

        Args:
            opcode: its opcode.
            read: the read that has received it; None if it is not timed.
        """
        if read is not None:
            self.late.append((opcode, read))

    def record(self, times: CommandTimes | None) -> None:
        """Count the durations of the answered requests, since their replies are sent now.

        Args:
            times: the durations of the bucket; None: the requests belong to no bucket.
        """
        if times is not None:
            now = self._clock()
            if self.read is not None and self.answered:
                times.record(self.answered, now - self.read.received_at, now, self.read.reads)
            for opcode, read in self.late:
                times.record(bytes((opcode,)), now - read.received_at, now, read.reads)
        self.answered.clear()
        self.late.clear()
