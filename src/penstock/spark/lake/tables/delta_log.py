"""The log of a lake's Delta table: its commits, and the programs that made them.

Each commit of Penstock has a transaction, and the version that it was made on (BASE_VERSION). A DELETE, UPDATE or
INSERT of another program has neither. Penstock checks a version before it commits on it. So only versions after the
base of the newest own commit are unchecked. `LogCommit.is_own` decides alone which commits may change rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from penstock.spark.lake.tables.data_files import RANGE_COLUMN, DataFile

BASE_VERSION = "penstock.baseVersion"
"""The key of a commit's metadata for the version that the commit was made on."""
CHANGE_DIRECTORY = "_change_data"
"""The directory of a table's change feed, as Delta's readers expect it."""


@dataclass(frozen=True, slots=True)
class LogCommit:
    """One commit of a table.

    Attributes:
        version: the version that the commit made.
        operation: the name of the operation, such as DELETE.
        is_own: True if Penstock made the commit. Any operation of Penstock may remove rows.
        base: the version that an own commit was made on.
        restored: the version that the commit restored, None for all other operations.
        added: the files with new rows of an own commit.
        adds_rows: True if it adds rows.
        removes_rows: True if it removes rows. Joining files only moves rows.
    """

    version: int
    operation: str
    is_own: bool
    base: int
    restored: int | None
    added: tuple[DataFile, ...]
    adds_rows: bool
    removes_rows: bool

    @property
    def is_foreign_change(self) -> bool:
        """Whether another program added or removed rows."""
        return not self.is_own and (self.adds_rows or self.removes_rows)


def parse_commit(version: int, log: str) -> LogCommit:
    """Return a commit from the text of its log file."""
    info: dict[str, Any] = {}
    is_own = removes_rows = False
    added: list[dict[str, Any]] = []
    for line in log.strip().split("\n"):
        action = json.loads(line)
        info = action.get("commitInfo", info)
        is_own |= "txn" in action
        # The actions of a compaction have dataChange false: its rows only move to other files.
        removes_rows |= "remove" in action and action["remove"].get("dataChange", True)
        if "add" in action and action["add"]["dataChange"]:
            added.append(action["add"])
    operation = str(info.get("operation", "unknown operation"))
    restored = info.get("operationParameters", {}).get("version") if operation == "RESTORE" else None
    return LogCommit(
        version,
        operation,
        is_own,
        int(info.get(BASE_VERSION, version - 1)),
        None if restored is None else int(restored),
        tuple(map(_parse_add_action, added)) if is_own else (),
        bool(added),
        removes_rows,
    )


def _parse_add_action(add: dict[str, Any]) -> DataFile:
    stats = json.loads(add["stats"])
    return DataFile(
        unquote(add["path"]),
        add["size"],
        stats["numRecords"],
        int(add["partitionValues"].get(RANGE_COLUMN, -1)),  # an index has no partitions
        modified=add["modificationTime"],
        keyless_rows=stats["nullCount"].get("key", -1),
    )


def format_feed_commit(
    base: int, transaction: tuple[str, int], files: Mapping[str, Sequence[DataFile]], now: int
) -> str:
    """Return the text of a commit with files of the change feed, for which deltalake has no action.

    Args:
        base: the version that the commit is made on.
        transaction: application id and version.
        files: the files by the kind of action: add, remove and cdc.
        now: milliseconds since the epoch.
    """
    info = {
        "timestamp": now,
        "operation": "MERGE",
        "operationParameters": {},
        "isBlindAppend": False,
        BASE_VERSION: str(base),
    }
    actions: list[dict[str, Any]] = [
        {"commitInfo": info},
        {"txn": {"appId": transaction[0], "version": transaction[1], "lastUpdated": now}},
    ]
    for kind, some in files.items():
        for file in some:
            action = {"path": file.path, "partitionValues": {RANGE_COLUMN: str(file.vbucket_range)}, "size": file.size}
            if kind == "add":
                action |= {"modificationTime": file.modified or now, "dataChange": True, "stats": file.stats}
            elif kind == "remove":
                action |= {"deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}
            else:
                action |= {"path": f"{CHANGE_DIRECTORY}/{file.path}", "dataChange": False}
            actions.append({kind: action})
    return "".join(f"{json.dumps(action)}\n" for action in actions)


def list_unchecked_commits(version: int, read: Callable[[int], LogCommit | None]) -> list[LogCommit | None]:
    """Return the commits that no own commit has checked, newest first.

    A foreign commit that landed between an own commit and its base is unchecked too. Commits that were undone by a
    RESTORE are left out, and so is this RESTORE.

    Args:
        version: the newest version of the table.
        read: returns the commit of a version, None if its log was removed.

    Returns:
        The commits. The last one is None if its log was removed; then older commits are unknown.
    """
    commits: list[LogCommit | None] = []
    checked: int | None = None
    number = version
    while number >= 0 and (checked is None or number > checked):
        commit = read(number)
        if commit is None:
            return [*commits, None]
        if commit.restored is not None and _undoes_only_foreign(commit.restored, number, read):
            number = commit.restored
            continue
        if commit.is_own:
            checked = commit.base if checked is None else min(checked, commit.base)
        commits.append(commit)
        number -= 1
    return commits


def _undoes_only_foreign(restored: int, version: int, read: Callable[[int], LogCommit | None]) -> bool:
    """Return whether no own commit lies between a RESTORE and the version that it restored.

    The table keeps the transaction of such a commit, but a RESTORE removes its rows.
    """
    undone = [read(number) for number in range(restored + 1, version)]
    return all(commit is not None and not commit.is_own for commit in undone)
