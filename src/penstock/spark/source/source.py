"""`format("dcp")`: a bucket's changes as a Spark data source, batch and streaming.

All decisions are in the module offsets; this is the edge. Spark calls latestOffset and partitions in one process that
lives as long as the query, and read in workers that know nothing but their partition. A worker that finds another
history than the planned one gives nothing more for that vbucket: the next plan sees it too, and rolls back.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client.address import DEFAULT_URL, Address, collection_names, dialect_of, parse_address, truth_of
from penstock.client.blocking import LoopThread, changes_at
from penstock.client.bucket import Bucket
from penstock.client.credentials import Credentials, credentials_file, credentials_from, password_file
from penstock.client.feed import Wanted
from penstock.client.position import Position, VbucketInfo
from penstock.client.selection import Selection
from penstock.errors import Error, UsageError
from penstock.spark.source import offsets
from penstock.spark.source.offsets import Memory, Offset, RollbackRow, VbucketRange, VbucketRead
from penstock.wire.columns import batch_of
from penstock.wire.constants import Dialect
from penstock.wire.schema import CHANGE_SCHEMA, Change, Event

_MOST_PARTITIONS = 8
"""Default limit: a Python task costs about 34 ms however little it reads."""

_BATCH_ROWS, _BATCH_BYTES = 8_192, 4 << 20
"""A smaller record batch waits for the next one: a thousand vbuckets with a few changes each come in tiny ones."""

_LOOK_SECONDS, _WATCH_SECONDS = 0.25, 0.02
"""How often an idle query looks at the histories of all vbuckets, and at their high seqnos, at most."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of `format("dcp")`.

    url: connection string, with the connection's own options as its query. start: "beginning" or "now", where a new
    streaming query begins. maxChangesPerTrigger: seqnos of one micro-batch at most, an upper bound on its rows.
    partitions: tasks of one batch at most; as many as the driver has processors, up to 8, if not given. protocol: the
    dialect, "tap", "upr-draft", "upr" or "dcp", if the connection string does not say it; "tap" is for batch reads,
    each of one task, which begins anew behind rollback rows if its connection is cut.
    username and password, or passwordFile, or credentialsFile with both as JSON: who logs in; what is not given is
    looked for in PENSTOCK_USERNAME and PENSTOCK_PASSWORD of the driver's environment. No plan or log shows a password.
    scope, collections, xattrs: as of the connection string. Without scope and collections it is the default collection.
    """

    url: str = DEFAULT_URL
    start: str = "beginning"
    max_changes_per_trigger: int | None = None
    partitions: int = min(os.cpu_count() or 1, _MOST_PARTITIONS)
    dialect: Dialect = Dialect.DCP
    credentials: Credentials | None = None
    scope: str | None = None
    collections: tuple[str, ...] | None = None
    xattrs: bool | None = None

    @property
    def address(self) -> Address:
        """Where the bucket is, with what these options say in place of what the connection string does."""
        address = parse_address(self.url, self.credentials)
        options = address.options
        if self.scope is not None or self.collections is not None:
            options = replace(options, scope=self.scope or "", collections=self.collections or ())
        if self.xattrs is not None:
            options = replace(options, xattrs=self.xattrs)
        return replace(address, options=options)

    @property
    def selection(self) -> Selection | None:
        """The collections that are wanted, if any are named. Raises UsageError for what cannot be together."""
        return _selection(self.address, self.dialect)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Raises UsageError for an unknown name or a value that cannot be."""
        lower = {name.lower(): text for name, text in given.items()}
        known = ("url", "start", "maxChangesPerTrigger", "partitions", "protocol", *_LOGIN, *_CONTENT)
        if unknown := sorted(set(lower) - {name.lower() for name in known}):
            raise UsageError(f"unknown option {unknown[0]!r} of format dcp; known are {', '.join(known)}")
        start = lower.get("start", "beginning")
        if start not in ("beginning", "now"):
            raise UsageError(f"option start is {start!r}, expected 'beginning' or 'now'")
        url = lower.get("url", os.environ.get("PENSTOCK_URL", DEFAULT_URL))
        dialect = parse_address(url).options.protocol
        limit = lower.get("maxchangespertrigger")
        options = cls(
            url=url,
            start=start,
            max_changes_per_trigger=None if limit is None else _positive("maxChangesPerTrigger", limit),
            partitions=_positive("partitions", lower["partitions"]) if "partitions" in lower else cls().partitions,
            dialect=dialect_of(lower["protocol"]) if "protocol" in lower else dialect,
            credentials=_credentials(lower),
            scope=lower.get("scope"),
            collections=collection_names(lower["collections"]) if "collections" in lower else None,
            xattrs=truth_of("xattrs", lower["xattrs"]) if "xattrs" in lower else None,
        )
        _ = options.selection
        return options

    def check_streaming(self) -> None:
        """Raises UsageError for a dialect that a streaming query cannot use."""
        if self.dialect is Dialect.TAP:
            raise UsageError("option protocol is 'tap', but TAP cannot resume; streaming needs upr-draft, upr or dcp")


_LOGIN = ("username", "password", "passwordFile", "credentialsFile")
_CONTENT = ("scope", "collections", "xattrs")


def _selection(address: Address, dialect: Dialect) -> Selection | None:
    selection = Selection(address.options.scope, address.options.collections)
    if selection.is_everything:
        return None
    if dialect is not Dialect.DCP:
        raise UsageError(f"option protocol is {dialect.value!r}, which knows no collections; dcp does")
    return selection


def _credentials(lower: Mapping[str, str]) -> Credentials | None:
    """Return who logs in. lower: options by their names in lower case."""
    given = [name for name in _LOGIN if name.lower() in lower]
    if "credentialsFile" in given:
        if len(given) > 1:
            raise UsageError(f"option credentialsFile says all, expected it without {given[0]}")
        return credentials_file(lower["credentialsfile"])
    if "password" in given and "passwordFile" in given:
        raise UsageError("options password and passwordFile, expected one of them")
    password = password_file(lower["passwordfile"]) if "passwordFile" in given else lower.get("password")
    return credentials_from(lower.get("username"), password, os.environ)


def _positive(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise UsageError(f"option {name} is {text!r}, expected a whole number above 0")
    return int(text)


@dataclass
class ChangePartition(InputPartition):
    """What one task reads, and from where. is_final: nobody plans after this batch, so what is missing is an error."""

    address: Address
    range: VbucketRange
    is_final: bool
    dialect: Dialect = Dialect.DCP

    def __post_init__(self) -> None:
        super().__init__(None)


@dataclass
class DumpPartition(InputPartition):
    """What the one task of a TAP read gives: everything there is on the node."""

    address: Address

    def __post_init__(self) -> None:
        super().__init__(None)


class DcpDataSource(DataSource):
    """Registered as "dcp"."""

    @classmethod
    def name(cls) -> str:
        return "dcp"

    def schema(self) -> StructType:
        return from_arrow_schema(CHANGE_SCHEMA)

    def reader(self, schema: StructType) -> DcpReader:
        return DcpReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DcpStreamReader:
        return DcpStreamReader(self.options)


class _Planner:
    """The planning process's view of the bucket, over a connection made when it is first needed."""

    def __init__(self, address: Address) -> None:
        self._loop = LoopThread("penstock-planner").__enter__()
        self._bucket = Bucket(address)
        self._infos: dict[int, VbucketInfo] = {}
        self._looked_at = 0.0

    def infos(self) -> dict[int, VbucketInfo]:
        self._infos = self._loop.run(self._bucket.vbucket_infos())
        self._looked_at = time.monotonic()
        return self._infos

    def nothing_new(self) -> bool:
        """Tell whether the last `infos` still hold, all but the purge seqnos, at a third of what they cost.

        Without a trigger Spark asks every 10 ms: after less than _LOOK_SECONDS this waits, watching the high seqnos.
        """
        return self._loop.run(self._unchanged())

    async def _unchanged(self) -> bool:
        expected = {vbucket: info.high_seqno for vbucket, info in self._infos.items()}
        while await self._bucket.high_seqnos() == expected:
            left = self._looked_at + _LOOK_SECONDS - time.monotonic()
            if left > 0:
                await asyncio.sleep(min(left, _WATCH_SECONDS))
                continue
            logs = await self._bucket.failover_logs(range(len(expected)))
            self._looked_at = time.monotonic()
            return all(self._infos[vbucket].failover_log == log for vbucket, log in logs.items())
        return False

    def close(self) -> None:
        self._loop.run(self._bucket.close())
        self._loop.__exit__(None, None, None)


class DcpReader(DataSourceReader):
    """Everything the bucket holds when the job is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        if options.start != "beginning":
            raise UsageError("option start is 'now', but a batch read has only what was before; expected 'beginning'")

    def partitions(self) -> list[InputPartition]:
        if self.options.dialect is Dialect.TAP:
            return [DumpPartition(self.options.address)]
        planner = _Planner(self.options.address)
        try:
            infos = planner.infos()
        finally:
            planner.close()
        start = offsets.beginning(len(infos))
        end, _ = offsets.plan(start, infos)
        return _partitions(self.options, start, end, is_final=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition)


class DcpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The changes as they come. Offsets are those of penstock.spark.source.offsets, as JSON.

    given: the options as text. What is wrong with them is told by the first call that Spark makes, not here: what a
    reader raises while it is made, Spark 4.3 loses behind an error of its own.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self._planner: _Planner | None = None
        self._memory = Memory()
        self._initial: dict[str, Any] | None = None
        self._idle_at: dict[str, Any] | None = None

    @cached_property
    def options(self) -> SourceOptions:
        """Raises UsageError for what cannot be, and for a dialect that cannot resume."""
        options = SourceOptions.parse(self._given)
        options.check_streaming()
        return options

    def _connected(self) -> _Planner:
        if self._planner is None:
            self._planner = _Planner(self.options.address)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            infos = self._connected().infos()
            first = offsets.now(infos) if self.options.start == "now" else offsets.beginning(len(infos))
            self._initial = first.to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.options.max_changes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        planner = self._connected()
        if start == self._idle_at and planner.nothing_new():
            return start  # nor can a purge matter to somebody who has everything
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        planned, self._memory = offsets.plan(Offset.from_json(start), planner.infos(), most, self._memory)
        end = planned.to_json()
        self._idle_at = start if end == start else None
        return end

    def prepareForTriggerAvailableNow(self) -> None:
        self._memory = offsets.prepare(self._connected().infos())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return _partitions(self.options, Offset.from_json(start), Offset.from_json(end), is_final=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition)

    def stop(self) -> None:
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()


def _partitions(options: SourceOptions, start: Offset, end: Offset, *, is_final: bool) -> list[InputPartition]:
    ranges = offsets.partitions(start, end, options.partitions)
    address = options.address
    return [ChangePartition(address, part, is_final, options.dialect) for part in ranges]


def read_range(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Give one task's rows: first the rollbacks, then the changes between its starts and ends, batch by batch.

    Raises Error if the history changed meanwhile and no later batch would mend it.
    """
    if isinstance(partition, DumpPartition):
        yield from _joined(changes_at(partition.address, stop="now", protocol=Dialect.TAP))
    if not isinstance(partition, ChangePartition):
        return  # Spark's own empty partition, for a job without any
    reads = partition.range.reads
    if rollbacks := [read.rollback for read in reads if read.rollback is not None]:
        yield batch_of([_rollback_change(row) for row in rollbacks])
    wanted = {read.vbucket: _wanted(read) for read in reads if read.start_seqno < read.end_seqno}
    if not wanted:
        return
    with LoopThread("penstock-task") as loop:
        yield from _joined(loop.iterate(_changes(partition, wanted)))


async def _changes(partition: ChangePartition, wanted: Mapping[int, Wanted]) -> AsyncGenerator[pa.RecordBatch, None]:
    selection = _selection(partition.address, partition.dialect)
    async with (
        Bucket(partition.address) as bucket,
        bucket.open_feed(wanted, dialect=partition.dialect, exact_end=True, selection=selection) as stream,
    ):
        async for batch in stream:
            yield batch
        if partition.is_final and stream.given_up:
            raise Error(f"vbucket {stream.given_up[0]} got another history while it was read; run the job again")


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the same rows in record batches that are worth their way to Spark."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        nbytes += batch.nbytes
        if rows >= _BATCH_ROWS or nbytes >= _BATCH_BYTES:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, rows, nbytes = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _wanted(read: VbucketRead) -> Wanted:
    request = read.request()
    position = Position(
        seqno=request.start_seqno,
        vbuuid=request.vbuuid,
        snap_start=request.snap_start,
        snap_end=request.snap_end,
        history=read.history,
    )
    return Wanted(position=position, end_seqno=read.end_seqno, expect_vbuuid=read.vbuuid, purge_seqno=read.purge_seqno)


def _rollback_change(row: RollbackRow) -> Change:
    return Change(
        vbucket=row.vbucket,
        vbuuid=row.vbuuid,
        seqno=row.seqno,
        event=Event.ROLLBACK,
        history=row.history,
        requested_seqno=row.requested_seqno,
    )
