"""Revisions of the document that the nodes of a cluster agree on, and the votes for them. Pure.

Each revision is decided by a majority of the nodes that the revision before it lists as members. So members change
like the rest of the document: the old members decide on that revision, and the new members on the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

__all__ = ["NO_BALLOT", "Ballot", "Revision", "Vote", "count_majority"]


class Ballot(Struct, frozen=True, order=True):
    """Identifies an attempt to decide on a revision. Of two attempts, the attempt with the higher ballot goes on.

    Attributes:
        number: counts the attempts.
        change: id of the change that is attempted. No two changes share an id, so no two attempts share a ballot.
    """

    number: int
    change: str


NO_BALLOT = Ballot(0, "")
"""Below all ballots of attempts."""


class Revision(Struct, frozen=True):
    """One revision of the document.

    Attributes:
        number: 1 for the first revision, then one more for each.
        members: ids of the nodes that decide on the next revision, sorted.
        changes: node id -> id of the newest change of this node that the document contains.
        content: the document as JSON.
    """

    number: int
    members: tuple[str, ...]
    changes: Mapping[str, str]
    content: Mapping[str, Any]

    def has_change(self, node: str, change: str) -> bool:
        """Return whether the document contains a change. It must be the newest change of its node.

        Args:
            node: id of the node.
            change: id of the change.
        """
        return self.changes.get(node) == change

    def succeed(self, node: str, change: str, members: tuple[str, ...], content: Mapping[str, Any]) -> Revision:
        """Return the next revision.

        Args:
            node: id of the node that makes the change.
            change: id of the change.
            members: the members from now on.
            content: the document from now on.
        """
        kept = {known: newest for known, newest in self.changes.items() if known in members}
        return Revision(self.number + 1, tuple(sorted(members)), {**kept, node: change}, content)


class Vote(Struct, frozen=True):
    """A revision that an acceptor has voted for, and the ballot of its attempt."""

    ballot: Ballot
    revision: Revision


def count_majority(members: tuple[str, ...]) -> int:
    """Return how many members are a majority."""
    return len(members) // 2 + 1
