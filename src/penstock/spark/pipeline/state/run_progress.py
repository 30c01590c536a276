"""Where a run stands, in plain data: for reports, for the lake's account of it, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["DependentProgress", "ReportProgress", "RollbackEvent", "SourceProgress"]


@dataclass(frozen=True, slots=True)
class RollbackEvent:
    """at: seconds since the epoch when it was written to the changelog. vbuckets: those that were rolled back then."""

    at: float
    vbuckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DependentProgress:
    """Where something stands that is kept behind a changelog.

    kind: current, index, fulltext, invalidate, bucket. version: of the changelog that it has taken in, -1: none.
    pending: rows of the changelog that it has not. taken, seconds: rows that this run has taken in, and how long that
    took altogether. error: why it could not the last time. failures: how often in a row.
    """

    name: str
    kind: str
    version: int = -1
    pending: int = 0
    taken: int = 0
    times: int = 0
    seconds: float = 0.0
    error: str | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Where one source's tables stand.

    rows, bytes: written to the changelog by this run; bytes of its files. changelog_rows: it has altogether. lag:
    seqnos of the bucket that the changelog does not have yet, None where the node does not say. rows_per_second,
    bytes_per_second: since the report before. rollbacks: rows of them that this run has written. schema_changes: what
    values have that the declared or inferred schema lacks. missing_vbuckets: those that no node serves, as far as the
    nodes last said.
    """

    source: str | None = None
    rows: int = 0
    bytes: int = 0
    changelog_rows: int = 0
    lag: int | None = None
    batches: int = 0
    version: int = -1
    rows_per_second: float = 0.0
    bytes_per_second: float = 0.0
    rollbacks: int = 0
    last_rollback: RollbackEvent | None = None
    dependents: tuple[DependentProgress, ...] = ()
    schema_changes: tuple[str, ...] = ()
    missing_vbuckets: tuple[int, ...] = ()

    @property
    def merged(self) -> int:
        """The changelog's version that current has reached, -1 if there is none."""
        return next((each.version for each in self.dependents if each.kind == "current"), -1)


ReportProgress = Callable[[SourceProgress], None]
