"""A vbucket: its documents by key, and the objects that it consists of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from penstock.errors import KeyExists, KeyNotFound, NotStored, TooBig
from penstock.store.documents.derived_values import add_to_number, extend_value, keep_attributes
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
    read_value,
)
from penstock.store.history.collection_eraser import CollectionEraser
from penstock.store.history.hybrid_clock import resolve_expiry
from penstock.store.history.tombstone import TOMBSTONE_BYTES
from penstock.store.history.vbucket_changes import CAS, DATATYPE, OPCODE, REFUSED, Newest
from penstock.store.history.vbucket_collections import VbucketCollections
from penstock.store.history.vbucket_history import VbucketHistory
from penstock.wire.codec.constants import MAX_VALUE, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import MUTATION_HEAD

_MUTATION = int(Opcode.DCP_MUTATION)
_MUTATION_BYTES = MUTATION_HEAD.size  # of a frame without key and value
_NANOSECONDS = 10**9
_JSON = int(Datatype.JSON)
_XATTR = int(Datatype.XATTR)
_NOT_SNAPPY = ~int(Datatype.SNAPPY)
_DELETION = Event.DELETION

# A third of the constructor's cost, which handles keywords; this runs for every command.
_new_item = tuple.__new__


class Vbucket:
    """One vbucket of a bucket. The caller checks the sizes of keys (1 to 250 bytes) and values (up to 20 MiB).

    Methods that store raise TemporaryFailure or OutOfMemory, and change nothing, while the log accepts no changes. They
    raise Locked for a document that another client has locked. A change with the lock's cas ends the lock.

    Attributes:
        id: the vbucket's number.
        changes: its changes in the log, and where the newest one of each key is.
        index: the rows of its changes.
        history: its state, its branches and its snapshots.
        collections: its collections, and their system events.
        locks: the locks on its documents.
        versions: the newest version of each key, tombstones included.
        expiry: deletes expired documents.
        writer: writes its own changes; all vbuckets of the bucket share it. `store.documents.preparing_writer` replaces
            it while a synchronous write is prepared.
        incoming: writes changes of other nodes.
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

    def __init__(self, history: VbucketHistory, writer: DocumentWriter) -> None:
        self.id = history.id
        self.index = history.index
        self.history = history
        self.changes = history.changes
        self.locks = DocumentLocks(self.id, self.changes.now, history.prepares)
        self.collections = VbucketCollections(history, CollectionEraser(self.changes, self.locks.forget))
        self.writer = writer
        self.expiry = DocumentExpiry(history, self.writer, self.locks)
        self.versions = DocumentVersions(history, self.expiry, self.locks)
        self.incoming = IncomingChanges(history, self.collections, self.locks, self.writer, self.expiry)
        self._locked = self.locks.held

    # Changes that end all locks

    def set_state(self, state: VbucketState, *, takeover: bool = False) -> None:
        """Change the state, as VbucketHistory.enter_state does."""
        if self.changes.is_behind:  # the missing events belong to the time when the vbucket was active
            self.history.try_catch_up()
        self.history.enter_state(state, takeover=takeover)
        self.history.try_catch_up()
        self.locks.clear()

    def remove(self) -> None:
        """Delete the vbucket with all of its changes; set_state brings it back, with a new history."""
        if self.changes.is_behind:
            self.history.try_catch_up()
        self.history.clear(removes=True)
        self.locks.clear()

    def reset(self) -> None:
        """Remove all documents and all history: seqnos begin at 1 again, on a new branch. The state stays."""
        if self.changes.is_behind:
            self.history.try_catch_up()
        self.history.clear()
        self.history.try_catch_up()
        self.locks.clear()

    def rollback(self, seqno: int) -> int:
        """Roll back to `seqno`, or further, as VbucketHistory.roll_back does.

        Returns:
            The seqno at which the rollback ended.
        """
        if self.changes.is_behind:
            self.history.try_catch_up()
        seqno = self.history.roll_back(seqno)
        self.history.try_catch_up()
        self.locks.clear()
        return seqno

    # Documents

    def get(self, key: bytes) -> Item | None:
        """Return the document, or None if there is none. While it is locked, its cas is LOCKED_CAS.

        It raises StatusError while an active vbucket commits a synchronous write that another node may have committed.
        """
        changes = self.changes
        if changes.is_behind:
            self.history.try_catch_up()
        locked = self._locked
        if locked and self.history.state is VbucketState.ACTIVE:
            self.locks.check_readable(key)
        newest = changes.newest.get(key)
        if newest is None or (found := self.index.find(newest)) is None:
            return None
        rows, row = found
        buffer, at = rows.buffer, rows.offsets_at[row]
        if buffer[at + 1] != _MUTATION:
            return None
        key_length, datatype, body, cas, seqno, rev_seqno, flags, expiry = read_document(buffer, at)
        if expiry and expiry <= changes.now() // _NANOSECONDS:
            with suppress(*REFUSED):  # it has expired, whether or not the log accepts the tombstone
                self.expiry.expire(key)
            return None
        if locked:
            cas = self.locks.get_shown_cas(key, cas)
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
        """Store a document.

        Args:
            key: the document's key.
            value: the document's value.
            flags: the document's flags.
            expiry: 0 for never, up to 30 days in seconds from now, above as epoch seconds.
            datatype: the Datatype bits.
            cas: the cas that the document must have, 0 for any document or none.
            preserve_expiry: a present document keeps its expiry.

        Returns:
            The document's cas and seqno.

        Raises:
            KeyNotFound: a cas is given and there is no document.
            KeyExists: the document has another cas.
        """
        nbytes = _MUTATION_BYTES + len(key) + len(value)
        old = self._find_claimed(key, nbytes, cas) if cas or self._locked else self.changes.find(key, nbytes)
        if preserve_expiry:
            expiry = self.expiry.get_preserved_expiry(old, expiry)
        if old is not None and old[2][DATATYPE] & _XATTR:
            old, front, value, datatype = self._keep_attributes(old, key, value, datatype)
            return self.writer.write_document(
                self.changes, old, key, value, front=front, flags=flags, expiry=expiry, datatype=datatype
            )
        return self.writer.write_document(self.changes, old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def add(self, key: bytes, value: Buffer, *, flags: int = 0, expiry: int = 0, datatype: int = 0) -> Stored:
        """Store a document as `set` does, if there is none.

        Returns:
            The document's cas and seqno.

        Raises:
            KeyExists: there is a document.
        """
        if self._locked:
            self.locks.check_decided(key)
        old = self.expiry.find_unexpired(key, _MUTATION_BYTES + len(key) + len(value))
        if old is not None and old[2][OPCODE] == _MUTATION:
            raise KeyExists(vbucket=self.id)
        return self.writer.write_document(self.changes, old, key, value, flags=flags, expiry=expiry, datatype=datatype)

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
        """Store a document as `set` does, if there is one.

        Returns:
            The document's cas and seqno.

        Raises:
            KeyNotFound: there is no document.
            KeyExists: the document has another cas.
        """
        nbytes = _MUTATION_BYTES + len(key) + len(value)
        old: Newest | None = self.locks.claim(self.expiry.find_unexpired(key, nbytes), key, cas)
        if preserve_expiry:
            expiry = self.expiry.get_preserved_expiry(old, expiry)
        if old is not None and old[2][DATATYPE] & _XATTR:
            old, front, value, datatype = self._keep_attributes(old, key, value, datatype)
            return self.writer.write_document(
                self.changes, old, key, value, front=front, flags=flags, expiry=expiry, datatype=datatype
            )
        return self.writer.write_document(self.changes, old, key, value, flags=flags, expiry=expiry, datatype=datatype)

    def touch(self, key: bytes, expiry: int) -> Item | None:
        """Give a document another expiry, unless it has that expiry already.

        Source: kv_engine VBucket::getAndUpdateTtl.

        Returns:
            The document; None if there is none.
        """
        item = self.get(key)
        if item is None:
            return None
        if self._locked:
            self.locks.check_cas(key, 0, item.cas)
        if expiry:
            expiry = resolve_expiry(expiry, self.changes.now())
        if self.writer.time_limits is not None:
            expiry = self.writer.limit_expiry(self.changes, key, expiry)
        if expiry == item.expiry:
            return item
        item = item._replace(expiry=expiry, rev_seqno=item.rev_seqno + 1)
        cas, seqno = self._rewrite(key, item)
        return item._replace(cas=cas, seqno=seqno)

    def count(self, key: bytes, delta: int, *, initial: int = 0, expiry: int | None = 0) -> Counted:
        """Add `delta` to the number in a document, as `add_to_number` does.

        Args:
            key: the document's key.
            delta: the summand.
            initial: the number of a new document, if there is none.
            expiry: the expiry of a new document, as of `set`; None: store no new document.

        Returns:
            The document's cas, seqno and number.

        Raises:
            KeyNotFound: there is no document, and expiry is None.
            DeltaBadValue: the document is not a number.
        """
        item = self._find_writable(key, 0)
        if item is None:
            if expiry is None:
                raise KeyNotFound(vbucket=self.id)
            return Counted(*self.add(key, b"%d" % initial, expiry=expiry, datatype=_JSON), initial)
        number, value = add_to_number(item.value, item.datatype, delta)
        datatype = item.datatype & _NOT_SNAPPY | _JSON
        return Counted(*self._rewrite(key, item._replace(value=value, datatype=datatype)), number)

    def extend(
        self, key: bytes, more: bytes, *, cas: int = 0, in_front: bool = False, made: tuple[Buffer, int] | None = None
    ) -> Stored:
        """Add bytes behind, or in front of, a document's value.

        Args:
            key: the document's key.
            more: the bytes.
            cas: the cas that the document must have, 0 for any.
            in_front: add in front of the value.
            made: the result of `extend_value` for the present document, if it is known.

        Returns:
            The document's cas and seqno.

        Raises:
            NotStored: there is no document.
            KeyExists: the document has another cas.
            TooBig: the new value would be too long.
        """
        item = self._find_writable(key, cas)
        if item is None:
            raise NotStored(vbucket=self.id)
        value, datatype = made or extend_value(item.value, item.datatype, more, in_front=in_front)
        if len(value) > MAX_VALUE:  # a compressed one has been inflated
            raise TooBig(f"value of {len(value)} bytes, limit {MAX_VALUE}", vbucket=self.id)
        return self._rewrite(key, item._replace(value=value, datatype=datatype))

    def delete(self, key: bytes, *, cas: int = 0) -> Stored:
        """Delete a document. It raises as `replace` does.

        Returns:
            The tombstone's cas and seqno.
        """
        old = self.locks.claim(self.expiry.find_unexpired(key, TOMBSTONE_BYTES + len(key), frees=True), key, cas)
        return self.writer.write_tombstone(self.changes, old, key, _DELETION)

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
        """Store a document, or with `deleted` a tombstone, whose value depends on the cas and seqno of this change.

        Args:
            key: the document's key.
            make: returns the bytes in front of the body for a cas and seqno. Their number is always the same.
            body: the rest of the value.
            cas: the cas that the newest version, also a tombstone, must have; 0 for any.
            deleted: store a tombstone.
            flags: the document's flags.
            expiry: as of `set`.
            datatype: the Datatype bits.
            preserve_expiry: as of `set`.

        Returns:
            The version's cas and seqno. It raises KeyExists if the newest version has another cas.
        """
        self.locks.check_decided(key)
        nbytes = TOMBSTONE_BYTES if deleted else _MUTATION_BYTES
        old = self.expiry.find_unexpired(key, nbytes + len(key) + len(make(0, 0)) + len(body), frees=deleted)
        if old is not None:
            self.locks.check_cas(key, cas, old[2][CAS])
        self.locks.forget(key)
        if preserve_expiry:
            expiry = self.expiry.get_preserved_expiry(old, expiry)
        new_cas = self.changes.clock.tick()
        front = make(new_cas, self.changes.high_seqno + 1)
        if deleted:
            return self.writer.write_tombstone(
                self.changes, old, key, _DELETION, front + body, datatype=datatype, cas=new_cas
            )
        return self.writer.write_document(
            self.changes, old, key, body, front=front, flags=flags, expiry=expiry, datatype=datatype, cas=new_cas
        )

    # Locks

    def lock(self, key: bytes, seconds: int) -> Item | None:
        """Lock a document for some seconds.

        It raises Locked if another client has locked it, TemporaryFailure while the log cannot note the cas.

        Returns:
            The document, with the lock's cas; None if there is none.
        """
        item = self._find_writable(key, 0)
        if item is None:
            return None
        cas = self.changes.clock.tick()
        self.changes.log.write_cas_note(self.id, cas)
        self.locks.lock(key, cas, seconds)
        return item._replace(cas=cas)

    def unlock(self, key: bytes, cas: int) -> None:
        """End a lock.

        Raises:
            KeyNotFound: there is no document.
            NotLocked: the document is not locked.
            Locked: the lock has another cas.
        """
        if self.get(key) is None:
            raise KeyNotFound(vbucket=self.id)
        self.locks.unlock(key, cas)

    # Before a change

    def _find_claimed(self, key: bytes, nbytes: int, cas: int) -> Newest | None:
        """Return the newest change of a key, as VbucketChanges.find does, before the key is stored with this cas.

        The document may be locked.
        """
        if cas:
            return self.locks.claim(self.expiry.find_unexpired(key, nbytes), key, cas)
        newest = self.changes.find(key, nbytes)
        if key in self._locked:
            self.locks.check_decided(key)
            if newest is not None and is_document(newest) and not self.expiry.is_expired(newest):
                self.locks.check_cas(key, cas, newest[2][CAS])
            self.locks.forget(key)
        return newest

    def _find_writable(self, key: bytes, cas: int) -> Item | None:
        """Return the document, None if there is none. Raises as DocumentLocks.check_cas does."""
        item = self.get(key)
        if item is not None and (cas or self._locked):
            self.locks.check_cas(key, cas, item.cas)
        return item

    def _rewrite(self, key: bytes, item: Item) -> Stored:
        """Store a changed copy of a document that `_find_writable` has returned.

        Returns:
            The document's cas and seqno.
        """
        old = self.changes.find(key, _MUTATION_BYTES + len(key) + len(item.value))
        if self._locked:
            self.locks.forget(key)
        return self.writer.write_document(
            self.changes, old, key, item.value, flags=item.flags, expiry=item.expiry, datatype=item.datatype
        )

    def _keep_attributes(
        self, old: Newest, key: bytes, value: Buffer, datatype: int
    ) -> tuple[Newest | None, bytes, Buffer, int]:
        """Return the newest version, the extended attributes to keep, the new value and its datatype."""
        if not is_document(old) or self.expiry.is_expired(old):
            return old, b"", value, datatype
        front, value, datatype = keep_attributes(read_value(old), old[2][DATATYPE], value, datatype)
        return self.changes.find(key, _MUTATION_BYTES + len(key) + len(front) + len(value)), front, value, datatype
