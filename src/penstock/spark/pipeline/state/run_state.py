"""The state of a run in the lake's directory, and the request to stop it.

`_run.json` has the run's state; every update replaces the whole file. `_stop` names the run that is asked to end. A run
has a unique id, so a request that outlived its run, or a process number that was given again, has no effect. Neither
file shows whether a run lives: the lake's lock does, which ends with the run's processes.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.errors import LakeRefused, UsageError
from penstock.spark.lake.tables import plain_manifests
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import NAME as LOCK

__all__ = [
    "RunState",
    "ask_to_stop",
    "begin",
    "check_content",
    "forget_kept",
    "forget_requests",
    "is_asked_to_stop",
    "is_locked",
    "lakes_at",
    "read_run_state",
]

ACCOUNT, STOP, CONTENT = "_run.json", "_stop", "_content.json"
_MARKS = ("_checkpoint", "changelog", ACCOUNT)


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a lake's newest run, as the run reported it last.

    Attributes:
        run: the run's id.
        pid: its process.
        started, updated: seconds since the epoch.
        ended: whether the run ended by itself.
        error: the error that ended it, in one sentence.
        said: its progress, SourceProgress as a dict.
    """

    run: str
    pid: int
    started: float
    updated: float
    ended: bool
    error: str | None
    said: dict[str, Any]

    def write(self, lake: LakeDirectory) -> None:
        """Replace the state in the lake's directory."""
        text = json.dumps({name: getattr(self, name) for name in self.__slots__})
        draft = lake.path / f"{ACCOUNT}.{self.run}"
        draft.write_text(text)
        draft.replace(lake.path / ACCOUNT)


def begin() -> RunState:
    """Return the state of a run that begins in this process."""
    now = time.time()
    return RunState(uuid.uuid4().hex, os.getpid(), now, now, ended=False, error=None, said={})


def read_run_state(lake: LakeDirectory) -> RunState | None:
    """Return the state of a lake's newest run, None if there was no run."""
    try:
        return RunState(**json.loads((lake.path / ACCOUNT).read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError):
        raise UsageError(f"{lake.path / ACCOUNT} is not what a run writes; it may be removed") from None


def ask_to_stop(lake: LakeDirectory, run: str) -> None:
    """Ask this run to end."""
    draft = lake.path / f"{STOP}.{os.getpid()}"
    draft.write_text(run)
    draft.replace(lake.path / STOP)


def is_asked_to_stop(lake: LakeDirectory, run: str) -> bool:
    """Return whether this run was asked to end; requests to other runs are removed."""
    path = lake.path / STOP
    try:
        asked = path.read_text()
    except FileNotFoundError:
        return False
    if asked != run:
        path.unlink(missing_ok=True)
    return asked == run


def forget_requests(lake: LakeDirectory) -> None:
    """Remove the request to a run that ends."""
    (lake.path / STOP).unlink(missing_ok=True)


def forget_kept(lake: LakeDirectory, names: Collection[str]) -> None:
    """Remove dependents that were deleted from the state of a run that has ended."""
    account = read_run_state(lake)
    if account is not None:
        dependents = [each for each in account.said.get("dependents", ()) if each["name"] not in names]
        replace(account, said={**account.said, "dependents": dependents}).write(lake)


def check_content(lake: LakeDirectory, content: dict[str, str]) -> None:
    """Store the options that decide about the rows of a new lake; raise LakeRefused if an old lake has others."""
    path, root = lake.path / CONTENT, lake.changelog_table.path
    try:
        before = json.loads(path.read_text())
    except FileNotFoundError:
        before = {}
    except ValueError:
        raise UsageError(f"{path} is not what a run writes; expected what its tables hold, as JSON") from None
    if not (root / "_delta_log").is_dir() and plain_manifests.newest_batch(root) is None:
        before = content  # whoever wrote that down has come no further, as for a filter that Spark refused
    for name in sorted(before.keys() | content.keys()):
        if before.get(name) != content.get(name):
            was, now = (repr(each[name]) if name in each else "nothing" for each in (before, content))
            raise LakeRefused(
                f"{lake.path} was written with {name} {was}, and now it is {now}, which makes other tables:"
                " choose another directory, or begin anew with penstock pipeline reset"
            )
    draft = lake.path / f"{CONTENT}.{os.getpid()}"
    draft.write_text(json.dumps(content))
    draft.replace(path)


def is_locked(lake: LakeDirectory) -> bool:
    """Tell whether a run holds the lake, or the Java of one that was killed still does."""
    try:
        file = os.open(lake.path / LOCK, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # Shared: those who only ask do not keep each other out.
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        return True
    finally:
        os.close(file)


def lakes_at(path: str) -> dict[str | None, LakeDirectory]:
    """Return the lakes in a directory, by the name of their source: itself, or those of several sources.

    Raises UsageError if there is none.
    """
    lake = LakeDirectory(path)
    if _is_lake(lake.path):
        return {None: lake}
    inside = sorted(each for each in lake.path.iterdir() if _is_lake(each)) if lake.path.is_dir() else []
    if not inside:
        raise UsageError(f"there is no lake at {lake.path}; expected the directory of a pipeline that has run")
    return {each.name: LakeDirectory(each) for each in inside}


def _is_lake(path: Path) -> bool:
    return any((path / mark).exists() for mark in _MARKS)
