"""The unanswered messages of a TAP producer: sequence numbers, window and acknowledgements.

Numbers of messages count from 0 and never wrap. On the wire, a sequence counts from 1 to 2^32-1, then from 1 again. An
acknowledgement also applies to all earlier messages, so the log is a queue of runs of messages.
Source: ep-engine 2.5 tapconnection.cc; TAP, "ACK".
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.wire.codec.flags import TapFlag

SEQUENCES = 2**32 - 1
"""Number of sequences: all 32-bit numbers but 0."""

Column = npt.NDArray[Any]
Item = TypeVar("Item")


class TapLog(Generic[Item]):
    """The unanswered messages of one connection.

    Attributes:
        acks: whether the consumer acknowledges messages. If not, no message is kept.
        interval: number of messages of which one asks for an answer.
        window: most unanswered messages.
        sent: number of messages so far.
        acked: number of acknowledged messages.
    """

    def __init__(self, acks: bool, interval: int, window: int) -> None:
        self.acks = acks
        self.interval = interval
        self.window = window
        self.sent = 0
        self.acked = 0
        self._last_asking = -1  # the newest message that asks for an answer
        self._last_blocking = -1  # the newest message that no data may overtake
        self._runs: deque[tuple[int, int, Item]] = deque()  # first number, number after the last, item

    @property
    def unacked(self) -> int:
        """Number of unanswered messages."""
        return self.sent - self.acked

    @property
    def room(self) -> int:
        """Number of messages that may be sent."""
        return self.window - self.unacked if self.acks else self.window

    @property
    def is_answer_due(self) -> bool:
        """Whether the consumer owes an answer."""
        return self._last_asking >= self.acked

    @property
    def is_data_blocked(self) -> bool:
        """Whether a message must be answered before changes may follow."""
        return self._last_blocking >= self.acked

    def number_messages(
        self, count: int, item: Item, *, asks_answer: bool, blocks_data: bool = False
    ) -> tuple[Column, Column]:
        """Add messages that are sent next.

        Args:
            count: number of messages.
            item: returned when they are answered.
            asks_answer: whether the last of them asks for an answer in any case.
            blocks_data: whether no change may follow before they are answered.

        Returns:
            The sequence and the TAP flags of each message.
        """
        first, self.sent = self.sent, self.sent + count
        places = np.arange(first, self.sent, dtype=np.int64) % SEQUENCES
        flags = np.zeros(count, np.uint16)
        if not self.acks:
            self.acked = self.sent
            return places + 1, flags
        flags[places % self.interval == 0] = TapFlag.ACK
        if asks_answer:
            flags[-1] = TapFlag.ACK
        asking = np.flatnonzero(flags)
        if len(asking):
            self._last_asking = first + int(asking[-1])
        if blocks_data:
            self._last_blocking = self.sent - 1
        self._runs.append((first, self.sent, item))
        return places + 1, flags

    def find_message(self, sequence: int) -> int | None:
        """Return the number of the unanswered message with a sequence, None if there is none."""
        number = self.acked + (sequence - 1 - self.acked) % SEQUENCES
        return number if sequence and number < self.sent else None

    def remove_before(self, end: int) -> list[tuple[Item, int, int]]:
        """Remove all messages before number `end`.

        Returns:
            For each run: its item, and the bounds of its removed messages, counted from the start of the run.
        """
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
