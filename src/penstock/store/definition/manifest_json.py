"""Manifests as JSON, in the form that clients and consoles exchange. A bucket's directory also keeps the next id."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, TypeVar

from penstock.errors import InvalidArguments
from penstock.store.definition.bucket_settings import MAX_TTL
from penstock.store.definition.manifest import (
    DEFAULT_NAME,
    DEFAULT_SCOPE,
    FIRST_ID,
    MAX_COLLECTIONS,
    MAX_SCOPES,
    Collection,
    Manifest,
    Scope,
    check_name,
)

_LARGEST_ID = 2**32 - 1
_UID_PATTERN = re.compile(r"[0-9a-fA-F]{1,16}")


def pack_manifest(manifest: Manifest) -> bytes:
    """Return the reply to COLLECTIONS_GET_MANIFEST."""
    return json.dumps(_content_to_dict(manifest), separators=(",", ":")).encode()


def unpack_manifest(text: bytes) -> Manifest:
    """Return the manifest in a JSON text.

    Raises:
        InvalidArguments: the text is not a manifest.
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"a manifest that is not JSON: {error}") from None
    return _read_manifest(parsed)


def manifest_to_dict(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest as a dict for `manifest_from_dict`, its next id included."""
    return {**_content_to_dict(manifest), "next_id": manifest.next_id}


def manifest_from_dict(parsed: Any) -> Manifest:
    """Return the manifest in a dict that `manifest_to_dict` returned.

    Raises:
        InvalidArguments: the dict is not a manifest.
    """
    manifest = _read_manifest(parsed)
    next_id = _read_integer(parsed, "next_id", None, manifest.next_id, _LARGEST_ID + 1)
    assert next_id is not None
    return replace(manifest, next_id=next_id)


# Writing


def _content_to_dict(manifest: Manifest) -> dict[str, Any]:
    return {"uid": f"{manifest.uid:x}", "scopes": [_scope_to_dict(scope) for scope in manifest.scopes]}


def _scope_to_dict(scope: Scope) -> dict[str, Any]:
    return {
        "name": scope.name,
        "uid": f"{scope.id:x}",
        "collections": [_collection_to_dict(collection) for collection in scope.collections],
    }


def _collection_to_dict(collection: Collection) -> dict[str, Any]:
    member: dict[str, Any] = {"name": collection.name, "uid": f"{collection.id:x}"}
    if collection.max_ttl is not None:
        member["maxTTL"] = collection.max_ttl
    if collection.history:
        member["history"] = True
    return member


# Reading


_Kind = TypeVar("_Kind", str, list[Any], bool)


def _read_member(parsed: Any, name: str, kind: type[_Kind]) -> _Kind:
    if not isinstance(parsed, dict) or not isinstance(found := parsed.get(name), kind):
        raise InvalidArguments(
            f"a manifest with {str(parsed)[:80]}, expected an object with a {kind.__name__} {name!r}"
        )
    return found


def _read_integer(parsed: Any, name: str, missing: int | None, lowest: int, highest: int) -> int | None:
    found = parsed.get(name, missing)
    if found is missing and missing is None and name not in parsed:
        return None
    if type(found) is not int or not lowest <= found <= highest:
        raise InvalidArguments(f"a manifest with {name} {str(found)[:40]}, expected {lowest} to {highest}")
    return found


def _read_uid(parsed: Any) -> int:
    text = _read_member(parsed, "uid", str)
    if not _UID_PATTERN.fullmatch(text):
        raise InvalidArguments(f"a manifest with uid {text[:40]!r}, expected up to 16 hexadecimal digits")
    return int(text, 16)


def _read_id(parsed: Any, name: str) -> int:
    """Return the id of a scope or collection. Only the default ones have 0; the ids from 1 to 7 are reserved.

    Raises:
        InvalidArguments: a scope or collection with this name cannot have the id.
    """
    found = _read_uid(parsed)
    if (found == 0) != (name == DEFAULT_NAME) or 0 < found < FIRST_ID or found > _LARGEST_ID:
        raise InvalidArguments(
            f"a manifest with uid {found:x} for {name!r}, expected 0 for {DEFAULT_NAME}, else 8 or more"
        )
    return found


def _read_manifest(parsed: Any) -> Manifest:
    uid = _read_uid(parsed)
    scopes = tuple(map(_read_scope, _read_member(parsed, "scopes", list)))
    _check_distinct("scope", [scope.name for scope in scopes], [scope.id for scope in scopes], MAX_SCOPES)
    names = [f"{scope.name}.{collection.name}" for scope in scopes for collection in scope.collections]
    ids = [collection.id for scope in scopes for collection in scope.collections]
    _check_distinct("collection", names, ids, MAX_COLLECTIONS)
    if all(scope.id != DEFAULT_SCOPE for scope in scopes):
        raise InvalidArguments(f"a manifest without the scope {DEFAULT_NAME}")
    return Manifest(uid, scopes, max([*ids, *(scope.id for scope in scopes), FIRST_ID - 1]) + 1)


def _check_distinct(kind: str, names: list[str], ids: list[int], most: int) -> None:
    if len(names) > most:
        raise InvalidArguments(f"a manifest with {len(names)} {kind}s, limit {most}")
    for values in (names, ids):
        if len(set(values)) != len(values):
            twice = next(value for place, value in enumerate(values) if value in values[:place])
            raise InvalidArguments(f"a manifest with {kind} {twice!r} twice")


def _read_scope(parsed: Any) -> Scope:
    name = _read_member(parsed, "name", str)
    if name != DEFAULT_NAME:
        check_name("scope", name)
    scope_id = _read_id(parsed, name)
    collections = _read_member(parsed, "collections", list)
    return Scope(scope_id, name, tuple(_read_collection(one, scope_id) for one in collections))


def _read_collection(parsed: Any, scope_id: int) -> Collection:
    name = _read_member(parsed, "name", str)
    if name != DEFAULT_NAME or scope_id != DEFAULT_SCOPE:
        check_name("collection", name)
    max_ttl = _read_integer(parsed, "maxTTL", None, 0, MAX_TTL)
    history = _read_member(parsed, "history", bool) if "history" in parsed else False
    return Collection(_read_id(parsed, name), scope_id, name, max_ttl, history)
