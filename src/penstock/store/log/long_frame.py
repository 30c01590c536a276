"""Frames that are too long to be joined before they are written to the log."""

from __future__ import annotations

from typing import Final

from penstock.wire.codec.frame import Buffer

__all__ = ["LONG_FROM", "Frame", "LongFrame"]

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
"""The forms of a frame that the log accepts."""
