"""Decisions about a vbucket's next stream request after a rollback, an unknown branch, a flush, a purge or an end.

The decisions are pure functions: from a position and the producer's answer they return the point to continue from. A
feed asks the policy of each stream, and Spark's plans name the policy of their tasks. No other code has these rules.

- FollowHistory, for a following consumer: returns to the common part of both histories, and emits a rollback row.
- PinnedBranch, for a planned batch: reads one branch, and gives up on any other branch. The next plan rolls back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from penstock.client.feeds.stream_position import Position, leave_branch, reconcile_position, roll_back_position
from penstock.errors import RolledBack
from penstock.store.history.failover_log import FailoverLog


class Resumption(NamedTuple):
    """The point from which the next stream request continues.

    Attributes:
        position: the stream continues after it.
        requested_seqno: the seqno up to which the histories agree, for the rollback row; None: no change is void.
        received: changes up to this seqno were delivered before. They arrive again, and are dropped.
    """

    position: Position
    requested_seqno: int | None = None
    received: int = 0


class ResumePolicy(ABC):
    """Decides where a stream continues.

    The decision None gives the stream up, without a rollback row and without an error.
    """

    @abstractmethod
    def accepts(self, log: FailoverLog) -> bool:
        """Return whether an accepted stream may be read, given the failover log of its producer, newest entry first."""

    @abstractmethod
    def decide_on_log(self, position: Position, log: FailoverLog) -> Resumption | None:
        """Decide before a request, in a dialect whose requests cannot name the snapshot in which they begin."""

    @abstractmethod
    def decide_on_new_log(self, position: Position) -> Resumption | None:
        """Decide after the failover log changed during the stream request."""

    @abstractmethod
    def decide_on_rollback(self, position: Position, requested_seqno: int) -> Resumption | None:
        """Decide after the producer answered ROLLBACK to a stream from `position`.

        Args:
            position: the position of the request.
            requested_seqno: the seqno in the answer.
        """

    @abstractmethod
    def decide_on_unknown_branch(self, position: Position) -> Resumption | None:
        """Decide after the producer answered that it does not have the branch of the position."""

    @abstractmethod
    def decide_on_flush(self, position: Position) -> Resumption | None:
        """Decide after a flush: the bucket lost all its documents, and its seqnos start at 1 again."""


class FollowHistory(ResumePolicy):
    """Continues with any history of the producer, from the newest complete snapshot that both sides have."""

    def accepts(self, log: FailoverLog) -> bool:
        """Return True: the stream may have any history."""
        return True

    def decide_on_log(self, position: Position, log: FailoverLog) -> Resumption:
        """Return the position, or the newest complete snapshot that the producer of the log has too."""
        return Resumption(*reconcile_position(position, log))

    def decide_on_new_log(self, position: Position) -> Resumption:
        """Return the unchanged position. The next request compares it with the new log."""
        return Resumption(position)

    def decide_on_rollback(self, position: Position, requested_seqno: int) -> Resumption:
        """Return the newest complete snapshot that is not above the seqno in the answer."""
        return Resumption(roll_back_position(position, requested_seqno), requested_seqno)

    def decide_on_unknown_branch(self, position: Position) -> Resumption:
        """Return the newest complete snapshot of another branch."""
        back = leave_branch(position)
        return Resumption(back, back.seqno)

    def decide_on_flush(self, position: Position) -> Resumption:
        """Return seqno 0, with a rollback row that makes all changes void."""
        return Resumption(Position(history=position.history), 0)


@dataclass(frozen=True, slots=True)
class PinnedBranch(ResumePolicy):
    """Reads one branch of the history and nothing else.

    Below the purge seqno a producer serves only streams from 0. A rollback there does not mean another history, so the
    stream restarts from 0.

    Attributes:
        vbuuid: the branch, which must be the producer's newest branch.
        purge_seqno: the producer's purge seqno when the read was planned; 0 if the read does not start at 0.
    """

    vbuuid: int
    purge_seqno: int = 0

    def accepts(self, log: FailoverLog) -> bool:
        """Return whether the branch is the newest branch in the log."""
        return log[0].vbuuid == self.vbuuid

    def decide_on_log(self, position: Position, log: FailoverLog) -> Resumption | None:
        """Return the unchanged position; None if the log has a newer branch or requires a rollback."""
        shared = reconcile_position(position, log)
        return Resumption(position) if self.accepts(log) and shared.requested_seqno is None else None

    def decide_on_new_log(self, position: Position) -> None:
        """Give the stream up: a changed log means another branch."""
        return None

    def decide_on_rollback(self, position: Position, requested_seqno: int) -> Resumption | None:
        """Return seqno 0 if the position is below the purge seqno, else None."""
        return self._from_zero(position)

    def decide_on_unknown_branch(self, position: Position) -> Resumption | None:
        """Return seqno 0 if the position is below the purge seqno, else None."""
        return self._from_zero(position)

    def decide_on_flush(self, position: Position) -> None:
        """Give the stream up: the planned changes no longer exist."""
        return None

    def _from_zero(self, position: Position) -> Resumption | None:
        if position.seqno < self.purge_seqno:
            return Resumption(Position(history=position.history), received=position.seqno)
        return None


class RestartFromZero(FollowHistory):
    """Reads a vbucket from seqno 0 after a rollback, as a program needs it that cannot undo single changes."""

    def decide_on_log(self, position: Position, log: FailoverLog) -> Resumption:
        """Return the position, or seqno 0 if the producer of the log requires a rollback."""
        found = super().decide_on_log(position, log)
        return found if found.requested_seqno is None else self.decide_on_flush(position)

    def decide_on_rollback(self, position: Position, requested_seqno: int) -> Resumption:
        """Return seqno 0, with a rollback row that makes all changes void."""
        return self.decide_on_flush(position)

    def decide_on_unknown_branch(self, position: Position) -> Resumption:
        """Return seqno 0, with a rollback row that makes all changes void."""
        return self.decide_on_flush(position)


class FailOnRollback(FollowHistory):
    """Raises RolledBack instead of a rollback."""

    def decide_on_log(self, position: Position, log: FailoverLog) -> Resumption:
        """Return the position. Raises RolledBack if the producer of the log requires a rollback."""
        return self._check(position, super().decide_on_log(position, log))

    def decide_on_rollback(self, position: Position, requested_seqno: int) -> Resumption:
        """Raise RolledBack."""
        return self._check(position, super().decide_on_rollback(position, requested_seqno))

    def decide_on_unknown_branch(self, position: Position) -> Resumption:
        """Raise RolledBack."""
        return self._check(position, super().decide_on_unknown_branch(position))

    def decide_on_flush(self, position: Position) -> Resumption:
        """Raise RolledBack."""
        return self._check(position, super().decide_on_flush(position))

    @staticmethod
    def _check(position: Position, found: Resumption) -> Resumption:
        if found.requested_seqno is not None:
            raise RolledBack(position.seqno, found.requested_seqno)
        return found


FOLLOW = FollowHistory()


class RollbackPolicy(StrEnum):
    """The handling of a rollback in a change stream.

    Attributes:
        DELIVER: the stream delivers the rollback in order with the changes, and goes on from the common point.
        RESUME: the stream goes on from the common point, without a row.
        FAIL: the stream raises RolledBack.
        RESTART: the stream delivers a rollback to seqno 0, and reads the vbucket again from the beginning.
    """

    DELIVER = "deliver"
    RESUME = "resume"
    FAIL = "fail"
    RESTART = "restart"


RESUME_POLICIES: Mapping[RollbackPolicy, ResumePolicy] = {
    RollbackPolicy.DELIVER: FOLLOW,
    RollbackPolicy.RESUME: FOLLOW,
    RollbackPolicy.FAIL: FailOnRollback(),
    RollbackPolicy.RESTART: RestartFromZero(),
}
"""Handling of a rollback -> the policy of the streams."""


def is_complete_end(position: Position, end_seqno: int, *, is_whole: bool) -> bool:
    """Return whether a stream that ended has sent all changes up to its end seqno.

    Args:
        position: the position after the last change.
        end_seqno: the last requested seqno.
        is_whole: whether the end of a snapshot arrived last, in a dialect that marks it.
    """
    return position.seqno >= end_seqno or position.is_complete or is_whole
