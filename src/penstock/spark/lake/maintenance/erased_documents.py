"""The documents of an erasure, and the changelog rows that remain of them. Pure functions over Arrow tables.

An erased row stays in the changelog without its document. It has the event `erased`, no key and no value, and keeps its
place: vbucket, branch, seqno, snapshot and history. So states of the past have the same boundaries as before. No other
rule applies to the row, since it is neither a document nor a marker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.changelog.changelog_delta import IDENTITY_SCHEMA, RangeDelta
from penstock.spark.lake.changelog.merge_rules import (
    DOCUMENT_EVENTS,
    Bools,
    CollectionEnds,
    fill_collection_ids,
    mark_common_identities,
)

ERASED_EVENT = "erased"
"""The event of a changelog row whose document was erased."""
_KEPT_COLUMNS = frozenset(
    ("vbucket", "vbuuid", "seqno", "snapshot_start", "snapshot_end", "snapshot_flags", "history", "vbucket_range")
)
"""The columns of an erased row that show its place in the vbucket's history."""


@dataclass(frozen=True, slots=True)
class ErasedDocuments:
    """The documents that an erasure removes.

    Attributes:
        identities: vbucket, collection_id and key of each document, in IDENTITY_SCHEMA.
    """

    identities: pa.Table

    @classmethod
    def collect(cls, rows: pa.Table) -> ErasedDocuments:
        """Return the documents among changes or identities, each once. Other events are left out."""
        if "event" in rows.column_names:
            rows = rows.filter(pc.is_in(rows["event"], value_set=DOCUMENT_EVENTS))
        found = fill_collection_ids(rows.select(IDENTITY_SCHEMA.names)).cast(IDENTITY_SCHEMA)
        return cls(found.group_by(IDENTITY_SCHEMA.names, use_threads=False).aggregate([]))

    def mark_changes(self, changes: pa.Table) -> Bools:
        """Return a mask of the changes of these documents."""
        is_document = pc.is_in(changes["event"], value_set=DOCUMENT_EVENTS).to_numpy()
        found: Bools = is_document & mark_common_identities(changes, self.identities)
        return found

    def blank_changes(self, changes: pa.Table) -> pa.Table:
        """Return the changes, in their order, with erased rows in the place of those of these documents."""
        is_erased = self.mark_changes(changes)
        blank = changes.filter(pa.array(is_erased))
        columns = [
            blank[field.name] if field.name in _KEPT_COLUMNS else pa.nulls(blank.num_rows, field.type)
            for field in changes.schema
        ]
        at = changes.schema.get_field_index("event")
        columns[at] = pa.repeat(pa.scalar(ERASED_EVENT, changes.schema.field(at).type), blank.num_rows)
        kept = changes.filter(pa.array(~is_erased))
        both = pa.concat_tables([kept, pa.table(columns, schema=changes.schema)])
        order = np.argsort(np.concatenate([np.flatnonzero(~is_erased), np.flatnonzero(is_erased)]))
        return both.take(pa.array(order))

    def to_delta(self) -> RangeDelta:
        """Return the delta that voids these documents and adds nothing, for the tables of documents."""
        no_ends = CollectionEnds(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint64))
        return RangeDelta(self.identities, frozenset(), no_ends)
