"""A bucket kept like another one, behind the changelog of a lake: XDCR, with a transformation in between.

At least once: the changelog's version is remembered when the bucket has all that led to it, and what is written once
more does nothing. Documents keep their meta data, and the bucket decides which of two versions stays, so that two
buckets that are each other's replicas converge, and nothing runs in circles.

A rollback takes versions away that the bucket may have, and that would win there for ever. So of every version that
was lost the changelog knows the cas, and where the bucket has just that version, it gets the one that survived in its
place, or loses the document. What others have written there since stays. Nothing here needs Spark but a transformation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.connect.address import Address
from penstock.errors import UsageError
from penstock.options import given_options, outside_name
from penstock.spark.dependents.checks import check_declared_name, checked_name
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.position_file import PositionFile, position_files
from penstock.spark.dependents.registry import DependentKind, register_kind
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, RangeDelta
from penstock.spark.lake.changelog.merge_rules import DOCUMENT_EVENTS, MARKER_EVENTS, RowMarkers, with_collections
from penstock.spark.lake.tables.delta_table import open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.sink import dead_letters
from penstock.spark.sink.bucket_writes import (
    Counts,
    FirstRefused,
    RefusedRows,
    found_cas,
    refusal_of,
    windows,
    write_tables,
)
from penstock.spark.sink.request_rows import REPLACES
from penstock.spark.sink.sink_columns import check_columns
from penstock.spark.sink.sink_options import Operation, SinkOptions
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Lost", "ReplicationResult", "Transform", "XdcrTarget", "replicate"]

Transform = Callable[["DataFrame"], "DataFrame"] | str
"""What is made of changes, row by row: a function of a frame of them, or a query in Spark's SQL over `changes`.

It must keep the columns that the operation needs and, of deletions, whose value is null, the rows.
"""

Lost = Literal["remove", "keep"]
"""What becomes of versions in the bucket that the source lost."""

DIRECTORY = "sinks"
"""The directory of a lake that holds the positions of its targets."""

GROUP_BYTES = 64 << 20
"""Size of the changes that are transformed together, at least, where there are as many."""

LOST_COLUMNS = [name for name in MERGE_SCHEMA.names if name not in ("value", "xattrs")]


class ReplicationResult(NamedTuple):
    """version: of the changelog that the bucket has, -1 without a changelog. counts: of this call."""

    version: int
    counts: Counts


def replicate(
    lake: LakeDirectory,
    target: Mapping[str, str],
    *,
    transform: Transform | None = None,
    lost: Lost = "remove",
    name: str = "replica",
    state: Path | None = None,
    spark: SparkSession | None = None,
) -> ReplicationResult:
    """Write the changes that a lake's changelog has gained since the last call to a bucket.

    Arguments and errors are those of XdcrTarget.
    """
    replica = XdcrTarget(lake, name, target, transform=transform, lost=lost, state=state, spark=spark)
    return ReplicationResult(catch_up(replica, lake), replica.counts)


class XdcrTarget:
    """A bucket behind a lake's changelog, under a name.

    target: options of `format("dcp")` for writing; the operation is with-meta if it is not said, or change, which
    overwrites whatever the bucket has. transform: what is made of the changes first; it needs `spark`, or a session
    that is active. lost: "keep" leaves versions in the bucket that the source lost: where the two are each other's
    replicas, such a version may have been written there. state: the directory where the version that was taken in is
    remembered, in `NAME.json`; the lake's own if it is not given. counts: what became of rows since this was made,
    where that went well. Raises UsageError for what cannot be.
    """

    def __init__(
        self,
        lake: LakeDirectory,
        name: str,
        target: Mapping[str, str],
        *,
        transform: Transform | None = None,
        lost: Lost = "remove",
        state: Path | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        given = {key: text for key, text in target.items() if key.lower() != "operation"}
        said = [text for key, text in target.items() if key.lower() == "operation"]
        self.options = SinkOptions.parse({**given, "operation": said[0] if said else Operation.WITH_META})
        if self.options.operation not in (Operation.WITH_META, Operation.CHANGE):
            raise UsageError(f"operation {self.options.operation} of a replica, expected with-meta or change")
        if lost not in get_args(Lost):
            raise UsageError(f"lost is {lost!r}, expected {' or '.join(map(repr, get_args(Lost)))}")
        self.lake = lake
        self.name = checked_name(name)
        self.path = (lake.path / DIRECTORY if state is None else state) / f"{name}.json"
        self._place = PositionFile(self.path, "everything will be written once more")
        self.counts = Counts()
        self._transform = transform
        self._removes = lost == "remove"
        self._spark = spark

    def position(self) -> tuple[str, int] | None:
        """Return the changelog's id and the version of it that the bucket has, None if nothing was written."""
        return self._place.read()

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Write a delta to the bucket. Raises Unreachable if it is not there, Error for rows that it refuses."""
        tables = (rows for group in _groups(delta) for rows in self._rows(group))
        pieces = (piece for rows in tables for piece in windows(rows.to_batches()))
        if self.options.dead_letter_path is None:
            first = FirstRefused()
            counts = write_tables(self.options, pieces, first.take)
            if first.text:
                raise refusal_of(counts, first.text)
        else:
            counts = self._write_with_letters(delta, pieces, self.options.dead_letter_path)
        self.counts += counts
        self._place.write(delta)

    def rows(self) -> int:
        """Return 0: nothing is merged."""
        return 0

    def _write_with_letters(self, delta: ChangelogDelta, pieces: Iterable[pa.Table], directory: Path) -> Counts:
        """Write rows, and those that are refused to dead letters.

        These are called after the version that the delta begins at: an attempt that goes further than the one before it
        puts its letters in their place all the same.
        """
        known = self.position()
        begins = 0 if delta.everything or known is None else known[1] + 1
        run = f"{self.name}-{delta.changelog_id}"
        files: list[Path | None] = []

        def take(refused: RefusedRows) -> None:
            # A file for each window: repairs have other columns than changes.
            with dead_letters.LetterFile(directory, run) as letters:
                letters.write(refused)
                files.append(letters.close())

        dead_letters.abort(directory, run)  # what an attempt that was killed has left
        try:
            counts = write_tables(self.options, pieces, take)
            batch = f"{self.name}-{delta.changelog_id[:8]}-{begins:09}"
            dead_letters.commit(directory, run, batch, [path for path in files if path is not None])
        finally:
            dead_letters.abort(directory, run)
        return counts

    def _rows(self, group: _Group) -> Iterator[pa.Table]:
        """Give what is to be written: first what mends what was lost, then the changes."""
        changes = self._made_of(group.changes)
        if self._removes:
            yield from self._repairs(group.documents, changes, are_tombstones=False)
            yield from self._repairs(group.tombstones, changes, are_tombstones=True)
        if len(changes):
            yield changes

    def _repairs(self, lost: pa.Table, changes: pa.Table, *, are_tombstones: bool) -> Iterator[pa.Table]:
        """Give what puts survivors in the place of lost versions."""
        lost = self._made_of(lost)
        if not len(lost):
            return
        with_meta = self.options.operation is Operation.WITH_META  # else a transformation may leave the cas out
        replaced = lost["cas"] if with_meta else pa.chunked_array([pa.nulls(len(lost), pa.int64())])
        if are_tombstones and with_meta:
            # A node compares a cas with a document's only: whether a tombstone is there, it must be asked.
            there = found_cas(self.options, lost) == replaced.to_numpy().view("u8")
            lost = lost.filter(pa.array(there))
            replaced = pa.chunked_array([pa.repeat(pa.scalar(0, pa.int64()), len(lost))])
        for rows in repairs(self.options.operation, lost, replaced, changes):
            if len(rows):
                yield rows

    def _made_of(self, rows: pa.Table) -> pa.Table:
        """Return the rows as the transformation leaves them."""
        if self._transform is None or not len(rows):
            return rows
        made = _transformed(self._transform, rows, self._spark)
        check_columns(self.options, made.schema)
        return made


def _transformed(transform: Transform, rows: pa.Table, spark: SparkSession | None) -> pa.Table:
    from pyspark.sql import SparkSession

    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise UsageError("a transformation needs a Spark session, and there is none")
    if callable(transform):
        return transform(session.createDataFrame(rows)).toArrow()
    session = session.newSession()  # views are the session's, and this one is nobody else's
    session.createDataFrame(rows).createTempView("changes")
    return session.sql(transform).toArrow()


class _Group(NamedTuple):
    """Changes of some vbucket ranges. changes: the newest of each document. documents, tombstones: versions lost."""

    changes: pa.Table
    documents: pa.Table
    tombstones: pa.Table


def _groups(delta: ChangelogDelta) -> Iterator[_Group]:
    """Yield the changes of all ranges, small ranges together: a transformation is slow to begin."""
    held: list[_Group] = []
    for part in delta.ranges:
        read = delta.read(part)
        # Also at first: an earlier try may have come half way.
        lost = lost_versions(delta, part, read) if may_have_lost(delta, part, read) else (_NOTHING, _NOTHING)
        held.append(_Group(read.changes, *lost))
        if sum(rows.nbytes for group in held for rows in group) >= GROUP_BYTES:
            yield _Group(*map(pa.concat_tables, zip(*held, strict=True)))
            held = []
    if held:
        yield _Group(*map(pa.concat_tables, zip(*held, strict=True)))


_NOTHING = MERGE_SCHEMA.empty_table()


def may_have_lost(delta: ChangelogDelta, part: int, read: RangeDelta) -> bool:
    """Tell whether versions of a vbucket range may have been lost."""
    marked = any(file.keyless for file in delta.history if file.vbucket_range == part)
    return marked and (delta.everything or bool(read.rolled_back) or len(read.ended.collections) > 0)


def lost_versions(delta: ChangelogDelta, part: int, read: RangeDelta) -> tuple[pa.Table, pa.Table]:
    """Return the versions that no longer count though nothing newer took their place: documents, and tombstones.

    These are the rows of the changelog that a rollback or a collection's end took away; in MERGE_SCHEMA, all of them as
    deletions, since that is what becomes of them.
    """
    files = [file for file in delta.history if file.vbucket_range == part]
    dataset = open_dataset(delta.lake.changelog_table.paths(files), MERGE_SCHEMA)
    vbuckets = {*read.rolled_back, *(int(place) >> 32 for place in read.ended.collections)}
    concerned = pc.scalar(True) if delta.everything else pc.field("vbucket").isin(list(vbuckets))
    marks = RowMarkers.of(dataset.to_table(filter=concerned & pc.field("event").isin(MARKER_EVENTS)))
    documents = concerned & pc.field("event").isin(DOCUMENT_EVENTS)
    found = [MERGE_SCHEMA.empty_table().select(LOST_COLUMNS)]
    for batch in dataset.to_batches(columns=LOST_COLUMNS, filter=documents, batch_readahead=2, fragment_readahead=1):
        rows = with_collections(pa.Table.from_batches([batch]))
        found.append(rows.filter(pa.array(~marks.survive(rows))))
    rows = pa.concat_tables(found)
    stored = pc.equal(rows["event"], str(Event.MUTATION))
    return _as_deletions(rows.filter(stored)), _as_deletions(rows.filter(pc.invert(stored)))


def _as_deletions(rows: pa.Table) -> pa.Table:
    nothing = {name: pa.nulls(len(rows), MERGE_SCHEMA.field(name).type) for name in ("value", "xattrs")}
    columns = {name: rows[name] for name in LOST_COLUMNS} | nothing
    columns["event"] = pa.repeat(pa.scalar(str(Event.DELETION)), len(rows))
    return pa.table({name: columns[name] for name in MERGE_SCHEMA.names}, schema=MERGE_SCHEMA)


def repairs(operation: Operation, lost: pa.Table, replaced: pa.ChunkedArray, changes: pa.Table) -> Iterable[pa.Table]:
    """Return what puts survivors in the place of lost versions: deletions, and rows that replace a version.

    lost: the versions; of one document there may be several. replaced: what REPLACES says of each. changes: all
    surviving documents that lost versions are of, and more.
    """
    survivor = pc.index_in(_identities(lost), value_set=_identities(changes).combine_chunks())
    gone = lost.filter(survivor.is_null())
    if operation is Operation.CHANGE:
        return [gone]
    # So few changes and so old that whatever the source makes of the key later is newer.
    least = pa.repeat(pa.scalar(1, pa.int64()), len(gone))
    deletions = {name: gone[name] for name in gone.column_names if name in MERGE_SCHEMA.names}
    deletions |= {"cas": least, "rev_seqno": least, REPLACES: replaced.filter(survivor.is_null())}
    instead = changes.take(survivor.drop_null()).append_column(REPLACES, replaced.filter(survivor.is_valid()))
    return [pa.table(deletions), instead]


def _identities(rows: pa.Table) -> pa.ChunkedArray:
    """Return what tells documents of the bucket apart."""
    names = [
        pc.fill_null(rows[name], DEFAULT_NAME).cast(pa.binary())
        if name in rows.column_names
        else pa.repeat(pa.scalar(DEFAULT_NAME.encode()), len(rows))
        for name in ("scope", "collection")
    ]
    joined = pc.binary_join_element_wise(*names, rows["key"].cast(pa.binary()), b"\0")
    return joined if isinstance(joined, pa.ChunkedArray) else pa.chunked_array([joined])


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class XdcrTargetKind(DependentKind):
    """A bucket that documents are copied to.

    Attributes:
        operation: what becomes of a change, as of SinkOptions.
        given: the options of `format("dcp")` for writing that are given.
        sql: a query over the view `changes`, in Spark's SQL; without it, all changes go as they are.
        lost: what becomes of versions that the source lost.
    """

    title = "sink"
    kind = "bucket"
    directory = DIRECTORY
    order = 40
    is_local = False

    url: str
    given: Mapping[str, str] = given_options(
        SinkOptions, without=("password", "subdocument", "create_documents", "errors")
    )
    operation: Literal["with-meta", "change"] = "with-meta"
    sql: str | None = None
    lost: Lost = "remove"

    def __post_init__(self) -> None:
        check_declared_name("sink", self.name)
        self.bucket_address()

    def options(self) -> dict[str, str]:
        """Return the options of `format("dcp")` for writing, as text."""
        given = {"url": self.url, "operation": self.operation, **self.given}
        if "dead_letter_path" in given:
            given["errors"] = "deadletter"
        return {outside_name(name): text for name, text in given.items()}

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> XdcrTarget:
        return XdcrTarget(lake, self.name, self.options(), transform=self.sql, lost=self.lost, spark=session)

    def describe(self) -> str:
        return self.sql or "all documents"

    def bucket_address(self) -> Address:
        """Return the bucket that it writes to. Raises UsageError for invalid options."""
        return SinkOptions.parse(self.options()).address

    def place(self, lake: LakeDirectory) -> str:
        return str(self.bucket_address())

    @classmethod
    def files(cls, lake: LakeDirectory, name: str) -> list[Path]:
        return position_files(lake.path / cls.directory, name)
