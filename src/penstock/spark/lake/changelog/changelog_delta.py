"""Changelog deltas: the changes that a changelog has gained since one of its versions.

The current table and all dependents use the changelog in the same way. Each stores the version that it has applied,
together with its result, and asks `find_delta` for the changes after that version. A delta has, for one vbucket range
at a time, the newest change of each document that was touched. A rollback may bring back versions that were
overwritten, so a delta has all documents of a rolled back vbucket.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.changelog.merge_rules import (
    DOCUMENT_EVENTS,
    IDENTITY,
    MARKER_EVENTS,
    CollectionEnds,
    RowMarkers,
    encode_collections,
    fill_collection_ids,
    mark_common_identities,
    read_keys,
    select_newest,
)
from penstock.spark.lake.tables.data_files import DataFile, match_types, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.storage.object_files import open_parquet

LOOKUP_COLUMNS = ("vbucket", "collection_id", "key", "key_bytes")
"""The columns by which a document of the current table is found among the changes of a delta."""
IDENTITY_SCHEMA = pa.schema([MERGE_SCHEMA.field(name) for name in IDENTITY])
ALIVE_SCHEMA = IDENTITY_SCHEMA.append(pa.field("alive", pa.bool_()))
"""Documents, each with whether any of its changes survives."""
SLIM_SCHEMA = pa.schema([MERGE_SCHEMA.field(name) for name in (*IDENTITY, "event", "seqno", "history")])
"""The columns that decide which change of a document is the newest, without values."""
CONTENT_SCHEMA = pa.schema([*SLIM_SCHEMA, *(MERGE_SCHEMA.field(name) for name in ("value", "scope", "collection"))])
"""The columns of a change that an index of the documents' content needs."""

BATCH_ROWS = 65_536
"""Rows of a changelog that are read from disk at once."""
POOL_BYTES = 192 << 20
"""Size of the rows of one range that are held before superseded rows among them are dropped."""
GROUPS = 8
"""Groups of vbuckets whose superseded rows are dropped one after the other: it needs a multiple of their memory."""


@dataclass(frozen=True, slots=True)
class RangeDelta:
    """The part of a changelog delta that belongs to one vbucket range.

    Attributes:
        changes: the newest surviving change of each touched document, in MERGE_SCHEMA. Deletions and expirations are
            included. collection_id is never null.
        rolled_back: vbuckets whose known documents no longer count: all their documents are among `changes`.
        collection_ends: collections whose known documents no longer count.
    """

    changes: pa.Table
    rolled_back: frozenset[int]
    collection_ends: CollectionEnds

    def find_vbuckets(self) -> npt.NDArray[np.int64]:
        """Return the vbuckets of the documents that no longer count or have a change in this delta."""
        rolled_back = np.fromiter(self.rolled_back, np.int64)
        return np.unique(
            np.concatenate([self.changes["vbucket"].to_numpy(), rolled_back, self.collection_ends.collections >> 32])
        )

    def mark_outdated(self, documents: pa.Table) -> pa.Array:
        """Return a mask of the known documents that no longer count or have a change in this delta.

        Args:
            documents: documents that were known before, with LOOKUP_COLUMNS of the current table.

        Returns:
            One boolean for each document.
        """
        rolled = pc.is_in(documents["vbucket"], value_set=pa.array(self.rolled_back, pa.int32()))
        is_outdated = rolled.to_numpy() | self.collection_ends.mark_members(documents)
        keys = read_keys(documents)
        # Most unchanged documents differ by their key. Only documents with a changed key are compared by identity.
        candidates = np.flatnonzero(pc.is_in(keys, value_set=self.changes["key"]).to_numpy())
        found = (
            documents.select(["vbucket", "collection_id"]).take(candidates).append_column("key", keys.take(candidates))
        )
        is_outdated[candidates] |= mark_common_identities(found, self.changes)
        return pa.array(is_outdated)


@dataclass(frozen=True, slots=True)
class ChangelogDelta:
    """The changes that the changelog has gained since a version.

    Attributes:
        lake: the lake of the changelog.
        changelog_id: the id of the changelog.
        version: the changelog version that the delta reaches.
        is_full: True if the delta holds the whole changelog and replaces all known documents, in every range.
        files: the files with the rows of the delta.
        all_files: all files of the changelog if a rollback or a collection's end may need them, otherwise empty.
    """

    lake: LakeDirectory
    changelog_id: str
    version: int
    is_full: bool
    files: tuple[DataFile, ...]
    all_files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Number of changelog rows in this delta."""
        return sum(file.rows for file in self.files)

    def age(self) -> float:
        """Return the seconds since the oldest file of the delta was committed; 0 without files."""
        return max(0.0, time.time() - min((file.modified / 1000 for file in self.files), default=math.inf))

    @property
    def ranges(self) -> list[int]:
        """The vbucket ranges that have rows in the delta, ascending."""
        return sorted({file.vbucket_range for file in self.files})

    def select_range(self, vbucket_range: int) -> ChangelogDelta:
        """Return the delta with the files of one vbucket range alone."""
        kept = (tuple(f for f in files if f.vbucket_range == vbucket_range) for files in (self.files, self.all_files))
        return ChangelogDelta(self.lake, self.changelog_id, self.version, self.is_full, *kept)

    def read_range(self, vbucket_range: int, schema: pa.Schema = MERGE_SCHEMA) -> RangeDelta:
        """Return the delta of one vbucket range. Raises FileNotFoundError if a file was removed meanwhile.

        Args:
            vbucket_range: 0 to 15.
            schema: the columns to read of each change. It must have the columns of SLIM_SCHEMA. Other columns are not
                read from disk.

        Returns:
            The newest changes of the range.
        """
        delta = self.list_range_paths(self.files, vbucket_range)
        history = self.list_range_paths(self.all_files, vbucket_range)
        marker_files = self.list_range_paths((file for file in self.files if file.keyless_rows), vbucket_range)
        rolled_back = _read_markers(marker_files).rollbacks.find_lowest_histories() if not self.is_full else {}
        sources: list[tuple[list[str], pc.Expression | None, RowMarkers]]
        if rolled_back:
            vbuckets = pc.field("vbucket").isin(list(rolled_back))
            is_read_again = vbuckets & (pc.field("history") >= min(rolled_back.values()))
            sources = [
                (history, is_read_again, _read_markers(history, vbuckets)),
                (delta, ~vbuckets, _read_markers(marker_files, ~vbuckets)),
            ]
        else:
            sources = [(delta, None, _read_markers(marker_files))]
        read = (
            marks.select_survivors(rows) for paths, which, marks in sources for rows in read_rows(paths, which, schema)
        )
        changes = reduce_rows(read, schema)
        return RangeDelta(changes, frozenset(rolled_back), sources[-1][2].collection_ends)

    def find_lost_documents(self, vbucket_range: int) -> pa.Table:
        """Return the documents that rollbacks or collection ends removed.

        A lost document had changes in the changelog, and no change of it is among `read_range(vbucket_range).changes`:
        neither a mutation nor a deletion survives. In a full delta these are all lost documents that the changelog
        knows. As in `read_range`, a FileNotFoundError means that a file was removed meanwhile.

        Args:
            vbucket_range: 0 to 15.

        Returns:
            The identities of the documents, in IDENTITY_SCHEMA.
        """
        markers = _read_markers(
            self.list_range_paths((file for file in self.files if file.keyless_rows), vbucket_range)
        )
        rolled = set(markers.rollbacks.find_lowest_histories())
        ended = markers.collection_ends.collections
        which: pc.Expression | None = None
        if not self.is_full:
            vbuckets = rolled | set((ended >> 32).tolist())
            if not vbuckets:
                return IDENTITY_SCHEMA.empty_table()
            which = pc.field("vbucket").isin(list(vbuckets))
        history = self.list_range_paths(self.all_files, vbucket_range)
        marks = _read_markers(history, which)

        def read_identities() -> Iterator[pa.Table]:
            for rows in read_rows(history, which, SLIM_SCHEMA):
                rows = rows.filter(pc.is_in(rows["event"], value_set=DOCUMENT_EVENTS))
                if not self.is_full:
                    concerned = np.isin(rows["vbucket"].to_numpy(), list(rolled)) | np.isin(
                        encode_collections(rows), ended
                    )
                    rows = rows.filter(pa.array(concerned))
                yield rows.select(IDENTITY).append_column("alive", pa.array(marks.mark_survivors(rows)))

        found = reduce_rows(read_identities(), ALIVE_SCHEMA, _merge_alive)
        return found.filter(pc.invert(found["alive"])).select(IDENTITY)

    def list_range_paths(self, files: Iterable[DataFile], vbucket_range: int) -> list[str]:
        """Return the paths of the files of one vbucket range, in the same order."""
        return self.lake.changelog_table.list_paths(file for file in files if file.vbucket_range == vbucket_range)


def find_delta(lake: LakeDirectory, applied: tuple[str, int] | None) -> ChangelogDelta | None:
    """Return the changes that the changelog has gained since a version, None if there is no changelog.

    Raises LakeRefused if another program changed rows of the changelog, UsageError if it has no versions.

    Args:
        lake: the lake of the changelog.
        applied: id and version of the changelog that were applied, None if nothing was applied.

    Returns:
        The delta. It is full if `applied` belongs to another changelog, or if the log of a later version was removed.
    """
    changelog = lake.changelog_table.open()
    if changelog is None:
        return None
    lake.changelog_table.refuse_foreign_changes(changelog)
    lake.changelog_table.check_versions()
    changelog_id, version = lake.changelog_table.read_id(changelog), changelog.version()
    files = None
    if applied is not None and applied[0] == changelog_id and applied[1] <= version:
        files = lake.changelog_table.list_added_since(changelog, applied[1])
    everything = files is None
    # The list of all files grows with the changelog, so it is built only if a row of the delta has no key.
    history: tuple[DataFile, ...] = ()
    if files is None or any(file.keyless_rows for file in files):
        history = tuple(lake.changelog_table.list_files(changelog))
    return ChangelogDelta(lake, changelog_id, version, everything, history if files is None else tuple(files), history)


def _read_markers(paths: list[str], which: pc.Expression | None = None) -> RowMarkers:
    """Return the rollback and collection markers among the rows of files."""
    return RowMarkers.collect(read_marker_rows(paths, which))


def read_marker_rows(paths: list[str], which: pc.Expression | None = None) -> pa.Table:
    """Return the rows of files that void other rows, in SLIM_SCHEMA.

    Args:
        paths: the files.
        which: a condition on the rows; None for all.
    """
    if not paths:
        return SLIM_SCHEMA.empty_table()
    is_marker = pc.field("event").isin(MARKER_EVENTS)
    return open_dataset(paths, SLIM_SCHEMA).to_table(filter=is_marker if which is None else is_marker & which)


def read_rows(paths: list[str], which: pc.Expression | None, schema: pa.Schema = MERGE_SCHEMA) -> Iterator[pa.Table]:
    """Yield the rows of files in batches, each document with a collection id."""
    batches: Iterator[pa.RecordBatch]
    if which is None:
        # A changelog has many small files; reading them as an Arrow dataset takes twice as long.
        files = (open_parquet(path, is_sequential=True) for path in paths)
        batches = (
            batch.select(schema.names)
            for file in files
            for batch in file.iter_batches(BATCH_ROWS, columns=schema.names, use_threads=False)
        )
    else:
        # By default Arrow reads 16 batches of each of 4 files ahead, all of which would be held in memory.
        options: dict[str, Any] = {"batch_size": BATCH_ROWS, "batch_readahead": 2, "fragment_readahead": 1}
        batches = open_dataset(paths, schema).to_batches(filter=which, **options)
    for batch in batches:
        yield fill_collection_ids(match_types(pa.Table.from_batches([batch]), schema))


def _merge_alive(rows: pa.Table) -> pa.Table:
    """Return each document once, and whether any of its rows is alive."""
    documents = rows.group_by(IDENTITY, use_threads=False).aggregate([("alive", "max")])
    return documents.rename_columns([*IDENTITY, "alive"]).cast(ALIVE_SCHEMA)


def reduce_rows(
    rows: Iterable[pa.Table], schema: pa.Schema = MERGE_SCHEMA, shrink: Callable[[pa.Table], pa.Table] = select_newest
) -> pa.Table:
    """Return `shrink` of all rows, while memory holds little more than the result.

    Args:
        rows: rows with the columns of `schema`.
        schema: the columns, with those of a document's identity.
        shrink: keeps some rows of each document.

    Returns:
        The kept rows of all documents, those of a group of vbuckets side by side.
    """
    pools: dict[int, list[pa.Table]] = {}
    held: list[pa.Table] = []
    fresh = settled = 0
    for some in rows:
        held.append(some)
        fresh += some.nbytes
        if fresh > max(POOL_BYTES, settled // 2):
            _shrink_groups(pools, held, shrink)
            fresh, settled = 0, sum(part.nbytes for pool in pools.values() for part in pool)
    if not pools:
        return shrink(pa.concat_tables(held or [schema.empty_table()]))
    _shrink_groups(pools, held, shrink)
    return pa.concat_tables(pool[0] for pool in pools.values())


def _shrink_groups(
    pools: dict[int, list[pa.Table]], held: list[pa.Table], shrink: Callable[[pa.Table], pa.Table]
) -> None:
    """Move the held rows to their group of vbuckets, and replace the rows of each group by the kept ones."""
    for rows in held:
        for group, part in _split_by_group(rows):
            pools.setdefault(group, []).append(part)
    held.clear()
    for group, pool in pools.items():
        pools[group] = [shrink(pa.concat_tables(pool))]


def _split_by_group(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows by group of vbuckets; rows of one group keep their order."""
    groups = rows["vbucket"].to_numpy() % GROUPS
    order = np.argsort(groups, kind="stable")
    rows, groups = rows.take(pa.array(order)), groups[order]
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]):
        if end > start:
            yield int(groups[start]), rows.slice(start, end - start)
