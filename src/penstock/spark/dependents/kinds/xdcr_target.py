"""An XDCR target: a bucket that gets the changes of a lake's changelog, after an optional transformation.

Delivery is at least once. The changelog version is stored after the bucket has all changes up to it, and writing a
change twice has no further effect. Documents keep their metadata, and the bucket resolves conflicts. So two buckets
that replicate to each other converge, and no change circulates.

A rollback removes versions that the bucket may have, and that would win every conflict there. The changelog knows the
cas of each lost version. If the bucket has exactly that version, it gets the surviving version, or loses the document.
Versions that other programs have written there since are kept. Only a transformation needs Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.client.connect.address import Address, ConnectionOptions
from penstock.client.documents.window_writer import RefusedRows, WriteCounts, divide_into_windows
from penstock.errors import Error, UsageError
from penstock.options import given_options, to_external_name
from penstock.spark.dependents.bucket_state import BucketAnswers
from penstock.spark.dependents.checks import check_declared_name, validate_name
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.lost_versions import build_repairs, can_have_lost_versions, find_lost_versions
from penstock.spark.dependents.position_file import PositionFile, list_position_files
from penstock.spark.dependents.registry import DependentKind, register_kind
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta
from penstock.spark.lake.reading.spark_frames import make_frame
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.sink import dead_letters
from penstock.spark.sink.bucket_writes import FirstRefusal, make_refusal_error, read_cas, write_tables
from penstock.spark.sink.sink_columns import check_columns
from penstock.spark.sink.sink_options import Operation, SinkOptions
from penstock.spark.storage.object_path import LakePath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Transform = Callable[["DataFrame"], "DataFrame"] | str
"""A transformation of changes, row by row: a function of a frame, or a query in Spark's SQL over the view `changes`.

It must keep the columns that the operation needs, and the rows of deletions, whose value is null.
"""

LostVersions = Literal["remove", "keep"]
"""The handling of versions in the bucket that the source lost: remove them or keep them."""

DIRECTORY = "sinks"
"""The directory of a lake that holds the positions of its targets."""

GROUP_BYTES = 64 << 20
"""Least size of the changes that are transformed together, if there are enough."""


class ReplicationResult(NamedTuple):
    """The result of one call of `replicate`.

    Attributes:
        version: the changelog version that the bucket has, -1 without a changelog.
        counts: the outcomes of the rows that this call wrote.
    """

    version: int
    counts: WriteCounts


@check_arguments
def replicate(
    lake: LakeDirectory,
    target: Mapping[str, str],
    *,
    transform: Transform | None = None,
    lost: LostVersions = "remove",
    name: str = "replica",
    state: LakePath | None = None,
    spark: SparkSession | None = None,
) -> ReplicationResult:
    """Write the changes that a lake's changelog has gained since the last call to a bucket.

    Errors are those of XdcrTarget.

    Args:
        lake: the lake of the changelog.
        target: options of `format("dcp")` for writing.
        transform: a transformation of the changes; it needs a Spark session.
        lost: handling of versions in the bucket that the source lost.
        name: the target's name, unique in the lake.
        state: the directory of the position file; None for the lake's own.
        spark: the session of the transformation; None for the active session.

    Returns:
        The reached version, and the outcomes of this call.
    """
    replica = XdcrTarget(lake, name, target, transform=transform, lost=lost, state=state, spark=spark)
    return ReplicationResult(catch_up(replica, lake), replica.counts)


@check_arguments
class XdcrTarget:
    """A bucket that gets the changes of a lake's changelog.

    Args:
        lake: the lake of the changelog.
        name: the target's name, unique in the lake.
        target: options of `format("dcp")` for writing. The operation is with-meta by default. With `change`, each
            change overwrites the version in the bucket.
        transform: a transformation of the changes; it needs a Spark session.
        lost: "keep" leaves versions in the bucket that the source lost. If the two buckets replicate to each other,
            such a version may have been written in the target.
        state: the directory of the position file `NAME.json`; None for the lake's own.
        spark: the session of the transformation; None for the active session.

    Attributes:
        counts: the outcomes of all rows that this object wrote successfully.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        lake: LakeDirectory,
        name: str,
        target: Mapping[str, str],
        *,
        transform: Transform | None = None,
        lost: LostVersions = "remove",
        state: LakePath | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        given = {key: text for key, text in target.items() if key.lower() != "operation"}
        operations = [text for key, text in target.items() if key.lower() == "operation"]
        self.options = SinkOptions.parse({**given, "operation": operations[0] if operations else Operation.WITH_META})
        if self.options.operation not in (Operation.WITH_META, Operation.CHANGE):
            raise UsageError(f"operation {self.options.operation} of an XDCR target, expected with-meta or change")
        if lost not in get_args(LostVersions):
            raise UsageError(f"lost is {lost!r}, expected {' or '.join(map(repr, get_args(LostVersions)))}")
        self.lake = lake
        self.name = validate_name(name)
        self.path = (lake.path / DIRECTORY if state is None else state) / f"{name}.json"
        self._position_file = PositionFile(self.path, "all changes are written again")
        self.counts = WriteCounts()
        self._transform = transform
        self._removes = lost == "remove"
        self._spark = spark

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that the bucket has, None if nothing was written."""
        return self._position_file.read()

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Write a delta to the bucket.

        Raises Unreachable if the bucket does not answer, Error for rows that it refuses.
        """
        tables = (rows for group in _group_changes(delta) for rows in self._list_writes(group))
        pieces = (piece for rows in tables for piece in divide_into_windows(rows.to_batches()))
        if self.options.dead_letter_path is None:
            first = FirstRefusal()
            counts = write_tables(self.options, pieces, first.record)
            if first.text:
                refusal: Error = make_refusal_error(counts, first.text)
                raise refusal
        else:
            counts = self._write_with_dead_letters(delta, pieces, self.options.dead_letter_path)
        self.counts += counts
        self._position_file.write(delta.changelog_id, delta.version)

    def count_rows(self) -> int:
        """Return 0: a target merges nothing."""
        return 0

    def _write_with_dead_letters(
        self, delta: ChangelogDelta, pieces: Iterable[pa.Table], directory: LakePath
    ) -> WriteCounts:
        """Write rows, and write refused rows to files of dead letters.

        The names of the files have the first version of the delta. So if a later attempt reaches a higher version, its
        files replace those of the earlier attempt.

        Args:
            delta: the delta.
            pieces: its rows.
            directory: the directory of the dead letters.

        Returns:
            The outcomes of the rows.
        """
        known = self.position()
        begins = 0 if delta.is_full or known is None else known[1] + 1
        run = f"{self.name}-{delta.changelog_id}"
        files: list[LakePath | None] = []

        def take(refused: RefusedRows) -> None:
            # A file for each window: repairs have other columns than changes.
            with dead_letters.DeadLetterFile(directory, run) as letters:
                letters.write(refused)
                files.append(letters.close())

        dead_letters.discard_letters(directory, run)  # files of an attempt that was killed
        try:
            counts = write_tables(self.options, pieces, take)
            batch = f"{self.name}-{delta.changelog_id[:8]}-{begins:09}"
            dead_letters.commit_letters(directory, run, batch, [path for path in files if path is not None])
        finally:
            dead_letters.discard_letters(directory, run)
        return counts

    def _list_writes(self, group: _ChangeGroup) -> Iterator[pa.Table]:
        """Yield the rows to write: first the repairs of lost versions, then the changes."""
        changes = self._transform_rows(group.changes)
        if self._removes:
            yield from self._list_repairs(group.documents, changes, are_tombstones=False)
            yield from self._list_repairs(group.tombstones, changes, are_tombstones=True)
        if len(changes):
            yield changes

    def _list_repairs(self, lost: pa.Table, changes: pa.Table, *, are_tombstones: bool) -> Iterator[pa.Table]:
        """Yield the rows that replace lost versions by the surviving ones."""
        lost = self._transform_rows(lost)
        if not len(lost):
            return
        with_meta = self.options.operation is Operation.WITH_META  # else a transformation may leave the cas out
        replaced = lost["cas"] if with_meta else pa.chunked_array([pa.nulls(len(lost), pa.int64())])
        if are_tombstones and with_meta:
            # A node compares a cas only with a document's cas. So a request must find out whether a tombstone exists.
            there = read_cas(self.options, lost) == replaced.to_numpy().view("u8")
            lost = lost.filter(pa.array(there))
            replaced = pa.chunked_array([pa.repeat(pa.scalar(0, pa.int64()), len(lost))])
        for rows in build_repairs(self.options.operation, lost, replaced, changes):
            if len(rows):
                yield rows

    def _transform_rows(self, rows: pa.Table) -> pa.Table:
        """Return the result of the transformation; the rows themselves without one."""
        if self._transform is None or not len(rows):
            return rows
        made = _run_transform(self._transform, rows, self._spark)
        check_columns(self.options, made.schema)
        return made


def _run_transform(transform: Transform, rows: pa.Table, spark: SparkSession | None) -> pa.Table:
    """Return the result of a transformation.

    Raises:
        UsageError: there is no Spark session.
    """
    from pyspark.sql import SparkSession

    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise UsageError("a transformation needs a Spark session, expected the argument spark or an active session")
    if callable(transform):
        return transform(make_frame(session, rows)).toArrow()
    session = session.newSession()  # a session of its own, so that the view `changes` replaces no view of the user
    make_frame(session, rows).createTempView("changes")
    return session.sql(transform).toArrow()


class _ChangeGroup(NamedTuple):
    """Changes of some vbucket ranges.

    Attributes:
        changes: the newest change of each document.
        documents: lost versions that were documents.
        tombstones: lost versions that were deletions.
    """

    changes: pa.Table
    documents: pa.Table
    tombstones: pa.Table


def _group_changes(delta: ChangelogDelta) -> Iterator[_ChangeGroup]:
    """Yield the changes of all ranges, small ranges together, because each transformation takes long to start."""
    held: list[_ChangeGroup] = []
    for part in delta.ranges:
        read = delta.read_range(part)
        # Also in a full delta: an earlier attempt may have written a part of it.
        lost = (
            find_lost_versions(delta, part, read) if can_have_lost_versions(delta, part, read) else (_NOTHING, _NOTHING)
        )
        held.append(_ChangeGroup(read.changes, *lost))
        if sum(rows.nbytes for group in held for rows in group) >= GROUP_BYTES:
            yield _ChangeGroup(*map(pa.concat_tables, zip(*held, strict=True)))
            held = []
    if held:
        yield _ChangeGroup(*map(pa.concat_tables, zip(*held, strict=True)))


_NOTHING = MERGE_SCHEMA.empty_table()


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class XdcrTargetKind(DependentKind):
    """A bucket that documents are replicated to.

    Attributes:
        url: the bucket's connection string.
        operation: the operation of each change, as in SinkOptions.
        writer_options: the options of `format("dcp")` for writing that are given.
        sql: a query over the view `changes`, in Spark's SQL; None to replicate all changes unchanged.
        lost: handling of versions in the bucket that the source lost.
    """

    title = "sink"
    kind = "bucket"
    directory = DIRECTORY
    order = 40
    is_local = False

    url: str
    writer_options: Mapping[str, str] = given_options(
        SinkOptions, without=("password", "subdocument", "create_documents", "errors")
    )
    operation: Literal["with-meta", "change"] = "with-meta"
    sql: str | None = None
    lost: LostVersions = "remove"

    def __post_init__(self) -> None:
        check_declared_name("sink", self.name)
        self.parse_options()

    def format_options(self) -> dict[str, str]:
        """Return the options of `format("dcp")` for writing, as text."""
        given = {"url": self.url, "operation": self.operation, **self.writer_options}
        if "dead_letter_path" in given:
            given["errors"] = "deadletter"
        return {to_external_name(name): text for name, text in given.items()}

    @property
    def dead_letters(self) -> str | None:
        """The directory of refused rows, None without one."""
        return self.writer_options.get("dead_letter_path")

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> XdcrTarget:
        """Return the target of this declaration for a lake."""
        return XdcrTarget(lake, self.name, self.format_options(), transform=self.sql, lost=self.lost, spark=session)

    def describe(self) -> str:
        """Return the query, for plans."""
        return self.sql or "all documents"

    @property
    def sql_query(self) -> str | None:
        """The query that changes pass through."""
        return self.sql

    def check_sql_result(self, schema: pa.Schema) -> None:
        """Check the columns of the query's result. Raises UsageError for a missing or unknown one, or another type."""
        check_columns(self.parse_options(), schema)

    @property
    def login_runs_program(self) -> bool:
        """Whether the login at the bucket runs a program."""
        return self.parse_options().login_runs_program

    def parse_options(self) -> SinkOptions:
        """Return the parsed options. Raises UsageError for invalid ones."""
        return SinkOptions.parse(self.format_options())

    def check_target(self, source: Address, buckets: BucketAnswers) -> str:
        """Connect to the bucket, and compare it with that of the source. Raises UsageError if both are the same.

        Returns:
            A line about the bucket.
        """
        options = self.parse_options()
        rule = options.conflict_resolution if options.operation is Operation.WITH_META else None
        state = buckets.ask_target(options.address, options.scope, options.collection, rule)
        is_read = _reads_collection(source.options, options.scope, options.collection)
        if is_read and state.identity.is_same_bucket(buckets.ask_source(source).identity):
            raise self._make_cycle_error(options)
        return f"{options.place}: {state.vbuckets} vbuckets, target of writes"

    def _make_cycle_error(self, options: SinkOptions) -> UsageError:
        return UsageError(
            f"url is {options.place}, the bucket of its source; expected another bucket,"
            " or a collection that the source does not read"
        )

    def find_letter_directory(self) -> LakePath | None:
        """Return the directory of dead letters, None without one."""
        return self.parse_options().dead_letter_path

    def check_source(self, source: Address) -> None:
        """Raise UsageError if the source reads the documents that the target writes, as far as addresses show it."""
        options = self.parse_options()
        target = options.place
        is_same_bucket = target.bucket == source.bucket and not set(target.hosts).isdisjoint(source.hosts)
        if is_same_bucket and _reads_collection(source.options, options.scope, options.collection):
            raise self._make_cycle_error(options)

    def locate(self, lake: LakeDirectory) -> str:
        """Return the bucket's address."""
        return str(self.parse_options().place)

    @classmethod
    def list_files(cls, lake: LakeDirectory, name: str) -> list[LakePath]:
        """Return the position file, if it exists."""
        return list_position_files(lake.path / cls.directory, name)


def _reads_collection(source: ConnectionOptions, scope: str | None, collection: str | None) -> bool:
    """Return whether a source may read a collection; None stands for the name that the source reads."""
    if scope is not None and source.scope and scope != source.scope:
        return False
    names = {name.rpartition(".")[2] for name in source.collections}
    return collection is None or not names or collection in names
