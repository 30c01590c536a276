"""Inferred tables: typed tables whose columns follow from the documents.

The first merge infers the fields from a sample of the changelog: of all files, so of all of the time that the changelog
has. Each later merge looks for new fields in a sample of its changes. If the table takes new fields, the merge replaces
the table by one with more columns, in one commit. The rows are computed from the whole changelog, so the new columns
have the values of older documents too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import UsageError
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, find_delta
from penstock.spark.lake.changelog.changelog_sample import NAMES, ChangelogSample
from penstock.spark.lake.changelog.merge_rules import fill_collection_ids
from penstock.spark.lake.current.child_shape import FieldShape
from penstock.spark.lake.current.current_table import MergeProgress, merge_tables
from penstock.spark.lake.current.document_table import DocumentTable
from penstock.spark.lake.current.misfit_shape import AnyShape
from penstock.spark.lake.current.shape_changes import list_shape_changes
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable, refuse_other_shape
from penstock.spark.lake.tables.data_files import DataFile, match_types
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable
from penstock.spark.storage.object_files import open_parquet
from penstock.spark.tables.inference import MOST_SAMPLED, add_fields, spread_rows
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event

Evolution = Literal["add", "keep", "fail"]
"""New fields of documents become columns, stay in `_rest`, or end the run."""
FIRST_VALUES, LATER_VALUES = MOST_SAMPLED, 2_000
"""Documents in the sample of a new table, and of a later merge."""
MOST_FILES = 64
"""Files of the changelog of which a sample reads one row group."""
ENOUGH_VALUES = 1_000
"""Documents that the sample of a new table has at least. A collection may have few, in rows that were not sampled."""


class InferredShape(NamedTuple):
    """The shape of a table with the fields in a sample of documents.

    Attributes:
        shape: the shape.
        documents: the number of documents in this sample and in earlier ones.
    """

    shape: FieldShape
    documents: int


class _CountedValues:
    """Iterates over values, and counts them.

    Attributes:
        count: the number of values so far.
    """

    def __init__(self, values: Iterable[bytes | None]) -> None:
        self.count = 0
        self._values = values

    def __iter__(self) -> Iterator[bytes | None]:
        for value in self._values:
            self.count += 1
            yield value


def open_sample(lake: LakeDirectory) -> ChangelogSample:
    """Return the sample in which merges look for new fields. Tables that are merged together share it."""
    return ChangelogSample(lake, LATER_VALUES, MOST_FILES)


class EvolvingTable(ABC):
    """A typed table whose fields may change from merge to merge.

    Args:
        lake: the lake of the changelog.
    """

    def __init__(self, lake: LakeDirectory) -> None:
        self.lake = lake

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's name."""

    @abstractmethod
    def make_shape(self, fields: pa.Schema) -> AnyShape:
        """Return the declared shape of the table with some fields."""

    @abstractmethod
    def describe(self) -> DocumentTable:
        """Return the table with the fields of its next merge, as a document table."""

    def find(self) -> TypedTable | None:
        """Return the table with the fields that it has, None before its first commit.

        Raises UsageError if the table differs in more than its fields.

        Returns:
            The table.
        """
        found = TypedTable.find(self.lake, self.name)
        if found is None:
            return None
        # A shape has options that are not stored because they make the same rows.
        known = self.make_shape(found.shape.fields)
        if known.to_json() != found.shape.to_json():
            refuse_other_shape(found, known)
        return TypedTable(self.lake, known, found.sample)

    def list_changes(self) -> list[str]:
        """Return the differences between the table in the lake and its declaration in words, apart from its fields."""
        found = TypedTable.find(self.lake, self.name)
        return [] if found is None else list_shape_changes(found.shape, self.make_shape(found.shape.fields))

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that the table has merged, None if nothing was merged."""
        found = self.find()
        return None if found is None else found.position()

    def count_rows(self) -> int:
        """Return the number of rows of the table."""
        found = self.find()
        return 0 if found is None else found.count_rows()

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Merge the changes of a delta, and newer ones. Raises the errors of `merge_tables`."""
        self.merge()

    def merge(self) -> MergeProgress:
        """Merge the changes that the changelog has gained. Also raises the errors of `merge_tables`.

        Returns:
            The progress.
        """
        return merge_tables([self.describe()])[0]


class InferredTable(EvolvingTable):
    """The typed table of a collection, with the fields that its documents have.

    Args:
        lake: the lake of the changelog.
        shape: the shape without fields.
        evolve: whether new fields become columns.
    """

    def __init__(self, lake: LakeDirectory, shape: FieldShape, evolve: Evolution = "add") -> None:
        super().__init__(lake)
        self.shape = shape
        self.evolve = evolve
        self._next_fields: pa.Schema | None = None

    @property
    def name(self) -> str:
        """The table's name."""
        return self.shape.name

    def make_shape(self, fields: pa.Schema) -> FieldShape:
        """Return the shape of the table with inferred fields."""
        return self.shape.take_fields(fields)

    def describe(self, sample: ChangelogSample | None = None) -> DocumentTable:
        """Return the table with the fields for its next merge, as a document table.

        Raises UsageError if documents have new fields, and `evolve` is "fail".

        Args:
            sample: the sample of all tables that are merged together; None for an own one.

        Returns:
            The table. It replaces the existing one if it has other fields.
        """
        known = self.find()
        shape, documents = self._choose_shape(known, sample or open_sample(self.lake))
        self._next_fields = shape.fields
        table = TypedTable(self.lake, shape, documents)
        is_same = known is None or shape.fields == known.shape.fields
        return table.describe() if is_same else table.describe_replacement()

    def find_next_fields(self) -> pa.Schema:
        """Return the fields of the table that `describe` has returned last, and calls it if there was no call."""
        if self._next_fields is None:
            self.describe()
        return self._next_fields

    def _choose_shape(self, known: TypedTable | None, sample: ChangelogSample) -> InferredShape:
        """Return the shape for the next merge: with the known fields, and those that `evolve` adds.

        Raises:
            UsageError: documents have new fields, and `evolve` is "fail".
        """
        if known is None:
            return self._infer(FIRST_VALUES)
        same = InferredShape(replace(self.shape, fields=known.shape.fields), known.sample or 0)
        has_fields = bool(len(same.shape.fields))
        if has_fields and self.evolve == "keep":
            return same
        documents = self.shape if isinstance(self.shape, TableShape) else self.shape.base
        values = sample.find_values(known.position(), (documents.scope, documents.collection))
        fields = self.shape.infer(values).fields
        if not has_fields:
            # An array may be empty for years: its child looks at the new changes alone until one has an element.
            return self._infer(FIRST_VALUES) if len(fields) else same
        joined = add_fields(same.shape.fields, fields)
        if not joined.changes:
            return same
        if self.evolve == "fail":
            raise UsageError(f"table {self.name}: {joined.changes[0]}, and evolve is 'fail'; expected the known fields")
        return InferredShape(replace(self.shape, fields=joined.fields), same.documents + len(values))

    def infer_again(self) -> TypedTable:
        """Return the table with the fields of all documents in the changelog, independent of its present fields."""
        return TypedTable(self.lake, *self._infer(None))

    def _infer(self, most: int | None) -> InferredShape:
        """Return the shape with the fields in a sample of all changes, or in all of them if `most` is None."""
        delta = find_delta(self.lake, None)
        if delta is None:
            return InferredShape(self.shape, 0)
        counted = _CountedValues(_sample_values(self.lake.changelog_table, delta.files, self.shape, most))
        return InferredShape(self.shape.infer(counted), counted.count)


def _sample_values(
    table: AnyTable, files: Sequence[DataFile], shape: FieldShape, most: int | None
) -> Iterator[bytes | None]:
    """Yield values of a collection's documents, spread evenly over files of the changelog and over their rows.

    If that are fewer than ENOUGH_VALUES, further ones come from all other rows.

    Args:
        table: the changelog.
        files: its files.
        shape: the collection.
        most: number of values; None for all.
    """
    chosen = files if most is None else [files[at] for at in spread_rows(len(files), MOST_FILES)]
    read, count = set[tuple[str, int]](), 0
    for path in table.list_paths(chosen):
        with open_parquet(path) as file:
            groups = range(file.num_row_groups)
            for number in groups if most is None else groups[len(groups) // 2 :][:1]:
                read.add((path, number))
                values = _read_values(file, number, shape)
                places = spread_rows(len(values), len(values) if most is None else max(1, most // len(chosen)))
                count += len(places)
                yield from values.take(pa.array(places, pa.int64())).to_pylist()
    for path in table.list_paths(files) if most is not None and count < ENOUGH_VALUES else ():
        with open_parquet(path) as file:
            for number in range(file.num_row_groups):
                if count < ENOUGH_VALUES and (path, number) not in read:
                    values = _read_values(file, number, shape)[: ENOUGH_VALUES - count]
                    count += len(values)
                    yield from values.to_pylist()


def _read_values(file: pq.ParquetFile, group: int, shape: FieldShape) -> pa.ChunkedArray:
    """Return the values of a collection's documents in a row group. Values are read only if there is one."""
    found = pa.chunked_array([], pa.binary())
    for columns in (NAMES, [*NAMES, "value"]):
        changes = fill_collection_ids(match_types(file.read_row_group(group, columns=columns), CHANGE_SCHEMA))
        rows = shape.select_documents(changes)
        rows = rows.filter(pc.equal(rows["event"], Event.MUTATION))
        if not rows.num_rows:
            break
        found = rows["value"] if "value" in columns else found
    return found
