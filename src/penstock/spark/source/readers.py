"""Spark's view of reading a bucket: what is planned, and in which parts.

All decisions are in the modules offsets, ranges and pushdown; this is the edge. Spark calls latestOffset and partitions
in one process that lives as long as the query, and read in workers that know nothing but their partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import NOBODY, ClusterMap
from penstock.client.connect.cluster_map import Place as NodePlace
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import Error
from penstock.spark.source import offsets
from penstock.spark.source.offsets import Memory, Offset, Setback, VbucketRange, VbucketRead
from penstock.spark.source.partition_reader import ChangePartition, DumpPartition, read_range
from penstock.spark.source.planner import Planner
from penstock.spark.source.pushdown import Pushed, narrowed, push
from penstock.spark.source.ranges import cut
from penstock.spark.source.read_positions import LATEST, Place, Positions
from penstock.spark.source.runs import join
from penstock.spark.source.shape import Shape
from penstock.spark.source.source_options import SourceOptions
from penstock.spark.source.source_schema import shape_of
from penstock.wire.codec.constants import Dialect

__all__ = ["DcpReader", "DcpStreamReader", "FilteringReader", "latest_offsets"]


class DcpReader(DataSourceReader):
    """What the bucket holds between two positions when the job is planned. Raises UsageError for wrong options."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_batch()
        self.options = options
        self.shape = shape_of(options, schema)
        self.pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        shape = replace(self.shape, filters=self.pushed.filters)
        with closing(Planner(self.options.address, self.options.vbuckets)) as planner:
            planner.check_dialect(self.options.dialect)
            if self.options.dialect is Dialect.TAP:
                return [DumpPartition(self.options.address, shape)]
            address, cluster = self._narrowed(planner), planner.cluster
            infos = planner.infos(self.pushed.vbuckets_of(planner.vbuckets))
        start, end = self._between(infos, cluster.vbuckets)
        _check(self.options, offsets.setbacks(start, end, infos))
        reads = narrowed(offsets.reads(start, end), self.pushed, infos)
        return _partitions(self.options, address, shape, reads, cluster, is_final=True)

    def _narrowed(self, planner: Planner) -> Address:
        """Return the address with the collections that filters leave."""
        address, asked = self.options.address, self.options.selection
        if asked is None or not self.pushed.is_of_collections or (known := planner.collections()) is None:
            return address
        wanted = self.pushed.selection(asked, known)
        return replace(address, options=replace(address.options, scope=wanted.scope, collections=wanted.collections))

    def _between(self, infos: Mapping[int, VbucketInfo], count: int) -> tuple[Offset, Offset]:
        start = _offset_of(self.options.starting_offsets, infos, count)
        if self.options.ending_offsets == LATEST:
            return start, offsets.plan(replace(start, pinned=True), infos)[0]
        return start, offsets.plan_until(start, _offset_of(self.options.ending_offsets, infos, count), infos)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition)


class FilteringReader(DcpReader):
    """The same, taking what filters it can from Spark.

    A class of its own: Spark refuses every read by a reader with pushFilters while its setting for that is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.pushed, left = push(filters, self.shape.schema)
        return left


class DcpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The changes as they come. Offsets are those of penstock.spark.source.offsets, as JSON.

    given: the options as text. What is wrong with them is told by the first call that Spark makes, not here: what a
    reader raises while it is made, Spark 4.3 loses behind an error of its own.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema
        self._planner: Planner | None = None
        self._memory = Memory()
        self._initial: dict[str, Any] | None = None
        self._idle_at: dict[str, Any] | None = None
        self._planned = self._before = _NONE

    @cached_property
    def options(self) -> SourceOptions:
        """Raises UsageError for what cannot be, and for what a stream cannot have."""
        options = SourceOptions.parse(self._given)
        options.check_streaming()
        return options

    @cached_property
    def _shape(self) -> Shape:
        return shape_of(self.options, self._schema)

    def _connected(self) -> Planner:
        if self._planner is None:
            with ExitStack() as stack:
                planner = stack.enter_context(closing(Planner(self.options.address, self.options.vbuckets)))
                planner.check_dialect(self.options.dialect)
                stack.pop_all()  # it is good for use, and closed by `stop`
            self._planner = planner
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            _ = self._shape  # whatever is wrong with it is better told now
            planner = self._connected()
            infos = planner.infos()
            self._initial = _offset_of(self.options.starting_offsets, infos, planner.cluster.vbuckets).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        if (most := self.options.max_changes_per_trigger) is not None:
            return ReadMaxRows(most)  # and no more bytes than that option says: Python cannot name both
        if (most := self.options.max_bytes_per_trigger) is not None:
            return ReadMaxBytes(most)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        planner = self._connected()
        if start == self._idle_at and planner.nothing_new():
            return start  # nor can a purge matter to somebody who has everything
        previous = self._read(start)
        infos = planner.infos(settled=offsets.settled(previous, planner.seen, self._memory))
        offsets.check_size(previous, planner.cluster.vbuckets)
        planned, memory = offsets.plan(previous, infos, self._most(limit), self._memory)
        _check(self.options, offsets.setbacks(previous, planned, infos))
        end = planned.to_json()
        self._planned, self._before, self._memory = (end, planned), (start, previous), memory
        self._idle_at = start if end == start else None
        return end

    def _read(self, said: dict[str, Any]) -> Offset:
        """Return the offset that Spark gives; to read it once more costs as much as to plan."""
        for known, offset in (self._planned, self._before):
            if known == said:
                return offset
        return Offset.from_json(said)

    def _most(self, limit: ReadLimit) -> int | None:
        """Return how many seqnos a batch may have."""
        if isinstance(limit, ReadAllAvailable):
            return None
        limits = [limit.max_rows] if isinstance(limit, ReadMaxRows) else []
        if (nbytes := self.options.max_bytes_per_trigger) is not None:
            limits.append(max(1, nbytes // self._connected().bytes_per_seqno()))
        return min(limits, default=None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the high seqnos that the last plan saw, and how many seqnos behind them its end is."""
        if self._planner is None or self._planned is _NONE:
            return None
        seen, planned = self._planner.seen, self._planned[1].vbuckets
        ends = [seen[vb].high_seqno if vb in seen else each.seqno for vb, each in enumerate(planned)]
        lag = sum(max(0, end - each.seqno) for end, each in zip(ends, planned, strict=True))
        return {"seqno": join(map(str, ends)), "lag": lag}

    def prepareForTriggerAvailableNow(self) -> None:
        self._memory = offsets.prepare(self._connected().infos())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        reads = offsets.reads(self._read(start), self._read(end))
        _check(self.options, [_setback(read) for read in reads if read.rollback is not None])
        options = self.options
        return _partitions(options, options.address, self._shape, reads, self._connected().cluster, is_final=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition)

    def stop(self) -> None:
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()


_NONE: tuple[dict[str, Any], Offset] = ({}, Offset(()))
"""No offset that Spark knows, and what it says."""


def latest_offsets(given: Mapping[str, str]) -> str:
    """Return where a bucket's changes end now, as JSON for startingOffsets and endingOffsets. given: source options.

    It is the end of a batch that begins at the beginning: a read from there that ends here, and a stream that starts
    here, have all changes, each once.
    """
    options = SourceOptions.parse(given)
    options.check_streaming()
    with closing(Planner(options.address, options.vbuckets)) as planner:
        planner.check_dialect(options.dialect)
        infos = planner.infos()
        end, _ = offsets.plan(offsets.beginning(planner.cluster.vbuckets), infos)
    return json.dumps(end.to_json())


def _offset_of(place: Place, infos: Mapping[int, VbucketInfo], count: int) -> Offset:
    if isinstance(place, Offset):
        offsets.check_size(place, count)
        return place
    if isinstance(place, Positions):
        return place.offset(count)
    return offsets.now(infos, count) if place == LATEST else offsets.beginning(count)


def _check(options: SourceOptions, setbacks: Sequence[Setback]) -> None:
    """Raises Error for what an option says must end the query."""
    for each in setbacks:
        if each.by_purge and options.fail_on_data_loss:
            raise Error(
                f"vbucket {each.vbucket}: deletions behind seqno {each.seqno} were purged before they were read, "
                "and option failOnDataLoss is true"
            )
    if setbacks and options.rollback == "fail":
        first = setbacks[0]
        raise Error(
            f"vbucket {first.vbucket} rolled back from seqno {first.seqno} to {first.to}, and option rollback is 'fail'"
        )


def _setback(read: VbucketRead) -> Setback:
    assert read.rollback is not None
    return Setback(read.vbucket, read.rollback.requested_seqno, read.rollback.seqno, by_purge=False)


def _partitions(
    options: SourceOptions,
    address: Address,
    shape: Shape,
    reads: Sequence[VbucketRead],
    cluster: ClusterMap,
    *,
    is_final: bool,
) -> list[InputPartition]:
    ranges = cut(reads, options.max_partitions, options.min_partitions, cluster.owners)
    return [ChangePartition(address, each, is_final, options.dialect, shape, _place(each, cluster)) for each in ranges]


def _place(part: VbucketRange, cluster: ClusterMap) -> NodePlace | None:
    """Return the node to be connected to; None where it is the only one, or there is none for now."""
    return None if part.owner == NOBODY or len(cluster.places) == 1 else cluster.places[part.owner]
