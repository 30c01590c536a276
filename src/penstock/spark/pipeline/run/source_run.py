"""One source's part of a run: its query, what it has written, and what is kept behind that."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import Error
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import Source
from penstock.spark.pipeline.run.changelog_rows import prepared
from penstock.spark.pipeline.run.dependent_runner import DependentTask
from penstock.spark.pipeline.run.value_fields import Fields
from penstock.spark.pipeline.state.changelog_meter import METERS, last_rollback
from penstock.spark.pipeline.state.lag import behind
from penstock.spark.pipeline.state.run_progress import SourceProgress
from penstock.spark.source.offsets import Offset

__all__ = ["SourceRun"]

LAG_SECONDS = 0.5
"""How long a report waits for the node."""


class SourceRun:
    """The tables of one source while a run keeps them.

    vbuckets: how many the bucket has. ask: asks the node for the high seqno of each. fields: those of values, where
    the source says them.
    """

    def __init__(
        self,
        source: Source,
        lake: LakeDirectory,
        vbuckets: int,
        ask: Callable[[], Future[dict[int, int]]],
        *,
        tasks: Iterable[DependentTask],
        table_format: str = "delta",
        fields: Fields | None = None,
    ) -> None:
        self.source = source
        self.lake = lake
        self.tasks = tuple(tasks)
        self.query: StreamingQuery | None = None
        self._vbuckets = vbuckets
        self._fields = fields
        self._chosen = source.options().vbuckets
        self._ask_high_seqnos = ask
        self._high_seqnos: Future[dict[int, int]] | None = None
        self._table_format = table_format
        self._meter = METERS[table_format](lake)
        self._meter.last_rollback = last_rollback(lake)
        self._last_at = time.monotonic()
        self.progress = SourceProgress(source.name)
        self.look()

    def start(self, spark: SparkSession, *, available_now: bool) -> StreamingQuery:
        """Start the query from the bucket to the changelog."""
        frame = spark.readStream.format("dcp").options(**self.source.given_options()).load()
        sink = prepared(frame, self.source, None if self._fields is None else self._fields.ddl).writeStream.format(
            "penstock-changelog"
        )
        sink = sink.option("path", str(self.lake.path)).option("vbuckets", self._vbuckets)
        sink = sink.option("tableFormat", self._table_format)
        sink = sink.option("checkpointLocation", self.lake.checkpoint.as_uri())
        if available_now:
            self.query = sink.trigger(availableNow=True).start()
        else:
            milliseconds = round(self.source.trigger_seconds * 1000)
            self.query = sink.trigger(processingTime=f"{milliseconds} milliseconds").start()
        return self.query

    def look(self) -> SourceProgress:
        """See what was written since the last look, tell the tasks, and return where everything stands."""
        before, now = self.progress, time.monotonic()
        if files := self._meter.look():
            for task in self.tasks:
                task.gained(self._meter.version, files)
            if self._fields is not None:
                self._fields.look(self.lake.changelog_table.paths(files))
        seconds = max(now - self._last_at, 0.001)
        found = replace(
            before,
            rows=self._meter.rows,
            bytes=self._meter.bytes,
            changelog_rows=self._meter.total_rows,
            version=self._meter.version,
            rows_per_second=round((self._meter.rows - before.rows) / seconds, 1),
            bytes_per_second=round((self._meter.bytes - before.bytes) / seconds, 1),
            rollbacks=self._meter.rollbacks,
            last_rollback=self._meter.last_rollback,
            dependents=tuple(task.now for task in self.tasks),
            schema_changes=() if self._fields is None else self._fields.changes,
        )
        last = self.query.lastProgress if self.query is not None else None
        if last is not None:
            lag, missing = self._lag(last.sources[0].endOffset)
            found = replace(found, batches=last.batchId + 1, lag=lag, missing_vbuckets=missing)
        self.progress, self._last_at = found, now
        return found

    def _lag(self, end_offset: str | None) -> tuple[int | None, tuple[int, ...]]:
        """Return the lag, and the vbuckets that no node serves.

        The lag is None also where the node does not answer, or not at once: what that means, the query finds out.
        """
        before = self.progress.missing_vbuckets
        asked = self._high_seqnos = self._high_seqnos or self._ask_high_seqnos()
        if asked not in wait([asked], LAG_SECONDS).done:
            return None, before
        self._high_seqnos = None
        try:
            high_seqnos = asked.result()
        except Error:
            return None, before
        wanted = range(self._vbuckets) if self._chosen is None else self._chosen
        missing = tuple(vbucket for vbucket in wanted if vbucket not in high_seqnos)
        if not end_offset:
            return None, missing
        return behind(Offset.from_json(json.loads(end_offset)), high_seqnos, self._chosen), missing
