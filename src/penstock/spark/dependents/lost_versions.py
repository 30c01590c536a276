"""Versions that a source has lost by a rollback, or by the end of a collection, and the rows that repair a target."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.meta_requests import REPLACED_CAS
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, RangeDelta
from penstock.spark.lake.changelog.merge_rules import DOCUMENT_EVENTS, MARKER_EVENTS, RowMarkers, fill_collection_ids
from penstock.spark.lake.tables.data_files import open_dataset
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.sink.sink_options import Operation
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import Event

LOST_COLUMNS = [name for name in MERGE_SCHEMA.names if name not in ("value", "xattrs")]
"""The columns that are read of a lost version."""


def can_have_lost_versions(delta: ChangelogDelta, part: int, read: RangeDelta) -> bool:
    """Return whether versions of a vbucket range may have been lost."""
    marked = any(file.keyless_rows for file in delta.all_files if file.vbucket_range == part)
    return marked and (delta.is_full or bool(read.rolled_back) or len(read.collection_ends.collections) > 0)


def find_lost_versions(delta: ChangelogDelta, part: int, read: RangeDelta) -> tuple[pa.Table, pa.Table]:
    """Return the lost versions of a vbucket range: versions that no longer count and were not replaced by newer ones.

    These are the changelog rows that a rollback or a collection's end removed. All of them have the event deletion,
    because the bucket shall delete them.

    Args:
        delta: the delta.
        part: the vbucket range.
        read: the delta's changes of that range.

    Returns:
        Lost documents and lost tombstones, in MERGE_SCHEMA.
    """
    files = [file for file in delta.all_files if file.vbucket_range == part]
    dataset = open_dataset(delta.lake.changelog_table.list_paths(files), MERGE_SCHEMA)
    vbuckets = {*read.rolled_back, *(int(place) >> 32 for place in read.collection_ends.collections)}
    is_concerned = pc.scalar(True) if delta.is_full else pc.field("vbucket").isin(list(vbuckets))
    marks = RowMarkers.collect(dataset.to_table(filter=is_concerned & pc.field("event").isin(MARKER_EVENTS)))
    documents = is_concerned & pc.field("event").isin(DOCUMENT_EVENTS)
    found = [MERGE_SCHEMA.empty_table().select(LOST_COLUMNS)]
    for batch in dataset.to_batches(columns=LOST_COLUMNS, filter=documents, batch_readahead=2, fragment_readahead=1):
        rows = fill_collection_ids(pa.Table.from_batches([batch]))
        found.append(rows.filter(pa.array(~marks.mark_survivors(rows))))
    rows = pa.concat_tables(found)
    stored = pc.equal(rows["event"], str(Event.MUTATION))
    return _convert_to_deletions(rows.filter(stored)), _convert_to_deletions(rows.filter(pc.invert(stored)))


def _convert_to_deletions(rows: pa.Table) -> pa.Table:
    nothing = {name: pa.nulls(len(rows), MERGE_SCHEMA.field(name).type) for name in ("value", "xattrs")}
    columns = {name: rows[name] for name in LOST_COLUMNS} | nothing
    columns["event"] = pa.repeat(pa.scalar(str(Event.DELETION)), len(rows))
    return pa.table({name: columns[name] for name in MERGE_SCHEMA.names}, schema=MERGE_SCHEMA)


def build_repairs(
    operation: Operation, lost: pa.Table, replaced: pa.ChunkedArray, changes: pa.Table
) -> Iterable[pa.Table]:
    """Return the rows that replace lost versions: deletions, and rows with the surviving version.

    Args:
        operation: with-meta or change.
        lost: the lost versions; a document may have several.
        replaced: the value of the column REPLACES for each lost version.
        changes: the surviving documents of the lost versions, and others.

    Returns:
        Tables of rows to write.
    """
    survivor = pc.index_in(_encode_identities(lost), value_set=_encode_identities(changes).combine_chunks())
    deleted = lost.filter(survivor.is_null())
    if operation is Operation.CHANGE:
        return [deleted]
    # The lowest cas and rev_seqno, so that every later version of the source wins against these deletions.
    least = pa.repeat(pa.scalar(1, pa.int64()), len(deleted))
    deletions = {name: deleted[name] for name in deleted.column_names if name in MERGE_SCHEMA.names}
    deletions |= {"cas": least, "rev_seqno": least, REPLACED_CAS: replaced.filter(survivor.is_null())}
    replacements = changes.take(survivor.drop_null()).append_column(REPLACED_CAS, replaced.filter(survivor.is_valid()))
    return [pa.table(deletions), replacements]


def _encode_identities(rows: pa.Table) -> pa.ChunkedArray:
    """Return scope, collection and key of each row as one value."""
    names = [
        pc.fill_null(rows[name], DEFAULT_NAME).cast(pa.binary())
        if name in rows.column_names
        else pa.repeat(pa.scalar(DEFAULT_NAME.encode()), len(rows))
        for name in ("scope", "collection")
    ]
    joined = pc.binary_join_element_wise(*names, rows["key"].cast(pa.binary()), b"\0")
    return joined if isinstance(joined, pa.ChunkedArray) else pa.chunked_array([joined])
