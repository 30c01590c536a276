"""The shape of a table of misfits: the dead letters of a typed table.

It has a row for each document of the collection that the typed table leaves out, because a value does not fit its
column. Together the two tables have each document once. Both follow from the changelog, so a dead letter goes with a
rollback, and once the document is corrected.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from penstock.spark.lake.current.child_shape import ChildShape, FieldShape
from penstock.spark.lake.current.document_table import LoadStamp
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.tables.misfit_documents import describe_misfits, find_misfit_rows
from penstock.spark.tables.misfits import REST, MisfitFinder
from penstock.spark.values.typed_documents import ColumnRule

DOCUMENT = "_document"
"""The column that has the document as text."""
REASON_COLUMNS = pa.schema([(name, pa.string()) for name in ("_field", "_reason", "_found", "_expected")])
"""The columns that say why a document does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MisfitShape:
    """The columns of a table of misfits.

    Attributes:
        table: the shape of the typed table.
    """

    table: TableShape

    @property
    def name(self) -> str:
        """The table's name."""
        return name_misfits(self.table.name)

    @property
    def fields(self) -> pa.Schema:
        """The fields that documents are compared with."""
        return self.table.fields

    @property
    def rules(self) -> tuple[ColumnRule, ...]:
        """The columns of single fields in the typed table."""
        return self.table.rules

    @property
    def row_number(self) -> str:
        """The column that differs between the rows of a document; empty because there is one row."""
        return ""

    @property
    def key_columns(self) -> tuple[str, str]:
        """The columns that have the whole key, as text and as bytes."""
        return self.table.key_columns

    @property
    def _documents(self) -> TableShape:
        """The shape of a table that has whole documents in `_rest`."""
        of = self.table
        return replace(
            of, name=self.name, fields=pa.schema([]), rules=(), deletes="remove", misfits="rest", cluster_by=()
        )

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, without the partition."""
        columns = self._documents.columns
        at = columns.get_field_index(REST)
        about = [*REASON_COLUMNS, pa.field(DOCUMENT, pa.string())]
        return pa.schema([*list(columns)[:at], *about, *list(columns)[at + 1 :]])

    @property
    def lookup(self) -> tuple[str, ...]:
        """The columns that identify a document, in the order of LOOKUP_COLUMNS."""
        return self.table.lookup

    @property
    def position(self) -> tuple[str, ...]:
        """The columns that identify a change, in the order of POSITION_COLUMNS."""
        return self.table.position

    def to_json(self) -> str:
        """Return everything but the name, as the table's metadata hold it."""
        return json.dumps(json.loads(self.table.to_json()) | {"misfits_of": self.table.name})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the shape that `to_json` has written."""
        return cls(table=TableShape.from_json(json.loads(text)["misfits_of"], text))

    def to_rows(self, changes: pa.Table, stamp: LoadStamp) -> pa.Table:
        """Return the rows of the newest changes of documents.

        Args:
            changes: rows in MERGE_SCHEMA.
            stamp: the merge that writes the rows.

        Returns:
            Rows with `columns`.
        """
        documents, finder = self._documents, MisfitFinder(self.table.parsed_fields, self.table.parsed_rules)
        changes = documents.select_documents(changes)
        found = find_misfit_rows(finder, changes["value"].combine_chunks())
        changes = changes.take(pa.array(found, pa.int64()))
        counts = describe_misfits(finder, changes["value"].combine_chunks())
        about = [(each.field, each.reason, each.found, each.expected) for each in counts]
        rows = documents.to_rows(changes, stamp)
        columns = {name: rows[name] for name in rows.column_names} | {DOCUMENT: rows[REST]}
        for at, name in enumerate(REASON_COLUMNS.names):
            columns[name] = pa.array([each[at] for each in about], pa.string())
        return pa.table([columns[name] for name in self.columns.names], schema=self.columns)


AnyShape = FieldShape | MisfitShape
"""The shapes of all typed tables."""


def parse_shape(name: str, text: str) -> AnyShape:
    """Return the shape that a table's metadata have.

    Args:
        name: the name of the table.
        text: the JSON of `to_json`.
    """
    found = json.loads(text)
    if "misfits_of" in found:
        return MisfitShape.from_json(text)
    return ChildShape.from_json(name, text) if "child" in found else TableShape.from_json(name, text)


def name_misfits(table: str) -> str:
    """Return the name of a table's dead letters."""
    return f"{table}_misfits"
