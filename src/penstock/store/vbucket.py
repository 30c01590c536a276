"""A vbucket: its documents by key, and its history.

One thread at a time: nothing here locks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import KeyExists, KeyNotFound
from penstock.store.clock import HybridClock, absolute_expiry
from penstock.store.failover import FailoverLog, create_entry
from penstock.store.index import RowIndex
from penstock.store.log import Log
from penstock.store.segment import Segment
from penstock.store.snapshot import Snapshot
from penstock.wire.constants import Magic, Opcode, VbucketState
from penstock.wire.dcp import DELETION_HEAD, MUTATION_HEAD, Mutation, head_struct
from penstock.wire.frame import HEADER_BYTES

__all__ = ["Item", "Stored", "Vbucket"]

_REQUEST = int(Magic.REQUEST)
_MUTATION = int(Opcode.DCP_MUTATION)
_DELETION = int(Opcode.DCP_DELETION)
_MUTATION_BYTES, _DELETION_BYTES = MUTATION_HEAD.size, DELETION_HEAD.size  # of a frame without key and value
_MUTATION_EXTRAS = MUTATION_HEAD.size - HEADER_BYTES
_KEY_BYTES = 64 + 32  # of a key of 16 to 31 bytes
_DELETION_EXTRAS = DELETION_HEAD.size - HEADER_BYTES


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

_Newest = tuple[Segment | RowIndex, int, tuple[int, ...]]
"""The newest change of a key: its row, and its head up to rev_seqno, where deletions and mutations look the same."""

_OPCODE, _BODY, _CAS, _REV_SEQNO = 1, 6, 8, 10  # in a head


class Vbucket:
    """One vbucket of a bucket. Sizes of keys and values are checked by the caller: 1..250 bytes, 0..20 MiB.

    state: a VbucketState. failover_log: newest entry first. high_seqno: the newest change's, 0 if there is none.
    purge_seqno: the highest seqno of a tombstone that was dropped. items: documents there are (deleted ones are not).
    """

    __slots__ = (
        "_clock",
        "_index",
        "_log",
        "_new_vbuuid",
        "_newest",
        "_now",
        "failover_log",
        "high_seqno",
        "id",
        "items",
        "purge_seqno",
        "state",
    )

    def __init__(self, index: RowIndex, log: Log, *, clock: Callable[[], int], new_vbuuid: Callable[[], int]) -> None:
        self.id = index.vbucket
        self.state = VbucketState.ACTIVE
        self.failover_log: FailoverLog = create_entry((), new_vbuuid(), 0)
        self.high_seqno = 0
        self.purge_seqno = 0
        self.items = 0
        self._index = index
        self._log = log
        self._newest: dict[bytes, int] = {}  # of every key the seqno of its newest change, tombstones included
        self._now = clock
        self._clock = HybridClock(clock)
        self._new_vbuuid = new_vbuuid

    @property
    def vbuuid(self) -> int:
        """The branch of history that the vbucket is on."""
        return self.failover_log[0].vbuuid

    @property
    def max_cas(self) -> int:
        return self._clock.last

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

    def set_state(self, state: VbucketState) -> None:
        """Change the state. Becoming active without a handover begins a new branch of history."""
        if state is VbucketState.ACTIVE and self.state is not VbucketState.ACTIVE:
            self.failover_log = create_entry(self.failover_log, self._new_vbuuid(), self.high_seqno)
        self.state = state

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
        value = buffer[at + _MUTATION_BYTES + key_length : at + HEADER_BYTES + body].tobytes()
        return _new_item(Item, (cas, flags, datatype, value, expiry, rev_seqno, seqno))

    def set(
        self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, datatype: int = 0, cas: int = 0
    ) -> Stored:
        """Store a document. cas: what it must have now, 0 for whatever it has, if it is there.

        expiry: 0 for never, up to 30 days as seconds from now, above as epoch seconds.
        Raises KeyNotFound if a cas is given and there is no document, KeyExists if it has another cas.
        """
        old = self._find(key, _MUTATION_BYTES + len(key) + len(value))
        if cas:
            self._require(old, cas)
        return self._store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def add(self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, datatype: int = 0) -> Stored:
        """As set, but raises KeyExists if there is a document."""
        old = self._find(key, _MUTATION_BYTES + len(key) + len(value))
        if old is not None and old[2][_OPCODE] == _MUTATION:
            raise KeyExists(vbucket=self.id)
        return self._store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def replace(
        self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, datatype: int = 0, cas: int = 0
    ) -> Stored:
        """As set, but raises KeyNotFound if there is no document, whether or not a cas is given."""
        old = self._find(key, _MUTATION_BYTES + len(key) + len(value))
        self._require(old, cas)
        return self._store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def delete(self, key: bytes, *, cas: int = 0) -> Stored:
        """Delete a document; Stored has the tombstone's cas. Raises as replace does."""
        old = self._require(self._find(key, _DELETION_BYTES + len(key)), cas)
        seqno, new_cas = self.high_seqno + 1, self._clock.tick()
        rev_seqno = self._supersede(old, seqno)
        key_length = len(key)
        body = _DELETION_EXTRAS + key_length
        head = DELETION_HEAD.pack(
            _REQUEST, _DELETION, key_length, _DELETION_EXTRAS, 0, self.id, body, 0, new_cas, seqno, rev_seqno, 0
        )
        self._append(key, seqno, head + key)
        self.items -= 1
        return _new_stored(Stored, (new_cas, seqno))

    def snapshot(self, start_seqno: int, end_seqno: int) -> Snapshot:
        """Return the changes after start_seqno up to end_seqno, as they are now, whatever is written later.

        It ends at end_seqno; at high_seqno if that is lower; at lowest_snapshot_end if both are lower than that; at
        start_seqno, empty, if nothing lies between.
        """
        end = max(min(end_seqno, self.high_seqno), self._index.lowest_snapshot_end)
        return Snapshot(self._index, start_seqno, end if end_seqno > start_seqno else start_seqno)

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
        seqno, cas = self.high_seqno + 1, self._clock.tick()
        rev_seqno = 1 if old is None else self._supersede(old, seqno)
        if old is None or old[2][_OPCODE] != _MUTATION:
            self.items += 1
        if expiry:
            expiry = absolute_expiry(expiry, self._now())
        key_length = len(key)
        body = _MUTATION_EXTRAS + key_length + len(value)
        head = MUTATION_HEAD.pack(
            _REQUEST, _MUTATION, key_length, _MUTATION_EXTRAS, datatype, self.id, body, 0, cas,
            seqno, rev_seqno, flags, expiry, 0, 0, 0,
        )  # fmt: skip
        self._append(key, seqno, b"".join((head, key, value)))
        return _new_stored(Stored, (cas, seqno))

    def _supersede(self, old: _Newest, seqno: int) -> int:
        """Let `seqno` supersede a change; return the key's next rev_seqno."""
        rows, row, head = old
        rows.superseded_at[row] = seqno
        rows.dead += HEADER_BYTES + head[_BODY]
        return head[_REV_SEQNO] + 1

    def _append(self, key: bytes, seqno: int, frame: bytes) -> None:
        index = self._index
        index.offsets_at.append(self._log.append(frame))
        index.lengths_at.append(len(frame))
        index.superseded_at.append(0)
        self._newest[key] = self.high_seqno = seqno
