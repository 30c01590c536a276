"""Converts another node's changes to the form in which this node stores them."""

from __future__ import annotations

import json
from typing import NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.store.history.event_frames import pack_events
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

_DOCUMENTS = {event.value: event for event in (Event.MUTATION, Event.DELETION, Event.EXPIRATION)}
_EVENTS: dict[str, SystemEventKind] = {
    Event.BEGIN_COLLECTION: SystemEventKind.COLLECTION_BEGIN,
    Event.MODIFY_COLLECTION: SystemEventKind.COLLECTION_MODIFY,
    Event.END_COLLECTION: SystemEventKind.COLLECTION_END,
    Event.CREATE_SCOPE: SystemEventKind.SCOPE_CREATE,
    Event.DROP_SCOPE: SystemEventKind.SCOPE_DROP,
}


class ReceivedChange(NamedTuple):
    """A change in the form of the store.

    Attributes:
        event: mutation, deletion or expiration; system events are mutations and deletions.
        key: the store's key, which begins with the collection id.
        value: the value; extended attributes come first.
        flags: the document's flags; the kind of a system event.
        datatype: the value's datatype.
        is_system_event: whether the change is a system event.
    """

    event: Event
    key: bytes
    value: bytes
    flags: int
    datatype: int
    is_system_event: bool = False


def convert_change(change: Change) -> ReceivedChange:
    """Return a change in the form of the store.

    Raises:
        RemoteProtocolError: the store has no form for the event, or the key's length is invalid.
    """
    event, key, value = _DOCUMENTS.get(change.event), change.key or b"", change.value or b""
    if event is None:
        return _convert_event(change)
    if not 0 < len(key) <= MAX_KEY:
        raise RemoteProtocolError(f"vbucket {change.vbucket}: {change.event} of a key of {len(key)} bytes")
    key = (pack_collection_id(change.collection_id) if change.collection_id else DEFAULT_PREFIX) + key
    # TAP and the UPR draft have no datatype; the others send the one that the document is stored with.
    datatype = detect_json(value) if change.datatype is None else change.datatype
    if change.xattrs:
        value, datatype = pack_xattrs(change.xattrs, value), datatype | Datatype.XATTR
    return ReceivedChange(event, key, value, change.flags or 0, datatype)


def _convert_event(change: Change) -> ReceivedChange:
    kind = _EVENTS.get(change.event)
    if kind is None:
        raise RemoteProtocolError(f"vbucket {change.vbucket}: {change.event}, expected a change of a document")
    (event,) = pack_events([(kind, _read_subject(kind, change))])
    return ReceivedChange(
        Event.DELETION if event.is_end else Event.MUTATION, event.key, event.value, int(kind), 0, is_system_event=True
    )


def _read_subject(kind: SystemEventKind, change: Change) -> Subject:
    """Return the scope or collection of a system event.

    Names are columns of the change. The other fields are JSON that penstock.client has made.
    """
    fields = json.loads(change.value or b"{}")
    uid, scope_id = int(fields["manifest_uid"], 16), int(fields["scope_id"], 16)
    if kind is SystemEventKind.SCOPE_CREATE:
        return CreatedScope(uid, scope_id, change.scope or "")
    if kind is SystemEventKind.SCOPE_DROP:
        return DroppedScope(uid, scope_id)
    collection_id = change.collection_id or 0
    if kind is SystemEventKind.COLLECTION_END:
        return DroppedCollection(uid, scope_id, collection_id)
    return CreatedCollection(
        uid, scope_id, collection_id, change.collection or "", max_ttl=fields["max_ttl"], history=fields["history"]
    )
