"""A row of another node's changes, as this node stores it: with its collection in the key, and events as changes."""

from __future__ import annotations

import json
from typing import NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.store.history.event_frames import packed_events
from penstock.wire.codec.constants import MAX_KEY, SystemEventKind
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.system_event import (
    CreatedCollection,
    CreatedScope,
    DroppedCollection,
    DroppedScope,
    Subject,
)
from penstock.wire.values.collection_key import DEFAULT_PREFIX, pack_collection_id
from penstock.wire.values.json_value import detect_json

__all__ = ["Arrived", "arrived"]

_DOCUMENTS = {event.value: event for event in (Event.MUTATION, Event.DELETION, Event.EXPIRATION)}
_EVENTS: dict[str, SystemEventKind] = {
    Event.BEGIN_COLLECTION: SystemEventKind.COLLECTION_BEGIN,
    Event.MODIFY_COLLECTION: SystemEventKind.COLLECTION_MODIFY,
    Event.END_COLLECTION: SystemEventKind.COLLECTION_END,
    Event.CREATE_SCOPE: SystemEventKind.SCOPE_CREATE,
    Event.DROP_SCOPE: SystemEventKind.SCOPE_DROP,
}


class Arrived(NamedTuple):
    """What the store is told of a change. is_told: it is a system event."""

    event: Event
    key: bytes
    value: bytes
    flags: int
    datatype: int
    is_told: bool = False


def arrived(change: Change) -> Arrived:
    """Raises RemoteProtocolError for a row that cannot be stored."""
    event, key, value = _DOCUMENTS.get(change.event), change.key or b"", change.value or b""
    if event is None:
        return _event(change)
    if not 0 < len(key) <= MAX_KEY:
        raise RemoteProtocolError(f"vbucket {change.vbucket}: {change.event} of a key of {len(key)} bytes")
    key = (pack_collection_id(change.collection_id) if change.collection_id else DEFAULT_PREFIX) + key
    # TAP and the UPR draft have no datatype; the others send the one that the document is stored with.
    datatype = detect_json(value) if change.datatype is None else change.datatype
    if change.xattrs:
        value, datatype = pack_xattrs(change.xattrs, value), datatype | Datatype.XATTR
    return Arrived(event, key, value, change.flags or 0, datatype)


def _event(change: Change) -> Arrived:
    kind = _EVENTS.get(change.event)
    if kind is None:
        raise RemoteProtocolError(f"vbucket {change.vbucket}: {change.event}, expected a change of a document")
    (told,) = packed_events([(kind, _subject(kind, change))])
    return Arrived(Event.DELETION if told.is_end else Event.MUTATION, told.key, told.value, int(kind), 0, is_told=True)


def _subject(kind: SystemEventKind, change: Change) -> Subject:
    """Return what an event is about. What its row says beside the names is JSON that penstock.client has made."""
    said = json.loads(change.value or b"{}")
    uid, scope_id = int(said["manifest_uid"], 16), int(said["scope_id"], 16)
    if kind is SystemEventKind.SCOPE_CREATE:
        return CreatedScope(uid, scope_id, change.scope or "")
    if kind is SystemEventKind.SCOPE_DROP:
        return DroppedScope(uid, scope_id)
    collection_id = change.collection_id or 0
    if kind is SystemEventKind.COLLECTION_END:
        return DroppedCollection(uid, scope_id, collection_id)
    return CreatedCollection(
        uid, scope_id, collection_id, change.collection or "", max_ttl=said["max_ttl"], history=said["history"]
    )
