"""The positions of a group: one document for each vbucket, which only the last claimant can write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.client.feeds.stream_position import BEGINNING
from penstock.client.groups.group_documents import GroupBucket, GroupKeys
from penstock.client.groups.group_state import decode_state
from penstock.client.positions.owned_attributes import OwnedAttributes
from penstock.client.positions.position_checks import check_bucket
from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions, decode_positions, encode_positions
from penstock.errors import PositionsChanged, PositionsUnreadable


class Claim(NamedTuple):
    """The last claim of a vbucket, which its document has in its notes.

    Attributes:
        member: the member that claimed the vbucket; empty: none has.
        token: the token of its share then.
    """

    member: str = ""
    token: int = 0


class GroupPositions(PositionStore):
    """Keeps the position of each vbucket in a document of its own, `_penstock:group:NAME:vbucket:NUMBER`.

    A document is only replaced in the version that this object has read or written. So a member whose vbucket was
    claimed by another member can no longer commit.

    Args:
        bucket: the bucket with the documents; it must be connected when the positions are used.
        group: the name of the group.

    Attributes:
        claims: vbucket -> the last claim, as it was read or written.
    """

    def __init__(self, bucket: GroupBucket, group: str) -> None:
        self.claims: dict[int, Claim] = {}
        self._bucket = bucket
        self._group = group
        self._keys = GroupKeys(group)
        self._attributes = OwnedAttributes(bucket.attributes)

    def __str__(self) -> str:
        return f"group:{self._group}"

    async def read(self) -> SavedPositions | None:
        """Return the positions of all vbuckets; None if the group has none."""
        return await self.read_some(range(self._bucket.vbuckets))

    async def read_some(self, vbuckets: Iterable[int]) -> SavedPositions | None:
        """Return the positions of some vbuckets; None if they have none."""
        keys = {vbucket: self._keys.make_position_key(vbucket) for vbucket in vbuckets}
        merged: SavedPositions | None = None
        found = await self._attributes.read([*keys.values()])
        for (vbucket, key), version in zip(keys.items(), found, strict=True):
            self.claims.pop(vbucket, None)
            if version is None:
                continue
            saved = decode_positions(version.value, key)
            if merged is None:
                merged = replace(saved, by_vbucket={}, notes={})
            check_bucket(saved, merged.uuid, merged.vbuckets, key)
            by_vbucket = {**merged.by_vbucket, vbucket: saved.by_vbucket.get(vbucket, BEGINNING)}
            merged = replace(merged, by_vbucket=by_vbucket)
            self.claims[vbucket] = _read_claim(saved, key)
        return merged

    async def write(self, saved: SavedPositions) -> None:
        """Replace all positions, and leave the claims as they are. Raises PositionsChanged for other versions."""
        claims = {vbucket: self.claims.get(vbucket, Claim()) for vbucket in {*self.claims, *saved.by_vbucket}}
        if refused := await self.replace(saved, claims):
            raise PositionsChanged(f"{self}: a member has changed the position of vbucket {min(refused)}")

    async def replace(self, saved: SavedPositions, claims: Mapping[int, Claim]) -> set[int]:
        """Write the positions of vbuckets that have changed, and their claims.

        Args:
            saved: the positions. A vbucket without an entry is at the beginning.
            claims: vbucket -> claim, for the vbuckets to write.

        Returns:
            The vbuckets whose documents have another version, and were not written.
        """
        keys = {vbucket: self._keys.make_position_key(vbucket) for vbucket in claims}
        values = {}
        for vbucket, claim in claims.items():
            position = saved.by_vbucket.get(vbucket, BEGINNING)
            own = replace(saved, by_vbucket={vbucket: position}, notes=claim._asdict())
            value = encode_positions(own)
            if not self._attributes.has_value(keys[vbucket], value):
                values[keys[vbucket]] = value
        refused = await self._attributes.replace(values)
        self.claims.update({vbucket: claim for vbucket, claim in claims.items() if keys[vbucket] not in refused})
        return {vbucket for vbucket, key in keys.items() if key in refused}

    async def remove(self) -> None:
        """Remove the positions and the state of the group."""
        state = (await self._bucket.attributes.read_many([self._keys.state]))[0]
        vbuckets = self._bucket.vbuckets
        positions = [*map(self._keys.make_position_key, range(vbuckets))]
        members = () if state is None else decode_state(state.value, vbuckets, self._keys.state).members
        await self._bucket.remove_many(
            [
                *positions,
                *map(self._keys.make_member_key, members),
                self._keys.state,
            ]
        )
        self._attributes.forget(positions)
        self.claims = {}


def _read_claim(saved: SavedPositions, place: str) -> Claim:
    member, token = saved.notes.get("member", ""), saved.notes.get("token", 0)
    if not isinstance(member, str) or not isinstance(token, int):
        raise PositionsUnreadable(f"{place}: found the token {token!r:.80}, expected the claim of a member of a group")
    return Claim(member, token)
