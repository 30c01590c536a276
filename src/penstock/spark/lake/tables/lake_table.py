"""The interface of a lake's table. Each format implements it: Delta, Iceberg, and plain Parquet files.

A commit names the files that it adds and removes, and a transaction (application id, version). The files are Parquet,
written before the commit, each for one vbucket range. A file that no commit names is not in the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from penstock.errors import Error, UsageError
from penstock.spark.lake.tables.data_files import DataFile
from penstock.spark.storage.object_path import LakePath


class CommitFailed(Error):
    """A commit was not made, most often because another commit came first."""


class TableVersion(Protocol):
    """One version of a table."""

    def version(self) -> int:
        """Return the number of this version; later versions have higher numbers."""

    def transaction_version(self, app_id: str, /) -> int | None:
        """Return the newest version that an application has committed, None if it has not committed."""


V = TypeVar("V", bound=TableVersion)


class LakeTable(ABC, Generic[V]):
    """One table of a lake. The directory need not exist before the first commit.

    Args:
        path: the directory of the table.
        schema: the columns, `vbucket_range` last.

    Attributes:
        format: the name of the format.
        has_versions: whether the table knows the rows of each commit, and can replace files.
        has_change_files: whether a commit may have files with the rows that differ, for readers of changes.
    """

    format: ClassVar[str]
    has_versions: ClassVar[bool] = True
    has_change_files: ClassVar[bool] = False

    path: LakePath

    def __init__(self, path: LakePath, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema

    @property
    def write_root(self) -> LakePath:
        """The directory in which the files of a commit are written."""
        return self.path

    @abstractmethod
    def open(self) -> V | None:
        """Return the newest version, None before the first commit.

        Raises UsageError if the path holds something else.
        """

    @abstractmethod
    def read_id(self, opened: V) -> str:
        """Return the id that the table got when it was created."""

    @abstractmethod
    def read_note(self, opened: V, name: str) -> str | None:
        """Return a note that the table got when it was created."""

    def number_columns(self, columns: pa.Schema, *, is_replacement: bool = False) -> pa.Schema:
        """Return the columns of new files, with ids if readers of the format find columns by them.

        Args:
            columns: the columns.
            is_replacement: whether the commit of the files gives the table these columns.
        """
        return columns

    @abstractmethod
    def commit(
        self,
        opened: V | None,
        transaction: tuple[str, int],
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        notes: Mapping[str, str] | None = None,
        *,
        rows_change: bool = True,
        changed: Sequence[DataFile] = (),
        is_replacement: bool = False,
    ) -> None:
        """Commit added and removed files on top of a version of the table.

        Raises CommitFailed if another commit with the same application id came first, or removed the same files.

        Args:
            opened: the version to commit on; None to create the table.
            transaction: application id and version.
            added: files to add.
            removed: files to remove.
            notes: notes for a new table.
            rows_change: False if the same rows only move to other files.
            changed: files of the change feed, with the rows that differ; none to derive them from the other files.
            is_replacement: whether the added files replace all others, and `schema` the columns.
        """

    def has_effect(
        self, opened: V, transaction: tuple[str, int], added: Iterable[DataFile], removed: Iterable[DataFile]
    ) -> bool:
        """Return whether a version has the effect of a commit whose answer was lost."""
        if opened.transaction_version(transaction[0]) != transaction[1]:
            return False
        live = {file.path for file in self.list_files(opened)}
        return {file.path for file in added} <= live and live.isdisjoint(file.path for file in removed)

    @abstractmethod
    def discard_uncommitted(self, files: Iterable[DataFile]) -> None:
        """Remove the given files unless the table has them.

        A commit may raise an error after it has landed. So the table decides which files are removed, not the caller.
        """

    @abstractmethod
    def list_files(self, opened: V) -> list[DataFile]:
        """Return every file of the table, oldest commit first."""

    @abstractmethod
    def list_added_since(self, opened: V, version: int) -> list[DataFile] | None:
        """Return the files that the commits after `version` added, in the order of the commits.

        None if that is unknown, or if rows were removed or another program added rows.
        """

    @abstractmethod
    def list_files_at(self, opened: V, when: datetime) -> list[DataFile]:
        """Return the files that the table had at a time. Raises UsageError if that is unknown."""

    def name_joined(self, files: Sequence[DataFile]) -> str:
        """Return the end of the name of a file into which the rows of some files are joined."""
        return ""

    @abstractmethod
    def has_grown(self, version: int) -> bool:
        """Return whether a version after `version` may exist. It costs less than opening the table."""

    @abstractmethod
    def is_intact(self, opened: V) -> bool:
        """Return whether only Penstock changed the rows; False if that is unknown."""

    @abstractmethod
    def refuse_foreign_changes(self, opened: V) -> None:
        """Raise LakeRefused if another program changed the rows, as far as that is known."""

    @abstractmethod
    def remove_unused_files(self, keep_hours: float | None = None, *, only_replaced: bool = False) -> None:
        """Remove files from the disk that the table has not needed for some time. Raises CommitFailed.

        Args:
            keep_hours: hours that files stay; None for the table's own time.
            only_replaced: True to keep files that no commit names: a batch may be about to commit them.
        """

    def set_time_travel(self) -> None:
        """Let past versions be readable for as long as in a new table. No effect for a table without versions."""

    def forget(self) -> None:
        """Remove the table from its catalog, if it has one, before its files are removed."""

    def check_versions(self) -> None:
        """Check that the table has versions, which all results that derive from a changelog need.

        Raises:
            UsageError: it has none.
        """
        if not self.has_versions:
            raise UsageError(f"{self.path} holds plain Parquet files, which have no versions; expected a Delta table")

    def list_paths(self, files: Iterable[DataFile]) -> list[str]:
        """Return the files' absolute paths."""
        return [str(self.path / file.path) for file in files]


AnyTable: TypeAlias = LakeTable[Any]
"""A table of any format."""
