"""The run of one source: its query, its progress, and the tasks of its dependents."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import Error
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import HeldLock
from penstock.spark.pipeline.checks.value_fields import ValueFields
from penstock.spark.pipeline.definition.definition import SourceDefinition
from penstock.spark.pipeline.run.batch_spans import BatchSpans
from penstock.spark.pipeline.run.changelog_rows import prepare_rows
from penstock.spark.pipeline.run.dependent_runner import DependentTask
from penstock.spark.pipeline.run.table_tasks import TableTasks
from penstock.spark.pipeline.state.changelog_meter import ChangelogMeter, find_last_rollback
from penstock.spark.pipeline.state.lag import compute_lag, list_lag_ranges
from penstock.spark.pipeline.state.resnapshot import locate_requests
from penstock.spark.pipeline.state.run_progress import BatchTime, LagRange, SourceProgress
from penstock.spark.source.offsets import Offset

LAG_SECONDS = 0.5
"""Seconds that a report waits for the node."""


class SourceRun:
    """The query and the tasks of one source in a run.

    Args:
        source: the source.
        lake: its lake.
        vbuckets: number of vbuckets in the bucket.
        request_high_seqnos: requests the high seqno of each vbucket from the node.
        tasks: the tables of documents, and the dependents.
        fields: the fields of values, if the source declares them.
        checkpoint: the query's checkpoint; None for the lake's own.
        lock: the lock of the lake.

    Attributes:
        fields: the fields of values, and the comparison with them; None if the source needs none.
        query: the running query, None before `start`.
        progress: the newest progress.
    """

    def __init__(
        self,
        source: SourceDefinition,
        lake: LakeDirectory,
        vbuckets: int,
        request_high_seqnos: Callable[[], Future[dict[int, int]]],
        *,
        tasks: Iterable[DependentTask | TableTasks],
        fields: ValueFields | None = None,
        checkpoint: Path | None = None,
        lock: HeldLock | None = None,
    ) -> None:
        self.source = source
        self.lake = lake
        self.tasks = tuple(tasks)
        self.query: StreamingQuery | None = None
        self._vbuckets = vbuckets
        self.fields = fields
        self._checkpoint = lake.checkpoint if checkpoint is None else checkpoint
        self.lock = HeldLock() if lock is None else lock
        self._chosen = source.parse_options().vbuckets
        self._request_high_seqnos = request_high_seqnos
        self._high_seqnos: Future[dict[int, int]] | None = None
        self._spans = BatchSpans(source.name or source.parse_options().place.bucket, lake)
        self._meter = ChangelogMeter(lake)
        self._meter.last_rollback = find_last_rollback(lake)
        self._last_at = time.monotonic()
        self.progress = SourceProgress(source.name)
        self.update_progress()

    def start(self, spark: SparkSession, *, available_now: bool) -> StreamingQuery:
        """Start the query from the bucket to the changelog.

        Args:
            spark: the session.
            available_now: True to end at the current end of the bucket.

        Returns:
            The query.
        """
        reader = spark.readStream.options(
            **self.source.format_options(), resnapshotFile=str(locate_requests(self.lake))
        )
        place = self._list_lake_options()
        if self.source.where is None and self.source.transform is None:
            given = {f"lake.{name}": text for name, text in place.items()}
            frame = reader.format("penstock-changelog-files").options(**given).load()
        else:
            fields = None if self.fields is None else self.fields.ddl
            frame = prepare_rows(reader.format("dcp").load(), self.source, fields)
        sink = frame.writeStream.format("penstock-changelog").options(**place, lock=self.lock.token)
        sink = sink.option("checkpointLocation", self._checkpoint.as_uri())
        if available_now:
            self.query = sink.trigger(availableNow=True).start()
        else:
            milliseconds = round(self.source.trigger_seconds * 1000)
            self.query = sink.trigger(processingTime=f"{milliseconds} milliseconds").start()
        return self.query

    def _list_lake_options(self) -> dict[str, str]:
        """Return the options of the sink that say where the lake is."""
        options = {
            "path": str(self.lake.path),
            "vbuckets": str(self._vbuckets),
            "tableFormat": self.lake.changelog_table.format,
            "keepHours": str(self.lake.keep_hours),
        }
        return options if self.lake.catalog is None else options | {"catalog": self.lake.catalog}

    def update_progress(self) -> SourceProgress:
        """Pass files that were committed since the last call to the tasks.

        Returns:
            The new progress.
        """
        before, now = self.progress, time.monotonic()
        files, spans = self._spans.take_reported(self.query, self._meter.update())
        if files:
            for task in self.tasks:
                task.add_pending(self._meter.version, files, spans)
            if self.fields is not None:
                self.fields.add_pending(self.lake.changelog_table.list_paths(files))
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
            dependents=tuple(each for task in self.tasks for each in task.list_progress()),
            schema_changes=() if self.fields is None else self.fields.changes,
        )
        last = self.query.lastProgress if self.query is not None else None
        if last is not None:
            lag, missing, ranges = self._measure_lag(last.sources[0].endOffset)
            milliseconds = last.durationMs.get("triggerExecution", 0)
            # Spark may count names of files, not rows.
            batch = BatchTime(last.batchId, milliseconds / 1000, self._meter.newest_rows)
            found = replace(
                found,
                batches=last.batchId + 1,
                lag=lag,
                missing_vbuckets=missing,
                lag_ranges=ranges,
                last_batch=batch if last.numInputRows or found.last_batch is None else found.last_batch,
            )
        self.progress, self._last_at = found, now
        return found

    def _measure_lag(self, end_offset: str | None) -> tuple[int | None, tuple[int, ...], tuple[LagRange, ...]]:
        """Return the lag, the vbuckets that no node serves, and the lag by ranges.

        The lag is None if the node does not answer in time. The query itself finds out whether that is an error.
        """
        before = self.progress.missing_vbuckets
        # An unanswered request is awaited again by the next report, so a slow node has one request at a time.
        asked = self._high_seqnos = self._high_seqnos or self._request_high_seqnos()
        if asked not in wait([asked], LAG_SECONDS).done:
            return None, before, ()
        self._high_seqnos = None
        try:
            high_seqnos = asked.result()
        except Error:
            return None, before, ()
        wanted = range(self._vbuckets) if self._chosen is None else self._chosen
        missing = tuple(vbucket for vbucket in wanted if vbucket not in high_seqnos)
        if not end_offset:
            return None, missing, ()
        end = Offset.from_json(json.loads(end_offset))
        ranges = list_lag_ranges(end, high_seqnos, self._vbuckets, self._chosen)
        return compute_lag(end, high_seqnos, self._chosen), missing, ranges
