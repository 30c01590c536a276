"""The keys of a vbucket, and where the newest change of each lies."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from typing import Protocol

from penstock.store.log.key_search import UnloadedKeys
from penstock.store.log.key_table import KeyTable
from penstock.store.log.row_index import RowIndex

_ALIGNED = 16  # bytes, to which objects are rounded up
_INT_BYTES = 32
_FREED_PER_ROW = 4  # keys that are freed in the time in which one is read


class NewestSeqnos(Protocol):
    """The object that holds a vbucket's keys.

    Attributes:
        newest: for every key the seqno of its newest change, tombstones and system events included. It is UnloadedKeys
            until all keys are loaded.
    """

    newest: MutableMapping[bytes, int]


class VbucketKeys:
    """Loads, counts and forgets the keys of a vbucket. The mapping itself is where every command looks it up."""

    __slots__ = ("_index", "_place")

    def __init__(self, index: RowIndex, place: NewestSeqnos) -> None:
        self._index = index
        self._place = place

    @property
    def count(self) -> int:
        """The number of keys. It may have to load them."""
        return len(self.load_all())

    @property
    def nbytes(self) -> int:
        """An estimate of the keys' memory: their dict, and for each key an int and an object as long as the first."""
        newest = self._place.newest
        a_key = sys.getsizeof(next(iter(newest), b""))
        a_key += -a_key % _ALIGNED
        return sys.getsizeof(newest) + (a_key + _INT_BYTES) * len(newest)

    def clear(self) -> None:
        """Forget all keys. Very many of them are freed bit by bit."""
        stale = self._find_stale_table()
        self._place.newest = {} if stale is None else KeyTable(stale)

    def unload(self) -> None:
        """Forget the keys. They are read from the frames again when they are needed."""
        self._place.newest = UnloadedKeys(self._index, self._replace, self._find_stale_table())

    def reload(self) -> None:
        """Read all keys from the frames again, now. Takes time in proportion to the vbucket."""
        UnloadedKeys(self._index, self._replace).load()

    def load_some(self) -> int:
        """Load or free some of the keys that are left.

        Returns:
            How many rows that took; 0 if none is left.
        """
        if isinstance(self._place.newest, KeyTable):
            return -(-self._place.newest.free_some() // _FREED_PER_ROW)
        return self._place.newest.load_some() if isinstance(self._place.newest, UnloadedKeys) else 0

    def load_all(self) -> Mapping[bytes, int]:
        """Return the mapping with all keys in it."""
        return self._place.newest.load() if isinstance(self._place.newest, UnloadedKeys) else self._place.newest

    def forget(self, key: bytes, seqno: int) -> None:
        """Forget a key if its newest change, which was dropped, is at `seqno`."""
        if not isinstance(self._place.newest, UnloadedKeys) and self._place.newest.get(key) == seqno:
            del self._place.newest[key]

    def _replace(self, newest: MutableMapping[bytes, int]) -> None:
        self._place.newest = newest

    def _find_stale_table(self) -> KeyTable | None:
        """Return the present keys if freeing them at once takes long."""
        newest = self._place.newest.found if isinstance(self._place.newest, UnloadedKeys) else self._place.newest
        return newest if isinstance(newest, KeyTable) else None
