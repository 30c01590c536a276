"""Entries of an index: pure functions over Arrow tables.

An entry is one value of one document. Its values are sorted, so that files and parts of files tell by their least and
greatest value whether a search concerns them; a misfit has no value, and comes last.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.dependents.json_paths import extract
from penstock.spark.dependents.value_types import ValueType
from penstock.spark.lake.changelog.changelog_delta import IDENTITIES, ChangelogDelta, RangeDelta
from penstock.spark.lake.changelog.merge_rules import IDENTITY, CollectionEnds, to_documents
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS

DOCUMENT = ("key", "key_bytes", "vbucket", "collection_id", "scope", "collection", "seqno", "history")
"""The columns of an entry that identify its document, as in the current table."""


def entry_schema(kind: ValueType) -> pa.Schema:
    """Return the columns of an index of that type; `misfit` is null for all that have a value."""
    fields = [pa.field("value", kind.type), pa.field("misfit", pa.string())]
    return pa.schema([*fields, *(CURRENT_COLUMNS.field(name) for name in DOCUMENT)])


def entries_of(changes: pa.Table, names: tuple[str, ...], kind: ValueType) -> pa.Table:
    """Return the entries of the documents among changes: one of each value that the path reaches, sorted."""
    documents = to_documents(changes)
    found = extract(documents["value"], names, kind)
    once = pa.table({"row": found.rows, "value": found.values, "misfit": found.misfits})
    if (np.diff(found.rows) == 0).any():
        once = once.group_by(once.column_names, use_threads=False).aggregate([])
    columns = documents.select(DOCUMENT).take(once["row"])
    entries = pa.table([once["value"], once["misfit"], *columns.columns], schema=entry_schema(kind))
    return in_order(entries)


def in_order(entries: pa.Table) -> pa.Table:
    """Return entries by value upwards, misfits last."""
    return entries.take(pc.sort_indices(entries, sort_keys=[("value", "ascending")]))


def within(entries: pa.Table, low: pa.Scalar | None, high: pa.Scalar | None) -> pa.Table:
    """Return sorted entries with values from `low` to `high`, both included; None: no bound."""
    start = 0 if low is None else _place(bisect.bisect_left, entries, low)
    return entries.slice(start, max(0, upto(entries, high) - start))


def upto(entries: pa.Table, high: pa.Scalar | None) -> int:
    """Return how many sorted entries have a value not above `high`, or have one at all."""
    if high is None:
        return int(entries.num_rows - entries["value"].null_count)
    return _place(bisect.bisect_right, entries, high)


def _place(search: Callable[..., int], entries: pa.Table, value: pa.Scalar) -> int:
    values = entries["value"]
    return search(range(upto(entries, None)), value.as_py(), key=lambda at: values[at].as_py())


@dataclass(frozen=True, slots=True)
class PendingEntries:
    """The changes that an index has not applied.

    Attributes:
        outdated: the documents whose entries in the index's files no longer count, with identities as its changes.
        entries: the new entries, sorted.
        rows: how many rows of the changelog these are.
    """

    outdated: RangeDelta
    entries: pa.Table
    rows: int

    @classmethod
    def of(cls, delta: ChangelogDelta, names: tuple[str, ...], kind: ValueType) -> PendingEntries:
        """Read a delta of all ranges. Raises FileNotFoundError where a file was taken away since."""
        pending = cls.none(kind)
        parts = [pending]
        for part in delta.ranges:
            read = delta.read(part)
            slim = replace(read, changes=read.changes.select(IDENTITY))
            parts.append(cls(slim, entries_of(read.changes, names, kind), 0))
        return replace(cls._joined(parts), rows=delta.rows)

    @classmethod
    def none(cls, kind: ValueType) -> PendingEntries:
        """Return what is pending where nothing is."""
        delta = RangeDelta(IDENTITIES.empty_table(), frozenset(), _ended(np.zeros(0, np.int64)))
        return cls(delta, entry_schema(kind).empty_table(), 0)

    def then(self, later: PendingEntries) -> PendingEntries:
        """Return this and what came after it as one."""
        kept = replace(self, entries=self.entries.filter(pc.invert(later.outdated.outdates(self.entries))))
        return replace(self._joined([kept, later]), rows=self.rows + later.rows)

    @classmethod
    def _joined(cls, parts: list[PendingEntries]) -> PendingEntries:
        delta = [part.outdated for part in parts]
        outdated = RangeDelta(
            pa.concat_tables(each.changes for each in delta),
            frozenset().union(*(each.rolled_back for each in delta)),
            _ended(np.concatenate([each.ended.collections for each in delta])),
        )
        return cls(outdated, in_order(pa.concat_tables(part.entries for part in parts)), 0)


def _ended(collections: npt.NDArray[np.int64]) -> CollectionEnds:
    """Return that these ended, no matter where: what is asked about is all older."""
    once = np.unique(collections)
    return CollectionEnds(once, np.zeros(len(once), np.int32), np.zeros(len(once), np.uint64))
