"""Locks on documents. They are in memory only; the log knows no more of them than each cas, so that it is given once.

GET_LOCKED gives a document another cas without a change: no seqno, nothing to stream. Who has that cas may change the
document, which ends the lock, or end it alone. As on kv_engine's servers the document keeps this cas when its lock is
over, until it changes, so that the holder of a lock that was over too soon can still tell whether it did; whoever knew
the cas of the change that is in the log has to read again. Where only the log counts it is the log's: in streams, in
conflict resolution, after a restart, and once the vbucket has changed its state or gone back.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LOCKED_CAS", "Lock", "lock_seconds"]

LOCKED_CAS = 2**64 - 1
"""What readers are shown as the cas of a locked document."""

_DEFAULT_SECONDS = 15
_LONGEST_SECONDS = 30


class Lock(NamedTuple):
    """cas: the document's until it changes. until: when the lock ends, by the monotonic clock; 0: it was ended."""

    cas: int
    until: int


def lock_seconds(asked: int) -> int:
    """Return for how long a document is locked; 0, and more than there may be, means the default."""
    return asked if 0 < asked <= _LONGEST_SECONDS else _DEFAULT_SECONDS
