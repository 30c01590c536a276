"""A secondary index: a Delta table of the values that a JSON path reaches, sorted for searches by value.

The table works as the current table does: its commit stores the changelog version that it has applied, merging waits
until enough is pending, and pending changes are merged into every answer. The object remembers the pending changes that
it has read, so that repeated searches read only new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from penstock.errors import UsageError
from penstock.spark.dependents.checks import check_declared_name
from penstock.spark.dependents.json_paths import parse_path
from penstock.spark.dependents.registry import DependentKind, Operand, Question, register_kind
from penstock.spark.dependents.secondary.entries import PendingEntries, in_order, within
from penstock.spark.dependents.secondary.entry_files import FilePart, files_within, parts_within
from penstock.spark.dependents.secondary.index_table import DIRECTORY, IndexTable, stored_definition
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, delta_since
from penstock.spark.lake.changelog.merge_rules import keys_of
from penstock.spark.lake.current.current_table import merged_version
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.merged_state import retried
from penstock.spark.lake.reading.lake_readers import current
from penstock.spark.lake.tables.directory import LakeDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIES = 5
"""How often entries and documents are read again because documents changed in between."""

VERSION = ["vbucket", "collection_id", "key", "seqno", "history"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What a search reads of the table's files, before what is pending is merged in."""

    files: int
    row_groups: int
    of_files: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """One state of the index: a version of its table, and the changes that are pending for it."""

    table: DeltaTable | None
    pending: PendingEntries


class SecondaryIndex:
    """The index `name` of a lake, of what `path` reaches in documents, as values of `type`.

    path: names joined by dots, `address.city`; where an array is met, each of its elements counts, and a document has
    an entry for each of its different values. type: string, double, long, boolean, or timestamp (text of ISO 8601; UTC
    where it names no zone). null is no value; a value of another type is listed by `misfits`; a document that is not
    JSON has no entries. Raises UsageError for what cannot be.
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
        """Return the index that a lake has under this name, with its own path and type. Raises UsageError for none."""
        return cls(lake, name, **stored_definition(lake, name))

    def position(self) -> tuple[str, int] | None:
        """Return the changelog's id and the version of it that the table has applied, None if nothing."""
        return self._index.position()

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Merge a delta into the table, in one commit with the version that it reaches."""
        self._index.apply_delta(delta)

    def rows(self) -> int:
        """Return the number of entries in the table's files."""
        return self._index.rows()

    def lookup(self, value: Any) -> pa.Table:
        """Return the entries with this value. Raises UsageError if it is of another type."""
        return self.range(value, value)

    def range(
        self, low: Any = None, high: Any = None, *, limit: int | None = None, descending: bool = False
    ) -> pa.Table:
        """Return the entries with values from `low` to `high`, both included, by value, the first `limit` of them.

        None: no bound. Entries of the same value are in no order. As of the changelog's newest version. Raises
        UsageError for a bound of another type, or if the lake has no changelog.
        """
        bounds = self._bounds(low, high)
        if limit is not None and limit < 0:
            raise UsageError(f"limit is {limit}, expected a number of entries, 0 or more")
        return self._answer(lambda state: self._search(state, *bounds, limit, descending))

    def scan(self) -> pa.Table:
        """Return all entries, by value; no misfits."""
        return self.range()

    def misfits(self) -> pa.Table:
        """Return entries for values of another type: `misfit` is the beginning of what was found, as JSON."""

        def read(state: _State) -> pa.Table:
            parts = self._parts(state.table, None, None)
            found = [self._counted(rows.filter(rows["misfit"].is_valid()), state) for rows in _read(parts)]
            fresh = state.pending.entries
            return pa.concat_tables([*found, fresh.filter(fresh["misfit"].is_valid())])

        return self._answer(read)

    def documents(
        self, low: Any = None, high: Any = None, *, limit: int | None = None, descending: bool = False
    ) -> pa.Table:
        """Return the documents of the entries that `range` returns: `value` is named `indexed`, before CURRENT_COLUMNS.

        A document has a row for each of its entries. Entries and documents are of the same versions.
        """
        for _ in range(TRIES):
            entries = self.range(low, high, limit=limit, descending=descending)
            found = self._joined(entries)
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
        """Return what `range` does as a Spark frame."""
        return spark.createDataFrame(self.range(low, high, limit=limit, descending=descending))

    def plan(self, low: Any = None, high: Any = None) -> SearchPlan:
        """Return what of the table's files a search reads."""
        bounds = self._bounds(low, high)

        def plan(state: _State) -> SearchPlan:
            parts = self._parts(state.table, *bounds)
            of_files = len(self.table.files(state.table)) if state.table is not None else 0
            return SearchPlan(
                len(parts), sum(len(part.groups) for part in parts), of_files, tuple(str(p.path) for p in parts)
            )

        return self._answer(plan)

    def _answer(self, read: Callable[[_State], T]) -> T:
        return retried(lambda: read(self._state()))

    def _state(self) -> _State:
        table = self._index.open()
        known = merged_version(self.lake, table)  # read before the changelog: the table is never ahead of it
        base = -1 if table is None else table.version()
        pending = PendingEntries.none(self.kind)
        if known is not None and self._read is not None and self._read[0][:2] == (known[0], base):
            pending, known = self._read[1], (known[0], self._read[0][2])
        delta = delta_since(self.lake, known)
        if delta is None:
            raise UsageError(f"there is no changelog at {self.lake.path}; expected the lake of a pipeline that has run")
        later = PendingEntries.of(delta, self._index.names, self.kind)
        if delta.everything:
            return _State(None, later)
        pending = pending.then(later)
        self._read = ((delta.changelog_id, base, delta.version), pending)
        return _State(table, pending)

    def _bounds(self, low: Any, high: Any) -> tuple[pa.Scalar | None, pa.Scalar | None]:
        given = {"the lower bound": low, "the upper bound": high}
        first, last = (None if value is None else self.kind.scalar(value, what) for what, value in given.items())
        return first, last

    def _parts(self, table: DeltaTable | None, low: pa.Scalar | None, high: pa.Scalar | None) -> list[FilePart]:
        if table is None:
            return []
        return parts_within(self.table.path, files_within(table, low, high), low, high)

    def _counted(self, entries: pa.Table, state: _State) -> pa.Table:
        """Return those of a file's entries that count."""
        return entries.filter(pc.invert(state.pending.outdated.outdates(entries))) if entries.num_rows else entries

    def _search(
        self, state: _State, low: pa.Scalar | None, high: pa.Scalar | None, limit: int | None, descending: bool
    ) -> pa.Table:
        parts = self._parts(state.table, low, high)
        found, count = [within(state.pending.entries, low, high)], 0
        for rows in _read(parts[::-1] if descending else parts, descending):
            if limit is not None and count >= limit:
                break
            found.append(self._counted(within(rows, low, high), state))
            count += found[-1].num_rows
        entries = in_order(pa.concat_tables(found))
        if descending:
            entries = entries.take(pa.array(range(entries.num_rows - 1, -1, -1), pa.int64()))
        return entries.slice(0, limit)

    def _joined(self, entries: pa.Table) -> pa.Table:
        keys = pc.field("key").isin(entries["key"].unique()) | pc.field("key").is_null()
        documents = current(self.lake, where=pc.field("vbucket").isin(entries["vbucket"].unique()) & keys)
        numbered = _versions(entries, "place").join(_versions(documents, "row"), VERSION, join_type="inner")
        numbered = numbered.sort_by("place")
        values = entries["value"].take(numbered["place"])
        return documents.take(numbered["row"]).add_column(0, "indexed", values)


def _versions(rows: pa.Table, number: str) -> pa.Table:
    """Return which version of which document each row is of, and the number of the row."""
    columns = {name: rows[name] for name in VERSION} | {"key": keys_of(rows), number: np.arange(rows.num_rows)}
    return pa.table(columns)


def _read(parts: list[FilePart], descending: bool = False) -> Iterator[pa.Table]:
    for part in parts:
        yield from part.read(descending)


def _find(lake: LakeDirectory, name: str, operands: Mapping[str, str | None], limit: int) -> pa.Table:
    index = SecondaryIndex.stored(lake, name)
    low, high = index.kind.of_text(str(operands["value"])), operands["to"]
    return index.range(low, low if high is None else index.kind.of_text(high), limit=limit)


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class SecondaryIndexKind(DependentKind):
    """A table sorted by the values at a path of the documents. type: the type by which values are compared."""

    title = kind = "index"
    directory = DIRECTORY
    order = 10
    question = Question(
        command="find",
        help="""Find documents by a secondary index, those with the least values first.

    What the index has not taken in yet is found all the same; a run may go on
    meanwhile. Numbers and booleans are written as in JSON, times in ISO 8601;
    what begins with - comes last, behind --. With --json a line is one entry.
    """,
        examples=(
            "penstock pipeline find ./lake by_abv 5.1",
            "penstock pipeline find pipeline.toml by_abv 5 --to 7 --limit 100 --json",
            "penstock pipeline find ./lake by_change 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z",
            "penstock pipeline find ./lake by_temperature --to 0 -- -5",
        ),
        operands=(
            Operand("value", "VALUE", "What is looked for, or the least of it."),
            Operand("to", "HIGH", "The greatest; without, it is VALUE alone.", "--to"),
        ),
        columns=("value", "key", "vbucket", "seqno"),
        answer=_find,
    )

    path: str
    type: Literal["string", "double", "long", "boolean", "timestamp"] = "string"

    def __post_init__(self) -> None:
        check_declared_name("index", self.name)
        parse_path(self.path)

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> SecondaryIndex:
        return SecondaryIndex(lake, self.name, self.path, self.type)

    def describe(self) -> str:
        return f"{self.path} as {self.type}"

    def policy(self, merge: MergePolicy) -> MergePolicy:
        return merge
