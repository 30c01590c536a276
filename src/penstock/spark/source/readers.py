"""Spark's view of reading a bucket: what is planned, and in which parts.

All decisions are in the module offsets; this is the edge. Spark calls latestOffset and partitions in one process that
lives as long as the query, and read in workers that know nothing but their partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import UsageError
from penstock.spark.source import offsets
from penstock.spark.source.offsets import Memory, Offset
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planner import Planner
from penstock.spark.source.task import ChangePartition, DumpPartition, read_range
from penstock.wire.constants import Dialect


class DcpReader(DataSourceReader):
    """Everything the bucket holds when the job is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        if options.start != "beginning":
            raise UsageError("option start is 'now', but a batch read has only what was before; expected 'beginning'")

    def partitions(self) -> list[InputPartition]:
        if self.options.dialect is Dialect.TAP:
            return [DumpPartition(self.options.address)]
        planner = Planner(self.options.address)
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
        self._planner: Planner | None = None
        self._memory = Memory()
        self._initial: dict[str, Any] | None = None
        self._idle_at: dict[str, Any] | None = None

    @cached_property
    def options(self) -> SourceOptions:
        """Raises UsageError for what cannot be, and for a dialect that cannot resume."""
        options = SourceOptions.parse(self._given)
        options.check_streaming()
        return options

    def _connected(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.options.address)
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
