"""A Delta table's log and files in a directory or an object store, whose errors deltalake reports differently."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from penstock.errors import Unreachable, UsageError
from penstock.spark.storage.object_client import describe_store_error, find_store_options, repeat_cut_request
from penstock.spark.storage.object_path import LakePath, ObjectPath, identify_content

DEFAULT_HOURS = 24
"""Hours for which the past versions of a typed table can be read."""
REPLACED_HOURS = 1
"""Hours that replaced files of `changelog` and `current` stay, for readers that began before.

`current` is internal, and the rows of the changelog only move. A batch leaves sixteen files that a join replaces later.
Opening the table reads the names of all that it remembers: 130 ms for 160,000.
"""
MARGIN_HOURS = 1
"""Hours that the log remembers a removed file after its time: a vacuum of a running pipeline removes no other files."""
RETENTION = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")

_COMMIT = re.compile(r"[0-9]{20}\.(json|checkpoint\.)")
"""The beginning of the name of a commit or checkpoint in a log."""
MOST_OPENED = 256
"""Tables whose newest version a process remembers."""
FEW_FILES = 8
"""Number of objects up to which each is looked up, instead of a listing of all."""


def make_table_properties(log_hours: int, file_hours: int) -> dict[str, str]:
    """Return the properties of a table.

    Args:
        log_hours: hours for which its commits can be read.
        file_hours: hours for which its replaced files can be read.
    """
    times = (f"interval {hours + MARGIN_HOURS} hours" for hours in (log_hours, file_hours))
    # Opening a table reads its newest checkpoint and all later commits.
    return dict(zip(RETENTION, times, strict=True)) | {"delta.checkpointInterval": "50"}


def read_keep_hours(configuration: Mapping[str, str | None]) -> int | None:
    """Return the hours of `make_table_properties`, None for properties of another program or an older release.

    Args:
        configuration: the properties of a table.
    """
    found = re.fullmatch(r"interval ([0-9]{1,9}) hours", configuration.get(RETENTION[1]) or "")
    return None if found is None else max(0, int(found[1]) - MARGIN_HOURS)


def find_delta_options(path: LakePath) -> dict[str, str] | None:
    """Return deltalake's options for a place. They may have credentials, so no object keeps them."""
    return find_store_options(str(path)) if isinstance(path, ObjectPath) else None


def list_commit_errors(path: LakePath) -> tuple[type[Exception], ...]:
    """Return the errors of a commit that was not made, or whose answer was lost. A failing disk is another error."""
    return (DeltaError, OSError) if isinstance(path, ObjectPath) else (DeltaError,)


class _SharedVersion(DeltaTable):
    """A version of a table, for several callers. It remembers transactions: deltalake reads the log for each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.as_uri())
        self._transactions: dict[str, int | None] = {}

    def transaction_version(self, app_id: str) -> int | None:
        if app_id not in self._transactions:
            self._transactions[app_id] = super().transaction_version(app_id)
        return self._transactions[app_id]


class _OpenedTables:
    """The newest versions of tables on local disks, as this process has opened them.

    deltalake reads the checkpoint and up to fifty commits at each opening: 3 to 20 ms. A version is the newest one if
    its commit is the same file as before, and the next commit does not exist. It reads older files of the log later.
    So it counts only as long as no file came into the log's directory or left it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[Path, tuple[_LogState, DeltaTable]] = OrderedDict()

    def find(self, path: Path) -> DeltaTable | None:
        """Return the version of a table that was added last if it is the newest one, otherwise None."""
        with self._lock:
            known = self._tables.get(path)
        if known is None:
            return None
        state, opened = known
        is_newest = not _locate_commit(path, opened.version() + 1).exists()
        return opened if is_newest and _read_state(path, opened.version()) == state else None

    def add(self, path: Path, changed_at: int | None, opened: DeltaTable) -> None:
        """Add a version of a table.

        Args:
            path: the place of the table.
            changed_at: when the directory of its log had changed, before the version was read.
            opened: the version.
        """
        state = _read_state(path, opened.version())
        with self._lock:
            self._tables.pop(path, None)
            if state is not None and state.changed_at == changed_at:
                self._tables[path] = state, opened
            while len(self._tables) > MOST_OPENED:
                self._tables.popitem(last=False)


class _LogState(NamedTuple):
    """The state of a log on a local disk.

    Attributes:
        changed_at: when a file last came into the directory, or left it, in nanoseconds.
        newest: the content of the newest commit. A table may have been removed and created again.
    """

    changed_at: int
    newest: tuple[int | str, int]


_opened = _OpenedTables()


def _locate_commit(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def _read_state(path: Path, version: int) -> _LogState | None:
    changed_at = _read_change_time(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        newest = identify_content(_locate_commit(path, version).stat())
        return None if changed_at is None else _LogState(changed_at, newest)
    return None


def _read_change_time(path: Path) -> int | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return (path / "_delta_log").stat().st_mtime_ns
    return None


def open_delta_log(path: LakePath) -> DeltaTable | None:
    """Return the newest version of a table as deltalake opens it, None without a commit.

    Several callers may get the same object, so no caller may change it. Raises the errors of `read_delta_log`.

    Args:
        path: the place of the table.

    Returns:
        The table.
    """
    if not isinstance(path, Path):
        return read_delta_log(path)
    opened = _opened.find(path)
    if opened is None and _has_commit(path):
        changed_at = _read_change_time(path)
        opened = read_delta_log(path, lambda: _SharedVersion(path))
        if opened is not None:
            _opened.add(path, changed_at, opened)
    return opened


def read_delta_log(path: LakePath, read: Callable[[], DeltaTable] | None = None) -> DeltaTable | None:
    """Return the newest version of a table in an object of its own, None without a commit.

    Args:
        path: the place of the table.
        read: reads it; None to let deltalake do it.

    Returns:
        The table.

    Raises:
        Unreachable: the object store does not answer.
        UsageError: the log is damaged.
    """
    own = read or (lambda: DeltaTable(path.as_uri(), storage_options=find_delta_options(path)))
    try:
        return repeat_cut_request(own)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        if isinstance(path, ObjectPath):
            raise Unreachable(f"{path}: {describe_store_error(error)}") from error
        reason = str(error).partition("\n")[0]  # a backtrace follows
        raise UsageError(f"{path} has a Delta log that cannot be read: {reason}") from error


def _has_commit(path: Path) -> bool:
    """Return whether a directory has a commit. deltalake would create the directory, or list its whole log."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path / "_delta_log") as entries:
        return any(_COMMIT.match(entry.name) for entry in entries)
    return False


def have_all_files(root: LakePath, names: Sequence[str]) -> bool:
    """Return whether all files of a table exist.

    Args:
        root: the place of the table.
        names: the files, relative to the table.
    """
    if isinstance(root, Path) or len(names) <= FEW_FILES:
        return all((root / name).exists() for name in names)
    # One request lists as many objects as a thousand requests would find.
    found = {str(place) for place in root.rglob("*.parquet")}
    return all(str(root / name) in found for name in names)
