"""What a Spark worker does with one partition: rollback rows, then the changes between its starts and ends.

A worker knows nothing but its partition. One that finds another history than the planned one gives nothing more for
that vbucket: the next plan sees it too, and rolls back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.client.blocking import changes_at
from penstock.client.connect.address import Address
from penstock.client.connect.client_session import stream_name
from penstock.client.connect.cluster_map import Place
from penstock.client.connect.handshake import Purpose
from penstock.client.feeds.feed import EndRule, Feed, StreamTarget
from penstock.client.feeds.selection import StreamContent
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.session_pool import SessionPool
from penstock.errors import Error
from penstock.spark.source.offsets import RollbackRow, VbucketRange
from penstock.spark.source.shape import Shape
from penstock.spark.source.source_options import selection_of
from penstock.spark.source.worker_connections import kept
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.run_decoder import batch_of
from penstock.wire.columns.schema import Change, Event

_BATCH_ROWS, _BATCH_BYTES = 2_048, 1 << 20
"""A smaller record batch waits for the next one: a thousand vbuckets with a few changes each come in tiny ones. To join
them is to copy them, which costs more than Spark saves by larger ones."""


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
        joining = _Joining(partition.shape)
        for batch in dumped:
            yield from joining.add(batch, batch.nbytes)
        yield from joining.rest()
    if not isinstance(partition, ChangePartition):
        return  # Spark's own empty partition, for a job without any
    reads = partition.range.reads
    if rollbacks := [read.rollback for read in reads if read.rollback is not None]:
        yield partition.shape.apply(batch_of([_rollback_change(row) for row in rollbacks]))
    wanted = {
        read.vbucket: StreamTarget(position=read.start, end_seqno=read.end_seqno, policy=read.policy)
        for read in reads
        if read.start_seqno < read.end_seqno
    }
    if not wanted:
        return
    loop, sessions = kept()
    yield from loop.iterate(_changes(partition, wanted, sessions))


async def _changes(
    partition: ChangePartition, wanted: Mapping[int, StreamTarget], sessions: SessionPool
) -> AsyncGenerator[pa.RecordBatch, None]:
    address, shape, dialect = partition.address, partition.shape, partition.dialect
    if partition.place is not None:
        address = replace(address, hosts=tuple(dict.fromkeys((partition.place, *address.hosts))))
    content = StreamContent(
        selection=selection_of(address, dialect),
        xattrs=dialect is Dialect.DCP and address.options.xattrs and shape.needs_xattrs,
        values=shape.needs_values,
    )
    purpose = Purpose(
        stream_name=stream_name(),
        dialect=dialect,
        collections=content.selection is not None,
        xattrs=content.xattrs,
        values=content.values,
    )
    feed = Feed(
        await sessions.vbuckets(address, purpose),
        wanted,
        window=address.options.flow_control_bytes,
        dialect=dialect,
        end_rule=EndRule.EXACT,
        content=content,
    )
    joining = _Joining(shape)  # here already: each step to the other thread costs both of them
    async with ChangeStream(address, feed, pool=sessions) as stream:
        while (delivery := await stream.next_delivery()) is not None:
            for joined in joining.add(delivery.batch, delivery.nbytes):
                yield joined
        for joined in joining.rest():
            yield joined
        if partition.is_final and stream.given_up:
            raise Error(f"vbucket {stream.given_up[0]} got another history while it was read; run the job again")


class _Joining:
    """Makes of a shape's rows record batches that are worth their way to Spark."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._held: list[pa.RecordBatch] = []
        self._rows = self._nbytes = 0

    def add(self, batch: pa.RecordBatch, nbytes: int) -> list[pa.RecordBatch]:
        """Return what is large enough: one batch, or none. nbytes: about how many; to ask the batch takes long."""
        shaped = self._shape.apply(batch)
        self._held.append(shaped)
        self._rows += shaped.num_rows
        self._nbytes += nbytes
        return self.rest() if self._rows >= _BATCH_ROWS or self._nbytes >= _BATCH_BYTES else []

    def rest(self) -> list[pa.RecordBatch]:
        """Return all that is left as one batch, if there is any."""
        held, self._held, self._rows, self._nbytes = self._held, [], 0, 0
        return held if len(held) < 2 else [pa.concat_batches(held)]


def _rollback_change(row: RollbackRow) -> Change:
    return Change(
        vbucket=row.vbucket,
        vbuuid=row.vbuuid,
        seqno=row.seqno,
        event=Event.ROLLBACK,
        history=row.history,
        requested_seqno=row.requested_seqno,
    )
