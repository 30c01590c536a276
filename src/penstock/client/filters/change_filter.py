"""A filter of changes by key and value, for a stream or a replication. No I/O."""

from __future__ import annotations

from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.filters.filter_syntax import MetaField
from penstock.client.filters.key_filter import KeyFilter
from penstock.client.filters.unreadable_changes import UnreadableChanges
from penstock.client.filters.value_filter import FilterDocument, ValueFilter, Verdicts, check_regex
from penstock.wire.columns.run_decoder import make_batch
from penstock.wire.columns.schema import Change, Event

Bools = npt.NDArray[np.bool_]


class ChangeFilter:
    """Chooses changes of documents by key and by value. Events of collections always pass.

    A deletion or an expiration has no value, and may remove a document that matched. So only its key decides: the
    regular expressions, and an expression that reads nothing else.

    Args:
        key: a regular expression (RE2) that must be found in the key; None: any key.
        value: an expression that must be true for the JSON of a document; None: any value.
        excluded_key: a regular expression (RE2) that must not be found in the key; None: no key is left out.
        hides_rollbacks: whether rollbacks are left out.

    Attributes:
        key: as above.
        value: as above.
        excluded_key: as above.

    Raises:
        UsageError: an expression is invalid.
    """

    def __init__(
        self,
        key: str | None = None,
        value: str | None = None,
        *,
        excluded_key: str | None = None,
        hides_rollbacks: bool = False,
    ) -> None:
        self._hides_rollbacks = hides_rollbacks
        self.key, self.value, self.excluded_key = key, value, excluded_key
        for pattern in (key, excluded_key):
            if pattern is not None:
                check_regex(pattern)
        self._key_filter = KeyFilter(key, excluded_key)
        self._value_filter = None if value is None else ValueFilter(value)

    @property
    def is_everything(self) -> bool:
        """Whether every change matches."""
        return self._key_filter.is_everything and self.value is None and not self._hides_rollbacks

    @property
    def reads_values(self) -> bool:
        """Whether the filter reads fields of values."""
        return self._value_filter is not None and self._value_filter.reads_values

    @property
    def reads_xattrs(self) -> bool:
        """Whether the filter reads extended attributes."""
        return self._value_filter is not None and MetaField.XATTRS in self._value_filter.fields

    def match_rows(self, rows: pa.RecordBatch | pa.Table) -> Verdicts:
        """Return which rows of CHANGE_SCHEMA match. A row without a key is no change of a document, and matches."""
        chosen = self.match_keys(rows.column("key"))
        unreadable: dict[int, str] = {}
        if self._value_filter is not None:
            places = np.flatnonzero(chosen & np.asarray(_find_decided(rows, self._value_filter)))
            found = self._value_filter.match_documents(_list_documents(rows, places, self._value_filter))
            chosen[places] = found.matches
            unreadable = {int(places[place]): reason for place, reason in found.unreadable.items()}
        if self._hides_rollbacks:
            chosen &= np.asarray(pc.not_equal(rows.column("event"), str(Event.ROLLBACK)))
        return Verdicts(chosen, unreadable)

    def match_keys(self, keys: pa.Array | pa.ChunkedArray) -> Bools:
        """Return which keys match, as far as keys decide. A null matches."""
        if self._key_filter.is_everything:
            return np.ones(len(keys), bool)
        return np.array(self._key_filter.match_keys(keys))

    def select_changes(
        self, content: pa.RecordBatch | list[Change], unreadable: UnreadableChanges
    ) -> pa.RecordBatch | list[Change]:
        """Return the changes that match, in the form of `content`; the same object if all do.

        Args:
            content: the changes.
            unreadable: takes the changes whose documents the filter cannot read.
        """
        if self.is_everything:
            return content
        rows = make_batch(content) if isinstance(content, list) else content
        chosen, reasons = self.match_rows(rows)
        unreadable.add(rows.column("key"), reasons)
        if chosen.all():
            return content
        if isinstance(content, list):
            return [change for change, is_it in zip(content, chosen, strict=True) if is_it]
        return content.filter(pa.array(chosen))


def _find_decided(rows: pa.RecordBatch | pa.Table, value_filter: ValueFilter) -> pa.Array:
    """Return the rows that an expression decides. A tombstone has a key, but no other part of its document."""
    if value_filter.fields <= {MetaField.KEY} and not value_filter.reads_values:
        return rows.column("key").is_valid()
    return pc.equal(rows.column("event"), str(Event.MUTATION))


_COLUMNS: Final = {"key": MetaField.KEY, "expiry": MetaField.EXPIRY, "xattrs": MetaField.XATTRS}
"""Column -> the metadata in it."""


def _list_documents(
    rows: pa.RecordBatch | pa.Table, places: npt.NDArray[np.int64], value_filter: ValueFilter
) -> list[FilterDocument]:
    """Return the documents of some rows, with the metadata that the expression reads."""
    wanted = pa.array(places)
    values = rows.column("value").take(wanted).to_pylist()
    metadata = [
        rows.column(name).take(wanted).to_pylist() if field in value_filter.fields else repeat(None, len(values))
        for name, field in _COLUMNS.items()
    ]
    return [
        FilterDocument(value, key or b"", expiry or 0, xattrs or ())
        for value, key, expiry, xattrs in zip(values, *metadata, strict=True)
    ]


ALL_CHANGES = ChangeFilter()
