"""The collections that a consumer selects: names in options, ids in the manifest, the filter of a stream request.

A stream request names collections by id, and a collection that is created again has another id. After the end of a
selected collection, a filter that follows names requests the stream again at exactly that seqno. It requests the ids
that the names have now. While a name has no id, the stream is wide: it covers the scope, or the bucket. So it has the
event of the creation and all changes after it. Rows of other collections are dropped here. Thus a position never passes
a change of a selected collection that was not requested, and saved positions need no ids.

Source: kv_engine docs/Collections.md, "Manifest"; docs/dcp, commands/stream-request.md, "Value".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct

from penstock.client.filters.change_filter import ALL_CHANGES, ChangeFilter
from penstock.errors import NoSuchCollection, UsageError
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.collection_names import DEFAULT_NAME, CollectionNames
from penstock.wire.columns.schema import Change, Event
from penstock.wire.values.peer_json import read_peer_json


class KnownCollections(NamedTuple):
    """The scopes and collections in a manifest.

    Attributes:
        scopes: scope name -> scope id.
        collections: (scope name, collection name) -> collection id.
        uid: the number of the manifest, which grows with each change; 0 if it is unknown.
    """

    scopes: Mapping[str, int]
    collections: Mapping[tuple[str, str], int]
    uid: int = 0

    def register_names(self, names: CollectionNames) -> None:
        """Add the names of all scopes and collections to `names`."""
        for scope, scope_id in self.scopes.items():
            names.add_scope(scope_id, scope)
        for (scope, name), collection_id in self.collections.items():
            names.add_collection(collection_id, self.scopes[scope], name)

    def without_ids(self, scopes: Collection[int], collections: Collection[int]) -> KnownCollections:
        """Return the scopes and collections without those that have one of these ids."""
        return KnownCollections(
            {name: each for name, each in self.scopes.items() if each not in scopes},
            {name: each for name, each in self.collections.items() if each not in collections},
        )


DEFAULT_COLLECTIONS = KnownCollections({DEFAULT_NAME: 0}, {(DEFAULT_NAME, DEFAULT_NAME): 0})
"""Those of a bucket without collections."""

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
    uid: Annotated[str, Meta(pattern="^[0-9a-fA-F]{1,16}$")] = "0"


def parse_manifest(manifest: bytes) -> KnownCollections:
    """Return the scopes and collections in a node's manifest. Raises RemoteProtocolError if it is not valid.

    Args:
        manifest: the JSON of the reply to GET_MANIFEST.
    """
    read = read_peer_json(manifest, _Manifest, "collections manifest")
    scopes = {scope.name: int(scope.uid, 16) for scope in read.scopes}
    collections = {(scope.name, each.name): int(each.uid, 16) for scope in read.scopes for each in scope.collections}
    return KnownCollections(scopes, collections, int(read.uid, 16))


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

    def list_names(self) -> list[tuple[str, str]]:
        """Return the scope and the name of each collection. Raises UsageError for an invalid name."""
        return [qualify_name(name, self.scope) for name in self.collections]

    def find_ids(self, known: KnownCollections) -> frozenset[int]:
        """Return the ids of the selected collections that a node has."""
        names = {*self.list_names()} if self.collections else None
        return frozenset(
            collection_id
            for (scope, name), collection_id in known.collections.items()
            if ((scope, name) in names if names is not None else self.scope in ("", scope))
        )

    def keep_selected(self, known: KnownCollections) -> KnownCollections:
        """Return the selected scope and collections, which are enough for `choose_request`."""
        names = {*self.list_names()}
        scopes = {scope for scope, _ in names} if names else {self.scope}
        return known._replace(
            scopes={name: each for name, each in known.scopes.items() if name in scopes},
            collections={name: each for name, each in known.collections.items() if name in names},
        )

    def check_names(self, known: KnownCollections) -> None:
        """Check that a node has the selected scope and collections.

        Raises:
            NoSuchCollection: it lacks one of them.
        """
        if missing := self.choose_request(known).missing:
            raise NoSuchCollection(f"the bucket has no {missing[0]}")

    def choose_request(self, known: KnownCollections) -> RequestedCollections:
        """Return the collections to request. They are more than the selected ones while a selected name has no id.

        Args:
            known: the scopes and collections of the node.
        """
        if self.is_everything:
            return EVERYTHING
        if self.scope and self.scope not in known.scopes:
            return RequestedCollections(missing=(f"scope {self.scope!r}",))
        if not self.collections:
            return RequestedCollections(scope_id=known.scopes[self.scope])
        names = self.list_names()
        if missing := tuple(f"collection {'.'.join(name)!r}" for name in names if name not in known.collections):
            scopes = {scope for scope, _ in names}
            only_scope = known.scopes.get(scopes.pop()) if len(scopes) == 1 else None
            return RequestedCollections(scope_id=only_scope, missing=missing)
        return RequestedCollections(ids=frozenset(known.collections[name] for name in names))


@dataclass(frozen=True, slots=True)
class RequestedCollections:
    """The collections of a stream request: some collections, a scope, or by default the whole bucket.

    Attributes:
        ids: the ids of the collections.
        scope_id: the id of the scope.
        missing: the selected scope or collections that the node does not have. If there are any, the stream is wide:
            it has the events of their creation, and changes of other collections.
    """

    ids: frozenset[int] = frozenset()
    scope_id: int | None = None
    missing: tuple[str, ...] = ()

    @property
    def value(self) -> bytes:
        """The value of the request: JSON with ids in hexadecimal; empty for the whole bucket."""
        if self.scope_id is not None:
            return json.dumps({"scope": f"{self.scope_id:x}"}).encode()
        return json.dumps({"collections": [f"{each:x}" for each in sorted(self.ids)]}).encode() if self.ids else b""

    def keep_existing(self, known: KnownCollections) -> RequestedCollections:
        """Return the request without the collections that a later manifest no longer has.

        Raises:
            NoSuchCollection: it has none of them.
        """
        ids = self.ids.intersection(known.collections.values())
        if (self.ids and not ids) or (self.scope_id is not None and self.scope_id not in known.scopes.values()):
            raise NoSuchCollection("the selected scope or collections were dropped while they were read")
        return replace(self, ids=ids)


EVERYTHING = RequestedCollections()
"""The request for the whole bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContent:
    """The parts of a bucket's changes that streams contain.

    Attributes:
        selection: the collections, in DCP and if the node has collections. None: only the default collection, as if the
            bucket had no others.
        xattrs: whether changes have extended attributes, in DCP.
        change_history: whether older versions of documents are included, in DCP and if the node keeps them.
        out_of_order: whether the first snapshot of a collection may be out of order, in DCP and if the node does that.
        values: whether changes have values. If not, DCP and TAP do not send them.
        change_filter: chooses changes by key and value.
        skips_missing: whether names without a collection are left out, if another has one, and collections that are
            dropped before the request of a stream. If not, they are an error.
        follows_names: whether the streams go on after the end of a selected collection, and read a later one with its
            name. If not, they read the collections that have the names at first, and end with them.
        planned: the selected collections when the streams were planned. Later ones with their names are not read. None:
            the streams read those that have the names when they begin.
    """

    selection: CollectionSelection | None = None
    xattrs: bool = False
    change_history: bool = False
    out_of_order: bool = False
    values: bool = True
    change_filter: ChangeFilter = ALL_CHANGES
    skips_missing: bool = False
    follows_names: bool = False
    planned: KnownCollections | None = None


PLAIN_CONTENT = StreamContent()
"""The content that every dialect and every server supports."""


class CollectionFilter:
    """The collections that a consumer requests, over one connection after another.

    Args:
        selection: the selected collections.
        content: the other rules of the streams.

    Attributes:
        outdated: numbers of the connections whose node must be asked for its collections before the next request.
        wide_vbuckets: the vbuckets whose last request was wide, see RequestedCollections.
    """

    def __init__(self, selection: CollectionSelection, content: StreamContent = PLAIN_CONTENT) -> None:
        self.outdated: set[int] = set()
        self.wide_vbuckets: set[int] = set()
        self._selection = selection
        self._follows_names = content.follows_names
        self._skips_missing = content.skips_missing
        self._selected = frozenset(selection.list_names())
        self._names: CollectionNames | None = None
        self._first: RequestedCollections | None = None
        self._first_uid = 0
        if content.planned is not None:
            self._first, self._first_uid = selection.choose_request(content.planned), content.planned.uid
        self._requests: dict[int, RequestedCollections] = {}
        self._dropped_collections: set[int] = set()
        """Ids whose end has arrived. The manifest of a node may be older than its vbuckets after a failover."""
        self._dropped_scopes: set[int] = set()

    @property
    def missing(self) -> tuple[str, ...]:
        """The selected scope or collections that a connected node does not have."""
        return tuple(sorted({name for each in self._requests.values() for name in each.missing}))

    def resolve_names(self, known: KnownCollections | None, connection_id: int = 0) -> CollectionNames | None:
        """Choose the request of a connection, and return the names for its rows, by id.

        Args:
            known: the scopes and collections of the node; None if it has no collections.
            connection_id: the number of the connection.

        Returns:
            The names; None if `known` is None.

        Raises:
            NoSuchCollection: the bucket does not have the selected collections, or has them no longer, and the filter
                does not follow names.
            UsageError: the node has no collections.
        """
        self.outdated.discard(connection_id)
        if known is None:
            if self._names is not None or not (self._selection.is_everything or self._selection.is_default):
                raise UsageError("collections are selected, but the node or the dialect does not support collections")
            return None
        if self._follows_names:
            left = known.without_ids(self._dropped_scopes, self._dropped_collections)
            self._requests[connection_id] = self._selection.choose_request(left)
        elif self._first is None:
            # Only once: a later collection with the same name has another id, and its changes continue no stream.
            if self._skips_missing and self._selection.collections and (found := self._selection.find_ids(known)):
                self._first = RequestedCollections(ids=found)
            else:
                self._selection.check_names(known)
                self._first = self._selection.choose_request(known)
            self._first_uid = known.uid
        elif self._skips_missing and known.uid > self._first_uid:  # ids that an older manifest lacks are new
            self._first, self._first_uid = self._first.keep_existing(known), known.uid
        self._names = self._names or CollectionNames()
        known.register_names(self._names)
        return self._names

    def forget_connection(self, connection_id: int | None) -> None:
        """Forget the request of a connection; of all connections if `connection_id` is None."""
        for each in [*self._requests] if connection_id is None else [connection_id]:
            self._requests.pop(each, None)
            self.outdated.discard(each)

    def take_request(self, vbucket: int, connection_id: int) -> RequestedCollections:
        """Return the collections for the request of a vbucket's stream, which is sent now."""
        requested = self._requests.get(connection_id) or self._first or EVERYTHING
        (self.wide_vbuckets.add if requested.missing else self.wide_vbuckets.discard)(vbucket)
        return requested

    # streams of a filter that follows its names

    def is_selected(self, scope: str | None, collection: str | None) -> bool:
        """Return whether a row with these names is selected. An event of a scope has no collection."""
        return (scope, collection) in self._selected if self._selected else scope == self._selection.scope

    def select_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected rows of a batch of documents."""
        assert self._names is not None
        owners = batch.column("collection_id")
        chosen = [each for each in owners.unique().to_pylist() if self.is_selected(*self._names.find_collection(each))]
        return batch.filter(pc.is_in(owners, pa.array(chosen, owners.type)))

    def record_event(self, requested: RequestedCollections, event: Change, connection_id: int) -> bool:
        """Record an event of a stream, and return whether the stream must be requested again after it.

        Args:
            requested: the requested collections of the stream.
            event: the row of the event.
            connection_id: the number of the connection.
        """
        if not self._follows_names:
            return False
        is_over = False
        if event.event == Event.END_COLLECTION and event.collection_id in requested.ids:
            self._dropped_collections.add(event.collection_id)
            is_over = True
        elif event.event == Event.DROP_SCOPE and requested.scope_id is not None:
            self._dropped_scopes.add(requested.scope_id)  # such a stream has no events of other scopes
            is_over = True
        elif event.event in (Event.BEGIN_COLLECTION, Event.CREATE_SCOPE) and requested.missing:
            is_over = self.is_selected(event.scope, event.collection)
        if is_over:
            self.outdated.add(connection_id)
        return is_over

    def record_refusal(self, requested: RequestedCollections, connection_id: int, status: int) -> bool:
        """Record the refusal of a stream, and return whether it may go on with the ids of a newer manifest.

        Args:
            requested: the requested collections of the stream.
            connection_id: the number of the connection.
            status: the status of the refusal.
        """
        reasons = {Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE}
        if requested.missing:
            reasons.add(Status.EACCESS)  # the user may have access to the collection, once it exists
        can_go_on = self._follows_names or self._skips_missing
        if not can_go_on or not (requested.value or requested.missing) or status not in reasons:
            return False
        self.outdated.add(connection_id)
        return True

    def record_empty_end(self, connection_id: int) -> bool:
        """Record the end of a stream because its collections were dropped, and return whether it reads later ones."""
        if self._follows_names:
            self.outdated.add(connection_id)
        return self._follows_names
