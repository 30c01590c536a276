"""Locks on documents. They are in memory only; the log has only a note of each lock's cas, so that it is used once.

GET_LOCKED gives a document another cas without a change: no seqno, nothing to stream. The client with that cas may
change the document, which ends the lock, or end the lock alone.

As in kv_engine, the document keeps this cas after the lock's end, until it changes. So the holder of a lock that ended
too soon can still change the document, unless another client has. A client with the cas in the log has to read again.
The log's cas counts in streams, in conflict resolution, after a restart, and after a change of state or a rollback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import KeyExists, KeyNotFound, Locked, NotLocked
from penstock.store.history.vbucket_changes import CAS, OPCODE, Newest
from penstock.wire.codec.opcodes import Opcode

__all__ = ["LOCKED_CAS", "DocumentLocks", "Lock", "limit_lock_seconds"]

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


class DocumentLocks:
    """The locks on documents of one vbucket. Ended locks stay until their document changes.

    Attributes:
        held: the locks by key. It is always the same dict, so that a command may keep a reference to it.
        monotonic: returns nanoseconds that never go back.
    """

    __slots__ = ("_vbucket", "held", "monotonic")

    def __init__(self, vbucket: int, monotonic: Callable[[], int]) -> None:
        self._vbucket = vbucket
        self.held: dict[bytes, Lock] = {}
        self.monotonic = monotonic

    def lock(self, key: bytes, cas: int, seconds: int) -> None:
        """Lock a document for some seconds, and give it this cas."""
        self.held[key] = Lock(cas, self.monotonic() + seconds * _NANOSECONDS)

    def unlock(self, key: bytes, cas: int) -> None:
        """End a lock; the document keeps its cas.

        Raises:
            NotLocked: the document is not locked.
            Locked: the lock has another cas.
        """
        lock = self.held.get(key)
        if lock is None or self.monotonic() >= lock.until:
            raise NotLocked(vbucket=self._vbucket)
        if cas != lock.cas:
            raise Locked(vbucket=self._vbucket)
        self.held[key] = Lock(cas, 0)

    def get_shown_cas(self, key: bytes, logged: int) -> int:
        """Return the cas that readers see of a document with the cas `logged` in the log."""
        lock = self.held.get(key)
        if lock is None:
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
            KeyExists: the document has another cas.
        """
        if self.held and (lock := self.held.get(key)) is not None:
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
        """Forget all locks."""
        self.held.clear()


def limit_lock_seconds(seconds: int) -> int:
    """Return how long a document is locked. 0, or more than allowed, means the default."""
    return seconds if 0 < seconds <= _LONGEST_SECONDS else _DEFAULT_SECONDS
