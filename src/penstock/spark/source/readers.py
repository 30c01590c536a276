"""Spark's readers of a bucket: they plan a read and divide it into partitions.

All decisions are in the modules batch_planning, offsets, ranges and pushdown. Spark calls latestOffset and partitions
in one process, which lives as long as the query. It calls read in workers, which know nothing but their partition.
"""

from __future__ import annotations

import json
import time
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
from penstock.client.connect.cluster_map import NO_NODE, ClusterMap
from penstock.client.discovery.endpoint import Endpoint as NodePlace
from penstock.client.feeds.collection_selection import KnownCollections
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import Error
from penstock.spark.source import batch_planning, offsets
from penstock.spark.source.batch_planning import PlanMemory, PlannedRollback
from penstock.spark.source.offsets import (
    Offset,
    VbucketRange,
    VbucketRead,
)
from penstock.spark.source.partition_reader import ChangePartition, DumpPartition, read_partition
from penstock.spark.source.planner import Planner
from penstock.spark.source.pushdown import PushedFilters, narrow_reads, push_filters
from penstock.spark.source.ranges import divide_reads
from penstock.spark.source.read_positions import LATEST, ResnapshotRequests, check_offset_bucket, resolve_position
from penstock.spark.source.run_lengths import encode_runs
from penstock.spark.source.shape import Shape
from penstock.spark.source.source_options import SourceOptions
from penstock.spark.source.source_schema import make_read_shape
from penstock.wire.codec.constants import Dialect


class DcpReader(DataSourceReader):
    """A batch read: the changes between two positions when the job is planned.

    Attributes:
        options: the options of the read.
        shape: its columns and rows.
        pushed: filters that the read applies in place of Spark.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_batch()
        self.options = options
        self.shape = make_read_shape(options, schema)
        self.pushed = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the read; called once by Spark."""
        shape = replace(self.shape, filters=self.pushed.filters)
        with closing(Planner(self.options.address, self.options.vbuckets)) as planner:
            planner.check_dialect(self.options.dialect)
            if self.options.dialect is Dialect.TAP:
                return [DumpPartition(self.options.address, shape)]
            address, planned = self._choose_collections(planner)
            cluster = planner.cluster
            infos = planner.read_infos(self.pushed.select_vbuckets(planner.vbuckets))
        start, end = self._plan_offsets(infos, cluster)
        _check_rollbacks(self.options, batch_planning.find_rollbacks(start, end, infos))
        reads = offsets.derive_reads(start, end)
        reads = narrow_reads(reads, self.pushed, infos, shows_snapshots=shape.shows_snapshots)
        return _make_partitions(self.options, address, shape, reads, cluster, is_final=True, planned=planned)

    def _choose_collections(self, planner: Planner) -> tuple[Address, KnownCollections | None]:
        """Return the address with the collections that the filters can match, and their present ids.

        Raises NoSuchCollection if the bucket does not have a selected scope or collection.
        """
        address, asked = self.options.address, self.options.selection
        if asked is None or (asked.is_everything and not self.pushed.has_collection_filters):
            return address, None
        known = planner.read_collections()
        if known is None:
            return address, None
        asked.check_names(known)
        wanted = self.pushed.narrow_selection(asked, known)
        narrowed = replace(address.options, scope=wanted.scope, collections=wanted.collections)
        return replace(address, options=narrowed), wanted.keep_selected(known)

    def _plan_offsets(self, infos: Mapping[int, VbucketInfo], cluster: ClusterMap) -> tuple[Offset, Offset]:
        """Return start and end of the read. Raises BucketRecreated if one of them is a position in another bucket."""
        options, count = self.options, cluster.vbuckets
        start, end = (
            resolve_position(each, infos, count) for each in (options.starting_offsets, options.ending_offsets)
        )
        for each in (start, end):
            check_offset_bucket(each, options.address, cluster.uuid, count)
        if options.ending_offsets == LATEST:
            return start, batch_planning.plan_batch(replace(start, pinned=True), infos)[0]
        return start, batch_planning.plan_batch_until(start, end, infos)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition; called in a worker."""
        return read_partition(partition)


class FilteringReader(DcpReader):
    """A batch read that applies Spark's filters where it can.

    It is a class of its own because Spark 4.3 refuses every reader with pushFilters while
    spark.sql.python.filterPushdown.enabled is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that the read can apply.

        Args:
            filters: Spark's filters.

        Returns:
            The filters that Spark must apply itself.
        """
        self.pushed, left = push_filters(filters, self.shape.schema)
        return left


class DcpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Its offsets are those of penstock.spark.source.offsets, as JSON.

    The first call by Spark checks the options, not the constructor: Spark 4.3 hides an exception of a constructor
    behind another error.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema
        self._planner: Planner | None = None
        self._memory = PlanMemory()
        self._requests: ResnapshotRequests | None = None
        self._initial: dict[str, Any] | None = None
        self._idle_at: dict[str, Any] | None = None
        self._idle_since = 0.0
        self._planned = self._previous = _NO_OFFSET

    @cached_property
    def options(self) -> SourceOptions:
        """The options of the read.

        Raises:
            UsageError: an option is invalid, or a stream cannot have it.
        """
        options = SourceOptions.parse(self._given)
        options.check_streaming()
        return options

    @cached_property
    def _shape(self) -> Shape:
        return make_read_shape(self.options, self._schema)

    def _connect(self) -> Planner:
        if self._planner is None:
            with ExitStack() as stack:
                planner = stack.enter_context(closing(Planner(self.options.address, self.options.vbuckets)))
                planner.check_dialect(self.options.dialect)
                stack.pop_all()  # the planner is usable now, and `stop` closes it
            self._planner = planner
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query; the same at each call."""
        if self._initial is None:
            _ = self._shape  # raise an error of the schema before the first request
            planner = self._connect()
            infos = planner.read_infos()
            self._initial = resolve_position(self.options.starting_offsets, infos, planner.cluster.vbuckets).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch, from the options."""
        # Spark's Python API cannot combine limits, so _limit_rows applies the limit of bytes too.
        if (most := self.options.max_changes_per_trigger) is not None:
            return ReadMaxRows(most)
        if (most := self.options.max_bytes_per_trigger) is not None:
            return ReadMaxBytes(most)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there are no new changes."""
        planner = self._connect()
        previous = self._decode_offset(start)
        again = self._find_requested(previous)
        if start == self._idle_at and not again and planner.is_unchanged():
            # A purge cannot matter to a reader that has all changes.
            is_long = time.monotonic() - self._idle_since >= _PROOF_SECONDS
            return self._store_proofs(start, previous) if is_long else start
        settled = batch_planning.find_settled_vbuckets(previous, planner.last_infos, self._memory)
        infos = planner.read_infos(settled_vbuckets=settled - again.keys())
        cluster = planner.cluster
        check_offset_bucket(previous, self.options.address, cluster.uuid, cluster.vbuckets)
        ids = self._find_collection_ids(previous)
        planned, memory = batch_planning.plan_batch(
            previous,
            infos,
            self._limit_rows(limit),
            self._memory,
            again,
            counter=planner.get_row_counter(self.options.dialect, ids),
        )
        if planned is not previous or offsets.find_ended_collections(previous, ids):
            planned = replace(planned, bucket_uuid=cluster.uuid or previous.bucket_uuid, collection_ids=ids)
        setbacks = batch_planning.find_rollbacks(previous, planned, infos)
        _check_rollbacks(self.options, [each for each in setbacks if each.vbucket not in again])
        end = planned.to_json()
        self._planned, self._previous, self._memory = (end, planned), (start, previous), memory
        if end == start and self._idle_at != start:
            self._idle_since = time.monotonic()
        self._idle_at = start if end == start else None
        return end

    def _store_proofs(self, start: dict[str, Any], previous: Offset) -> dict[str, Any]:
        """Return the end of a batch without rows that stores proofs; `start` itself if the offset has all of them."""
        stored, self._memory = batch_planning.store_proofs(previous, self._memory)
        if stored is previous:
            return start
        end = self._idle_at = stored.to_json()
        self._planned, self._previous = (end, stored), (start, previous)
        return end

    def _find_collection_ids(self, previous: Offset) -> tuple[int, ...] | None:
        """Return the present ids of the selected collections, ascending; None without a selection.

        They must be read after the seqnos: then they include every collection with changes up to these seqnos. Raises
        NoSuchCollection if the bucket has never had one of the collections during this query.
        """
        selection = self.options.selection
        if selection is None or selection.is_everything:
            return None
        known = self._connect().read_collections()
        if known is None:
            return None
        if previous.collection_ids is None:
            selection.check_names(known)
        return tuple(sorted(selection.find_ids(known)))

    def _find_requested(self, previous: Offset) -> dict[int, int]:
        """Return the vbuckets of the read to read again, with their history."""
        if self._requests is None:
            self._requests = ResnapshotRequests(self.options.resnapshot_file)
        found = self._requests.read()
        chosen = batch_planning.find_requested(previous, found) & {*self._connect().vbuckets} if found else set()
        return {vbucket: found[vbucket] for vbucket in chosen}

    def _decode_offset(self, value: dict[str, Any]) -> Offset:
        """Return the offset of its JSON.

        The last two offsets are cached, because decoding takes as long as planning.
        """
        for known, offset in (self._planned, self._previous):
            if known == value:
                return offset
        return Offset.from_json(value)

    def _limit_rows(self, limit: ReadLimit) -> int | None:
        """Return the most rows of a batch; None for no limit."""
        if isinstance(limit, ReadAllAvailable):
            return None
        limits = [limit.max_rows] if isinstance(limit, ReadMaxRows) else []
        if (nbytes := self.options.max_bytes_per_trigger) is not None:
            limits.append(max(1, nbytes // self._connect().estimate_bytes_per_change()))
        return min(limits, default=None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Report the high seqnos of the last plan to Spark's progress.

        Returns:
            The high seqnos, and as `lag` the seqnos between the plan's end and them. None before the first plan.
        """
        if self._planner is None or self._planned is _NO_OFFSET:
            return None
        seen, planned = self._planner.last_infos, self._planned[1].vbuckets
        ends = [seen[vb].high_seqno if vb in seen else each.seqno for vb, each in enumerate(planned)]
        lag = sum(max(0, end - each.seqno) for end, each in zip(ends, planned, strict=True))
        return {"seqno": encode_runs(map(str, ends)), "lag": lag}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of an AvailableNow run at the present high seqnos."""
        self._memory = batch_planning.prepare_available_now(self._connect().read_infos())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch."""
        previous = self._decode_offset(start)
        reads = offsets.derive_reads(previous, self._decode_offset(end))
        again = self._find_requested(previous)
        setbacks = [read for read in reads if read.rollback is not None and read.vbucket not in again]
        _check_rollbacks(self.options, [_describe_rollback(read) for read in setbacks])
        options = self.options
        return _make_partitions(options, options.address, self._shape, reads, self._connect().cluster, is_final=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition; called in a worker."""
        return read_partition(partition)

    def stop(self) -> None:
        """Close the connections of planning."""
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()


_PROOF_SECONDS = 5.0
"""An idle query stores its proofs after so long: most queries that are idle for a moment store them with new rows."""

_NO_OFFSET: tuple[dict[str, Any], Offset] = ({}, Offset(()))
"""An empty cache entry: JSON that Spark never passes, and its offset."""


def latest_offsets(given: Mapping[str, str]) -> str:
    """Return the current end of a bucket as JSON, for startingOffsets and endingOffsets.

    It is the end of a batch that starts at the first change. A read up to this end and a stream from it together return
    each change once.

    Args:
        given: options of a read, as text.

    Returns:
        The offsets of all vbuckets.
    """
    options = SourceOptions.parse(given)
    options.check_streaming()
    with closing(Planner(options.address, options.vbuckets)) as planner:
        planner.check_dialect(options.dialect)
        infos = planner.read_infos()
        cluster = planner.cluster
        end, _ = batch_planning.plan_batch(offsets.make_first_offset(cluster.vbuckets), infos)
    return json.dumps(replace(end, bucket_uuid=cluster.uuid).to_json())


def _check_rollbacks(options: SourceOptions, setbacks: Sequence[PlannedRollback]) -> None:
    """Check that no rollback ends the query.

    Raises:
        Error: an option ends the query at this rollback.
    """
    for each in setbacks:
        if each.by_purge and options.fail_on_data_loss:
            raise Error(
                f"vbucket {each.vbucket}: deletions behind seqno {each.seqno} were purged before they were read, "
                "and option failOnDataLoss is true"
            )
    if setbacks and options.rollback == "fail":
        first = setbacks[0]
        raise Error(
            f"vbucket {first.vbucket} rolled back from seqno {first.seqno} to {first.target_seqno}, "
            "and option rollback is 'fail'"
        )


def _describe_rollback(read: VbucketRead) -> PlannedRollback:
    """Return the rollback that a read begins with."""
    assert read.rollback is not None
    return PlannedRollback(read.vbucket, read.rollback.requested_seqno, read.rollback.seqno, by_purge=False)


def _make_partitions(
    options: SourceOptions,
    address: Address,
    shape: Shape,
    reads: Sequence[VbucketRead],
    cluster: ClusterMap,
    *,
    is_final: bool,
    planned: KnownCollections | None = None,
) -> list[InputPartition]:
    ranges = divide_reads(reads, options.max_partitions, options.min_partitions, cluster.owners)
    return [
        ChangePartition(address, each, is_final, options.dialect, shape, _find_node(each, cluster), planned)
        for each in ranges
    ]


def _find_node(part: VbucketRange, cluster: ClusterMap) -> NodePlace | None:
    """Return the node to connect to; None if the bucket has one node only, or if no node serves the vbuckets."""
    return None if part.owner == NO_NODE or len(cluster.endpoints) == 1 else cluster.endpoints[part.owner]
