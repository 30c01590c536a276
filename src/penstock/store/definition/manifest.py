"""The manifest of a bucket: its scopes and collections, and the changes to them.

A manifest is immutable. Each change returns another manifest, whose uid is greater by one. An id is assigned only once:
a new scope or collection never gets the id of a dropped one.

Sources: kv_engine docs/Collections.md, collections/manifest.cc; ns_server collections.erl.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from penstock.errors import CannotApplyManifest, InvalidArguments, UnknownCollection, UnknownScope
from penstock.store.definition.bucket_settings import MAX_TTL
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

DEFAULT_NAME: Final = "_default"
DEFAULT_SCOPE: Final = 0
FIRST_ID: Final = 8
"""The lowest id that is assigned; lower ids are reserved."""

MAX_SCOPES: Final = 1200
MAX_COLLECTIONS: Final = 1200

_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_%-]{0,250}")
_NAME_RULE = "1 to 251 of A-Z a-z 0-9 _ - %, not beginning with _ or %"


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection of a manifest.

    Attributes:
        id: 0 for the default collection, else FIRST_ID or above.
        scope_id: the id of its scope.
        name: unique in its scope.
        max_ttl: the longest time to live of its documents in seconds; 0: no limit, None: the bucket's limit applies.
        history: whether its older versions are to be kept. The store only passes this setting on to clients.
    """

    id: int
    scope_id: int
    name: str
    max_ttl: int | None = None
    history: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope of a manifest, with its collections.

    Attributes:
        id: 0 for the default scope, else FIRST_ID or above.
        name: unique in the manifest.
    """

    id: int
    name: str
    collections: tuple[Collection, ...] = ()

    def find(self, name: str) -> Collection | None:
        """Return the collection with this name, or None."""
        return next((collection for collection in self.collections if collection.name == name), None)


@dataclass(frozen=True)
class Manifest:
    """The scopes and collections of a bucket at one time.

    Attributes:
        uid: how many changes led to this manifest.
        next_id: the id of the next new scope or collection; clients do not see it.
    """

    uid: int
    scopes: tuple[Scope, ...]
    next_id: int = FIRST_ID

    @cached_property
    def collections(self) -> Mapping[int, Collection]:
        """The collections of all scopes by id."""
        return {collection.id: collection for scope in self.scopes for collection in scope.collections}

    @cached_property
    def scopes_by_id(self) -> Mapping[int, Scope]:
        """The scopes by id."""
        return {scope.id: scope for scope in self.scopes}

    @cached_property
    def _scopes_by_name(self) -> Mapping[str, Scope]:
        return {scope.name: scope for scope in self.scopes}

    @property
    def error_body(self) -> bytes:
        """The body of a reply that a scope or collection is not in this manifest."""
        return json.dumps({"manifest_uid": f"{self.uid:x}"}, separators=(",", ":")).encode()

    def find_scope(self, name: str) -> Scope:
        """Return the scope with this name.

        Raises:
            UnknownScope: no scope has this name.
        """
        scope = self._scopes_by_name.get(name)
        if scope is None:
            raise UnknownScope(f"no scope {name!r} in manifest {self.uid:x}", body=self.error_body)
        return scope

    def find(self, scope: str, collection: str) -> Collection:
        """Return the collection with this name in the scope with this name.

        Raises:
            UnknownScope: no scope has this name.
            UnknownCollection: no collection of the scope has this name.
        """
        found = self.find_scope(scope).find(collection)
        if found is None:
            raise UnknownCollection(
                f"no collection {scope}.{collection} in manifest {self.uid:x}", body=self.error_body
            )
        return found

    # Changes

    def with_scope(self, name: str) -> Manifest:
        """Return the manifest with another scope, which has no collections.

        Raises:
            InvalidArguments: the name is invalid or taken, or there are MAX_SCOPES scopes already.
        """
        check_name("scope", name)
        if name in self._scopes_by_name:
            raise InvalidArguments(f"scope {name!r} already exists")
        if len(self.scopes) >= MAX_SCOPES:
            raise InvalidArguments(f"{len(self.scopes)} scopes exist, and no more are allowed")
        return Manifest(self.uid + 1, (*self.scopes, Scope(self.next_id, name)), self.next_id + 1)

    def without_scope(self, name: str) -> Manifest:
        """Return the manifest without a scope and all of its collections.

        Raises:
            UnknownScope: no scope has this name.
            InvalidArguments: the name is that of the default scope.
        """
        dropped = self.find_scope(name)
        if dropped.id == DEFAULT_SCOPE:
            raise InvalidArguments("the default scope cannot be dropped")
        return replace(self, uid=self.uid + 1, scopes=tuple(scope for scope in self.scopes if scope is not dropped))

    def with_collection(self, scope: str, name: str, max_ttl: int | None = None, history: bool = False) -> Manifest:
        """Return the manifest with another collection.

        Args:
            scope: the name of the collection's scope.
            name: the collection's name.
            max_ttl: the longest time to live of its documents, 0 to MAX_TTL seconds; 0: no limit, None: the bucket's.
            history: the collection's setting `history`.

        Returns:
            The new manifest.

        Raises:
            UnknownScope: no scope has this name.
            InvalidArguments: the name is invalid or taken, max_ttl is out of range, or there are MAX_COLLECTIONS
                collections already.
        """
        inside = self.find_scope(scope)
        check_name("collection", name)
        check_ttl(name, max_ttl)
        if inside.find(name) is not None:
            raise InvalidArguments(f"collection {scope}.{name} already exists")
        if len(self.collections) >= MAX_COLLECTIONS:
            raise InvalidArguments(f"{len(self.collections)} collections exist, and no more are allowed")
        added = Collection(self.next_id, inside.id, name, max_ttl, history)
        return self._replace_collections(inside, (*inside.collections, added), self.next_id + 1)

    def without_collection(self, scope: str, name: str) -> Manifest:
        """Return the manifest without a collection.

        Raises:
            UnknownScope: no scope has this name.
            UnknownCollection: no collection of the scope has this name.
        """
        dropped = self.find(scope, name)
        inside = self.scopes_by_id[dropped.scope_id]
        return self._replace_collections(
            inside, tuple(collection for collection in inside.collections if collection is not dropped)
        )

    def with_max_ttl(self, scope: str, name: str, max_ttl: int | None) -> Manifest:
        """Return the manifest with another max_ttl of a collection.

        Raises:
            UnknownScope: no scope has this name.
            UnknownCollection: no collection of the scope has this name.
            InvalidArguments: max_ttl is not from 0 to MAX_TTL seconds.
        """
        check_ttl(name, max_ttl)
        return self._change_collection(self.find(scope, name), max_ttl=max_ttl)

    def with_history(self, scope: str, name: str, history: bool) -> Manifest:
        """Return the manifest with another history setting of a collection.

        Raises:
            UnknownScope: no scope has this name.
            UnknownCollection: no collection of the scope has this name.
        """
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
        """Check that a manifest of another node may replace this manifest, and return it with the higher next id.

        Args:
            given: the manifest of the other node.

        Returns:
            The given manifest. Its next_id is at least that of this manifest.

        Raises:
            CannotApplyManifest: its uid is below the uid of this manifest, or the same with other contents. Or it
                gives a known id another name or scope, or brings back the default collection.
        """
        if given.uid < self.uid:
            raise CannotApplyManifest(f"manifest {given.uid:x} after {self.uid:x}", body=self.error_body)
        if given.uid == self.uid and not given.has_same_content(self):
            raise CannotApplyManifest(
                f"manifest {given.uid:x} differs from the manifest with the same uid here", body=self.error_body
            )
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
        """Return whether two manifests have the same scopes and collections, in any order."""
        return dict(_list_scope_names(self)) == dict(_list_scope_names(other)) and self.collections == other.collections


DEFAULT_MANIFEST: Final = Manifest(
    0, (Scope(DEFAULT_SCOPE, DEFAULT_NAME, (Collection(DEFAULT_COLLECTION, DEFAULT_SCOPE, DEFAULT_NAME),)),)
)
"""The manifest of a new bucket."""


# Checks


def check_name(kind: str, name: str) -> None:
    """Raise InvalidArguments if the name is invalid.

    Args:
        kind: `scope` or `collection`, for the message.
        name: the name to check.

    Raises:
        InvalidArguments: no scope or collection can have this name.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArguments(f"{kind} name {name[:300]!r}: expected {_NAME_RULE}")


def check_ttl(name: str, max_ttl: int | None) -> None:
    """Raise InvalidArguments if max_ttl is out of range.

    Args:
        name: the collection's name, for the message.
        max_ttl: seconds; None is valid.

    Raises:
        InvalidArguments: max_ttl is not from 0 to MAX_TTL.
    """
    if max_ttl is not None and not 0 <= max_ttl <= MAX_TTL:
        raise InvalidArguments(f"collection {name!r}: a maxTTL of {max_ttl}, expected 0 to {MAX_TTL}")


def _check_unchanged(kind: str, number: int, before: str | int, after: str | int, manifest: Manifest) -> None:
    if before != after:
        raise CannotApplyManifest(f"{kind} {number:x} was {before!r}, cannot be {after!r}", body=manifest.error_body)


def _list_scope_names(manifest: Manifest) -> Iterator[tuple[int, str]]:
    return ((scope.id, scope.name) for scope in manifest.scopes)
