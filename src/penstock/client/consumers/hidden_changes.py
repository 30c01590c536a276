"""The changes that a consumer does not deliver: those of Penstock's own documents, and unwanted rollbacks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.document_attributes import OWN_KEYS
from penstock.wire.columns.schema import Change, Event

_START = OWN_KEYS.encode()


class HiddenChanges:
    """The changes that a consumer processes itself. Its stream delivers them, because they move positions.

    Args:
        has_rollbacks: whether rollbacks are hidden.
    """

    def __init__(self, *, has_rollbacks: bool = False) -> None:
        self._has_rollbacks = has_rollbacks

    def includes(self, change: Change) -> bool:
        """Return whether a change is hidden."""
        if change.key is None:
            return self._has_rollbacks and change.event == Event.ROLLBACK
        return change.key.startswith(_START)

    def remove_from(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch without hidden changes; the same batch if it has none."""
        hidden = pc.fill_null(pc.starts_with(batch.column("key"), _START), False)
        if self._has_rollbacks:
            hidden = pc.or_(hidden, pc.equal(batch.column("event"), str(Event.ROLLBACK)))
        return batch.filter(pc.invert(hidden)) if pc.any(hidden).as_py() else batch
