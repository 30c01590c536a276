"""Documents whose time is over: they count as none, and become tombstones when a command or the pager meets them."""

from __future__ import annotations

from penstock.store.documents.document_locks import DocumentLocks
from penstock.store.documents.document_writer import DocumentWriter
from penstock.store.documents.item import is_document
from penstock.store.history.tombstone import TOMBSTONE_BYTES
from penstock.store.history.vbucket_changes import OPCODE, Newest
from penstock.store.history.vbucket_history import History
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation, head_struct

__all__ = ["DocumentExpiry"]

_MUTATION = int(Opcode.DCP_MUTATION)
_NANOSECONDS = 10**9

_read_expiry = head_struct(Mutation, "expiry").unpack_from


class DocumentExpiry:
    """Ends the documents of a vbucket whose time is over.

    Attributes:
        expired: how many documents have become tombstones here for that reason, since the bucket was opened.
    """

    __slots__ = ("_changes", "_history", "_locks", "_writer", "expired")

    def __init__(self, history: History, writer: DocumentWriter, locks: DocumentLocks) -> None:
        self._history = history
        self._changes = history.changes
        self._writer = writer
        self._locks = locks
        self.expired = 0

    def is_over(self, newest: Newest | None) -> bool:
        """Tell whether this is a document whose time is over."""
        if newest is None or newest[2][OPCODE] != _MUTATION:
            return False
        rows, row, _ = newest
        (expiry,) = _read_expiry(rows.buffer, rows.offsets_at[row])
        return bool(0 < expiry <= self._changes.now() // _NANOSECONDS)

    def expire(self, key: bytes, nbytes: int = 0) -> None:
        """Let a document whose time is over become a tombstone; in a copy of another vbucket, that one decides.

        nbytes: of what is to be written next, so that there is room for both or nothing is written.
        """
        if self._history.state is VbucketState.ACTIVE:
            changes = self._changes
            newest = changes.find(key, TOMBSTONE_BYTES + len(key) + nbytes, frees=True)
            assert newest is not None
            self._writer.bury(newest, key, Event.EXPIRATION, nbytes=nbytes)
            self.expired += 1
            self._locks.forget(key)
            changes.changed.add(changes.id)

    def find_present(self, key: bytes, nbytes: int, frees: bool = False) -> Newest | None:
        """As VbucketChanges.find, after a document that has expired has become a tombstone."""
        newest = self._changes.find(key, nbytes, frees)
        if self.is_over(newest):
            self.expire(key, nbytes)
            return self._changes.find(key, nbytes, frees)
        return newest

    def preserved(self, old: Newest | None, expiry: int) -> int:
        """Return when a document that is there expires; where there is none, what is to be for a new one."""
        if old is None or not is_document(old) or self.is_over(old):
            return expiry
        found: int = _read_expiry(old[0].buffer, old[0].offsets_at[old[1]])[0]
        return found
