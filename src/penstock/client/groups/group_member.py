"""A member of a group: the reads and writes of the group's documents. It has no clock and no tasks."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct
from msgspec.json import decode, encode

from penstock.client.documents.document_attributes import AttributeVersion
from penstock.client.feeds.stream_position import BEGINNING
from penstock.client.groups.beat_watch import Beat, BeatWatch
from penstock.client.groups.group_documents import GroupBucket, GroupKeys
from penstock.client.groups.group_positions import Claim, GroupPositions
from penstock.client.groups.group_state import GroupState, advance_state, decode_state, encode_state, leave_group
from penstock.client.positions.saved_positions import SavedPositions
from penstock.errors import PositionsUnreadable

logger = logging.getLogger("penstock.client")

StartFinder = Callable[[SavedPositions | None, Sequence[int]], Awaitable[SavedPositions]]
"""Checks the saved positions of claimed vbuckets, and adds those of vbuckets that have none."""


class _Lease(Struct):
    """The document of a member."""

    lease_seconds: float


class GroupMember:
    """Keeps its place in a group, and claims, commits and gives away vbuckets.

    Calls of `beat` and `leave` must not overlap each other. A commit or a claim may go on meanwhile.

    The group's document has the shares. A share alone allows nothing: the member also claims the position document of
    the vbucket, with the token of the share. The claim changes the document's version, so an earlier owner that does
    not know of its loss cannot commit any more.

    Args:
        bucket: the bucket with the documents, connected.
        group: the name of the group.
        name: the name of the member, which no other member ever has.
        lease_seconds: other members take over the share after this time without a beat.

    Attributes:
        name: the name of the member.
        held: vbucket -> token, of the vbuckets that the member has claimed and reads.
        state: the state of the group, as it was read last.
    """

    def __init__(self, bucket: GroupBucket, group: str, name: str, lease_seconds: float) -> None:
        self.name = name
        self.held: dict[int, int] = {}
        self.state = decode_state(b"", bucket.vbuckets, group)
        self._bucket = bucket
        self._keys = GroupKeys(group)
        self._positions = GroupPositions(bucket, group)
        self._lease_seconds = lease_seconds
        self._watch = BeatWatch(lease_seconds)
        self._refused: dict[int, int] = {}
        self._claiming: frozenset[int] = frozenset()

    @property
    def has_changes(self) -> bool:
        """Whether the member should give away or claim vbuckets."""
        return self._find_wanted() != self.held

    @property
    def has_lost(self) -> bool:
        """Whether others have taken over vbuckets that the member holds."""
        shares = ((self.state.shares[vbucket], token) for vbucket, token in self.held.items())
        return any((share.owner, share.token) != (self.name, token) for share, token in shares)

    def _find_wanted(self) -> dict[int, int]:
        tokens = self.state.find_tokens(self.name)
        return {vb: token for vb, token in tokens.items() if token > self._refused.get(vb, -1)}

    async def beat(self, now: float) -> None:
        """Read the state of the group, bring it forward, and show that this member is alive.

        Args:
            now: the monotonic time in seconds.
        """
        while True:
            names = sorted({self.name, *self.state.members})
            keys = [self._keys.state, *map(self._keys.make_member_key, names)]
            found, *documents = await self._bucket.attributes.read_many(keys)
            version = found or AttributeVersion(b"", 0)
            state = self._decode(version)
            beats = {
                name: read_beat(each, self._lease_seconds, self._keys.state)
                for name, each in zip(names, documents, strict=True)
            }
            others = {name: beat for name, beat in beats.items() if name in state.members and name != self.name}
            dead = self._watch.find_dead(others, now)
            held = self._claiming.union(self.held)
            new = advance_state(state, self.name, dead=dead, held=held, refused=self._refused)
            if new is state or await self._replace_state(version, new):
                break
        self.state = new
        if dead:
            logger.warning("group %s: %s take over from %s", self._keys.state, ", ".join(new.members), sorted(dead))
            await self._bucket.remove_many(map(self._keys.make_member_key, sorted(dead)))
        lease = AttributeVersion(encode(_Lease(self._lease_seconds)), beats[self.name].cas)
        await self._bucket.attributes.write_many({self._keys.make_member_key(self.name): lease})

    def drop_lost(self) -> None:
        """Give up the vbuckets that other members shall read. The next beat hands them over.

        The member has stopped to read them, and has committed their positions.
        """
        wanted = self._find_wanted()
        self.held = {vb: token for vb, token in self.held.items() if wanted.get(vb) == token}

    async def claim(self, find_start: StartFinder) -> SavedPositions | None:
        """Claim the vbuckets of the share that the member does not hold; return their positions, None without one.

        Args:
            find_start: checks the positions before anything is claimed.
        """
        missing = {vb: token for vb, token in self._find_wanted().items() if vb not in self.held}
        if not missing:
            return None
        self._claiming = frozenset(missing)
        try:
            saved = await self._positions.read_some(missing)
            claims = self._choose_claims(missing)
            first = await find_start(saved, [vbucket for vbucket in claims if vbucket not in self._positions.claims])
            refused = await self._positions.replace(first, claims)
            claimed = {vb: claim.token for vb, claim in claims.items() if vb not in refused}
            self.held |= claimed
        finally:
            self._claiming = frozenset()
        return replace(first, by_vbucket={vb: first.by_vbucket.get(vb, BEGINNING) for vb in claimed})

    def _choose_claims(self, tokens: Mapping[int, int]) -> dict[int, Claim]:
        """Return the claims that the position documents allow. A token that is too old is noted for the next beat."""
        claims = {}
        for vbucket, token in tokens.items():
            last, new = self._positions.claims.get(vbucket, Claim()), Claim(self.name, token)
            if last.token < token or last == new:
                claims[vbucket] = new
            else:
                self._refused[vbucket] = last.token
        return claims

    async def commit(self, saved: SavedPositions) -> None:
        """Save the positions of the vbuckets that the member holds. It loses those that another member has claimed."""
        refused = await self._positions.replace(saved, {vb: Claim(self.name, token) for vb, token in self.held.items()})
        if refused:
            logger.warning("%s: others have claimed vbuckets %s; not committed", self._positions, sorted(refused))
            self.held = {vb: token for vb, token in self.held.items() if vb not in refused}

    async def leave(self) -> None:
        """Leave the group, so that the other members take over at once. The member has stopped to read."""
        self.held = {}
        while True:
            found = (await self._bucket.attributes.read_many([self._keys.state]))[0]
            if found is None or await self._replace_state(found, leave_group(self._decode(found), self.name)):
                break
        await self._bucket.remove_many([self._keys.make_member_key(self.name)])

    def _decode(self, version: AttributeVersion) -> GroupState:
        return decode_state(version.value, self._bucket.vbuckets, self._keys.state)

    async def _replace_state(self, version: AttributeVersion, state: GroupState) -> bool:
        new = AttributeVersion(encode_state(state), version.cas)
        return (await self._bucket.attributes.replace_many({self._keys.state: new}))[self._keys.state] is not None


def read_beat(version: AttributeVersion | None, lease_seconds: float, place: str) -> Beat:
    """Return the beat in the document of a member.

    Args:
        version: the document; None: there is none.
        lease_seconds: the lease of a member without a document.
        place: the key of the group, for the error.

    Raises:
        PositionsUnreadable: the document is no lease.
    """
    if version is None:
        return Beat(0, lease_seconds)
    try:
        return Beat(version.cas, decode(version.value, type=_Lease).lease_seconds)
    except ValueError as error:
        raise PositionsUnreadable(f"{place}: {error}; expected the lease of a member") from None
