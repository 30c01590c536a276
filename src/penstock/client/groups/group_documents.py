"""The documents of a group: their keys, and the parts of a bucket that a group uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.client.documents.document_attributes import make_own_key
from penstock.client.positions.owned_attributes import AttributeStore

_LONGEST_MEMBER = "m" * 80
"""A member's name is the host's name, the process and a random number."""


class GroupBucket(Protocol):
    """The bucket with the documents of a group."""

    @property
    def attributes(self) -> AttributeStore:
        """The attributes of its documents."""

    @property
    def vbuckets(self) -> int:
        """The number of its vbuckets."""

    async def remove_many(self, keys: Iterable[str | bytes]) -> int:
        """Remove documents; return the number of removed documents."""


class GroupKeys:
    """The keys of a group's documents.

    Attributes:
        state: the key of the document with the members and their shares.

    Raises:
        UsageError: no key can have the group's name.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self.make_member_key(_LONGEST_MEMBER)
        self.state = make_own_key("group", group)

    def make_member_key(self, member: str) -> str:
        """Return the key of a member's document, which changes with each beat."""
        return make_own_key("group", self._group, "member", member)

    def make_position_key(self, vbucket: int) -> str:
        """Return the key of the document with the position of a vbucket."""
        return make_own_key("group", self._group, "vbucket", str(vbucket))
