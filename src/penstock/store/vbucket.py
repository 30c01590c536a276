"""A vbucket: its documents by key, on top of its history."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import KeyExists, KeyNotFound, OutOfRange
from penstock.store.clock import absolute_expiry
from penstock.store.history import CAS, OPCODE, REV_SEQNO, History, Newest
from penstock.store.tombstone import TOMBSTONE_BYTES, tombstone_head
from penstock.wire.constants import Magic, Opcode, VbucketState
from penstock.wire.dcp import MUTATION_HEAD, Mutation, head_struct
from penstock.wire.frame import HEADER_BYTES
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


class Vbucket(History):
    """One vbucket of a bucket. Sizes of keys and values are checked by the caller: 1..250 bytes, 0..20 MiB.

    Methods that store raise TemporaryFailure, and change nothing, while the log takes nothing.
    """

    __slots__ = ()

    def get(self, key: bytes) -> Item | None:
        """Return the document, or None if there is none."""
        newest = self._newest.get(key)
        if newest is None or (found := self.index.find(newest)) is None:
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
        if old is not None and old[2][OPCODE] == _MUTATION:
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
        self._begin_change(seqno, snapshot_end)
        self._commit(self._find(key, len(frame)), key, seqno, frame)
        self._clock.see(cas)
        self._end_change(snapshot_end)
        return _new_stored(Stored, (cas, seqno))

    # Changes of its own

    def _present(self, key: bytes, nbytes: int) -> Newest | None:
        """As _find, after a document that has expired has become a tombstone."""
        newest = self._find(key, nbytes)
        if newest is not None and newest[2][OPCODE] == _MUTATION:
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

    def _require(self, newest: Newest | None, cas: int) -> Newest:
        """Raise KeyNotFound unless this is a document, KeyExists unless its cas is the one given or none is."""
        if newest is None or newest[2][OPCODE] != _MUTATION:
            raise KeyNotFound(vbucket=self.id)
        if cas and cas != newest[2][CAS]:
            raise KeyExists(vbucket=self.id)
        return newest

    def _store(self, old: Newest | None, key: bytes, value: bytes, *, flags: int, expiry: int, datatype: int) -> Stored:
        """Write a document as a change of this vbucket's own."""
        seqno, cas = self.high_seqno + 1, self._clock.tick()
        rev_seqno = 1 if old is None else old[2][REV_SEQNO] + 1
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

    def _bury(self, old: Newest, key: bytes, event: Event) -> Stored:
        """Write a tombstone as a change of this vbucket's own."""
        seqno, cas = self.high_seqno + 1, self._clock.tick()
        head = tombstone_head(
            event,
            vbucket=self.id,
            key_length=len(key),
            cas=cas,
            seqno=seqno,
            rev_seqno=old[2][REV_SEQNO] + 1,
            delete_time=self._now() // _NANOSECONDS,
        )
        self._commit(old, key, seqno, head + key)
        return _new_stored(Stored, (cas, seqno))
