"""The collections that a consumer selects: names in options, ids in the manifest, the filter of a stream request.

Source: kv_engine docs/Collections.md, "Manifest"; docs/dcp, commands/stream-request.md, "Value".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from penstock.client.filters.change_filter import ALL_CHANGES, ChangeFilter
from penstock.errors import NoSuchCollection, UsageError
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
    """The scopes and collections in a manifest.

    Attributes:
        scopes: scope name -> scope id.
        collections: (scope name, collection name) -> collection id.
    """

    scopes: Mapping[str, int]
    collections: Mapping[tuple[str, str], int]

    def register_names(self, names: CollectionNames) -> None:
        """Add the names of all scopes and collections to `names`."""
        for scope, scope_id in self.scopes.items():
            names.add_scope(scope_id, scope)
        for (scope, name), collection_id in self.collections.items():
            names.add_collection(collection_id, self.scopes[scope], name)


_Id = Annotated[str, Meta(pattern="^[0-9a-fA-F]{1,8}$")]
"""An id in hexadecimal."""


class _Collection(Struct):
    name: str
    uid: _Id


class _Scope(Struct):
    name: str
    uid: _Id
    collections: list[_Collection]


class _Manifest(Struct):
    """The part of a collections manifest that the client reads."""

    scopes: list[_Scope]


def parse_manifest(manifest: bytes) -> KnownCollections:
    """Return the scopes and collections in a node's manifest. Raises RemoteProtocolError if it is not valid.

    Args:
        manifest: the JSON of the reply to GET_MANIFEST.
    """
    read = read_peer_json(manifest, _Manifest, "collections manifest").scopes
    scopes = {scope.name: int(scope.uid, 16) for scope in read}
    collections = {(scope.name, each.name): int(each.uid, 16) for scope in read for each in scope.collections}
    return KnownCollections(scopes, collections)


def qualify_name(name: str, scope: str = "") -> tuple[str, str]:
    """Return the names of the scope and of the collection.

    Args:
        name: `name` or `scope.name`.
        scope: the scope of a name without a scope; empty: the default scope.

    Raises:
        UsageError: the name is invalid.
    """
    first, dot, rest = name.rpartition(".")
    if not rest or "." in first or (dot and not first):
        raise UsageError(f"collection {name!r}, expected name or scope.name")
    return (first or scope or DEFAULT_NAME), rest


@dataclass(frozen=True, slots=True)
class CollectionSelection:
    """The selected part of a bucket: everything, one scope, or some collections.

    Attributes:
        scope: name of the selected scope; empty: not limited to a scope.
        collections: each as `name` or `scope.name`; empty: all collections. A name without a scope is in `scope`, or in
            the default scope if `scope` is empty.

    Raises:
        UsageError: `scope` is set, and a collection is in another scope or has an invalid name.
    """

    scope: str = ""
    collections: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.collections:
            if self.scope and qualify_name(name, self.scope)[0] != self.scope:
                raise UsageError(f"collection {name!r} is not in scope {self.scope!r}")

    @property
    def is_everything(self) -> bool:
        """Whether the whole bucket is selected."""
        return not self.scope and not self.collections

    @property
    def is_default(self) -> bool:
        """Whether only the default collection is selected, which a node without collections has too."""
        return [qualify_name(name, self.scope) for name in self.collections] == [(DEFAULT_NAME, DEFAULT_NAME)]

    def encode_filter(self, known: KnownCollections) -> bytes:
        """Return the value of a stream request for this selection.

        Args:
            known: the scopes and collections of the bucket.

        Returns:
            JSON with ids in hexadecimal; empty if everything is selected.

        Raises:
            NoSuchCollection: the bucket does not have the scope or a collection.
            UsageError: a name is invalid.
        """
        if self.is_everything:
            return b""
        if self.scope and self.scope not in known.scopes:
            raise NoSuchCollection(f"the bucket has no scope {self.scope!r}")
        if not self.collections:
            return json.dumps({"scope": f"{known.scopes[self.scope]:x}"}).encode()
        names = [qualify_name(name, self.scope) for name in self.collections]
        if missing := [".".join(name) for name in names if name not in known.collections]:
            raise NoSuchCollection(f"the bucket has no collection {missing[0]!r}")
        ids = sorted({known.collections[name] for name in names})
        return json.dumps({"collections": [f"{each:x}" for each in ids]}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContent:
    """The parts of a bucket's changes that streams contain.

    Attributes:
        selection: the collections, in DCP and if the node has collections. None: only the default collection, as if the
            bucket had no others.
        xattrs: whether changes have extended attributes, in DCP.
        change_history: whether older versions of documents are included, in DCP and if the node keeps them.
        values: whether changes have values. If not, DCP and TAP do not send them.
        change_filter: chooses changes by key and value.
    """

    selection: CollectionSelection | None = None
    xattrs: bool = False
    change_history: bool = False
    values: bool = True
    change_filter: ChangeFilter = ALL_CHANGES


PLAIN_CONTENT = StreamContent()
"""The content that every dialect and every server supports."""


class CollectionFilter:
    """The collections that a consumer requests, over one connection after another.

    Attributes:
        request_value: the value of the stream requests; empty for everything, and before `resolve_names`.
    """

    def __init__(self, selection: CollectionSelection) -> None:
        self.request_value = b""
        self._selection = selection
        self._names: CollectionNames | None = None

    def resolve_names(self, known: KnownCollections | None) -> CollectionNames | None:
        """Return the names for the rows of a connection, by id.

        Args:
            known: the scopes and collections of the node; None if it has no collections.

        Returns:
            The names; None if `known` is None.

        Raises:
            NoSuchCollection: the bucket does not have the selected collections.
            UsageError: the node has no collections.
        """
        if known is None:
            if self._names is not None or not (self._selection.is_everything or self._selection.is_default):
                raise UsageError("collections are selected, but the node or the dialect does not support collections")
            return None
        if self._names is None:
            # Only once: a later collection with the same name has another id, and its changes continue no stream.
            self.request_value = self._selection.encode_filter(known)
            self._names = CollectionNames()
        known.register_names(self._names)
        return self._names
