"""The collections of a vbucket, and the system events in its history that begin, change and end them.

An event is written as a change, with a note in front of it of how things will stand behind it: a note of an event that
was lost with the end of the log does not count.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from penstock.store.definition.manifest import DEFAULT_MANIFEST, Collection, Manifest, Scope
from penstock.store.history.collection_eraser import CollectionEraser
from penstock.store.history.collection_state import CollectionState
from penstock.store.history.event_frames import EventFrame, modify_key, system_events
from penstock.store.history.tombstone import tombstone_head
from penstock.store.history.vbucket_changes import REFUSED, REV_SEQNO, Newest
from penstock.store.history.vbucket_history import History
from penstock.store.log.long_frame import Frame
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages import system_event
from penstock.wire.messages.dcp import MUTATION_HEAD
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = ["VbucketCollections"]

_ONLY_DEFAULT = frozenset({DEFAULT_COLLECTION})
_MUTATION_EXTRAS = MUTATION_HEAD.size - HEADER_BYTES
_NANOSECONDS = 10**9


class VbucketCollections:
    """The collections of a vbucket: which there are, what is in each, and the events that say so.

    Attributes:
        eraser: erases what ended collections have left.
    """

    __slots__ = ("_changes", "_history", "eraser")

    def __init__(self, history: History, eraser: CollectionEraser) -> None:
        self._history = history
        self._changes = history.changes
        self.eraser = eraser

    @property
    def ids(self) -> Set[int]:
        """The ids of the collections that are there after the newest change."""
        state = self._changes.collection_state
        return _ONLY_DEFAULT if state is None else frozenset(state.highs)

    @property
    def manifest_uid(self) -> int | None:
        """The uid of the manifest that the newest event was of; None: its changes have to be asked."""
        state = self._changes.collection_state
        return 0 if state is None else state.uid

    def high_seqno(self, collection: int) -> int:
        """Return the seqno of the newest change in a collection, its events included; 0 if it is not there."""
        state = self._changes.collection_state
        if state is None:
            return self._changes.high_seqno if collection == DEFAULT_COLLECTION else 0
        return state.highs.get(collection, 0)

    def item_count(self, collection: int) -> int:
        """Return how many documents there are in a collection."""
        state = self._changes.collection_state
        if state is None:
            return self._changes.items if collection == DEFAULT_COLLECTION else 0
        return state.items.get(collection, 0)

    def manifest(self) -> Manifest:
        """Return what the vbucket's events say there is. Takes time in proportion to the vbucket."""
        if self._changes.collection_state is None:
            return DEFAULT_MANIFEST
        scopes = {0: DEFAULT_MANIFEST.scopes[0].name}
        collections = dict(DEFAULT_MANIFEST.collections)
        for _, event in system_events(self._changes.index):
            match event.subject:
                case system_event.CreatedScope(_, scope_id, name):
                    scopes[scope_id] = name
                case system_event.CreatedCollection(scope_id=scope_id, collection_id=number) as said:
                    collections[number] = Collection(number, scope_id, said.name, said.max_ttl, said.history)
                case system_event.DroppedCollection(collection_id=number):
                    collections.pop(number, None)
                case _:
                    pass
        for collection in collections.values():
            scopes.setdefault(collection.scope_id, "")
        found = tuple(
            Scope(number, name, tuple(one for one in collections.values() if one.scope_id == number))
            for number, name in scopes.items()
        )
        return Manifest(self.manifest_uid or 0, found, max([7, *scopes, *collections]) + 1)

    # Events

    def write_events(self, events: Sequence[EventFrame]) -> None:
        """Write system events as changes of this vbucket's own.

        Raises TemporaryFailure or OutOfMemory; then some of them may have been written.
        """
        changes = self._changes
        if changes.log.quota.is_exceeded:
            changes.log.room.check_quota()  # before a note of what would have to be learned anew
        first = changes.high_seqno + 1
        self._expect([(first + place, event) for place, event in enumerate(events)])
        try:
            for event in events:
                self._write(event)
        except REFUSED:
            self.relearn()
            raise
        changes.changed.add(changes.id)

    def apply_event(self, event: EventFrame, seqno: int, frame: Frame) -> None:
        """Write an event that happened elsewhere."""
        changes = self._changes
        self._expect([(seqno, event)])
        try:
            self._commit(event, changes.find(event.key, len(frame)), seqno, frame)
        except REFUSED:
            self.relearn()
            raise
        state = changes.collection_state
        assert state is not None
        if not event.is_end and event.collection_id in state.erasing:
            self.eraser.erase_all()  # a collection that has begun anew: what comes now is to find nothing of the old

    def _expect(self, events: Sequence[tuple[int, EventFrame]]) -> None:
        """Take note of events that are to be written with these seqnos."""
        changes, log = self._changes, self._changes.log
        log.make_room_for_note(self._history)
        if changes.collection_state is None:
            changes.collection_state = CollectionState(
                {DEFAULT_COLLECTION: changes.high_seqno}, {DEFAULT_COLLECTION: changes.items}
            )
        elif any(event.collection_id in changes.collection_state.erasing for _, event in events):
            self.eraser.erase_all()  # the same id is there again: nothing that comes may be taken for the old
        for seqno, event in events:
            changes.collection_state.take(event, seqno)
        log.note(self._history)

    def _write(self, event: EventFrame) -> None:
        changes, key, value = self._changes, event.key, event.value
        old = changes.find(key, MUTATION_HEAD.size + len(key) + len(value))
        seqno, cas = changes.high_seqno + 1, changes.clock.tick()
        rev_seqno = (changes.index.purged_rev_seqno if old is None else old[2][REV_SEQNO]) + 1
        if event.is_end:
            head = tombstone_head(
                Event.DELETION,
                vbucket=changes.id,
                key_length=len(key),
                value_length=len(value),
                cas=cas,
                seqno=seqno,
                rev_seqno=rev_seqno,
                delete_time=changes.now() // _NANOSECONDS,
            )
        else:
            body = _MUTATION_EXTRAS + len(key) + len(value)
            head = MUTATION_HEAD.pack(
                int(Magic.REQUEST), int(Opcode.DCP_MUTATION), len(key), _MUTATION_EXTRAS, 0, changes.id, body, 0, cas,
                seqno, rev_seqno, int(event.kind), 0, 0, 0, 0,
            )  # fmt: skip
        self._commit(event, old, seqno, b"".join((head, key, value)))

    def _commit(self, event: EventFrame, old: Newest | None, seqno: int, frame: Frame) -> None:
        """Write the frame of an event, which is no document.

        That a collection was modified counts until the collection ends or begins anew.
        """
        changes, collection, modified = self._changes, event.collection_id, None
        if collection is not None and event.kind is not SystemEventKind.COLLECTION_MODIFY:
            modified = changes.find(modify_key(collection), len(frame))
        items = changes.items
        changes.commit(old, event.key, seqno, frame)
        changes.items = items
        if collection is not None and modified is not None:
            rows, row, _ = modified
            rows.superseded_at[row] = seqno
            rows.dead += rows.lengths_at[row]
            del changes.newest[modify_key(collection)]

    def reach(self, uid: int) -> None:
        """Take note that the vbucket has all events of a manifest, for as long as the bucket is open."""
        if self._changes.collection_state is not None:
            self._changes.collection_state.uid = uid

    def relearn(self) -> None:
        """Find out from the changes which collections there are. Takes time in proportion to the vbucket."""
        if self._changes.collection_state is not None:
            self._changes.load_keys()
