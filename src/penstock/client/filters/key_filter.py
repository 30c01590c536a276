"""A filter of changes by key."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Chooses keys by regular expressions (RE2), which have no negation of their own.

    Attributes:
        found: must be found in a key; None or empty: any key.
        excluded: must not be found in a key; None or empty: no key is left out.
    """

    found: str | None = None
    excluded: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether every key matches."""
        return not self.found and not self.excluded

    def match_keys(self, keys: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return which keys match. A null matches: a row without a key is no change of a document."""
        if not self.excluded:
            chosen = pc.match_substring_regex(keys, self.found or "")
        elif not self.found:
            chosen = pc.invert(pc.match_substring_regex(keys, self.excluded))
        else:
            found, excluded = (pc.match_substring_regex(keys, each) for each in (self.found, self.excluded))
            chosen = pc.and_not(found, excluded)
        return pc.fill_null(chosen, True)
