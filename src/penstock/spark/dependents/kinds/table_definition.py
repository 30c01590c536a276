"""Typed tables in a pipeline's file: `[[table]]` declares one collection as a plain Delta table with typed columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from penstock.client.connect.address import Address
from penstock.client.feeds.collection_selection import CollectionSelection, qualify_name
from penstock.errors import UsageError
from penstock.names import quote_table
from penstock.spark.dependents.checks import check_declared_name, check_directory_name
from penstock.spark.dependents.kinds.child_definition import (
    ChildDefinition,
    DeclaredColumns,
    check_table_names,
    parse_children,
)
from penstock.spark.dependents.kinds.misfit_definition import MisfitDefinition
from penstock.spark.dependents.registry import DependentKind, register_kind
from penstock.spark.lake.current.inferred_table import Evolution, InferredTable
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.table_shape import (
    CURRENT,
    DEFAULT_KEY,
    DEFAULT_METADATA,
    METADATA,
    Deletes,
    Mode,
    TableShape,
)
from penstock.spark.lake.current.typed_table import DIRECTORY, KIND, TypedTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.source.source_options import INFERRED
from penstock.spark.tables.array_elements import make_array_rule
from penstock.spark.tables.column_rules import remove_rules
from penstock.spark.tables.key_pattern import KeyPattern
from penstock.spark.tables.misfit_documents import Misfits
from penstock.spark.values.json_types import from_ddl
from penstock.wire.codec.constants import Dialect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition(DependentKind):
    """The table of one collection, with a column for each field of `schema`.

    Attributes:
        name: the name of the table; by default that of the collection.
        collection: the collection as `name` or `scope.name`. A name alone is in the scope of the source.
        schema: the fields with their types, as DDL; or "infer" to find them in the documents.
        evolve: for inferred fields. "add" makes new fields columns and is the default, "keep" leaves them in `_rest`,
            "fail" ends the run.
        columns: fields that have a column of their own: `[column] TYPE [FROM 'form']` for each. `lines[].price` is a
            field of the elements of a child.
        key: the column of the document's key, or a pattern with several columns.
        mode: "current" for one row for each document, "history" for one for each version, "changes" for one for each
            change.
        deletes: "remove" to remove the rows of deleted documents, "mark" to keep them with `_deleted`.
        children: arrays that become tables of their own: `lines`, or `address.lines` of an object.
        metadata: names of added columns about each row, without their underscore.
        misfits: the fate of values that do not fit their column. "rest" keeps them in `_rest`, "dead_letter" keeps
            their documents in a table beside, and "fail" ends the run.
        cluster_by: columns that decide the order of rows within a file.
    """

    title = kind = KIND
    directory = DIRECTORY
    order = 5
    needs_values = True

    name: str = ""
    collection: str
    schema: str
    key: str = DEFAULT_KEY
    mode: Mode = CURRENT
    deletes: Deletes = "remove"
    metadata: tuple[str, ...] = DEFAULT_METADATA
    evolve: Evolution | None = None
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    children: tuple[str, ...] = ()
    misfits: Misfits = "rest"
    cluster_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        scope, collection = qualify_name(self.collection)
        if self.name:
            check_declared_name("table", self.name)
        else:
            object.__setattr__(self, "name", quote_table(scope, collection))
            check_directory_name(f"collection {self.collection!r}", self.name)
        if unknown := [name for name in self.metadata if name not in METADATA]:
            raise UsageError(f"metadata has {unknown[0]!r}, expected some of {', '.join(METADATA)}")
        if self.evolve is not None and self.schema != INFERRED:
            raise UsageError(f"evolve is {self.evolve!r}, and schema has the fields; expected schema = {INFERRED!r}")
        self.list_parts()

    def make_shape(self) -> TableShape:
        """Return the collection and the declared columns.

        Raises:
            UsageError: a part is invalid.
        """
        scope, collection = qualify_name(self.collection)
        columns = DeclaredColumns.parse(self.columns)
        children = parse_children(self.children, columns, self.mode)
        if children and self.misfits == "dead_letter":
            expected = "expected misfits = 'rest' or 'fail'"
            raise UsageError(f"misfits is {self.misfits!r}, and children has {self.children[0]!r}; {expected}")
        if self.misfits == "dead_letter" and self.mode != CURRENT:
            raise UsageError(
                f"misfits is {self.misfits!r}, and mode is {self.mode!r}; expected mode = 'current', or another misfits"
            )
        shape = TableShape(
            name=self.name,
            fields=remove_rules(self._fields or pa.schema([]), [*map(make_array_rule, children)]),
            scope=scope,
            collection=collection,
            key=KeyPattern.parse(self.key),
            deletes=self.deletes,
            metadata=self.metadata,
            rules=columns.rules,
            children=children,
            misfits=self.misfits,
            mode=self.mode,
            cluster_by=self.cluster_by,
        )
        self._check_order(shape)
        return shape

    def _check_order(self, shape: TableShape) -> None:
        """Check that the columns of `cluster_by` exist and have an order.

        Raises:
            UsageError: one does not.
        """
        nested = [each.name for each in shape.columns if pa.types.is_nested(each.type)]
        if found := [name for name in self.cluster_by if name in nested]:
            raise UsageError(f"cluster_by has {found[0]!r}, a column of arrays or objects; expected single values")
        if self.schema == INFERRED:
            return
        names = shape.columns.names
        if unknown := [name for name in self.cluster_by if name not in names]:
            raise UsageError(f"cluster_by has {unknown[0]!r}, expected some of {', '.join(names)}")

    @property
    def _fields(self) -> pa.Schema | None:
        """The declared fields, None if they are inferred."""
        return None if self.schema == INFERRED else from_ddl(self.schema)

    def list_parts(self) -> tuple[DependentKind, ...]:
        """Return the table, its child tables, and the table of its dead letters if it has one."""
        shape, evolve = self.make_shape(), self.evolve or "add"
        rules = DeclaredColumns.parse(self.columns).children
        parts: list[DependentKind] = [
            ChildDefinition.of_table(shape, path, rules.get(path, ()), self._fields, evolve) for path in shape.children
        ]
        if self.misfits == "dead_letter":
            parts.append(MisfitDefinition.of_table(shape, is_inferred=self.schema == INFERRED))
        return (self, *(replace(each, source=self.source) for each in parts))

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> TypedTable | InferredTable:
        """Return the table in a lake."""
        if self.schema == INFERRED:
            return InferredTable(lake, self.make_shape(), self.evolve or "add")
        return TypedTable(lake, self.make_shape())

    def list_changes(self, lake: LakeDirectory) -> list[str]:
        """Return the differences between the table in a lake and its declaration, apart from inferred fields."""
        return self.open(lake).list_changes()

    def describe(self) -> str:
        """Return the collection and the number of columns."""
        shape = self.make_shape()
        columns = "inferred columns" if self.schema == INFERRED else f"{len(shape.columns)} columns"
        return f"{shape.scope}.{shape.collection} in {columns}"

    def choose_policy(self, merge: MergePolicy) -> MergePolicy:
        """Return the policy of the current table: both merge together."""
        return merge

    def find_collection(self) -> tuple[str, str] | None:
        """Return scope and name of the collection."""
        return qualify_name(self.collection)

    def bind_source(self, source: Address) -> Self:
        """Return the declaration with the scope of its source."""
        if "." in self.collection or not source.options.scope:
            return self
        return replace(self, collection=f"{source.options.scope}.{self.collection}")

    def check_source(self, source: Address) -> None:
        """Check that the source has the collection.

        Raises:
            UsageError: the source does not read it.
        """
        collection = qualify_name(self.collection, source.options.scope)
        selected = CollectionSelection(source.options.scope, source.options.collections)
        if source.options.protocol is not Dialect.DCP and collection != qualify_name("_default"):
            raise UsageError(
                f"collection is {self.collection!r}, and protocol is {source.options.protocol.value!r}, which does not"
                " support collections; expected '_default'"
            )
        if not _is_selected(collection, selected):
            names = [".".join(name) for name in selected.list_names()] or [f"{selected.scope}.*"]
            raise UsageError(
                f"collection is {'.'.join(collection)!r}, which the source does not read; expected one of"
                f" {', '.join(names)}"
            )

    def check_beside(self, other: DependentKind) -> None:
        """Check the names of two tables. Raises the error of `check_table_names`."""
        check_table_names(self, other)


def _is_selected(collection: tuple[str, str], selected: CollectionSelection) -> bool:
    names: Iterable[tuple[str, str]] = selected.list_names()
    return collection in names if selected.collections else selected.scope in ("", collection[0])
