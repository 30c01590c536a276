"""Lists the keys of a vbucket: a random one, or all in order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop
from itertools import chain, islice

from penstock.store.documents.vbucket import Vbucket
from penstock.wire.values.collection_key import pack_collection_id, split_collection_key


def choose_random_key(vbucket: Vbucket, prefix: bytes, choose: Callable[[int], int]) -> bytes | None:
    """Return the key of a document with this prefix, None if there is none.

    The result is the first document from a random place on. So documents behind many deleted ones come more often.

    Args:
        vbucket: the vbucket.
        prefix: the beginning of the key, such as a collection id.
        choose: returns a random number from 0 to below its argument.
    """
    keys = vbucket.changes.keys.load_all()
    start = choose(len(keys)) if keys else 0
    for key in chain(islice(keys, start, None), islice(keys, start)):
        if key.startswith(prefix) and vbucket.versions.has_document(key):
            return key
    return None


def list_keys(vbucket: Vbucket, start: bytes, count: int) -> list[bytes]:
    """Return the keys of documents in a collection, in order, from `start` on; at most count.

    Takes time in proportion to the vbucket.

    Args:
        vbucket: the vbucket.
        start: the first key, which begins with the collection id.
        count: the greatest number of keys.
    """
    prefix = pack_collection_id(split_collection_key(start)[0])
    keys = [key for key in vbucket.changes.keys.load_all() if key >= start and key.startswith(prefix)]
    heapify(keys)
    found: list[bytes] = []
    while keys and len(found) < count:
        key = heappop(keys)
        if vbucket.versions.has_document(key):
            found.append(key)
    return found
