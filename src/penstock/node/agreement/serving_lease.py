"""Keeps the lease of a node: the permission to serve documents."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from penstock.node.agreement.lease import (
    REASONS,
    Lease,
    LeaseStage,
    apply_revision,
    find_stage,
    learn_revision,
    note_vote,
    receive_grant,
)
from penstock.node.agreement.revisions import Revision

__all__ = ["ServingLease"]


class ServingLease:
    """The lease of this node. A node without a cluster needs none.

    Args:
        clock: returns seconds of a clock that never goes back, and that runs while the machine sleeps.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._lease: Lease | None = None
        self._valid_until = inf

    def begin(self, own: str, seconds: float, revision: Revision, *, has_voted: bool) -> None:
        """Become a member.

        Args:
            own: id of the member.
            seconds: duration of a lease.
            revision: the newest revision that the node knows.
            has_voted: the node has voted for a successor of the revision.
        """
        self._change(learn_revision(Lease(own=own, seconds=seconds), revision, self.clock()))
        if has_voted:
            self.note_vote()

    def end(self) -> None:
        """Be no member any more."""
        self._lease, self._valid_until = None, inf

    def is_valid(self) -> bool:
        """Return whether the node may serve documents now."""
        return self.clock() < self._valid_until

    @property
    def stage(self) -> LeaseStage:
        """The stage of the lease."""
        return LeaseStage.ALONE if self._lease is None else find_stage(self._lease, self.clock())

    @property
    def reason(self) -> str:
        """Why the node serves no documents; empty: it serves them."""
        return REASONS[self.stage]

    @property
    def seconds_left(self) -> float:
        """Seconds until the lease ends; infinite without a cluster."""
        return inf if self._lease is None else max(0.0, self._lease.expires_at - self.clock())

    @property
    def seconds_lapsed(self) -> float:
        """Seconds since the lease ended; infinite if there was none since the start, 0 without a cluster."""
        return 0.0 if self._lease is None else max(0.0, self.clock() - self._lease.expires_at)

    def receive_grant(self, member: str, sent_at: float) -> None:
        """Use the grant of a member for a request.

        Args:
            member: id of the member.
            sent_at: when the request was sent.
        """
        if self._lease is not None:
            self._change(receive_grant(self._lease, member, sent_at, self.clock()))

    def note_vote(self) -> None:
        """Note that the node votes for a successor of the newest revision. Call it before the vote is sent."""
        if self._lease is not None:
            self._change(note_vote(self._lease))

    def learn(self, revision: Revision) -> None:
        """Use the newest revision."""
        if self._lease is not None:
            self._change(learn_revision(self._lease, revision, self.clock()))

    def apply(self, number: int) -> None:
        """Note that the node uses a revision."""
        if self._lease is not None:
            self._change(apply_revision(self._lease, number))

    def _change(self, lease: Lease) -> None:
        self._lease = lease
        self._valid_until = lease.expires_at if lease.applied >= lease.needed else -inf
