"""The state of a group: its members and their shares. Every change is a pure function; the state is a document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.json import decode

from penstock.client.connect.address import MAX_VBUCKETS
from penstock.client.topology.balance_plan import plan_balance
from penstock.errors import PositionsUnreadable

FORMAT_VERSION = 1


class Share(NamedTuple):
    """The share in one vbucket.

    Attributes:
        owner: the member that may commit; empty: no member.
        token: grows with each new owner. A member with a lower token may not claim the vbucket.
        next_owner: the member that gets the vbucket once the owner has stopped; empty: the owner keeps it.
    """

    owner: str = ""
    token: int = 0
    next_owner: str = ""


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state that the members agree on.

    Attributes:
        shares: by vbucket.
        members: in the order in which they joined.
        token: the newest token that was given to a share.
    """

    shares: tuple[Share, ...]
    members: tuple[str, ...] = ()
    token: int = 0

    def find_tokens(self, member: str) -> dict[int, int]:
        """Return the vbuckets that a member owns and keeps: vbucket -> token."""
        return {
            vbucket: share.token
            for vbucket, share in enumerate(self.shares)
            if share.owner == member and not share.next_owner
        }


def advance_state(
    state: GroupState,
    member: str,
    *,
    dead: Collection[str] = (),
    held: Collection[int] = (),
    refused: Mapping[int, int] | None = None,
) -> GroupState:
    """Return the next state, in the view of a member. Without a change it is the same state.

    Args:
        state: the newest state.
        member: the name of the member, which joins if it is not in the group.
        dead: members that have not been active during their lease.
        held: the vbuckets that the member reads. It hands over those that it should give away and does not hold.
        refused: vbucket -> the token in its position document, which refused the member's token.
    """
    members = tuple(each for each in state.members if each not in dead or each == member)
    if member not in members:
        members = (*members, member)
    token, shares = state.token, list(state.shares)
    for vbucket, share in enumerate(shares):
        if share.owner == member and share.next_owner and vbucket not in held:
            shares[vbucket] = share._replace(owner="")  # the plan below gives it to the next owner
        elif share.owner == member and share.token <= (refused or {}).get(vbucket, -1):
            # The group's document was removed, and its tokens began at 1 again.
            token = max(token, (refused or {})[vbucket])
            shares[vbucket] = Share(next_owner=member)
    return _plan_shares(GroupState(tuple(shares), members, token), state)


def leave_group(state: GroupState, member: str) -> GroupState:
    """Return the state without a member that has stopped reading."""
    members = tuple(each for each in state.members if each != member)
    return _plan_shares(replace(state, members=members), state)


def _plan_shares(state: GroupState, before: GroupState) -> GroupState:
    """Return a state in which all vbuckets have owners, balanced with the fewest moves.

    A vbucket without a living owner gets one with a new token. A vbucket of a living owner only gets a next owner.
    """
    token = state.token + 1
    planned = _plan_owners(state)
    shares = tuple(
        _assign_share(share, owner, token if share.owner not in state.members else share.token)
        for share, owner in zip(state.shares, planned, strict=True)
    )
    is_token_used = any(share.token == token for share in shares)
    new = replace(state, shares=shares, token=token if is_token_used else state.token)
    return before if new == before else new


def _assign_share(share: Share, planned: str, token: int) -> Share:
    if not planned:
        return Share(token=share.token)
    if token != share.token:
        return Share(planned, token)
    return Share(share.owner, token, "" if planned == share.owner else planned)


def _plan_owners(state: GroupState) -> list[str]:
    """Return the member that each vbucket goes to, by vbucket; empty if the group has no members."""
    members = state.members
    if not members:
        return [""] * len(state.shares)
    indexes = {member: index for index, member in enumerate(members)}
    owners = [indexes.get(each.next_owner, indexes.get(each.owner, -1)) for each in state.shares]
    counts = Counter(owners)
    for vbucket, owner in enumerate(owners):
        if owner < 0:
            owners[vbucket] = min(range(len(members)), key=lambda index: (counts[index], index))
            counts[owners[vbucket]] += 1
    for move in plan_balance(owners, len(members)):
        owners[move.vbucket] = move.target
    return [members[owner] for owner in owners]


_Index = Annotated[int, Meta(ge=-1)]


class _StoredGroup(Struct):
    """A group in JSON. A share is the index of its owner, its token and the index of its next owner; -1: none."""

    penstock_group: int
    members: list[str]
    token: Annotated[int, Meta(ge=0)]
    shares: Annotated[list[tuple[_Index, Annotated[int, Meta(ge=0)], _Index]], Meta(max_length=MAX_VBUCKETS)]


def encode_state(state: GroupState) -> bytes:
    """Return the state as JSON."""
    indexes = {"": -1} | {member: index for index, member in enumerate(state.members)}
    content = {
        "penstock_group": FORMAT_VERSION,
        "members": state.members,
        "token": state.token,
        "shares": [(indexes[each.owner], each.token, indexes[each.next_owner]) for each in state.shares],
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode_state(data: bytes, vbuckets: int, place: str) -> GroupState:
    """Return the state in JSON.

    Args:
        data: the JSON; empty for a new group.
        vbuckets: the number of vbuckets of the bucket.
        place: where the JSON was found, for errors.

    Raises:
        PositionsUnreadable: the data is no group of a bucket with so many vbuckets, or has another version.
    """
    if not data:
        return GroupState((Share(),) * vbuckets)
    try:
        stored = decode(data, type=_StoredGroup)
        if stored.penstock_group != FORMAT_VERSION or len(stored.shares) != vbuckets:
            found = f"version {stored.penstock_group} with {len(stored.shares)} vbuckets"
            raise PositionsUnreadable(f"{place}: found {found}, expected version {FORMAT_VERSION} with {vbuckets}")
        names: Sequence[str] = (*stored.members, "")  # the index -1 is the last name
        shares = tuple(Share(names[owner], token, names[following]) for owner, token, following in stored.shares)
    except (ValueError, IndexError, RecursionError) as error:  # the errors of msgspec are ValueErrors
        raise PositionsUnreadable(f"{place}: {error}; expected a group of version {FORMAT_VERSION}") from None
    return GroupState(shares, tuple(stored.members), stored.token)
