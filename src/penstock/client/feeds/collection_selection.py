"""Which collections a consumer wants: names in options, ids in the manifest, and the filter of a stream request.

Source: kv_engine docs/Collections.md, "Manifest"; docs/dcp, commands/stream-request.md, "Value".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from penstock.errors import UsageError
from penstock.wire.columns.collection_names import DEFAULT_NAME, CollectionNames
from penstock.wire.values.peer_json import read_peer_json

__all__ = [
    "PLAIN_CONTENT",
    "CollectionFilter",
    "CollectionSelection",
    "KnownCollections",
    "StreamContent",
    "parse_manifest",
    "qualify_name",
]


class KnownCollections(NamedTuple):
    """The contents of a manifest: ids of scopes by name, of collections by both names."""

    scopes: Mapping[str, int]
    collections: Mapping[tuple[str, str], int]

    def register_names(self, names: CollectionNames) -> None:
        """Add all to what is known by id."""
        for scope, scope_id in self.scopes.items():
            names.add_scope(scope_id, scope)
        for (scope, name), collection_id in self.collections.items():
            names.add_collection(collection_id, self.scopes[scope], name)


_Id = Annotated[str, Meta(pattern="^[0-9a-fA-F]{1,8}$")]
"""In hexadecimal."""


class _Collection(Struct):
    name: str
    uid: _Id


class _Scope(Struct):
    name: str
    uid: _Id
    collections: list[_Collection]


class _Manifest(Struct):
    """A collections manifest, as far as the client reads it."""

    scopes: list[_Scope]


def parse_manifest(manifest: bytes) -> KnownCollections:
    """Return the contents of a node's manifest. Raises RemoteProtocolError for JSON that is none."""
    read = read_peer_json(manifest, _Manifest, "collections manifest").scopes
    scopes = {scope.name: int(scope.uid, 16) for scope in read}
    collections = {(scope.name, each.name): int(each.uid, 16) for scope in read for each in scope.collections}
    return KnownCollections(scopes, collections)


def qualify_name(name: str, scope: str = "") -> tuple[str, str]:
    """Return scope and collection of `name` or `scope.name`. scope: that of a bare name; none: the default one.

    Raises UsageError for a name that cannot be.
    """
    first, dot, rest = name.rpartition(".")
    if not rest or "." in first or (dot and not first):
        raise UsageError(f"collection {name!r}, expected name or scope.name")
    return (first or scope or DEFAULT_NAME), rest


@dataclass(frozen=True, slots=True)
class CollectionSelection:
    """What of a bucket is wanted: everything, or one scope, or some collections, bare names being those of the scope.

    Raises UsageError for a collection of another scope than the one that is given, and for a name that cannot be.
    """

    scope: str = ""
    collections: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.collections:
            if self.scope and qualify_name(name, self.scope)[0] != self.scope:
                raise UsageError(f"collection {name!r} is not in scope {self.scope!r}")

    @property
    def is_everything(self) -> bool:
        return not self.scope and not self.collections

    @property
    def is_default(self) -> bool:
        """Is it what a node without collections has?"""
        return [qualify_name(name, self.scope) for name in self.collections] == [(DEFAULT_NAME, DEFAULT_NAME)]

    def encode_filter(self, known: KnownCollections) -> bytes:
        """Return the value of a stream request. Raises UsageError for what the bucket does not have."""
        if self.is_everything:
            return b""
        if self.scope and self.scope not in known.scopes:
            raise UsageError(f"the bucket has no scope {self.scope!r}")
        if not self.collections:
            return json.dumps({"scope": f"{known.scopes[self.scope]:x}"}).encode()
        names = [qualify_name(name, self.scope) for name in self.collections]
        if missing := [".".join(name) for name in names if name not in known.collections]:
            raise UsageError(f"the bucket has no collection {missing[0]!r}")
        ids = sorted({known.collections[name] for name in names})
        return json.dumps({"collections": [f"{each:x}" for each in ids]}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContent:
    """What streams have of a bucket's changes.

    Attributes:
        selection: the collections, of a node that has them, in DCP. None: only the default one, as if there were no
            others.
        xattrs: with extended attributes, in DCP.
        values: with values. Without, DCP and TAP do not send them.
    """

    selection: CollectionSelection | None = None
    xattrs: bool = False
    values: bool = True


PLAIN_CONTENT = StreamContent()
"""What every dialect and server has."""


class CollectionFilter:
    """What a consumer asks for, over one connection after another. value: that of its stream requests."""

    def __init__(self, selection: CollectionSelection) -> None:
        self.request_value = b""
        self._selection = selection
        self._names: CollectionNames | None = None

    def resolve_names(self, known: KnownCollections | None) -> CollectionNames | None:
        """Return the names for a connection's rows; None where its node has no collections, and known is None.

        Raises UsageError for what is wanted and not there.
        """
        if known is None:
            if self._names is not None or not (self._selection.is_everything or self._selection.is_default):
                raise UsageError("collections of a node that has none, or in a dialect that knows none")
            return None
        if self._names is None:
            # Once: under the same names there may be other collections later, whose changes go on with nothing.
            self.request_value = self._selection.encode_filter(known)
            self._names = CollectionNames()
        known.register_names(self._names)
        return self._names
