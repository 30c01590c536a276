"""Misfit tables: the dead letters of typed tables, as Delta tables beside them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock.spark.lake.current.document_table import DocumentTable
from penstock.spark.lake.current.inferred_table import EvolvingTable, InferredTable
from penstock.spark.lake.current.misfit_shape import MisfitShape, name_misfits
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable


class MisfitTable(EvolvingTable):
    """The table of the documents that a typed table leaves out.

    It has the fields of the typed table: if these change, it is computed again from the changelog.

    Args:
        parent: the typed table. A run describes both by the same object, the typed table first.
    """

    def __init__(self, parent: TypedTable | InferredTable) -> None:
        super().__init__(parent.lake)
        self.parent = parent

    @property
    def name(self) -> str:
        """The table's name."""
        return name_misfits(self.parent.name)

    def make_shape(self, fields: pa.Schema) -> MisfitShape:
        """Return the shape of the table for documents with these fields in the typed table."""
        shape = self.parent.shape
        assert isinstance(shape, TableShape)
        return MisfitShape(table=replace(shape, fields=fields))

    def describe(self) -> DocumentTable:
        """Return the table with the fields of the typed table's next merge, as a document table."""
        found, expected = self.find(), self.take_fields(self.parent.find_next_fields())
        if found is None or found.shape.to_json() == expected.shape.to_json():
            return expected.describe()
        return expected.describe_replacement()

    def take_fields(self, fields: pa.Schema) -> TypedTable:
        """Return the table for documents with these fields in the typed table."""
        return TypedTable(self.lake, self.make_shape(fields))
