"""STAT of scopes and collections, limited to those that the user sees.

Source: kv_engine collections/manifest.cc and vbucket_manifest.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from penstock.errors import UnknownScope
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.stats.key_stats import find_collection, parse_id
from penstock.node.stats.stat_group import (
    Argument,
    StatGroup,
    StatRequest,
    Stats,
    format_value,
    make_bucket_group,
    parse_vbucket,
)
from penstock.store.definition.manifest import Collection, Manifest, Scope
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState

_HIDDEN = (VbucketState.DEAD, None)


def count_items(bucket: ServedBucket, collection: Collection) -> int:
    """Return the number of documents in a collection, over the active vbuckets of this node."""
    vbuckets = bucket.store.vbuckets
    return sum(
        each.collections.item_count(collection.id) for each in vbuckets if each.history.state is VbucketState.ACTIVE
    )


def _get_visible_manifest(request: StatRequest) -> Manifest:
    return request.session.get_visible_manifest(request.bucket)


def _list_collections(manifest: Manifest) -> list[tuple[Scope, Collection]]:
    return [(scope, collection) for scope in manifest.scopes for collection in scope.collections]


def _read_collections(request: StatRequest, by_id: bool = False) -> Stats:
    """Return all collections, or the one of the argument. Raises UnknownCollection, UnknownScope."""
    manifest = _get_visible_manifest(request)
    chosen = find_collection(manifest, request.argument, by_id=by_id) if request.argument else None
    pairs = [pair for pair in _list_collections(manifest) if chosen is None or pair[1] is chosen]
    return _list_collection_stats(request.bucket, pairs, manifest.uid)


def _list_collection_stats(bucket: ServedBucket, pairs: Iterable[tuple[Scope, Collection]], uid: int) -> Stats:
    for scope, collection in pairs:
        name = f"0x{scope.id:x}:0x{collection.id:x}"
        yield f"{name}:name", collection.name
        yield f"{name}:scope_name", scope.name
        yield f"{name}:items", count_items(bucket, collection)
        yield f"{name}:maxTTL", collection.max_ttl or 0
        yield f"{name}:history", format_value(collection.history)
    yield "manifest_uid", f"{uid:x}"


def _read_scopes(request: StatRequest, by_id: bool = False) -> Stats:
    """Return all scopes, or the one of the argument. Raises UnknownScope."""
    manifest = _get_visible_manifest(request)
    scopes = list(manifest.scopes)
    if request.argument:
        chosen = None if by_id else manifest.find_scope(request.argument)
        scopes = [scope for scope in scopes if scope is chosen or (by_id and scope.id == parse_id(request.argument))]
        if not scopes:
            raise UnknownScope(f"no scope {request.argument} in manifest {manifest.uid:x}", body=manifest.error_body)
    return _list_scope_stats(request.bucket, scopes, manifest.uid)


def _list_scope_stats(bucket: ServedBucket, scopes: Iterable[Scope], uid: int) -> Stats:
    for scope in scopes:
        yield f"0x{scope.id:x}:name", scope.name
        yield f"0x{scope.id:x}:collections", len(scope.collections)
        yield f"0x{scope.id:x}:items", sum(count_items(bucket, collection) for collection in scope.collections)
        for collection in scope.collections:
            yield f"0x{scope.id:x}:0x{collection.id:x}:name", collection.name
    yield "manifest_uid", f"{uid:x}"


_VbucketReader = Callable[[Vbucket, list[tuple[Scope, Collection]]], Stats]


def _read_details(request: StatRequest, read: _VbucketReader) -> Stats:
    """Return every vbucket, or the one of the argument."""
    store, pairs = request.bucket.store, _list_collections(_get_visible_manifest(request))
    if request.argument:
        return read(store.find_existing(parse_vbucket(request.name, request.argument)), pairs)
    return (line for vbucket in store.vbuckets if vbucket.history.state not in _HIDDEN for line in read(vbucket, pairs))


def _list_vbucket_collections(vbucket: Vbucket, pairs: list[tuple[Scope, Collection]]) -> Stats:
    prefix, there = f"vb_{vbucket.id}", vbucket.collections.ids
    pairs = [(scope, collection) for scope, collection in pairs if collection.id in there]
    yield f"{prefix}:collections", len(pairs)
    yield f"{prefix}:manifest:uid", vbucket.collections.manifest_uid or 0
    for scope, collection in pairs:
        name = f"{prefix}:0x{collection.id:x}"
        high = vbucket.collections.high_seqno(collection.id)
        yield f"{name}:name", collection.name
        yield f"{name}:scope", f"0x{scope.id:x}"
        yield f"{name}:high_seqno", high
        yield f"{name}:persisted_high_seqno", min(high, vbucket.history.persisted_seqno)
        yield f"{name}:items", vbucket.collections.item_count(collection.id)
        yield f"{name}:history", format_value(collection.history)


def _list_vbucket_scopes(vbucket: Vbucket, pairs: list[tuple[Scope, Collection]]) -> Stats:
    prefix, there = f"vb_{vbucket.id}", vbucket.collections.ids
    pairs = [(scope, collection) for scope, collection in pairs if collection.id in there]
    scopes = {scope.id: scope.name for scope, _ in pairs}
    yield f"{prefix}:scopes", len(scopes)
    yield f"{prefix}:manifest:uid", vbucket.collections.manifest_uid or 0
    for number, name in scopes.items():
        yield f"{prefix}:0x{number:x}:name", name
    for scope, collection in pairs:
        yield f"{prefix}:0x{scope.id:x}:0x{collection.id:x}:items", vbucket.collections.item_count(collection.id)


def _read_manifest(bucket: ServedBucket) -> Stats:
    yield "manifest_uid", f"{bucket.store.manifests.current.uid:x}"


_OPTIONAL, _REQUIRED = Argument.OPTIONAL, Argument.REQUIRED

GROUPS: dict[str, StatGroup] = {
    "collections": StatGroup(_read_collections, "the collections, or one", _OPTIONAL, "SCOPE.COLLECTION"),
    "collections-byid": StatGroup(partial(_read_collections, by_id=True), "one collection", _REQUIRED, "COLLECTION_ID"),
    "collections-details": StatGroup(
        partial(_read_details, read=_list_vbucket_collections),
        "the collections in each vbucket, or in one",
        _OPTIONAL,
        "VBUCKET",
    ),
    "manifest": make_bucket_group(_read_manifest, "the uid of the newest manifest"),
    "scopes": StatGroup(_read_scopes, "the scopes and their collections, or one scope", _OPTIONAL, "SCOPE"),
    "scopes-byid": StatGroup(partial(_read_scopes, by_id=True), "one scope", _REQUIRED, "SCOPE_ID"),
    "scopes-details": StatGroup(
        partial(_read_details, read=_list_vbucket_scopes), "the scopes in each vbucket, or in one", _OPTIONAL, "VBUCKET"
    ),
}
