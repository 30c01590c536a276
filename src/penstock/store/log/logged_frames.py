"""The forms of frames that the log accepts: whole frames, frames in two parts, and runs of frames."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from penstock.store.log.segment import Column
from penstock.wire.codec.frame import Buffer

LONG_FROM: Final = 256 * 1024
"""Bytes of a value from which on its frame is written to the log in two parts, with one copy of the value."""


class LongFrame:
    """A frame in two parts. It has the length of the whole frame, and its first bytes can be read.

    Attributes:
        head: the frame up to the value.
        value: the rest.
    """

    __slots__ = ("head", "value")

    def __init__(self, head: bytes, value: Buffer) -> None:
        self.head = head
        self.value = value

    def __len__(self) -> int:
        return len(self.head) + len(self.value)

    def __getitem__(self, at: int) -> int:
        return self.head[at]

    def write_to(self, target: memoryview) -> None:
        """Write the frame into memory of the same length."""
        value_at = len(self.head)
        target[:value_at] = self.head
        target[value_at:] = self.value


Frame = bytes | LongFrame
"""The forms of a single frame."""


class FrameRun(NamedTuple):
    """Frames of documents of one vbucket, next to each other. A collection id takes one byte of a key.

    Attributes:
        keys: the store's key of each change.
        seqnos: ascending.
        data: the frames.
        bounds: where each frame begins in `data`, and where the last one ends.
        is_mutation: False for tombstones.
    """

    keys: list[bytes]
    seqnos: Column
    data: bytes
    bounds: Column
    is_mutation: npt.NDArray[np.bool_]

    @property
    def change_count(self) -> int:
        """The number of changes."""
        return len(self.keys)

    @property
    def lengths(self) -> Column:
        """The length of each frame."""
        return np.diff(self.bounds)

    def cut(self, start: int, end: int) -> Self:
        """Return the changes at the places from `start` to `end`."""
        rows = slice(start, end)
        return self._replace(
            keys=self.keys[rows],
            seqnos=self.seqnos[rows],
            bounds=self.bounds[start : end + 1],
            is_mutation=self.is_mutation[rows],
        )

    def count_stored(self, high_seqno: int) -> int:
        """Return how many changes a vbucket with this high seqno has."""
        return int(self.seqnos.searchsorted(high_seqno, "right"))

    def count_fitting(self, room: int, overhead: int) -> int:
        """Return how many changes fit into some room.

        Args:
            room: bytes up to the end of the last frame.
            overhead: bytes in front of each frame but the first.
        """
        ends = self.bounds[1:] - self.bounds[0] + overhead * np.arange(self.change_count)
        return int(ends.searchsorted(room, "right"))
