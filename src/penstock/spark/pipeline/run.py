"""The main job: a streaming query from a bucket to the changelog, and the current table kept behind it.

The query writes the changelog exactly once for each micro-batch. The current table is folded here, from what the
changelog has committed, while the query runs: a crash between the two leaves a fold to do, which the next run does.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import errors
from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.errors import Error
from penstock.spark.lake import Lake
from penstock.spark.lake.current import catch_up
from penstock.spark.lake.lock import locked
from penstock.spark.lake.reading import count_rows
from penstock.spark.session import add_formats, local_session
from penstock.spark.source.offsets import Offset
from penstock.spark.source.options import SourceOptions

PATIENCE = 15.0
"""Seconds for the Java process of a driver that was killed to end; it takes about one."""

LAG_SECONDS = 0.5
"""How long a report waits for the node."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a pipeline run does.

    url: the bucket. lake: the directory. available_now: end once what the bucket has now is in both tables.
    max_changes: seqnos of one micro-batch at most. trigger_seconds: how often a batch begins. partitions: tasks of a
    batch at most. protocol: the dialect, any but "tap"; None: as the url says. username, password_file: who logs in, as
    options of the source; a password itself is nothing to hand around.
    """

    url: str
    lake: str
    available_now: bool = False
    max_changes: int | None = None
    trigger_seconds: float = 1.0
    partitions: int | None = None
    protocol: str | None = None
    username: str | None = None
    password_file: str | None = None

    def source_options(self) -> dict[str, str]:
        """Return the options of `format("dcp")`."""
        given = {
            "url": self.url,
            "maxChangesPerTrigger": self.max_changes,
            "partitions": self.partitions,
            "protocol": self.protocol,
            "username": self.username,
            "passwordFile": self.password_file,
        }
        return {name: str(value) for name, value in given.items() if value is not None}

    def check(self) -> None:
        """Raises UsageError for what can be known to be wrong without a bucket and without Spark."""
        SourceOptions.parse(self.source_options()).check_streaming()


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

_POLL_SECONDS = 1
"""How often the current table is folded and progress reported, however rarely a batch begins."""


def run(
    settings: Settings,
    *,
    spark: SparkSession | None = None,
    report: Report | None = None,
    finish: threading.Event | None = None,
) -> Progress:
    """Follow the bucket into the lake until interrupted; with available_now, or once `finish` is set, until caught up.

    spark: the session to run in; without it, one is started and stopped. report: called about once a second.
    Raises UsageError or LakeRefused for settings, a bucket or a lake that cannot be used, before Spark is started;
    Unreachable if the node stays away; Error if the query fails.
    """
    settings.check()
    bucket = Bucket(SourceOptions.parse(settings.source_options()).address)
    lake = Lake(settings.lake)
    lake.check_owner()
    with LoopThread("penstock-pipeline") as loop:
        try:
            loop.run(bucket.high_seqnos())
            with locked(lake.path, PATIENCE) as lock:
                lake.check_owner()  # whoever had the lock may have written meanwhile
                # Twice: a stopped session no longer tells an error's causes.
                with _in_one_sentence(), _session(spark, lock) as session, _in_one_sentence():
                    follower = _Follower(settings, lake, lambda: loop.start(bucket.high_seqnos()), report)
                    return follower.follow(session, bucket.vbuckets, finish or threading.Event())
        finally:
            loop.run(bucket.close())


@contextmanager
def _session(given: SparkSession | None, lock: int) -> Iterator[SparkSession]:
    if given is not None:
        add_formats(given)
        # Spark looks a format up in the calling thread's session, and this makes it the given one.
        given.createDataFrame([], "nothing int")
        yield given
        return
    spark = local_session(inherit=lock)
    try:
        yield spark
    finally:
        spark.stop()


class _Follower:
    def __init__(
        self, settings: Settings, lake: Lake, ask: Callable[[], Future[dict[int, int]]], report: Report | None
    ) -> None:
        self._settings = settings
        self._lake = lake
        self._ask_high_seqnos = ask
        self._high_seqnos: Future[dict[int, int]] | None = None
        self._report = report
        self._before = count_rows(lake.changelog_table)
        self._progress = Progress()

    def follow(self, spark: SparkSession, vbuckets: int, finish: threading.Event) -> Progress:
        self._tell()  # whoever waits for this to stop what Spark is long in starting can do so now
        query = start(spark, self._settings, self._lake, vbuckets)
        caught_up: Future[None] | None = None
        with ThreadPoolExecutor(1, "penstock-finish") as pool:
            try:
                while query.isActive and not (caught_up and caught_up.done()):
                    if finish.is_set() and caught_up is None:
                        caught_up = pool.submit(query.processAllAvailable)
                    query.awaitTermination(_POLL_SECONDS)
                    self._fold(query)
            finally:
                query.stop()
        query.awaitTermination()  # it has ended: this raises the error that ended it, if one did, with its causes
        self._fold(query)
        return self._progress

    def _fold(self, query: StreamingQuery) -> None:
        folded = catch_up(self._lake)
        total = count_rows(self._lake.changelog_table)
        last = query.lastProgress
        self._progress = replace(self._progress, rows=total - self._before, changelog_rows=total, folded=folded.version)
        if last is not None:
            self._progress = replace(self._progress, batches=last.batchId + 1, lag=self._lag(last.sources[0].endOffset))
        self._tell()

    def _tell(self) -> None:
        if self._report is not None:
            self._report(self._progress)

    def _lag(self, end_offset: str | None) -> int | None:
        """Return None also where the node does not answer at once: that it is away, the query finds out."""
        asked = self._high_seqnos = self._high_seqnos or self._ask_high_seqnos()
        try:
            high_seqnos = asked.result(LAG_SECONDS)
        except TimeoutError:
            return None
        self._high_seqnos = None
        if not end_offset:
            return None
        end = Offset.from_json(json.loads(end_offset))
        return sum(max(0, high - end.vbuckets[vb].seqno) for vb, high in high_seqnos.items())


def start(spark: SparkSession, settings: Settings, lake: Lake, vbuckets: int) -> StreamingQuery:
    """Start the query that follows a bucket into a lake's changelog."""
    changes = spark.readStream.format("dcp").options(**settings.source_options()).load()
    sink = changes.writeStream.format("penstock-changelog").option("path", str(lake.path))
    sink = sink.option("checkpointLocation", lake.checkpoint.as_uri()).option("vbuckets", vbuckets)
    if settings.available_now:
        return sink.trigger(availableNow=True).start()
    return sink.trigger(processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds").start()


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    """Raise as Error what Spark raises, and what a call to its Java process raises when that has died."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise failure(str(error)) from None
    except (Py4JError, ConnectionError) as error:
        raise Error(f"Spark's Java process ended unexpectedly ({error})") from None


_PYTHON_ERROR = re.compile(r"^(?:.*: )?Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
_SPARK_PREFACE = re.compile(r"^(?:\[\w+(?:\.\w+)*\] )?(?:Query \[.*?\] terminated with exception: )?")


def failure(text: str) -> Error:
    """Return what Spark reports, as an error of one sentence: the Python error that it wraps, if there is one."""
    if not (wrapped := _PYTHON_ERROR.findall(text)):
        return Error(f"Spark failed: {_SPARK_PREFACE.sub('', text.strip()).partition(chr(10))[0]}")
    name, _, message = wrapped[-1].partition(": ")
    cls = getattr(errors, name.removeprefix("penstock.errors."), None)
    if isinstance(cls, type) and issubclass(cls, Error):
        return cls(message)
    return Error(f"the query failed: {wrapped[-1]}")
