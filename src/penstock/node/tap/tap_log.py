"""What a TAP producer has sent and its consumer has not answered: sequence numbers, window, acknowledgements.

A message's number here counts from 0 and never wraps; on the wire it is a sequence from 1 to 2^32-1, then 1 again. An
acknowledgement counts for everything before it too, so the log is a queue of runs of messages.
Source: ep-engine 2.5 tapconnection.cc; TAP, "ACK".
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.wire.codec.flags import TapFlag

__all__ = ["SEQUENCES", "TapLog"]

SEQUENCES = 2**32 - 1
"""How many sequences there are: all of 32 bits but 0."""

Column = npt.NDArray[Any]
Item = TypeVar("Item")


class TapLog(Generic[Item]):
    """The messages of one connection.

    acks: does the consumer acknowledge? If not, nothing is kept. interval: every so many messages one asks for an
    answer. window: so many may be unanswered. sent: how many there were; acked: how many of them are dealt with.
    """

    def __init__(self, acks: bool, interval: int, window: int) -> None:
        self.acks = acks
        self.interval = interval
        self.window = window
        self.sent = 0
        self.acked = 0
        self._asked = -1  # the newest message that asks for an answer
        self._barrier = -1  # the newest message that no data may overtake
        self._runs: deque[tuple[int, int, Item]] = deque()  # from, up to and without, what

    @property
    def unacked(self) -> int:
        return self.sent - self.acked

    @property
    def room(self) -> int:
        """How many messages may be sent."""
        return self.window - self.unacked if self.acks else self.window

    @property
    def answer_due(self) -> bool:
        """Is there a message that asked for an answer and has none?"""
        return self._asked >= self.acked

    @property
    def barred(self) -> bool:
        """Is there a message that has to be answered before data may follow?"""
        return self._barrier >= self.acked

    def number(self, count: int, item: Item, *, asks: bool, barrier: bool = False) -> tuple[Column, Column]:
        """Take in messages that are about to be sent, and return their sequences and tap flags.

        asks: the last of them asks for an answer, whatever its number. barrier: no data may overtake them.
        """
        first, self.sent = self.sent, self.sent + count
        places = np.arange(first, self.sent, dtype=np.int64) % SEQUENCES
        flags = np.zeros(count, np.uint16)
        if not self.acks:
            self.acked = self.sent
            return places + 1, flags
        flags[places % self.interval == 0] = TapFlag.ACK
        if asks:
            flags[-1] = TapFlag.ACK
        asking = np.flatnonzero(flags)
        if len(asking):
            self._asked = first + int(asking[-1])
        if barrier:
            self._barrier = self.sent - 1
        self._runs.append((first, self.sent, item))
        return places + 1, flags

    def find(self, sequence: int) -> int | None:
        """Return the number of the unanswered message with this sequence, None if there is none."""
        number = self.acked + (sequence - 1 - self.acked) % SEQUENCES
        return number if sequence and number < self.sent else None

    def take(self, end: int) -> list[tuple[Item, int, int]]:
        """Take out all messages before number `end`; of each run touched, from and up to which of its messages."""
        taken = []
        while self._runs and self._runs[0][0] < end:
            first, last, item = self._runs[0]
            taken.append((item, self.acked - first, min(last, end) - first))
            self.acked = min(last, end)
            if last > end:
                break
            self._runs.popleft()
        self.acked = max(self.acked, end)
        return taken
