"""The retention of a changelog during a run: old versions are dropped now and then, since that rewrites files."""

from __future__ import annotations

import time
from contextlib import suppress

from penstock.spark.lake.maintenance.lake_compaction import CompactionConflict
from penstock.spark.lake.maintenance.lake_retention import parse_retention, retain_changelog
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.state.lake_status import list_applied_versions

LEAST_SECONDS = 3600.0
"""Shortest time between two retentions of a changelog."""
AGE_SHARE = 0.1
"""Share of the greatest age after which versions are dropped again: a row is rewritten few times."""


class RetentionTimer:
    """Drops old versions of a changelog once enough time has passed since the last time.

    Args:
        lake: the lake of the changelog.
        text: the limit as the pipeline's file has it, None for no limit.
    """

    def __init__(self, lake: LakeDirectory, text: str | None) -> None:
        self._lake = lake
        self._retention = None if text is None else parse_retention(text)
        age = self._retention.seconds or 0 if self._retention is not None else 0
        self._seconds = max(LEAST_SECONDS, AGE_SHARE * age)
        self._next = 0.0

    def apply(self) -> None:
        """Drop old versions, if it is time. Another process that rewrites the same files goes first."""
        if self._retention is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._seconds
        with suppress(CompactionConflict):
            retain_changelog(self._lake, self._retention, list_applied_versions(self._lake))
