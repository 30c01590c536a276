"""Ordered changes: the part of a changelog delta that a consumer of a change stream must get.

The tables need only the newest change of each document. A consumer of a stream gets every change that still counts, in
the order of its vbucket. A rollback, a flush or the end of a collection may void the version that the consumer has.
Then it gets a correction of the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, read_rows, reduce_rows
from penstock.spark.lake.changelog.merge_rules import (
    COLLECTION_EVENTS,
    DOCUMENT_EVENTS,
    MARKER_EVENTS,
    ROLLBACK_EVENTS,
    RowMarkers,
    mark_common_identities,
)
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA

KNOWN_SCHEMA = pa.schema([field for field in MERGE_SCHEMA if field.name not in ("value", "xattrs")])
"""The columns that are read of a known version whose value is not needed."""


@dataclass(frozen=True, slots=True)
class OrderedChanges:
    """The part of a changelog delta that belongs to one vbucket range, for a consumer of a change stream.

    A consumer that applies `lost` and `restored`, and then `changes`, has the state of the delta's version.

    Attributes:
        is_snapshot: True if `changes` has only the newest change of each document, of all documents.
        rollbacks: the rollbacks and flushes, in MERGE_SCHEMA.
        lost: the last versions before the delta that no longer count, one for each document.
        restored: the versions that count again, in MERGE_SCHEMA. A lost document without one is deleted. A document
            has only this if the end of its collection was rolled back.
        changes: the changes that count, in MERGE_SCHEMA, sorted by vbucket, history and seqno.
        known: the last versions before the delta of all documents in `lost` and `changes`, if they were requested.
    """

    is_snapshot: bool
    rollbacks: pa.Table
    lost: pa.Table
    restored: pa.Table
    changes: pa.Table
    known: pa.Table


def read_ordered_changes(delta: ChangelogDelta, vbucket_range: int, *, with_known: bool = False) -> OrderedChanges:
    """Return the changes of one vbucket range. Raises FileNotFoundError if a file was removed meanwhile.

    Only rollbacks, flushes, events of collections and `with_known` need changes from before the delta. They read the
    whole history of the vbuckets that are concerned.

    Args:
        delta: the delta.
        vbucket_range: 0 to 15.
        with_known: also return the last version before the delta of each document, with its value.

    Returns:
        The changes.
    """
    if delta.is_full:
        return _read_snapshot(delta, vbucket_range)
    nothing = MERGE_SCHEMA.empty_table()
    paths = delta.list_range_paths(delta.files, vbucket_range)
    rows = _sort_rows(pa.concat_tables([nothing, *read_rows(paths, None)]))
    markers = rows.filter(pc.is_in(rows["event"], value_set=MARKER_EVENTS))
    changes = _select_documents(RowMarkers.collect(markers).select_survivors(rows))
    rollbacks = rows.filter(pc.is_in(rows["event"], value_set=ROLLBACK_EVENTS))
    where = _find_concerned(markers)
    if with_known and len(rows):
        where = pc.field("vbucket").isin(pc.unique(rows["vbucket"]))
    if where is None:
        return OrderedChanges(False, rollbacks, nothing, nothing, changes, nothing)
    older = _OlderRows(delta, vbucket_range, rows, where)
    only = changes if not len(markers) else None  # a marker may concern any document of its vbucket
    known = older.read_newest(older.read_markers(), MERGE_SCHEMA if with_known else KNOWN_SCHEMA, only=only)
    all_markers = RowMarkers.collect(pa.concat_tables([older.read_marker_rows(), markers]))
    survives = pa.array(all_markers.mark_survivors(known))
    lost, kept = known.filter(pc.invert(survives)), known.filter(survives)
    restored = older.read_newest(all_markers, MERGE_SCHEMA, without=kept) if len(rollbacks) else nothing
    return OrderedChanges(False, rollbacks, lost, restored, changes, known)


def _read_snapshot(delta: ChangelogDelta, vbucket_range: int) -> OrderedChanges:
    """Return the newest changes of all documents. Of documents without one, the consumer may have a lost version."""
    nothing = MERGE_SCHEMA.empty_table()
    changes = delta.read_range(vbucket_range).changes
    paths = delta.list_range_paths(delta.files, vbucket_range)
    known = reduce_rows(read_rows(paths, None, KNOWN_SCHEMA), KNOWN_SCHEMA)
    lost = known.filter(pa.array(~mark_common_identities(known, changes)))
    return OrderedChanges(True, nothing, lost, nothing, _sort_rows(changes), nothing)


@dataclass(frozen=True, slots=True)
class _OlderRows:
    """The rows of a range before the delta.

    A compaction may have joined rows of the delta with older rows in one file. So the rows of the delta are excluded
    by their place in the vbucket's order.

    Attributes:
        rows: the rows of the delta, sorted.
        where: selects the rows that are concerned.
    """

    delta: ChangelogDelta
    vbucket_range: int
    rows: pa.Table
    where: pc.Expression

    def read_newest(
        self, markers: RowMarkers, schema: pa.Schema, *, only: pa.Table | None = None, without: pa.Table | None = None
    ) -> pa.Table:
        """Return the newest change of each document that survives the markers.

        Args:
            markers: rollbacks and ends of collections.
            schema: the columns to read.
            only: if given, the documents to look at.
            without: if given, documents to leave out.
        """

        def read_survivors() -> Iterator[pa.Table]:
            for rows in self._read(schema):
                if only is not None:
                    rows = rows.filter(pa.array(mark_common_identities(rows, only)))
                if without is not None:
                    rows = rows.filter(pa.array(~mark_common_identities(rows, without)))
                yield markers.select_survivors(rows)

        return reduce_rows(read_survivors(), schema)

    def read_markers(self) -> RowMarkers:
        """Return the markers among the older rows."""
        return RowMarkers.collect(self.read_marker_rows())

    def read_marker_rows(self) -> pa.Table:
        """Return the rollbacks, flushes and collection events among the older rows."""
        vbuckets = pc.field("vbucket").isin(pc.unique(self.rows["vbucket"]))
        where = pc.field("event").isin(MARKER_EVENTS) & vbuckets
        return pa.concat_tables([MERGE_SCHEMA.empty_table(), *self._read(MERGE_SCHEMA, where)])

    def _read(self, schema: pa.Schema, where: pc.Expression | None = None) -> Iterator[pa.Table]:
        files = self.delta.all_files
        if not files:  # the delta has none if no row of it is a marker
            table = self.delta.lake.changelog_table.open()
            files = tuple(self.delta.lake.changelog_table.list_files(table)) if table is not None else ()
        paths = self.delta.list_range_paths(files, self.vbucket_range)
        for rows in read_rows(paths, self.where if where is None else where, schema):
            yield rows.filter(pa.array(_mark_older(rows, self.rows)))


def _find_concerned(markers: pa.Table) -> pc.Expression | None:
    """Return which rows the markers may void, None if there are no markers."""
    rolled = markers.filter(pc.is_in(markers["event"], value_set=ROLLBACK_EVENTS))["vbucket"]
    ended = markers.filter(pc.is_in(markers["event"], value_set=COLLECTION_EVENTS))
    where: pc.Expression | None = pc.field("vbucket").isin(pc.unique(rolled)) if len(rolled) else None
    if len(ended):
        is_member = pc.field("collection_id").isin(pc.unique(ended["collection_id"]))
        if 0 in ended["collection_id"].to_pylist():
            is_member |= pc.field("collection_id").is_null()
        is_member &= pc.field("vbucket").isin(pc.unique(ended["vbucket"]))
        where = is_member if where is None else where | is_member
    return where


def _select_documents(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_in(rows["event"], value_set=DOCUMENT_EVENTS))


def _sort_rows(rows: pa.Table) -> pa.Table:
    """Return the rows by vbucket, history and seqno; a rollback precedes all other rows of its history."""
    histories, seqnos = _read_order(rows)
    return rows.take(pa.array(np.lexsort((seqnos, histories, rows["vbucket"].to_numpy()))))


def _mark_older(rows: pa.Table, sorted_rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows before the first of `sorted_rows` of their vbucket."""
    vbuckets, first = np.unique(sorted_rows["vbucket"].to_numpy(), return_index=True)
    histories, seqnos = (column[first] for column in _read_order(sorted_rows))
    at = np.searchsorted(vbuckets, rows["vbucket"].to_numpy())
    known_histories, known_seqnos = _read_order(rows)
    older: npt.NDArray[np.bool_] = (known_histories < histories[at]) | (
        (known_histories == histories[at]) & (known_seqnos < seqnos[at])
    )
    return older


def _read_order(rows: pa.Table) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
    """Return history and seqno of each row; the seqno of a rollback is 0 here."""
    seqnos = pc.if_else(pc.is_in(rows["event"], value_set=ROLLBACK_EVENTS), 0, pc.fill_null(rows["seqno"], 0))
    return rows["history"].to_numpy(), seqnos.to_numpy().view(np.uint64)
