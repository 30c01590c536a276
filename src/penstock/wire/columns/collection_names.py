"""Names of collections and scopes, for the rows of a stream whose keys hold only collection ids."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.wire.columns.arrow_arrays import CACHED_ROWS, Column, make_row_numbers, make_texts, repeat_text
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

DEFAULT_NAME = "_default"
"""The name of every bucket's first scope, and of the first collection in it."""


class CollectionName(NamedTuple):
    """A collection's name and its scope's; None where they are not known."""

    scope: str | None
    collection: str | None


_UNKNOWN = CollectionName(None, None)


class CollectionNames:
    """Names by id: those in a manifest, and those of collections and scopes that were created later.

    A bucket never uses an id twice. Names are therefore only added: a later row may belong to a dropped collection.
    """

    def __init__(self) -> None:
        self._scopes: dict[int, str] = {0: DEFAULT_NAME}
        self._names = {DEFAULT_COLLECTION: CollectionName(DEFAULT_NAME, DEFAULT_NAME)}
        self._columns: tuple[Column, pa.Array, pa.Array] | None = None

    def add_scope(self, scope_id: int, name: str) -> None:
        """Add the name of a scope. Its collections are added after it."""
        self._scopes[scope_id] = name

    def add_collection(self, collection_id: int, scope_id: int, name: str) -> None:
        """Add the name of a collection."""
        self._names[collection_id] = CollectionName(self._scopes.get(scope_id), name)
        self._columns = None

    def find_scope(self, scope_id: int) -> str | None:
        """Return the name of a scope, None if it is not known."""
        return self._scopes.get(scope_id)

    def find_collection(self, collection_id: int) -> CollectionName:
        """Return the names of a collection and of its scope."""
        return self._names.get(collection_id, _UNKNOWN)

    def make_columns(self, ids: Column) -> tuple[pa.Array, pa.Array]:
        """Return the names of scope and collection for each of the ids. There must be at least one id."""
        first, count = int(ids[0]), len(ids)
        if (ids == first).all():
            scope, collection = self.find_collection(first)
            return _repeat_name(scope, count), _repeat_name(collection, count)
        if self._columns is None:
            known = sorted(self._names)
            names = [self._names[each] for each in known]
            # The last place holds the null of unknown ids.
            self._columns = np.array(known, np.int64), *map(make_texts, zip(*names, _UNKNOWN, strict=True))
        known_ids, scopes, collections = self._columns
        places = np.searchsorted(known_ids, ids)
        places[known_ids[np.minimum(places, len(known_ids) - 1)] != ids] = len(known_ids)
        chosen = make_row_numbers(places.astype(np.int32))
        return scopes.take(chosen), collections.take(chosen)


_SHORT = 32
"""Characters of a name up to which a long array of it is kept."""


def _repeat_name(name: str | None, count: int) -> pa.Array:
    if name is None:
        return pa.nulls(count, pa.string())
    if count <= CACHED_ROWS and len(name) <= _SHORT:
        return _repeat_cached(name, CACHED_ROWS).slice(0, count)
    return repeat_text(name, count)


_repeat_cached = lru_cache(maxsize=32)(repeat_text)
