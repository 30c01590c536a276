"""The current table: for each document the newest change that is still on the surviving history.

`fold` is that sentence as a function of all the changelog's rows. The table is kept by `catch_up`, which takes in the
changelog versions committed since its last commit and makes one commit of them, together with the version that it has
reached: a crash between the two tables' commits leaves a version to take in, nothing else.

A range of vbuckets is folded at a time. Of a range's files only those are rewritten that hold a changed document, and
small ones, so that files do not pile up. A rollback may bring back versions that `current` has overwritten: the rolled
back vbuckets are computed anew from the changelog.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.spark.delta import DataFile, RangeWriter, discard, open_dataset
from penstock.spark.lake import CURRENT_COLUMNS, Lake
from penstock.wire.schema import CHANGE_SCHEMA, Event

FOLD_SCHEMA = pa.schema(
    [
        CHANGE_SCHEMA.field(name)
        for name in ("vbucket", "vbuuid", "seqno", "rev_seqno", "cas", "event", "key", "value", "collection_id",
                     "datatype", "flags", "expiry", "history")
    ]
)  # fmt: skip
"""The columns of a change that decide about the current table or stand in it."""

DOCUMENT_EVENTS = pa.array([Event.MUTATION, Event.DELETION, Event.EXPIRATION], pa.string())
CUTTING_EVENTS = pa.array([Event.ROLLBACK, Event.FLUSH], pa.string())
IDENTITY = ("vbucket", "collection_id", "key")

POOL_BYTES = 256 << 20
"""Rows of one range held before superseded ones among them are dropped."""
SMALL_BYTES, SMALL_ROWS = 8 << 20, 32_768
"""A file below both is rewritten whenever its range changes."""
IDLE_VERSIONS = 64
"""Changelog versions without rows after which the fold's position is committed all the same."""
VACUUM_EVERY = 50
"""Commits of `current` after which files that no longer belong to it are removed from the disk."""

# Strict UTF-8 byte by byte (RFC 3629, section 4); Arrow matches binary input as Latin-1, where a byte is a character.
UTF8 = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cuts:
    """What rollbacks take away: a row of `vbucket` and a `history` below that of `places[i]` ends at `limits[i]`.

    places: vbucket << 32 | history of each rollback, ascending. limits: the lowest seqno that this rollback or a later
    one of its vbucket rolled back to.
    """

    places: npt.NDArray[np.int64]
    limits: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, rows: pa.Table) -> Cuts:
        """Collect the rollback and flush rows of `rows`; a flush without seqno goes back to 0."""
        rows = rows.filter(pc.is_in(rows["event"], value_set=CUTTING_EVENTS))
        places = _places(rows)
        order = np.argsort(places, kind="stable")
        places, seqnos = places[order], _seqnos(rows)[order]
        starts = np.flatnonzero(np.diff(places >> 32, prepend=-1))
        limits = [np.minimum.accumulate(group[::-1])[::-1] for group in np.split(seqnos, starts[1:])]
        return cls(places, np.concatenate(limits) if limits else seqnos)

    def survive(self, rows: pa.Table) -> Bools:
        """Return which of `rows` no rollback takes away."""
        if not len(self.places):
            return np.ones(rows.num_rows, bool)
        places = _places(rows)
        later = np.searchsorted(self.places, places, side="right")
        inside = np.minimum(later, len(self.places) - 1)
        cut = (later < len(self.places)) & (self.places[inside] >> 32 == places >> 32)
        kept: Bools = ~(cut & (_seqnos(rows) > self.limits[inside]))
        return kept

    def floors(self) -> dict[int, int]:
        """Return the lowest history of each rolled back vbucket of which a row can survive."""
        floors: dict[int, int] = {}
        for place, limit in zip(self.places.tolist(), self.limits.tolist(), strict=True):
            floors.setdefault(place >> 32, 0)
            if limit == 0:
                floors[place >> 32] = place & 0xFFFF_FFFF
        return floors


def _places(rows: pa.Table) -> npt.NDArray[np.int64]:
    places: npt.NDArray[np.int64] = rows["vbucket"].to_numpy().astype(np.int64) << 32 | rows["history"].to_numpy()
    return places


def _seqnos(rows: pa.Table) -> npt.NDArray[np.uint64]:
    seqnos: npt.NDArray[np.uint64] = pc.fill_null(rows["seqno"], 0).to_numpy().view(np.uint64)
    return seqnos


def newest(rows: pa.Table) -> pa.Table:
    """Return the newest change of each document by (history, seqno), deletions included; other events go away."""
    rows = rows.filter(pc.is_in(rows["event"], value_set=DOCUMENT_EVENTS))
    order = np.lexsort((_seqnos(rows), rows["history"].to_numpy()))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    documents = rows.select(IDENTITY).append_column("rank", pa.array(rank)).group_by(IDENTITY, use_threads=False)
    keep = np.zeros(rows.num_rows, bool)
    keep[order[documents.aggregate([("rank", "max")])["rank_max"].to_numpy()]] = True
    return rows if keep.all() else rows.filter(pa.array(keep))


def fold(rows: pa.Table) -> pa.Table:
    """Return the documents that `rows`, the changelog's rows in any order, leave; in CURRENT_COLUMNS."""
    rows = rows.select(FOLD_SCHEMA.names)
    return to_documents(newest(rows.filter(pa.array(Cuts.of(rows).survive(rows)))))


def to_documents(changes: pa.Table) -> pa.Table:
    """Return the mutations among `changes` as rows of the current table."""
    rows = changes.filter(pc.equal(changes["event"], Event.MUTATION))
    try:
        key, rest = rows["key"].cast(pa.string()), pa.nulls(rows.num_rows, pa.binary())
    except pa.ArrowInvalid:
        valid = pc.match_substring_regex(rows["key"], UTF8)
        nothing = pa.scalar(None, pa.binary())
        key = pc.if_else(valid, rows["key"], nothing).cast(pa.string())
        rest = pc.if_else(valid, nothing, rows["key"])
    columns = {name: rows[name] for name in rows.column_names} | {"key": key, "key_bytes": rest}
    return pa.table({name: columns[name] for name in CURRENT_COLUMNS.names}, schema=CURRENT_COLUMNS)


def to_changes(documents: pa.Table) -> pa.Table:
    """Return rows of the current table as the mutations that they came from."""
    columns = {name: documents[name] for name in documents.column_names}
    columns["key"] = _keys(documents)
    columns["event"] = pa.repeat(pa.scalar(str(Event.MUTATION)), documents.num_rows)
    return pa.table({name: columns[name] for name in FOLD_SCHEMA.names}, schema=FOLD_SCHEMA)


def _keys(documents: pa.Table) -> pa.ChunkedArray:
    return pc.coalesce(documents["key"].cast(pa.binary()), documents["key_bytes"])


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
        table = self.lake.current
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
    changelog, table = lake.changelog.open(), lake.current.open()
    if changelog is None:
        return Progress(-1)
    changelog_id, version = str(changelog.metadata().id), changelog.version()
    folded = table.transaction_version(changelog_id) if table is not None else None
    news = lake.changelog.added_since(changelog, folded) if folded is not None and folded <= version else None
    everything = news is None
    if news is not None and folded is not None and not news and version - folded < IDLE_VERSIONS:
        return Progress(version)
    before = lake.current.files(table) if table is not None else []
    # The list of all files grows with the changelog: it is made only where it is needed.
    history = lake.changelog.files(changelog) if news is None or any(file.keyless for file in news) else []
    job = _Job(lake, history, history if news is None else news, before, everything)
    parts = job.run()
    progress = Progress(
        version,
        sum(file.rows for file in job.news),
        everything and bool(before),
        sum(part.rolled_back for part in parts),
    )
    added = [file for part in parts for file in part.added]
    removed = before if everything else [file for part in parts for file in part.removed]
    return Fold(lake, table, changelog_id, added, removed, progress)


@dataclass(frozen=True, slots=True)
class _Part:
    added: list[DataFile]
    removed: list[DataFile]
    rolled_back: int


@dataclass(frozen=True, slots=True)
class _Job:
    """news: the files to fold. history: all files of the changelog, where news may hold rollbacks. before: those of
    `current`. everything: nothing of `before` stays."""

    lake: Lake
    history: list[DataFile]
    news: list[DataFile]
    before: list[DataFile]
    everything: bool

    def run(self) -> list[_Part]:
        ranges = sorted({file.vbucket_range for file in self.news})
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            tasks = [pool.submit(self.fold_range, part) for part in ranges]
        failed = [task for task in tasks if task.exception()]
        if failed:
            for task in tasks:
                if task not in failed:
                    discard(self.lake.current.path, task.result().added)
        return [task.result() for task in tasks]

    def fold_range(self, vbucket_range: int) -> _Part:
        news = self._paths(self.news, vbucket_range)
        history = self._paths(self.history, vbucket_range)
        cutting = [file for file in self.news if file.keyless and not self.everything]
        rolled = _cuts(self._paths(cutting, vbucket_range)).floors()
        if self.everything:
            cuts, sources = _cuts(history), [(history, None)]
        elif rolled:
            vbuckets = pc.field("vbucket").isin(list(rolled))
            cuts = _cuts(history, vbuckets)
            again = vbuckets & (pc.field("history") >= min(rolled.values()))
            sources = [(history, again), (news, ~vbuckets)]
        else:
            cuts, sources = _cuts([]), [(news, None)]
        changes = _reduce((batch for paths, which in sources for batch in _batches(paths, which)), cuts)
        return self._rewrite(vbucket_range, changes, list(rolled))

    def _rewrite(self, vbucket_range: int, changes: pa.Table, rolled: list[int]) -> _Part:
        """Put `changes`, the newest of each document, in place of what the range's files say of these documents."""
        current = self.lake.current
        removed: list[DataFile] = []
        pool = [changes]
        with RangeWriter(current.path, vbucket_range, CURRENT_COLUMNS) as writer:
            if changes.num_rows or rolled:
                for file in self.before if not self.everything else ():
                    if file.vbucket_range != vbucket_range:
                        continue
                    rows = pq.ParquetFile(current.path / file.path).read(columns=CURRENT_COLUMNS.names)
                    lost = pc.is_in(rows["vbucket"], value_set=pa.array(rolled, pa.int32()))
                    changed = pc.is_in(_keys(rows), value_set=changes["key"])
                    touched = pc.or_(lost, changed)
                    if not pc.any(touched).as_py() and (file.size > SMALL_BYTES or file.rows > SMALL_ROWS):
                        continue
                    removed.append(file)
                    writer.write(rows.filter(pc.invert(touched)))
                    pool.append(to_changes(rows.filter(pc.and_not(changed, lost))))
                writer.write(to_documents(newest(pa.concat_tables(pool))))
            return _Part(writer.close(), removed, len(rolled))

    def _paths(self, files: Iterable[DataFile], vbucket_range: int) -> list[str]:
        return self.lake.changelog.paths(file for file in files if file.vbucket_range == vbucket_range)


def _cuts(paths: list[str], which: pc.Expression | None = None) -> Cuts:
    if not paths:
        return Cuts.of(FOLD_SCHEMA.empty_table())
    cutting = pc.field("event").isin(CUTTING_EVENTS)
    rows = _dataset(paths).to_table(filter=cutting if which is None else cutting & which)
    return Cuts.of(rows)


def _batches(paths: list[str], which: pc.Expression | None) -> Iterator[pa.RecordBatch]:
    # Arrow would read ahead 16 batches in each of 4 files.
    options: dict[str, Any] = {"batch_size": 65_536, "batch_readahead": 2, "fragment_readahead": 1}
    yield from _dataset(paths).to_batches(filter=which, **options)


def _dataset(paths: list[str]) -> ds.Dataset:
    return open_dataset(paths, FOLD_SCHEMA)


def _reduce(batches: Iterable[pa.RecordBatch], cuts: Cuts) -> pa.Table:
    """Return the newest surviving change of each document, holding little more than that at any time."""
    pool, fresh, settled = [FOLD_SCHEMA.empty_table()], 0, 0
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        rows = rows.filter(pa.array(cuts.survive(rows)))
        pool.append(rows)
        fresh += rows.nbytes
        if fresh > max(POOL_BYTES, settled):
            pool = [newest(pa.concat_tables(pool))]
            fresh, settled = 0, pool[0].nbytes
    return newest(pa.concat_tables(pool))
