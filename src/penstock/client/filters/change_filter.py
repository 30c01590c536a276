"""A filter of changes by key and value, for a stream or a replication. No I/O."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.filters.value_filter import ValueFilter, check_regex
from penstock.wire.columns.schema import Change, Event

__all__ = ["ALL_CHANGES", "ChangeFilter"]

Bools = npt.NDArray[np.bool_]


class ChangeFilter:
    """Chooses changes of documents by key and by value. Rollbacks and events of collections always pass.

    A deletion or an expiration has no value, and may remove a document that matched. So only its key decides.

    Args:
        key: a regular expression (RE2) that must be found in the key; None: any key.
        value: an expression that must be true for the JSON of a document; None: any value.

    Attributes:
        key: as above.
        value: as above.

    Raises:
        UsageError: an expression is invalid.
    """

    def __init__(self, key: str | None = None, value: str | None = None) -> None:
        self.key = None if key is None else check_regex(key)
        self.value = value
        self._value_filter = None if value is None else ValueFilter(value)

    @property
    def is_everything(self) -> bool:
        """Whether every change matches."""
        return self.key is None and self.value is None

    def match_documents(self, keys: pa.Array, values: pa.Array, stores: Bools) -> Bools:
        """Return which changes match.

        Args:
            keys: the keys. A row without a key is no change of a document, and matches.
            values: the values, without extended attributes.
            stores: which changes store a document.
        """
        chosen = np.ones(len(keys), bool)
        if self.key is not None:
            chosen &= np.asarray(pc.match_substring_regex(keys, self.key).fill_null(True))
        if self._value_filter is not None:
            checked = np.flatnonzero(chosen & stores)
            chosen[checked] = self._value_filter.match_values(values.take(pa.array(checked)).to_pylist())
        return chosen

    def match_rows(self, rows: pa.RecordBatch | pa.Table) -> Bools:
        """Return which rows match. They have the columns event, key and value of CHANGE_SCHEMA."""
        stores = np.asarray(pc.equal(rows.column("event"), str(Event.MUTATION)))
        return self.match_documents(rows.column("key"), rows.column("value"), stores)

    def select_changes(self, content: pa.RecordBatch | list[Change]) -> pa.RecordBatch | list[Change]:
        """Return the changes that match, in the form of `content`; the same object if all do."""
        if self.is_everything:
            return content
        if isinstance(content, list):
            keys = pa.array([change.key for change in content], pa.binary())
            values = pa.array([change.value for change in content], pa.binary())
            stores = np.fromiter((change.event == Event.MUTATION for change in content), bool, len(content))
            chosen = self.match_documents(keys, values, stores)
            return content if chosen.all() else [each for each, is_it in zip(content, chosen, strict=True) if is_it]
        chosen = self.match_rows(content)
        return content if chosen.all() else content.filter(pa.array(chosen))


ALL_CHANGES = ChangeFilter()
