"""A vbucket: its documents by key, and its history.

One thread at a time: nothing here locks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.errors import KeyExists, KeyNotFound, OutOfRange
from penstock.store.clock import HybridClock, absolute_expiry
from penstock.store.failover import FailoverLog, create_entry, prune, sanitised
from penstock.store.index import RowIndex
from penstock.store.log import Log
from penstock.store.segment import Segment
from penstock.store.snapshot import Snapshot
from penstock.store.tombstone import TOMBSTONE_BYTES, tombstone_head
from penstock.wire.constants import Magic, Opcode, VbucketState
from penstock.wire.dcp import DELETION_HEAD, MUTATION_HEAD, Mutation, head_struct
from penstock.wire.frame import HEADER, HEADER_BYTES
from penstock.wire.schema import Event

__all__ = ["LAST_SEQNO", "Item", "Stored", "Vbucket"]

LAST_SEQNO = 2**63 - 1
"""The highest seqno that a vbucket can hold: the columns are signed."""

_REQUEST = int(Magic.REQUEST)
_MUTATION = int(Opcode.DCP_MUTATION)
_MUTATION_BYTES = MUTATION_HEAD.size  # of a frame without key and value
_MUTATION_EXTRAS = MUTATION_HEAD.size - HEADER_BYTES
_KEY_BYTES = 64 + 32  # of a key of 16 to 31 bytes
_NANOSECONDS = 10**9


class Item(NamedTuple):
    """A document. expiry: epoch seconds, 0 for never. rev_seqno: how often the key has changed."""

    cas: int
    flags: int
    datatype: int
    value: bytes
    expiry: int
    rev_seqno: int
    seqno: int


class Stored(NamedTuple):
    """What a change was given: the document's new cas, and its place in the vbucket's history."""

    cas: int
    seqno: int


# Without the constructors' handling of keywords, these cost a third; both run for every command.
_new_item = _new_stored = tuple.__new__


_read_document = head_struct(
    Mutation, "key_length", "datatype", "body", "cas", "by_seqno", "rev_seqno", "flags", "expiry"
).unpack_from
"""Reads what an Item is made of, and no more: this runs for every GET."""

_read_expiry = head_struct(Mutation, "expiry").unpack_from

_Newest = tuple[Segment | RowIndex, int, tuple[int, ...]]
"""The newest change of a key: its row, and its head up to rev_seqno, where deletions and mutations look the same."""

_OPCODE, _BODY, _CAS, _REV_SEQNO = 1, 6, 8, 10  # in a head


class Vbucket:
    """One vbucket of a bucket. Sizes of keys and values are checked by the caller: 1..250 bytes, 0..20 MiB.

    state: a VbucketState, None while it is deleted. failover_log: newest entry first. high_seqno: the newest change's,
    0 if there is none. purge_seqno: the highest seqno of a tombstone that was dropped. items: documents there are
    (deleted ones are not). changed: gets this vbucket's number when a document is found expired.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_index",
        "_log",
        "_new_vbuuid",
        "_newest",
        "_now",
        "_whole_seqno",
        "failover_log",
        "high_seqno",
        "id",
        "items",
        "purge_seqno",
        "state",
    )

    def __init__(
        self,
        index: RowIndex,
        log: Log,
        *,
        clock: Callable[[], int],
        new_vbuuid: Callable[[], int],
        changed: set[int],
    ) -> None:
        self.id = index.vbucket
        self.state: VbucketState | None = VbucketState.ACTIVE
        self.failover_log: FailoverLog = create_entry((), new_vbuuid(), 0)
        self._index = index
        self._log = log
        self._now = clock
        self._clock = HybridClock(clock)
        self._new_vbuuid = new_vbuuid
        self._changed = changed
        self._begin()

    def _begin(self) -> None:
        self.high_seqno = 0
        self.purge_seqno = 0
        self.items = 0
        self._newest: dict[bytes, int] = {}  # of every key the seqno of its newest change, tombstones included
        self._whole_seqno: int | None = None  # inside a snapshot: the end of the one before

    @property
    def vbuuid(self) -> int:
        """The branch of history that the vbucket is on."""
        return self.failover_log[0].vbuuid

    @property
    def max_cas(self) -> int:
        return self._clock.last

    @property
    def whole_seqno(self) -> int:
        """The end of the last complete snapshot: high_seqno, unless `apply` has begun one and not ended it."""
        return self.high_seqno if self._whole_seqno is None else self._whole_seqno

    @property
    def lowest_snapshot_end(self) -> int:
        """No snapshot ends below: it would have to show a version that has been dropped."""
        return self._index.lowest_snapshot_end

    @property
    def persisted_seqno(self) -> int:
        """Changes up to here survive a restart."""
        return self._log.persisted_seqno

    @property
    def index_bytes(self) -> int:
        """An estimate of what the keys occupy: their dict, and for each an object of bytes and one of its seqno."""
        return sys.getsizeof(self._newest) + _KEY_BYTES * len(self._newest)

    # States

    def set_state(self, state: VbucketState, *, takeover: bool = False) -> None:
        """Change the state. A vbucket that was deleted is there again, empty.

        Becoming active begins a new branch of history at the end of the last complete snapshot, unless this is a
        takeover: then the history of the vbucket's last owner goes on.
        """
        if state is VbucketState.ACTIVE and self.state is not VbucketState.ACTIVE:
            if self.state is not None and not takeover:
                self.failover_log = create_entry(self.failover_log, self._new_vbuuid(), self.whole_seqno)
            self._whole_seqno = None
        self.state = state

    def remove(self) -> None:
        """Delete the vbucket with all it holds; set_state brings it back, with a history of its own."""
        self.reset()
        self.state = None

    def reset(self) -> None:
        """Forget all documents and all history: seqnos begin at 1 again, on a new branch. The state stays."""
        self._index.clear()
        self._begin()
        self.failover_log = create_entry((), self._new_vbuuid(), 0)

    def set_failover_log(self, log: Iterable[tuple[int, int]]) -> None:
        """Take over the log of the vbucket that this one is a copy of; (vbuuid, seqno), newest first."""
        self.failover_log = sanitised(log) or create_entry((), self._new_vbuuid(), self.high_seqno)

    def rollback(self, seqno: int) -> int:
        """Go back to `seqno` and return how far that was. Nothing above counts any more; what it superseded is back.

        It ends at the last change up to `seqno`, and at 0, as `reset` does, where a version that would have to come
        back has been dropped. Takes time in proportion to the vbucket.
        """
        if seqno < self.high_seqno and (seqno < self.lowest_snapshot_end or not self._go_back(seqno)):
            self.reset()
            return 0
        self.failover_log = prune(self.failover_log, self.high_seqno)
        if not self.failover_log:
            self.failover_log = create_entry((), self._new_vbuuid(), self.high_seqno)
        return self.high_seqno

    def _go_back(self, seqno: int) -> bool:
        """Write the changes up to seqno anew, superseded ones included. False, and nothing done: there are none."""
        kept: list[tuple[int, int, memoryview]] = []
        for rows, row in self._index.rows_up_to(seqno):
            at = rows.offsets_at[row]
            frame = rows.buffer[at : at + rows.lengths_at[row]]
            superseded = rows.superseded_at[row]
            kept.append((rows.seqnos_at[row], superseded if superseded <= seqno else 0, frame))
        if not kept:
            return False
        lowest, purged, whole = self.lowest_snapshot_end, self.purge_seqno, self.whole_seqno
        self._index.clear()
        self._begin()
        self._index.lowest_snapshot_end = lowest
        self.purge_seqno = min(purged, seqno)
        for by_seqno, superseded, frame in kept:
            if self._log.end + len(frame) > self._log.limit:
                self._log.make_room(len(frame))
            _, opcode, key_length, extras_length, *_ = HEADER.unpack_from(frame)
            key = frame[HEADER_BYTES + extras_length :][:key_length].tobytes()
            self._index.gaps = True  # what was dropped before is not here
            self._append(key, by_seqno, frame)
            if superseded:
                self._index.superseded_at[-1] = superseded
                self._index.dead += len(frame)
            else:
                self.items += opcode == _MUTATION
        if whole < self.high_seqno:
            self._whole_seqno = whole
        return True

    # Documents

    def get(self, key: bytes) -> Item | None:
        """Return the document, or None if there is none."""
        newest = self._newest.get(key)
        if newest is None or (found := self._index.find(newest)) is None:
            return None
        rows, row = found
        buffer, at = rows.buffer, rows.offsets_at[row]
        if buffer[at + 1] != _MUTATION:
            return None
        key_length, datatype, body, cas, seqno, rev_seqno, flags, expiry = _read_document(buffer, at)
        if expiry and self._expired(key, expiry):
            return None
        value = buffer[at + _MUTATION_BYTES + key_length : at + HEADER_BYTES + body].tobytes()
        return _new_item(Item, (cas, flags, datatype, value, expiry, rev_seqno, seqno))

    def set(
        self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, datatype: int = 0, cas: int = 0
    ) -> Stored:
        """Store a document. cas: what it must have now, 0 for whatever it has, if it is there.

        expiry: 0 for never, up to 30 days as seconds from now, above as epoch seconds.
        Raises KeyNotFound if a cas is given and there is no document, KeyExists if it has another cas.
        """
        nbytes = _MUTATION_BYTES + len(key) + len(value)
        old = self._require(self._present(key, nbytes), cas) if cas else self._find(key, nbytes)
        return self._store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def add(self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, datatype: int = 0) -> Stored:
        """As set, but raises KeyExists if there is a document."""
        old = self._present(key, _MUTATION_BYTES + len(key) + len(value))
        if old is not None and old[2][_OPCODE] == _MUTATION:
            raise KeyExists(vbucket=self.id)
        return self._store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def replace(
        self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, datatype: int = 0, cas: int = 0
    ) -> Stored:
        """As set, but raises KeyNotFound if there is no document, whether or not a cas is given."""
        old = self._require(self._present(key, _MUTATION_BYTES + len(key) + len(value)), cas)
        return self._store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def touch(self, key: bytes, expiry: int) -> Item | None:
        """Give a document another expiry and return it, None if there is none.

        It changes only if it did not have that expiry already. Source: kv_engine VBucket::getAndUpdateTtl.
        """
        item = self.get(key)
        if item is None:
            return None
        expiry = absolute_expiry(expiry, self._now())
        if expiry == item.expiry:
            return item
        cas, seqno = self.set(key, item.value, flags=item.flags, expiry=expiry, datatype=item.datatype)
        return item._replace(cas=cas, seqno=seqno, expiry=expiry, rev_seqno=item.rev_seqno + 1)

    def delete(self, key: bytes, *, cas: int = 0) -> Stored:
        """Delete a document; Stored has the tombstone's cas. Raises as replace does."""
        old = self._require(self._present(key, TOMBSTONE_BYTES + len(key)), cas)
        return self._bury(old, key, Event.DELETION)

    def apply(
        self,
        event: Event,
        key: bytes,
        value: bytes = b"",
        *,
        cas: int,
        rev_seqno: int,
        seqno: int | None = None,
        snapshot_end: int | None = None,
        flags: int = 0,
        expiry: int = 0,
        lock_time: int = 0,
        nru: int = 0,
        datatype: int = 0,
        delete_time: int = 0,
    ) -> Stored:
        """Store a change that happened elsewhere, with the cas and rev_seqno that it got there.

        event: a mutation, deletion or expiration; the last two leave a tombstone whether or not there was a document.
        expiry, delete_time: epoch seconds; a tombstone that comes without a time gets the present one.
        seqno: its place in the history that this vbucket is a copy of, above high_seqno; None: the next one of this
        vbucket's own. snapshot_end: of the snapshot that it is a part of; until a change has reached it, whole_seqno
        stays where it was. None: the change is a snapshot by itself.
        Raises OutOfRange for a seqno that is not above high_seqno, or a number above LAST_SEQNO.
        """
        high = self.high_seqno
        if seqno is None:
            seqno = high + 1
        if not high < seqno <= LAST_SEQNO:
            raise OutOfRange(f"vbucket {self.id}: seqno {seqno} after {high}", vbucket=self.id)
        if rev_seqno > LAST_SEQNO:  # the next change of the key counts on from it
            raise OutOfRange(f"vbucket {self.id}: rev_seqno {rev_seqno}, limit {LAST_SEQNO}", vbucket=self.id)
        key_length, value_length = len(key), len(value)
        if event is Event.MUTATION:
            body = _MUTATION_EXTRAS + key_length + value_length
            head = MUTATION_HEAD.pack(
                _REQUEST, _MUTATION, key_length, _MUTATION_EXTRAS, datatype, self.id, body, 0, cas,
                seqno, rev_seqno, flags, expiry, lock_time, 0, nru,
            )  # fmt: skip
        else:
            head = tombstone_head(
                event,
                vbucket=self.id,
                key_length=key_length,
                value_length=value_length,
                datatype=datatype,
                cas=cas,
                seqno=seqno,
                rev_seqno=rev_seqno,
                delete_time=delete_time or self._now() // _NANOSECONDS,
            )
        frame = b"".join((head, key, value))
        old = self._find(key, len(frame))
        if seqno > high + 1:
            self._index.gaps = True
        self._commit(old, key, seqno, frame)
        self._clock.see(cas)
        if snapshot_end is None or seqno >= snapshot_end:
            self._whole_seqno = None
        elif self._whole_seqno is None:
            self._whole_seqno = high
        return _new_stored(Stored, (cas, seqno))

    def end_snapshot(self, *, hides: bool) -> None:
        """Let the snapshot that `apply` is in be complete with the newest change.

        hides: it left seqnos out, so that it may lack versions that were current inside it: no snapshot ends there.
        """
        self._whole_seqno = None
        if hides:
            self._index.lowest_snapshot_end = max(self._index.lowest_snapshot_end, self.high_seqno)

    def snapshot(self, start_seqno: int, end_seqno: int) -> Snapshot:
        """Return the changes after start_seqno up to end_seqno, as they are now, whatever is written later.

        It ends at end_seqno; at the next change if there is none of that number; at lowest_snapshot_end if that is
        higher; at whole_seqno if that is lower. It is empty, and ends at start_seqno, if nothing lies between, or
        while lowest_snapshot_end is above whole_seqno.
        """
        whole = self.whole_seqno
        end = max(min(end_seqno, whole), self._index.lowest_snapshot_end)
        if end_seqno <= start_seqno or not start_seqno < end <= whole:
            end = start_seqno
        elif end < self.high_seqno:
            end = self._index.ceiling(end)
        return Snapshot(self._index, start_seqno, end)

    # Changes

    def _find(self, key: bytes, nbytes: int) -> _Newest | None:
        """Return the newest change of a key. A frame of nbytes can be appended before any row moves."""
        log = self._log
        if log.end + nbytes > log.limit:
            log.make_room(nbytes)
        seqno = self._newest.get(key)
        if seqno is None or (found := self._index.find(seqno)) is None:
            return None
        rows, row = found
        return rows, row, DELETION_HEAD.unpack_from(rows.buffer, rows.offsets_at[row])

    def _present(self, key: bytes, nbytes: int) -> _Newest | None:
        """As _find, after a document that has expired has become a tombstone."""
        newest = self._find(key, nbytes)
        if newest is not None and newest[2][_OPCODE] == _MUTATION:
            rows, row, _ = newest
            (expiry,) = _read_expiry(rows.buffer, rows.offsets_at[row])
            if expiry and self._expired(key, expiry):
                return self._find(key, nbytes)
        return newest

    def _expired(self, key: bytes, expiry: int) -> bool:
        """Tell whether a document's time is over; if so, it becomes a tombstone, unless others decide on that."""
        if expiry > self._now() // _NANOSECONDS:
            return False
        if self.state is VbucketState.ACTIVE:
            newest = self._find(key, TOMBSTONE_BYTES + len(key))
            assert newest is not None
            self._bury(newest, key, Event.EXPIRATION)
            self._changed.add(self.id)
        return True

    def _require(self, newest: _Newest | None, cas: int) -> _Newest:
        """Raise KeyNotFound unless this is a document, KeyExists unless its cas is the one given or none is."""
        if newest is None or newest[2][_OPCODE] != _MUTATION:
            raise KeyNotFound(vbucket=self.id)
        if cas and cas != newest[2][_CAS]:
            raise KeyExists(vbucket=self.id)
        return newest

    def _store(
        self, old: _Newest | None, key: bytes, value: bytes, *, flags: int, expiry: int, datatype: int
    ) -> Stored:
        """Write a document as a change of this vbucket's own."""
        seqno, cas = self.high_seqno + 1, self._clock.tick()
        rev_seqno = 1 if old is None else old[2][_REV_SEQNO] + 1
        if expiry:
            expiry = absolute_expiry(expiry, self._now())
        key_length = len(key)
        body = _MUTATION_EXTRAS + key_length + len(value)
        head = MUTATION_HEAD.pack(
            _REQUEST, _MUTATION, key_length, _MUTATION_EXTRAS, datatype, self.id, body, 0, cas,
            seqno, rev_seqno, flags, expiry, 0, 0, 0,
        )  # fmt: skip
        self._commit(old, key, seqno, b"".join((head, key, value)))
        return _new_stored(Stored, (cas, seqno))

    def _bury(self, old: _Newest, key: bytes, event: Event) -> Stored:
        """Write a tombstone as a change of this vbucket's own."""
        seqno, cas = self.high_seqno + 1, self._clock.tick()
        head = tombstone_head(
            event,
            vbucket=self.id,
            key_length=len(key),
            cas=cas,
            seqno=seqno,
            rev_seqno=old[2][_REV_SEQNO] + 1,
            delete_time=self._now() // _NANOSECONDS,
        )
        self._commit(old, key, seqno, head + key)
        return _new_stored(Stored, (cas, seqno))

    def _commit(self, old: _Newest | None, key: bytes, seqno: int, frame: bytes) -> None:
        """Write the frame of a change, which supersedes the old one."""
        if frame[_OPCODE] == _MUTATION:
            self.items += 1
        if old is not None:
            rows, row, head = old
            rows.superseded_at[row] = seqno
            rows.dead += HEADER_BYTES + head[_BODY]
            if head[_OPCODE] == _MUTATION:
                self.items -= 1
        self._append(key, seqno, frame)

    def _append(self, key: bytes, seqno: int, frame: bytes | memoryview) -> None:
        index = self._index
        index.offsets_at.append(self._log.append(frame))
        index.lengths_at.append(len(frame))
        index.superseded_at.append(0)
        index.seqnos_at.append(seqno)
        self._newest[key] = self.high_seqno = seqno
