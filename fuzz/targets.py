"""Targets of fuzzing: the rows of `python -m fuzz`."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from penstock.wire.codec.constants import Dialect

HTTP = "http"
"""Management: it is no dialect either."""

DOCUMENTS = "documents"
"""The parser of typed documents: no protocol, but its input comes from clients too."""

KEY_VALUE = "kv"
"""Key-value commands without a change stream: sub-document, with-meta, collections, STAT and all others."""


class Target(NamedTuple):
    """One side of a conversation, which receives tries.

    Attributes:
        dialect: the protocol: a dialect of change streams, `kv`, or another protocol; or `documents`.
        side: the program that receives the tries: `consumer` or `node`.
        module: has list_tries(dialect), check(data, dialect), the counter `answered`, and mutate(data, longest, chance)
            if its tries are not made of frames.
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

    def list_tries(self) -> Iterator[bytes]:
        """Yield the tries to begin with."""
        module = "fuzz.corpus" if self.side == "consumer" and self.spoken else self.module
        tries: Iterator[bytes] = self._load(module).list_tries(self.spoken)
        return tries

    def mutate(self) -> Callable[[bytes, int, random.Random], bytes]:
        """Return the function that changes a try as its grammar allows: (try, longest result, choices) -> try."""
        if self.dialect in (HTTP, DOCUMENTS):
            changed: Callable[[bytes, int, random.Random], bytes] = self._load(self.module).mutate
            return changed
        from fuzz.frames import list_spare_frames, mutate

        spare = list_spare_frames(self.spoken or Dialect.DCP, requests=self.side == "node")
        return lambda data, longest, chance: mutate(data, longest, chance, spare)

    def check(self) -> Callable[[bytes], None]:
        """Return the function that runs one try."""
        module, spoken = self._load(self.module), self.spoken
        return lambda data: module.check(data, spoken)

    def answered(self) -> Counter[str]:
        """Return the counter of reactions: answers of a node, messages that a consumer understood."""
        counter: Counter[str] = self._load(self.module).answered
        return counter

    def _load(self, module: str) -> Any:
        return importlib.import_module(module)


TARGETS = (
    *(Target(dialect, "consumer", "fuzz.consumer") for dialect in Dialect),
    *(Target(dialect, "node", "fuzz.node") for dialect in (*Dialect, KEY_VALUE)),
    Target(HTTP, "node", "fuzz.http"),
    Target(DOCUMENTS, "consumer", "fuzz.documents"),
)
DIALECTS = tuple(dict.fromkeys(target.dialect for target in TARGETS))
