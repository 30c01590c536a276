"""The registry of dependents: every kind is one class, registered by the module in `kinds` that defines it.

Definition, plan, run, status, reset and the command line iterate over `kinds()`. A new kind is a new module:

    @register_kind
    @dataclass(frozen=True, slots=True, kw_only=True)
    class RowCountKind(DependentKind):
        title = kind = "row_count"            # declared as [[row_count]]
        directory = "row_counts"              # its files lie in this directory of the lake
        order = 90
        column: str                           # a key of its TOML table, beside name and source

        def open(self, lake, session): ...    # the object that applies changelog deltas
        def describe(self): ...               # its words in `penstock pipeline plan`
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import pyarrow as pa

from penstock.client.connect.address import Address
from penstock.spark.dependents.dependent import Dependent
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.tables.directory import LakeDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AT_ONCE", "DependentKind", "Operand", "Question", "kind_named", "kinds", "register_kind", "titles"]

AT_ONCE = MergePolicy(rows=1, share=0.0, age_seconds=0.0)
"""The policy of a dependent that applies every delta as soon as it comes."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One word that a question takes on the command line.

    Attributes:
        name: the key of the word in what `Question.answer` gets.
        metavar: how help shows it.
        help: one sentence.
        option: such as --to; None for a positional argument, which is required.
    """

    name: str
    metavar: str
    help: str
    option: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """How the command line asks a dependent: `penstock pipeline COMMAND FILE|LAKE NAME OPERANDS`.

    Attributes:
        command: the command's name.
        help: what the command prints as its help; the first line is its summary.
        examples: command lines.
        operands: the words after the dependent's name.
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

    The fields of a subclass are the keys of its table; `option` declares limits, and paths that are relative to the
    file's directory. `__post_init__` checks them and raises UsageError.

    Attributes:
        title: the array of tables in the file: "index" for [[index]].
        kind: the kind in progress, status and metrics. If it is not the title, tables have it as their key `kind`.
        directory: the directory of the lake that holds the files of all dependents of this kind.
        order: the kind's place in listings, lowest first.
        is_local: True if its result lies in the lake; such dependents share a thread, and status shows their size.
            False if it informs another system, which may be slow or away.
        question: how the command line asks it, None if it has nothing to ask for.
        name: the dependent's name, unique in a lake.
        source: the name of the source whose changelog it follows, needed if there are several.
    """

    title: ClassVar[str]
    kind: ClassVar[str]
    directory: ClassVar[str]
    order: ClassVar[int]
    is_local: ClassVar[bool] = True
    question: ClassVar[Question | None] = None

    name: str
    source: str | None = None

    @abstractmethod
    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> Dependent:
        """Return the dependent that applies deltas of a lake's changelog. session: for SQL, None without Spark."""

    @abstractmethod
    def describe(self) -> str:
        """Return what is kept, in a few words."""

    def place(self, lake: LakeDirectory) -> str:
        """Return where the result is, without secrets: a path or an address."""
        return str(lake.path / self.directory / self.name)

    def policy(self, merge: MergePolicy) -> MergePolicy:
        """Return when it applies pending changes. merge: the policy of the current table."""
        return AT_ONCE

    def bucket_address(self) -> Address | None:
        """Return the bucket that it writes to, None if it writes to no bucket."""
        return None

    @classmethod
    def files(cls, lake: LakeDirectory, name: str) -> list[Path]:
        """Return the files and directories of the dependent of this kind with this name, as far as they exist."""
        path = lake.path / cls.directory / name
        return [path] if path.exists() else []


K = TypeVar("K", bound=type[DependentKind])

_registered: dict[str, type[DependentKind]] = {}


def register_kind(kind: K) -> K:
    """Make a kind known to pipelines; a class decorator. Raises ValueError if another class has the same kind."""
    known = _registered.setdefault(kind.kind, kind)
    if known.__qualname__ != kind.__qualname__ or known.__module__ != kind.__module__:
        raise ValueError(f"the kind {kind.kind!r} of {kind.__qualname__} is that of {known.__qualname__} already")
    return kind


def kinds() -> tuple[type[DependentKind], ...]:
    """Return all kinds, in the order of listings."""
    package = import_module("penstock.spark.dependents.kinds")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return tuple(sorted(_registered.values(), key=lambda kind: (kind.order, kind.kind)))


def kind_named(name: str) -> type[DependentKind] | None:
    """Return the kind of this name, None if there is none."""
    return next((kind for kind in kinds() if kind.kind == name), None)


def titles() -> tuple[str, ...]:
    """Return the arrays of tables that declare dependents, in the order of listings."""
    return tuple(dict.fromkeys(kind.title for kind in kinds()))
