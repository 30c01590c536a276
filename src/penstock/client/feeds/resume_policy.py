"""What a rollback, an unknown branch, a flush, a purge and an end mean for the next stream request of a vbucket.

Pure decisions: a position and the producer's answer go in, the place to go on from comes out. A feed asks the policy of
each stream, and Spark's plans name the policy that their tasks read by. There is no other copy of these rules.

    following consumer  FollowHistory  goes back to what both histories share, and emits a rollback row
    a planned batch     PinnedBranch   reads one branch, and gives up on another one: the next plan rolls back
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.feeds.stream_position import Position, leave_branch, reconcile_position, roll_back_position
from penstock.store.history.failover_log import FailoverLog

__all__ = ["FOLLOW", "FollowHistory", "PinnedBranch", "ResumePolicy", "Resumption", "is_complete_end"]


class Resumption(NamedTuple):
    """Where the next stream request goes on.

    Attributes:
        position: the stream goes on behind it.
        requested_seqno: the seqno that the histories have in common, for the rollback row; None: nothing is void.
        received: changes up to here were handed out before. They come again, and are left out.
    """

    position: Position
    requested_seqno: int | None = None
    received: int = 0


class ResumePolicy(ABC):
    """Decides where a stream goes on. None as a decision: give the stream up, without a row and without an error."""

    @abstractmethod
    def accepts(self, log: FailoverLog) -> bool:
        """Tell whether a stream may be read that the producer of this failover log has accepted."""

    @abstractmethod
    def decide_on_log(self, position: Position, log: FailoverLog) -> Resumption | None:
        """Decide in front of a request, in a dialect whose requests cannot say in which snapshot they begin."""

    @abstractmethod
    def decide_on_new_log(self, position: Position) -> Resumption | None:
        """Decide after the failover log changed while the stream was asked for."""

    @abstractmethod
    def decide_on_rollback(self, position: Position, requested_seqno: int) -> Resumption | None:
        """Decide after the producer answered ROLLBACK to a stream from `position`."""

    @abstractmethod
    def decide_on_unknown_branch(self, position: Position) -> Resumption | None:
        """Decide after the producer answered that it does not have the position's branch."""

    @abstractmethod
    def decide_on_flush(self, position: Position) -> Resumption | None:
        """Decide after the bucket lost all of its documents, so that its seqnos begin at 1 again."""


class FollowHistory(ResumePolicy):
    """Goes on with whatever history the producer has: back to the newest complete snapshot that both have."""

    def accepts(self, log: FailoverLog) -> bool:
        return True

    def decide_on_log(self, position: Position, log: FailoverLog) -> Resumption:
        return Resumption(*reconcile_position(position, log))

    def decide_on_new_log(self, position: Position) -> Resumption:
        return Resumption(position)

    def decide_on_rollback(self, position: Position, requested_seqno: int) -> Resumption:
        return Resumption(roll_back_position(position, requested_seqno), requested_seqno)

    def decide_on_unknown_branch(self, position: Position) -> Resumption:
        back = leave_branch(position)
        return Resumption(back, back.seqno)

    def decide_on_flush(self, position: Position) -> Resumption:
        return Resumption(Position(history=position.history), 0)


@dataclass(frozen=True, slots=True)
class PinnedBranch(ResumePolicy):
    """Reads one branch of the history and nothing else.

    Below the purge seqno a producer serves only streams from 0. There a rollback does not mean another history, and the
    stream begins at 0 again.

    Attributes:
        vbuuid: the branch, which has to be the producer's newest one.
        purge_seqno: the producer's when the read was planned; 0 if the read does not begin at 0.
    """

    vbuuid: int
    purge_seqno: int = 0

    def accepts(self, log: FailoverLog) -> bool:
        return log[0].vbuuid == self.vbuuid

    def decide_on_log(self, position: Position, log: FailoverLog) -> Resumption | None:
        shared = reconcile_position(position, log)
        return Resumption(position) if self.accepts(log) and shared.requested_seqno is None else None

    def decide_on_new_log(self, position: Position) -> None:
        return None

    def decide_on_rollback(self, position: Position, requested_seqno: int) -> Resumption | None:
        return self._from_zero(position)

    def decide_on_unknown_branch(self, position: Position) -> Resumption | None:
        return self._from_zero(position)

    def decide_on_flush(self, position: Position) -> None:
        return None

    def _from_zero(self, position: Position) -> Resumption | None:
        if position.seqno < self.purge_seqno:
            return Resumption(Position(history=position.history), received=position.seqno)
        return None


FOLLOW = FollowHistory()


def is_complete_end(position: Position, end_seqno: int, *, is_whole: bool) -> bool:
    """Tell whether a stream that ended has sent all up to its end seqno.

    Args:
        position: behind the last change.
        is_whole: whether the end of a snapshot came last, in a dialect that marks it.
    """
    return position.seqno >= end_seqno or position.is_complete or is_whole
