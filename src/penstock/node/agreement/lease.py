"""The lease of a member: the time for which it may serve documents. Pure.

A member asks all members of its revision to renew its lease, itself included. Its lease lasts for some seconds after
the sending of the oldest request in the newest majority of answers. Another member that takes its vbuckets over needs a
majority too. Both majorities share a member, which has renewed nothing for longer than the lease: see `silence`.

Every majority of one or two members includes each of them. Such a member needs no lease while it has not voted: no
other revision can be decided without its vote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf

from penstock.errors import UsageError
from penstock.node.agreement.revisions import Revision, count_majority

__all__ = [
    "DEFAULT_LEASE_SECONDS",
    "REASONS",
    "Lease",
    "LeaseStage",
    "apply_revision",
    "check_lease",
    "find_stage",
    "learn_revision",
    "note_vote",
    "receive_grant",
]

DEFAULT_LEASE_SECONDS = 4.0

_SHORTEST, _LONGEST = 0.5, 600.0


def check_lease(seconds: float) -> None:
    """Raise UsageError for an invalid duration of leases."""
    if not _SHORTEST <= seconds <= _LONGEST:
        raise UsageError(f"a lease of {seconds:g} s: expected {_SHORTEST:g} to {_LONGEST:g}")


class LeaseStage(Enum):
    """The stages of a lease."""

    ALONE = "alone"
    HELD = "held"
    CATCHING_UP = "catching up"
    LAPSED = "lapsed"
    EXCLUDED = "excluded"


REASONS: Mapping[LeaseStage, str] = {
    LeaseStage.ALONE: "",
    LeaseStage.HELD: "",
    LeaseStage.CATCHING_UP: "this node does not use the newest document of the cluster yet",
    LeaseStage.LAPSED: "a majority of the cluster has not answered this node in time",
    LeaseStage.EXCLUDED: "this node was failed over, or is no member of its cluster",
}
"""Why a node serves no documents in a stage; empty: it serves them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The lease of a member.

    Attributes:
        own: id of the member.
        seconds: duration of the lease.
        members: members of the newest known revision.
        number: number of that revision.
        applied: number of the revision that the node uses.
        needed: the node serves once it uses this revision.
        has_voted: the member has voted for a successor of the newest known revision, which may be decided.
        granted: member -> when the newest request was sent that it has granted.
    """

    own: str
    seconds: float
    members: tuple[str, ...] = ()
    number: int = 0
    applied: int = 0
    needed: int = 0
    has_voted: bool = False
    granted: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        """Whether no other members can decide on a revision that this member does not use."""
        if self.own not in self.members or count_majority(self.members) < len(self.members):
            return False
        return len(self.members) == 1 or (not self.has_voted and self.applied >= self.number)

    @property
    def expires_at(self) -> float:
        """The end of the lease."""
        if self.own not in self.members:
            return -inf
        return inf if self.is_alone else self.granted_until

    @property
    def granted_until(self) -> float:
        """The end of the time for which a majority has renewed the lease."""
        newest = sorted((self.granted.get(member, -inf) for member in self.members), reverse=True)
        return newest[count_majority(self.members) - 1] + self.seconds


def find_stage(lease: Lease, now: float) -> LeaseStage:
    """Return the stage of a lease at a time."""
    if lease.own not in lease.members:
        return LeaseStage.EXCLUDED
    if now >= lease.expires_at:
        return LeaseStage.LAPSED
    if lease.applied < lease.needed:
        return LeaseStage.CATCHING_UP
    return LeaseStage.HELD if now < lease.granted_until else LeaseStage.ALONE


def receive_grant(lease: Lease, member: str, sent_at: float, now: float) -> Lease:
    """Return the lease after a member has granted a request.

    A lease that returns is of no use before the node uses the newest revision: the majority has no later one.

    Args:
        lease: the lease.
        member: the member.
        sent_at: when the request was sent.
        now: the time.
    """
    if sent_at <= lease.granted.get(member, -inf):
        return lease
    after = replace(lease, granted={**lease.granted, member: sent_at})
    has_lapsed = find_stage(lease, now) is LeaseStage.LAPSED
    return replace(after, needed=lease.number) if has_lapsed and now < after.expires_at else after


def learn_revision(lease: Lease, revision: Revision, now: float) -> Lease:
    """Return the lease after the member has learned a revision.

    A member of a cluster of one keeps its lease. No other member could have decided on the revision without it.

    Args:
        lease: the lease.
        revision: the newest revision.
        now: the time.
    """
    if revision.number <= lease.number:
        return lease
    granted = lease.granted if lease.own in lease.members else {}
    if lease.members == (lease.own,):
        granted = dict.fromkeys(revision.members, now)
    needed = lease.needed if find_stage(lease, now) in (LeaseStage.ALONE, LeaseStage.HELD) else revision.number
    return replace(
        lease, members=revision.members, number=revision.number, granted=granted, needed=needed, has_voted=False
    )


def note_vote(lease: Lease) -> Lease:
    """Return the lease once the member votes for a successor of the newest known revision."""
    return replace(lease, has_voted=True)


def apply_revision(lease: Lease, number: int) -> Lease:
    """Return the lease once the node uses a revision."""
    return replace(lease, applied=max(lease.applied, number))
