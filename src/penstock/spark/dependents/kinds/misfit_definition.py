"""Misfit tables in a pipeline's file: `misfits = "dead_letter"` of a `[[table]]` declares one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from penstock.spark.dependents.kinds.child_definition import check_table_names
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.misfit_shape import MisfitShape
from penstock.spark.lake.current.misfit_table import MisfitTable
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import DIRECTORY, KIND, TypedTable
from penstock.spark.lake.tables.directory import LakeDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class MisfitDefinition(DependentKind):
    """The dead letters of a typed table. A `[[table]]` declares it, so it is no kind of its own.

    Attributes:
        shape: the shape of the typed table.
        is_inferred: whether the fields of the typed table are inferred.
    """

    title = kind = KIND
    directory = DIRECTORY
    order = 5
    needs_values = True

    shape: TableShape
    is_inferred: bool

    @classmethod
    def of_table(cls, shape: TableShape, *, is_inferred: bool) -> Self:
        """Return the dead letters of a table, without a source.

        Args:
            shape: the shape of the typed table.
            is_inferred: whether its fields are inferred.
        """
        return cls(name=MisfitShape(table=shape).name, shape=shape, is_inferred=is_inferred)

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> MisfitTable:
        """Return the table in a lake. A run gives it the typed table that it has opened itself."""
        return MisfitTable((InferredTable if self.is_inferred else TypedTable)(lake, self.shape))

    def list_changes(self, lake: LakeDirectory) -> list[str]:
        """Return the differences between the table in a lake and its declaration, apart from the fields."""
        return self.open(lake).list_changes()

    def describe(self) -> str:
        """Return the name of the typed table."""
        return f"documents that {self.shape.name} leaves out"

    def choose_policy(self, merge: MergePolicy) -> MergePolicy:
        """Return the policy of the typed table: both merge together."""
        return merge

    def check_beside(self, other: DependentKind) -> None:
        """Check the names of two tables. Raises the error of `check_table_names`."""
        check_table_names(self, other)
