"""The registry of dependents: every kind is one class, registered by the module in `kinds` that defines it.

Definition, plan, run, status, reset and the command line iterate over `list_kinds()`. A new kind is a new module:

    @register_kind
    @dataclass(frozen=True, slots=True, kw_only=True)
    class RowCountKind(DependentKind):
        title = kind = "row_count"            # declared as [[row_count]]
        directory = "row_counts"              # its files lie in this directory of the lake
        order = 90
        column: str                           # a key of its TOML table, beside name and source

        def open(self, lake, session): ...    # the object that applies changelog deltas
        def describe(self): ...               # its description in `penstock pipeline plan`
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import pyarrow as pa

from penstock.client.connect.address import Address
from penstock.spark.dependents.bucket_state import BucketAnswers
from penstock.spark.dependents.dependent import Dependent, DocumentIndex
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.storage.object_path import LakePath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = MergePolicy(rows=1, share=0.0, age_seconds=0.0)
"""The policy of a dependent that applies every delta immediately."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a question on the command line.

    Attributes:
        name: the operand's key among the operands that `Question.answer` gets.
        metavar: the placeholder in help texts.
        help: one sentence.
        option: an option such as --to; None for a positional argument, which is required.
    """

    name: str
    metavar: str
    help: str
    option: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A command that reads a dependent: `penstock pipeline COMMAND FILE|LAKE NAME OPERANDS`.

    Attributes:
        command: the command's name.
        help: the help text of the command; the first line is its summary.
        examples: command lines.
        operands: the operands after the dependent's name.
        columns: columns of the answer that a terminal shows; --json shows all.
        answer: returns the rows that were found. Called with the lake, the dependent's name, the operands by name and
            the greatest number of rows. Raises UsageError for an unknown name or an invalid operand.
    """

    command: str
    help: str
    examples: tuple[str, ...]
    operands: tuple[Operand, ...]
    columns: tuple[str, ...]
    answer: Callable[[LakeDirectory, str, Mapping[str, str | None], int], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class DependentKind(ABC):
    """A table of a pipeline's file that declares one dependent; each subclass is a kind of dependents.

    The fields of a subclass are the keys of its table. `option` declares limits, and paths that are relative to the
    file's directory. `__post_init__` checks the fields and raises UsageError.

    Attributes:
        title: the array of tables in the file: "index" for [[index]].
        kind: the kind in progress, status and metrics. If it differs from the title, tables have it as their key
            `kind`.
        directory: the directory of the lake that holds the files of all dependents of this kind.
        order: the kind's place in listings, lowest first.
        is_local: True if the result lies in the lake. Such dependents share a thread, and the status shows their size.
            False if the dependent sends to another system, which may be slow or unreachable.
        question: the command that reads the dependent, None without one.
        needs_values: whether the source must have the values of documents.
        name: the dependent's name, unique in a lake.
        source: the name of the source whose changelog it follows, needed if there are several sources.
    """

    title: ClassVar[str]
    kind: ClassVar[str]
    directory: ClassVar[str]
    order: ClassVar[int]
    is_local: ClassVar[bool] = True
    question: ClassVar[Question | None] = None
    needs_values: ClassVar[bool] = False

    name: str
    source: str | None = None

    @abstractmethod
    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> Dependent:
        """Return the dependent that applies deltas of a lake's changelog.

        Args:
            lake: the lake.
            session: the session for SQL; None without Spark.

        Returns:
            The dependent.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return a description of the result in a few words."""

    def locate(self, lake: LakeDirectory) -> str:
        """Return the place of the result, without secrets: a path or an address."""
        return str(lake.path / self.directory / self.name)

    def find_dataset(self) -> tuple[str, str] | None:
        """Return namespace and name of the result as a dataset of OpenLineage; None: they follow from `locate`."""
        return None

    def choose_policy(self, merge: MergePolicy) -> MergePolicy:
        """Return the policy by which pending changes are applied, given the policy of the current table."""
        return AT_ONCE

    @property
    def dead_letters(self) -> str | None:
        """The directory of the rows that another system refused, None without one."""
        return None

    @property
    def sql_query(self) -> str | None:
        """The query over the view `changes` in Spark's SQL that the dependent runs, None without one."""
        return None

    def check_sql_result(self, schema: pa.Schema) -> None:
        """Raise UsageError if the result of `sql_query` lacks a column that the dependent needs, or has another."""
        return

    @property
    def login_runs_program(self) -> bool:
        """Whether `check_target` and `open` run a program of the declaration, such as the command of a password."""
        return False

    def check_target(self, source: Address, buckets: BucketAnswers) -> str | None:
        """Ask the other system whether it can take changes. Writes nothing.

        Raises Unreachable if it does not answer, and UsageError if it can never take them.

        Args:
            source: the bucket whose changes the dependent follows.
            buckets: asks this bucket and others.

        Returns:
            A line about the system; None for a dependent whose result lies in the lake.
        """
        return None

    def find_collection(self) -> tuple[str, str] | None:
        """Return scope and name of the collection that the bucket must have before the first run, None for none."""
        return None

    def check_source(self, source: Address) -> None:
        """Raise UsageError if the dependent cannot follow the changes of this bucket."""
        return

    def check_beside(self, other: DependentKind) -> None:
        """Raise UsageError if the results of two dependents of a pipeline would mix."""
        return

    def bind_source(self, source: Address) -> Self:
        """Return the declaration with the properties of its source that it needs; by default, itself."""
        return self

    def list_parts(self) -> tuple[DependentKind, ...]:
        """Return all dependents that the declaration makes; by default, itself."""
        return (self,)

    def list_changes(self, lake: LakeDirectory) -> list[str]:
        """Return the differences between a stored result and its declaration that `penstock pipeline retype` removes.

        Args:
            lake: the lake.

        Returns:
            The differences in words.
        """
        return []

    def find_letter_directory(self) -> LakePath | None:
        """Return the directory of rows that the dependent could not deliver, None without one."""
        return None

    @classmethod
    def open_stored(cls, lake: LakeDirectory, name: str) -> DocumentIndex | None:
        """Return the index that a lake has under a name, None if the dependent's files hold nothing of documents."""
        return None

    @classmethod
    def list_files(cls, lake: LakeDirectory, name: str) -> list[LakePath]:
        """Return the existing files and directories of the dependent of this kind with this name."""
        path = lake.path / cls.directory / name
        return [path] if path.exists() else []


KindT = TypeVar("KindT", bound=type[DependentKind])

_registered: dict[str, type[DependentKind]] = {}


def register_kind(kind: KindT) -> KindT:
    """Register a kind for pipelines; a class decorator.

    Args:
        kind: the class.

    Returns:
        The same class.

    Raises:
        ValueError: another class has the same kind.
    """
    # Compared by name, because a module that is imported again defines an equal class.
    known = _registered.setdefault(kind.kind, kind)
    if known.__qualname__ != kind.__qualname__ or known.__module__ != kind.__module__:
        raise ValueError(f"{kind.__qualname__} has the kind {kind.kind!r}, which {known.__qualname__} already has")
    return kind


def list_kinds() -> tuple[type[DependentKind], ...]:
    """Return all kinds, in the order of listings."""
    package = import_module("penstock.spark.dependents.kinds")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return tuple(sorted(_registered.values(), key=lambda kind: (kind.order, kind.kind)))


def find_kind(name: str) -> type[DependentKind] | None:
    """Return the kind with this name, None if there is none."""
    return next((kind for kind in list_kinds() if kind.kind == name), None)


def list_stored_dependents(lake: LakeDirectory) -> list[tuple[type[DependentKind], str]]:
    """Return kind and name of each dependent that has files in a lake, declared or not."""
    return [
        (kind, name)
        for kind in list_kinds()
        if (lake.path / kind.directory).is_dir()
        for name in sorted({path.name.partition(".")[0] for path in (lake.path / kind.directory).iterdir()})
        if kind.list_files(lake, name)
    ]


def list_titles() -> tuple[str, ...]:
    """Return the arrays of tables that declare dependents, in the order of listings."""
    return tuple(dict.fromkeys(kind.title for kind in list_kinds()))
