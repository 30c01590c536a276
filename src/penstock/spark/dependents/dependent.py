"""What is kept behind a lake's changelog beside current: indexes, notices to caches. Nothing here needs Spark.

Each follows the changelog by itself: it remembers the version that it has taken in, together with what it made of it,
so that a crash leaves only versions to take in, and one that fails holds up neither the tables nor the others.
"""

from __future__ import annotations

from typing import Protocol

from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, delta_since
from penstock.spark.lake.tables.directory import LakeDirectory

__all__ = ["Dependent", "catch_up"]

IDLE_VERSIONS = 64
"""Changelog versions without rows after which a follower's position is remembered all the same."""
TRIES = 5
"""How often a delta is read again when a compaction took files away while they were read."""


class Dependent(Protocol):
    """One thing kept behind a changelog."""

    @property
    def name(self) -> str:
        """What the pipeline calls it; unique in a lake."""

    def position(self) -> tuple[str, int] | None:
        """Return the changelog's id and the version that was taken in, None if nothing was."""

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Take in what came after the position, and remember the position that it reaches, both or neither.

        Raises FileNotFoundError where a file of the delta was taken away since, and Error where it cannot be done now:
        nothing is lost then, and the caller may try again.
        """


def catch_up(follower: Dependent, lake: LakeDirectory) -> int:
    """Let a follower take in what the changelog has gained; at once if there is nothing.

    Returns the changelog's version that it has reached, -1 without a changelog. Raises what `apply_delta` raises.
    """
    failures = 0
    while True:
        known = follower.position()
        delta = delta_since(lake, known)
        if delta is None:
            return -1
        if known is not None and not delta.everything and not delta.files and delta.version - known[1] < IDLE_VERSIONS:
            return delta.version
        try:
            follower.apply_delta(delta)
            return delta.version
        except FileNotFoundError:
            failures += 1
            if failures == TRIES:
                raise
