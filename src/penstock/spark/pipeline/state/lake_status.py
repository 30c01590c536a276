"""The status of a lake and its newest run, from its files alone: neither the bucket nor the run is involved."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.spark.dependents.registry import find_kind, list_stored_dependents
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.lake.changelog.found_collections import read_collections
from penstock.spark.lake.current.current_table import read_merged_version
from penstock.spark.lake.current.document_table import CURRENT
from penstock.spark.lake.current.merged_state import retry_missing_files
from penstock.spark.lake.current.typed_table import KIND, list_document_tables, list_typed_tables
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable
from penstock.spark.pipeline.state.changelog_meter import find_last_rollback
from penstock.spark.pipeline.state.kept_tables import describe_left_out
from penstock.spark.pipeline.state.run_progress import RollbackEvent
from penstock.spark.pipeline.state.run_state import RunState, is_locked, read_run_state
from penstock.spark.tables.misfits import RestReport


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table.

    A replaced file does not count, though it stays on disk for an hour, or for the time of `time_travel`.

    Attributes:
        rows: number of rows, None if unknown.
        bytes: bytes on disk.
        files: number of files.
    """

    rows: int | None
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class DependentStatus:
    """The status of the current table or of one dependent.

    Attributes:
        name: its name.
        kind: "current", or the kind of the dependent.
        version: the changelog version that was applied, -1 for none.
        pending: rows of the changelog that were not applied yet.
        error: the reason why the last attempt failed, None if it succeeded.
        size: None if the result does not lie in the lake.
        rest: the rows of a typed table with values that no column has, None for all others.
        sample: number of documents from which the columns were inferred, None for declared columns.
    """

    name: str
    kind: str
    version: int
    pending: int
    error: str | None = None
    size: TableSize | None = None
    rest: RestReport | None = None
    sample: int | None = None

    def describe_sample(self) -> str | None:
        """Return how many documents inference has seen, in words; None for declared columns."""
        if self.sample is None or self.size is None:
            return None
        rows = self.size.rows or 0
        return f"columns inferred from {min(self.sample, rows):,} of {rows:,} documents"


@dataclass(frozen=True, slots=True)
class RemovedDependent:
    """A dependent that has files in a lake, and is no longer declared."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """A lake and its newest run.

    Attributes:
        lake: the lake's directory.
        source: the name of its source, None for the only source.
        state: new (no run yet), running, stopping (only its Java process still runs), ended, or killed (the run did not
            end by itself).
        pid, since: process and start of the run. Times are seconds since the epoch.
        until: the run's last report.
        error: the error that ended the run.
        lag, rows_per_second, bytes_per_second: as the run reported them last.
        lag_ranges, last_batch, missing_vbuckets: as the run reported them last.
        version: the changelog's version.
        format: the format of the tables.
        changelog: the changelog's size, None before the first batch.
        dependents: the current table and the dependents.
        last_rollback: the newest rollback in the changelog.
        schema_changes: fields of values that the declared or inferred schema lacks.
        left_out: a sentence about the collections that have no inferred table, None if all have one.
        removed: dependents that have files in the lake, and are no longer declared.
        paused: whether the file pauses the source.
        declared: False for the lake of a source that the file no longer declares.
        pages: addresses of the pages that the run serves, by name, without tokens; empty after the run.
    """

    lake: str
    source: str | None
    state: str
    pid: int | None = None
    since: float | None = None
    until: float | None = None
    error: str | None = None
    lag: int | None = None
    rows_per_second: float = 0.0
    bytes_per_second: float = 0.0
    lag_ranges: tuple[dict[str, int], ...] = ()
    last_batch: dict[str, float] | None = None
    missing_vbuckets: tuple[int, ...] = ()
    version: int = -1
    format: str = "delta"
    changelog: TableSize | None = None
    dependents: tuple[DependentStatus, ...] = ()
    last_rollback: RollbackEvent | None = None
    schema_changes: tuple[str, ...] = ()
    left_out: str | None = None
    removed: tuple[RemovedDependent, ...] = ()
    paused: bool = False
    declared: bool = True
    pages: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the status as a dict for JSON, with times as text in ISO 8601."""
        fields = asdict(self)
        for name in ("since", "until"):
            fields[name] = format_time(fields[name])
        if fields["last_rollback"] is not None:
            fields["last_rollback"]["at"] = format_time(fields["last_rollback"]["at"])
        return fields


def format_time(at: float | None) -> str | None:
    """Return a time in seconds since the epoch as text in ISO 8601."""
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_status(lake: LakeDirectory, source: str | None = None, declared: Collection[str] | None = None) -> LakeStatus:
    """Return the status of a lake. Raises UsageError for tables that are not a pipeline's.

    Args:
        lake: the lake.
        source: the name of its source; None for the name that the run reported.
        declared: names of the dependents that the pipeline declares; None for those of the newest run.

    Returns:
        The status.
    """
    state = read_run_state(lake)
    progress: dict[str, Any] = state.progress if state is not None else {}
    found = progress.get("last_rollback")
    version, size = _measure_changelog(lake)
    run = find_run_state(lake, state)
    rollback = RollbackEvent(found["at"], tuple(found["vbuckets"])) if found else find_last_rollback(lake)
    return LakeStatus(
        lake=str(lake.path),
        source=source if source is not None else progress.get("source"),
        state=run,
        pid=state.pid if state is not None else None,
        since=state.started if state is not None else None,
        until=state.updated if state is not None else None,
        error=state.error if state is not None else None,
        lag=progress.get("lag"),
        rows_per_second=progress.get("rows_per_second", 0.0),
        bytes_per_second=progress.get("bytes_per_second", 0.0),
        lag_ranges=tuple(progress.get("lag_ranges", ())),
        last_batch=progress.get("last_batch"),
        missing_vbuckets=tuple(progress.get("missing_vbuckets", ())),
        version=version,
        format=lake.changelog_table.format,
        changelog=size,
        dependents=tuple(_list_dependents(lake, progress.get("dependents", ()))),
        last_rollback=rollback,
        schema_changes=tuple(progress.get("schema_changes", ())),
        left_out=describe_left_out(read_collections(lake)),
        removed=tuple(_list_removed(lake, progress, declared)),
        pages=state.pages if state is not None and run == "running" else {},
    )


def list_applied_versions(lake: LakeDirectory) -> list[tuple[str, int]]:
    """Return changelog id and version that each dependent has applied, by the run's last report.

    The tables of documents are left out: they have their versions themselves.
    """
    state, changelog = read_run_state(lake), lake.changelog_table.open()
    if state is None or changelog is None:
        return []
    dependents = state.progress.get("dependents", ())
    changelog_id = lake.changelog_table.read_id(changelog)
    return [(changelog_id, each["version"]) for each in dependents if each["kind"] not in (CURRENT, KIND)]


def find_run_state(lake: LakeDirectory, state: RunState | None) -> str:
    """Return the state of the newest run of a lake, as in LakeStatus.

    Args:
        lake: the lake.
        state: its stored state, None without a run.
    """
    if state is None:
        return "running" if is_locked(lake) else "new"
    if is_locked(lake):
        # The run of a lake in an object store may have its process on another machine.
        is_alive = not isinstance(lake.path, Path) or _is_alive(state.pid)
        return "running" if not state.ended and is_alive else "stopping"
    return "ended" if state.ended else "killed"


# Signal 0 only checks that the process exists; PermissionError means that it belongs to another user.
def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _list_dependents(lake: LakeDirectory, dependents: Iterable[dict[str, Any]]) -> Iterable[DependentStatus]:
    tables, typed = list_document_tables(lake), {each.name: each for each in list_typed_tables(lake)}
    for target in sorted(tables, key=lambda each: each.kind == CURRENT):  # people query the typed tables
        known = read_merged_version(lake, target.table, target.table.open())
        delta = find_delta(lake, known)
        size, pending = _measure_table(target.table), delta.rows if delta else 0
        own = typed.get(target.name) if target.kind == KIND else None
        rest, sample = (None, None) if own is None else (retry_missing_files(own.report_rest), own.sample)
        version = known[1] if known else -1
        yield DependentStatus(target.name, target.kind, version, pending, size=size, rest=rest, sample=sample)
    measured = {(target.kind, target.name) for target in tables}
    for each in dependents:
        if (each["kind"], each["name"]) in measured or each["kind"] == CURRENT:
            continue
        size = _measure_dependent(lake, each["kind"], each["name"])
        yield DependentStatus(each["name"], each["kind"], each["version"], each["pending"], each["error"], size)


def _list_removed(
    lake: LakeDirectory, progress: dict[str, Any], declared: Collection[str] | None
) -> Iterable[RemovedDependent]:
    if declared is None and "dependents" not in progress:
        return  # neither a declaration nor a run shows which dependents are wanted
    names = [each["name"] for each in progress["dependents"]] if declared is None else declared
    for kind, name in list_stored_dependents(lake):
        if name not in names:
            yield RemovedDependent(name, kind.kind)


def _measure_changelog(lake: LakeDirectory) -> tuple[int, TableSize | None]:
    """Return the changelog's version and size; for plain files the version is the newest batch."""
    opened = lake.changelog_table.open()
    return -1 if opened is None else opened.version(), _measure_table(lake.changelog_table)


def _measure_table(table: AnyTable) -> TableSize | None:
    opened = table.open()
    if opened is None:
        return None
    files = table.list_files(opened)
    return TableSize(sum(file.rows for file in files), sum(file.size for file in files), len(files))


def _measure_dependent(lake: LakeDirectory, kind: str, name: str) -> TableSize | None:
    """Return the size of a dependent's files, None if its result does not lie in the lake."""
    known = find_kind(kind)
    if known is None or not known.is_local:
        return None
    paths = [each for path in known.list_files(lake, name) for each in (path, *path.rglob("*"))]
    files = [path.stat().st_size for path in paths if path.is_file()]
    return TableSize(None, sum(files), len(files)) if files else None
