"""Which keys a vbucket has: some one, or all in order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop
from itertools import chain, islice

from penstock.store.documents.vbucket import Vbucket
from penstock.wire.values.collection_key import pack_collection_id, split_collection_key

__all__ = ["keys_from", "random_key"]


def random_key(vbucket: Vbucket, prefix: bytes, choose: Callable[[int], int]) -> bytes | None:
    """Return the key of some document with this prefix, None if there is none.

    choose: returns a random number from 0 to below another. The key is that of the first document from a random place
    on, so those behind many others that do not count come more often.
    """
    keys = vbucket.changes.keys.loaded()
    start = choose(len(keys)) if keys else 0
    for key in chain(islice(keys, start, None), islice(keys, start)):
        if key.startswith(prefix) and vbucket.versions.has_document(key):
            return key
    return None


def keys_from(vbucket: Vbucket, start: bytes, count: int) -> list[bytes]:
    """Return the keys of documents in a collection, in order, from `start` on, which begins with it; at most count.

    Takes time in proportion to the vbucket.
    """
    prefix = pack_collection_id(split_collection_key(start)[0])
    keys = [key for key in vbucket.changes.keys.loaded() if key >= start and key.startswith(prefix)]
    heapify(keys)
    found: list[bytes] = []
    while keys and len(found) < count:
        key = heappop(keys)
        if vbucket.versions.has_document(key):
            found.append(key)
    return found
