"""A secondary index: a Delta table of the values that a JSON path reaches, sorted for searches by value.

The table is kept as the current table is: its commit remembers the changelog's version that it has taken in, merging
waits until enough is pending, and what is pending is merged into every answer. Of what is pending the object remembers
what it has read, so that repeated searches read only what is new.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from penstock.errors import UsageError
from penstock.spark.dependents.json_paths import parse_path
from penstock.spark.dependents.secondary.entries import PendingEntries, entry_schema, in_order, within
from penstock.spark.dependents.secondary.entry_files import EntryWriter, FilePart, files_within, merged, parts_within
from penstock.spark.dependents.secondary.value_types import value_type_of
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, delta_since
from penstock.spark.lake.changelog.merge_rules import keys_of
from penstock.spark.lake.current.current_table import merged_version
from penstock.spark.lake.current.merged_state import retried
from penstock.spark.lake.reading.lake_readers import current
from penstock.spark.lake.tables.delta_table import LakeTable
from penstock.spark.lake.tables.directory import LakeDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFINITION = "penstock.index"
"""The key, in the metadata of the table's last column, of the index's path and type."""
PROPERTIES = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 5 minutes",
}
VACUUM_EVERY = 50
"""Commits after which files that no longer belong to the table are removed from the disk."""
TRIES = 5
"""How often entries and documents are read anew because documents changed in between."""

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
    """One state of the index: a version of its table, and what that has not taken in."""

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
        self.lake = lake
        self.name = checked_name(name)
        self.path = path
        self.kind = value_type_of(type)
        self._names = parse_path(path)
        self.schema = entry_schema(self.kind)
        self.table = LakeTable(lake.path / "indexes" / name, self.schema, PROPERTIES)
        self._read: tuple[tuple[str, int, int], PendingEntries] | None = None

    @classmethod
    def stored(cls, lake: LakeDirectory, name: str) -> SecondaryIndex:
        """Return the index that a lake has under this name, with its own path and type. Raises UsageError for none."""
        there = sorted(log.parent.name for log in (lake.path / "indexes").glob("*/_delta_log"))
        if name not in there:
            raise no_index("index", name, lake, there)
        path = lake.path / "indexes" / name
        said = DeltaTable(path).schema().fields[-1].metadata.get(DEFINITION)
        if said is None:
            raise UsageError(f"{path} is a table, but no index")
        return cls(lake, name, **json.loads(str(said)))

    def position(self) -> tuple[str, int] | None:
        """Return the changelog's id and the version of it that the table has taken in, None if nothing."""
        return merged_version(self.lake, self._open())

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Merge a delta into the table, in one commit with the version that it reaches."""
        table = self._open()
        pending = PendingEntries.of(delta, self._names, self.kind)
        before = self.table.files(table) if table is not None else []
        replaced = [file.path for file in before]
        with EntryWriter(self.table.path) as writer:
            if delta.everything:
                writer.write(pending.entries)
            else:
                replaced = merged(parts_within(self.table.path, replaced, None, None), pending, writer)
            added = writer.close()
        removed = [file for file in before if file.path in set(replaced)]
        try:
            note = {DEFINITION: self._definition}
            self.table.commit(table, (delta.changelog_id, delta.version), added, removed, note)
        except BaseException:
            self.table.abandon(added)
            raise
        opened = self.table.open()
        if opened is not None and opened.version() % VACUUM_EVERY == VACUUM_EVERY - 1:
            opened.vacuum(dry_run=False, full=True)

    def rows(self) -> int:
        """Return the number of entries in the table's files."""
        table = self._open()
        return sum(file.rows for file in self.table.files(table)) if table is not None else 0

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

    @property
    def _definition(self) -> str:
        return json.dumps({"path": self.path, "type": self.kind.name})

    def _open(self) -> DeltaTable | None:
        table = self.table.open()
        if table is not None:
            found = table.schema().fields[-1].metadata.get(DEFINITION)
            if found != self._definition:
                raise UsageError(
                    f"{self.table.path} is an index of {found}, and {self._definition} was asked for;"
                    " choose another name, or remove the directory to build it anew"
                )
        return table

    def _answer(self, read: Callable[[_State], T]) -> T:
        return retried(lambda: read(self._state()))

    def _state(self) -> _State:
        table = self._open()
        known = merged_version(self.lake, table)  # read before the changelog: the table is never ahead of it
        base = -1 if table is None else table.version()
        pending = PendingEntries.none(self.kind)
        if known is not None and self._read is not None and self._read[0][:2] == (known[0], base):
            pending, known = self._read[1], (known[0], self._read[0][2])
        delta = delta_since(self.lake, known)
        if delta is None:
            raise UsageError(f"there is no changelog at {self.lake.path}; expected the lake of a pipeline that has run")
        later = PendingEntries.of(delta, self._names, self.kind)
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


def no_index(kind: str, name: str, lake: LakeDirectory, there: Sequence[str]) -> UsageError:
    """Return the error that tells which ones there are instead."""
    expected = " or ".join(there) or "one that a pipeline has kept"
    return UsageError(f"there is no {kind} {name!r} in {lake.path}, expected {expected}")


def checked_name(name: str) -> str:
    """Return the name of something kept beside a lake's tables. Raises UsageError if no file can be called so."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
        raise UsageError(f"the name is {name!r}; expected up to 64 letters, digits, - and _, the first no - or _")
    return name


def _read(parts: list[FilePart], descending: bool = False) -> Iterator[pa.Table]:
    for part in parts:
        yield from part.read(descending)
