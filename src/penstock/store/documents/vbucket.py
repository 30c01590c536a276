"""A vbucket: its documents by key, on top of its history."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from penstock.errors import (
    KeyExists,
    KeyNotFound,
    Locked,
    NotLocked,
    NotStored,
    OutOfRange,
    TooBig,
)
from penstock.store.documents.conflict import Meta, wins
from penstock.store.documents.derived_values import beside_attributes, counted, extended
from penstock.store.documents.document_locks import LOCKED_CAS, Lock
from penstock.store.documents.item import (
    VIEWED_FROM,
    Counted,
    Item,
    Stored,
    is_document,
    meta_of,
    read_document,
    remains_of,
    tombstone_of,
    value_of,
)
from penstock.store.documents.time_to_live import TimeLimits
from penstock.store.history.event_frames import SYSTEM_PREFIX, read_event
from penstock.store.history.hybrid_clock import absolute_expiry
from penstock.store.history.scoped_history import REFUSED, ScopedHistory
from penstock.store.history.tombstone import TOMBSTONE_BYTES, tombstone_head
from penstock.store.history.vbucket_history import CAS, DATATYPE, OPCODE, REV_SEQNO, Newest
from penstock.store.log.change_log import Log
from penstock.store.log.long_frame import LONG_FROM, Frame, LongFrame
from penstock.store.log.row_index import RowIndex
from penstock.wire.codec.constants import MAX_VALUE, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import DELETION_HEAD, MUTATION_HEAD, Mutation, head_struct

__all__ = ["LAST_SEQNO", "Counted", "Item", "Stored", "Vbucket"]

LAST_SEQNO = 2**63 - 1
"""The highest seqno that a vbucket can hold: the columns are signed."""

_REQUEST = int(Magic.REQUEST)
_MUTATION = int(Opcode.DCP_MUTATION)
_MUTATION_BYTES = MUTATION_HEAD.size  # of a frame without key and value
_MUTATION_EXTRAS = MUTATION_HEAD.size - HEADER_BYTES
_NANOSECONDS = 10**9
_JSON = int(Datatype.JSON)
_XATTR = int(Datatype.XATTR)


# Without the constructors' handling of keywords, these cost a third; both run for every command.
_new_item = _new_stored = tuple.__new__

_read_expiry = head_struct(Mutation, "expiry").unpack_from


class Vbucket(ScopedHistory):
    """One vbucket of a bucket. Sizes of keys and values are checked by the caller: 1..250 bytes, 0..20 MiB.

    Methods that store raise TemporaryFailure or OutOfMemory, and change nothing, while the log takes nothing. They
    raise Locked for a document that somebody has locked, unless they come with the lock's cas; a change ends the lock.
    monotonic: nanoseconds that never go back, which locks are measured with; unless set, the bucket's clock.
    time_limits: for documents that are stored here; None: there are none. expired: how many documents have become
    tombstones here because their time was over, since the bucket was opened.
    """

    __slots__ = ("_locks", "expired", "monotonic", "time_limits")

    def __init__(
        self,
        index: RowIndex,
        log: Log,
        *,
        clock: Callable[[], int],
        new_vbuuid: Callable[[], int],
        changed: set[int],
    ) -> None:
        super().__init__(index, log, clock=clock, new_vbuuid=new_vbuuid, changed=changed)
        self._locks: dict[bytes, Lock] = {}
        self.monotonic = clock
        self.time_limits: TimeLimits | None = None
        self.expired = 0

    # What ends all locks

    def set_state(self, state: VbucketState, *, takeover: bool = False) -> None:
        super().set_state(state, takeover=takeover)
        self._locks.clear()

    def remove(self) -> None:
        super().remove()
        self._locks.clear()

    def reset(self) -> None:
        super().reset()
        self._locks.clear()

    def rollback(self, seqno: int) -> int:
        seqno = super().rollback(seqno)
        self._locks.clear()
        return seqno

    def _forget_document(self, key: bytes) -> None:
        super()._forget_document(key)
        self._locks.pop(key, None)

    # Documents

    def get(self, key: bytes) -> Item | None:
        """Return the document, or None if there is none. While it is locked, its cas is LOCKED_CAS."""
        if self.behind:
            self._follow()
        newest = self._newest.get(key)
        if newest is None or (found := self.index.find(newest)) is None:
            return None
        rows, row = found
        buffer, at = rows.buffer, rows.offsets_at[row]
        if buffer[at + 1] != _MUTATION:
            return None
        key_length, datatype, body, cas, seqno, rev_seqno, flags, expiry = read_document(buffer, at)
        if expiry and expiry <= self._now() // _NANOSECONDS:
            with suppress(*REFUSED):  # it is no document any more, whether or not that can be written down
                self._expire(key)
            return None
        if self._locks and (lock := self._locks.get(key)) is not None:
            cas = LOCKED_CAS if self.monotonic() < lock.until else lock.cas
        view = buffer[at + _MUTATION_BYTES + key_length : at + HEADER_BYTES + body]
        value: Buffer = view.tobytes() if body < VIEWED_FROM else view
        return _new_item(Item, (cas, flags, datatype, value, expiry, rev_seqno, seqno))

    def set(
        self,
        key: bytes,
        value: Buffer,
        *,
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
        cas: int = 0,
        preserve_expiry: bool = False,
    ) -> Stored:
        """Store a document. cas: what it must have now, 0 for whatever it has, if it is there.

        expiry: 0 for never, up to 30 days as seconds from now, above as epoch seconds. preserve_expiry: a document that
        is there keeps the time that it has.
        Raises KeyNotFound if a cas is given and there is no document, KeyExists if it has another cas.
        """
        nbytes = _MUTATION_BYTES + len(key) + len(value)
        old = self._claim(key, nbytes, cas) if cas or self._locks else self._find(key, nbytes)
        if preserve_expiry:
            expiry = self._preserved(old, expiry)
        if old is not None and old[2][DATATYPE] & _XATTR:
            old, front, value, datatype = self._beside(old, key, value, datatype)
            return self._store(old, key, value, front=front, flags=flags, expiry=expiry, datatype=datatype)
        return self._store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def add(self, key: bytes, value: Buffer, *, flags: int = 0, expiry: int = 0, datatype: int = 0) -> Stored:
        """As set, but raises KeyExists if there is a document."""
        old = self._present(key, _MUTATION_BYTES + len(key) + len(value))
        if old is not None and old[2][OPCODE] == _MUTATION:
            raise KeyExists(vbucket=self.id)
        return self._store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def replace(
        self,
        key: bytes,
        value: Buffer,
        *,
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
        cas: int = 0,
        preserve_expiry: bool = False,
    ) -> Stored:
        """As set, but raises KeyNotFound if there is no document, whether or not a cas is given."""
        old: Newest | None = self._require(self._present(key, _MUTATION_BYTES + len(key) + len(value)), key, cas)
        if preserve_expiry:
            expiry = self._preserved(old, expiry)
        if old is not None and old[2][DATATYPE] & _XATTR:
            old, front, value, datatype = self._beside(old, key, value, datatype)
            return self._store(old, key, value, front=front, flags=flags, expiry=expiry, datatype=datatype)
        return self._store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def touch(self, key: bytes, expiry: int) -> Item | None:
        """Give a document another expiry and return it, None if there is none.

        It changes only if it did not have that expiry already. Source: kv_engine VBucket::getAndUpdateTtl.
        """
        item = self._writable(key, 0)
        if item is None:
            return None
        expiry = absolute_expiry(expiry, self._now())
        if self.time_limits is not None:
            expiry = self.time_limits.applied(key, expiry, self._now() // _NANOSECONDS)
        if expiry == item.expiry:
            return item
        item = item._replace(expiry=expiry, rev_seqno=item.rev_seqno + 1)
        cas, seqno = self._rewrite(key, item)
        return item._replace(cas=cas, seqno=seqno)

    def count(self, key: bytes, delta: int, *, initial: int = 0, expiry: int | None = 0) -> Counted:
        """Add `delta` to the number that a document is, as `values.counted` does; where there is none, store one.

        initial, expiry: of a new document; the latter as of `set`, None: there is not to be one.
        Raises KeyNotFound if there is none and is not to be, DeltaBadValue for a document that is no number.
        """
        item = self._writable(key, 0)
        if item is None:
            if expiry is None:
                raise KeyNotFound(vbucket=self.id)
            return Counted(*self.add(key, b"%d" % initial, expiry=expiry, datatype=_JSON), initial)
        number, value = counted(item.value, item.datatype, delta)
        datatype = item.datatype & ~Datatype.SNAPPY | _JSON
        return Counted(*self._rewrite(key, item._replace(value=value, datatype=datatype)), number)

    def extend(
        self, key: bytes, more: bytes, *, cas: int = 0, in_front: bool = False, made: tuple[Buffer, int] | None = None
    ) -> Stored:
        """Put more behind, or in front of, a document's value. cas: what it must have now, 0 for whatever it has.

        made: what `extended` makes of the document that is there, where that is known already.
        Raises NotStored if there is no document, KeyExists if it has another cas, TooBig if its value would be.
        """
        item = self._writable(key, cas)
        if item is None:
            raise NotStored(vbucket=self.id)
        value, datatype = made or extended(item.value, item.datatype, more, in_front=in_front)
        if len(value) > MAX_VALUE:  # a compressed one has been inflated
            raise TooBig(f"value of {len(value)} bytes, limit {MAX_VALUE}", vbucket=self.id)
        return self._rewrite(key, item._replace(value=value, datatype=datatype))

    def delete(self, key: bytes, *, cas: int = 0) -> Stored:
        """Delete a document; Stored has the tombstone's cas. Raises as replace does."""
        old = self._require(self._present(key, TOMBSTONE_BYTES + len(key), frees=True), key, cas)
        return self._bury(old, key, Event.DELETION)

    def is_there(self, key: bytes) -> bool:
        """Tell whether there is a document of this key."""
        newest = self._look(key)
        return is_document(newest) and not self._is_over(newest)

    # Parts of documents

    def tombstone(self, key: bytes) -> Item | None:
        """Return what is left of a deleted document, None for any other. expiry: when it was deleted. flags: 0."""
        newest = self._look(key)
        return None if newest is None or is_document(newest) else tombstone_of(newest)

    def rewrite(
        self,
        key: bytes,
        make: Callable[[int, int], bytes],
        *,
        body: Buffer = b"",
        cas: int = 0,
        deleted: bool = False,
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
        preserve_expiry: bool = False,
    ) -> Stored:
        """Store a document whose value has to do with its own change; or, `deleted`, leave a tombstone with it.

        make: returns what is in front of the body for a cas and seqno, always as long. cas: what the newest version
        must have now, be it a tombstone, 0 for whatever it has. expiry, preserve_expiry: as of `set`.
        Raises KeyExists for another cas.
        """
        nbytes = TOMBSTONE_BYTES if deleted else _MUTATION_BYTES
        old = self._present(key, nbytes + len(key) + len(make(0, 0)) + len(body), frees=deleted)
        if old is not None:
            self._check(key, cas, old[2][CAS])
        self._locks.pop(key, None)
        if preserve_expiry:
            expiry = self._preserved(old, expiry)
        new_cas = self._clock.tick()
        front = make(new_cas, self.high_seqno + 1)
        if deleted:
            return self._bury(old, key, Event.DELETION, front + body, datatype=datatype, cas=new_cas)
        return self._store(old, key, body, front=front, flags=flags, expiry=expiry, datatype=datatype, cas=new_cas)

    # Locks

    def lock(self, key: bytes, seconds: int) -> Item | None:
        """Lock a document for so long and return it, with the cas that the lock gives it; None if there is none.

        Raises Locked if somebody else has done so, TemporaryFailure while the log cannot take that cas.
        """
        item = self._writable(key, 0)
        if item is None:
            return None
        cas = self._clock.tick()
        self._log.note_cas(self.id, cas)
        self._locks[key] = Lock(cas, self.monotonic() + seconds * _NANOSECONDS)
        return item._replace(cas=cas)

    def unlock(self, key: bytes, cas: int) -> None:
        """End a lock. Raises KeyNotFound, NotLocked, and Locked for another cas than the lock's."""
        if self.get(key) is None:
            raise KeyNotFound(vbucket=self.id)
        lock = self._locks.get(key)
        if lock is None or self.monotonic() >= lock.until:
            raise NotLocked(vbucket=self.id)
        if cas != lock.cas:
            raise Locked(vbucket=self.id)
        self._locks[key] = Lock(cas, 0)

    # Changes that come from elsewhere

    def meta(self, key: bytes) -> Meta | None:
        """Return the meta data of a document, or of its tombstone; None if there never was one. cas: as of `get`."""
        newest = self._look(key)
        if self._is_over(newest):
            with suppress(*REFUSED):
                self._expire(key)
                newest = self._look(key)
        if newest is None:
            return None
        meta = meta_of(newest)
        if self._locks and (lock := self._locks.get(key)) is not None:
            meta = meta._replace(cas=LOCKED_CAS if self.monotonic() < lock.until else lock.cas)
        return meta

    def newest_seqno(self, key: bytes) -> int | None:
        """Return the seqno of a key's newest change, its deletion included; None if there is none."""
        newest = self._look(key)
        return None if newest is None else newest[0].seqnos_at[newest[1]]

    def store_with_meta(
        self,
        event: Event,
        key: bytes,
        value: Buffer,
        meta: Meta,
        *,
        cas: int = 0,
        add: bool = False,
        resolve: bool = True,
        new_cas: bool = False,
    ) -> Stored:
        """Store a version of a document that was made elsewhere, with its meta data, if it wins against the one here.

        event: a mutation, deletion or expiration; the last two leave a tombstone whether or not there was a document.
        cas: as of `set`. add: only where there is no document. resolve: False: it wins in any case. new_cas: it gets a
        cas of this vbucket instead of its own. A document that has expired is none, but its version still counts.
        A time limit of the bucket or collection limits the expiry, as in kv_engine KVBucket::setWithMeta.
        Raises KeyExists if it does not win, is to be added to a document, or that has another cas; KeyNotFound if a cas
        is given and there is no document; OutOfRange for a rev_seqno above LAST_SEQNO.
        """
        deleted = event is not Event.MUTATION
        newest = self._find(key, _MUTATION_BYTES + len(key) + len(value), deleted)
        is_there = is_document(newest) and not self._is_over(newest)
        if newest is not None:
            if (add and is_there) or (resolve and not wins(meta, meta_of(newest), self.conflict_resolution)):
                raise KeyExists(vbucket=self.id)
            if is_there:
                self._check(key, cas, newest[2][CAS])
        if cas and not is_there:
            raise KeyNotFound(vbucket=self.id)
        expiry = 0 if deleted else meta.expiry
        if self.time_limits is not None and not deleted:
            expiry = self.time_limits.applied(key, expiry, self._now() // _NANOSECONDS)
        return self.apply(
            event,
            key,
            value,
            cas=self._clock.tick() if new_cas else meta.cas,
            rev_seqno=meta.rev_seqno,
            flags=meta.flags,
            expiry=expiry,
            datatype=meta.datatype,
            delete_time=meta.expiry if deleted else 0,
        )

    def apply(
        self,
        event: Event,
        key: bytes,
        value: Buffer = b"",
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
        With the key of a system event it is that event. Raises OutOfRange for a seqno that is not above high_seqno, or
        a number above LAST_SEQNO; RemoteProtocolError for a system event that is none.
        """
        if self.behind:
            self.catch_up(self.id)
        high = self.high_seqno
        if seqno is None:
            seqno = high + 1
        if not high < seqno <= LAST_SEQNO:
            raise OutOfRange(f"vbucket {self.id}: seqno {seqno} after {high}", vbucket=self.id)
        if rev_seqno > LAST_SEQNO:  # the next change of the key counts on from it
            raise OutOfRange(f"vbucket {self.id}: rev_seqno {rev_seqno}, limit {LAST_SEQNO}", vbucket=self.id)
        told = None
        if key.startswith(SYSTEM_PREFIX):
            told = read_event(key, bytes(value), flags if event is Event.MUTATION else None)
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
        frame: Frame = b"".join((head, key, value)) if len(value) < LONG_FROM else LongFrame(head + key, value)
        self._begin_change(seqno, snapshot_end)
        if told is None:
            self._commit(self._find(key, len(frame), event is not Event.MUTATION), key, seqno, frame)
        else:
            self._apply_event(told, seqno, frame)
        if self._locks:
            self._locks.pop(key, None)
        self._clock.see(cas)
        self._end_change(snapshot_end)
        return _new_stored(Stored, (cas, seqno))

    # Before a change of its own

    def _present(self, key: bytes, nbytes: int, frees: bool = False) -> Newest | None:
        """As _find, after a document that has expired has become a tombstone."""
        newest = self._find(key, nbytes, frees)
        if self._is_over(newest):
            self._expire(key, nbytes)
            return self._find(key, nbytes, frees)
        return newest

    def _look(self, key: bytes) -> Newest | None:
        """As _find, but nothing is going to be written."""
        if self.behind:
            self._follow()
        seqno = self._newest.get(key)
        if seqno is None or (found := self.index.find(seqno)) is None:
            return None
        rows, row = found
        return rows, row, DELETION_HEAD.unpack_from(rows.buffer, rows.offsets_at[row])

    def _is_over(self, newest: Newest | None) -> bool:
        """Tell whether this is a document whose time is over."""
        if newest is None or newest[2][OPCODE] != _MUTATION:
            return False
        rows, row, _ = newest
        (expiry,) = _read_expiry(rows.buffer, rows.offsets_at[row])
        return bool(0 < expiry <= self._now() // _NANOSECONDS)

    def _expire(self, key: bytes, nbytes: int = 0) -> None:
        """Let a document whose time is over become a tombstone, unless others decide on that.

        nbytes: of what is to be written next, so that there is room for both or nothing is written.
        """
        if self.state is VbucketState.ACTIVE:
            newest = self._find(key, TOMBSTONE_BYTES + len(key) + nbytes, frees=True)
            assert newest is not None
            self._bury(newest, key, Event.EXPIRATION, nbytes=nbytes)
            self.expired += 1
            self._locks.pop(key, None)
            self._changed.add(self.id)

    def _require(self, newest: Newest | None, key: bytes, cas: int) -> Newest:
        """Raise KeyNotFound unless this is a document, and as _check does. What is locked is not after that."""
        if newest is None or newest[2][OPCODE] != _MUTATION:
            raise KeyNotFound(vbucket=self.id)
        self._check(key, cas, newest[2][CAS])
        if self._locks:
            self._locks.pop(key, None)
        return newest

    def _claim(self, key: bytes, nbytes: int, cas: int) -> Newest | None:
        """As _find, of a key that is to be stored with this cas, or for which there might be a lock."""
        if cas:
            return self._require(self._present(key, nbytes), key, cas)
        newest = self._find(key, nbytes)
        if key in self._locks:
            if newest is not None and is_document(newest) and not self._is_over(newest):
                self._check(key, cas, newest[2][CAS])
            del self._locks[key]
        return newest

    def _check(self, key: bytes, cas: int, logged: int) -> None:
        """Raise Locked or KeyExists unless a document may change that the log has with one cas and a command another.

        0 is the cas of a command that does not care.
        """
        if self._locks and (lock := self._locks.get(key)) is not None:
            if cas != lock.cas and self.monotonic() < lock.until:
                raise Locked(vbucket=self.id)
            logged = lock.cas
        if cas and cas != logged:
            raise KeyExists(vbucket=self.id)

    def _writable(self, key: bytes, cas: int) -> Item | None:
        """Return the document, None if there is none. Raises as _check does."""
        item = self.get(key)
        if item is not None:
            self._check(key, cas, item.cas)
        return item

    # Changes of its own

    def _rewrite(self, key: bytes, item: Item) -> Stored:
        """Store a document that `_writable` has returned, with something of it changed."""
        old = self._find(key, _MUTATION_BYTES + len(key) + len(item.value))
        self._locks.pop(key, None)
        return self._store(old, key, item.value, flags=item.flags, expiry=item.expiry, datatype=item.datatype)

    def _beside(
        self, old: Newest, key: bytes, value: Buffer, datatype: int
    ) -> tuple[Newest | None, bytes, Buffer, int]:
        """Return the newest version, the extended attributes of the document that a value replaces, and the value."""
        if not is_document(old) or self._is_over(old):
            return old, b"", value, datatype
        front, value, datatype = beside_attributes(value_of(old), old[2][DATATYPE], value, datatype)
        return self._find(key, _MUTATION_BYTES + len(key) + len(front) + len(value)), front, value, datatype

    def _preserved(self, old: Newest | None, expiry: int) -> int:
        """Return when a document that is there expires; where there is none, what is to be for a new one."""
        if old is None or not is_document(old) or self._is_over(old):
            return expiry
        found: int = _read_expiry(old[0].buffer, old[0].offsets_at[old[1]])[0]
        return found

    def _store(
        self,
        old: Newest | None,
        key: bytes,
        value: Buffer,
        *,
        flags: int,
        expiry: int,
        datatype: int,
        cas: int = 0,
        front: bytes = b"",
    ) -> Stored:
        """Write a document as a change of this vbucket's own.

        cas: the clock's newest, 0: its next one. front: what its value begins with, such as extended attributes.
        """
        seqno, cas = self.high_seqno + 1, cas or self._clock.tick()
        rev_seqno = (self.index.purged_rev_seqno if old is None else old[2][REV_SEQNO]) + 1
        if expiry:
            expiry = absolute_expiry(expiry, self._now())
        if self.time_limits is not None:
            expiry = self.time_limits.applied(key, expiry, self._now() // _NANOSECONDS)
        key_length = len(key)
        value_length = len(value)
        body = _MUTATION_EXTRAS + key_length + len(front) + value_length
        head = MUTATION_HEAD.pack(
            _REQUEST, _MUTATION, key_length, _MUTATION_EXTRAS, datatype, self.id, body, 0, cas,
            seqno, rev_seqno, flags, expiry, 0, 0, 0,
        )  # fmt: skip
        if value_length < LONG_FROM:
            self._commit(old, key, seqno, b"".join((head, key, front, value)))
        else:
            self._commit(old, key, seqno, LongFrame(head + key + front, value))
        return _new_stored(Stored, (cas, seqno))

    def _bury(
        self,
        old: Newest | None,
        key: bytes,
        event: Event,
        value: bytes | None = None,
        *,
        datatype: int = int(Datatype.XATTR),
        cas: int = 0,
        nbytes: int = 0,
    ) -> Stored:
        """Write a tombstone as a change of this vbucket's own. value: None: what the document leaves.

        cas: as of _store. nbytes: of what is to be written next, so that there is room for both.
        """
        if value is None:
            value = b"" if old is None else remains_of(old)
            if value:
                old = self._find(key, TOMBSTONE_BYTES + len(key) + len(value) + nbytes, frees=True)
        seqno, cas = self.high_seqno + 1, cas or self._clock.tick()
        head = tombstone_head(
            event,
            vbucket=self.id,
            key_length=len(key),
            value_length=len(value),
            datatype=datatype if value else 0,
            cas=cas,
            seqno=seqno,
            rev_seqno=(self.index.purged_rev_seqno if old is None else old[2][REV_SEQNO]) + 1,
            delete_time=self._now() // _NANOSECONDS,
        )
        self._commit(old, key, seqno, b"".join((head, key, value)))
        return _new_stored(Stored, (cas, seqno))
