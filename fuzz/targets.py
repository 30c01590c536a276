"""What is fuzzed: the rows that `python -m fuzz` goes through."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.wire.constants import Dialect

KEY_VALUE = "kv"
"""Key-value commands without a change stream: sub-document, with-meta, collections, STAT and all others."""


class Target(NamedTuple):
    """One side of a conversation, to which tries are sent.

    Attributes:
        dialect: what is spoken: a dialect of change streams, `kv`, or another protocol.
        side: the program that receives the tries: `consumer` or `node`.
        module: has tries(dialect), check(data, dialect) and, if it counts them, the counter `answered`.
    """

    dialect: str
    side: str
    module: str

    @property
    def name(self) -> str:
        return f"{self.dialect}-{self.side}"

    @property
    def spoken(self) -> Dialect | None:
        return Dialect(self.dialect) if self.dialect in frozenset(Dialect) else None

    def tries(self) -> Iterator[bytes]:
        """Yield the tries to begin with."""
        tries: Iterator[bytes] = self._load("fuzz.corpus" if self.side == "consumer" else self.module).tries(
            self.spoken
        )
        return tries

    def spare(self) -> Sequence[bytes]:
        """Return the frames that a mutation may put into a try; none where tries are not made of frames."""
        from fuzz.frames import spare_frames

        return spare_frames(self.spoken or Dialect.DCP, requests=self.side == "node")

    def check(self) -> Callable[[bytes], None]:
        """Return what is done with one try."""
        module, spoken = self._load(self.module), self.spoken
        return lambda data: module.check(data, spoken)

    def answered(self) -> Counter[str]:
        """Return the counter of what was noticed: answers of a node, messages that a consumer took."""
        counter: Counter[str] = self._load(self.module).answered
        return counter

    def _load(self, module: str) -> Any:
        return importlib.import_module(module)


TARGETS = (
    *(Target(dialect, "consumer", "fuzz.consumer") for dialect in Dialect),
    *(Target(dialect, "node", "fuzz.node") for dialect in (*Dialect, KEY_VALUE)),
)
DIALECTS = tuple(dict.fromkeys(target.dialect for target in TARGETS))
