"""Elements of arrays in documents: the rows of child tables, before they become columns.

A document parser reads an array as the JSON texts of its elements. So the elements are parsed as documents are: each
has its own columns, and its own parts that do not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.tables.inference import FieldValues
from penstock.spark.values.json_types import format_type
from penstock.spark.values.typed_documents import ColumnRule, DocumentParser

Path = tuple[str, ...]


def format_path(path: Path) -> str:
    """Return a path as a pipeline's file has it."""
    return ".".join(f"`{name}`" if any(char in name for char in ".[]") else name for name in path)


def make_array_rule(path: Path) -> ColumnRule:
    """Return the rule of a column with the elements of an array as JSON texts."""
    return ColumnRule("elements", pa.list_(pa.string()), path, "json")


@dataclass(frozen=True, slots=True)
class ArrayElements:
    """The elements of the arrays of some documents.

    Attributes:
        documents: for each element the number of its document, ascending.
        positions: for each element its place in the array, from 0.
        texts: the elements as JSON; null for null.
    """

    documents: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int32]
    texts: pa.StringArray


def read_elements(values: pa.Array, path: Path) -> ArrayElements:
    """Return the elements of an array in each document. A document without an array there has none.

    Args:
        values: documents, binary; null for none.
        path: the names that lead to the array.
    """
    (lists,) = DocumentParser([make_array_rule(path)]).parse(values).columns.columns
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    documents = np.repeat(np.arange(len(lists)), lengths)
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(len(documents)) - starts[documents]
    return ArrayElements(documents, positions.astype(np.int32), lists.flatten())


def wrap_values(texts: pa.StringArray, name: str) -> pa.StringArray:
    """Return JSON texts as objects with one field; null stays null."""
    return pc.binary_join_element_wise(f'{{"{name}":', texts, "}", "")


def nest_array(path: Path, element: pa.DataType) -> pa.Schema:
    """Return the schema of documents that have only the array."""
    of = pa.list_(element)
    for name in reversed(path[1:]):
        of = pa.struct([(name, of)])
    return pa.schema([(path[0], of)])


def find_element_type(fields: pa.Schema, path: Path) -> pa.DataType:
    """Return the type of the elements in a schema of `nest_array`."""
    of = fields.field(path[0]).type
    for name in path[1:]:
        of = of.field(name).type
    return of.value_type


def select_array(fields: pa.Schema, path: Path) -> pa.Schema:
    """Return the part of a declared schema that is the array.

    Args:
        fields: the schema.
        path: the names that lead to the array.

    Raises:
        UsageError: the schema has no array there.
    """
    of: pa.DataType = pa.struct(list(fields))
    place = f"children has {format_path(path)!r}"
    for depth, name in enumerate(path):
        if pa.types.is_list(of):
            raise UsageError(
                f"{place}, which is inside the elements of {format_path(path[:depth])!r}; expected an array of the"
                " document or of its objects"
            )
        at = of.get_field_index(name) if pa.types.is_struct(of) else -1
        if at < 0:
            raise UsageError(f"{place}, which schema does not have; expected an ARRAY of schema")
        of = of.field(at).type
    if not pa.types.is_list(of):
        raise UsageError(f"{place}, which is {format_type(of)} in schema; expected ARRAY")
    return nest_array(path, of.value_type)


def infer_element_type(documents: FieldValues, path: Path) -> pa.DataType | None:
    """Return the type of most elements, None if there is none yet.

    Args:
        documents: the fields of some documents.
        path: the names that lead to the array.
    """
    found: FieldValues | None = documents
    for name in path:
        found = found.fields.get(name) if found is not None else None
    return None if found is None or found.elements is None else found.elements.choose_type()
