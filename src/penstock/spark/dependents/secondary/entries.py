"""Entries of an index: pure functions over Arrow tables.

An entry is one value of one document. Entries are sorted by value. So the least and greatest value of a file, or of a
part of a file, show whether a search needs it. A misfit has no value and comes last.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.dependents.json_paths import extract_values
from penstock.spark.dependents.value_types import ValueType
from penstock.spark.lake.changelog.changelog_delta import CONTENT_SCHEMA, IDENTITY_SCHEMA, ChangelogDelta, RangeDelta
from penstock.spark.lake.changelog.merge_rules import IDENTITY, CollectionEnds, to_documents
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS

DOCUMENT_COLUMNS = ("key", "key_bytes", "vbucket", "collection_id", "scope", "collection", "seqno", "history")
"""The columns of an entry that identify its document, as in the current table."""
STEP_ROWS, STEP_BYTES = 65_536, 16 << 20
"""Changes, and their size, whose entries are made at once. Arrays may have many more entries than documents."""


def make_entry_schema(kind: ValueType) -> pa.Schema:
    """Return the columns of an index of that type; `misfit` is null for all entries with a value."""
    fields = [pa.field("value", kind.type), pa.field("misfit", pa.string())]
    return pa.schema([*fields, *(CURRENT_COLUMNS.field(name) for name in DOCUMENT_COLUMNS)])


def extract_entries(changes: pa.Table, names: tuple[str, ...], kind: ValueType) -> pa.Table:
    """Return the entries of the documents among changes, one for each different value that the path reaches.

    Args:
        changes: the newest changes of some documents, in CONTENT_SCHEMA.
        names: the path.
        kind: the type of the values.

    Returns:
        The entries in the order of the documents.
    """
    documents = to_documents(changes)
    found = extract_values(documents["value"], names, kind)
    distinct = pa.table({"row": found.rows, "value": found.values, "misfit": found.misfits})
    if (np.diff(found.rows) == 0).any():  # a document has several values, and perhaps one of them twice
        distinct = distinct.group_by(distinct.column_names, use_threads=False).aggregate([])
    columns = documents.select(DOCUMENT_COLUMNS).take(distinct["row"])
    return pa.table([distinct["value"], distinct["misfit"], *columns.columns], schema=make_entry_schema(kind))


def sort_entries(entries: pa.Table) -> pa.Table:
    """Return the entries sorted by value, misfits last."""
    return entries.take(pc.sort_indices(entries, sort_keys=[("value", "ascending")]))


def select_range(entries: pa.Table, low: pa.Scalar | None, high: pa.Scalar | None) -> pa.Table:
    """Return the sorted entries with values from `low` to `high`, both included; None means no bound."""
    start = 0 if low is None else _find_place(bisect.bisect_left, entries, low)
    return entries.slice(start, max(0, count_up_to(entries, high) - start))


def count_up_to(entries: pa.Table, high: pa.Scalar | None) -> int:
    """Return the number of sorted entries with a value up to `high`; None counts all entries with a value."""
    if high is None:
        return int(entries.num_rows - entries["value"].null_count)
    return _find_place(bisect.bisect_right, entries, high)


def _find_place(search: Callable[..., int], entries: pa.Table, value: pa.Scalar) -> int:
    values = entries["value"]
    return search(range(count_up_to(entries, None)), value.as_py(), key=lambda at: values[at].as_py())


@dataclass(frozen=True, slots=True)
class PendingEntries:
    """The changes that an index has not applied.

    Attributes:
        outdated: the documents whose entries in the index's files no longer count. Its changes are only identities.
        entries: the new entries, sorted.
        rows: the number of changelog rows.
    """

    outdated: RangeDelta
    entries: pa.Table
    rows: int

    @classmethod
    def collect(cls, delta: ChangelogDelta, names: tuple[str, ...], kind: ValueType) -> PendingEntries:
        """Return the entries of a delta, all ranges together. Raises FileNotFoundError if a file was removed meanwhile.

        Args:
            delta: the delta.
            names: the path.
            kind: the type of the values.

        Returns:
            The pending changes.
        """
        return replace(cls._join([cls.empty(kind), *cls.collect_parts(delta, names, kind)]), rows=delta.rows)

    @classmethod
    def collect_parts(cls, delta: ChangelogDelta, names: tuple[str, ...], kind: ValueType) -> Iterator[PendingEntries]:
        """Yield the pending changes of a delta in small parts, whose entries are not sorted.

        Raises FileNotFoundError if a file was removed meanwhile.

        Args:
            delta: the delta.
            names: the path.
            kind: the type of the values.

        Yields:
            Some documents of one range. Documents that are rolled back or in ended collections repeat in each part.
        """
        for part in delta.ranges:
            yield from cls._collect_range(delta.read_range(part, CONTENT_SCHEMA), names, kind)

    @classmethod
    def _collect_range(cls, delta: RangeDelta, names: tuple[str, ...], kind: ValueType) -> Iterator[PendingEntries]:
        rows = max(1, delta.changes.num_rows)
        step = max(1, min(STEP_ROWS, rows * STEP_BYTES // max(1, delta.changes.nbytes)))
        for start in range(0, rows, step):
            changes = delta.changes.slice(start, step)
            slim = replace(delta, changes=changes.select(IDENTITY))
            yield cls(slim, extract_entries(changes, names, kind), 0)

    @classmethod
    def empty(cls, kind: ValueType) -> PendingEntries:
        """Return the value for no pending changes."""
        delta = RangeDelta(IDENTITY_SCHEMA.empty_table(), frozenset(), _end_collections(np.zeros(0, np.int64)))
        return cls(delta, make_entry_schema(kind).empty_table(), 0)

    def append(self, later: PendingEntries) -> PendingEntries:
        """Return these and later changes as one."""
        kept = replace(self, entries=self.entries.filter(pc.invert(later.outdated.mark_outdated(self.entries))))
        return replace(self._join([kept, later]), rows=self.rows + later.rows)

    @classmethod
    def _join(cls, parts: list[PendingEntries]) -> PendingEntries:
        outdated = join_outdated([part.outdated for part in parts])
        return cls(outdated, sort_entries(pa.concat_tables(part.entries for part in parts)), 0)


def join_outdated(parts: Sequence[RangeDelta]) -> RangeDelta:
    """Return deltas, of which only the identities matter, as one."""
    return RangeDelta(
        pa.concat_tables([IDENTITY_SCHEMA.empty_table(), *(each.changes for each in parts)]),
        frozenset().union(*(each.rolled_back for each in parts)),
        _end_collections(
            np.concatenate([np.zeros(0, np.int64), *(each.collection_ends.collections for each in parts)])
        ),
    )


def _end_collections(collections: npt.NDArray[np.int64]) -> CollectionEnds:
    """Return the ends of these collections, above all seqnos that are compared with them."""
    once = np.unique(collections)
    return CollectionEnds(once, np.zeros(len(once), np.int32), np.zeros(len(once), np.uint64))
