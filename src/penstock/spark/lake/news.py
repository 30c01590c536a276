"""What a changelog has gained since one of its versions, for whatever is kept behind it.

The current table, indexes, copies and notices all hang off the changelog in the same way: each remembers the version
that it has taken in, together with what it made of it, and asks `news_since` for what came after. What comes is, for
one vbucket range at a time, the newest change of each document that was touched; a rollback may bring back versions
that were overwritten, so that all documents of a rolled back vbucket come anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.spark.lake.delta import DataFile, open_dataset
from penstock.spark.lake.fold import MARKS, Ended, Marks, newest, with_collections
from penstock.spark.lake.schemas import FOLD_SCHEMA
from penstock.spark.lake.tables import Lake

POOL_BYTES = 256 << 20
"""Rows of one range held before superseded ones among them are dropped."""


@dataclass(frozen=True, slots=True)
class RangeNews:
    """News of one vbucket range.

    changes: the newest surviving change of each document that was touched, deletions and expirations included, in
    FOLD_SCHEMA; collection_id is never null. rolled_back: vbuckets of which nothing that was known before counts: all
    their documents are among `changes`. ended: collections of which nothing that was known before counts.
    """

    changes: pa.Table
    rolled_back: frozenset[int]
    ended: Ended


@dataclass(frozen=True, slots=True)
class News:
    """What the changelog has gained. changelog_id: the table's own id. version: of the changelog that this reaches.

    everything: nothing that was known before counts, in any range. files: those to take in. history: all files of the
    changelog where a rollback may need them.
    """

    lake: Lake
    changelog_id: str
    version: int
    everything: bool
    files: tuple[DataFile, ...]
    history: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Rows of the changelog that this takes in."""
        return sum(file.rows for file in self.files)

    @property
    def ranges(self) -> list[int]:
        """The vbucket ranges that there is news of."""
        return sorted({file.vbucket_range for file in self.files})

    def read(self, vbucket_range: int) -> RangeNews:
        """Return the news of one range. Raises FileNotFoundError where a file was taken away since."""
        news = self._paths(self.files, vbucket_range)
        history = self._paths(self.history, vbucket_range)
        marked = self._paths((file for file in self.files if file.keyless), vbucket_range)
        rolled = _marks(marked).cuts.floors() if not self.everything else {}
        sources: list[tuple[list[str], pc.Expression | None, Marks]]
        if rolled:
            vbuckets = pc.field("vbucket").isin(list(rolled))
            again = vbuckets & (pc.field("history") >= min(rolled.values()))
            sources = [(history, again, _marks(history, vbuckets)), (news, ~vbuckets, _marks(marked, ~vbuckets))]
        else:
            sources = [(news, None, _marks(marked))]
        changes = _reduce(marks.survivors(rows) for paths, which, marks in sources for rows in _rows(paths, which))
        return RangeNews(changes, frozenset(rolled), sources[-1][2].ended)

    def _paths(self, files: Iterable[DataFile], vbucket_range: int) -> list[str]:
        return self.lake.changelog_table.paths(file for file in files if file.vbucket_range == vbucket_range)


def news_since(lake: Lake, known: tuple[str, int] | None) -> News | None:
    """Return what the changelog has gained since a version, None if there is no changelog.

    known: the changelog's id and the version that was taken in, None: nothing. Everything comes anew where that is
    another changelog, or where what came after cannot be told any more.
    """
    changelog = lake.changelog_table.open()
    if changelog is None:
        return None
    changelog_id, version = str(changelog.metadata().id), changelog.version()
    files = None
    if known is not None and known[0] == changelog_id and known[1] <= version:
        files = lake.changelog_table.added_since(changelog, known[1])
    everything = files is None
    # The list of all files grows with the changelog: it is made only where it is needed.
    history: tuple[DataFile, ...] = ()
    if files is None or any(file.keyless for file in files):
        history = tuple(lake.changelog_table.files(changelog))
    return News(lake, changelog_id, version, everything, history if files is None else tuple(files), history)


def _marks(paths: list[str], which: pc.Expression | None = None) -> Marks:
    if not paths:
        return Marks.of(FOLD_SCHEMA.empty_table())
    marking = pc.field("event").isin(MARKS)
    return Marks.of(open_dataset(paths, FOLD_SCHEMA).to_table(filter=marking if which is None else marking & which))


def _rows(paths: list[str], which: pc.Expression | None) -> Iterator[pa.Table]:
    # Arrow would read ahead 16 batches in each of 4 files.
    options: dict[str, Any] = {"batch_size": 65_536, "batch_readahead": 2, "fragment_readahead": 1}
    dataset: ds.Dataset = open_dataset(paths, FOLD_SCHEMA)
    for batch in dataset.to_batches(filter=which, **options):
        yield with_collections(pa.Table.from_batches([batch]))


def _reduce(surviving: Iterable[pa.Table]) -> pa.Table:
    """Return the newest change of each document, holding little more than that at any time."""
    pool, fresh, settled = [FOLD_SCHEMA.empty_table()], 0, 0
    for rows in surviving:
        pool.append(rows)
        fresh += rows.nbytes
        if fresh > max(POOL_BYTES, settled):
            pool = [newest(pa.concat_tables(pool))]
            fresh, settled = 0, pool[0].nbytes
    return newest(pa.concat_tables(pool))
