"""The progress of a run as plain data: for reports, for the run's state in the lake, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.spark.tables.misfits import RestReport


@dataclass(frozen=True, slots=True)
class RollbackEvent:
    """A rollback in the changelog.

    Attributes:
        at: when it was committed, in seconds since the epoch.
        vbuckets: the vbuckets that were rolled back.
    """

    at: float
    vbuckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LagRange:
    """The lag of some vbuckets together.

    Attributes:
        first, last: the first and the last vbucket.
        seqnos: seqnos of the bucket that the changelog does not have yet.
    """

    first: int
    last: int
    seqnos: int


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The newest micro-batch of a query.

    Attributes:
        batch: its number.
        seconds: its duration, from its plan to its commit.
        rows: rows of the newest commit of the changelog.
    """

    batch: int
    seconds: float
    rows: int


@dataclass(frozen=True, slots=True)
class DependentProgress:
    """The progress of the current table or of one dependent.

    Attributes:
        name: "current", or the name of the dependent.
        kind: "current", or the kind of the dependent.
        version: the changelog version that was applied, -1 for none.
        pending: rows of the changelog that were not applied yet.
        rows: rows of its table, such as the documents of current. None: it has no table in the lake, or none yet.
        applied_rows: rows of the changelog that this run has applied.
        merges: number of times that this run has applied rows.
        merge_seconds: seconds that this run has spent on it.
        error: the reason why the last attempt failed, None if it succeeded.
        failures: failed attempts in a row.
        rest: the values of a typed table that no column has, by its most frequent fields and without keys. None: it is
            another table, or has no commit yet.
    """

    name: str
    kind: str
    version: int = -1
    pending: int = 0
    rows: int | None = None
    applied_rows: int = 0
    merges: int = 0
    merge_seconds: float = 0.0
    error: str | None = None
    failures: int = 0
    rest: RestReport | None = None


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The progress of one source's tables.

    Attributes:
        source: the source's name, None if a command's options made the only source.
        rows: rows that this run has written to the changelog.
        bytes: the size of their files.
        changelog_rows: all rows of the changelog.
        lag: seqnos of the bucket that the changelog does not have yet, None if the node does not answer.
        batches: micro-batches of the query so far.
        version: the changelog's version.
        rows_per_second, bytes_per_second: since the report before.
        rollbacks: rolled back vbuckets that this run has written, counted each time.
        last_rollback: the newest rollback in the changelog.
        dependents: the current table and the dependents.
        schema_changes: fields of values that the declared or inferred schema lacks.
        missing_vbuckets: vbuckets that no node serves, as the nodes reported last.
        lag_ranges: the lag by ranges of vbuckets, empty if it is not known.
        last_batch: the newest micro-batch.
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
    lag_ranges: tuple[LagRange, ...] = ()
    last_batch: BatchTime | None = None

    @property
    def merged(self) -> int:
        """The changelog version that is merged into current, -1 for none."""
        return next((each.version for each in self.dependents if each.kind == "current"), -1)


ReportProgress = Callable[[SourceProgress], None]
