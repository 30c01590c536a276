"""Misfit tables: the dead letters of typed tables, as Delta tables beside them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.document_table import DocumentTable
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.misfit_shape import MisfitShape, name_misfits
from penstock.spark.lake.current.shape_changes import list_shape_changes
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable, refuse_other_shape

__all__ = ["MisfitTable"]


class MisfitTable:
    """The table of the documents that a typed table leaves out.

    It has the fields of the typed table: if these change, it is computed again from the changelog.

    Args:
        parent: the typed table. A run describes both by the same object, the typed table first.
    """

    def __init__(self, parent: TypedTable | InferredTable) -> None:
        self.lake = parent.lake
        self.parent = parent

    @property
    def name(self) -> str:
        """The table's name."""
        return name_misfits(self.parent.name)

    def find(self) -> TypedTable | None:
        """Return the table with the fields that it has, None before its first commit.

        Raises UsageError if it differs in more than its fields.
        """
        found = TypedTable.find(self.lake, self.name)
        if found is not None:
            expected = self._make_shape(found.shape.fields)
            if found.shape.to_json() != expected.to_json():
                refuse_other_shape(found, expected)
        return found

    def list_changes(self) -> list[str]:
        """Return the differences between the table in the lake and its declaration in words, apart from its fields."""
        found = TypedTable.find(self.lake, self.name)
        return [] if found is None else list_shape_changes(found.shape, self._make_shape(found.shape.fields))

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that the table has merged, None if nothing was merged."""
        found = self.find()
        return None if found is None else found.position()

    def count_rows(self) -> int:
        """Return the number of dead letters."""
        found = self.find()
        return 0 if found is None else found.count_rows()

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Merge the changes of a delta, and newer ones. Raises the errors of `merge_tables`."""
        merge_tables([self.describe()])

    def describe(self) -> DocumentTable:
        """Return the table with the fields of the typed table's next merge, as a document table."""
        found, expected = self.find(), self.take_fields(self.parent.find_next_fields())
        if found is None or found.shape.to_json() == expected.shape.to_json():
            return expected.describe()
        return expected.describe_replacement()

    def take_fields(self, fields: pa.Schema) -> TypedTable:
        """Return the table for documents with these fields in the typed table."""
        return TypedTable(self.lake, self._make_shape(fields))

    def _make_shape(self, fields: pa.Schema) -> MisfitShape:
        shape = self.parent.shape
        assert isinstance(shape, TableShape)
        return MisfitShape(table=replace(shape, fields=fields))
