"""Rows for the system events of collections and scopes."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.columns.collection_names import CollectionNames
from penstock.wire.columns.heads import StreamContext
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp import SystemEvent
from penstock.wire.messages.system_event import CreatedCollection, CreatedScope, DroppedCollection, unpack_system_event

_EVENTS: dict[int, Event] = {
    SystemEventKind.COLLECTION_BEGIN: Event.BEGIN_COLLECTION,
    SystemEventKind.COLLECTION_END: Event.END_COLLECTION,
    SystemEventKind.COLLECTION_MODIFY: Event.MODIFY_COLLECTION,
    SystemEventKind.SCOPE_CREATE: Event.CREATE_SCOPE,
    SystemEventKind.SCOPE_DROP: Event.DROP_SCOPE,
}


def make_event_change(message: SystemEvent, names: CollectionNames, context: StreamContext) -> tuple[Change, int]:
    """Return the row of a system event and the uid of its manifest, and add the name in the event to the known names.

    The value of the row is a JSON object with the manifest's uid and the scope's id, both in hexadecimal. For a
    collection that was created or changed, it also has `max_ttl` (seconds, or null) and `history`.

    Args:
        message: the event.
        names: the known names by id.
        context: facts of the connection's streams.

    Raises:
        RemoteProtocolError: the event cannot be decoded, or no stream of this connection can have its vbucket.
    """
    try:
        subject = unpack_system_event(message.event, message.version, message.key, message.value)
    except RemoteProtocolError as error:  # a stream must not skip an event, so the error names the vbucket
        raise RemoteProtocolError(f"vbucket {message.vbucket}: {error}", status=error.status) from None
    fields: dict[str, Any] = {"manifest_uid": f"{subject.manifest_uid:x}", "scope_id": f"{subject.scope_id:x}"}
    collection_id = None
    if isinstance(subject, CreatedScope):
        names.add_scope(subject.scope_id, subject.name)
    elif isinstance(subject, CreatedCollection):
        names.add_collection(subject.collection_id, subject.scope_id, subject.name)
        fields |= {"max_ttl": subject.max_ttl, "history": subject.history}
    scope, collection = names.find_scope(subject.scope_id), None
    if isinstance(subject, CreatedCollection | DroppedCollection):
        collection_id = subject.collection_id
        collection = names.find_collection(collection_id).collection
    vbuuid, snapshot_start, snapshot_end, snapshot_flags, history = context.read_vbucket(message.vbucket)
    change = Change(
        vbucket=message.vbucket,
        vbuuid=vbuuid,
        seqno=message.by_seqno,
        cas=message.cas,
        event=_EVENTS[message.event],
        value=json.dumps(fields, separators=(",", ":")).encode(),
        collection_id=collection_id,
        scope=scope,
        collection=collection,
        snapshot_start=snapshot_start,
        snapshot_end=snapshot_end,
        snapshot_flags=snapshot_flags,
        history=history,
    )
    return change, subject.manifest_uid
