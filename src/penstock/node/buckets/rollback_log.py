"""The rollbacks that a bucket's producers have demanded last."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from penstock.store.history.failover_log import FailoverLog

MAX_ROLLBACKS: Final = 50
"""Rollbacks that are kept, the newest ones. A failover makes many at once, which look alike."""


class DemandedRollback(NamedTuple):
    """A rollback that a producer demanded, and the state of the vbucket on which the decision rests.

    Attributes:
        at: seconds since the epoch.
        consumer: name of the connection.
        dialect: name of its dialect.
        user: name of its user; None without a login.
        vbucket: the vbucket.
        vbuuid: the branch on which the consumer was.
        start_seqno: the last seqno that it had.
        snap_start: start of the snapshot of that seqno.
        snap_end: end of that snapshot.
        seqno: the seqno to roll back to.
        high_seqno: the vbucket's highest seqno.
        purge_seqno: the highest seqno of a purged tombstone.
        failover_log: the vbucket's branches, the newest one first.
    """

    at: float
    consumer: str
    dialect: str
    user: str | None
    vbucket: int
    vbuuid: int
    start_seqno: int
    snap_start: int
    snap_end: int
    seqno: int
    high_seqno: int
    purge_seqno: int
    failover_log: FailoverLog


class RollbackLog:
    """The newest rollbacks, and the number of all since the bucket was opened.

    Attributes:
        total: number of all rollbacks.
    """

    def __init__(self) -> None:
        self.total = 0
        self._newest: deque[DemandedRollback] = deque(maxlen=MAX_ROLLBACKS)

    def add(self, rollback: DemandedRollback) -> None:
        """Add a rollback. The oldest one makes room for it."""
        self.total += 1
        self._newest.append(rollback)

    def list_newest(self) -> list[DemandedRollback]:
        """Return the kept rollbacks, the newest one first."""
        return list(reversed(self._newest))
