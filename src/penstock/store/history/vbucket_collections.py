"""The collections of a vbucket, and the system events in its history that begin, change and end them.

An event is written as a change. In front of it goes a note with the state after the event. If the event is lost with
the end of the log, the note does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from penstock.store.definition.manifest import DEFAULT_MANIFEST, Collection, Manifest, Scope
from penstock.store.history.collection_eraser import CollectionEraser
from penstock.store.history.collection_state import CollectionState
from penstock.store.history.event_frames import EventFrame, find_system_events, make_modify_key
from penstock.store.history.tombstone import make_tombstone_head
from penstock.store.history.vbucket_changes import REFUSED, REV_SEQNO, Newest
from penstock.store.history.vbucket_history import VbucketHistory
from penstock.store.log.logged_frames import Frame
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages import system_event
from penstock.wire.messages.dcp import MUTATION_HEAD
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, SYSTEM_COLLECTION

_ONLY_DEFAULT = frozenset({DEFAULT_COLLECTION})
_MUTATION_EXTRAS = MUTATION_HEAD.size - HEADER_BYTES
_NANOSECONDS = 10**9


class VbucketCollections:
    """The collections of a vbucket: which exist, their counts, and their events.

    Attributes:
        eraser: erases the documents of ended collections.
    """

    __slots__ = ("_changes", "_history", "eraser")

    def __init__(self, history: VbucketHistory, eraser: CollectionEraser) -> None:
        self._history = history
        self._changes = history.changes
        self.eraser = eraser

    @property
    def ids(self) -> Set[int]:
        """The ids of the collections that exist after the newest change."""
        state = self._changes.collection_state
        return _ONLY_DEFAULT if state is None else frozenset(state.highs)

    @property
    def manifest_uid(self) -> int | None:
        """The manifest uid of the newest event; None: it must be read from the changes."""
        state = self._changes.collection_state
        return 0 if state is None else state.manifest_uid

    def high_seqno(self, collection: int) -> int:
        """Return the seqno of the newest change in a collection, its events included; 0 if it does not exist."""
        state = self._changes.collection_state
        if state is None:
            return self._find_visible_high() if collection == DEFAULT_COLLECTION else 0
        return state.highs.get(collection, 0)

    @property
    def history_begins(self) -> Mapping[int, int]:
        """For each collection with history, the seqno at which it was last emptied: its history begins there.

        System events always have a history. Source: kv_engine ep_vb.cc, EPVBucket::addSystemEventItem.
        """
        state = self._changes.collection_state
        if state is None:
            return {}
        return {SYSTEM_COLLECTION: 0, **{one: state.emptied.get(one, 0) for one in state.histories}}

    @property
    def is_plain(self) -> bool:
        """Whether all changes are documents of the default collection: no system events, no synchronous writes."""
        return self._changes.collection_state is None and not self._history.prepares.is_used

    def _find_visible_high(self) -> int:
        return self._history.prepares.find_visible(self._changes.high_seqno)

    def item_count(self, collection: int) -> int:
        """Return the number of documents in a collection."""
        state = self._changes.collection_state
        if state is None:
            return self._changes.items if collection == DEFAULT_COLLECTION else 0
        return state.items.get(collection, 0)

    def read_manifest(self) -> Manifest:
        """Return the manifest that the vbucket's events show. Takes time in proportion to the vbucket."""
        if self._changes.collection_state is None:
            return DEFAULT_MANIFEST
        scopes = {0: DEFAULT_MANIFEST.scopes[0].name}
        collections = dict(DEFAULT_MANIFEST.collections)
        for _, event in find_system_events(self._changes.index):
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

        If it raises, some of the events may have been written.

        Raises:
            REFUSED: TemporaryFailure or OutOfMemory; the log accepts no changes.
        """
        changes = self._changes
        if changes.log.quota.is_exceeded:
            changes.log.room.check_quota()  # before a note that would force a new scan of the changes
        first = changes.high_seqno + 1
        self._note_events([(first + place, event) for place, event in enumerate(events)])
        try:
            for event in events:
                self._write(event)
        except REFUSED:
            self.rebuild_state()
            raise
        changes.changed.add(changes.id)

    def apply_event(self, event: EventFrame, seqno: int, frame: Frame) -> None:
        """Write an event of another node.

        Raises:
            REFUSED: TemporaryFailure or OutOfMemory; the log accepts no changes.
        """
        changes = self._changes
        self._note_events([(seqno, event)])
        try:
            self._commit(event, changes.find(event.key, len(frame)), seqno, frame)
        except REFUSED:
            self.rebuild_state()
            raise
        state = changes.collection_state
        assert state is not None
        if not event.is_end and event.collection_id in state.erasing:
            self.eraser.erase_all()  # the collection began again: later changes must not find documents of the old one

    def _note_events(self, events: Sequence[tuple[int, EventFrame]]) -> None:
        """Write a note with the state after events that will be written with these seqnos."""
        changes, log = self._changes, self._changes.log
        log.make_room_for_note(self._history)
        if changes.collection_state is None:
            changes.collection_state = CollectionState(
                {DEFAULT_COLLECTION: self._find_visible_high()}, {DEFAULT_COLLECTION: changes.items}
            )
        elif any(event.collection_id in changes.collection_state.erasing for _, event in events):
            self.eraser.erase_all()  # the same id again: no later change may be taken for one of the old collection
        for seqno, event in events:
            changes.collection_state.apply_event(event, seqno)
        log.write_note(self._history)

    def _write(self, event: EventFrame) -> None:
        changes, key, value = self._changes, event.key, event.value
        old = changes.find(key, MUTATION_HEAD.size + len(key) + len(value))
        seqno, cas = changes.high_seqno + 1, changes.clock.tick()
        rev_seqno = (changes.index.purged_rev_seqno if old is None else old[2][REV_SEQNO]) + 1
        if event.is_end:
            head = make_tombstone_head(
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
        """Append the frame of an event, which is not counted as a document.

        The event that a collection was modified counts until the collection ends or begins again.
        """
        changes, collection, modified = self._changes, event.collection_id, None
        if collection is not None and event.kind is not SystemEventKind.COLLECTION_MODIFY:
            modified = changes.find(make_modify_key(collection), len(frame))
        items = changes.items
        changes.commit(old, event.key, seqno, frame)
        changes.items = items
        if collection is not None and modified is not None:
            rows, row, _ = modified
            rows.superseded_at[row] = seqno
            rows.dead_bytes += rows.lengths_at[row]
            del changes.newest[make_modify_key(collection)]

    def set_manifest_uid(self, uid: int) -> None:
        """Record that the vbucket has all events of a manifest, for as long as the bucket is open."""
        if self._changes.collection_state is not None:
            self._changes.collection_state.manifest_uid = uid

    def rebuild_state(self) -> None:
        """Read from the changes which collections exist. Takes time in proportion to the vbucket."""
        if self._changes.collection_state is not None:
            self._changes.load_keys()
