"""The work of a Spark task: its rollback rows, then the changes between its starts and ends.

A worker knows nothing but its partition. If the history of a vbucket is not the planned one, the worker returns no more
changes of that vbucket. The next plan sees the same history, and rolls back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from penstock.client.blocking import read_changes_at
from penstock.client.connect.address import Address
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.feeds.collection_selection import KnownCollections, StreamContent
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.client.read_ahead import LentItem
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.session_pool import SessionPool
from penstock.errors import Error, NoSuchCollection
from penstock.spark.source.offsets import RollbackRow, VbucketRange, VbucketRead
from penstock.spark.source.shape import Shape
from penstock.spark.source.source_options import make_selection
from penstock.spark.source.worker_connections import get_connections, open_planned_stream
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.run_decoder import make_batch
from penstock.wire.columns.schema import Change, Event


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The size at which a record batch is passed on. A thousand vbuckets with few changes produce tiny batches.

    Attributes:
        rows: the rows that are enough.
        nbytes: the bytes that are enough.
    """

    rows: int
    nbytes: int


_SPARK_SIZE = BatchSize(2_048, 1 << 20)
"""More does not pay: to join batches is to copy them, which costs more than Spark saves."""


@dataclass
class ChangePartition(InputPartition):
    """The work of one task.

    Attributes:
        address: the bucket.
        range: the vbuckets and their seqnos.
        is_final: whether no plan follows this batch, so that missing changes are an error.
        dialect: the dialect of the streams.
        shape: columns and rows of the result.
        node: the only node to connect to, which has all the vbuckets. None: the cluster map of any host names the
            nodes.
        planned: the selected collections when the batch was planned; those that were dropped since have no rows. None:
            the task asks for them.
    """

    address: Address
    range: VbucketRange
    is_final: bool
    dialect: Dialect = Dialect.DCP
    shape: Shape = field(default_factory=Shape)
    node: Endpoint | None = None
    planned: KnownCollections | None = None

    def __post_init__(self) -> None:
        super().__init__(None)


@dataclass
class DumpPartition(InputPartition):
    """The work of the only task of a TAP read: all items of the node.

    Attributes:
        address: the bucket.
        shape: columns and rows of the result.
    """

    address: Address
    shape: Shape = field(default_factory=Shape)

    def __post_init__(self) -> None:
        super().__init__(None)


def read_partition(partition: InputPartition, size: BatchSize = _SPARK_SIZE) -> Generator[pa.RecordBatch, None, None]:
    """Read the rows of a task: first the rollback rows, then the changes, batch by batch.

    Args:
        partition: the partition that Spark passes.
        size: the size of the batches.

    Yields:
        Record batches in the shape of the partition.

    Raises:
        Error: a history changed during the read, and no later batch can repair that.
    """
    if isinstance(partition, DumpPartition):
        values = partition.shape.needs_values
        dumped = read_changes_at(partition.address, stop="now", protocol=Dialect.TAP, values=values)
        joining = _BatchJoiner(partition.shape, size)
        for batch in dumped:
            yield from joining.add(batch, batch.nbytes)
        yield from joining.flush()
    if not isinstance(partition, ChangePartition):
        return  # Spark's own empty partition, for a job without any
    reads = partition.range.reads
    if rollbacks := [read.rollback for read in reads if read.rollback is not None]:
        yield partition.shape.apply(make_batch([_make_rollback_change(row) for row in rollbacks]))
    if ends := [_make_end(read, each) for read in reads for each in read.ended]:
        yield partition.shape.apply(make_batch(ends))
    wanted = {
        read.vbucket: StreamTarget(position=read.start, end_seqno=read.end_seqno, policy=read.policy)
        for read in reads
        if read.start_seqno < read.end_seqno
    }
    if not wanted:
        return
    loop, sessions = get_connections()
    yield from loop.iterate(_stream_changes(partition, wanted, sessions, size))


def _keep_nothing() -> None:
    """Follow the use of a batch: the stream has acknowledged its changes already."""


async def _stream_changes(
    partition: ChangePartition, wanted: Mapping[int, StreamTarget], sessions: SessionPool, size: BatchSize
) -> AsyncGenerator[LentItem[pa.RecordBatch], None]:
    address, shape, dialect = partition.address, partition.shape, partition.dialect
    if partition.node is not None:
        address = replace(address, hosts=tuple(dict.fromkeys((partition.node, *address.hosts))))
    content = StreamContent(
        selection=make_selection(address, dialect),
        xattrs=dialect is Dialect.DCP and address.options.xattrs and shape.needs_xattrs,
        values=shape.needs_values,
        skips_missing=True,
        planned=partition.planned,
    )
    stream = await open_planned_stream(address, dialect, wanted, content, sessions)
    joining = _BatchJoiner(shape, size)  # here already: each step to the other thread costs both of them

    # A node whose manifest is older still sends changes of these collections.
    ended = pa.array({each for read in partition.range.reads for each in read.ended}, pa.int64())
    async with stream:
        while (delivery := await _next_delivery(stream)) is not None:
            rows = delivery.batch
            if len(ended):
                rows = rows.filter(pc.invert(pc.is_in(rows["collection_id"], value_set=ended)))
            for joined in joining.add(rows, delivery.nbytes):
                yield LentItem(joined, _keep_nothing)
        for joined in joining.flush():
            yield LentItem(joined, _keep_nothing)
        if partition.is_final and stream.given_up:
            raise Error(f"vbucket {stream.given_up[0]} got another history while it was read; run the job again")


async def _next_delivery(stream: ChangeStream) -> Delivery | None:
    """Return the next delivery; None at the end, and if the bucket has none of the selected collections now."""
    with suppress(NoSuchCollection):
        return await stream.next_delivery()
    return None


class _BatchJoiner:
    """Joins the batches of a shape until they are large enough to send to Spark."""

    def __init__(self, shape: Shape, size: BatchSize) -> None:
        self._shape = shape
        self._size = size
        self._held: list[pa.RecordBatch] = []
        self._rows = self._nbytes = 0

    def add(self, batch: pa.RecordBatch, nbytes: int) -> list[pa.RecordBatch]:
        """Return the joined batch if it is large enough, otherwise an empty list.

        Args:
            batch: the next batch.
            nbytes: its approximate size, which the caller knows; asking the batch takes long.
        """
        shaped = self._shape.apply(batch)
        self._held.append(shaped)
        self._rows += shaped.num_rows
        self._nbytes += nbytes
        return self.flush() if self._rows >= self._size.rows or self._nbytes >= self._size.nbytes else []

    def flush(self) -> list[pa.RecordBatch]:
        """Return the rows that are left as one batch; an empty list if there are none."""
        held, self._held, self._rows, self._nbytes = self._held, [], 0, 0
        return held if len(held) < 2 else [pa.concat_batches(held)]


def _make_end(read: VbucketRead, collection_id: int) -> Change:
    """Return the event of a collection's end, which the streams of a selection do not have between two batches.

    The collection ended at the first seqno of the read or later, and no later rows of it are read. The snapshot has a
    further seqno, so that the row alone does not count as a consistent state.
    """
    return Change(
        vbucket=read.vbucket,
        vbuuid=read.vbuuid,
        seqno=read.start_seqno + 1,
        event=Event.END_COLLECTION,
        collection_id=collection_id,
        history=read.history,
        snapshot_start=0,
        snapshot_end=read.start_seqno + 2,
    )


def _make_rollback_change(row: RollbackRow) -> Change:
    return Change(
        vbucket=row.vbucket,
        vbuuid=row.vbuuid,
        seqno=row.seqno,
        event=Event.ROLLBACK,
        history=row.history,
        requested_seqno=row.requested_seqno,
    )
