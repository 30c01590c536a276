"""A vbucket: its documents by key, and the parts that it has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from penstock.errors import KeyExists, KeyNotFound, NotStored, TooBig
from penstock.store.documents.derived_values import beside_attributes, counted, extended
from penstock.store.documents.document_expiry import DocumentExpiry
from penstock.store.documents.document_locks import DocumentLocks
from penstock.store.documents.document_versions import DocumentVersions
from penstock.store.documents.document_writer import DocumentWriter
from penstock.store.documents.incoming_changes import IncomingChanges
from penstock.store.documents.item import (
    VIEWED_FROM,
    Counted,
    Item,
    Stored,
    is_document,
    read_document,
    value_of,
)
from penstock.store.history.collection_eraser import CollectionEraser
from penstock.store.history.hybrid_clock import absolute_expiry
from penstock.store.history.tombstone import TOMBSTONE_BYTES
from penstock.store.history.vbucket_changes import CAS, DATATYPE, OPCODE, REFUSED, Newest
from penstock.store.history.vbucket_collections import VbucketCollections
from penstock.store.history.vbucket_history import History
from penstock.wire.codec.constants import MAX_VALUE, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import MUTATION_HEAD

__all__ = ["Counted", "Item", "Stored", "Vbucket"]

_MUTATION = int(Opcode.DCP_MUTATION)
_MUTATION_BYTES = MUTATION_HEAD.size  # of a frame without key and value
_NANOSECONDS = 10**9
_JSON = int(Datatype.JSON)
_XATTR = int(Datatype.XATTR)

# Without the constructor's handling of keywords this costs a third; it runs for every command.
_new_item = tuple.__new__


class Vbucket:
    """One vbucket of a bucket. Sizes of keys and values are checked by the caller: 1..250 bytes, 0..20 MiB.

    Methods that store raise TemporaryFailure or OutOfMemory, and change nothing, while the log takes nothing. They
    raise Locked for a document that somebody has locked, unless they come with the lock's cas; a change ends the lock.

    Attributes:
        changes: its changes in the log, and where the newest one of each key is.
        index: the rows of its changes.
        history: its state, its branches and its snapshots.
        collections: which there are in it, and the system events about them.
        locks: on its documents.
        versions: the newest one of each key, tombstones included.
        expiry: ends documents whose time is over.
        writer: writes its own changes.
        incoming: writes changes that were made elsewhere.
    """

    __slots__ = (
        "_locked",
        "changes",
        "collections",
        "expiry",
        "history",
        "id",
        "incoming",
        "index",
        "locks",
        "versions",
        "writer",
    )

    def __init__(self, history: History) -> None:
        self.id = history.id
        self.index = history.index
        self.history = history
        self.changes = history.changes
        self.locks = DocumentLocks(self.id, self.changes.now)
        self.collections = VbucketCollections(history, CollectionEraser(self.changes, self.locks.forget))
        self.writer = DocumentWriter(self.changes)
        self.expiry = DocumentExpiry(history, self.writer, self.locks)
        self.versions = DocumentVersions(history, self.expiry, self.locks)
        self.incoming = IncomingChanges(history, self.collections, self.locks, self.writer, self.expiry)
        self._locked = self.locks.held

    # What ends all locks

    def set_state(self, state: VbucketState, *, takeover: bool = False) -> None:
        """Change the state, as History.enter_state does."""
        if self.changes.behind:  # what it has yet to write belongs to the time in which it was active
            self.history.try_catch_up()
        self.history.enter_state(state, takeover=takeover)
        self.history.try_catch_up()
        self.locks.clear()

    def remove(self) -> None:
        """Delete the vbucket with all it holds; set_state brings it back, with a history of its own."""
        if self.changes.behind:
            self.history.try_catch_up()
        self.history.clear(removes=True)
        self.locks.clear()

    def reset(self) -> None:
        """Forget all documents and all history: seqnos begin at 1 again, on a new branch. The state stays."""
        if self.changes.behind:
            self.history.try_catch_up()
        self.history.clear()
        self.history.try_catch_up()
        self.locks.clear()

    def rollback(self, seqno: int) -> int:
        """Go back to `seqno`, or further, as History.go_back does, and return how far that was."""
        if self.changes.behind:
            self.history.try_catch_up()
        seqno = self.history.go_back(seqno)
        self.history.try_catch_up()
        self.locks.clear()
        return seqno

    # Documents

    def get(self, key: bytes) -> Item | None:
        """Return the document, or None if there is none. While it is locked, its cas is LOCKED_CAS."""
        changes = self.changes
        if changes.behind:
            self.history.try_catch_up()
        newest = changes.newest.get(key)
        if newest is None or (found := changes.index.find(newest)) is None:
            return None
        rows, row = found
        buffer, at = rows.buffer, rows.offsets_at[row]
        if buffer[at + 1] != _MUTATION:
            return None
        key_length, datatype, body, cas, seqno, rev_seqno, flags, expiry = read_document(buffer, at)
        if expiry and expiry <= changes.now() // _NANOSECONDS:
            with suppress(*REFUSED):  # it is no document any more, whether or not that can be written down
                self.expiry.expire(key)
            return None
        if self._locked:
            cas = self.locks.shown_cas(key, cas)
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
        old = self._find_claimed(key, nbytes, cas) if cas or self._locked else self.changes.find(key, nbytes)
        if preserve_expiry:
            expiry = self.expiry.preserved(old, expiry)
        if old is not None and old[2][DATATYPE] & _XATTR:
            old, front, value, datatype = self._beside(old, key, value, datatype)
            return self.writer.store(old, key, value, front=front, flags=flags, expiry=expiry, datatype=datatype)
        return self.writer.store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def add(self, key: bytes, value: Buffer, *, flags: int = 0, expiry: int = 0, datatype: int = 0) -> Stored:
        """As set, but raises KeyExists if there is a document."""
        old = self.expiry.find_present(key, _MUTATION_BYTES + len(key) + len(value))
        if old is not None and old[2][OPCODE] == _MUTATION:
            raise KeyExists(vbucket=self.id)
        return self.writer.store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

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
        nbytes = _MUTATION_BYTES + len(key) + len(value)
        old: Newest | None = self.locks.claim(self.expiry.find_present(key, nbytes), key, cas)
        if preserve_expiry:
            expiry = self.expiry.preserved(old, expiry)
        if old is not None and old[2][DATATYPE] & _XATTR:
            old, front, value, datatype = self._beside(old, key, value, datatype)
            return self.writer.store(old, key, value, front=front, flags=flags, expiry=expiry, datatype=datatype)
        return self.writer.store(old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def touch(self, key: bytes, expiry: int) -> Item | None:
        """Give a document another expiry and return it, None if there is none.

        It changes only if it did not have that expiry already. Source: kv_engine VBucket::getAndUpdateTtl.
        """
        item = self._writable(key, 0)
        if item is None:
            return None
        expiry = self.writer.limited_expiry(key, absolute_expiry(expiry, self.changes.now()))
        if expiry == item.expiry:
            return item
        item = item._replace(expiry=expiry, rev_seqno=item.rev_seqno + 1)
        cas, seqno = self._rewrite(key, item)
        return item._replace(cas=cas, seqno=seqno)

    def count(self, key: bytes, delta: int, *, initial: int = 0, expiry: int | None = 0) -> Counted:
        """Add `delta` to the number that a document is, as `counted` does; where there is none, store one.

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
        old = self.locks.claim(self.expiry.find_present(key, TOMBSTONE_BYTES + len(key), frees=True), key, cas)
        return self.writer.bury(old, key, Event.DELETION)

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
        old = self.expiry.find_present(key, nbytes + len(key) + len(make(0, 0)) + len(body), frees=deleted)
        if old is not None:
            self.locks.check(key, cas, old[2][CAS])
        self.locks.forget(key)
        if preserve_expiry:
            expiry = self.expiry.preserved(old, expiry)
        new_cas = self.changes.clock.tick()
        front = make(new_cas, self.changes.high_seqno + 1)
        if deleted:
            return self.writer.bury(old, key, Event.DELETION, front + body, datatype=datatype, cas=new_cas)
        return self.writer.store(
            old, key, body, front=front, flags=flags, expiry=expiry, datatype=datatype, cas=new_cas
        )

    # Locks

    def lock(self, key: bytes, seconds: int) -> Item | None:
        """Lock a document for so long and return it, with the cas that the lock gives it; None if there is none.

        Raises Locked if somebody else has done so, TemporaryFailure while the log cannot take that cas.
        """
        item = self._writable(key, 0)
        if item is None:
            return None
        cas = self.changes.clock.tick()
        self.changes.log.note_cas(self.id, cas)
        self.locks.lock(key, cas, seconds)
        return item._replace(cas=cas)

    def unlock(self, key: bytes, cas: int) -> None:
        """End a lock. Raises KeyNotFound, NotLocked, and Locked for another cas than the lock's."""
        if self.get(key) is None:
            raise KeyNotFound(vbucket=self.id)
        self.locks.unlock(key, cas)

    # Before a change

    def _find_claimed(self, key: bytes, nbytes: int, cas: int) -> Newest | None:
        """As VbucketChanges.find, of a key that is to be stored with this cas, or that may be locked."""
        if cas:
            return self.locks.claim(self.expiry.find_present(key, nbytes), key, cas)
        newest = self.changes.find(key, nbytes)
        if key in self._locked:
            if newest is not None and is_document(newest) and not self.expiry.is_over(newest):
                self.locks.check(key, cas, newest[2][CAS])
            self.locks.forget(key)
        return newest

    def _writable(self, key: bytes, cas: int) -> Item | None:
        """Return the document, None if there is none. Raises as DocumentLocks.check does."""
        item = self.get(key)
        if item is not None:
            self.locks.check(key, cas, item.cas)
        return item

    def _rewrite(self, key: bytes, item: Item) -> Stored:
        """Store a document that `_writable` has returned, with something of it changed."""
        old = self.changes.find(key, _MUTATION_BYTES + len(key) + len(item.value))
        self.locks.forget(key)
        return self.writer.store(old, key, item.value, flags=item.flags, expiry=item.expiry, datatype=item.datatype)

    def _beside(
        self, old: Newest, key: bytes, value: Buffer, datatype: int
    ) -> tuple[Newest | None, bytes, Buffer, int]:
        """Return the newest version, the extended attributes of the document that a value replaces, and the value."""
        if not is_document(old) or self.expiry.is_over(old):
            return old, b"", value, datatype
        front, value, datatype = beside_attributes(value_of(old), old[2][DATATYPE], value, datatype)
        return self.changes.find(key, _MUTATION_BYTES + len(key) + len(front) + len(value)), front, value, datatype
