"""Locks on documents. They are in memory only; the log has only a note of each lock's cas, so that it is used once.

GET_LOCKED gives a document another cas without a change: no seqno, nothing to stream. The client with that cas may
change the document, which ends the lock, or end the lock alone.

As in kv_engine, the document keeps this cas after the lock's end, until it changes. So the holder of a lock that ended
too soon can still change the document, unless another client has. A client with the cas in the log has to read again.
The log's cas counts in streams, in conflict resolution, after a restart, and after a change of state or a rollback.

An undecided synchronous write stands among the locks too: it lets no other client change the document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import KeyExists, KeyNotFound, Locked, NotLocked, StatusError, SyncWriteInProgress
from penstock.store.history.vbucket_changes import CAS, OPCODE, Newest
from penstock.store.history.vbucket_prepares import VbucketPrepares
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status

LOCKED_CAS = 2**64 - 1
"""The cas that readers see of a locked document."""

_DEFAULT_SECONDS = 15
_LONGEST_SECONDS = 30
_NANOSECONDS = 10**9
_MUTATION = int(Opcode.DCP_MUTATION)


class Lock(NamedTuple):
    """A lock on a document.

    Attributes:
        cas: the document's cas until it changes.
        until: when the lock ends, by the monotonic clock in ns; 0: it was ended.
    """

    cas: int
    until: int


_PREPARED = Lock(0, 0)
"""Instead of a lock: a synchronous write of the document is undecided."""

_RECOMMITTED = Lock(0, -1)
"""As _PREPARED. Another node, or this node before a restart, may have committed the write already."""


class DocumentLocks:
    """The locks on documents of one vbucket. Ended locks stay until their document changes.

    Attributes:
        held: the locks by key. It is always the same dict, so that a command may keep a reference to it.
        monotonic: returns nanoseconds that never go back.
    """

    __slots__ = ("_prepares", "_vbucket", "held", "monotonic")

    def __init__(self, vbucket: int, monotonic: Callable[[], int], prepares: VbucketPrepares) -> None:
        self._vbucket = vbucket
        self._prepares = prepares
        self.held: dict[bytes, Lock] = {}
        self.monotonic = monotonic
        prepares.on_begin = self._block
        prepares.on_recover = self._block_readers
        prepares.on_end = self.forget

    def lock(self, key: bytes, cas: int, seconds: int) -> None:
        """Lock a document for some seconds, and give it this cas."""
        self.held[key] = Lock(cas, self.monotonic() + seconds * _NANOSECONDS)

    def unlock(self, key: bytes, cas: int) -> None:
        """End a lock; the document keeps its cas.

        Raises:
            NotLocked: the document is not locked.
            Locked: the lock has another cas.
        """
        self.check_decided(key)
        lock = self.held.get(key)
        if lock is None or self.monotonic() >= lock.until:
            raise NotLocked(vbucket=self._vbucket)
        if cas != lock.cas:
            raise Locked(vbucket=self._vbucket)
        self.held[key] = Lock(cas, 0)

    def get_shown_cas(self, key: bytes, logged: int) -> int:
        """Return the cas that readers see of a document with the cas `logged` in the log."""
        lock = self.held.get(key)
        if lock is None or lock is _PREPARED or lock is _RECOMMITTED:
            return logged
        return LOCKED_CAS if self.monotonic() < lock.until else lock.cas

    def check_cas(self, key: bytes, cas: int, logged: int) -> None:
        """Raise unless a command with this cas may change a document.

        Args:
            key: the document's key.
            cas: the command's cas, 0 for any.
            logged: the document's cas in the log.

        Raises:
            Locked: another client has locked the document.
            SyncWriteInProgress: a synchronous write of the document is undecided.
            KeyExists: the document has another cas.
        """
        if self.held and (lock := self.held.get(key)) is not None:
            self.check_decided(key)
            if cas != lock.cas and self.monotonic() < lock.until:
                raise Locked(vbucket=self._vbucket)
            logged = lock.cas
        if cas and cas != logged:
            raise KeyExists(vbucket=self._vbucket)

    def claim(self, newest: Newest | None, key: bytes, cas: int) -> Newest:
        """Return a document that is about to change; its lock ends.

        Raises:
            KeyNotFound: there is no document. Other errors: as `check_cas`.
        """
        if self.held:
            self.check_decided(key)
        if newest is None or newest[2][OPCODE] != _MUTATION:
            raise KeyNotFound(vbucket=self._vbucket)
        self.check_cas(key, cas, newest[2][CAS])
        if self.held:
            self.forget(key)
        return newest

    def forget(self, key: bytes) -> None:
        """Forget the lock on a document that has changed."""
        self.held.pop(key, None)

    def clear(self) -> None:
        """Forget all locks. Writes that are undecided now may have been committed by another node."""
        self.held.clear()
        self.held.update(dict.fromkeys(self._prepares.pending, _RECOMMITTED))

    # Synchronous writes

    def is_blocked(self, key: bytes) -> bool:
        """Return whether a synchronous write of the document is undecided."""
        lock = self.held.get(key)
        return lock is _PREPARED or lock is _RECOMMITTED

    def check_decided(self, key: bytes) -> None:
        """Check that a client may change a document.

        Raises:
            SyncWriteInProgress: a synchronous write of the document is undecided.
        """
        if self.held and self.is_blocked(key):
            raise SyncWriteInProgress(vbucket=self._vbucket)

    def check_readable(self, key: bytes) -> None:
        """Check that a client may read a document.

        Raises:
            StatusError: readers cannot know whether a synchronous write of the document has been committed.
        """
        if self.held.get(key) is _RECOMMITTED:
            raise StatusError(status=Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS, vbucket=self._vbucket)

    def _block(self, key: bytes) -> None:
        self.held[key] = _PREPARED

    def _block_readers(self, key: bytes) -> None:
        self.held[key] = _RECOMMITTED


def limit_lock_seconds(seconds: int) -> int:
    """Return how long a document is locked. 0, or more than allowed, means the default."""
    return seconds if 0 < seconds <= _LONGEST_SECONDS else _DEFAULT_SECONDS
