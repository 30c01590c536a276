"""The filter of a stream: the requested collections, which come and go.

Source: kv_engine docs/dcp, commands/stream-request.md, "Filter"; collections/vbucket_filter.cc.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import AccessDenied, InvalidArguments, StatusError, UnknownCollection, UnknownScope
from penstock.node.auth import Privilege, User
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.session import Session
from penstock.store.definition.manifest import DEFAULT_NAME
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import EventFrame
from penstock.store.history.rollback import MAX_SEQNO
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.codec.statuses import Status
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

_HEX = re.compile(r"[0-9a-fA-F]{1,8}")
_RESERVED_COLLECTIONS, _RESERVED_SCOPES = range(2, 8), range(1, 8)  # in kv_engine; no collection has the id 1
_HIGHEST_STREAM_ID: Final = 0xFFFF


@dataclass(frozen=True)
class CacheBudget:
    """The limits of a cache transfer, which the consumer sets.

    Attributes:
        free_memory: bytes for documents with their values; None if the consumer names none.
        all_keys: whether all documents are sent: those without room, and all without `free_memory`, without values.
    """

    free_memory: int | None = None
    all_keys: bool = False


@dataclass(frozen=True)
class FilterRequest:
    """The value of a stream request.

    Attributes:
        collections: ids of collections, None for all.
        scope: the id of a scope, instead of collections.
        stream_id: the id of the stream among those of its vbucket, or None.
        purge_seqno: the purge seqno that the consumer has seen last, 0 if unknown.
        cache: the limits of a cache transfer.
    """

    collections: tuple[int, ...] | None = None
    scope: int | None = None
    stream_id: int | None = None
    purge_seqno: int = 0
    cache: CacheBudget = CacheBudget()


def read_filter_request(text: bytes) -> FilterRequest:
    """Return the decoded value of a stream request.

    Raises:
        InvalidArguments: the value is malformed.
        StatusError: the stream id is out of range.
    """
    if not text:
        return FilterRequest()
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"value of a stream request: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidArguments(f"value of a stream request: {text[:40]!r}, expected an object")
    known = {name: read(fields[name]) for name, read in _READERS.items() if name in fields}
    if not known:
        raise InvalidArguments(f"value of a stream request: none of {', '.join(_READERS)} in {text[:80]!r}")
    if "scope" in known and "collections" in known:
        raise InvalidArguments("value of a stream request: a scope and collections, expected one of them")
    return FilterRequest(
        collections=known.get("collections"),
        scope=known.get("scope"),
        stream_id=known.get("sid"),
        purge_seqno=known.get("purge_seqno", 0),
        cache=known.get("cts", CacheBudget()),
    )


def _read_id(value: Any, reserved: range) -> int:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise InvalidArguments(f"value of a stream request: id {str(value)[:40]!r}, expected a string of hexadecimals")
    number = int(value, 16)
    if number in reserved:
        raise InvalidArguments(f"value of a stream request: id {number}, which is reserved")
    return number


def _read_collections(value: Any) -> tuple[int, ...]:
    """Return the ids of collections. An empty list is valid: its stream ends when it begins."""
    if not isinstance(value, list):
        raise InvalidArguments(f"value of a stream request: collections {str(value)[:40]!r}, expected a list of ids")
    return tuple(dict.fromkeys(_read_id(one, _RESERVED_COLLECTIONS) for one in value))


def _read_scope(value: Any) -> int:
    return _read_id(value, _RESERVED_SCOPES)


def _read_stream_id(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise InvalidArguments(f"value of a stream request: sid {str(value)[:40]!r}, expected a number from 1")
    if not 1 <= value <= _HIGHEST_STREAM_ID:
        raise StatusError(f"stream id {value}, expected 1 to {_HIGHEST_STREAM_ID}", status=Status.DCP_STREAMID_INVALID)
    return value


def _read_purge_seqno(value: Any) -> int:
    digits = value if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20 else ""
    if not digits or int(digits) > MAX_SEQNO:
        raise InvalidArguments(
            f"value of a stream request: purge_seqno {str(value)[:40]!r}, expected digits as a string"
        )
    return int(digits)


def _read_uid(value: Any) -> Any:
    """Return the manifest uid that the consumer knows, unchecked: only people who read the request use it."""
    return value


def _read_cache_budget(value: Any) -> CacheBudget:
    if not isinstance(value, dict):
        raise InvalidArguments(f"value of a stream request: cts {str(value)[:40]!r}, expected an object")
    free_memory, all_keys = value.get("free_memory", 0), value.get("all_keys", False)
    if type(free_memory) is not int or free_memory < 0:
        raise InvalidArguments(f"value of a stream request: free_memory {str(free_memory)[:40]!r}, expected 0 or more")
    if type(all_keys) is not bool:
        raise InvalidArguments(f"value of a stream request: all_keys {str(all_keys)[:40]!r}, expected true or false")
    return CacheBudget(value.get("free_memory"), all_keys)


_READERS: dict[str, Callable[[Any], Any]] = {
    "uid": _read_uid,
    "sid": _read_stream_id,
    "collections": _read_collections,
    "scope": _read_scope,
    "purge_seqno": _read_purge_seqno,
    "cts": _read_cache_budget,
}
"""Reader by name of a field. Other names are ignored if one of these is present."""


class StreamFilter:
    """Chooses the changes that a stream sends, as collections come and go.

    Attributes:
        ids: the collections whose changes are sent, None for all.
        scope: the requested scope, None if the consumer requested none.
        sends_events: whether the consumer knows collections.
    """

    def __init__(
        self, ids: Iterable[int] | None = None, *, scope: int | None = None, sends_events: bool = True
    ) -> None:
        self.ids = None if ids is None else set(ids)
        self.scope = scope
        self.sends_events = sends_events
        self._scope_ended = False

    @property
    def is_empty(self) -> bool:
        """Whether no further change can be sent."""
        return self._scope_ended if self.scope is not None else self.ids is not None and not self.ids

    @property
    def is_limited(self) -> bool:
        """Whether the consumer has requested only a part of its changes."""
        return self.ids is not None and self.sends_events

    @property
    def only_collection(self) -> int | None:
        """The collection of a consumer that has requested a single one by its id; None for any other."""
        if self.ids is None or self.scope is not None or not self.sends_events or len(self.ids) != 1:
            return None
        return next(iter(self.ids))

    def includes(self, collection: int) -> bool:
        """Return whether changes of a collection are sent."""
        return self.ids is None or collection in self.ids

    def high_seqno(self, vbucket: Vbucket) -> int | None:
        """Return the newest seqno of the requested collections; None if the vbucket's own applies.

        The vbucket's own applies to a scope too. The end of a collection concerns the consumers of its scope. It may be
        newer than all remaining changes.
        """
        if self.ids is None or self.scope is not None:
            return None
        return max((vbucket.collections.high_seqno(collection) for collection in self.ids), default=0)

    def select(self, owners: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each change whether it is sent.

        Args:
            owners: the collection id of each change.
        """
        wanted: npt.NDArray[np.bool_]
        if self.ids is None:
            wanted = owners >= 0
        elif len(self.ids) == 1:
            wanted = owners == next(iter(self.ids))
        else:
            wanted = np.isin(owners, np.fromiter(self.ids, np.int64, len(self.ids)))
        return wanted

    def apply_event(self, event: EventFrame) -> bool:
        """Apply a system event to the filter.

        Returns:
            Whether the event is sent to the consumer.
        """
        collection, inside = event.collection_id, event.subject.scope_id == self.scope
        if collection is None:
            self._scope_ended |= inside and event.is_end
            return self.sends_events and (self.ids is None or inside)
        if inside and self.ids is not None and event.kind is SystemEventKind.COLLECTION_BEGIN:
            self.ids.add(collection)
        is_sent = self.ids is None or inside or collection in self.ids
        if event.is_end and self.ids is not None:
            self.ids.discard(collection)
        return is_sent and self.sends_events


def make_filter(session: Session, bucket: ServedBucket, request: FilterRequest) -> StreamFilter:
    """Return the filter of a stream request.

    Args:
        session: the session of the consumer.
        bucket: the streamed bucket. The session may have selected another bucket since.
        request: the value of the stream request.

    Raises:
        UnknownCollection: the bucket has no such collection, or the user does not see it.
        UnknownScope: the bucket has no such scope, or the user does not see it.
        AccessDenied: the user may not stream the changes.
    """
    manifest = session.get_visible_manifest(bucket)
    if request.scope is not None:
        scope = manifest.scopes_by_id.get(request.scope)
        if scope is None:
            raise UnknownScope(f"no scope {request.scope:x}", body=manifest.error_body)
        _check_access(session, bucket, scope.name)
        return StreamFilter((collection.id for collection in scope.collections), scope=request.scope)
    if request.collections is None:
        _check_access(session, bucket)
    for number in request.collections or ():
        collection = manifest.collections.get(number)
        if collection is None:
            raise UnknownCollection(f"no collection {number:x}", body=manifest.error_body)
        _check_access(session, bucket, manifest.scopes_by_id[collection.scope_id].name, collection.name)
    return StreamFilter(request.collections)


def make_default_filter(session: Session, bucket: ServedBucket) -> StreamFilter:
    """Return the filter for a consumer without collections.

    Raises:
        UnknownCollection: the default collection was dropped.
        AccessDenied: the user may not stream its changes.
    """
    manifest = bucket.store.manifests.current
    if DEFAULT_COLLECTION not in manifest.collections:
        raise UnknownCollection("the default collection was dropped", body=manifest.error_body)
    _check_access(session, bucket, DEFAULT_NAME, DEFAULT_NAME)
    return StreamFilter((DEFAULT_COLLECTION,), sends_events=False)


def can_stream(user: User | None, bucket: ServedBucket, stream_filter: StreamFilter) -> bool:
    """Return whether a user may stream all that a filter includes. Dropped collections do not count.

    Source: kv_engine collections/vbucket_filter.cc, Filter::checkPrivileges.
    """
    if user is None:
        return False
    manifest, name = bucket.store.manifests.current, bucket.store.name
    if stream_filter.ids is None:
        return user.has_privilege(Privilege.STREAM, name)
    if stream_filter.scope is not None:
        scope = manifest.scopes_by_id.get(stream_filter.scope)
        return scope is None or user.has_privilege(Privilege.STREAM, name, scope.name)
    known = (manifest.collections[number] for number in stream_filter.ids & manifest.collections.keys())
    return all(
        user.has_privilege(Privilege.STREAM, name, manifest.scopes_by_id[one.scope_id].name, one.name) for one in known
    )


def _check_access(session: Session, bucket: ServedBucket, *names: str) -> None:
    """Check the privilege to stream.

    Args:
        session: the session of the user.
        bucket: the streamed bucket.
        *names: a scope, or a scope and a collection; none for the whole bucket.

    Raises:
        AccessDenied: the user lacks the privilege.
    """
    user = session.login.effective_user
    if user is None or not user.has_privilege(Privilege.STREAM, bucket.store.name, *names):
        path = ".".join((bucket.store.name, *names))
        raise AccessDenied(f"changes of {path}: not for {session.login.effective_user_name}")
