"""The main job: a streaming query from a bucket to the changelog, and the current table kept behind it.

The query writes the changelog exactly once for each micro-batch. The current table is folded here, from what the
changelog has committed, while the query runs: a crash between the two leaves a fold to do, which the next run does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.client.address import parse_address
from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.errors import Error, LakeRefused, UsageError
from penstock.spark.current import catch_up
from penstock.spark.lake import Lake, count_rows
from penstock.spark.offsets import Offset
from penstock.spark.session import local_session


@dataclass(frozen=True, slots=True)
class Settings:
    """What a pipeline run does.

    url: the bucket. lake: the directory. available_now: end once what the bucket has now is in both tables.
    max_changes: seqnos of one micro-batch at most. trigger_seconds: how often a batch begins. partitions: tasks of a
    batch at most.
    """

    url: str
    lake: str
    available_now: bool = False
    max_changes: int | None = None
    trigger_seconds: float = 1.0
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands. rows: written to the changelog by this run. changelog_rows: it has altogether. lag: seqnos of
    the bucket that the changelog does not have yet. folded: changelog version that the current table has reached."""

    rows: int = 0
    changelog_rows: int = 0
    lag: int | None = None
    batches: int = 0
    folded: int = -1


Report = Callable[[Progress], None]


def run(settings: Settings, *, report: Report | None = None, finish: threading.Event | None = None) -> Progress:
    """Follow the bucket into the lake until interrupted; with available_now, or once `finish` is set, until caught up.

    Raises UsageError or LakeRefused for a bucket or a lake that cannot be used, before anything is started; Unreachable
    if the node stays away; Error if the query fails.
    """
    lake = Lake(settings.lake)
    lake.check_owner()
    bucket = Bucket(parse_address(settings.url))
    with LoopThread("penstock-pipeline") as loop:
        try:
            loop.run(bucket.high_seqnos())
            spark = local_session()
            try:
                follower = _Follower(settings, lake, lambda: loop.run(bucket.high_seqnos()), report)
                return follower.follow(spark, bucket.vbuckets, finish or threading.Event())
            finally:
                spark.stop()
        finally:
            loop.run(bucket.close())


class _Follower:
    def __init__(
        self, settings: Settings, lake: Lake, high_seqnos: Callable[[], dict[int, int]], report: Report | None
    ) -> None:
        self._settings = settings
        self._lake = lake
        self._high_seqnos = high_seqnos
        self._report = report
        self._before = count_rows(lake.changelog)
        self._progress = Progress()

    def follow(self, spark: SparkSession, vbuckets: int, finish: threading.Event) -> Progress:
        query = start(spark, self._settings, self._lake, vbuckets)
        try:
            while query.isActive and not finish.is_set():
                query.awaitTermination(max(1, round(self._settings.trigger_seconds)))
                self._fold(query)
            if query.isActive:
                query.processAllAvailable()
            self._fold(query)
        except StreamingQueryException as error:
            raise failure(error) from None
        finally:
            query.stop()
        if (failed := query.exception()) is not None:
            raise failure(failed)
        return self._progress

    def _fold(self, query: StreamingQuery) -> None:
        folded = catch_up(self._lake)
        total = count_rows(self._lake.changelog)
        last = query.lastProgress
        self._progress = replace(self._progress, rows=total - self._before, changelog_rows=total, folded=folded.version)
        if last is not None:
            self._progress = replace(self._progress, batches=last.batchId + 1, lag=self._lag(last.sources[0].endOffset))
        if self._report is not None:
            self._report(self._progress)

    def _lag(self, end_offset: str | None) -> int | None:
        if not end_offset:
            return None
        end = Offset.from_json(json.loads(end_offset))
        return sum(max(0, high - end.vbuckets[vb].seqno) for vb, high in self._high_seqnos().items())


def start(spark: SparkSession, settings: Settings, lake: Lake, vbuckets: int) -> StreamingQuery:
    """Start the query that follows a bucket into a lake's changelog."""
    source = spark.readStream.format("dcp").option("url", settings.url)
    if settings.max_changes is not None:
        source = source.option("maxChangesPerTrigger", settings.max_changes)
    if settings.partitions is not None:
        source = source.option("partitions", settings.partitions)
    sink = source.load().writeStream.format("penstock-changelog").option("path", str(lake.path))
    sink = sink.option("checkpointLocation", lake.checkpoint.as_uri()).option("vbuckets", vbuckets)
    if settings.available_now:
        return sink.trigger(availableNow=True).start()
    return sink.trigger(processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds").start()


_ERRORS: dict[str, type[Error]] = {cls.__name__: cls for cls in (UsageError, LakeRefused)}


def failure(error: StreamingQueryException) -> Error:
    """Return a failed query's error in one sentence: the last line of the Python traceback that Spark wraps, if any."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("penstock.errors.")]
    if not lines:
        return Error(f"the query failed: {text.strip().splitlines()[0]}")
    name, _, message = lines[-1].removeprefix("penstock.errors.").partition(": ")
    return _ERRORS.get(name, Error)(message)
