"""What a Spark worker does with one partition: rollback rows, then the changes between its starts and ends.

A worker knows nothing but its partition. One that finds another history than the planned one gives nothing more for
that vbucket: the next plan sees it too, and rolls back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.client.address import Address
from penstock.client.blocking import changes_at
from penstock.client.cluster_map import Place
from penstock.client.feed import Feed, Wanted
from penstock.client.kept import KeptSessions
from penstock.client.position import Position
from penstock.client.session import Purpose, stream_name
from penstock.client.stream import ChangeStream
from penstock.errors import Error
from penstock.spark.source.connections import kept
from penstock.spark.source.offsets import RollbackRow, VbucketRange, VbucketRead
from penstock.spark.source.options import selection_of
from penstock.spark.source.shape import Shape
from penstock.wire.columns import batch_of
from penstock.wire.constants import Dialect
from penstock.wire.schema import Change, Event

_BATCH_ROWS, _BATCH_BYTES = 8_192, 4 << 20
"""A smaller record batch waits for the next one: a thousand vbuckets with a few changes each come in tiny ones."""


@dataclass
class ChangePartition(InputPartition):
    """What one task reads, from where, and what it gives of it.

    is_final: nobody plans after this batch, so what is missing is an error. place: the node that has all the vbuckets,
    which is then the only one connected to; None: where they are is found out from any of the address's hosts.
    """

    address: Address
    range: VbucketRange
    is_final: bool
    dialect: Dialect = Dialect.DCP
    shape: Shape = field(default_factory=Shape)
    place: Place | None = None

    def __post_init__(self) -> None:
        super().__init__(None)


@dataclass
class DumpPartition(InputPartition):
    """What the one task of a TAP read gives: everything there is on the node."""

    address: Address
    shape: Shape = field(default_factory=Shape)

    def __post_init__(self) -> None:
        super().__init__(None)


def read_range(partition: InputPartition) -> Generator[pa.RecordBatch, None, None]:
    """Give one task's rows: first the rollbacks, then the changes between its starts and ends, batch by batch.

    Raises Error if the history changed meanwhile and no later batch would mend it.
    """
    if isinstance(partition, DumpPartition):
        values = partition.shape.needs_values
        dumped = changes_at(partition.address, stop="now", protocol=Dialect.TAP, values=values)
        yield from _joined(dumped, partition.shape)
    if not isinstance(partition, ChangePartition):
        return  # Spark's own empty partition, for a job without any
    reads = partition.range.reads
    if rollbacks := [read.rollback for read in reads if read.rollback is not None]:
        yield partition.shape.apply(batch_of([_rollback_change(row) for row in rollbacks]))
    wanted = {read.vbucket: _wanted(read) for read in reads if read.start_seqno < read.end_seqno}
    if not wanted:
        return
    loop, sessions = kept()
    yield from _joined(loop.iterate(_changes(partition, wanted, sessions)), partition.shape)


async def _changes(
    partition: ChangePartition, wanted: Mapping[int, Wanted], sessions: KeptSessions
) -> AsyncGenerator[pa.RecordBatch, None]:
    address, shape, dialect = partition.address, partition.shape, partition.dialect
    if partition.place is not None:
        address = replace(address, hosts=tuple(dict.fromkeys((partition.place, *address.hosts))))
    selection = selection_of(address, dialect)
    purpose = Purpose(
        stream_name=stream_name(),
        dialect=dialect,
        collections=selection is not None,
        xattrs=dialect is Dialect.DCP and address.options.xattrs and shape.needs_xattrs,
        values=shape.needs_values,
    )
    feed = Feed(
        await sessions.vbuckets(address, purpose),
        wanted,
        window=address.options.flow_control_bytes,
        dialect=dialect,
        exact_end=True,
        selection=selection,
        xattrs=purpose.xattrs,
        values=purpose.values,
    )
    async with ChangeStream(address, feed, kept=sessions) as stream:
        async for batch in stream:
            yield batch
        if partition.is_final and stream.given_up:
            raise Error(f"vbucket {stream.given_up[0]} got another history while it was read; run the job again")


def _joined(batches: Iterable[pa.RecordBatch], shape: Shape) -> Iterator[pa.RecordBatch]:
    """Give what is wanted of the rows, in record batches that are worth their way to Spark."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in map(shape.apply, batches):
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
