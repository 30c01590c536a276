"""What a pipeline is: sources, filters, tables and sinks, declared in a TOML file or by a command's options.

    lake = "./lake"
    [source.NAME]            a bucket, or a part of it, by the options of format("dcp") in snake_case
    [tables] [current]       how the changelog is written, and when pending changes are merged
    [[index]] [[fulltext]]   tables to look documents up by
    [[sink]]                 who is told of changes
    [metrics]                figures for Prometheus

Paths are relative to the file's directory. docs/pipelines.md shows every key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from penstock.client.connect.address import Address, outside_name
from penstock.errors import UsageError
from penstock.spark.dependents.json_paths import parse_path
from penstock.spark.dependents.kinds.xdcr_target import Lost
from penstock.spark.dependents.posting import Patience, Poster, secret_headers
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.pipeline.definition.toml_tables import TomlPlace, load, read, refuse_unknown
from penstock.spark.sink.sink_options import SinkOptions
from penstock.spark.source.source_options import INFERRED, SourceOptions
from penstock.spark.values.json_types import from_ddl

__all__ = [
    "BucketSink",
    "Current",
    "Fulltext",
    "Index",
    "InvalidateSink",
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

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TABLES = ("changelog", "current")
_POLICY = MergePolicy()


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"the {what} is called {name!r}, expected 1 to 64 letters, digits, - and _")


def _check_range(**values: tuple[float | None, float, float]) -> None:
    for name, (found, least, most) in values.items():
        if found is not None and not least <= found <= most:
            raise UsageError(f"{name} is {found}, expected {least:g} to {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A bucket, or a part of it, and how it is followed.

    name: None where a command's options make the one source. key_pattern: a regular expression; other keys do not
    reach the changelog. where: SQL on the value's JSON fields; a document for which it is not true is in the changelog
    as deleted. value_schema: those fields as DDL, or "infer" from what the bucket has. trigger_seconds: how often a
    micro-batch begins. The others are options of `format("dcp")`.
    """

    name: str | None = None
    url: str | None = None
    bucket: str | None = None
    username: str | None = None
    password_file: str | None = None
    credentials_file: str | None = None
    scope: str | None = None
    collections: tuple[str, ...] | None = None
    vbuckets: str | None = None
    starting_offsets: str | None = None
    max_changes_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_partitions: int | None = None
    keys_only: bool | None = None
    xattrs: bool | None = None
    key_pattern: str | None = None
    protocol: str | None = None
    rollback: Literal["row", "fail"] | None = None
    fail_on_data_loss: bool | None = None
    connect_timeout: float | None = None
    operation_timeout: float | None = None
    retry_seconds: float | None = None
    vbucket_count: int | None = None
    missing_vbuckets: Literal["fail", "skip"] | None = None
    where: str | None = None
    value_schema: str | None = None
    trigger_seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.name is not None:
            _check_name("source", self.name)
        _check_range(trigger_seconds=(self.trigger_seconds, 0, 86400))
        if self.where is not None and not self.where.strip():
            raise UsageError(f"where is {self.where!r}, expected a condition in SQL such as abv > 5")
        if self.where is not None and self.keys_only:
            raise UsageError("has where and keys_only, but SQL on the value needs values")
        if self.value_schema is not None and self.value_schema != INFERRED:
            from_ddl(self.value_schema)
        self.options()

    def given_options(self) -> dict[str, str]:
        """Return the options of `format("dcp")`, as text."""
        given = {outside_name(name): getattr(self, name) for name in _OPTIONS}
        return {name: _option_text(value) for name, value in given.items() if value is not None}

    def options(self) -> SourceOptions:
        """Raises UsageError for what can be known to be wrong without a bucket and without Spark."""
        options = SourceOptions.parse(self.given_options())
        options.check_streaming()
        return options

    def content(self) -> dict[str, str]:
        """Return what decides about the rows of the tables: another answer needs other tables."""
        names = _CONTENT if self.where is None else (*_CONTENT, "value_schema")
        return {name: _option_text(value) for name in names if (value := getattr(self, name)) is not None}


_OWN = ("name", "where", "value_schema", "trigger_seconds")
_OPTIONS = tuple(each.name for each in fields(Source) if each.name not in _OWN)
_CONTENT = ("scope", "collections", "vbuckets", "keys_only", "xattrs", "key_pattern", "where")
_PATHS = ("password_file", "credentials_file", "headers_file", "dead_letter_path")


def _option_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


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

    merge_rows: int = _POLICY.rows
    merge_share: float = _POLICY.share
    merge_age_seconds: float = _POLICY.age_seconds

    def __post_init__(self) -> None:
        _check_range(
            merge_rows=(self.merge_rows, 1, 1e12),
            merge_share=(self.merge_share, 0, 1),
            merge_age_seconds=(self.merge_age_seconds, 0, 86400),
        )

    @property
    def policy(self) -> MergePolicy:
        return MergePolicy(self.merge_rows, self.merge_share, self.merge_age_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hanging:
    """What is kept behind the changelog of a source. source: its name, needed where there are several."""

    name: str
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(_Hanging):
    """A table sorted by what stands at a path of the documents. type: as which the values are compared."""

    path: str
    type: Literal["string", "double", "long", "boolean", "timestamp"] = "string"

    def __post_init__(self) -> None:
        _check_name("index", self.name)
        parse_path(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fulltext(_Hanging):
    """A full-text index over what stands at some paths of the documents; of all text in them, if none are given."""

    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name("fulltext", self.name)
        for path in self.paths:
            parse_path(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidateSink(_Hanging):
    """Keys of changed documents, posted to an HTTP address. The fields are those of Invalidation.

    headers_file, headers_env: where headers of the requests are read from, such as one that logs in.
    """

    url: str
    batch_size: int = 1000
    most_keys: int = 1_000_000
    knows_vbuckets: bool = False
    headers_file: str | None = None
    headers_env: str | None = None
    timeout: float = 10.0
    retries: int = 3
    backoff: float = 0.5

    def __post_init__(self) -> None:
        _check_name("sink", self.name)
        _check_range(batch_size=(self.batch_size, 1, 1e6), most_keys=(self.most_keys, 1, 1e12))
        self.place()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of Invalidation but for the lake."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "source"}

    def place(self) -> str:
        """Return the address as it may be shown. Raises UsageError for what cannot be."""
        patience = Patience(self.timeout, self.retries, self.backoff)
        poster = Poster(self.url, patience, secret_headers(self.headers_file, self.headers_env))
        poster.close()
        return poster.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSink(_Hanging):
    """A bucket that documents are copied to. sql: a query over the view `changes`, in Spark's SQL; without it, all
    changes go as they are. lost: what becomes of versions that the source lost. The others are options of
    `format("dcp")` for writing."""

    url: str
    bucket: str | None = None
    username: str | None = None
    password_file: str | None = None
    credentials_file: str | None = None
    scope: str | None = None
    collection: str | None = None
    operation: Literal["with-meta", "change"] = "with-meta"
    dead_letter_path: str | None = None
    max_bytes_in_flight: str | None = None
    conflict_resolution: Literal["seqno", "lww"] | None = None
    connect_timeout: float | None = None
    operation_timeout: float | None = None
    retry_seconds: float | None = None
    vbucket_count: int | None = None
    sql: str | None = None
    lost: Lost = "remove"

    def __post_init__(self) -> None:
        _check_name("sink", self.name)
        self.address()

    def options(self) -> dict[str, str]:
        """Return the options of `format("dcp")` for writing, as text."""
        own = ("name", "source", "sql", "lost")
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in own}
        if self.dead_letter_path is not None:
            given["errors"] = "deadletter"
        return {outside_name(name): _option_text(value) for name, value in given.items() if value is not None}

    def address(self) -> Address:
        """Return where the bucket is. Raises UsageError for options that cannot be."""
        return SinkOptions.parse(self.options()).address

    def place(self) -> str:
        """Return the address as it may be shown."""
        return str(self.address())


Sink = InvalidateSink | BucketSink
SINKS: dict[str, type[InvalidateSink] | type[BucketSink]] = {"invalidate": InvalidateSink, "bucket": BucketSink}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """port: of 127.0.0.1, where the figures are served at /metrics."""

    port: int

    def __post_init__(self) -> None:
        _check_range(port=(self.port, 0, 65535))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """A pipeline. lake: a directory; that of the tables where there is one source, else of a directory for each."""

    lake: str
    sources: tuple[Source, ...]
    tables: Tables = field(default_factory=Tables)
    current: Current = field(default_factory=Current)
    indexes: tuple[Index, ...] = ()
    fulltexts: tuple[Fulltext, ...] = ()
    sinks: tuple[Sink, ...] = ()
    metrics: Metrics | None = None

    def lake_of(self, source: Source) -> str:
        """Return the directory of a source's tables."""
        return self.lake if len(self.sources) == 1 else str(Path(self.lake) / str(source.name))

    def of(self, source: Source, dependents: Iterable[T]) -> list[T]:
        """Return those of indexes, fulltexts or sinks that hang off a source's changelog."""
        return [each for each in dependents if getattr(each, "source") in (None, source.name)]  # noqa: B009 - a T has it


def of_one(lake: str, **source: Any) -> PipelineDefinition:
    """Return the pipeline of one bucket into one lake. source: fields of Source. Raises UsageError."""
    return PipelineDefinition(lake=lake, sources=(Source(**source),))


def is_definition(path: str) -> bool:
    """Tell whether a path names a pipeline's file rather than its lake."""
    return path.endswith(".toml") or Path(path).is_file()


_TOP = ("lake", "source", "tables", "current", "index", "fulltext", "sink", "metrics")


def read_definition(path: str) -> PipelineDefinition:
    """Return what a pipeline's file declares. Raises UsageError, which names the file, the table and the key."""
    return definition_of(load(path), path)


def definition_of(given: Mapping[str, Any], path: str) -> PipelineDefinition:
    """Return the same of what was read from the file at `path`."""
    place = TomlPlace(path)
    refuse_unknown(place, given, list(_TOP))
    lake = given.get("lake")
    if not isinstance(lake, str) or not lake:
        raise place.wrong(f"lake is {lake!r}, expected a directory such as ./lake" if lake else "has no lake")
    base = Path(path).absolute().parent
    found = PipelineDefinition(
        lake=_path(base, lake),
        sources=_sources(place, given.get("source"), base),
        tables=_table(Tables, path, "tables", given),
        current=_table(Current, path, "current", given),
        indexes=tuple(_tables(Index, path, "index", given)),
        fulltexts=tuple(_tables(Fulltext, path, "fulltext", given)),
        sinks=tuple(_sinks(path, given, base)),
        metrics=read(Metrics, TomlPlace(path, "[metrics]"), given["metrics"]) if "metrics" in given else None,
    )
    _check_hanging(place, found)
    return found


def _path(base: Path, text: str) -> str:
    """Return a path of the file as one that holds anywhere."""
    return text if "://" in text else os.path.normpath(base / Path(text).expanduser())


def _based(base: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of the file with its paths as they hold anywhere."""
    return {**table, **{key: _path(base, table[key]) for key in _PATHS if isinstance(table.get(key), str)}}


def _sources(place: TomlPlace, given: Any, base: Path) -> tuple[Source, ...]:
    if not isinstance(given, dict) or not given:
        raise place.wrong("has no source, expected a table [source.NAME] with the url of a bucket")
    if flat := [name for name, table in given.items() if not isinstance(table, dict)]:
        raise place.wrong(f"[source] has the key {flat[0]!r}, expected a table [source.NAME]")
    found = []
    for name, table in given.items():
        at = TomlPlace(place.file, f"[source.{name}]")
        found.append(read(Source, at, _based(base, table), name=name))
    return tuple(found)


def _table(cls: type[T], file: str, name: str, given: Mapping[str, Any]) -> T:
    return read(cls, TomlPlace(file, f"[{name}]"), given.get(name, {}))


def _tables(cls: type[T], file: str, name: str, given: Mapping[str, Any]) -> list[T]:
    return [read(cls, place, table) for place, table in _entries(file, name, given)]


def _entries(file: str, name: str, given: Mapping[str, Any]) -> list[tuple[TomlPlace, Any]]:
    found = given.get(name, [])
    if not isinstance(found, list):
        raise TomlPlace(file, f"[{name}]").wrong(f"is one table, expected [[{name}]]")
    return [(TomlPlace(file, f"[[{name}]] {number}"), table) for number, table in enumerate(found, 1)]


def _sinks(file: str, given: Mapping[str, Any], base: Path) -> Iterable[Sink]:
    for place, table in _entries(file, "sink", given):
        kind = table.get("kind") if isinstance(table, dict) else None
        if kind not in SINKS:
            found = "has no kind" if kind is None else f"kind is {kind!r}"
            raise place.wrong(f"{found}, expected {' or '.join(map(repr, SINKS))}")
        rest = {name: value for name, value in table.items() if name != "kind"}
        yield read(SINKS[kind], place, _based(base, rest))


def _check_hanging(place: TomlPlace, found: PipelineDefinition) -> None:
    """Raises UsageError for a name that is there twice, and for a source that is not there or is not said."""
    names = [source.name for source in found.sources]
    taken: dict[tuple[str | None, str], str] = {}
    for title, several in (("index", found.indexes), ("fulltext", found.fulltexts), ("sink", found.sinks)):
        for number, each in enumerate(several, 1):
            at = TomlPlace(place.file, f"[[{title}]] {number}")
            if each.source is None and len(names) > 1:
                raise at.wrong(f"has no source, expected one of {', '.join(map(str, names))}")
            if each.source is not None and each.source not in names:
                raise at.wrong(f"source is {each.source!r}, expected one of {', '.join(map(str, names))}")
            if found.tables.changelog_format == "parquet":
                raise at.wrong("hangs off a changelog of plain parquet, which has no versions; expected 'delta'")
            if each.name in _TABLES:
                raise at.wrong(f"name is {each.name!r}, which is a table of the lake")
            where = (each.source or names[0], each.name)
            if where in taken:
                raise at.wrong(f"name is {each.name!r}, and so is that of {taken[where]}")
            taken[where] = at.title
