"""A dependent of a changelog: what every index, invalidation and copy in another bucket has in common."""

from __future__ import annotations

from typing import Protocol

from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, delta_since
from penstock.spark.lake.tables.directory import LakeDirectory

__all__ = ["IDLE_VERSIONS", "Dependent", "catch_up"]

IDLE_VERSIONS = 64
"""Changelog versions without rows after which a dependent stores its position all the same."""
TRIES = 5
"""How often a delta is read again when a compaction took files away while they were read."""


class Dependent(Protocol):
    """A result that is kept behind a changelog, delta by delta."""

    @property
    def name(self) -> str:
        """The dependent's name in the pipeline, unique in a lake."""

    def position(self) -> tuple[str, int] | None:
        """Return the changelog's id and the version of it that was applied, None if nothing was."""

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Apply the changes after the position, and store the position that they reach: both or neither.

        Raises FileNotFoundError if a file of the delta was removed meanwhile, and Error if the delta cannot be applied
        now. Nothing is lost then, and the caller may try again.
        """

    def rows(self) -> int:
        """Return how many rows a merge of a delta goes through, for the merge policy; 0 if it merges nothing."""


def catch_up(dependent: Dependent, lake: LakeDirectory) -> int:
    """Apply what the changelog has gained to a dependent; return at once if there is nothing.

    Returns the changelog's version that it has reached, -1 without a changelog. Raises what `apply_delta` raises.
    """
    failures = 0
    while True:
        known = dependent.position()
        delta = delta_since(lake, known)
        if delta is None:
            return -1
        if known is not None and not delta.everything and not delta.files and delta.version - known[1] < IDLE_VERSIONS:
            return delta.version
        try:
            dependent.apply_delta(delta)
            return delta.version
        except FileNotFoundError:
            failures += 1
            if failures == TRIES:
                raise
