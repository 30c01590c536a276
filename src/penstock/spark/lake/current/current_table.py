"""Merges of document tables: `current`, which has the newest change of each document, and the typed tables.

A merge adds the changelog versions since the table's last commit. One commit makes the result visible and records the
version that it reaches. So a crash between the commits of two tables leaves only versions to merge. A table without
changed rows has no commit, and its position is recorded beside it. A merge rewrites the files that hold a changed
document. It also rewrites small files, so that their number stays low.

Tables that have reached the same version share the read of the changelog.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.argument_types import check_arguments
from penstock.errors import Error
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, find_delta
from penstock.spark.lake.changelog.idle_positions import find_idle_version, record_idle_tables
from penstock.spark.lake.current.change_table import ChangeRewrite
from penstock.spark.lake.current.document_table import DocumentTable, LoadStamp, describe_current
from penstock.spark.lake.current.history_table import HistoryRewrite
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.table_rewrite import DocumentRewrite, RewrittenFiles, TableRewrite, rewrite_tables
from penstock.spark.lake.current.table_shape import CHANGES, CURRENT, HISTORY
from penstock.spark.lake.tables.data_files import DataFile
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable, CommitFailed, TableVersion

TRIES = 5
"""Number of times that a merge is prepared if compactions of its table come first."""
IDLE_VERSIONS = 64
"""Changelog versions without rows after which the position is recorded nevertheless."""
VACUUM_EVERY = 50
"""Commits of a table after which unused files are removed from the disk."""

REWRITES: dict[str, type[TableRewrite]] = {CURRENT: DocumentRewrite, HISTORY: HistoryRewrite, CHANGES: ChangeRewrite}
"""How merges change the files of tables, by mode."""


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """The result of a merge into one table.

    Attributes:
        version: the changelog version that the table has reached, -1 without a changelog.
        changes: changelog rows that this call merged.
        rewritten: True if the whole table was computed again.
        rolled_back: vbuckets that were computed again because of a rollback.
        pending: changelog rows that wait for the policy; they begin after `version`.
    """

    version: int
    changes: int = 0
    rewritten: bool = False
    rolled_back: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class PreparedMerge:
    """A merge whose files are written; `commit` adds them to the table.

    Attributes:
        target: the table.
        opened: the version that the merge began with, None before the first commit.
        changelog_id: the changelog, which is the application id of the commit.
        files: the files.
        progress: the result.
    """

    target: DocumentTable
    opened: TableVersion | None
    changelog_id: str
    files: RewrittenFiles
    progress: MergeProgress

    def commit(self) -> None:
        """Commit the merge. Raises CommitFailed if another process committed a merge since this merge began."""
        transaction = (self.changelog_id, self.progress.version)
        files, replaces = self.files, self.target.is_replacement and self.opened is not None
        self.target.table.commit(
            self.opened,
            transaction,
            files.added,
            files.removed,
            self.target.notes,
            changed=files.changed,
            is_replacement=replaces,
        )

    def discard(self) -> None:
        """Remove the files of a merge that was not committed."""
        self.target.table.discard_uncommitted(self.files.added)
        RewrittenFiles([], [], self.files.changed, 0).discard(self.target)

    def was_overtaken(self) -> bool:
        """Return whether another process committed a merge since this merge began."""
        newest = self.target.table.open()
        before, now = (
            None if table is None else table.transaction_version(self.changelog_id) for table in (self.opened, newest)
        )
        return before != now

    def vacuum(self) -> None:
        """Remove unused files at every VACUUM_EVERYth commit. The next call retries a failed removal."""
        opened = self.target.table.open()
        if opened is not None and opened.version() % VACUUM_EVERY == VACUUM_EVERY - 1:
            with suppress(CommitFailed):
                self.target.table.remove_unused_files()


@check_arguments
def merge_current(lake: LakeDirectory, policy: MergePolicy | None = None) -> MergeProgress:
    """Merge the changes that the changelog has gained into `current`.

    Args:
        lake: the lake of the tables.
        policy: decides whether a merge is due; None to merge in any case.

    Returns:
        The progress, also if no merge was due. Raises the errors of `merge_tables`.
    """
    return merge_tables([describe_current(lake)], policy)[0]


def merge_tables(targets: Sequence[DocumentTable], policy: MergePolicy | None = None) -> list[MergeProgress]:
    """Merge the changes that the changelog has gained into document tables of a lake.

    Args:
        targets: the tables.
        policy: decides whether a merge is due; None to merge in any case.

    Returns:
        The progress of each table, also if no merge was due.

    Raises:
        Error: other processes changed a table at each attempt. It is CommitFailed if another process merges.
    """
    found: dict[int, MergeProgress] = {}
    waiting = list(range(len(targets)))
    for _ in range(TRIES):
        steps = prepare_merges([targets[at] for at in waiting], policy)
        found |= {at: each for at, each in zip(waiting, _commit_merges(steps), strict=True) if each is not None}
        waiting = [at for at in waiting if at not in found]
        if not waiting:
            return [found[at] for at in range(len(targets))]
    path = targets[waiting[0]].table.path
    raise Error(f"{path} was changed by others {TRIES} times while changes were merged into it")


def _commit_merges(steps: Sequence[PreparedMerge | MergeProgress]) -> list[MergeProgress | None]:
    """Commit the merges among the steps. If another process merges into a table, CommitFailed is raised at the end.

    Returns:
        The progress of each step. None for a merge that must be prepared again: its table was changed meanwhile.
    """
    found: list[MergeProgress | None] = []
    overtaken: CommitFailed | None = None
    for step in steps:
        if not isinstance(step, PreparedMerge):
            found.append(step)
            continue
        try:
            step.commit()
        except CommitFailed as error:
            step.discard()
            found.append(None)
            # A compaction, and a commit of another program, keeps the merged version; another merge changes it.
            if step.was_overtaken():
                overtaken = error
        else:
            step.vacuum()
            found.append(step.progress)
    if overtaken is not None:
        raise overtaken
    return found


def prepare_merges(
    targets: Sequence[DocumentTable], policy: MergePolicy | None = None
) -> list[PreparedMerge | MergeProgress]:
    """Write the files of the next merges of document tables, as far as they are due.

    The changes are read once for all tables that have reached the same version.

    Args:
        targets: tables of one lake.
        policy: decides whether a merge is due; None to merge in any case.

    Returns:
        For each table the merge to commit, or its progress if no merge is due.
    """
    states = [_TableState.read(target) for target in targets]
    found: dict[int, PreparedMerge | MergeProgress] = {}
    for known in dict.fromkeys(state.known for state in states):
        members = {at: state for at, state in enumerate(states) if state.known == known}
        delta = find_delta(targets[0].lake, known)
        if delta is None:
            return [MergeProgress(-1)] * len(targets)
        progress = {at: state.find_progress(delta, policy) for at, state in members.items()}
        found |= {at: each for at, each in progress.items() if each is not None}
        due = [at for at in members if at not in found]
        found |= zip(due, _rewrite_states(delta, [states[at] for at in due]), strict=True)
    return [found[at] for at in range(len(targets))]


@dataclass(frozen=True, slots=True)
class _TableState:
    """A table before a merge.

    Attributes:
        target: the table.
        opened: its newest version, None before the first commit.
        known: id and version of the changelog that it has merged.
        files: its files.
    """

    target: DocumentTable
    opened: TableVersion | None
    known: tuple[str, int] | None
    files: list[DataFile]

    @classmethod
    def read(cls, target: DocumentTable) -> _TableState:
        opened = target.table.open()
        if target.is_replacement:  # the commit removes the files of the other columns
            return cls(target, opened, None, [])
        known = read_merged_version(target.lake, target.table, opened)
        return cls(target, opened, known, target.table.list_files(opened) if opened is not None else [])

    def begin_rewrite(self, stamp: LoadStamp) -> TableRewrite:
        """Return the rewrite of a merge."""
        target = self.target
        columns = target.table.number_columns(target.columns, is_replacement=target.is_replacement)
        return REWRITES[target.mode](target, self.files, stamp, columns, self.known is None)

    def find_progress(self, delta: ChangelogDelta, policy: MergePolicy | None) -> MergeProgress | None:
        """Return the progress of the table if no merge is due, otherwise None."""
        # Without a valid table the policy is ignored: readers would have to merge the whole changelog.
        if self.known is None or delta.is_full:
            return None
        if not delta.files:
            return MergeProgress(delta.version) if delta.version - self.known[1] < IDLE_VERSIONS else None
        rows = sum(file.rows for file in self.files)
        if policy is None or policy.is_due(delta.rows, rows, delta.age(), len(delta.files)):
            return None
        return MergeProgress(self.known[1], pending=delta.rows)


def _rewrite_states(delta: ChangelogDelta, states: Sequence[_TableState]) -> list[PreparedMerge | MergeProgress]:
    """Write the files of tables that have reached the same version.

    Returns:
        For each table the merge to commit, or its progress if no row of it changes.
    """
    if not states:
        return []
    stamp = LoadStamp(delta.version, time.time_ns() // 1000)
    rewritten = rewrite_tables(delta, [state.begin_rewrite(stamp) for state in states])
    steps: list[PreparedMerge | MergeProgress] = []
    idle: dict[str, int] = {}
    for state, files in zip(states, rewritten, strict=True):
        table, opened = state.target.table, state.opened
        is_rewritten = delta.is_full and bool(state.files)
        progress = MergeProgress(delta.version, delta.rows, is_rewritten, files.rolled_back)
        committed = None if opened is None else opened.transaction_version(delta.changelog_id)
        if files.is_empty and state.known is not None and opened is not None and committed is not None:
            idle[table.read_id(opened)] = committed
            steps.append(progress)
        else:
            steps.append(PreparedMerge(state.target, opened, delta.changelog_id, files, progress))
    record_idle_tables(delta.lake, delta.changelog_id, idle, delta.version)
    return steps


def read_merged_version(lake: LakeDirectory, table: AnyTable, opened: TableVersion | None) -> tuple[str, int] | None:
    """Return id and version of the changelog that `current` or an index has merged.

    None if the table must be computed again: there is none, it was merged from another changelog, or another program
    changed its rows.

    Args:
        lake: the lake of the changelog.
        table: the current table, or the table of an index.
        opened: the version of the table, None before its first commit.

    Returns:
        The changelog's id, and its version.
    """
    changelog = lake.changelog_table.open()
    if opened is None or changelog is None or not table.is_intact(opened):
        return None
    changelog_id = lake.changelog_table.read_id(changelog)
    version = opened.transaction_version(changelog_id)
    if version is None:
        return None
    reached = find_idle_version(lake, changelog_id, table.read_id(opened), version)
    return changelog_id, reached if reached <= changelog.version() else version
