"""Stopping a run from another process, and removing the tables of a lake."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import UsageError
from penstock.spark.dependents.registry import list_kinds
from penstock.spark.lake.current.typed_table import forget_typed_tables
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.state import run_state as control
from penstock.spark.pipeline.state.lake_files import REMOVED_PREFIX, list_lake_files
from penstock.spark.storage.object_path import LakePath, ObjectPath
from penstock.spark.storage.stored_documents import remove_tree

_POLL_SECONDS = 0.1
"""Seconds between two checks whether the runs have ended."""

CHANGELOG_NAME = "changelog"
"""The table that all others are made from: removing it removes all."""


def stop_runs(
    lakes: Sequence[LakeDirectory], seconds: float, report_request: Callable[[int], None] = lambda pid: None
) -> bool:
    """Ask the runs that hold these lakes to merge their pending changes and end, and wait for that.

    If a run was killed, only the end of its Java process is awaited.

    Args:
        lakes: the lakes.
        seconds: longest wait.
        report_request: called with the process of each run that was asked.

    Returns:
        True if all runs have ended.
    """
    deadline = time.monotonic() + seconds
    requested: dict[LakePath, str] = {}
    waiting = threading.Event()
    while running := [lake for lake in lakes if control.is_locked(lake)]:
        for lake in running:
            # Read at each check: a new run writes its state a moment after it takes the lock.
            state = control.read_run_state(lake)
            if state is not None and not state.ended and requested.get(lake.path) != state.run:
                control.request_stop(lake, state.run)
                if state.run not in requested.values():
                    report_request(state.pid)
                requested[lake.path] = state.run
        if time.monotonic() > deadline:
            return False
        waiting.wait(_POLL_SECONDS)
    return True


@dataclass(frozen=True, slots=True)
class Removal:
    """The files that a reset removes.

    Attributes:
        lake: the lake.
        tables: names of the removed tables and dependents; empty for all.
        paths: the existing files and directories.
    """

    lake: LakeDirectory
    tables: tuple[str, ...]
    paths: tuple[LakePath, ...]


def plan_removal(lake: LakeDirectory, tables: Sequence[str]) -> Removal:
    """Return the files that a reset would remove.

    Args:
        lake: the lake.
        tables: names of tables and dependents. Without names, or with `changelog`, the whole lake is removed.

    Returns:
        The existing files and directories.

    Raises:
        UsageError: the lake has no table or dependent with such a name.
    """
    known = _list_names(lake)
    if missing := [name for name in tables if name not in known]:
        raise UsageError(
            f"there is no {missing[0]!r} in {lake.path}, expected some of {', '.join(sorted(known)) or 'nothing'}"
        )
    if not tables or CHANGELOG_NAME in tables:
        found = [lake.path / name for name in ("changelog", "current", *_list_directories())]
        for row in list_lake_files():
            if row.is_run_file:
                found += lake.path.glob(row.pattern) if "*" in row.pattern else [lake.path / row.pattern]
        return Removal(lake, (), tuple(path for path in found if path.exists()))
    paths: list[LakePath] = []
    for name in tables:
        paths += [path for path in _list_paths(lake, name) if path.exists()]
    return Removal(lake, tuple(tables), tuple(paths))


def _list_directories() -> tuple[str, ...]:
    """Return the directories of a lake that hold the files of dependents."""
    return tuple(dict.fromkeys(kind.directory for kind in list_kinds()))


def _list_paths(lake: LakeDirectory, name: str) -> Iterable[LakePath]:
    if name == "current":
        return [lake.current_table.path]
    return dict.fromkeys(path for kind in list_kinds() for path in kind.list_files(lake, name))


def _list_names(lake: LakeDirectory) -> set[str]:
    names = {"changelog", "current"} if lake.current_table.path.exists() else {"changelog"}
    for directory in _list_directories():
        if (lake.path / directory).is_dir():
            names |= {path.name.partition(".")[0] for path in (lake.path / directory).iterdir()}
    return names


def remove_tables(removal: Removal, patience: float = 0.0) -> None:
    """Remove the files of a removal. Raises LakeRefused while a run holds the lake.

    Args:
        removal: the files.
        patience: seconds to wait for the lake's lock.
    """
    with hold_lock(removal.lake.path, patience):
        for table in (removal.lake.changelog_table, removal.lake.current_table):
            if table.path in removal.paths:
                table.forget()
        forget_typed_tables(removal.lake, removal.paths)
        if isinstance(removal.lake.path, ObjectPath):
            _remove_objects(removal)
            return
        # All paths are renamed before any is deleted, so that no run finds a table with missing files.
        moved = []
        for number, path in enumerate(removal.paths):
            target = removal.lake.path / f"{REMOVED_PREFIX}{number}-{time.time_ns()}"
            with suppress(FileNotFoundError):  # SQLite removes its extra files when the last reader closes
                Path(str(path)).replace(target)
                moved.append(target)
        control.forget_dependents(removal.lake, removal.tables)
        for path in moved:
            remove_tree(path)


def _remove_objects(removal: Removal) -> None:
    """Remove a lake's objects. If this is interrupted, no run continues the rest of the lake: it has no checkpoint."""
    control.forget_dependents(removal.lake, removal.tables)
    for path in sorted(removal.paths, key=lambda path: path != removal.lake.checkpoint):
        remove_tree(path)
