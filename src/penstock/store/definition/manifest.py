"""Which scopes and collections a bucket has: the manifest, and how it changes.

A manifest never changes; each change makes another one, with a uid that is greater by one. An id is given once: what
was dropped does not come back under its id. Sources: kv_engine docs/Collections.md, collections/manifest.cc;
ns_server collections.erl.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from penstock.errors import CannotApplyManifest, InvalidArguments, OutOfRange, UnknownCollection, UnknownScope
from penstock.store.definition.bucket_settings import MAX_TTL
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = [
    "DEFAULT_MANIFEST",
    "DEFAULT_NAME",
    "DEFAULT_SCOPE",
    "FIRST_ID",
    "MAX_COLLECTIONS",
    "MAX_SCOPES",
    "Collection",
    "Manifest",
    "Scope",
    "check_name",
    "check_ttl",
]

DEFAULT_NAME: Final = "_default"
DEFAULT_SCOPE: Final = 0
FIRST_ID: Final = 8
"""The lowest id that is given; those below are reserved."""

MAX_SCOPES: Final = 1200
MAX_COLLECTIONS: Final = 1200

_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_%-]{0,250}")
_NAME_RULE = "1 to 251 of A-Z a-z 0-9 _ - %, not beginning with _ or %"


@dataclass(frozen=True, slots=True)
class Collection:
    """max_ttl: seconds that its documents live at most; 0: any time, None: the bucket says."""

    id: int
    scope_id: int
    name: str
    max_ttl: int | None = None
    history: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    id: int
    name: str
    collections: tuple[Collection, ...] = ()

    def find(self, name: str) -> Collection | None:
        return next((collection for collection in self.collections if collection.name == name), None)


@dataclass(frozen=True)
class Manifest:
    """uid: how often it has changed. next_id: what the next scope or collection gets; clients do not see it."""

    uid: int
    scopes: tuple[Scope, ...]
    next_id: int = FIRST_ID

    @cached_property
    def collections(self) -> Mapping[int, Collection]:
        return {collection.id: collection for scope in self.scopes for collection in scope.collections}

    @cached_property
    def scopes_by_id(self) -> Mapping[int, Scope]:
        return {scope.id: scope for scope in self.scopes}

    @cached_property
    def _scopes_by_name(self) -> Mapping[str, Scope]:
        return {scope.name: scope for scope in self.scopes}

    @property
    def error_body(self) -> bytes:
        """The body of a reply that something is not in this manifest."""
        return json.dumps({"manifest_uid": f"{self.uid:x}"}, separators=(",", ":")).encode()

    def find_scope(self, name: str) -> Scope:
        """Raises UnknownScope."""
        scope = self._scopes_by_name.get(name)
        if scope is None:
            raise UnknownScope(f"no scope {name!r} in manifest {self.uid:x}", body=self.error_body)
        return scope

    def find(self, scope: str, collection: str) -> Collection:
        """Raises UnknownScope, UnknownCollection."""
        found = self.find_scope(scope).find(collection)
        if found is None:
            raise UnknownCollection(
                f"no collection {scope}.{collection} in manifest {self.uid:x}", body=self.error_body
            )
        return found

    # Changes

    def with_scope(self, name: str) -> Manifest:
        """Raises InvalidArguments for a name that cannot be or is there, and if there are too many."""
        check_name("scope", name)
        if name in self._scopes_by_name:
            raise InvalidArguments(f"scope {name!r} is there already")
        if len(self.scopes) >= MAX_SCOPES:
            raise InvalidArguments(f"{len(self.scopes)} scopes, and there may be no more")
        return Manifest(self.uid + 1, (*self.scopes, Scope(self.next_id, name)), self.next_id + 1)

    def without_scope(self, name: str) -> Manifest:
        """With the scope all of its collections go. Raises UnknownScope, and InvalidArguments for the default scope."""
        gone = self.find_scope(name)
        if gone.id == DEFAULT_SCOPE:
            raise InvalidArguments("the default scope cannot be dropped")
        return replace(self, uid=self.uid + 1, scopes=tuple(scope for scope in self.scopes if scope is not gone))

    def with_collection(self, scope: str, name: str, max_ttl: int | None = None, history: bool = False) -> Manifest:
        """Raises UnknownScope, and InvalidArguments as with_scope does, also for a max_ttl out of range."""
        inside = self.find_scope(scope)
        check_name("collection", name)
        check_ttl(name, max_ttl)
        if inside.find(name) is not None:
            raise InvalidArguments(f"collection {scope}.{name} is there already")
        if len(self.collections) >= MAX_COLLECTIONS:
            raise InvalidArguments(f"{len(self.collections)} collections, and there may be no more")
        added = Collection(self.next_id, inside.id, name, max_ttl, history)
        return self._replace_collections(inside, (*inside.collections, added), self.next_id + 1)

    def without_collection(self, scope: str, name: str) -> Manifest:
        """Raises UnknownScope, UnknownCollection."""
        gone = self.find(scope, name)
        inside = self.scopes_by_id[gone.scope_id]
        return self._replace_collections(
            inside, tuple(collection for collection in inside.collections if collection is not gone)
        )

    def with_max_ttl(self, scope: str, name: str, max_ttl: int | None) -> Manifest:
        """Raises UnknownScope, UnknownCollection, and InvalidArguments for a max_ttl out of range."""
        check_ttl(name, max_ttl)
        return self._change_collection(self.find(scope, name), max_ttl=max_ttl)

    def with_history(self, scope: str, name: str, history: bool) -> Manifest:
        """Raises UnknownScope, UnknownCollection."""
        return self._change_collection(self.find(scope, name), history=history)

    def _change_collection(self, old: Collection, **changed: Any) -> Manifest:
        new = replace(old, **changed)
        inside = self.scopes_by_id[old.scope_id]
        return self._replace_collections(inside, tuple(new if other is old else other for other in inside.collections))

    def _replace_collections(
        self, inside: Scope, collections: tuple[Collection, ...], next_id: int | None = None
    ) -> Manifest:
        changed = replace(inside, collections=collections)
        scopes = tuple(changed if scope is inside else scope for scope in self.scopes)
        return Manifest(self.uid + 1, scopes, next_id or self.next_id)

    def accept_successor(self, given: Manifest) -> Manifest:
        """Return a manifest that was made elsewhere as the next one after this.

        Raises OutOfRange if its uid is below this one's, CannotApplyManifest if it has this one's and is another, or
        gives an id another name or place, or brings back the default collection.
        """
        if given.uid < self.uid:
            raise OutOfRange(f"manifest {given.uid:x} after {self.uid:x}", body=self.error_body)
        if given.uid == self.uid and not given.has_same_content(self):
            raise CannotApplyManifest(f"another manifest {given.uid:x} than the one here", body=self.error_body)
        for scope in given.scopes:
            known = self.scopes_by_id.get(scope.id, scope)
            _check_unchanged("scope", scope.id, known.name, scope.name, self)
        for collection in given.collections.values():
            before = self.collections.get(collection.id, collection)
            _check_unchanged("collection", collection.id, before.name, collection.name, self)
            _check_unchanged("the scope of collection", collection.id, before.scope_id, collection.scope_id, self)
        if DEFAULT_COLLECTION in given.collections and DEFAULT_COLLECTION not in self.collections:
            raise CannotApplyManifest("the default collection was dropped and cannot come back", body=self.error_body)
        return replace(given, next_id=max(given.next_id, self.next_id))

    def has_same_content(self, other: Manifest) -> bool:
        """Tell whether both have the same scopes and collections, whatever their order."""
        return dict(_list_scope_names(self)) == dict(_list_scope_names(other)) and self.collections == other.collections


DEFAULT_MANIFEST: Final = Manifest(
    0, (Scope(DEFAULT_SCOPE, DEFAULT_NAME, (Collection(DEFAULT_COLLECTION, DEFAULT_SCOPE, DEFAULT_NAME),)),)
)
"""What a bucket begins with."""


# What may be in one


def check_name(kind: str, name: str) -> None:
    """Raise InvalidArguments for a name that no scope or collection can have. what: which of them it is."""
    if not _NAME.fullmatch(name):
        raise InvalidArguments(f"{kind} name {name[:300]!r}: expected {_NAME_RULE}")


def check_ttl(name: str, max_ttl: int | None) -> None:
    """Raise InvalidArguments if the documents of a collection cannot live so many seconds at most."""
    if max_ttl is not None and not 0 <= max_ttl <= MAX_TTL:
        raise InvalidArguments(f"collection {name!r}: a maxTTL of {max_ttl}, expected 0 to {MAX_TTL}")


def _check_unchanged(kind: str, number: int, before: str | int, after: str | int, manifest: Manifest) -> None:
    if before != after:
        raise CannotApplyManifest(f"{kind} {number:x} was {before!r}, cannot be {after!r}", body=manifest.error_body)


def _list_scope_names(manifest: Manifest) -> Iterator[tuple[int, str]]:
    return ((scope.id, scope.name) for scope in manifest.scopes)
