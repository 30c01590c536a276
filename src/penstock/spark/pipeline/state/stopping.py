"""Ending a run from another process, and making a lake new."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import UsageError
from penstock.spark.dependents.registry import kinds
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import locked
from penstock.spark.pipeline.state import run_state as control

__all__ = ["Removal", "removals", "reset", "stop"]

_LOOK_SECONDS = 0.1
_OLD = "_reset-"
"""How what is being removed is called meanwhile: what a crash leaves of it, the next reset takes."""

WHOLE = "changelog"
"""The table without which the others mean nothing."""
_OWN = ("_checkpoint", "_pending", "_schema.json", "_content.json", "_run.json", "_stop")
"""What a run keeps in the lake beside tables and dependents."""


def stop(lakes: Sequence[LakeDirectory], seconds: float, tell: Callable[[int], None] = lambda pid: None) -> bool:
    """Ask the runs that hold these lakes to merge what is pending and end, and wait for that; tell whether they did.

    tell: called with the process of a run when that is asked. A run that was killed needs nothing but its Java's end.
    """
    deadline = time.monotonic() + seconds
    asked: dict[Path, str] = {}
    waiting = threading.Event()
    while held := [lake for lake in lakes if control.is_locked(lake)]:
        for lake in held:
            account = control.read_run_state(lake)  # each time: a run that has just begun has not said its own yet
            if account is not None and not account.ended and asked.get(lake.path) != account.run:
                control.ask_to_stop(lake, account.run)
                if account.run not in asked.values():
                    tell(account.pid)
                asked[lake.path] = account.run
        if time.monotonic() > deadline:
            return False
        waiting.wait(_LOOK_SECONDS)
    return True


@dataclass(frozen=True, slots=True)
class Removal:
    """What a reset takes away. paths: those that exist."""

    lake: LakeDirectory
    tables: tuple[str, ...]
    paths: tuple[Path, ...]


def removals(lake: LakeDirectory, tables: Sequence[str]) -> Removal:
    """Return what would be removed. tables: names of things kept behind the changelog; none, or changelog: all.

    Raises UsageError for a name that is nothing of the lake.
    """
    if not tables or WHOLE in tables:
        names = ("changelog", "current", *_directories(), *_OWN)
        found = [lake.path / name for name in names] + [*lake.path.glob(f"{_OLD}*")]
        return Removal(lake, (), tuple(path for path in found if path.exists()))
    paths: list[Path] = []
    for name in tables:
        places = [path for path in _places(lake, name) if path.exists()]
        if not places:
            known = ", ".join(sorted(_known(lake))) or "nothing"
            raise UsageError(f"there is no {name!r} in {lake.path}, expected some of {known}")
        paths += places
    return Removal(lake, tuple(tables), tuple(paths))


def _directories() -> tuple[str, ...]:
    """Return the directories of a lake that hold the files of dependents."""
    return tuple(dict.fromkeys(kind.directory for kind in kinds()))


def _places(lake: LakeDirectory, name: str) -> Iterable[Path]:
    if name == "current":
        return [lake.current_table.path]
    return dict.fromkeys(path for kind in kinds() for path in kind.files(lake, name))


def _known(lake: LakeDirectory) -> set[str]:
    names = {"changelog", "current"} if lake.current_table.path.exists() else {"changelog"}
    for directory in _directories():
        if (lake.path / directory).is_dir():
            names |= {path.name.partition(".")[0] for path in (lake.path / directory).iterdir()}
    return names


def reset(removal: Removal, patience: float = 0.0) -> None:
    """Remove it. Raises LakeRefused while a run holds the lake."""
    with locked(removal.lake.path, patience):
        # First out of the way, then off the disk: no run finds a table that is half there.
        moved = []
        for number, path in enumerate(removal.paths):
            target = removal.lake.path / f"{_OLD}{number}-{time.time_ns()}"
            with suppress(FileNotFoundError):  # such as SQLite's, which go with their last reader
                path.replace(target)
                moved.append(target)
        control.forget_kept(removal.lake, removal.tables)
        for path in moved:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
