"""The protocol of dependents: the methods that every index, invalidation and copy in another bucket has."""

from __future__ import annotations

from typing import Protocol

from penstock.argument_types import check_arguments
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, RangeDelta, find_delta
from penstock.spark.lake.maintenance.maintenance_report import TableReport
from penstock.spark.lake.tables.directory import LakeDirectory

IDLE_VERSIONS = 64
"""Changelog versions without rows after which a dependent stores its position nevertheless."""
TRIES = 5
"""Number of times that a delta is read if compactions remove its files meanwhile."""


class Dependent(Protocol):
    """A result that follows a changelog, delta by delta."""

    @property
    def name(self) -> str:
        """The dependent's name in the pipeline, unique in a lake."""

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that were applied, None if nothing was applied."""

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Apply the changes after the position and store the new position: both or neither.

        Raises FileNotFoundError if a file of the delta was removed meanwhile, and Error if the delta cannot be applied
        now. In both cases nothing is lost, and the caller may try again.
        """

    def count_rows(self) -> int:
        """Return the number of rows that a merge of a delta reads, for the merge policy; 0 without merges."""


class DocumentIndex(Dependent, Protocol):
    """A dependent whose files in the lake hold parts of documents."""

    def erase_documents(self, erased: RangeDelta) -> tuple[int, int]:
        """Remove documents from the files, and their values from logs and free pages.

        The caller holds the lake's lock, and the dependent has applied the whole changelog. It may be repeated.

        Args:
            erased: a delta that voids the documents and adds nothing.

        Returns:
            The number of removed rows and of rewritten files.
        """

    def vacuum(self, keep_hours: int, *, dry_run: bool = False) -> TableReport:
        """Remove files from the disk that the index has not needed for so many hours.

        Args:
            keep_hours: hours that a file stays after the last use of it.
            dry_run: only report, and remove no file.

        Returns:
            Files and bytes on disk, before and after.
        """


@check_arguments
def catch_up(dependent: Dependent, lake: LakeDirectory) -> int:
    """Apply the changes that the changelog has gained; return at once if there are none.

    Also raises the errors of `apply_delta`.

    Args:
        dependent: the dependent.
        lake: the lake of the changelog.

    Returns:
        The changelog version that the dependent has reached, -1 without a changelog.

    Raises:
        FileNotFoundError: files of the delta were removed at each attempt.
    """
    failures = 0
    while True:
        position = dependent.position()
        delta = find_delta(lake, position)
        if delta is None:
            return -1
        if (
            position is not None
            and not delta.is_full
            and not delta.files
            and delta.version - position[1] < IDLE_VERSIONS
        ):
            return delta.version
        try:
            dependent.apply_delta(delta)
            return delta.version
        except FileNotFoundError:  # a compaction replaced the files: the next delta names the new ones
            failures += 1
            if failures == TRIES:
                raise
