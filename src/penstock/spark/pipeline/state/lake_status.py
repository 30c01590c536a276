"""The status of a lake and its newest run, from its files alone: no bucket is asked, no run is disturbed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq

from penstock.spark.dependents.registry import kind_named
from penstock.spark.lake.changelog.changelog_delta import delta_since
from penstock.spark.lake.current.current_table import merged_version
from penstock.spark.lake.tables import plain_manifests
from penstock.spark.lake.tables.delta_table import LakeTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.state.changelog_meter import last_rollback
from penstock.spark.pipeline.state.run_progress import RollbackEvent
from penstock.spark.pipeline.state.run_state import RunState, is_locked, read_run_state

__all__ = ["DependentStatus", "LakeStatus", "TableSize", "applied_versions", "iso", "status_of"]


@dataclass(frozen=True, slots=True)
class TableSize:
    """rows, bytes, files: those that count now. A file may be on disk for some minutes after it was replaced."""

    rows: int | None
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class DependentStatus:
    """The status of the current table or of one dependent.

    Attributes:
        version: the changelog version that was applied, -1 for none.
        pending: rows of the changelog that were not applied yet.
        error: why the last attempt failed, None if it succeeded.
        size: None if the result does not lie in the lake.
    """

    name: str
    kind: str
    version: int
    pending: int
    error: str | None = None
    size: TableSize | None = None


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """A lake and its newest run.

    state: running; stopping, where its process is gone and only Java is left; ended; killed, where it did not end by
    itself; or new, where none has run. pid, since: of that run; until: when it was last heard of. lag, rows_per_second,
    bytes_per_second: as it said then. version: of the changelog.
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
    version: int = -1
    changelog: TableSize | None = None
    kept: tuple[DependentStatus, ...] = ()
    last_rollback: RollbackEvent | None = None
    schema_changes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it with times as text in ISO 8601."""
        said = asdict(self)
        for name in ("since", "until"):
            said[name] = iso(said[name])
        if said["last_rollback"] is not None:
            said["last_rollback"]["at"] = iso(said["last_rollback"]["at"])
        return said


def iso(at: float | None) -> str | None:
    """Return seconds since the epoch as text."""
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status_of(lake: LakeDirectory, source: str | None = None) -> LakeStatus:
    """Return the status of a lake. Raises UsageError for tables that are not a pipeline's."""
    account = read_run_state(lake)
    said: dict[str, Any] = account.said if account is not None else {}
    found = said.get("last_rollback")
    version, size = _changelog(lake)
    rollback = RollbackEvent(found["at"], tuple(found["vbuckets"])) if found else last_rollback(lake)
    return LakeStatus(
        lake=str(lake.path),
        source=source if source is not None else said.get("source"),
        state=_state(lake, account),
        pid=account.pid if account is not None else None,
        since=account.started if account is not None else None,
        until=account.updated if account is not None else None,
        error=account.error if account is not None else None,
        lag=said.get("lag"),
        rows_per_second=said.get("rows_per_second", 0.0),
        bytes_per_second=said.get("bytes_per_second", 0.0),
        version=version,
        changelog=size,
        kept=tuple(_kept(lake, said.get("dependents", ()))),
        last_rollback=rollback,
        schema_changes=tuple(said.get("schema_changes", ())),
    )


def applied_versions(lake: LakeDirectory) -> list[tuple[str, int]]:
    """Return what each dependent but current has applied, as changelog id and version, by the run's last report."""
    account, changelog = read_run_state(lake), lake.changelog_table.open()
    if account is None or changelog is None:
        return []
    dependents = account.said.get("dependents", ())
    return [(str(changelog.metadata().id), each["version"]) for each in dependents if each["kind"] != "current"]


def _state(lake: LakeDirectory, account: RunState | None) -> str:
    if account is None:
        return "running" if is_locked(lake) else "new"
    if is_locked(lake):
        return "running" if not account.ended and _lives(account.pid) else "stopping"
    return "ended" if account.ended else "killed"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _kept(lake: LakeDirectory, dependents: Iterable[dict[str, Any]]) -> Iterable[DependentStatus]:
    if (size := _size(lake.current_table)) is not None:
        known = merged_version(lake, lake.current_table.open())
        delta = delta_since(lake, known)
        yield DependentStatus("current", "current", known[1] if known else -1, delta.rows if delta else 0, size=size)
    for each in dependents:
        if each["kind"] == "current":
            continue
        size = _size_on_disk(lake, each["kind"], each["name"])
        yield DependentStatus(each["name"], each["kind"], each["version"], each["pending"], each["error"], size)


def _changelog(lake: LakeDirectory) -> tuple[int, TableSize | None]:
    """Return the changelog's version, or newest batch where it is plain files, and its size."""
    root = lake.changelog_table.path
    if (batch := plain_manifests.newest_batch(root)) is not None:
        paths = [*root.glob("vbucket_range=*/*.parquet")]
        rows = sum(pq.read_metadata(path).num_rows for path in paths)
        return batch, TableSize(rows, sum(path.stat().st_size for path in paths), len(paths))
    opened = lake.changelog_table.open()
    return -1 if opened is None else opened.version(), _size(lake.changelog_table)


def _size(table: LakeTable) -> TableSize | None:
    opened = table.open()
    if opened is None:
        return None
    files = table.files(opened)
    return TableSize(sum(file.rows for file in files), sum(file.size for file in files), len(files))


def _size_on_disk(lake: LakeDirectory, kind: str, name: str) -> TableSize | None:
    """Return the size of a dependent's files, None if its result does not lie in the lake."""
    known = kind_named(kind)
    if known is None or not known.is_local:
        return None
    paths = [each for path in known.files(lake, name) for each in (path, *path.rglob("*"))]
    files = [path.stat().st_size for path in paths if path.is_file()]
    return TableSize(None, sum(files), len(files)) if files else None
