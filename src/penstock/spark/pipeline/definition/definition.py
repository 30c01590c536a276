"""What a pipeline is: sources, filters, tables and sinks, declared in a TOML file or by a command's options.

    lake = "./lake"
    [source.NAME]            a bucket, or a part of it, by the options of format("dcp") in snake_case
    [tables] [current]       how the changelog is written, and when pending changes are merged
    [[index]] [[fulltext]]   dependents of the changelog: one array of tables for each kind in the registry
    [[sink]]                 other systems that get the changes
    [metrics]                figures for Prometheus

Paths are relative to the file's directory. docs/pipelines.md shows every key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from penstock.errors import UsageError
from penstock.options import (
    PORT,
    TEXT,
    check_limits,
    given_options,
    number,
    option,
    options_of,
    outside_name,
    whole_number,
)
from penstock.spark.dependents.checks import check_declared_name
from penstock.spark.dependents.registry import DependentKind, kinds, titles
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.pipeline.definition.toml_tables import TomlPlace, load, made_of, read, refuse_unknown
from penstock.spark.source.source_options import INFERRED, SourceOptions
from penstock.spark.values.json_types import from_ddl

__all__ = [
    "Current",
    "Metrics",
    "PipelineDefinition",
    "Source",
    "Tables",
    "definition_of",
    "is_definition",
    "of_one",
    "read_definition",
]

T = TypeVar("T")

_TABLES = ("changelog", "current")
_POLICY = MergePolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A bucket, or a part of it, and how it is followed.

    Attributes:
        name: None where a command's options make the one source.
        given: the options of `format("dcp")` that are given.
    """

    name: str | None = None
    given: Mapping[str, str] = given_options(
        SourceOptions,
        without=("password", "ending_offsets", "columns", "value_format", "filter_pushdown"),
    )
    where: str | None = option(
        TEXT,
        "SQL on the value's JSON fields; other documents are in the changelog as deleted",
        default=None,
    )
    value_schema: str | None = option(TEXT, 'those fields as DDL, or "infer" from what the bucket has', default=None)
    trigger_seconds: float = option(number(0, 86400), "how often a micro-batch begins", default=1.0)

    def __post_init__(self) -> None:
        if self.name is not None:
            check_declared_name("source", self.name)
        check_limits(self)
        if self.where is not None and not self.where.strip():
            raise UsageError(f"where is {self.where!r}, expected a condition in SQL such as abv > 5")
        if self.where is not None and self.given.get("keys_only") == "true":
            raise UsageError("has where and keys_only, but SQL on the value needs values")
        if self.value_schema is not None and self.value_schema != INFERRED:
            from_ddl(self.value_schema)
        self.options()

    def given_options(self) -> dict[str, str]:
        """Return the options of `format("dcp")`, as text."""
        return {outside_name(name): text for name, text in self.given.items()}

    def options(self) -> SourceOptions:
        """Raises UsageError for what can be known to be wrong without a bucket and without Spark."""
        options = SourceOptions.parse(self.given_options())
        options.check_streaming()
        return options

    def content(self) -> dict[str, str]:
        """Return what decides about the rows of the tables: another answer needs other tables."""
        declared = options_of(SourceOptions)
        found = {name: self.given[name] for name in declared if declared[name].filters and name in self.given}
        if self.where is not None:
            found["where"] = self.where
            if self.value_schema is not None:
                found["value_schema"] = self.value_schema
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """changelog_format: "delta", or "parquet" for plain files. current: whether the current table is kept."""

    changelog_format: Literal["delta", "parquet"] = "delta"
    current: bool = True

    def __post_init__(self) -> None:
        if self.changelog_format == "parquet" and self.current:
            raise UsageError(
                "changelog_format is 'parquet', which has no versions for a table to follow; expected current = false"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """When pending changes are merged into current: once there are merge_rows, or merge_share of current's rows if that
    is more, or the oldest of them is merge_age_seconds old."""

    merge_rows: int = option(whole_number(1, 10**12), "rows that are pending", default=_POLICY.rows)
    merge_share: float = option(number(0, 1), "their share of current's rows", default=_POLICY.share)
    merge_age_seconds: float = option(number(0, 86400), "the age of the oldest", default=_POLICY.age_seconds)

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def policy(self) -> MergePolicy:
        return MergePolicy(self.merge_rows, self.merge_share, self.merge_age_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The figures for Prometheus."""

    port: int = option(PORT, "the port of 127.0.0.1 where they are served at /metrics")

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """A pipeline. lake: a directory; that of the tables where there is one source, else of a directory for each."""

    lake: str
    sources: tuple[Source, ...]
    tables: Tables = field(default_factory=Tables)
    current: Current = field(default_factory=Current)
    dependents: tuple[DependentKind, ...] = ()
    metrics: Metrics | None = None

    def lake_of(self, source: Source) -> str:
        """Return the directory of a source's tables."""
        return self.lake if len(self.sources) == 1 else str(Path(self.lake) / str(source.name))

    def dependents_of(self, source: Source) -> list[DependentKind]:
        """Return the dependents of a source's changelog."""
        return [each for each in self.dependents if each.source in (None, source.name)]


def of_one(lake: str, **source: Any) -> PipelineDefinition:
    """Return the pipeline of one bucket into one lake. source: keys of its table in a file. Raises UsageError."""
    return PipelineDefinition(lake=lake, sources=(made_of(Source, source),))


def is_definition(path: str) -> bool:
    """Tell whether a path names a pipeline's file rather than its lake."""
    return path.endswith(".toml") or Path(path).is_file()


_TOP = ("lake", "source", "tables", "current")


def read_definition(path: str) -> PipelineDefinition:
    """Return what a pipeline's file declares. Raises UsageError, which names the file, the table and the key."""
    return definition_of(load(path), path)


def definition_of(given: Mapping[str, Any], path: str) -> PipelineDefinition:
    """Return the same of what was read from the file at `path`."""
    place = TomlPlace(path)
    refuse_unknown(place, given, [*_TOP, *titles(), "metrics"])
    lake = given.get("lake")
    if not isinstance(lake, str) or not lake:
        raise place.wrong(f"lake is {lake!r}, expected a directory such as ./lake" if lake else "has no lake")
    declared = list(_dependents(path, given))
    found = PipelineDefinition(
        lake=place.path(lake),
        sources=_sources(place, given.get("source")),
        tables=_table(Tables, path, "tables", given),
        current=_table(Current, path, "current", given),
        dependents=tuple(each for _, each in declared),
        metrics=read(Metrics, TomlPlace(path, "[metrics]"), given["metrics"]) if "metrics" in given else None,
    )
    _check_dependents(found, declared)
    return found


def _sources(place: TomlPlace, given: Any) -> tuple[Source, ...]:
    if not isinstance(given, dict) or not given:
        raise place.wrong("has no source, expected a table [source.NAME] with the url of a bucket")
    if flat := [name for name, table in given.items() if not isinstance(table, dict)]:
        raise place.wrong(f"[source] has the key {flat[0]!r}, expected a table [source.NAME]")
    return tuple(
        read(Source, TomlPlace(place.file, f"[source.{name}]"), table, name=name) for name, table in given.items()
    )


def _table(cls: type[T], file: str, name: str, given: Mapping[str, Any]) -> T:
    return read(cls, TomlPlace(file, f"[{name}]"), given.get(name, {}))


def _entries(file: str, name: str, given: Mapping[str, Any]) -> list[tuple[TomlPlace, Any]]:
    found = given.get(name, [])
    if not isinstance(found, list):
        raise TomlPlace(file, f"[{name}]").wrong(f"is one table, expected [[{name}]]")
    return [(TomlPlace(file, f"[[{name}]] {number}"), table) for number, table in enumerate(found, 1)]


def _dependents(file: str, given: Mapping[str, Any]) -> Iterator[tuple[TomlPlace, DependentKind]]:
    """Yield the dependents that a file declares, with the place of each table."""
    for title in titles():
        for place, table in _entries(file, title, given):
            kind, keys = _kind_of_table(place, title, table)
            yield place, read(kind, place, keys)


def _kind_of_table(place: TomlPlace, title: str, table: Any) -> tuple[type[DependentKind], Any]:
    """Return the kind that a table declares, and its other keys. Raises UsageError for an unknown kind."""
    known = {kind.kind: kind for kind in kinds() if kind.title == title}
    if title in known:
        return known[title], table
    word = table.get("kind") if isinstance(table, dict) else None
    if word not in known:
        found = "has no kind" if word is None else f"kind is {word!r}"
        raise place.wrong(f"{found}, expected {' or '.join(map(repr, known))}")
    return known[word], {name: value for name, value in table.items() if name != "kind"}


def _check_dependents(found: PipelineDefinition, declared: Iterable[tuple[TomlPlace, DependentKind]]) -> None:
    """Raises UsageError for a name that stands twice, and for a source that is unknown or missing."""
    names = [source.name for source in found.sources]
    taken: dict[tuple[str | None, str], str] = {}
    for at, each in declared:
        if each.source is None and len(names) > 1:
            raise at.wrong(f"has no source, expected one of {', '.join(map(str, names))}")
        if each.source is not None and each.source not in names:
            raise at.wrong(f"source is {each.source!r}, expected one of {', '.join(map(str, names))}")
        if found.tables.changelog_format == "parquet":
            raise at.wrong("depends on a changelog of plain parquet, which has no versions; expected 'delta'")
        if each.name in _TABLES:
            raise at.wrong(f"name is {each.name!r}, which is a table of the lake")
        where = (each.source or names[0], each.name)
        if where in taken:
            raise at.wrong(f"name is {each.name!r}, and so is that of {taken[where]}")
        taken[where] = at.title
