"""The keys of a vbucket that has very many.

A dict moves all of its entries when it grows, and frees all of them when it is deleted. With a million keys each takes
30 ms, while nothing else runs. So the keys are spread over parts that grow and are freed one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from itertools import chain
from sys import getsizeof
from typing import Any

MANY_KEYS = 128 * 1024
"""From so many keys on a vbucket has a table. To move as many in a dict takes 5 ms."""

_PARTS = 61  # A prime. A dict places a key by the low bits of its hash, so keys of one part must differ in those.
_FREEING_MASK = 63  # To free a part takes a millisecond, and many keys may be stored in one turn.


class KeyTable(MutableMapping[bytes, int]):
    """A mapping of keys to seqnos. It is somewhat slower than a dict, but no operation takes long.

    Args:
        stale: a table that this one replaces. Its parts are freed one by one, with each 64th number that is stored and
            with `free_some`.
    """

    __slots__ = ("_parts", "_stale")

    def __init__(self, stale: KeyTable | None = None) -> None:
        self._parts: tuple[dict[bytes, int], ...] = tuple({} for _ in range(_PARTS))
        self._stale: list[dict[bytes, int]] = [] if stale is None else [*stale._parts, *stale._stale]

    # Without the mixin's calls of other methods: these run for every command.

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the seqno of a key, or the default."""
        return self._parts[hash(key) % _PARTS].get(key, default)

    def __getitem__(self, key: bytes) -> int:
        return self._parts[hash(key) % _PARTS][key]

    def __setitem__(self, key: bytes, seqno: int) -> None:
        self._parts[hash(key) % _PARTS][key] = seqno
        if self._stale and not seqno & _FREEING_MASK:
            self._stale.pop()

    def __delitem__(self, key: bytes) -> None:
        del self._parts[hash(key) % _PARTS][key]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._parts)

    def __sizeof__(self) -> int:
        return sum(map(getsizeof, self._parts)) + sum(map(getsizeof, self._stale))

    def insert(self, entries: Iterable[tuple[bytes, int]]) -> None:
        """Store many keys, twice as fast as `update`."""
        parts = self._parts
        for key, seqno in entries:
            parts[hash(key) % _PARTS][key] = seqno

    def free_some(self) -> int:
        """Free one part of the replaced table.

        Returns:
            The number of its keys plus 1; 0 if no part is left.
        """
        return len(self._stale.pop()) + 1 if self._stale else 0
