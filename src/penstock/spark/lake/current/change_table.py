"""Change tables: tables with a row for each change of a collection, and the files of their merges.

Rows are added and never change. A rollback is a row: it voids the rows of its vbucket with a lower history and a higher
seqno, and all of these stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.changelog.merge_rules import (
    COLLECTION_EVENTS,
    DOCUMENT_EVENTS,
    ROLLBACK_EVENTS,
    Bools,
)
from penstock.spark.lake.current.table_rewrite import RangeChanges, RewrittenFiles, TableRewrite
from penstock.spark.lake.tables.data_files import DataFile, match_types
from penstock.spark.storage.object_files import open_parquet
from penstock.wire.columns.schema import Event

_MEMBER_EVENTS = pa.concat_arrays(
    [DOCUMENT_EVENTS, COLLECTION_EVENTS, pa.array([Event.MODIFY_COLLECTION], pa.string())]
)
"""The events of a collection and of its documents."""
_EVENTS = pa.concat_arrays([_MEMBER_EVENTS, ROLLBACK_EVENTS])


class ChangeRewrite(TableRewrite):
    """A table with a row for each change during a merge."""

    __slots__ = ()

    def rewrite_range(self, changes: RangeChanges) -> RewrittenFiles:
        """Add the changes of a range.

        Args:
            changes: the changes of the range.

        Returns:
            The files of the range.
        """
        old = self.list_old(changes.vbucket_range)
        kept, removed = ([], old) if self.is_rebuild else (old, [])
        chosen = self._mark_changes(changes.events, kept)
        if changes.delta.is_full and kept:
            known = np.concatenate([_encode_changes(self._read(file, _PLACE)) for file in kept])
            chosen &= ~np.isin(_encode_changes(changes.events), known)
        with self.open_writer(changes.vbucket_range) as writer:
            start = 0
            for rows in changes.read_values() if chosen.any() else ():
                some = rows.filter(pa.array(chosen[start : start + rows.num_rows]))
                start += rows.num_rows
                if some.num_rows:
                    writer.write(self.target.to_rows(_drop_rollback_ids(some), self.stamp))
            return RewrittenFiles(writer.close(), removed, [], 0)

    def _mark_changes(self, events: pa.Table, files: Sequence[DataFile]) -> Bools:
        """Return a mask of the rows of a changelog that the table has.

        A selection of collections sees the end of a collection by its id alone, so the name comes from other rows.
        """
        is_member = pc.and_(self.target.mark_members(events), pc.is_in(events["event"], value_set=_MEMBER_EVENTS))
        is_nameless = pc.and_(
            pc.is_in(events["event"], value_set=COLLECTION_EVENTS),
            pc.and_(pc.is_null(events["collection"]), pc.not_equal(events["collection_id"], 0)),
        )
        if pc.any(is_nameless).as_py():
            ids = events["collection_id"].filter(is_member).unique().to_pylist()
            for file in files:
                ids += self._read(file, ["_collection_id"])["_collection_id"].unique().to_pylist()
            is_own = pc.is_in(events["collection_id"], value_set=pa.array(ids, pa.int64()))
            is_member = pc.or_(is_member, pc.and_(is_nameless, is_own))
        found: Bools = pc.or_(is_member, pc.is_in(events["event"], value_set=ROLLBACK_EVENTS)).to_numpy()
        return found

    def _read(self, file: DataFile, names: Sequence[str]) -> pa.Table:
        with open_parquet(self.target.table.path / file.path) as rows:
            found = match_types(rows.read(columns=list(names)), self.target.columns)
        return found.rename_columns([name.removeprefix("_") if name in _PLACE else name for name in names])


_PLACE = ("_vbucket", "_history", "_seqno", "_event")


def _encode_changes(rows: pa.Table) -> npt.NDArray[np.void]:
    """Return place and event of each row as one comparable value. A selection's end may have the place of a change."""
    found = np.empty(rows.num_rows, [(name, np.int64) for name in ("vbucket", "history", "seqno", "event")])
    for name in ("vbucket", "history", "seqno"):
        found[name] = pc.fill_null(rows[name], 0).to_numpy()
    found["event"] = pc.fill_null(pc.index_in(rows["event"], value_set=_EVENTS), -1).to_numpy()
    return found


def _drop_rollback_ids(changes: pa.Table) -> pa.Table:
    """Return changes without a collection's id in rollbacks, which concern all collections."""
    at = changes.schema.get_field_index("collection_id")
    is_rollback = pc.is_in(changes["event"], value_set=ROLLBACK_EVENTS)
    ids = pc.if_else(is_rollback, pa.scalar(None, pa.int64()), changes["collection_id"])
    return changes.set_column(at, changes.schema.field(at), ids)
