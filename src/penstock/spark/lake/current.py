"""The current table: for each document the newest change that is still on the surviving history.

The table is kept by `catch_up`, which takes in the changelog versions committed since its last commit and makes one
commit of them, together with the version that it has reached: a crash between the two tables' commits leaves a version
to take in, nothing else. Of a range's files only those are rewritten that hold a changed document, and small ones, so
that files do not pile up.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.spark.lake.delta import DataFile, RangeWriter, discard
from penstock.spark.lake.fold import keys_of, newest, to_changes, to_documents
from penstock.spark.lake.news import News, RangeNews, news_since
from penstock.spark.lake.schemas import CURRENT_COLUMNS
from penstock.spark.lake.tables import Lake

SMALL_BYTES, SMALL_ROWS = 8 << 20, 32_768
"""A file below both is rewritten whenever its range changes."""
IDLE_VERSIONS = 64
"""Changelog versions without rows after which the fold's position is committed all the same."""
VACUUM_EVERY = 50
"""Commits of `current` after which files that no longer belong to it are removed from the disk."""


@dataclass(frozen=True, slots=True)
class Progress:
    """version: of the changelog that `current` has reached, -1 without a changelog. changes: changelog rows taken in by
    this call. rewritten: whether everything was computed anew. rolled_back: vbuckets computed anew for a rollback."""

    version: int
    changes: int = 0
    rewritten: bool = False
    rolled_back: int = 0


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold whose files are written; `commit` makes them the table."""

    lake: Lake
    table: DeltaTable | None
    changelog_id: str
    added: list[DataFile]
    removed: list[DataFile]
    progress: Progress

    def commit(self) -> None:
        """Raises DeltaError if another process committed a fold since this one began."""
        table = self.lake.current_table
        transaction = (self.changelog_id, self.progress.version)
        table.commit(self.table, transaction, self.added, self.removed)
        opened = table.open()
        if opened is not None and opened.version() % VACUUM_EVERY == VACUUM_EVERY - 1:
            opened.vacuum(dry_run=False, full=True)


def catch_up(lake: Lake) -> Progress:
    """Fold what the changelog has gained into `current`; at once if there is nothing.

    Raises DeltaError if another process does the same at the same time.
    """
    step = prepare(lake)
    if isinstance(step, Fold):
        step.commit()
        return step.progress
    return step


def prepare(lake: Lake) -> Fold | Progress:
    """Write the files of the next fold, or return where `current` stands if there is nothing to fold."""
    table = lake.current_table.open()
    known = folded_version(lake, table)
    news = news_since(lake, known)
    if news is None:
        return Progress(-1)
    if known is not None and not news.everything and not news.files and news.version - known[1] < IDLE_VERSIONS:
        return Progress(news.version)
    before = lake.current_table.files(table) if table is not None else []
    parts = _Rewrite(lake, news, before).run()
    progress = Progress(
        news.version, news.rows, news.everything and bool(before), sum(part.rolled_back for part in parts)
    )
    added = [file for part in parts for file in part.added]
    removed = before if news.everything else [file for part in parts for file in part.removed]
    return Fold(lake, table, news.changelog_id, added, removed, progress)


def folded_version(lake: Lake, table: DeltaTable | None) -> tuple[str, int] | None:
    """Return the id and version of the changelog that `current` has taken in, None if that is no version of it."""
    changelog = lake.changelog_table.open()
    if table is None or changelog is None:
        return None
    changelog_id = str(changelog.metadata().id)
    version = table.transaction_version(changelog_id)
    return None if version is None else (changelog_id, version)


@dataclass(frozen=True, slots=True)
class _Part:
    added: list[DataFile]
    removed: list[DataFile]
    rolled_back: int


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """before: the files of `current`; nothing of them stays where everything is news."""

    lake: Lake
    news: News
    before: list[DataFile]

    def run(self) -> list[_Part]:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            tasks = [pool.submit(self.fold_range, part) for part in self.news.ranges]
        failed = [task for task in tasks if task.exception()]
        if failed:
            for task in tasks:
                if task not in failed:
                    discard(self.lake.current_table.path, task.result().added)
        return [task.result() for task in tasks]

    def fold_range(self, vbucket_range: int) -> _Part:
        """Put a range's changes in place of what its files say of the same documents."""
        news = self.news.read(vbucket_range)
        root = self.lake.current_table.path
        removed: list[DataFile] = []
        pool = [news.changes]
        with RangeWriter(root, vbucket_range, CURRENT_COLUMNS) as writer:
            if news.changes.num_rows or news.rolled_back or len(news.ended.collections):
                for file in self.before if not self.news.everything else ():
                    if file.vbucket_range != vbucket_range:
                        continue
                    rows = pq.ParquetFile(root / file.path).read(columns=CURRENT_COLUMNS.names)
                    lost, changed = _touched(rows, news)
                    touched = pc.or_(lost, changed)
                    if not pc.any(touched).as_py() and (file.size > SMALL_BYTES or file.rows > SMALL_ROWS):
                        continue
                    removed.append(file)
                    writer.write(rows.filter(pc.invert(touched)))
                    pool.append(to_changes(rows.filter(pc.and_not(changed, lost))))
                writer.write(to_documents(newest(pa.concat_tables(pool))))
            return _Part(writer.close(), removed, len(news.rolled_back))


def _touched(documents: pa.Table, news: RangeNews) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return which of `documents` no longer count, and which have keys that changes have too."""
    rolled = pc.is_in(documents["vbucket"], value_set=pa.array(news.rolled_back, pa.int32()))
    lost = pc.or_(rolled, pa.array(news.ended.holds(documents)))
    return lost, pc.is_in(keys_of(documents), value_set=news.changes["key"])
