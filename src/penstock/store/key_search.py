"""The keys of a vbucket that was opened, until all of them have been read from its frames.

To read a million keys takes a quarter of a second. So that a command on such a vbucket need not wait for that, the
keys have fingerprints, made while the bucket is opened: the frames of one key are found by theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.store.fields import key_fingerprints, keys
from penstock.store.index import RowIndex
from penstock.store.segment import Column
from penstock.wire.frame import HEADER

__all__ = ["UnloadedKeys"]

_LOADED_AT_ONCE = 8192
_FEW_ROWS = 16 * 1024  # whose keys are read at once, in less than ten milliseconds
_MOST_ALIKE = 4096  # frames of the same fingerprint that are looked at

Fingerprints = npt.NDArray[np.uint64]


class _Part(NamedTuple):
    """Live frames in one buffer. fingerprints: of their keys, None where they are read at once."""

    buffer: memoryview
    offsets: Column
    seqnos: Column
    fingerprints: Fingerprints | None


class UnloadedKeys(dict[bytes, int]):
    """In the place of a vbucket's keys until they have been read from its frames.

    Where there are few, the first look-up reads them all. Where there are many, a look-up reads some and searches the
    others.

    Args:
        index: the rows of the vbucket.
        take: called with the keys when all are there.
    """

    def __init__(self, index: RowIndex, take: Callable[[dict[bytes, int]], None]) -> None:
        super().__init__()
        self._take = take
        self._found: dict[bytes, int] = {}
        self._written: dict[bytes, int] = {}  # since; what is read later is older
        self._rest = index.live()
        self._parts: list[_Part] = []  # those to come, last one first
        if index.row_count > _FEW_ROWS:
            self._parts = [_Part(*part, _fingerprints(part[0], part[1])) for part in self._rest][::-1]

    def get(self, key: bytes, default: Any = None) -> Any:
        if sum(len(part.offsets) for part in self._parts) <= _FEW_ROWS:
            return self.load().get(key, default)
        self.load_some()
        for known in (self._written, self._found):
            if key in known:
                return known[key]
        return self._search(key, default)

    def _search(self, key: bytes, default: Any) -> Any:
        """Return the seqno of a key that has not been read yet."""
        wanted = key_fingerprints(*_alone(key))[0]
        for buffer, offsets, seqnos, fingerprints in self._parts:
            assert fingerprints is not None
            alike = np.flatnonzero(fingerprints == wanted)
            if len(alike) > _MOST_ALIKE:
                return self.load().get(key, default)
            found = keys(buffer, offsets[alike])
            if key in found:
                return int(seqnos[alike[found.index(key)]])
        return default

    def __setitem__(self, key: bytes, seqno: int) -> None:
        self._written[key] = seqno

    def __delitem__(self, key: bytes) -> None:
        del self.load()[key]

    def load(self) -> dict[bytes, int]:
        while self.load_some():
            pass
        return self._found

    def load_some(self) -> int:
        """Read some thousand keys. Returns how many rows that took; 0 when all are there, and in the vbucket."""
        if not self._parts:
            self._parts = [_Part(*part, None) for part in islice(self._rest, 1)]
        if not self._parts:
            self._found.update(self._written)
            self._take(self._found)
            return 0
        buffer, offsets, seqnos, fingerprints = self._parts.pop()
        head = min(len(offsets), _LOADED_AT_ONCE)
        self._found.update(zip(keys(buffer, offsets[:head]), seqnos[:head].tolist(), strict=True))
        if head < len(offsets):
            rest = None if fingerprints is None else fingerprints[head:]
            self._parts.append(_Part(buffer, offsets[head:], seqnos[head:], rest))
        return head + 1


def _fingerprints(buffer: memoryview, offsets: Column) -> Fingerprints:
    """Return the fingerprints of keys, made of some at a time: numpy lets no other thread go on meanwhile."""
    pieces = range(0, len(offsets), _LOADED_AT_ONCE)
    found = [key_fingerprints(buffer, offsets[first : first + _LOADED_AT_ONCE]) for first in pieces]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def _alone(key: bytes) -> tuple[memoryview, Column]:
    """Return a buffer with a frame of this key, and where it begins."""
    return memoryview(HEADER.pack(0, 0, len(key), 0, 0, 0, len(key), 0, 0) + key), np.zeros(1, np.int64)
