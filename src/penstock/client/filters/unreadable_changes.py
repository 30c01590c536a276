"""Counts the changes whose documents a filter cannot read, and keeps the first of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import pyarrow as pa

MOST_EXAMPLES: Final = 100
SHOWN_EXAMPLES: Final = 10
"""Examples in a sentence."""


@dataclass(slots=True)
class UnreadableChanges:
    """The changes whose documents a filter cannot read, so that it cannot decide about them.

    Attributes:
        count: their number. A change that is sent again is counted again.
        examples: key and reason of the first of them, at most 100.
    """

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, keys: pa.Array | pa.ChunkedArray, reasons: Mapping[int, str]) -> None:
        """Add changes.

        Args:
            keys: the keys of some changes.
            reasons: the places of the unreadable changes among them, with the reasons.
        """
        self.count += len(reasons)
        for place, reason in islice(reasons.items(), MOST_EXAMPLES - len(self.examples)):
            self.examples.append(f"key {keys[place].as_py()!r}: {reason}")

    def continue_from(self, earlier: UnreadableChanges) -> None:
        """Add the changes of an earlier stream, which this one continues."""
        self.count += earlier.count
        self.examples = (earlier.examples + self.examples)[:MOST_EXAMPLES]

    def describe(self) -> str:
        """Return the number and the first of the changes as a sentence."""
        shown = self.examples[:SHOWN_EXAMPLES]
        more = "; …" if self.count > len(shown) else ""
        subject = "1 document, which is" if self.count == 1 else f"{self.count:,} documents, which are"
        return f"the filter could not read {subject} left out: {'; '.join(shown)}{more}"
