"""The keys of a vbucket that was opened, until all of them have been read from its frames.

To read a million keys takes a quarter of a second. So that a command on such a vbucket need not wait for that, the
keys have fingerprints, made and put in order while the bucket is opened: the frame of a key is found by its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, MutableMapping
from itertools import accumulate
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.store.log.frame_fields import key_fingerprints, keys
from penstock.store.log.key_table import MANY_KEYS, KeyTable
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column
from penstock.wire.codec.frame import HEADER

__all__ = ["UnloadedKeys"]

_LOADED_AT_ONCE = 8192
_LOADED_BY_LOOKUP = 64  # a connection does many look-ups in one turn
_FEW_ROWS = 16 * 1024  # whose keys are read at once, in less than ten milliseconds
_MOST_ALIKE = 64  # frames of the same fingerprint that are looked at

Fingerprints = npt.NDArray[np.uint64]


class _Part(NamedTuple):
    """Live frames in one buffer."""

    buffer: memoryview
    offsets: Column
    seqnos: Column


class UnloadedKeys(MutableMapping[bytes, int]):
    """In the place of a vbucket's keys until they have been read from its frames.

    Where there are few, the first look-up reads them all. Where there are many, a look-up reads some and searches the
    others.

    Args:
        index: the rows of the vbucket.
        take: called with the keys when all are there.
        stale: the table of the keys that were there before, which is freed bit by bit.

    Attributes:
        found: the keys that have been read.
    """

    def __init__(
        self, index: RowIndex, take: Callable[[MutableMapping[bytes, int]], None], stale: KeyTable | None = None
    ) -> None:
        self._take = take
        count = index.row_count
        self.found: dict[bytes, int] | KeyTable = {} if count < MANY_KEYS and stale is None else KeyTable(stale)
        self._written: dict[bytes, int | None] = {}  # since, None: deleted; what is read later is older
        self._parts: Iterator[_Part] = (_Part(*part) for part in index.live())
        self._part: _Part | None = None  # the one whose keys are being read
        self._search = _Search(list(self._parts)) if count > _FEW_ROWS else None
        if self._search is not None:
            self._parts = iter(self._search.parts)
            self._part = next(self._parts, None)

    def get(self, key: bytes, default: Any = None) -> Any:
        search = self._search
        if search is None:
            return self.load().get(key, default)
        if not self.load_some(_LOADED_BY_LOOKUP):
            return self.found.get(key, default)
        if key in self._written:
            seqno = self._written[key]
        elif (seqno := self.found.get(key)) is None:
            try:
                seqno = search.find(key)
            except _TooManyAlikeError:
                return self.load().get(key, default)
        return default if seqno is None else seqno

    def __getitem__(self, key: bytes) -> int:
        seqno = self.get(key)
        if seqno is None:
            raise KeyError(key)
        return int(seqno)

    def __setitem__(self, key: bytes, seqno: int) -> None:
        self._written[key] = seqno

    def __delitem__(self, key: bytes) -> None:
        self._written[key] = None

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.found)

    def load(self) -> MutableMapping[bytes, int]:
        while self.load_some():
            pass
        return self.found

    def load_some(self, most: int = _LOADED_AT_ONCE) -> int:
        """Read some thousand keys. Returns how many rows that took; 0 when all are there, and in the vbucket.

        most: so many at once.
        """
        if self._part is None:
            self._part = next(self._parts, None)
        if self._part is not None:
            return self._read(self._part, most)
        if self._search is not None and self._search.parts:
            self._search = _Search([])  # all keys are read; the search would find those that were deleted since
        for _ in range(most):
            if not self._written:
                self._take(self.found)
                return 0
            key, seqno = self._written.popitem()
            if seqno is None:
                self.found.pop(key, None)
            else:
                self.found[key] = seqno
        return most

    def _read(self, part: _Part, most: int) -> int:
        buffer, offsets, seqnos = part
        head = min(len(offsets), most)
        entries = zip(keys(buffer, offsets[:head]), seqnos[:head].tolist(), strict=True)
        taken = head + 1
        if isinstance(self.found, KeyTable):
            self.found.insert(entries)
            taken += head  # it takes twice as long
        else:
            self.found.update(entries)
        self._part = _Part(buffer, offsets[head:], seqnos[head:]) if head < len(offsets) else None
        return taken

    def __sizeof__(self) -> int:
        return getsizeof(self.found) + getsizeof(self._written)


class _TooManyAlikeError(Exception):
    """So many frames have the fingerprint of a key that to look at all of them takes long."""


class _Search:
    """The rows of frames, in the order of their keys' fingerprints.

    Each row is one number: the upper bits of the fingerprint, and below them the place of the row.
    """

    __slots__ = ("_firsts", "_mask", "_sorted", "parts")

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts
        self._firsts = [0, *accumulate(len(part.offsets) for part in parts)]
        count = self._firsts[-1]
        self._mask = (1 << count.bit_length()) - 1
        found = np.concatenate([np.zeros(0, np.uint64), *(_fingerprints(part) for part in parts)])
        found &= ~np.uint64(self._mask)
        found |= np.arange(count, dtype=np.uint64)
        found.sort()
        self._sorted = found.data

    def find(self, key: bytes) -> int | None:
        """Return the seqno of a key. Raises _TooManyAlikeError."""
        wanted = int(key_fingerprints(*_alone(key))[0]) & ~self._mask
        low, high = bisect_left(self._sorted, wanted), bisect_right(self._sorted, wanted | self._mask)
        if high - low > _MOST_ALIKE:
            raise _TooManyAlikeError
        for place in range(low, high):
            row = self._sorted[place] & self._mask
            number = bisect_right(self._firsts, row) - 1
            buffer, offsets, seqnos = self.parts[number]
            row -= self._firsts[number]
            if keys(buffer, offsets[row : row + 1]) == [key]:
                return int(seqnos[row])
        return None


def _fingerprints(part: _Part) -> Fingerprints:
    """Return the fingerprints of keys, made of some at a time: numpy lets no other thread go on meanwhile."""
    buffer, offsets, _ = part
    pieces = range(0, len(offsets), _LOADED_AT_ONCE)
    found = [key_fingerprints(buffer, offsets[first : first + _LOADED_AT_ONCE]) for first in pieces]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def _alone(key: bytes) -> tuple[memoryview, Column]:
    """Return a buffer with a frame of this key, and where it begins."""
    return memoryview(HEADER.pack(0, 0, len(key), 0, 0, 0, len(key), 0, 0) + key), np.zeros(1, np.int64)
