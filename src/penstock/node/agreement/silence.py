"""How long a member has not renewed the leases of the other members. Pure.

A failover is safe if a majority has renewed no lease of the lost member for longer than a lease lasts. The majority
must be one of the members that granted that lease. So a change of the members begins the silence of all of them again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

__all__ = ["Silence", "change_members", "measure_silence", "note_renewal"]


@dataclass(frozen=True, slots=True)
class Silence:
    """The renewals of a member.

    Attributes:
        since: the start of the member, or the last change of the members.
        members: the members at that time.
        renewed_at: member -> when its lease was renewed.
    """

    since: float
    members: tuple[str, ...] = ()
    renewed_at: Mapping[str, float] = field(default_factory=dict)


def note_renewal(silence: Silence, member: str, now: float) -> Silence:
    """Return the silence after the lease of a member was renewed. Other nodes are ignored."""
    if member not in silence.members:
        return silence
    return replace(silence, renewed_at={**silence.renewed_at, member: now})


def change_members(silence: Silence, members: tuple[str, ...], now: float) -> Silence:
    """Return the silence after a revision with these members."""
    return silence if members == silence.members else Silence(now, members)


def measure_silence(silence: Silence, members: Collection[str], now: float) -> Mapping[str, float]:
    """Return the seconds since the leases of these members were renewed."""
    return {member: now - silence.renewed_at.get(member, silence.since) for member in members}
