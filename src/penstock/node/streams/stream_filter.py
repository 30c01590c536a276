"""Which of a vbucket's changes a stream sends, as the value of its request says, and as collections come and go.

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

__all__ = ["FilterRequest", "StreamFilter", "bare_filter", "filter_for", "may_stream", "read_filter_request"]

_HEX = re.compile(r"(0x)?[0-9a-fA-F]{1,8}")
_HIGHEST_STREAM_ID: Final = 0xFFFF


@dataclass(frozen=True)
class FilterRequest:
    """The value of a stream request.

    Attributes:
        collections: ids, None for all.
        scope: an id, in place of collections.
        stream_id: of the stream among those of its vbucket.
        purge_seqno: the one that the consumer saw last, 0 if unknown.
    """

    collections: tuple[int, ...] | None = None
    scope: int | None = None
    stream_id: int | None = None
    purge_seqno: int = 0


def read_filter_request(text: bytes) -> FilterRequest:
    """Read the value of a stream request. Raises InvalidArguments, and StatusError for a stream id that cannot be."""
    if not text:
        return FilterRequest()
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"value of a stream request: {error}") from None
    if not isinstance(said, dict):
        raise InvalidArguments(f"value of a stream request: {text[:40]!r}, expected an object")
    known = {name: read(said[name]) for name, read in _READERS.items() if name in said}
    if said and not known:
        raise InvalidArguments(f"value of a stream request: none of {', '.join(_READERS)} in {text[:80]!r}")
    if "scope" in known and "collections" in known:
        raise InvalidArguments("value of a stream request: a scope and collections, expected one of them")
    return FilterRequest(
        collections=known.get("collections"),
        scope=known.get("scope"),
        stream_id=known.get("sid"),
        purge_seqno=known.get("purge_seqno", 0),
    )


def _hexadecimal(said: Any) -> int:
    if not isinstance(said, str) or not _HEX.fullmatch(said):
        raise InvalidArguments(f"value of a stream request: id {str(said)[:40]!r}, expected a string of hexadecimals")
    return int(said, 16)


def _collections(said: Any) -> tuple[int, ...]:
    if not isinstance(said, list) or not said:
        raise InvalidArguments(f"value of a stream request: collections {str(said)[:40]!r}, expected a list of ids")
    return tuple(dict.fromkeys(map(_hexadecimal, said)))


def _stream_id(said: Any) -> int:
    if type(said) is not int:
        raise InvalidArguments(f"value of a stream request: sid {str(said)[:40]!r}, expected a number")
    if not 1 <= said <= _HIGHEST_STREAM_ID:
        raise StatusError(f"stream id {said}, expected 1 to {_HIGHEST_STREAM_ID}", status=Status.DCP_STREAMID_INVALID)
    return said


def _purge_seqno(said: Any) -> int:
    digits = said if isinstance(said, str) and said.isascii() and said.isdigit() and len(said) <= 20 else ""
    if not digits or int(digits) > MAX_SEQNO:
        raise InvalidArguments(
            f"value of a stream request: purge_seqno {str(said)[:40]!r}, expected digits as a string"
        )
    return int(digits)


def _uid(said: Any) -> str:
    """Take the uid of the manifest that the consumer knows, which is there to be read by people."""
    if not isinstance(said, str) or not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,16}", said):
        raise InvalidArguments(f"value of a stream request: uid {str(said)[:40]!r}, expected a string of hexadecimals")
    return said


def _cache_transfer(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise InvalidArguments(f"value of a stream request: cts {str(said)[:40]!r}, expected an object")
    return said


_READERS: dict[str, Callable[[Any], Any]] = {
    "uid": _uid,
    "sid": _stream_id,
    "collections": _collections,
    "scope": _hexadecimal,
    "purge_seqno": _purge_seqno,
    "cts": _cache_transfer,
}
"""By name what the value may say. Other names are passed over, if one of these is there too."""


class StreamFilter:
    """Which changes a stream sends, as collections come and go.

    Attributes:
        ids: the collections whose changes are sent, None for all.
        scope: the scope whose collections they are, if the consumer asked for one.
        sends_events: the consumer knows collections at all.
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
        """Whether nothing can be sent any more."""
        return self._scope_ended if self.scope is not None else self.ids is not None and not self.ids

    @property
    def is_asked_for(self) -> bool:
        """Whether the consumer asked for less than it could have."""
        return self.ids is not None and self.sends_events

    def wants(self, collection: int) -> bool:
        return self.ids is None or collection in self.ids

    def high_seqno(self, vbucket: Vbucket) -> int | None:
        """Return the newest seqno of what is asked for; None where it may be the vbucket's.

        Of a scope too: that a collection in it has ended concerns its consumers, and is newer than all that is left.
        """
        if self.ids is None or self.scope is not None:
            return None
        return max((vbucket.collections.high_seqno(collection) for collection in self.ids), default=0)

    def of(self, owners: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of some changes are sent. owners: their collections."""
        wanted: npt.NDArray[np.bool_]
        if self.ids is None:
            wanted = owners >= 0
        elif len(self.ids) == 1:
            wanted = owners == next(iter(self.ids))
        else:
            wanted = np.isin(owners, np.fromiter(self.ids, np.int64, len(self.ids)))
        return wanted

    def take(self, event: EventFrame) -> bool:
        """Take note of a system event. Returns whether it is told."""
        collection, inside = event.collection_id, event.subject.scope_id == self.scope
        if collection is None:
            self._scope_ended |= inside and event.is_end
            return self.sends_events and (self.ids is None or inside)
        if inside and self.ids is not None and event.kind is SystemEventKind.COLLECTION_BEGIN:
            self.ids.add(collection)
        told = self.ids is None or inside or collection in self.ids
        if event.is_end and self.ids is not None:
            self.ids.discard(collection)
        return told and self.sends_events


def filter_for(session: Session, bucket: ServedBucket, request: FilterRequest) -> StreamFilter:
    """Return the filter of a stream that was asked for. bucket: the one that is streamed, whichever is selected now.

    Raises UnknownCollection, UnknownScope for what the bucket does not have, AccessDenied for what the user may not
    have streamed.
    """
    manifest = session.visible_manifest(bucket)
    if request.scope is not None:
        scope = manifest.scopes_by_id.get(request.scope)
        if scope is None:
            raise UnknownScope(f"no scope {request.scope:x}", body=manifest.said_uid)
        _check_access(session, bucket, scope.name)
        return StreamFilter((collection.id for collection in scope.collections), scope=request.scope)
    if request.collections is None:
        _check_access(session, bucket)
    for number in request.collections or ():
        collection = manifest.collections.get(number)
        if collection is None:
            raise UnknownCollection(f"no collection {number:x}", body=manifest.said_uid)
        _check_access(session, bucket, manifest.scopes_by_id[collection.scope_id].name, collection.name)
    return StreamFilter(request.collections)


def bare_filter(session: Session, bucket: ServedBucket) -> StreamFilter:
    """Return the filter of a stream to who knows no collections. Raises UnknownCollection, AccessDenied."""
    manifest = bucket.store.manifests.current
    if DEFAULT_COLLECTION not in manifest.collections:
        raise UnknownCollection("the default collection was dropped", body=manifest.said_uid)
    _check_access(session, bucket, DEFAULT_NAME, DEFAULT_NAME)
    return StreamFilter((DEFAULT_COLLECTION,), sends_events=False)


def may_stream(user: User | None, bucket: ServedBucket, chosen: StreamFilter) -> bool:
    """Return whether a user may have all that a filter lets through. What was dropped meanwhile does not count.

    Source: kv_engine collections/vbucket_filter.cc, Filter::checkPrivileges.
    """
    if user is None:
        return False
    manifest, name = bucket.store.manifests.current, bucket.store.name
    if chosen.ids is None:
        return user.may(Privilege.STREAM, name)
    if chosen.scope is not None:
        scope = manifest.scopes_by_id.get(chosen.scope)
        return scope is None or user.may(Privilege.STREAM, name, scope.name)
    known = (manifest.collections[number] for number in chosen.ids & manifest.collections.keys())
    return all(user.may(Privilege.STREAM, name, manifest.scopes_by_id[one.scope_id].name, one.name) for one in known)


def _check_access(session: Session, bucket: ServedBucket, *names: str) -> None:
    """names: of a scope, or a scope and a collection in it; none: the whole bucket."""
    user = session.login.acting
    if user is None or not user.may(Privilege.STREAM, bucket.store.name, *names):
        what = ".".join((bucket.store.name, *names))
        raise AccessDenied(f"changes of {what}: not for {session.login.acting_name}")
