"""Chooses the changes that are replicated, in columns, and gives them the collections of the target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.meta_requests import select_documents
from penstock.client.documents.row_columns import RowColumns, find_collections
from penstock.client.filters.change_filter import ChangeFilter
from penstock.client.filters.unreadable_changes import UnreadableChanges
from penstock.client.xdcr.collection_mapping import CollectionMapping
from penstock.client.xdcr.xdcr_options import XdcrOptions
from penstock.wire.columns.schema import Event


class ChangeSelector:
    """Chooses the changes that are replicated.

    Args:
        options: the options of the replication.

    Attributes:
        unreadable: the changes whose documents the filter could not read.

    Raises:
        UsageError: a filter or the mapping is invalid.
    """

    def __init__(self, options: XdcrOptions) -> None:
        self.unreadable = UnreadableChanges()
        self.mapping = CollectionMapping.parse(options.mapping or ())
        self._filter = ChangeFilter(options.filter_key, options.filter_value, excluded_key=options.filter_key_exclude)
        skipped = {Event.DELETION: options.skip_deletions, Event.EXPIRATION: options.skip_expirations}
        self._skipped = pa.array([str(event) for event, is_skipped in skipped.items() if is_skipped], pa.string())

    @property
    def keeps_collections(self) -> bool:
        """Whether changes keep their collections."""
        return self.mapping.keeps_names

    def select_changes(self, table: pa.Table) -> tuple[pa.Table, int]:
        """Return the changes to replicate, and the number of changes of documents that were left out.

        Those that the filter cannot read are among them, and are added to `unreadable`.

        Args:
            table: changes, rollbacks and other events in CHANGE_SCHEMA.
        """
        documents = _take_rows(table, select_documents(table))
        count = len(documents)
        # A collection without a name no longer exists: its id is in no manifest that the stream has seen.
        chosen = ~np.asarray(pc.and_(documents["collection_id"].is_valid(), documents["collection"].is_null()))
        if len(self._skipped):
            chosen &= ~np.asarray(pc.is_in(documents["event"], value_set=self._skipped))
        documents = _take_rows(documents, np.flatnonzero(chosen))
        if not self._filter.is_everything:
            chosen, reasons = self._filter.match_rows(documents)
            self.unreadable.add(documents["key"], reasons)
            documents = _take_rows(documents, np.flatnonzero(chosen))
        if not self.mapping.keeps_names and len(documents):
            documents = self._map_collections(documents)
        return documents, count - len(documents)

    def _map_collections(self, documents: pa.Table) -> pa.Table:
        names, places = find_collections(RowColumns(documents), None, None)
        targets = [self.mapping.find_target(name) for name in names]
        if None in targets:
            is_mapped = np.array([target is not None for target in targets])
            kept = np.flatnonzero(is_mapped[places])
            documents, places = _take_rows(documents, kept), places[kept]
        for place, column in enumerate(("scope", "collection")):
            known = pa.array([None if target is None else target[place] for target in targets], pa.string())
            number = documents.schema.get_field_index(column)
            documents = documents.set_column(number, column, known.take(pa.array(places)))
        return documents


def _take_rows(table: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    return table if len(places) == len(table) else table.take(pa.array(places))
