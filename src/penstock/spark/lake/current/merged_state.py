"""Merged state: the documents as of the changelog's newest version, with pending changes merged on read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.lake.changelog.changelog_delta import LOOKUP_COLUMNS, ChangelogDelta, RangeDelta, find_delta
from penstock.spark.lake.changelog.merge_rules import to_documents
from penstock.spark.lake.current.current_table import read_merged_version
from penstock.spark.lake.tables.data_files import DataFile, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS

TRIES = 5
"""Number of times that a reader opens a table if vacuum removes its files."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MergedState:
    """One state of the documents.

    Attributes:
        lake: the lake of the tables.
        files: the files of the current table.
        delta: the changes that the files do not have.
    """

    lake: LakeDirectory
    files: tuple[DataFile, ...]
    delta: ChangelogDelta

    @classmethod
    def open(cls, lake: LakeDirectory) -> MergedState:
        """Return the newest state. Raises UsageError if the lake has no changelog."""
        # Opened before the changelog, so that `current` is never ahead of it.
        table = lake.current_table.open()
        delta = find_delta(lake, read_merged_version(lake, lake.current_table, table))
        if delta is None:
            refuse_missing_table(lake.changelog_table.path)
        files = lake.current_table.list_files(table) if table is not None and not delta.is_full else []
        return cls(lake, tuple(files), delta)

    def read_tables(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """Yield the documents that match `where`, each once and in no order.

        Raises FileNotFoundError if vacuum removed a file meanwhile.

        Args:
            columns: names of CURRENT_COLUMNS; None for all.
            where: an Arrow expression over CURRENT_COLUMNS.

        Yields:
            A table for each file, and for the pending changes of each range.
        """
        names = list(columns) if columns is not None else CURRENT_COLUMNS.names
        pending = set(self.delta.ranges)
        for part in sorted(pending | {file.vbucket_range for file in self.files}):
            delta = self.delta.read_range(part) if part in pending else None
            for file in self.files:
                if file.vbucket_range == part:
                    yield self._read_file(file, delta, names, where)
            if delta is not None:
                documents = to_documents(delta.changes)
                yield (documents if where is None else documents.filter(where)).select(names)

    def split(self) -> list[MergedState]:
        """Return a state for each vbucket range, with its documents alone."""
        return [
            MergedState(self.lake, _select_range(self.files, part), self.delta.select_range(part))
            for part in sorted({file.vbucket_range for file in self.files}.union(self.delta.ranges))
        ]

    def count_documents(self) -> int:
        """Return the number of documents; files of ranges without changes are not read."""
        pending = set(self.delta.ranges)
        count = sum(file.rows for file in self.files if file.vbucket_range not in pending)
        for part in pending:
            delta = self.delta.read_range(part)
            count += to_documents(delta.changes).num_rows
            files = (file for file in self.files if file.vbucket_range == part)
            count += sum(self._read_file(file, delta, ["vbucket"], None).num_rows for file in files)
        return count

    def _read_file(
        self, file: DataFile, delta: RangeDelta | None, names: list[str], where: pc.Expression | None
    ) -> pa.Table:
        """Return the documents of a file that the delta does not replace."""
        wanted = [*names, *(name for name in LOOKUP_COLUMNS if name not in names)] if delta is not None else names
        path = self.lake.current_table.path / file.path
        rows = open_dataset([str(path)], CURRENT_COLUMNS).to_table(columns=wanted, filter=where)
        if delta is not None:
            rows = rows.filter(pc.invert(delta.mark_outdated(rows)))
        return rows.select(names)


def _select_range(files: Iterable[DataFile], vbucket_range: int) -> tuple[DataFile, ...]:
    return tuple(file for file in files if file.vbucket_range == vbucket_range)


def read_newest_state(lake: LakeDirectory, read: Callable[[MergedState], T]) -> T:
    """Return the result of `read` for the newest state; it is called again if files were removed meanwhile."""
    return retry_missing_files(lambda: read(MergedState.open(lake)))


def retry_missing_files(read: Callable[[], T]) -> T:
    """Call `read`, which opens a table and reads its files, until no file is removed meanwhile.

    Args:
        read: opens the table at each call.

    Returns:
        The result of `read`.

    Raises:
        UsageError: a file is missing at each attempt, so the log names a file that does not exist.
    """
    for _ in range(TRIES):  # `read` opens the table again, and the newer version does not name the removed files
        try:
            return read()
        except FileNotFoundError as error:
            missing = error
    raise UsageError(f"a table of this lake lacks files that its log names: {missing}")


def refuse_missing_table(path: object) -> NoReturn:
    """Raise the error for a lake without this table.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"there is no table at {path}; expected the lake of a pipeline that has run")
