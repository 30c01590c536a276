"""Locks on documents. They are in memory only; the log knows no more of them than each cas, so that it is given once.

GET_LOCKED gives a document another cas without a change: no seqno, nothing to stream. The client with that cas may
change the document, which ends the lock, or end it alone. As on kv_engine's servers the document keeps this cas when
its lock is over, until it changes, so that the holder of a lock that was over too soon can still tell whether it did;
a client that knew the cas of the change that is in the log has to read again. Where only the log counts it is the
log's: in streams, in conflict resolution, after a restart, and once the vbucket has changed its state or gone back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import KeyExists, KeyNotFound, Locked, NotLocked
from penstock.store.history.vbucket_changes import CAS, OPCODE, Newest
from penstock.wire.codec.opcodes import Opcode

__all__ = ["LOCKED_CAS", "DocumentLocks", "Lock", "lock_seconds"]

LOCKED_CAS = 2**64 - 1
"""What readers are shown as the cas of a locked document."""

_DEFAULT_SECONDS = 15
_LONGEST_SECONDS = 30
_NANOSECONDS = 10**9
_MUTATION = int(Opcode.DCP_MUTATION)


class Lock(NamedTuple):
    """cas: the document's until it changes. until: when the lock ends, by the monotonic clock; 0: it was ended."""

    cas: int
    until: int


class DocumentLocks:
    """The locks on documents of one vbucket, those that are over included until their document changes.

    Attributes:
        held: the locks by key. It stays the same dict, so that a command may ask it whether there is any lock.
        monotonic: nanoseconds that never go back.
    """

    __slots__ = ("_vbucket", "held", "monotonic")

    def __init__(self, vbucket: int, monotonic: Callable[[], int]) -> None:
        self._vbucket = vbucket
        self.held: dict[bytes, Lock] = {}
        self.monotonic = monotonic

    def lock(self, key: bytes, cas: int, seconds: int) -> None:
        """Lock a document, which gets this cas."""
        self.held[key] = Lock(cas, self.monotonic() + seconds * _NANOSECONDS)

    def unlock(self, key: bytes, cas: int) -> None:
        """End a lock; the document keeps its cas. Raises NotLocked, and Locked for another cas than the lock's."""
        lock = self.held.get(key)
        if lock is None or self.monotonic() >= lock.until:
            raise NotLocked(vbucket=self._vbucket)
        if cas != lock.cas:
            raise Locked(vbucket=self._vbucket)
        self.held[key] = Lock(cas, 0)

    def shown_cas(self, key: bytes, logged: int) -> int:
        """Return the cas that readers are shown of a document that has this one in the log."""
        lock = self.held.get(key)
        if lock is None:
            return logged
        return LOCKED_CAS if self.monotonic() < lock.until else lock.cas

    def check(self, key: bytes, cas: int, logged: int) -> None:
        """Raise Locked or KeyExists unless a document may change that the log has with one cas and a command another.

        0 is the cas of a command for which any will do.
        """
        if self.held and (lock := self.held.get(key)) is not None:
            if cas != lock.cas and self.monotonic() < lock.until:
                raise Locked(vbucket=self._vbucket)
            logged = lock.cas
        if cas and cas != logged:
            raise KeyExists(vbucket=self._vbucket)

    def claim(self, newest: Newest | None, key: bytes, cas: int) -> Newest:
        """Return a document that is about to change; its lock ends. Raises KeyNotFound for none, and as `check`."""
        if newest is None or newest[2][OPCODE] != _MUTATION:
            raise KeyNotFound(vbucket=self._vbucket)
        self.check(key, cas, newest[2][CAS])
        if self.held:
            self.forget(key)
        return newest

    def forget(self, key: bytes) -> None:
        """Forget the lock on a document that has changed."""
        self.held.pop(key, None)

    def clear(self) -> None:
        """Forget all locks."""
        self.held.clear()


def lock_seconds(asked: int) -> int:
    """Return for how long a document is locked; 0, and more than there may be, means the default."""
    return asked if 0 < asked <= _LONGEST_SECONDS else _DEFAULT_SECONDS
