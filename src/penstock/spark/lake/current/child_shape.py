"""The shape of a child table: a row for each element of an array of documents.

An element becomes a row as a document does. An object has its fields as columns, and `_rest` for the parts that do not
fit. A table whose elements are no objects has them in the column `value`. The key and the metadata are those of the
document. `_position` is the place in the array.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from penstock.errors import UsageError
from penstock.names import quote_column
from penstock.spark.lake.current.document_table import LoadStamp
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.tables.array_elements import (
    find_element_type,
    infer_element_type,
    nest_array,
    read_elements,
    select_array,
    wrap_values,
)
from penstock.spark.tables.column_rules import remove_rules
from penstock.spark.tables.inference import collect_values
from penstock.spark.values.json_types import from_ddl, to_ddl
from penstock.spark.values.typed_documents import ColumnRule

POSITION = "_position"
VALUE = "value"
"""The column of elements that are no objects."""
NO_FIELDS = pa.schema([])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildShape:
    """The array and the columns of a child table. Raises UsageError if two columns have one name.

    Attributes:
        base: the name, the collection, the key and the metadata. It has the columns of single fields of
            an element, and no other fields.
        path: the names that lead to the array in a document.
        fields: the array alone, as a schema of documents. Empty as long as the elements have no known type.
    """

    base: TableShape
    path: tuple[str, ...]
    fields: pa.Schema = NO_FIELDS

    def __post_init__(self) -> None:
        _ = self.elements  # which raises the error

    @classmethod
    def of_table(
        cls,
        table: TableShape,
        name: str,
        path: tuple[str, ...],
        fields: pa.Schema = NO_FIELDS,
        rules: tuple[ColumnRule, ...] = (),
    ) -> Self:
        """Return the shape of a child of a table.

        Args:
            table: the shape of the parent.
            name: the name of the child.
            path: the names that lead to the array.
            fields: the array as a schema of documents; empty if it is inferred.
            rules: the columns of single fields of an element.
        """
        base = replace(table, name=name, fields=NO_FIELDS, rules=rules, children=(), deletes="remove", cluster_by=())
        return cls(base=base, path=path, fields=fields)

    @property
    def name(self) -> str:
        """The table's name."""
        return self.base.name

    @property
    def rules(self) -> tuple[ColumnRule, ...]:
        """The columns of single fields of an element."""
        return self.base.rules

    @property
    def elements(self) -> TableShape:
        """The shape of a table that has the elements as documents."""
        return replace(self.base, fields=pa.schema([(VALUE, self._type)] if self._has_values else list(self._type)))

    @property
    def _type(self) -> pa.DataType:
        return find_element_type(self.fields, self.path) if len(self.fields) else pa.struct([])

    @property
    def _has_values(self) -> bool:
        return not pa.types.is_struct(self._type)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, without the partition."""
        return self.elements.columns.insert(len(self.base.key.parts), pa.field(POSITION, pa.int32()))

    @property
    def lookup(self) -> tuple[str, ...]:
        """The columns that identify a document, in the order of LOOKUP_COLUMNS."""
        return self.base.lookup

    @property
    def position(self) -> tuple[str, ...]:
        """The columns that identify a change, in the order of POSITION_COLUMNS."""
        return self.base.position

    @property
    def row_number(self) -> str:
        """The column that differs between the rows of a document."""
        return POSITION

    @property
    def parsed_rules(self) -> tuple[ColumnRule, ...]:
        """The rules that elements are parsed with."""
        return self.base.parsed_rules

    @property
    def parsed_fields(self) -> pa.Schema:
        """The fields that elements are parsed with, beside `parsed_rules`."""
        return self.elements.fields

    @property
    def key_columns(self) -> tuple[str, str]:
        """The columns that have the whole key, as text and as bytes."""
        return self.base.key_columns

    def infer(self, values: Iterable[bytes | None]) -> Self:
        """Return the shape with the array in some documents."""
        of = infer_element_type(collect_values(values), self.path)
        return self.take_fields(NO_FIELDS if of is None else nest_array(self.path, of))

    def take_fields(self, fields: pa.Schema) -> Self:
        """Return the shape with the array in an inferred schema. Fields are left out as in `TableShape.take_fields`."""
        try:
            of = find_element_type(select_array(fields, self.path), self.path)
        except UsageError:
            return replace(self, fields=NO_FIELDS)
        taken = {name.lower() for name in self.base.declared_columns}
        if pa.types.is_struct(of):
            fields = remove_rules(pa.schema(list(of)), self.base.rules)
            of = pa.struct([each for each in fields if quote_column(each.name).lower() not in taken])
            is_empty = not len(of)
        else:
            is_empty = VALUE in taken
        return replace(self, fields=NO_FIELDS if is_empty else nest_array(self.path, of))

    def to_json(self) -> str:
        """Return everything but the name, as the table's metadata hold it."""
        schema = to_ddl(self.fields) if len(self.fields) else ""
        return json.dumps(json.loads(self.base.to_json()) | {"schema": schema, "child": self.path})

    @classmethod
    def from_json(cls, name: str, text: str) -> Self:
        """Return the shape that `to_json` has written.

        Args:
            name: the name of the table.
            text: the JSON.
        """
        found = json.loads(text)
        base = TableShape.from_json(name, json.dumps(found | {"schema": ""}))
        fields = from_ddl(found["schema"]) if found["schema"] else NO_FIELDS
        return cls(base=base, path=tuple(found["child"]), fields=fields)

    def select_documents(self, changes: pa.Table) -> pa.Table:
        """Return the changes whose documents can have rows in the table."""
        return self.base.select_documents(changes)

    def to_rows(self, changes: pa.Table, stamp: LoadStamp) -> pa.Table:
        """Return the rows of the newest changes of documents.

        Args:
            changes: rows in MERGE_SCHEMA.
            stamp: the merge that writes the rows.

        Returns:
            Rows with `columns`, those of a document in the order of its array.
        """
        documents, elements = self.select_documents(changes), self.elements
        found = read_elements(documents["value"].combine_chunks(), self.path)
        texts = wrap_values(found.texts, VALUE) if self._has_values else found.texts
        about = documents.drop_columns(["value"]).take(pa.array(found.documents))
        rows = elements.make_rows(about.append_column("value", texts.cast(pa.binary())), stamp)
        return rows.add_column(len(elements.key.parts), self.columns.field(POSITION), pa.array(found.positions))


FieldShape = TableShape | ChildShape
"""The shapes whose fields can be inferred."""
