"""A secondary index: a Delta table of the values that a JSON path reaches, sorted for searches by value.

The table works like the current table. Its commit stores the applied changelog version, a merge waits until enough
changes are pending, and every search merges pending changes. The object remembers the pending changes that it has
read, so repeated searches read only new changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from penstock.argument_types import check_arguments
from penstock.errors import UsageError
from penstock.spark.dependents.checks import check_declared_name
from penstock.spark.dependents.json_paths import parse_path
from penstock.spark.dependents.registry import DependentKind, Operand, Question, register_kind
from penstock.spark.dependents.secondary.entries import PendingEntries, select_range, sort_entries
from penstock.spark.dependents.secondary.entry_files import FilePart, select_files, select_parts
from penstock.spark.dependents.secondary.index_table import DIRECTORY, IndexTable, read_stored_definition
from penstock.spark.dependents.value_types import find_value_type
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, find_delta
from penstock.spark.lake.changelog.merge_rules import read_keys
from penstock.spark.lake.current.current_table import read_merged_version
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.merged_state import retry_missing_files
from penstock.spark.lake.reading.lake_readers import scan_current
from penstock.spark.lake.reading.spark_frames import make_frame
from penstock.spark.lake.tables.directory import LakeDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIES = 5
"""Number of times that entries and documents are read if documents change in between."""

VERSION = ["vbucket", "collection_id", "key", "seqno", "history"]
"""The columns that identify one version of one document."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The parts of the table's files that a search reads, before pending changes are merged.

    Attributes:
        files: number of files.
        row_groups: number of row groups in these files.
        total_files: files of the table.
        paths: the files that are read.
    """

    files: int
    row_groups: int
    total_files: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _IndexState:
    """One state of the index: a version of its table, and the changes that are pending for it."""

    table: DeltaTable | None
    pending: PendingEntries


@check_arguments
class SecondaryIndex:
    """An index of a lake over the values that a path reaches in its documents.

    An entry is one value of one document. null is not a value. `misfits` lists values of another type. A document that
    is not JSON has no entries. Raises UsageError for an invalid name, path or type.

    Args:
        lake: the lake of the documents.
        name: the index's name, unique in the lake.
        path: names joined by dots, `address.city`. At an array, the path continues in each element, and a document has
            an entry for each of its different values.
        type: string, double, long, boolean, decimal(p, s), timestamp or date (text of ISO 8601; UTC if it has no zone).
    """

    def __init__(self, lake: LakeDirectory, name: str, path: str, type: str = "string") -> None:  # noqa: A002
        self._index = IndexTable(lake, name, path, type)
        self._read: tuple[tuple[str, int, int], PendingEntries] | None = None
        self.lake = lake
        self.name = self._index.name
        self.path = path
        self.kind = self._index.kind
        self.table = self._index.table
        self.schema = self.table.schema

    @classmethod
    def stored(cls, lake: LakeDirectory, name: str) -> SecondaryIndex:
        """Return the index that a lake has under this name, with its own path and type.

        Raises UsageError if the lake has no such index.

        Args:
            lake: the lake.
            name: the index's name.

        Returns:
            The index.
        """
        return cls(lake, name, **read_stored_definition(lake, name))

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that the table has applied, None if nothing was applied."""
        return self._index.position()

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Merge a delta into the table, in one commit with the version that it reaches."""
        self._index.apply_delta(delta)

    def count_rows(self) -> int:
        """Return the number of entries in the table's files."""
        return self._index.count_rows()

    def lookup(self, value: Any) -> pa.Table:
        """Return the entries with this value. Raises UsageError if the value has another type."""
        return self.range(value, value)

    def range(
        self, low: Any = None, high: Any = None, *, limit: int | None = None, descending: bool = False
    ) -> pa.Table:
        """Return the entries with values from `low` to `high`, both included, sorted by value.

        Entries are as of the changelog's newest version. Entries of the same value are in no order. Raises UsageError
        for a bound of another type, or if the lake has no changelog.

        Args:
            low: the lower bound; None for no bound.
            high: the upper bound; None for no bound.
            limit: greatest number of entries; None for all.
            descending: True for the highest value first.

        Returns:
            One row for each entry.

        Raises:
            UsageError: the limit is negative.
        """
        bounds = self._convert_bounds(low, high)
        if limit is not None and limit < 0:
            raise UsageError(f"limit is {limit}, expected a number of entries, 0 or more")
        return self._retry_read(lambda state: self._search_range(state, *bounds, limit, descending))

    def scan(self) -> pa.Table:
        """Return all entries sorted by value, without misfits."""
        return self.range()

    def misfits(self) -> pa.Table:
        """Return the entries of values with another type: `misfit` is the start of the JSON that was found."""

        def read(state: _IndexState) -> pa.Table:
            parts = self._select_parts(state.table, None, None)
            found = [self._select_valid(rows.filter(rows["misfit"].is_valid()), state) for rows in _read_parts(parts)]
            fresh = state.pending.entries
            return pa.concat_tables([*found, fresh.filter(fresh["misfit"].is_valid())])

        return self._retry_read(read)

    def documents(
        self, low: Any = None, high: Any = None, *, limit: int | None = None, descending: bool = False
    ) -> pa.Table:
        """Return the documents of the entries that `range` returns.

        A document has a row for each of its entries. Entries and documents belong to the same versions.

        Args:
            low: the lower bound; None for no bound.
            high: the upper bound; None for no bound.
            limit: greatest number of entries; None for all.
            descending: True for the highest value first.

        Returns:
            The column `indexed` with the value, and CURRENT_COLUMNS.
        """
        for _ in range(TRIES):
            entries = self.range(low, high, limit=limit, descending=descending)
            found = self._join_documents(entries)
            if found.num_rows == entries.num_rows:
                break
        return found

    def frame(
        self,
        spark: SparkSession,
        low: Any = None,
        high: Any = None,
        *,
        limit: int | None = None,
        descending: bool = False,
    ) -> DataFrame:
        """Return the entries of `range` as a Spark frame."""
        return make_frame(spark, self.range(low, high, limit=limit, descending=descending))

    def plan(self, low: Any = None, high: Any = None) -> SearchPlan:
        """Return which parts of the table's files a search reads."""
        bounds = self._convert_bounds(low, high)

        def plan(state: _IndexState) -> SearchPlan:
            parts = self._select_parts(state.table, *bounds)
            of_files = len(self.table.list_files(state.table)) if state.table is not None else 0
            return SearchPlan(
                len(parts), sum(len(part.groups) for part in parts), of_files, tuple(str(p.path) for p in parts)
            )

        return self._retry_read(plan)

    def _retry_read(self, read: Callable[[_IndexState], T]) -> T:
        return retry_missing_files(lambda: read(self._read_state()))

    def _read_state(self) -> _IndexState:
        """Return the newest state; pending changes that were read before are not read again.

        Returns:
            A version of the table and its pending changes.

        Raises:
            UsageError: the lake has no changelog.
        """
        table = self._index.open()
        # Read before the changelog, so that the table is never ahead of it.
        known = read_merged_version(self.lake, self._index.table, table)
        base = -1 if table is None else table.version()
        pending = PendingEntries.empty(self.kind)
        if known is not None and self._read is not None and self._read[0][:2] == (known[0], base):
            pending, known = self._read[1], (known[0], self._read[0][2])
        delta = find_delta(self.lake, known)
        if delta is None:
            raise UsageError(f"there is no changelog at {self.lake.path}; expected the lake of a pipeline that has run")
        later = PendingEntries.collect(delta, self._index.names, self.kind)
        if delta.is_full:
            return _IndexState(None, later)  # the delta replaces the files' entries: they are not read
        pending = pending.append(later)
        self._read = ((delta.changelog_id, base, delta.version), pending)
        return _IndexState(table, pending)

    def _convert_bounds(self, low: Any, high: Any) -> tuple[pa.Scalar | None, pa.Scalar | None]:
        given = {"the lower bound": low, "the upper bound": high}
        first, last = (
            None if value is None else self.kind.convert_bound(value, subject) for subject, value in given.items()
        )
        return first, last

    def _select_parts(self, table: DeltaTable | None, low: pa.Scalar | None, high: pa.Scalar | None) -> list[FilePart]:
        if table is None:
            return []
        return select_parts(self.table.path, select_files(table, low, high), low, high)

    def _select_valid(self, entries: pa.Table, state: _IndexState) -> pa.Table:
        """Return the entries of a file that pending changes do not void."""
        return entries.filter(pc.invert(state.pending.outdated.mark_outdated(entries))) if entries.num_rows else entries

    def _search_range(
        self, state: _IndexState, low: pa.Scalar | None, high: pa.Scalar | None, limit: int | None, descending: bool
    ) -> pa.Table:
        parts = self._select_parts(state.table, low, high)
        found, count = [select_range(state.pending.entries, low, high)], 0
        for rows in _read_parts(parts[::-1] if descending else parts, descending):
            # Parts come in the order of their values, so later parts have no entry among the first ones.
            if limit is not None and count >= limit:
                break
            found.append(self._select_valid(select_range(rows, low, high), state))
            count += found[-1].num_rows
        entries = sort_entries(pa.concat_tables(found))
        if descending:
            entries = entries.take(pa.array(range(entries.num_rows - 1, -1, -1), pa.int64()))
        return entries.slice(0, limit)

    def _join_documents(self, entries: pa.Table) -> pa.Table:
        # A key that is not UTF-8 is null in this column; the join below compares its bytes.
        keys = pc.field("key").isin(entries["key"].unique()) | pc.field("key").is_null()
        documents = scan_current(self.lake, where=pc.field("vbucket").isin(entries["vbucket"].unique()) & keys)
        numbered = _select_versions(entries, "place").join(
            _select_versions(documents, "row"), VERSION, join_type="inner"
        )
        numbered = numbered.sort_by("place")
        values = entries["value"].take(numbered["place"])
        return documents.take(numbered["row"]).add_column(0, "indexed", values)


def _select_versions(rows: pa.Table, number: str) -> pa.Table:
    """Return the document version of each row, and the number of the row."""
    columns = {name: rows[name] for name in VERSION} | {"key": read_keys(rows), number: np.arange(rows.num_rows)}
    return pa.table(columns)


def _read_parts(parts: list[FilePart], descending: bool = False) -> Iterator[pa.Table]:
    for part in parts:
        yield from part.read(descending)


def _answer_find(lake: LakeDirectory, name: str, operands: Mapping[str, str | None], limit: int) -> pa.Table:
    index = SecondaryIndex.stored(lake, name)
    low, high = index.kind.parse_text(str(operands["value"])), operands["to"]
    return index.range(low, low if high is None else index.kind.parse_text(high), limit=limit)


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class SecondaryIndexKind(DependentKind):
    """A table sorted by the values at a path of the documents.

    Attributes:
        path: the JSON path.
        type: the type by which values are compared.
    """

    title = kind = "index"
    directory = DIRECTORY
    order = 10
    question = Question(
        command="find",
        help="""Find documents by a secondary index, lowest values first.

    Changes that the index has not applied yet are found too. A run may
    continue meanwhile. Write numbers and booleans as in JSON, times in
    ISO 8601. A value that begins with - comes last, after --. With --json,
    each line is one entry; a decimal is text there, with all its digits.
    """,
        examples=(
            "penstock pipeline find ./lake by_abv 5.1",
            "penstock pipeline find pipeline.toml by_abv 5 --to 7 --limit 100 --json",
            "penstock pipeline find ./lake by_change 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z",
            "penstock pipeline find ./lake by_temperature --to 0 -- -5",
        ),
        operands=(
            Operand("value", "VALUE", "Value to find, or lower bound with --to."),
            Operand("to", "HIGH", "Upper bound. Default: only VALUE.", "--to"),
        ),
        columns=("value", "key", "vbucket", "seqno"),
        answer=_answer_find,
    )

    path: str
    type: str = "string"

    def __post_init__(self) -> None:
        check_declared_name("index", self.name)
        parse_path(self.path)
        find_value_type(self.type)

    @classmethod
    def open_stored(cls, lake: LakeDirectory, name: str) -> IndexTable:
        """Return the index that a lake has under a name."""
        return IndexTable(lake, name, **read_stored_definition(lake, name))

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> SecondaryIndex:
        """Return the index of this declaration in a lake."""
        return SecondaryIndex(lake, self.name, self.path, self.type)

    def describe(self) -> str:
        """Return path and type, for plans."""
        return f"{self.path} as {find_value_type(self.type).name}"

    def choose_policy(self, merge: MergePolicy) -> MergePolicy:
        """Return the policy of the current table, because a merge rewrites files here too."""
        return merge
