"""Merge rules: which rows of a changelog still count. Pure functions over Arrow tables.

The current state of a document is its newest change on the surviving history, in a collection that has not ended since.
`merge_changes` computes that from all rows of a changelog.
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
ROLLBACK_EVENTS = pa.array([Event.ROLLBACK, Event.FLUSH], pa.string())
"""Events that void rows of their vbucket; a flush is a rollback to seqno 0."""
COLLECTION_EVENTS = pa.array([Event.END_COLLECTION, Event.BEGIN_COLLECTION], pa.string())
"""Events that void older rows of a collection. A collection that begins again was empty at that moment."""
MARKER_EVENTS = pa.concat_arrays([ROLLBACK_EVENTS, COLLECTION_EVENTS])
"""Events that void other rows."""
IDENTITY = ("vbucket", "collection_id", "key")
"""The columns that identify a document."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RollbackMarkers:
    """The rollbacks of a changelog, prepared for searches.

    A row of a vbucket with a history below that of `places[i]` survives only up to seqno `limits[i]`.

    Attributes:
        places: vbucket << 32 | history of each rollback, ascending.
        limits: the lowest seqno of this rollback and all later rollbacks of the same vbucket.
    """

    places: npt.NDArray[np.int64]
    limits: npt.NDArray[np.uint64]

    @classmethod
    def collect(cls, rows: pa.Table) -> RollbackMarkers:
        """Return the markers of the rollback and flush rows; a flush without seqno goes back to 0."""
        rows = rows.filter(pc.is_in(rows["event"], value_set=ROLLBACK_EVENTS))
        places = _encode_places(rows)
        order = np.argsort(places, kind="stable")
        places, seqnos = places[order], read_seqnos(rows)[order]
        starts = np.flatnonzero(np.diff(places >> 32, prepend=-1))
        limits = [np.minimum.accumulate(group[::-1])[::-1] for group in np.split(seqnos, starts[1:])]
        return cls(places, np.concatenate(limits) if limits else seqnos)

    def mark_survivors(self, rows: pa.Table) -> Bools:
        """Return a mask of the rows that no rollback removes."""
        if not len(self.places):
            return np.ones(rows.num_rows, bool)
        places = _encode_places(rows)
        later = np.searchsorted(self.places, places, side="right")
        inside = np.minimum(later, len(self.places) - 1)
        is_rolled_back = (later < len(self.places)) & (self.places[inside] >> 32 == places >> 32)
        kept: Bools = ~(is_rolled_back & (read_seqnos(rows) > self.limits[inside]))
        return kept

    def find_lowest_histories(self) -> dict[int, int]:
        """Return the lowest history of which a row can survive, for each rolled back vbucket."""
        floors: dict[int, int] = {}
        for place, limit in zip(self.places.tolist(), self.limits.tolist(), strict=True):
            floors.setdefault(place >> 32, 0)
            if limit == 0:
                floors[place >> 32] = place & 0xFFFF_FFFF
        return floors


def _encode_places(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return vbucket << 32 | history of each row."""
    # One sorted array of these finds the next rollback of a row's vbucket in one binary search.
    places: npt.NDArray[np.int64] = rows["vbucket"].to_numpy().astype(np.int64) << 32 | rows["history"].to_numpy()
    return places


def read_seqnos(rows: pa.Table) -> npt.NDArray[np.uint64]:
    """Return the seqnos as unsigned numbers, null as 0."""
    seqnos: npt.NDArray[np.uint64] = pc.fill_null(rows["seqno"], 0).to_numpy().view(np.uint64)
    return seqnos


@dataclass(frozen=True, slots=True)
class CollectionEnds:
    """The ends of collections: earlier rows of these collections no longer count.

    Attributes:
        collections: vbucket << 32 | collection_id, ascending, each once.
        histories: the history of the newest end of each collection.
        seqnos: the seqno of the newest end of each collection.
    """

    collections: npt.NDArray[np.int64]
    histories: npt.NDArray[np.int32]
    seqnos: npt.NDArray[np.uint64]

    @classmethod
    def collect(cls, rows: pa.Table) -> CollectionEnds:
        """Return the ends among rows that have survived all rollbacks."""
        rows = rows.filter(pc.is_in(rows["event"], value_set=COLLECTION_EVENTS))
        collections, histories, seqnos = encode_collections(rows), rows["history"].to_numpy(), read_seqnos(rows)
        order = np.lexsort((seqnos, histories, collections))
        last = order[np.append(np.diff(collections[order]) != 0, True)] if len(order) else order
        return cls(collections[last], histories[last], seqnos[last])

    def mark_survivors(self, rows: pa.Table) -> Bools:
        """Return a mask of the rows that no end of a collection removes."""
        if not len(self.collections):
            return np.ones(rows.num_rows, bool)
        collections = encode_collections(rows)
        at = np.minimum(np.searchsorted(self.collections, collections), len(self.collections) - 1)
        histories = rows["history"].to_numpy()
        is_older = (histories < self.histories[at]) | (
            (histories == self.histories[at]) & (read_seqnos(rows) <= self.seqnos[at])
        )
        kept: Bools = ~((self.collections[at] == collections) & is_older)
        return kept

    def mark_members(self, documents: pa.Table) -> Bools:
        """Return a mask of the documents in an ended collection; all documents must be older than the ends."""
        found: Bools = np.isin(encode_collections(documents), self.collections)
        return found


@dataclass(frozen=True, slots=True)
class RowMarkers:
    """All rows of a changelog that void other rows: rollbacks and collection ends."""

    rollbacks: RollbackMarkers
    collection_ends: CollectionEnds

    @classmethod
    def collect(cls, rows: pa.Table) -> RowMarkers:
        """Return the markers of a changelog's rows. A collection end that was rolled back has no effect."""
        cuts = RollbackMarkers.collect(rows)
        return cls(cuts, CollectionEnds.collect(rows.filter(pa.array(cuts.mark_survivors(rows)))))

    def mark_survivors(self, rows: pa.Table) -> Bools:
        """Return a mask of the rows that still count."""
        kept: Bools = self.rollbacks.mark_survivors(rows) & self.collection_ends.mark_survivors(rows)
        return kept

    def select_survivors(self, rows: pa.Table) -> pa.Table:
        """Return the rows that still count."""
        return _select_rows(rows, pa.array(self.mark_survivors(rows)))


def _select_rows(rows: pa.Table, kept: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows that `kept` marks; all of them without a copy, because a copy costs as much as the rest."""
    return rows if pc.all(kept, skip_nulls=False).as_py() else rows.filter(kept)


def encode_collections(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return vbucket << 32 | collection_id of each row."""
    ids: npt.NDArray[np.int64] = pc.fill_null(rows["collection_id"], 0).to_numpy()
    collections: npt.NDArray[np.int64] = rows["vbucket"].to_numpy().astype(np.int64) << 32 | ids
    return collections


def mark_common_identities(rows: pa.Table, others: pa.Table) -> Bools:
    """Return a mask of the rows whose identity stands in `others`."""
    keys = pc.unique(others["key"])
    places = np.unique(encode_collections(others))
    if not len(keys) or not rows.num_rows:
        return np.zeros(rows.num_rows, bool)

    def number_identities(table: pa.Table) -> npt.NDArray[np.int64]:
        """Return one number for each identity among these keys and collections; -1 for all other identities."""
        key = pc.fill_null(pc.index_in(table["key"], value_set=keys), -1).to_numpy().astype(np.int64)
        collections = encode_collections(table)
        place = np.minimum(np.searchsorted(places, collections), len(places) - 1)
        number: npt.NDArray[np.int64] = key * len(places) + place
        number[(key < 0) | (places[place] != collections)] = -1
        return number

    found: Bools = np.isin(mine := number_identities(rows), number_identities(others)) & (mine >= 0)
    return found


def select_newest(rows: pa.Table) -> pa.Table:
    """Return the newest change of each document by (history, seqno), deletions included. Other events are left out."""
    rows = _select_rows(rows, pc.is_in(rows["event"], value_set=DOCUMENT_EVENTS))
    order = np.lexsort((read_seqnos(rows), rows["history"].to_numpy()))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    documents = rows.select(IDENTITY).append_column("rank", pa.array(rank)).group_by(IDENTITY, use_threads=False)
    newest = documents.aggregate([("rank", "max")])["rank_max"].to_numpy()
    keep = np.zeros(rows.num_rows, bool)
    keep[order[newest]] = True
    return _select_rows(rows, pa.array(keep))


def merge_changes(rows: pa.Table) -> pa.Table:
    """Return the current documents after all rows of a changelog, in CURRENT_COLUMNS. The rows may be in any order."""
    rows = fill_collection_ids(rows.select(MERGE_SCHEMA.names))
    return to_documents(select_newest(RowMarkers.collect(rows).select_survivors(rows)))


def fill_collection_ids(rows: pa.Table) -> pa.Table:
    """Return the rows with collection id 0, the default collection, in the place of null."""
    ids = rows["collection_id"]
    if not ids.null_count:
        return rows
    return rows.set_column(rows.schema.get_field_index("collection_id"), "collection_id", pc.fill_null(ids, 0))


def to_documents(changes: pa.Table) -> pa.Table:
    """Return the mutations among the changes as rows of the current table, without columns that the changes lack."""
    rows = _select_rows(changes, pc.equal(changes["event"], Event.MUTATION))
    key, rest = to_key_columns(rows)
    columns = {name: rows[name] for name in rows.column_names} | {"key": key, "key_bytes": rest}
    schema = pa.schema([field for field in CURRENT_COLUMNS if field.name in columns])
    return pa.table([columns[name] for name in schema.names], schema=schema)


def to_key_columns(rows: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the keys of changes as text, and the keys that are not UTF-8 as bytes: one of the two is null."""
    nothing = pa.scalar(None, pa.binary())
    try:
        return rows["key"].cast(pa.string()), pa.chunked_array([pa.nulls(rows.num_rows, pa.binary())])
    except pa.ArrowInvalid:
        valid = is_utf8(rows["key"])
        return pc.if_else(valid, rows["key"], nothing).cast(pa.string()), pc.if_else(valid, nothing, rows["key"])


def read_keys(documents: pa.Table) -> pa.ChunkedArray:
    """Return the keys of rows of the current table, as binary."""
    return pc.coalesce(documents["key"].cast(pa.binary()), documents["key_bytes"])
