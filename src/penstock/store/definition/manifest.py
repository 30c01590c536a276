"""Which scopes and collections a bucket has: the manifest, how it changes, and what changes say to vbuckets.

A manifest never changes; each change makes another one, with a uid that is greater by one. An id is given once: what
was dropped does not come back under its id. Sources: kv_engine docs/Collections.md, collections/manifest.cc;
ns_server collections.erl.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

from penstock.errors import CannotApplyManifest, InvalidArguments, OutOfRange, UnknownCollection, UnknownScope
from penstock.store.definition.bucket_settings import MAX_TTL
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.messages import system_event
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = [
    "DEFAULT_MANIFEST",
    "DEFAULT_NAME",
    "FIRST_ID",
    "MAX_COLLECTIONS",
    "MAX_SCOPES",
    "Collection",
    "Manifest",
    "ManifestChange",
    "Scope",
    "changes_between",
    "subjects_of",
]

DEFAULT_NAME: Final = "_default"
DEFAULT_SCOPE: Final = 0
FIRST_ID: Final = 8
"""The lowest id that is given; those below are reserved."""

MAX_SCOPES: Final = 1200
MAX_COLLECTIONS: Final = 1200

_LARGEST_ID = 2**32 - 1
_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_%-]{0,250}")
_NAME_RULE = "1 to 251 of A-Z a-z 0-9 _ - %, not beginning with _ or %"
_UID = re.compile(r"[0-9a-fA-F]{1,16}")


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
    def said_uid(self) -> bytes:
        """The body of a reply that something is not in this manifest."""
        return json.dumps({"manifest_uid": f"{self.uid:x}"}, separators=(",", ":")).encode()

    def find_scope(self, name: str) -> Scope:
        """Raises UnknownScope."""
        scope = self._scopes_by_name.get(name)
        if scope is None:
            raise UnknownScope(f"no scope {name!r} in manifest {self.uid:x}", body=self.said_uid)
        return scope

    def find(self, scope: str, collection: str) -> Collection:
        """Raises UnknownScope, UnknownCollection."""
        found = self.find_scope(scope).find(collection)
        if found is None:
            raise UnknownCollection(f"no collection {scope}.{collection} in manifest {self.uid:x}", body=self.said_uid)
        return found

    # Changes

    def with_scope(self, name: str) -> Manifest:
        """Raises InvalidArguments for a name that cannot be or is there, and if there are too many."""
        _check_name("scope", name)
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
        _check_name("collection", name)
        _check_ttl(name, max_ttl)
        if inside.find(name) is not None:
            raise InvalidArguments(f"collection {scope}.{name} is there already")
        if len(self.collections) >= MAX_COLLECTIONS:
            raise InvalidArguments(f"{len(self.collections)} collections, and there may be no more")
        added = Collection(self.next_id, inside.id, name, max_ttl, history)
        return self._with(inside, (*inside.collections, added), self.next_id + 1)

    def without_collection(self, scope: str, name: str) -> Manifest:
        """Raises UnknownScope, UnknownCollection."""
        gone = self.find(scope, name)
        inside = self.scopes_by_id[gone.scope_id]
        return self._with(inside, tuple(collection for collection in inside.collections if collection is not gone))

    def with_max_ttl(self, scope: str, name: str, max_ttl: int | None) -> Manifest:
        """Raises UnknownScope, UnknownCollection, and InvalidArguments for a max_ttl out of range."""
        _check_ttl(name, max_ttl)
        return self._with_changed(self.find(scope, name), max_ttl=max_ttl)

    def with_history(self, scope: str, name: str, history: bool) -> Manifest:
        """Raises UnknownScope, UnknownCollection."""
        return self._with_changed(self.find(scope, name), history=history)

    def _with_changed(self, old: Collection, **changed: Any) -> Manifest:
        new = replace(old, **changed)
        inside = self.scopes_by_id[old.scope_id]
        return self._with(inside, tuple(new if other is old else other for other in inside.collections))

    def _with(self, inside: Scope, collections: tuple[Collection, ...], next_id: int | None = None) -> Manifest:
        changed = replace(inside, collections=collections)
        scopes = tuple(changed if scope is inside else scope for scope in self.scopes)
        return Manifest(self.uid + 1, scopes, next_id or self.next_id)

    def followed_by(self, given: Manifest) -> Manifest:
        """Return a manifest that was made elsewhere as the next one after this.

        Raises OutOfRange if its uid is below this one's, CannotApplyManifest if it has this one's and is another, or
        gives an id another name or place, or brings back the default collection.
        """
        if given.uid < self.uid:
            raise OutOfRange(f"manifest {given.uid:x} after {self.uid:x}", body=self.said_uid)
        if given.uid == self.uid and not given.says_the_same_as(self):
            raise CannotApplyManifest(f"another manifest {given.uid:x} than the one here", body=self.said_uid)
        for scope in given.scopes:
            known = self.scopes_by_id.get(scope.id, scope)
            _check_kept("scope", scope.id, known.name, scope.name, self)
        for collection in given.collections.values():
            before = self.collections.get(collection.id, collection)
            _check_kept("collection", collection.id, before.name, collection.name, self)
            _check_kept("the scope of collection", collection.id, before.scope_id, collection.scope_id, self)
        if DEFAULT_COLLECTION in given.collections and DEFAULT_COLLECTION not in self.collections:
            raise CannotApplyManifest("the default collection was dropped and cannot come back", body=self.said_uid)
        return replace(given, next_id=max(given.next_id, self.next_id))

    def says_the_same_as(self, other: Manifest) -> bool:
        """Tell whether both have the same scopes and collections, whatever their order."""
        return dict(_named(self)) == dict(_named(other)) and self.collections == other.collections

    # As JSON

    def to_json(self) -> bytes:
        """Return what COLLECTIONS_GET_MANIFEST answers."""
        return json.dumps(self._said(), separators=(",", ":")).encode()

    def _said(self) -> dict[str, Any]:
        return {"uid": f"{self.uid:x}", "scopes": [_scope_said(scope) for scope in self.scopes]}

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Read a manifest. Raises InvalidArguments for anything that is none."""
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArguments(f"a manifest that is not JSON: {error}") from None
        return _read(said)

    def described(self) -> dict[str, Any]:
        """Return what `restored` makes this manifest of."""
        return {**self._said(), "next_id": self.next_id}

    @classmethod
    def restored(cls, said: Any) -> Manifest:
        """Read what `described` returned. Raises InvalidArguments for something else."""
        manifest = _read(said)
        next_id = _integer(said, "next_id", None, manifest.next_id, _LARGEST_ID + 1)
        assert next_id is not None
        return replace(manifest, next_id=next_id)


DEFAULT_MANIFEST: Final = Manifest(
    0, (Scope(DEFAULT_SCOPE, DEFAULT_NAME, (Collection(DEFAULT_COLLECTION, DEFAULT_SCOPE, DEFAULT_NAME),)),)
)
"""What a bucket begins with."""


# What may be in one


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArguments(f"{what} name {name[:300]!r}: expected {_NAME_RULE}")


def _check_ttl(name: str, max_ttl: int | None) -> None:
    if max_ttl is not None and not 0 <= max_ttl <= MAX_TTL:
        raise InvalidArguments(f"collection {name!r}: a maxTTL of {max_ttl}, expected 0 to {MAX_TTL}")


def _check_kept(what: str, of: int, before: str | int, after: str | int, manifest: Manifest) -> None:
    if before != after:
        raise CannotApplyManifest(f"{what} {of:x} was {before!r}, cannot be {after!r}", body=manifest.said_uid)


def _named(manifest: Manifest) -> Iterator[tuple[int, str]]:
    return ((scope.id, scope.name) for scope in manifest.scopes)


# Reading


_Kind = TypeVar("_Kind", str, list[Any], bool)


def _member(said: Any, name: str, kind: type[_Kind]) -> _Kind:
    if not isinstance(said, dict) or not isinstance(found := said.get(name), kind):
        raise InvalidArguments(
            f"a manifest with {str(said)[:80]} where an object with a {kind.__name__} {name!r} is due"
        )
    return found


def _integer(said: Any, name: str, missing: int | None, lowest: int, highest: int) -> int | None:
    found = said.get(name, missing)
    if found is missing and missing is None and name not in said:
        return None
    if type(found) is not int or not lowest <= found <= highest:
        raise InvalidArguments(f"a manifest with {name} {str(found)[:40]}, expected {lowest} to {highest}")
    return found


def _uid(said: Any) -> int:
    text = _member(said, "uid", str)
    if not _UID.fullmatch(text):
        raise InvalidArguments(f"a manifest with uid {text[:40]!r}, expected up to 16 hexadecimal digits")
    return int(text, 16)


def _id(said: Any, name: str) -> int:
    """Return the id of a scope or collection. 0 is that of the default ones alone, those from 1 to 7 are nobody's."""
    found = _uid(said)
    if (found == 0) != (name == DEFAULT_NAME) or 0 < found < FIRST_ID or found > _LARGEST_ID:
        raise InvalidArguments(
            f"a manifest with uid {found:x} for {name!r}, expected 0 for {DEFAULT_NAME}, else 8 or more"
        )
    return found


def _read(said: Any) -> Manifest:
    uid = _uid(said)
    scopes = tuple(map(_read_scope, _member(said, "scopes", list)))
    _check_distinct("scope", [scope.name for scope in scopes], [scope.id for scope in scopes], MAX_SCOPES)
    names = [f"{scope.name}.{collection.name}" for scope in scopes for collection in scope.collections]
    ids = [collection.id for scope in scopes for collection in scope.collections]
    _check_distinct("collection", names, ids, MAX_COLLECTIONS)
    if all(scope.id != DEFAULT_SCOPE for scope in scopes):
        raise InvalidArguments(f"a manifest without the scope {DEFAULT_NAME}")
    return Manifest(uid, scopes, max([*ids, *(scope.id for scope in scopes), FIRST_ID - 1]) + 1)


def _check_distinct(what: str, names: list[str], ids: list[int], most: int) -> None:
    if len(names) > most:
        raise InvalidArguments(f"a manifest with {len(names)} {what}s, limit {most}")
    for values in (names, ids):
        if len(set(values)) != len(values):
            twice = next(value for place, value in enumerate(values) if value in values[:place])
            raise InvalidArguments(f"a manifest with {what} {twice!r} twice")


def _read_scope(said: Any) -> Scope:
    name = _member(said, "name", str)
    if name != DEFAULT_NAME:
        _check_name("scope", name)
    scope_id = _id(said, name)
    collections = _member(said, "collections", list)
    return Scope(scope_id, name, tuple(_read_collection(one, scope_id) for one in collections))


def _read_collection(said: Any, scope_id: int) -> Collection:
    name = _member(said, "name", str)
    if name != DEFAULT_NAME or scope_id != DEFAULT_SCOPE:
        _check_name("collection", name)
    max_ttl = _integer(said, "maxTTL", None, 0, MAX_TTL)
    history = _member(said, "history", bool) if "history" in said else False
    return Collection(_id(said, name), scope_id, name, max_ttl, history)


def _scope_said(scope: Scope) -> dict[str, Any]:
    return {
        "name": scope.name,
        "uid": f"{scope.id:x}",
        "collections": [_collection_said(collection) for collection in scope.collections],
    }


def _collection_said(collection: Collection) -> dict[str, Any]:
    said: dict[str, Any] = {"name": collection.name, "uid": f"{collection.id:x}"}
    if collection.max_ttl is not None:
        said["maxTTL"] = collection.max_ttl
    if collection.history:
        said["history"] = True
    return said


# From one to another


class ManifestChange(NamedTuple):
    """What is different in a later manifest. subject: as it is there, or as it was where it is dropped."""

    kind: SystemEventKind
    subject: Collection | Scope


def changes_between(old: Manifest, new: Manifest) -> list[ManifestChange]:
    """Return what leads from one manifest to another, in the order in which vbuckets tell of it.

    First what is dropped, collections before their scopes, then what is created, scopes before their collections, then
    what is modified; each by id.
    """
    return [
        *_changes(SystemEventKind.COLLECTION_END, old.collections, lambda n: n not in new.collections),
        *_changes(SystemEventKind.SCOPE_DROP, old.scopes_by_id, lambda n: n not in new.scopes_by_id),
        *_changes(SystemEventKind.SCOPE_CREATE, new.scopes_by_id, lambda n: n not in old.scopes_by_id),
        *_changes(SystemEventKind.COLLECTION_BEGIN, new.collections, lambda n: n not in old.collections),
        *_changes(
            SystemEventKind.COLLECTION_MODIFY,
            new.collections,
            lambda n: n in old.collections and old.collections[n] != new.collections[n],
        ),
    ]


def _changes(
    kind: SystemEventKind, subjects: Mapping[int, Collection] | Mapping[int, Scope], wanted: Callable[[int], bool]
) -> Iterator[ManifestChange]:
    return (ManifestChange(kind, subjects[number]) for number in sorted(subjects) if wanted(number))


def subjects_of(
    changes: Iterable[ManifestChange], before: int, uid: int
) -> list[tuple[SystemEventKind, system_event.Subject]]:
    """Return what system events say of changes that lead from one manifest's uid to another.

    Only the last one says the new uid: who has not seen that one is not there yet.
    """
    found = list(changes)
    uids = [before] * (len(found) - 1) + [uid]
    return [(change.kind, _subject(change, of)) for change, of in zip(found, uids, strict=False)]


def _subject(change: ManifestChange, uid: int) -> system_event.Subject:
    subject = change.subject
    if isinstance(subject, Scope):
        if change.kind is SystemEventKind.SCOPE_DROP:
            return system_event.DroppedScope(uid, subject.id)
        return system_event.CreatedScope(uid, subject.id, subject.name)
    if change.kind is SystemEventKind.COLLECTION_END:
        return system_event.DroppedCollection(uid, subject.scope_id, subject.id)
    return system_event.CreatedCollection(
        uid, subject.scope_id, subject.id, subject.name, max_ttl=subject.max_ttl, history=subject.history
    )
