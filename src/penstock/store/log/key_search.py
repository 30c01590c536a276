"""The keys of a vbucket that was opened, until all of them have been read from its frames.

Reading a million keys takes a quarter of a second. A command on such a vbucket must not wait so long. So opening the
bucket makes a sorted table of fingerprints: the frame of a key is found by the key's fingerprint.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, MutableMapping
from itertools import accumulate
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.store.log.frame_fields import fingerprint_keys, read_keys
from penstock.store.log.key_table import MANY_KEYS, KeyTable
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column
from penstock.store.slices import run_slices
from penstock.wire.codec.frame import HEADER

_LOADED_AT_ONCE = 8192  # rows, a few milliseconds of work.
_LOADED_BY_LOOKUP = 64  # Few, because a connection does many look-ups in one turn.
_FEW_ROWS = 16 * 1024  # whose keys are read at once, in less than ten milliseconds
_MOST_MATCHES = 64  # frames of the same fingerprint that are looked at

Fingerprints = npt.NDArray[np.uint64]


class _Part(NamedTuple):
    """Live frames in one buffer."""

    buffer: memoryview
    offsets: Column
    seqnos: Column


class UnloadedKeys(MutableMapping[bytes, int]):
    """Stands for a vbucket's keys until they have been read from its frames.

    The first look-up reads all keys of a small vbucket. In a large one, each look-up reads some keys and searches the
    rest.

    Args:
        index: the rows of the vbucket.
        on_loaded: called with the keys when all are loaded.
        stale: the vbucket's earlier table of keys, which is freed bit by bit.

    Attributes:
        found: the keys that have been read.
    """

    def __init__(
        self, index: RowIndex, on_loaded: Callable[[MutableMapping[bytes, int]], None], stale: KeyTable | None = None
    ) -> None:
        self._on_loaded = on_loaded
        count = index.row_count
        self.found: dict[bytes, int] | KeyTable = {} if count < MANY_KEYS and stale is None else KeyTable(stale)
        self._written: dict[
            bytes, int | None
        ] = {}  # changes since the opening, None: deleted. Frames that are read later are older.
        self._parts: Iterator[_Part] = (_Part(*part) for part in index.iterate_live_frames())
        self._part: _Part | None = None  # the one whose keys are being read
        self._search = _Search(list(self._parts)) if count > _FEW_ROWS else None
        if self._search is not None:
            self._parts = iter(self._search.parts)
            self._part = next(self._parts, None)

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the seqno of a key's newest change, or the default."""
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
            except _TooManyMatchesError:
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
        """Return all keys, after reading them."""
        run_slices(self.load_some)
        return self.found

    def load_some(self, most: int = _LOADED_AT_ONCE) -> int:
        """Read up to `most` keys.

        Returns:
            How many rows' worth of work that was; 0 when all keys are loaded and the vbucket has them.
        """
        if self._part is None:
            self._part = next(self._parts, None)
        if self._part is not None:
            return self._read(self._part, most)
        if self._search is not None and self._search.parts:
            self._search = _Search([])  # all keys are read; the search would find those that were deleted since
        for _ in range(most):
            if not self._written:
                self._on_loaded(self.found)
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
        entries = zip(read_keys(buffer, offsets[:head]), seqnos[:head].tolist(), strict=True)
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


class _TooManyMatchesError(Exception):
    """So many frames have a key's fingerprint that comparing all of their keys takes too long."""


class _Search:
    """The rows of frames, sorted by the fingerprints of their keys.

    Each row is one number: the upper bits are those of the fingerprint, the lower bits are the row's place.
    """

    __slots__ = ("_firsts", "_mask", "_sorted", "parts")

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts
        self._firsts = [0, *accumulate(len(part.offsets) for part in parts)]
        count = self._firsts[-1]
        self._mask = (1 << count.bit_length()) - 1
        found = np.concatenate([np.zeros(0, np.uint64), *(_fingerprint_part(part) for part in parts)])
        found &= ~np.uint64(self._mask)
        found |= np.arange(count, dtype=np.uint64)
        found.sort()
        self._sorted = found.data

    def find(self, key: bytes) -> int | None:
        """Return the seqno of a key; None if there is none.

        Raises:
            _TooManyMatchesError: too many frames have the key's fingerprint.
        """
        wanted = int(fingerprint_keys(*_make_frame(key))[0]) & ~self._mask
        low, high = bisect_left(self._sorted, wanted), bisect_right(self._sorted, wanted | self._mask)
        if high - low > _MOST_MATCHES:
            raise _TooManyMatchesError
        for place in range(low, high):
            row = self._sorted[place] & self._mask
            number = bisect_right(self._firsts, row) - 1
            buffer, offsets, seqnos = self.parts[number]
            row -= self._firsts[number]
            if read_keys(buffer, offsets[row : row + 1]) == [key]:
                return int(seqnos[row])
        return None


def _fingerprint_part(part: _Part) -> Fingerprints:
    """Return the fingerprints of keys. It works in pieces, because numpy holds the GIL during each call."""
    buffer, offsets, _ = part
    pieces = range(0, len(offsets), _LOADED_AT_ONCE)
    found = [fingerprint_keys(buffer, offsets[first : first + _LOADED_AT_ONCE]) for first in pieces]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def _make_frame(key: bytes) -> tuple[memoryview, Column]:
    """Return a buffer with a frame of this key, and the frame's offset."""
    return memoryview(HEADER.pack(0, 0, len(key), 0, 0, 0, len(key), 0, 0) + key), np.zeros(1, np.int64)
