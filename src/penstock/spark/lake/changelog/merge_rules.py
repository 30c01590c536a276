"""What of the changelog's rows still counts: pure functions over Arrow tables.

For each document it is the newest change that is on the surviving history and in a collection that has not ended since.
`merge_changes` is that sentence as a function of all the changelog's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS, MERGE_SCHEMA
from penstock.spark.values.utf8 import is_utf8
from penstock.wire.columns.schema import Event

DOCUMENT_EVENTS = pa.array([Event.MUTATION, Event.DELETION, Event.EXPIRATION], pa.string())
CUTTING_EVENTS = pa.array([Event.ROLLBACK, Event.FLUSH], pa.string())
ENDING_EVENTS = pa.array([Event.END_COLLECTION, Event.BEGIN_COLLECTION], pa.string())
MARKER_EVENTS = pa.concat_arrays([CUTTING_EVENTS, ENDING_EVENTS])
"""Events that say of other rows that they no longer count. A collection that begins once more was emptied."""
IDENTITY = ("vbucket", "collection_id", "key")

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RollbackMarkers:
    """What rollbacks take away: a row of `vbucket` and a `history` below that of `places[i]` ends at `limits[i]`.

    places: vbucket << 32 | history of each rollback, ascending. limits: the lowest seqno that this rollback or a later
    one of its vbucket rolled back to.
    """

    places: npt.NDArray[np.int64]
    limits: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, rows: pa.Table) -> RollbackMarkers:
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


@dataclass(frozen=True, slots=True)
class CollectionEnds:
    """Collections that ended: what was written to them at or before that place is gone.

    collections: vbucket << 32 | collection_id, ascending, each once. histories, seqnos: of the newest event about each.
    """

    collections: npt.NDArray[np.int64]
    histories: npt.NDArray[np.int32]
    seqnos: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, rows: pa.Table) -> CollectionEnds:
        """Collect the ends among `rows`, which have survived all rollbacks."""
        rows = rows.filter(pc.is_in(rows["event"], value_set=ENDING_EVENTS))
        collections, histories, seqnos = collections_of(rows), rows["history"].to_numpy(), _seqnos(rows)
        order = np.lexsort((seqnos, histories, collections))
        last = order[np.append(np.diff(collections[order]) != 0, True)] if len(order) else order
        return cls(collections[last], histories[last], seqnos[last])

    def survive(self, rows: pa.Table) -> Bools:
        """Return which of `rows` no collection's end takes away."""
        if not len(self.collections):
            return np.ones(rows.num_rows, bool)
        collections = collections_of(rows)
        at = np.minimum(np.searchsorted(self.collections, collections), len(self.collections) - 1)
        histories = rows["history"].to_numpy()
        before = (histories < self.histories[at]) | (
            (histories == self.histories[at]) & (_seqnos(rows) <= self.seqnos[at])
        )
        kept: Bools = ~((self.collections[at] == collections) & before)
        return kept

    def holds(self, documents: pa.Table) -> Bools:
        """Return which of `documents`, all older than the ends, are in a collection that ended."""
        found: Bools = np.isin(collections_of(documents), self.collections)
        return found


@dataclass(frozen=True, slots=True)
class RowMarkers:
    """All that rows of a changelog say of other rows."""

    cuts: RollbackMarkers
    ended: CollectionEnds

    @classmethod
    def of(cls, rows: pa.Table) -> RowMarkers:
        cuts = RollbackMarkers.of(rows)
        return cls(cuts, CollectionEnds.of(rows.filter(pa.array(cuts.survive(rows)))))

    def survive(self, rows: pa.Table) -> Bools:
        """Return which of `rows` still count."""
        kept: Bools = self.cuts.survive(rows) & self.ended.survive(rows)
        return kept

    def survivors(self, rows: pa.Table) -> pa.Table:
        """Return those of `rows` that still count."""
        kept = self.survive(rows)
        return rows if kept.all() else rows.filter(pa.array(kept))


def collections_of(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return vbucket << 32 | collection_id of each row."""
    ids: npt.NDArray[np.int64] = pc.fill_null(rows["collection_id"], 0).to_numpy()
    collections: npt.NDArray[np.int64] = rows["vbucket"].to_numpy().astype(np.int64) << 32 | ids
    return collections


def among(rows: pa.Table, others: pa.Table) -> Bools:
    """Return which of `rows` have the identity of one of `others`."""
    keys = pc.unique(others["key"])
    places = np.unique(collections_of(others))
    if not len(keys) or not rows.num_rows:
        return np.zeros(rows.num_rows, bool)

    def numbers(table: pa.Table) -> npt.NDArray[np.int64]:
        """Number identities among those of these keys and places; -1 is none of them."""
        key = pc.fill_null(pc.index_in(table["key"], value_set=keys), -1).to_numpy().astype(np.int64)
        collections = collections_of(table)
        place = np.minimum(np.searchsorted(places, collections), len(places) - 1)
        number: npt.NDArray[np.int64] = key * len(places) + place
        number[(key < 0) | (places[place] != collections)] = -1
        return number

    found: Bools = np.isin(mine := numbers(rows), numbers(others)) & (mine >= 0)
    return found


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


def merge_changes(rows: pa.Table) -> pa.Table:
    """Return the documents that `rows`, the changelog's rows in any order, leave; in CURRENT_COLUMNS."""
    rows = with_collections(rows.select(MERGE_SCHEMA.names))
    return to_documents(newest(RowMarkers.of(rows).survivors(rows)))


def with_collections(rows: pa.Table) -> pa.Table:
    """Return rows of MERGE_SCHEMA in which a document without a collection is in the default one."""
    ids = rows["collection_id"]
    if not ids.null_count:
        return rows
    return rows.set_column(rows.schema.get_field_index("collection_id"), "collection_id", pc.fill_null(ids, 0))


def to_documents(changes: pa.Table) -> pa.Table:
    """Return the mutations among `changes` as rows of the current table."""
    rows = changes.filter(pc.equal(changes["event"], Event.MUTATION))
    try:
        key, rest = rows["key"].cast(pa.string()), pa.nulls(rows.num_rows, pa.binary())
    except pa.ArrowInvalid:
        valid = is_utf8(rows["key"])
        nothing = pa.scalar(None, pa.binary())
        key = pc.if_else(valid, rows["key"], nothing).cast(pa.string())
        rest = pc.if_else(valid, nothing, rows["key"])
    columns = {name: rows[name] for name in rows.column_names} | {"key": key, "key_bytes": rest}
    return pa.table({name: columns[name] for name in CURRENT_COLUMNS.names}, schema=CURRENT_COLUMNS)


def keys_of(documents: pa.Table) -> pa.ChunkedArray:
    """Return the keys of rows of the current table, as binary."""
    return pc.coalesce(documents["key"].cast(pa.binary()), documents["key_bytes"])
