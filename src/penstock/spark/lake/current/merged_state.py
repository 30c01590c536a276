"""The documents as of the changelog's newest version: pending changes are merged with the current table on read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import UsageError
from penstock.spark.lake.changelog.changelog_delta import LOOKED_UP, ChangelogDelta, RangeDelta, delta_since
from penstock.spark.lake.changelog.merge_rules import to_documents
from penstock.spark.lake.current.current_table import merged_version
from penstock.spark.lake.tables.delta_table import DataFile
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS

TRIES = 5
"""How often a reader opens a table again when vacuum removed files meanwhile."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Merged:
    """One state of the documents. files: of the current table. delta: the changes that the files do not have."""

    lake: LakeDirectory
    files: tuple[DataFile, ...]
    delta: ChangelogDelta

    @classmethod
    def open(cls, lake: LakeDirectory) -> Merged:
        """Take the newest state. Raises UsageError if the lake has no changelog."""
        table = lake.current_table.open()  # before the changelog: it is never ahead of that
        delta = delta_since(lake, merged_version(lake, table))
        if delta is None:
            raise no_table(lake.changelog_table.path)
        files = lake.current_table.files(table) if table is not None and not delta.everything else []
        return cls(lake, tuple(files), delta)

    def tables(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Yield the documents for which `where` holds, each once and in no order, in `columns` of CURRENT_COLUMNS.

        Raises FileNotFoundError where a clean-up took a file away since.
        """
        names = list(columns) if columns is not None else CURRENT_COLUMNS.names
        pending = set(self.delta.ranges)
        for part in sorted(pending | {file.vbucket_range for file in self.files}):
            delta = self.delta.read(part) if part in pending else None
            for file in self.files:
                if file.vbucket_range == part:
                    yield self._kept(file, delta, names, where)
            if delta is not None:
                documents = to_documents(delta.changes)
                yield (documents if where is None else documents.filter(where)).select(names)

    def count(self) -> int:
        """Return the number of documents; files of ranges without changes are not read."""
        pending = set(self.delta.ranges)
        count = sum(file.rows for file in self.files if file.vbucket_range not in pending)
        for part in pending:
            delta = self.delta.read(part)
            count += to_documents(delta.changes).num_rows
            files = (file for file in self.files if file.vbucket_range == part)
            count += sum(self._kept(file, delta, ["vbucket"], None).num_rows for file in files)
        return count

    def _kept(
        self, file: DataFile, delta: RangeDelta | None, names: list[str], where: pc.Expression | None
    ) -> pa.Table:
        wanted = [*names, *(name for name in LOOKED_UP if name not in names)] if delta is not None else names
        path = self.lake.current_table.path / file.path
        rows = pq.read_table(path, columns=wanted, filters=where, partitioning=None)
        if delta is not None:
            rows = rows.filter(pc.invert(delta.outdates(rows)))
        return rows.select(names)


def newest_state(lake: LakeDirectory, read: Callable[[Merged], T]) -> T:
    """Return what `read` makes of the newest state, of a newer one where files went away under it."""
    return retried(lambda: read(Merged.open(lake)))


def retried(read: Callable[[], T]) -> T:
    """Call `read`, which opens a table and reads its files, until none of them goes away meanwhile."""
    for _ in range(TRIES):
        try:
            return read()
        except FileNotFoundError as error:
            missing = error
    raise UsageError(f"a table of this lake lacks files that its log names: {missing}")


def no_table(path: object) -> UsageError:
    return UsageError(f"there is no table at {path}; expected the lake of a pipeline that has run")
