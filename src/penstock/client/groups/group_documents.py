"""The documents of a group: their keys, and the parts of a bucket that a group uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.client.documents.document_attributes import OWN_KEYS
from penstock.client.positions.owned_attributes import AttributeStore

__all__ = ["GroupBucket", "GroupKeys"]


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
    """

    def __init__(self, group: str) -> None:
        self.state = f"{OWN_KEYS}group:{group}"

    def make_member_key(self, member: str) -> str:
        """Return the key of a member's document, which changes with each beat."""
        return f"{self.state}:member:{member}"

    def make_position_key(self, vbucket: int) -> str:
        """Return the key of the document with the position of a vbucket."""
        return f"{self.state}:vbucket:{vbucket}"
