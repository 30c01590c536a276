"""Expired documents: they no longer count, and become tombstones when a command or the pager finds them."""

from __future__ import annotations

from penstock.store.documents.document_locks import DocumentLocks
from penstock.store.documents.document_writer import DocumentWriter
from penstock.store.documents.item import is_document
from penstock.store.history.tombstone import TOMBSTONE_BYTES
from penstock.store.history.vbucket_changes import OPCODE, Newest
from penstock.store.history.vbucket_history import VbucketHistory
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation, make_head_struct

_MUTATION = int(Opcode.DCP_MUTATION)
_NANOSECONDS = 10**9

_read_expiry = make_head_struct(Mutation, "expiry").unpack_from


class DocumentExpiry:
    """Deletes the expired documents of a vbucket.

    Attributes:
        expired_count: how many documents expired here since the bucket was opened.
    """

    __slots__ = ("_changes", "_history", "_locks", "_writer", "expired_count")

    def __init__(self, history: VbucketHistory, writer: DocumentWriter, locks: DocumentLocks) -> None:
        self._history = history
        self._changes = history.changes
        self._writer = writer
        self._locks = locks
        self.expired_count = 0

    def is_expired(self, newest: Newest | None) -> bool:
        """Return whether this is a document that has expired."""
        if newest is None or newest[2][OPCODE] != _MUTATION:
            return False
        rows, row, _ = newest
        (expiry,) = _read_expiry(rows.buffer, rows.offsets_at[row])
        return bool(0 < expiry <= self._changes.now() // _NANOSECONDS)

    def expire(self, key: bytes, nbytes: int = 0) -> None:
        """Replace an expired document by a tombstone, if the vbucket is active. A replica waits for its source.

        A document with an undecided synchronous write stays.

        Args:
            key: the document's key.
            nbytes: bytes that are written next, so that there is room for both or nothing is written.
        """
        if self._history.state is VbucketState.ACTIVE and not self._locks.is_blocked(key):
            changes = self._changes
            newest = changes.find(key, TOMBSTONE_BYTES + len(key) + nbytes, frees=True)
            assert newest is not None
            self._writer.write_tombstone(changes, newest, key, Event.EXPIRATION, nbytes=nbytes)
            self.expired_count += 1
            self._locks.forget(key)
            changes.changed.add(changes.id)

    def find_unexpired(self, key: bytes, nbytes: int, frees: bool = False) -> Newest | None:
        """Return the newest change of a key, after an expired document has become a tombstone.

        The arguments are those of VbucketChanges.find.
        """
        newest = self._changes.find(key, nbytes, frees)
        if self.is_expired(newest):
            self.expire(key, nbytes)
            return self._changes.find(key, nbytes, frees)
        return newest

    def get_preserved_expiry(self, old: Newest | None, expiry: int) -> int:
        """Return the expiry of the present document; if there is none, the given expiry."""
        if old is None or not is_document(old) or self.is_expired(old):
            return expiry
        found: int = _read_expiry(old[0].buffer, old[0].offsets_at[old[1]])[0]
        return found
