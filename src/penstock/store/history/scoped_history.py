"""A vbucket's history with the collections in it: its system events, and what is left of collections that ended.

An event is written as a change, with a note in front of it of how things will stand behind it: a note of an event that
was lost with the end of the log does not count.

What was in a collection that has ended is superseded by the event that says so: snapshots that end before that show it,
those that end behind it do not once it is erased. That takes time in proportion to the vbucket, so it is done bit by
bit; until then a snapshot may still show some of it, in front of the event.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from penstock.errors import OutOfMemory, TemporaryFailure
from penstock.store.definition.manifest import DEFAULT_MANIFEST, Collection, Manifest, Scope
from penstock.store.history.collection_state import Ledger
from penstock.store.history.event_frames import EventFrame, modify_key, system_events
from penstock.store.history.tombstone import tombstone_head
from penstock.store.history.vbucket_history import REV_SEQNO, History, Newest
from penstock.store.log.frame_fields import collection_ids, is_mutation, keys
from penstock.store.log.long_frame import Frame
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Segment
from penstock.wire.codec.constants import SystemEventKind, VbucketState
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages import system_event
from penstock.wire.messages.dcp import MUTATION_HEAD
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = ["REFUSED", "ScopedHistory"]

REFUSED = (TemporaryFailure, OutOfMemory)
"""What the log says when it takes nothing."""

_ONLY_DEFAULT = frozenset({DEFAULT_COLLECTION})
_MUTATION_EXTRAS = MUTATION_HEAD.size - HEADER_BYTES
_NANOSECONDS = 10**9


class _Slice(NamedTuple):
    """Rows of a vbucket, next to each other in the columns of a segment or of its tail."""

    rows: Segment | RowIndex
    start: int
    end: int


class ScopedHistory(History):
    """A vbucket's history, with the collections in it."""

    __slots__ = ()

    # Which collections there are

    @property
    def collections(self) -> Set[int]:
        """The ids of the collections that are there after the newest change."""
        return _ONLY_DEFAULT if self._ledger is None else frozenset(self._ledger.highs)

    @property
    def manifest_uid(self) -> int | None:
        """The uid of the manifest that the newest event was of; None: its changes have to be asked."""
        return 0 if self._ledger is None else self._ledger.uid

    def collection_high_seqno(self, collection: int) -> int:
        """Return the seqno of the newest change in a collection, its events included; 0 if it is not there."""
        if self._ledger is None:
            return self.high_seqno if collection == DEFAULT_COLLECTION else 0
        return self._ledger.highs.get(collection, 0)

    def collection_items(self, collection: int) -> int:
        """Return how many documents there are in a collection."""
        if self._ledger is None:
            return self.items if collection == DEFAULT_COLLECTION else 0
        return self._ledger.items.get(collection, 0)

    def manifest(self) -> Manifest:
        """Return what the vbucket's events say there is. Takes time in proportion to the vbucket."""
        if self._ledger is None:
            return DEFAULT_MANIFEST
        scopes = {0: DEFAULT_MANIFEST.scopes[0].name}
        collections = dict(DEFAULT_MANIFEST.collections)
        for _, event in system_events(self.index):
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

    def set_state(self, state: VbucketState, *, takeover: bool = False) -> None:
        if self.behind:  # what it has yet to write belongs to the time in which it was active
            self._follow()
        super().set_state(state, takeover=takeover)
        self._follow()

    def remove(self) -> None:
        if self.behind:
            self._follow()
        super().remove()

    def reset(self) -> None:
        if self.behind:
            self._follow()
        super().reset()
        self._follow()

    def rollback(self, seqno: int) -> int:
        if self.behind:
            self._follow()
        seqno = super().rollback(seqno)
        self._follow()
        return seqno

    def _follow(self) -> None:
        if self.state is VbucketState.ACTIVE:
            with suppress(*REFUSED):  # then the vbucket stays behind
                self.catch_up(self.id)

    def tell(self, events: Sequence[EventFrame]) -> None:
        """Write system events as changes of this vbucket's own.

        Raises TemporaryFailure or OutOfMemory; then some of them may have been written.
        """
        if self._log.quota.is_exceeded:
            self._log.room.check_quota()  # before a note of what would have to be learned anew
        first = self.high_seqno + 1
        self._expect([(first + place, event) for place, event in enumerate(events)])
        try:
            for event in events:
                self._tell(event)
        except REFUSED:
            self.relearn()
            raise
        self._changed.add(self.id)

    def _expect(self, events: Sequence[tuple[int, EventFrame]]) -> None:
        """Take note of events that are to be written with these seqnos."""
        self._log.make_room_for_note(self)
        if self._ledger is None:
            self._ledger = Ledger({DEFAULT_COLLECTION: self.high_seqno}, {DEFAULT_COLLECTION: self.items})
        elif any(event.collection_id in self._ledger.erasing for _, event in events):
            self.erase_all()  # the same id is there again: nothing that comes may be taken for the old
        for seqno, event in events:
            self._ledger.take(event, seqno)
        self._log.note(self)

    def _tell(self, event: EventFrame) -> None:
        key, value = event.key, event.value
        old = self._find(key, MUTATION_HEAD.size + len(key) + len(value))
        seqno, cas = self.high_seqno + 1, self._clock.tick()
        rev_seqno = (self.index.purged_rev_seqno if old is None else old[2][REV_SEQNO]) + 1
        if event.is_end:
            head = tombstone_head(
                Event.DELETION,
                vbucket=self.id,
                key_length=len(key),
                value_length=len(value),
                cas=cas,
                seqno=seqno,
                rev_seqno=rev_seqno,
                delete_time=self._now() // _NANOSECONDS,
            )
        else:
            body = _MUTATION_EXTRAS + len(key) + len(value)
            head = MUTATION_HEAD.pack(
                int(Magic.REQUEST), int(Opcode.DCP_MUTATION), len(key), _MUTATION_EXTRAS, 0, self.id, body, 0, cas,
                seqno, rev_seqno, int(event.kind), 0, 0, 0, 0,
            )  # fmt: skip
        self._commit_event(event, old, seqno, b"".join((head, key, value)))

    def _commit_event(self, event: EventFrame, old: Newest | None, seqno: int, frame: Frame) -> None:
        """As _commit, of what is no document. That a collection was modified counts until it ends or begins anew."""
        collection, modified = event.collection_id, None
        if collection is not None and event.kind is not SystemEventKind.COLLECTION_MODIFY:
            modified = self._find(modify_key(collection), len(frame))
        items = self.items
        self._commit(old, event.key, seqno, frame)
        self.items = items
        if collection is not None and modified is not None:
            rows, row, _ = modified
            rows.superseded_at[row] = seqno
            rows.dead += rows.lengths_at[row]
            del self._newest[modify_key(collection)]

    def _apply_event(self, event: EventFrame, seqno: int, frame: Frame) -> None:
        """Write an event that happened elsewhere."""
        self._expect([(seqno, event)])
        try:
            self._commit_event(event, self._find(event.key, len(frame)), seqno, frame)
        except REFUSED:
            self.relearn()
            raise
        assert self._ledger is not None
        if not event.is_end and event.collection_id in self._ledger.erasing:
            self.erase_all()  # a collection that has begun anew: what comes now is to find nothing of the old

    def up_to(self, uid: int) -> None:
        """Take note that the vbucket has all events of a manifest, for as long as the bucket is open."""
        if self._ledger is not None:
            self._ledger.uid = uid

    def relearn(self) -> None:
        """Find out from the changes which collections there are. Takes time in proportion to the vbucket."""
        if self._ledger is not None:
            self.load_keys()

    # Erasing

    @property
    def erasing(self) -> bool:
        """Is there something left of collections that have ended?"""
        return self._ledger is not None and bool(self._ledger.erasing)

    def erase_some(self, most: int = 16 * 1024) -> int:
        """Go on with what is left of collections that have ended; returns how many rows that took, 0: nothing is left.

        most: so many rows at once, a few milliseconds' worth.
        """
        if self._ledger is None or not self._ledger.erasing:
            return 0
        erasing, emptied = self._ledger.erasing, self._ledger.emptied
        # One pass for all of them: those that have come furthest wait for the others.
        done = min(erasing.values())
        ends = {collection: emptied[collection] for collection, at in erasing.items() if at == done}
        further = min((at for at in erasing.values() if at > done), default=None)
        end = max(ends.values()) if further is None else further + 1
        found = self._next(done, end, most)
        taken = 1
        if found is None:
            done = end - 1
        else:
            rows, start, stop = found
            done, taken = rows.seqnos_at[stop - 1], stop - start
            self._erase(found, ends)
        for collection, emptied_at in ends.items():
            if done >= emptied_at - 1:
                del erasing[collection]
            else:
                erasing[collection] = done
        return taken

    def erase_all(self) -> None:
        while self.erase_some():
            pass

    def _next(self, done: int, end: int, most: int) -> _Slice | None:
        """Return the next rows above one seqno and below another."""
        index = self.index
        for segment in index.segments[max(bisect_right(index.firsts, done) - 1, 0) :]:
            first, last = segment.starts[self.id], segment.ends[self.id]
            start = bisect_right(segment.seqnos_at, done, first, last)
            stop = min(start + most, bisect_left(segment.seqnos_at, end, start, last))
            if start < stop:
                return _Slice(segment, start, stop)
        start = bisect_right(index.seqnos_at, done)
        stop = min(start + most, bisect_left(index.seqnos_at, end))
        return _Slice(index, start, stop) if start < stop else None

    def _erase(self, found: _Slice, ends: Mapping[int, int]) -> None:
        """Let those of some rows that are in a collection count no more from its end on. ends: of each collection."""
        rows, start, stop = found
        live = start + np.flatnonzero(np.array(rows.superseded_at[start:stop], np.int64) == 0)
        offsets = np.array(rows.offsets_at[start:stop], np.int64)[live - start]
        seqnos = np.array(rows.seqnos_at[start:stop], np.int64)[live - start]
        ended = np.array(sorted(ends), np.int64)
        ids = collection_ids(rows.buffer, offsets)
        places = np.minimum(np.searchsorted(ended, ids), len(ended) - 1)
        row_ends = np.array([ends[collection] for collection in ended.tolist()], np.int64)[places]
        inside = (ended[places] == ids) & (seqnos < row_ends)
        offsets = offsets[inside]
        for row, end in zip(live[inside].tolist(), row_ends[inside].tolist(), strict=True):
            rows.superseded_at[row] = end
            rows.dead += rows.lengths_at[row]
        self.items -= int(np.count_nonzero(is_mutation(rows.buffer, offsets)))
        for key in keys(rows.buffer, offsets):
            self._forget_document(key)

    def _forget_document(self, key: bytes) -> None:
        del self._newest[key]
