"""What STAT tells of scopes and collections. Source: Couchbase's cbstats, collections and scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.node.served import ServedBucket
from penstock.store.manifest import Collection
from penstock.wire.constants import VbucketState

__all__ = ["GROUPS"]

Stats = Iterator[tuple[str, object]]


def _items(bucket: ServedBucket, collection: Collection) -> int:
    """Return the documents in a collection, over the active vbuckets of this node."""
    vbuckets = bucket.store.vbuckets
    return sum(each.collection_items(collection.id) for each in vbuckets if each.state is VbucketState.ACTIVE)


def _collections(bucket: ServedBucket) -> Stats:
    manifest = bucket.store.manifest
    for scope in manifest.scopes:
        for collection in scope.collections:
            name = f"0x{scope.id:x}:0x{collection.id:x}"
            yield f"{name}:name", collection.name
            yield f"{name}:scope_name", scope.name
            yield f"{name}:items", _items(bucket, collection)
            yield f"{name}:maxTTL", collection.max_ttl or 0
            yield f"{name}:history", str(collection.history).lower()
    yield "manifest_uid", f"{manifest.uid:x}"


def _scopes(bucket: ServedBucket) -> Stats:
    manifest = bucket.store.manifest
    for scope in manifest.scopes:
        yield f"0x{scope.id:x}:name", scope.name
        yield f"0x{scope.id:x}:collections", len(scope.collections)
        yield f"0x{scope.id:x}:items", sum(_items(bucket, collection) for collection in scope.collections)
        for collection in scope.collections:
            yield f"0x{scope.id:x}:0x{collection.id:x}:name", collection.name
    yield "manifest_uid", f"{manifest.uid:x}"


GROUPS: dict[str, Callable[[ServedBucket], Stats]] = {"collections": _collections, "scopes": _scopes}
