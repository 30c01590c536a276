"""Child tables in a pipeline's file: `children` of a `[[table]]` names arrays that become tables of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from penstock.errors import UsageError
from penstock.names import quote_column
from penstock.spark.dependents.checks import check_directory_name
from penstock.spark.dependents.json_paths import parse_path
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.current.child_shape import NO_FIELDS, ChildShape
from penstock.spark.lake.current.inferred_table import Evolution, InferredTable
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import DIRECTORY, KIND, TypedTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.tables.array_elements import format_path, select_array
from penstock.spark.tables.column_rules import parse_rule
from penstock.spark.values.typed_documents import ColumnRule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Path = tuple[str, ...]
_ELEMENT = re.compile(r"(?P<array>(?:`[^`]*`|[^`\[\]])+)\[\]\.(?P<field>.+)")
"""A field of the elements of an array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildDefinition(DependentKind):
    """The child table of an array. A `[[table]]` declares it, so it is no kind of its own.

    Attributes:
        parent: the name of the parent.
        shape: the array and the columns.
        evolve: whether new fields become columns; None for declared columns.
    """

    title = kind = KIND
    directory = DIRECTORY
    order = 5
    needs_values = True

    parent: str
    shape: ChildShape
    evolve: Evolution | None = None

    @classmethod
    def of_table(
        cls, table: TableShape, path: Path, rules: tuple[ColumnRule, ...], fields: pa.Schema | None, evolve: Evolution
    ) -> Self:
        """Return the child of a table.

        Args:
            table: the shape of the parent.
            path: the names that lead to the array.
            rules: the columns of single fields of an element.
            fields: the declared fields of documents; None if they are inferred.
            evolve: whether new fields become columns.

        Returns:
            The child, without a source.

        Raises:
            UsageError: the declared fields have no array there, or two columns have one name.
        """
        name, declared = name_child(table.name, path), NO_FIELDS if fields is None else select_array(fields, path)
        check_directory_name(f"{format_path(path)!r} in children", name)
        try:
            shape = ChildShape.of_table(table, name, path, declared, rules)
        except UsageError as error:
            raise UsageError(f"children has {format_path(path)!r}: {error}") from None
        return cls(name=name, parent=table.name, shape=shape, evolve=evolve if fields is None else None)

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> TypedTable | InferredTable:
        """Return the table in a lake."""
        return TypedTable(lake, self.shape) if self.evolve is None else InferredTable(lake, self.shape, self.evolve)

    def list_changes(self, lake: LakeDirectory) -> list[str]:
        """Return the differences between the table in a lake and its declaration, apart from inferred fields."""
        return self.open(lake).list_changes()

    def describe(self) -> str:
        """Return the array, the parent and the number of columns."""
        columns = f"{len(self.shape.columns)} columns" if self.evolve is None else "inferred columns"
        return f"{format_path(self.shape.path)} of {self.parent} in {columns}"

    def choose_policy(self, merge: MergePolicy) -> MergePolicy:
        """Return the policy of the parent: both merge together."""
        return merge

    def check_beside(self, other: DependentKind) -> None:
        """Check the names of two tables. Raises the error of `check_table_names`."""
        check_table_names(self, other)


def check_table_names(table: DependentKind, other: DependentKind) -> None:
    """Check that the names of two tables differ in more than their case, which catalogs and file systems ignore.

    Args:
        table: a table.
        other: another table, or another dependent.

    Raises:
        UsageError: they do not.
    """
    if other.kind != table.kind or other.source != table.source or other.name == table.name:
        return
    if other.name.lower() == table.name.lower():
        raise UsageError(f"name is {table.name!r}, beside {other.name!r}; expected names that differ without case")


def name_child(table: str, path: Path) -> str:
    """Return the name of a child table: `orders_lines`, or `orders_address_x2e_lines` of an array in an object.

    Args:
        table: the name of the parent.
        path: the names that lead to the array.
    """
    return f"{table}_{quote_column(format_path(path))}"


@dataclass(frozen=True, slots=True)
class DeclaredColumns:
    """The `columns` of a table.

    Attributes:
        rules: the columns of the table.
        children: path of an array -> the columns of its child.
    """

    rules: tuple[ColumnRule, ...]
    children: Mapping[Path, tuple[ColumnRule, ...]]

    @classmethod
    def parse(cls, columns: Mapping[str, str]) -> Self:
        """Return the columns that a file has: of the field `total`, or of the field `lines[].price` of elements.

        Raises UsageError if a field or a column is invalid.

        Args:
            columns: the field and the column of each.
        """
        rules: list[ColumnRule] = []
        children: dict[Path, tuple[ColumnRule, ...]] = {}
        for field, text in columns.items():
            found = _ELEMENT.fullmatch(field)
            rule = parse_rule(parse_path(found["field"] if found else field), text)
            if found:
                array = parse_path(found["array"])
                children[array] = (*children.get(array, ()), rule)
            else:
                rules.append(rule)
        return cls(tuple(rules), children)


def parse_children(texts: Iterable[str], columns: DeclaredColumns, mode: str) -> tuple[Path, ...]:
    """Return the paths of arrays that are child tables.

    Args:
        texts: the arrays as a file has them.
        columns: the columns of single fields.
        mode: the mode of the parent.

    Raises:
        UsageError: a text is no array of a document, or two declarations are about one field.
    """
    paths: list[Path] = []
    for text in texts:
        if "[" in text:
            raise UsageError(
                f"children has {text!r}, which is inside the elements of an array; expected an array of the document or"
                " of its objects, such as 'lines' or 'address.lines'"
            )
        try:
            path = parse_path(text)
        except UsageError as error:
            raise UsageError(f"children: {error}") from None
        for other, place in [
            *((each, "children") for each in paths),
            *((rule.path, "columns") for rule in columns.rules),
        ]:
            shorter = min(len(path), len(other))
            if path[:shorter] == other[:shorter]:
                raise UsageError(
                    f"children has {text!r}, and {place} has {format_path(other)!r}; expected no field twice, and none"
                    " inside another"
                )
        paths.append(path)
    for array in columns.children:
        if array not in paths:
            name = format_path(array)
            raise UsageError(f"columns has a field of {name + '[]'!r}; expected {name!r} in children")
    if paths and mode != "current":
        raise UsageError(f"mode is {mode!r}, and children has {format_path(paths[0])!r}; expected mode = 'current'")
    return tuple(paths)
