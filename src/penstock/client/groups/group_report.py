"""The members of a group, for people: their leases and shares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.client.groups.group_documents import GroupBucket, GroupKeys
from penstock.client.groups.group_member import read_beat
from penstock.client.groups.group_state import decode_state


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemberReport:
    """A member of a group.

    Attributes:
        name: the name: host, process and a random part.
        lease_seconds: other members take over its share after this time without a beat.
        beat: the time of its last beat by the clock of the server; None if it has no lease.
        vbuckets: the vbuckets that it owns.
        leaving: vbuckets of these that it shall give to another member.
        coming: vbuckets that it gets from other members.
    """

    name: str
    lease_seconds: float
    beat: datetime | None
    vbuckets: tuple[int, ...]
    leaving: tuple[int, ...]
    coming: tuple[int, ...]


async def read_members(bucket: GroupBucket, group: str) -> list[GroupMemberReport]:
    """Return the members of a group in the order in which they joined; none without a group.

    Raises:
        PositionsUnreadable: the documents of the group have another version.
    """
    keys = GroupKeys(group)
    found = (await bucket.attributes.read_many([keys.state]))[0]
    if found is None:
        return []
    state = decode_state(found.value, bucket.vbuckets, keys.state)
    leases = await bucket.attributes.read_many([*map(keys.make_member_key, state.members)])
    reports = []
    for name, lease in zip(state.members, leases, strict=True):
        beat, shares = read_beat(lease, 0.0, keys.state), [*enumerate(state.shares)]
        owned = {vbucket: share.next_owner for vbucket, share in shares if share.owner == name}
        reports.append(
            GroupMemberReport(
                name=name,
                lease_seconds=beat.lease_seconds,
                beat=datetime.fromtimestamp(beat.cas // 10**9, UTC) if beat.cas else None,
                vbuckets=tuple(owned),
                leaving=tuple(vbucket for vbucket, following in owned.items() if following),
                coming=tuple(vbucket for vbucket, share in shares if share.next_owner == name),
            )
        )
    return reports
