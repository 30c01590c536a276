"""System events as a vbucket stores them: changes whose keys are in a namespace of their own.

An event that begins, creates or modifies is a mutation with the event's kind as its flags. An event that ends or drops
is a tombstone of the same key. The value is the event's FlatBuffers table in either. So the newest change of a key
shows the present state.

The event that a collection was modified has a key of its own, as in kv_engine. A consumer that starts from zero
therefore receives the collection's beginning first. The event that the collection ended, or began again, supersedes
both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from penstock.errors import RemoteProtocolError
from penstock.store.log.frame_fields import read_collection_ids, read_keys
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Lengths
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import DELETION_HEAD, MUTATION_HEAD
from penstock.wire.messages.system_event import FLATBUFFERS, Subject, pack_system_event, unpack_system_event
from penstock.wire.values.collection_key import SYSTEM_COLLECTION, pack_collection_id, split_collection_key

SYSTEM_PREFIX: Final = pack_collection_id(SYSTEM_COLLECTION)
_COLLECTION: Final = SYSTEM_PREFIX + b"_collection"
_MODIFY: Final = SYSTEM_PREFIX + b"_modify"
_SCOPE: Final = SYSTEM_PREFIX + b"_scope"
_PREFIXES: Final = ((_COLLECTION, True), (_MODIFY, True), (_SCOPE, False))

_MUTATION = int(Opcode.DCP_MUTATION)
_HEAD_BYTES = 100  # more than the heads of an event's frame and of its record
_OPCODE, _EXTRAS, _BODY, _FLAGS = 1, 3, 6, 11  # places in a head

_OF_COLLECTIONS = {SystemEventKind.COLLECTION_BEGIN, SystemEventKind.COLLECTION_END}
_ENDS = {SystemEventKind.COLLECTION_END, SystemEventKind.SCOPE_DROP}


class EventFrame(NamedTuple):
    """A system event as a change of a vbucket.

    Attributes:
        kind: the kind of the event.
        subject: the decoded event.
        key: its key in the store.
        value: the FlatBuffers table.
    """

    kind: SystemEventKind
    subject: Subject
    key: bytes
    value: bytes

    @property
    def is_end(self) -> bool:
        """Whether the event is stored as a tombstone."""
        return self.kind in _ENDS

    @property
    def collection_id(self) -> int | None:
        """The collection of the event; None for an event of a scope."""
        return getattr(self.subject, "collection_id", None)


def make_event_key(kind: SystemEventKind, subject: Subject) -> bytes:
    """Return the key under which a vbucket stores an event."""
    if kind is SystemEventKind.COLLECTION_MODIFY:
        return make_modify_key(subject.collection_id)  # type: ignore[union-attr]
    if kind in _OF_COLLECTIONS:
        return _COLLECTION + pack_collection_id(subject.collection_id)  # type: ignore[union-attr]
    return _SCOPE + pack_collection_id(subject.scope_id)


def make_modify_key(collection: int) -> bytes:
    """Return the key of the event that a collection was modified."""
    return _MODIFY + pack_collection_id(collection)


def pack_events(events: Iterable[tuple[SystemEventKind, Subject]]) -> list[EventFrame]:
    """Return the events as changes, with their keys and values."""
    return [
        EventFrame(kind, subject, make_event_key(kind, subject), pack_system_event(kind, subject, as_table=True).value)
        for kind, subject in events
    ]


def estimate_event_bytes(events: Iterable[EventFrame]) -> int:
    """Return how many bytes of the log these events take at most."""
    return sum(_HEAD_BYTES + len(event.key) + len(event.value) for event in events)


def parse_event_key(key: bytes) -> tuple[bool, int] | None:
    """Return whether an event's key is about a collection, else a scope, and its id; None for other keys."""
    for prefix, of_collection in _PREFIXES:
        if key.startswith(prefix):
            try:
                number, rest = split_collection_key(key[len(prefix) :])
            except RemoteProtocolError:
                return None
            return None if rest else (of_collection, number)
    return None


def read_event(key: bytes, value: bytes, kind: int | None) -> EventFrame | None:
    """Return the system event in a change; None if the key is not an event's.

    Args:
        key: the change's key.
        value: the change's value.
        kind: the flags of a mutation, None for a tombstone.

    Raises:
        RemoteProtocolError: not fatal; the value is not the event that the key names.
    """
    about = parse_event_key(key)
    if about is None:
        return None
    of_collection, number = about
    if kind is None:
        kind = SystemEventKind.COLLECTION_END if of_collection else SystemEventKind.SCOPE_DROP
    subject = unpack_system_event(kind, FLATBUFFERS, b"", value)
    event = EventFrame(SystemEventKind(kind), subject, key, value)
    if make_event_key(event.kind, subject) != key:
        raise RemoteProtocolError(
            f"system event {kind} under the key of {number:x}, which it is not about", fatal=False
        )
    return event


def find_system_events(index: RowIndex) -> list[tuple[int, EventFrame]]:
    """Return a vbucket's newest events of each collection and scope, with their seqnos."""
    found = []
    for buffer, offsets, seqnos in index.iterate_live_frames():
        rows = read_collection_ids(buffer, offsets) == SYSTEM_COLLECTION
        for key, at, seqno in zip(
            read_keys(buffer, offsets[rows]), offsets[rows].tolist(), seqnos[rows].tolist(), strict=True
        ):
            event = _read_frame(buffer, at, key)
            found += [] if event is None else [(seqno, event)]
    return sorted(found)


def read_owners(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return the collection with which each frame is erased: that of its key, or the modified one of an event."""
    found = read_collection_ids(buffer, offsets)
    events = np.flatnonzero(found == SYSTEM_COLLECTION)
    events = events[np.argsort(offsets[events])]
    for row, key in zip(events.tolist(), read_keys(buffer, offsets[events]), strict=True):
        about = parse_event_key(key) if key.startswith(_MODIFY) else None
        if about is not None:
            found[row] = about[1]
    return found


def _read_frame(buffer: memoryview, at: int, key: bytes) -> EventFrame | None:
    head = DELETION_HEAD.unpack_from(buffer, at)
    kind = MUTATION_HEAD.unpack_from(buffer, at)[_FLAGS] if head[_OPCODE] == _MUTATION else None
    value = bytes(buffer[at + HEADER_BYTES + head[_EXTRAS] + len(key) : at + HEADER_BYTES + head[_BODY]])
    try:
        return read_event(key, value, kind)
    except RemoteProtocolError:  # nothing that this bucket has written
        return None
