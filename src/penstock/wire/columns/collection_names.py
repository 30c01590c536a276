"""What collections and scopes are called, for the rows of a stream whose keys only have their ids."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.wire.columns.pieces import MADE_ONCE, Column
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = ["DEFAULT_NAME", "CollectionName", "CollectionNames"]

DEFAULT_NAME = "_default"
"""Of the scope and of the collection that every bucket begins with."""


class CollectionName(NamedTuple):
    """A collection's name and its scope's; None where they are not known."""

    scope: str | None
    collection: str | None


_UNKNOWN = CollectionName(None, None)


class CollectionNames:
    """Names by id, of a manifest and of what began since then.

    No id is ever given to something else, so names are only added: what is gone may still be told of.
    """

    def __init__(self) -> None:
        self._scopes: dict[int, str] = {0: DEFAULT_NAME}
        self._names = {DEFAULT_COLLECTION: CollectionName(DEFAULT_NAME, DEFAULT_NAME)}
        self._columns: tuple[Column, pa.Array, pa.Array] | None = None

    def add_scope(self, scope_id: int, name: str) -> None:
        self._scopes[scope_id] = name

    def add(self, collection_id: int, scope_id: int, name: str) -> None:
        self._names[collection_id] = CollectionName(self._scopes.get(scope_id), name)
        self._columns = None

    def scope(self, scope_id: int) -> str | None:
        return self._scopes.get(scope_id)

    def of(self, collection_id: int) -> CollectionName:
        return self._names.get(collection_id, _UNKNOWN)

    def columns(self, ids: Column) -> tuple[pa.Array, pa.Array]:
        """Return the names of scope and collection for each of some ids, of which there is at least one."""
        first, count = int(ids[0]), len(ids)
        if (ids == first).all():
            scope, collection = self.of(first)
            return _repeated(scope, count), _repeated(collection, count)
        if self._columns is None:
            known = sorted(self._names)
            names = [self._names[each] for each in known]
            # Behind them all stands what is not known.
            self._columns = np.array(known, np.int64), *map(_strings, zip(*names, _UNKNOWN, strict=True))
        known_ids, scopes, collections = self._columns
        places = np.searchsorted(known_ids, ids)
        places[known_ids[np.minimum(places, len(known_ids) - 1)] != ids] = len(known_ids)
        chosen = pa.array(places)
        return scopes.take(chosen), collections.take(chosen)


def _strings(names: Iterable[str | None]) -> pa.Array:
    return pa.array(names, pa.string())


_SHORT = 32


def _repeated(name: str | None, count: int) -> pa.Array:
    if name is None:
        return pa.nulls(count, pa.string())
    return _made_once(name).slice(0, count) if count <= MADE_ONCE and len(name) <= _SHORT else pa.repeat(name, count)


@lru_cache(maxsize=32)
def _made_once(name: str) -> pa.Array:
    return pa.repeat(name, MADE_ONCE)
