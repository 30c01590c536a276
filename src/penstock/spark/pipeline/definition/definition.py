"""The definition of a pipeline: sources, filters, tables and sinks, from a TOML file or from a command's options.

    lake = "./lake"
    [source.NAME]            a bucket or a part of it, by the options of format("dcp") in snake_case
    [tables] [current]       the format of the tables, and when pending changes are merged
    [[table]]                collections as tables with typed columns
    [[index]] [[fulltext]]   dependents of the changelog: one array of tables for each kind in the registry
    [[sink]]                 other systems that get the changes
    [metrics] [dashboard]    metrics for Prometheus, and the page about the run
    [lineage]                events of OpenLineage

Paths are relative to the file's directory. docs/pipelines.md shows every key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from penstock.errors import UsageError
from penstock.extras import describe_missing_extra
from penstock.options import (
    BOOLEAN,
    TEXT,
    check_limits,
    given_options,
    list_options,
    number,
    option,
    to_external_name,
    whole_number,
)
from penstock.spark.dependents.checks import check_declared_name
from penstock.spark.dependents.registry import DependentKind, list_kinds, list_titles
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.typed_table import KIND as TABLE
from penstock.spark.lake.maintenance.lake_retention import parse_retention
from penstock.spark.lake.maintenance.time_travel import parse_time_travel
from penstock.spark.lake.tables.directory import LakeDirectory, check_lake_path
from penstock.spark.lake.tables.iceberg.iceberg_catalog import (
    check_catalog,
    check_remote_catalog,
    name_namespace,
    resolve_catalog,
)
from penstock.spark.pipeline.definition.lineage_settings import LineageSettings
from penstock.spark.pipeline.definition.run_options import DashboardSettings, Metrics, Trigger
from penstock.spark.pipeline.transform.transform import Transform, check_transform_name
from penstock.spark.source.source_options import INFERRED, SourceOptions
from penstock.spark.storage.object_path import LakePath, ObjectPath, is_url, parse_place
from penstock.spark.values.json_types import from_ddl
from penstock.toml_tables import (
    TomlPlace,
    build_dataclass,
    check_keys,
    load_toml,
    parse_table,
)

T = TypeVar("T")

_TABLES = ("changelog", "current")
RESERVED_NAMES = frozenset((*_TABLES, *(kind.directory for kind in list_kinds())))
"""Directories of a lake, beside which the lakes of further sources lie."""
_POLICY = MergePolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDefinition(Trigger):
    """A bucket or a part of it, and how its changes are read.

    Attributes:
        name: None where a command's options define the only source.
        reader_options: the options of `format("dcp")` that are given, by their names in the file.
        renamed_from: the name of the source in earlier runs, whose tables it continues.
        paused: whether a run leaves the source alone.
        transform_directory: the directory with the transform's module: that of the file.
    """

    name: str | None = None
    reader_options: Mapping[str, str] = given_options(
        SourceOptions,
        without=("password", "ending_offsets", "columns", "value_format", "filter_pushdown", "resnapshot_file"),
    )
    where: str | None = option(
        TEXT,
        "SQL condition on the value's JSON fields; other documents are written as deletions",
        default=None,
    )
    transform: str | None = option(
        TEXT, "MODULE:FUNCTION, which gets the changes before where, and may change their values", default=None
    )
    transform_version: int = option(
        whole_number(1, 2**31 - 1), "number of the transform; a lake is refused with another number", default=1
    )
    transform_directory: str = "."
    value_schema: str | None = option(TEXT, 'the fields as DDL, or "infer" to read them from the bucket', default=None)
    renamed_from: str | None = option(TEXT, "the name of the source in earlier runs", default=None)
    paused: bool = option(BOOLEAN, "keep the tables as they are: a run opens no streams", default=False)

    def __post_init__(self) -> None:
        if self.name is not None:
            check_declared_name("source", self.name)
            if self.name in RESERVED_NAMES:
                raise UsageError(f"the name of the source is {self.name!r}, which is a directory in a lake")
        check_limits(self)
        if self.where is not None and not self.where.strip():
            raise UsageError(f"where is {self.where!r}, expected a condition in SQL such as abv > 5")
        if self.where is not None and self.reader_options.get("keys_only") == "true":
            # Such a source would never match: without values every field is null.
            raise UsageError("has where and keys_only, but SQL on the value needs values")
        if self.value_schema is not None and self.value_schema != INFERRED:
            from_ddl(self.value_schema)
        if self.transform is not None:
            self._check_transform(self.transform)
        self.parse_options()

    def _check_transform(self, transform: str) -> None:
        """Check the keys beside a transform.

        Raises:
            UsageError: the transform would lack values, or the fields of its values are not known.
        """
        check_transform_name(transform)
        if self.reader_options.get("keys_only") == "true":
            raise UsageError("has transform and keys_only, but a transform needs values")
        if self.where is not None and self.value_schema in (None, INFERRED):
            raise UsageError(
                "has transform and where, but no fields in value_schema, expected DDL: fields are inferred from the"
                " bucket's values, not from those that the transform returns"
            )

    def find_transform(self) -> Transform | None:
        """Return the transform, None if the source has none. Raises UsageError if it cannot be imported."""
        return None if self.transform is None else Transform.find(self.transform, self.transform_directory)

    def format_options(self) -> dict[str, str]:
        """Return the options of `format("dcp")`, as text."""
        return {to_external_name(name): text for name, text in self.reader_options.items()}

    def parse_options(self) -> SourceOptions:
        """Return the parsed options. Raises UsageError for errors that need neither a bucket nor Spark to find."""
        options = SourceOptions.parse(self.format_options())
        options.check_streaming()
        return options

    def list_content_options(self) -> dict[str, str]:
        """Return the options that decide which rows the tables have: other values need other tables."""
        declared = list_options(SourceOptions)
        given = self.reader_options
        found = {name: given[name] for name in declared if declared[name].is_filter and name in given}
        if self.transform is not None:
            found |= {"transform": self.transform, "transform_version": str(self.transform_version)}
        if self.where is not None:
            found["where"] = self.where
            if self.value_schema is not None:
                found["value_schema"] = self.value_schema
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The tables of a lake.

    Attributes:
        format: "delta", "iceberg", or "parquet" for plain files.
        catalog: the URI of the catalog of Iceberg tables, None for a catalog in the lake.
        current: whether the current table is written, and inferred tables.
        infer: whether collections of a source without a declared table get inferred tables.
        retention: an age or a size; a run drops older versions of the changelog. None to keep all.
        time_travel: the time for which past versions of typed tables can be read.
    """

    format: Literal["delta", "iceberg", "parquet"] = "delta"
    catalog: str | None = None
    current: bool = True
    infer: bool = True
    retention: str | None = None
    time_travel: str = "1 day"

    def __post_init__(self) -> None:
        parse_time_travel(self.time_travel)
        if self.retention is not None:
            parse_retention(self.retention)
            if not self.current:
                raise UsageError(f"retention is {self.retention!r}, which needs current = true")
        if self.format == "parquet" and self.current:
            raise UsageError(
                "format is 'parquet', whose files have no versions to merge from; expected current = false"
            )
        if self.catalog is not None and self.format != "iceberg":
            raise UsageError(f"catalog is for Iceberg tables, and format is {self.format!r}; expected 'iceberg'")
        if self.catalog is not None:
            check_catalog(self.catalog)
        if self.format == "iceberg" and find_spec("pyiceberg") is None:
            missing = describe_missing_extra(ModuleNotFoundError(name="pyiceberg"))
            raise UsageError(f"format is 'iceberg', which needs {missing}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentSettings:
    """The limits after which pending changes are merged into `current`.

    Attributes:
        merge_rows: pending rows that are enough, if they are also `merge_share` of the rows of `current`.
        merge_share: 0 to 1.
        merge_age_seconds: age of the oldest pending row that is enough.
    """

    merge_rows: int = option(whole_number(1, 10**12), "pending rows that start a merge", default=_POLICY.rows)
    merge_share: float = option(number(0, 1), "share of current's rows that starts a merge", default=_POLICY.share)
    merge_age_seconds: float = option(
        number(0, 86400), "age of the oldest pending row that starts a merge", default=_POLICY.age_seconds
    )

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def policy(self) -> MergePolicy:
        """The limits as a policy."""
        return MergePolicy(self.merge_rows, self.merge_share, self.merge_age_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """A pipeline.

    Attributes:
        lake: the place of the tables for one source; for several sources, the place of their lakes.
        sources: the buckets.
        tables: the tables of each lake.
        current: when pending changes are merged.
        dependents: indexes and sinks.
        metrics: where metrics are served, None for nowhere.
        dashboard: where the page about a run is served, None for nowhere.
        lineage: the receiver of events about runs, None without events.
    """

    lake: str
    sources: tuple[SourceDefinition, ...]
    tables: TableSettings = field(default_factory=TableSettings)
    current: CurrentSettings = field(default_factory=CurrentSettings)
    dependents: tuple[DependentKind, ...] = ()
    metrics: Metrics | None = None
    dashboard: DashboardSettings | None = None
    lineage: LineageSettings | None = None

    def locate_lake(self, source: SourceDefinition) -> str:
        """Return the place of a source's tables in a new pipeline; `find_source_lakes` finds tables that exist."""
        return self.lake if len(self.sources) == 1 else str(parse_place(self.lake) / str(source.name))

    def open_lake(self, path: str | LakePath) -> LakeDirectory:
        """Return the lake at a place, in the declared format."""
        return LakeDirectory(path, self.tables.format, self.tables.catalog, parse_time_travel(self.tables.time_travel))

    def list_dependents(self, source: SourceDefinition) -> list[DependentKind]:
        """Return the dependents of a source's changelog."""
        address = source.parse_options().place
        declared = [each.bind_source(address) for each in self.dependents if each.source in (None, source.name)]
        return [part for each in declared for part in each.list_parts()]

    def infers_tables(self, source: SourceDefinition) -> bool:
        """Return whether each collection of a source with JSON objects gets an inferred table."""
        is_declared = any(each.kind == TABLE for each in self.list_dependents(source))
        has_values = source.reader_options.get("keys_only") != "true"
        return self.tables.current and self.tables.infer and has_values and not is_declared


def define_bucket_pipeline(lake: str, **source: Any) -> PipelineDefinition:
    """Return the pipeline of one bucket into one lake.

    Args:
        lake: the directory of the tables.
        source: keys of the source's table in a file.

    Returns:
        The definition. UsageError is raised for invalid keys.
    """
    return PipelineDefinition(lake=lake, sources=(build_dataclass(SourceDefinition, source),))


def is_definition(path: str) -> bool:
    """Return whether a path names a pipeline's file and not its lake."""
    return path.endswith(".toml") or Path(path).is_file()


_TOP = ("lake", "source", "tables", "current")


def read_definition(path: str) -> PipelineDefinition:
    """Return the pipeline that a file declares. Raises UsageError, which names the file, the table and the key."""
    return parse_definition(load_toml(path), path)


def parse_definition(given: Mapping[str, Any], path: str) -> PipelineDefinition:
    """Return the pipeline that the parsed content of a file declares.

    Args:
        given: the content.
        path: the file, for errors and for relative paths.

    Returns:
        The definition.
    """
    place = TomlPlace(path)
    check_keys(place, given, [*_TOP, *list_titles(), "metrics", "dashboard", "lineage"])
    lake = given.get("lake")
    if not isinstance(lake, str) or not lake:
        raise place.make_error(f"lake is {lake!r}, expected a directory such as ./lake" if lake else "has no lake")
    declared = list(_parse_dependents(path, given))
    tables = _parse_table(TableSettings, path, "tables", given)
    if tables.catalog is not None:
        tables = replace(tables, catalog=resolve_catalog(tables.catalog, Path(path).absolute().parent))
    found = PipelineDefinition(
        lake=_parse_lake(place, lake),
        sources=_parse_sources(place, given.get("source")),
        tables=tables,
        current=_parse_table(CurrentSettings, path, "current", given),
        dependents=tuple(each for _, each in declared),
        metrics=_parse_table(Metrics, path, "metrics", given) if "metrics" in given else None,
        dashboard=_parse_table(DashboardSettings, path, "dashboard", given) if "dashboard" in given else None,
        lineage=_parse_table(LineageSettings, path, "lineage", given) if "lineage" in given else None,
    )
    _check_lakes(place, found)
    _check_dependents(found, declared)
    return found


def _check_lakes(place: TomlPlace, found: PipelineDefinition) -> None:
    """Check that the tables of all sources can be at their places, and have their own names in a catalog."""
    namespaces: dict[str, str | None] = {}
    for source in found.sources:
        path = parse_place(found.locate_lake(source))
        try:
            check_lake_path(path, found.tables.format)
            if found.tables.format == "iceberg" and isinstance(path, ObjectPath):
                check_remote_catalog(path, found.tables.catalog)
        except UsageError as error:
            raise place.make_error(str(error)) from None
        other = namespaces.setdefault(name_namespace(path), source.name)
        if found.tables.catalog is not None and other != source.name:
            raise place.make_error(
                f"the sources {other!r} and {source.name!r} have the same namespace {name_namespace(path)!r} in the"
                " catalog; expected names that differ in more than - and _"
            )


def _parse_lake(place: TomlPlace, lake: str) -> str:
    """Return the place of the tables: a path relative to the file, or a URL."""
    try:
        return str(parse_place(lake)) if is_url(lake) else place.resolve_path(lake)
    except UsageError as error:
        raise place.make_error(f"lake: {error}") from None


def _parse_sources(place: TomlPlace, given: Any) -> tuple[SourceDefinition, ...]:
    if not isinstance(given, dict) or not given:
        raise place.make_error("has no source, expected a table [source.NAME] with the url of a bucket")
    if flat := [name for name, table in given.items() if not isinstance(table, dict)]:
        raise place.make_error(f"[source] has the key {flat[0]!r}, expected a table [source.NAME]")
    places = {name: TomlPlace(place.file, f"[source.{name}]") for name in given}
    directory = str(Path(place.file).absolute().parent)
    found = tuple(
        parse_table(SourceDefinition, places[name], table, name=name, transform_directory=directory)
        for name, table in given.items()
    )
    taken = {*given}
    for source in found:
        if source.renamed_from in taken:
            text = f"renamed_from is {source.renamed_from!r}, expected a name that no other source has or had"
            raise places[str(source.name)].make_error(text)
        if source.renamed_from is not None:
            taken.add(source.renamed_from)
    return found


def _parse_table(cls: type[T], file: str, name: str, given: Mapping[str, Any]) -> T:
    return parse_table(cls, TomlPlace(file, f"[{name}]"), given.get(name, {}))


def _list_tables(file: str, name: str, given: Mapping[str, Any]) -> list[tuple[TomlPlace, Any]]:
    found = given.get(name, [])
    if not isinstance(found, list):
        raise TomlPlace(file, f"[{name}]").make_error(f"is one table, expected [[{name}]]")
    return [(TomlPlace(file, f"[[{name}]] {number}"), table) for number, table in enumerate(found, 1)]


def _parse_dependents(file: str, given: Mapping[str, Any]) -> Iterator[tuple[TomlPlace, DependentKind]]:
    """Yield the dependents that a file declares, with the place of each table."""
    for title in list_titles():
        for place, table in _list_tables(file, title, given):
            kind, keys = _find_table_kind(place, title, table)
            yield place, parse_table(kind, place, keys)


def _find_table_kind(place: TomlPlace, title: str, table: Any) -> tuple[type[DependentKind], Any]:
    """Return the kind that a table declares, and its other keys. Raises UsageError for an unknown kind."""
    known = {kind.kind: kind for kind in list_kinds() if kind.title == title}
    if title in known:
        return known[title], table
    word = table.get("kind") if isinstance(table, dict) else None
    if not isinstance(word, str) or word not in known:
        found = "has no kind" if word is None else f"kind is {word!r}"
        raise place.make_error(f"{found}, expected {' or '.join(map(repr, known))}")
    return known[word], {name: value for name, value in table.items() if name != "kind"}


def _check_dependents(found: PipelineDefinition, declared: Iterable[tuple[TomlPlace, DependentKind]]) -> None:
    """Raise UsageError for a name that stands twice, and for a source that is unknown or missing."""
    names = [source.name for source in found.sources]
    taken: dict[tuple[str | None, str], str] = {}
    others: list[DependentKind] = []
    for place, each in [(place, part) for place, whole in declared for part in whole.list_parts()]:
        if each.source is None and len(names) > 1:
            raise place.make_error(f"has no source, expected one of {', '.join(map(str, names))}")
        if each.source is not None and each.source not in names:
            raise place.make_error(f"source is {each.source!r}, expected one of {', '.join(map(str, names))}")
        followed = next(source for source in found.sources if each.source in (None, source.name))
        try:
            each.check_source(followed.parse_options().place)
        except UsageError as error:
            raise place.make_error(str(error)) from None
        if each.needs_values and followed.reader_options.get("keys_only") == "true":
            raise place.make_error("needs values, and the source has keys_only")
        if found.tables.format == "parquet":
            raise place.make_error(
                "depends on a changelog of plain parquet, which has no versions; expected 'delta' or 'iceberg'"
            )
        if each.name in _TABLES:
            raise place.make_error(f"name is {each.name!r}, which is a table of the lake")
        try:
            for other in others:
                each.check_beside(other)
        except UsageError as error:
            raise place.make_error(str(error)) from None
        others.append(each)
        identity = (each.source or names[0], each.name)
        if identity in taken:
            raise place.make_error(f"name is {each.name!r}, and so is that of {taken[identity]}")
        taken[identity] = place.title
