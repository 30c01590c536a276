"""Changelog deltas: what a changelog has gained since one of its versions.

The current table and all dependents use the changelog in the same way. Each stores the version that it has applied,
together with its result, and asks `delta_since` for the changes after that version. A delta has, for one vbucket range
at a time, the newest change of each document that was touched. A rollback may bring back versions that were
overwritten, so a delta has all documents of a rolled back vbucket.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.lake.changelog.merge_rules import (
    DOCUMENT_EVENTS,
    IDENTITY,
    MARKER_EVENTS,
    CollectionEnds,
    RowMarkers,
    among,
    collections_of,
    keys_of,
    newest,
    with_collections,
)
from penstock.spark.lake.tables.delta_table import DataFile, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA

LOOKED_UP = ("vbucket", "collection_id", "key", "key_bytes")
"""Columns of a document of the current table by which its delta is found."""
IDENTITIES = pa.schema([MERGE_SCHEMA.field(name) for name in IDENTITY])
KNOWN_SCHEMA = IDENTITIES.append(pa.field("alive", pa.bool_()))
SLIM_SCHEMA = pa.schema([MERGE_SCHEMA.field(name) for name in (*IDENTITY, "event", "seqno", "history")])

BATCH_ROWS = 65_536
POOL_BYTES = 256 << 20
"""Rows of one range held before superseded ones among them are dropped."""


@dataclass(frozen=True, slots=True)
class RangeDelta:
    """ChangelogDelta of one vbucket range.

    changes: the newest surviving change of each document that was touched, deletions and expirations included, in
    MERGE_SCHEMA; collection_id is never null. rolled_back: vbuckets of which nothing that was known before counts: all
    their documents are among `changes`. ended: collections of which nothing that was known before counts.
    """

    changes: pa.Table
    rolled_back: frozenset[int]
    ended: CollectionEnds

    def outdates(self, documents: pa.Table) -> pa.Array:
        """Return which of `documents`, known before, no longer count or have a change here.

        documents: with the columns LOOKED_UP of the current table.
        """
        rolled = pc.is_in(documents["vbucket"], value_set=pa.array(self.rolled_back, pa.int32()))
        lost = rolled.to_numpy() | self.ended.holds(documents)
        keys = keys_of(documents)
        # A key alone tells most of what is not changed; the few others are looked up by all of their identity.
        like = np.flatnonzero(pc.is_in(keys, value_set=self.changes["key"]).to_numpy())
        found = documents.select(["vbucket", "collection_id"]).take(like).append_column("key", keys.take(like))
        lost[like] |= among(found, self.changes)
        return pa.array(lost)


@dataclass(frozen=True, slots=True)
class ChangelogDelta:
    """What the changelog has gained. changelog_id: the table's own id. version: of the changelog that this reaches.

    everything: nothing that was known before counts, in any range. files: those to take in. history: all files of the
    changelog where a rollback may need them.
    """

    lake: LakeDirectory
    changelog_id: str
    version: int
    everything: bool
    files: tuple[DataFile, ...]
    history: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Rows of the changelog in this delta."""
        return sum(file.rows for file in self.files)

    def age(self) -> float:
        """Return the seconds since the oldest of this was committed; 0 if there is nothing."""
        return max(0.0, time.time() - min((file.modified / 1000 for file in self.files), default=math.inf))

    @property
    def ranges(self) -> list[int]:
        """The vbucket ranges that there is delta of."""
        return sorted({file.vbucket_range for file in self.files})

    def read(self, vbucket_range: int, schema: pa.Schema = MERGE_SCHEMA) -> RangeDelta:
        """Return the delta of one range. Raises FileNotFoundError where a file was taken away since.

        schema: what is read of a change; it has the columns of SLIM_SCHEMA. What is not in it is not read from disk.
        """
        delta = self._paths(self.files, vbucket_range)
        history = self._paths(self.history, vbucket_range)
        marked = self._paths((file for file in self.files if file.keyless), vbucket_range)
        rolled = _marks(marked).cuts.floors() if not self.everything else {}
        sources: list[tuple[list[str], pc.Expression | None, RowMarkers]]
        if rolled:
            vbuckets = pc.field("vbucket").isin(list(rolled))
            again = vbuckets & (pc.field("history") >= min(rolled.values()))
            sources = [(history, again, _marks(history, vbuckets)), (delta, ~vbuckets, _marks(marked, ~vbuckets))]
        else:
            sources = [(delta, None, _marks(marked))]
        read = (marks.survivors(rows) for paths, which, marks in sources for rows in _rows(paths, which, schema))
        changes = _reduce(read, schema)
        return RangeDelta(changes, frozenset(rolled), sources[-1][2].ended)

    def lost(self, vbucket_range: int) -> pa.Table:
        """Return (vbucket, collection_id, key) of documents that rollbacks or ends of collections took away.

        These had changes, and of none of them is there any among `read(vbucket_range).changes`: neither a document nor
        a deletion survives. Where everything is delta, these are all such documents that the changelog knows. Raises
        FileNotFoundError as `read` does.
        """
        marked = _marks(self._paths((file for file in self.files if file.keyless), vbucket_range))
        rolled = set(marked.cuts.floors())
        ended = marked.ended.collections
        which: pc.Expression | None = None
        if not self.everything:
            vbuckets = rolled | set((ended >> 32).tolist())
            if not vbuckets:
                return IDENTITIES.empty_table()
            which = pc.field("vbucket").isin(list(vbuckets))
        history = self._paths(self.history, vbucket_range)
        marks = _marks(history, which)

        def identified() -> Iterator[pa.Table]:
            for rows in _rows(history, which, SLIM_SCHEMA):
                rows = rows.filter(pc.is_in(rows["event"], value_set=DOCUMENT_EVENTS))
                if not self.everything:
                    concerned = np.isin(rows["vbucket"].to_numpy(), list(rolled)) | np.isin(collections_of(rows), ended)
                    rows = rows.filter(pa.array(concerned))
                yield rows.select(IDENTITY).append_column("alive", pa.array(marks.survive(rows)))

        found = _reduce(identified(), KNOWN_SCHEMA, _known)
        return found.filter(pc.invert(found["alive"])).select(IDENTITY)

    def _paths(self, files: Iterable[DataFile], vbucket_range: int) -> list[str]:
        return self.lake.changelog_table.paths(file for file in files if file.vbucket_range == vbucket_range)


def delta_since(lake: LakeDirectory, known: tuple[str, int] | None) -> ChangelogDelta | None:
    """Return what the changelog has gained since a version, None if there is no changelog.

    known: the changelog's id and the version that was applied, None: nothing. The delta has everything if that is
    another changelog, or if the log of a later version no longer exists.
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
    return ChangelogDelta(lake, changelog_id, version, everything, history if files is None else tuple(files), history)


def _marks(paths: list[str], which: pc.Expression | None = None) -> RowMarkers:
    if not paths:
        return RowMarkers.of(SLIM_SCHEMA.empty_table())
    marking = pc.field("event").isin(MARKER_EVENTS)
    return RowMarkers.of(
        open_dataset(paths, SLIM_SCHEMA).to_table(filter=marking if which is None else marking & which)
    )


def _rows(paths: list[str], which: pc.Expression | None, schema: pa.Schema = MERGE_SCHEMA) -> Iterator[pa.Table]:
    batches: Iterator[pa.RecordBatch]
    if which is None:
        # A changelog's files are many and small, and a dataset of them takes twice as long.
        files = (pq.ParquetFile(path, pre_buffer=False) for path in paths)
        batches = (
            batch.select(schema.names)
            for file in files
            for batch in file.iter_batches(BATCH_ROWS, columns=schema.names, use_threads=False)
        )
    else:
        # Arrow would read ahead 16 batches in each of 4 files.
        options: dict[str, Any] = {"batch_size": BATCH_ROWS, "batch_readahead": 2, "fragment_readahead": 1}
        batches = open_dataset(paths, schema).to_batches(filter=which, **options)
    for batch in batches:
        yield with_collections(pa.Table.from_batches([batch]))


def _known(rows: pa.Table) -> pa.Table:
    """Return each document once, and whether any of its rows is alive."""
    documents = rows.group_by(IDENTITY, use_threads=False).aggregate([("alive", "max")])
    return documents.rename_columns([*IDENTITY, "alive"]).cast(KNOWN_SCHEMA)


def _reduce(
    rows: Iterable[pa.Table], schema: pa.Schema = MERGE_SCHEMA, shrink: Callable[[pa.Table], pa.Table] = newest
) -> pa.Table:
    """Return what `shrink` leaves of all rows, holding little more than that at any time."""
    pool, fresh, settled = [schema.empty_table()], 0, 0
    for some in rows:
        pool.append(some)
        fresh += some.nbytes
        if fresh > max(POOL_BYTES, settled):
            pool = [shrink(pa.concat_tables(pool))]
            fresh, settled = 0, pool[0].nbytes
    return shrink(pa.concat_tables(pool))
