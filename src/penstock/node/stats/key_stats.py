"""STAT key and vkey: the state of one document. Source: kv_engine ep_engine.cc, doKeyStats."""

from __future__ import annotations

from penstock.digits import read_hex_digits
from penstock.errors import AccessDenied, InvalidArguments, KeyNotFound, NotSupported
from penstock.node.auth import Privilege
from penstock.node.session.request_keys import MAX_COLLECTION_KEY, make_unknown_collection_error
from penstock.node.stats.stat_group import Argument, StatGroup, StatRequest, Stats, format_value, parse_vbucket
from penstock.store.definition.manifest import Collection, Manifest
from penstock.wire.codec.constants import MAX_KEY
from penstock.wire.codec.flags import Datatype
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, pack_collection_id
from penstock.wire.values.large_bytes import touch_pages

_MOST_DIGITS = 10  # 0x and a u32
_DATATYPES = ((Datatype.SNAPPY, "snappy"), (Datatype.JSON, "json"), (Datatype.XATTR, "xattr"))


def find_collection(manifest: Manifest, text: str, *, by_id: bool) -> Collection:
    """Return the collection of a path or an id.

    Args:
        manifest: the collections that the user sees.
        text: `SCOPE.COLLECTION`, where an empty name stands for `_default`, or an id.
        by_id: the text is an id.

    Raises:
        UnknownCollection: there is no such collection.
        UnknownScope: there is no such scope.
        InvalidArguments: the text is neither.
    """
    if not by_id:
        scope, dot, name = text.partition(".")
        if not dot:
            raise InvalidArguments(f"collection {text!r}: expected SCOPE.COLLECTION")
        return manifest.find(scope or "_default", name or "_default")
    collection_id = parse_id(text)
    found = manifest.collections.get(collection_id)
    if found is None:
        raise make_unknown_collection_error(collection_id, manifest)
    return found


def parse_id(text: str) -> int:
    """Return the id of a collection or scope, written in hexadecimal with 0x.

    Raises InvalidArguments for another text.
    """
    number = read_hex_digits(text.removeprefix("0x")) if text.startswith("0x") else None
    if number is not None:
        return number
    raise InvalidArguments(f"id {text[:_MOST_DIGITS]!r}: expected a number in hexadecimal, such as 0x8")


def _read_key_stats(request: StatRequest) -> Stats:
    words = request.argument.split()
    if len(words) not in (2, 3):
        raise InvalidArguments(f"{request.name}: expected the arguments {_USAGE}, found {len(words)} words")
    bucket, (name, number, *path) = request.bucket, words
    vbucket = bucket.store.find_existing(parse_vbucket(request.name, number))
    by_id = request.name.endswith("-byid")
    collection_id = DEFAULT_COLLECTION
    if path:
        collection_id = find_collection(request.session.get_visible_manifest(bucket), path[0], by_id=by_id).id
    key = _make_store_key(request, name.encode(), collection_id)
    verified = request.name.startswith("vkey")
    if verified and not bucket.store.log.durable:
        raise NotSupported(f"bucket {bucket.store.name} is in memory: there is no disk to compare with")
    item = vbucket.get(key)
    if item is None:
        raise KeyNotFound(f"vbucket {vbucket.id} has no document {name!r}", vbucket=vbucket.id)
    assert vbucket.history.state is not None
    if verified:
        touch_pages(item.value)
    is_dirty = item.seqno > vbucket.history.persisted_seqno
    datatype = ",".join(text for flag, text in _DATATYPES if item.datatype & flag) or "raw"
    stats: dict[str, object] = {
        "key_is_dirty": format_value(is_dirty),
        "key_exptime": item.expiry,
        "key_datatype": datatype,
        "key_flags": item.flags,
        "key_cas": item.cas,
        "key_vb_state": vbucket.history.state.name.lower(),
        "key_is_resident": "true",
        # The value above was read from the mapped file: there is no copy in memory that could differ.
        **({"key_valid": "dirty" if is_dirty else "valid"} if verified else {}),
    }
    return iter(stats.items())


def _make_store_key(request: StatRequest, key: bytes, collection_id: int) -> bytes:
    """Return the store's key of a document. Raises AccessDenied, UnknownCollection, InvalidArguments."""
    session = request.session
    manifest = session.get_visible_manifest(request.bucket)
    collection = manifest.collections.get(collection_id)
    if collection is None:
        raise make_unknown_collection_error(collection_id, manifest)
    scope = manifest.scopes_by_id[collection.scope_id].name
    if not session.has_privilege(Privilege.READ, scope, collection.name):
        raise AccessDenied(f"collection {scope}.{collection.name}: not for {session.login.effective_user_name}")
    longest = MAX_KEY if collection_id == DEFAULT_COLLECTION else MAX_COLLECTION_KEY
    if len(key) > longest:
        raise InvalidArguments(f"key of {len(key)} bytes, limit {longest}")
    return pack_collection_id(collection_id) + key


_USAGE = "KEY VBUCKET [SCOPE.COLLECTION]"
_USAGE_BY_ID = "KEY VBUCKET [COLLECTION_ID]"

GROUPS: dict[str, StatGroup] = {
    "key": StatGroup(_read_key_stats, "the metadata of a document", Argument.REQUIRED, _USAGE),
    "key-byid": StatGroup(_read_key_stats, "the same as `key`", Argument.REQUIRED, _USAGE_BY_ID),
    "vkey": StatGroup(
        _read_key_stats, "the same as `key`, and whether the document is on disk", Argument.REQUIRED, _USAGE
    ),
    "vkey-byid": StatGroup(_read_key_stats, "the same as `vkey`", Argument.REQUIRED, _USAGE_BY_ID),
}
