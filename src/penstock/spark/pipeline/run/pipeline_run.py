"""The run of a pipeline: streaming queries from buckets to changelogs, and the dependents of these changelogs.

A query writes each micro-batch to the changelog exactly once. The current table and all dependents read the committed
changelog, while the query runs. So a crash between the commits leaves pending changes, which the next run applies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.errors import Error, LakeRefused
from penstock.spark.dependents.bucket_state import BucketAnswers
from penstock.spark.lake.maintenance.time_travel import set_time_travel
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_checkpoint import restore_checkpoint
from penstock.spark.lake.tables.lake_lock import HeldLock, hold_lock
from penstock.spark.pipeline.checks.check_list import list_checks
from penstock.spark.pipeline.checks.lake_checks import check_lake
from penstock.spark.pipeline.checks.run_check import Check, CheckContext, Need, raise_first_refusal
from penstock.spark.pipeline.checks.value_fields import load_fields
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.lineage.run_lineage import record_lineage
from penstock.spark.pipeline.run.dependent_runner import DependentRunner
from penstock.spark.pipeline.run.dependent_tasks import create_tasks
from penstock.spark.pipeline.run.source_run import SourceRun
from penstock.spark.pipeline.run.spark_failure import translate_errors
from penstock.spark.pipeline.state import run_state as control
from penstock.spark.pipeline.state.run_progress import ReportProgress, SourceProgress
from penstock.spark.pipeline.state.source_lakes import find_source_lakes
from penstock.spark.runtime.data_source import register
from penstock.spark.runtime.spark_session import cluster_session, local_session
from penstock.spark.runtime.sql_analyzer import SqlAnalyzer, open_analyzer
from penstock.spark.storage.full_disk import translate_full_disk
from penstock.spark.storage.object_path import ObjectPath

LOCK_SECONDS = 15.0
"""Seconds to wait for the Java process of a driver that was killed; it takes about one second to end."""

REMOTE_SECONDS = 30.0
"""Seconds that a run waits at its end for dependents of other systems; the next run sends the remaining changes."""

_POLL_SECONDS = 1
"""Seconds between two reports of the progress, however rarely a batch starts."""

_STATE_SECONDS = 5.0
"""Greatest age in seconds of the run's state in the lake."""


def run_pipeline(
    definition: PipelineDefinition,
    *,
    available_now: bool = False,
    spark: SparkSession | None = None,
    master: str | None = None,
    report: ReportProgress | None = None,
    finish: threading.Event | None = None,
    pages: Mapping[str, str] | None = None,
) -> tuple[SourceProgress, ...]:
    """Follow the sources into their lakes until the run is interrupted, or asked to stop through one of the lakes.

    Before the run ends, for any reason, the committed changes of all changelogs are merged. Settings, servers, buckets
    and lakes that cannot be used raise UsageError or LakeRefused before Spark starts. Unreachable means that a node
    stays away, DiskFull that a disk has no room, Error that a query failed.

    Args:
        definition: the pipeline.
        available_now: end once all tables have the changes that the buckets have now.
        spark: the session to run in; None to start one, and stop it at the end.
        master: the cluster of a session that is started, as for spark-submit; None for this machine.
        report: called about once a second for each source.
        finish: once set, the run ends as soon as all tables have caught up.
        pages: addresses of pages about the run, by name, which the status shows while it runs. A token behind `#` is a
            secret, and is left out.

    Returns:
        The last progress of each source that is not paused.
    """
    lakes = find_source_lakes(definition).declared
    checks = [check for check in list_checks(definition, lakes) if Need.LOCK not in check.needs]
    with translate_full_disk(definition.lake), LoopThread("penstock-pipeline") as loop, ExitStack() as stack:
        context = CheckContext(BucketAnswers(loop), ~Need.LOCK)
        # Before Spark starts, so that an unusable bucket is reported at once.
        raise_first_refusal([check for check in checks if Need.SQL not in check.needs], context)
        places = [_OpenSource(each.source, definition.open_lake(each.path)) for each in lakes if not each.source.paused]
        for place in places:
            stack.callback(place.close, loop)
            loop.run(place.bucket.connect())
        _take_lakes(definition, places, stack)
        used = [(place.source, place.lake) for place in places]
        locks = [descriptor for place in places for descriptor in place.lock.descriptors]
        # Inside and outside of the session, because a stopped session no longer returns the causes of an error.
        with (
            record_lineage(definition, used, report, is_batch=available_now) as report_all,
            translate_errors(),
            _open_session(spark, master, locks) as session,
            translate_errors(),
        ):
            _check_sql([check for check in checks if Need.SQL in check.needs], context, session)
            sources = [_create_source_run(definition, place, context, loop, session) for place in places]
            run = _PipelineRun(
                definition.lake,
                sources,
                report_all,
                available_now=available_now,
                finish=finish or threading.Event(),
                state=control.create_run_state(pages),
            )
            return run.follow(session)


def _check_sql(checks: Sequence[Check], context: CheckContext, session: SparkSession) -> None:
    """Make the checks of SQL with the analyzer of the session, which knows the functions of its user."""
    if not checks:
        return
    # A session of Spark Connect has its analyzer in another process.
    is_local = hasattr(session, "_jsparkSession")
    with nullcontext(SqlAnalyzer.of_session(session)) if is_local else open_analyzer() as context.analyzer:
        raise_first_refusal(checks, context)


def _take_lakes(definition: PipelineDefinition, places: Sequence[_OpenSource], stack: ExitStack) -> None:
    """Create and lock the lakes of a run, and restore checkpoints that object stores keep. The stack undoes it."""
    for place in places:
        place.lake.create()
    for place in places:
        place.lock = stack.enter_context(hold_lock(place.lake.path, LOCK_SECONDS))
    for place in places:
        # Again: the run that held the lock may have written since the first check.
        check_lake(definition, place.source, place.lake)
        set_time_travel(place.lake)
        control.store_content(place.lake, place.source.list_content_options())
        if isinstance(place.lake.path, ObjectPath):
            place.checkpoint = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-checkpoint-")))
            restore_checkpoint(place.lake, place.checkpoint, place.lake.find_newest_batch())


def _create_source_run(
    definition: PipelineDefinition, place: _OpenSource, context: CheckContext, loop: LoopThread, session: SparkSession
) -> SourceRun:
    return SourceRun(
        place.source,
        place.lake,
        place.bucket.vbuckets,
        partial(place.request_high_seqnos, loop),
        tasks=create_tasks(definition, place.source, place.lake, session, place.lock.raise_if_lost),
        fields=load_fields(place.source, place.lake, context.fields.get(place.source.name), place.lock.raise_if_lost),
        checkpoint=place.checkpoint,
        lock=place.lock,
    )


class _OpenSource:
    """A source with its lake and a connection to its bucket.

    Attributes:
        lock: the lock of the lake, once it is held.
        checkpoint: the query's checkpoint on this machine, if the lake lies in an object store.
    """

    def __init__(self, source: SourceDefinition, lake: LakeDirectory) -> None:
        self.source = source
        self.lake = lake
        self.bucket = Bucket(source.parse_options().address)
        self.lock = HeldLock()
        self.checkpoint: Path | None = None

    def request_high_seqnos(self, loop: LoopThread) -> Future[dict[int, int]]:
        """Return a future of the high seqno of each vbucket."""
        return loop.start(self.bucket.high_seqnos())

    def close(self, loop: LoopThread) -> None:
        """Close the connection to the bucket."""
        loop.run(self.bucket.close())


@contextmanager
def _open_session(given: SparkSession | None, master: str | None, locks: Sequence[int]) -> Iterator[SparkSession]:
    """Yield the given session, or a new one that is stopped at the end.

    Args:
        given: the session of the caller.
        master: the cluster of a new session.
        locks: descriptors that the Java process inherits.

    Yields:
        A session with the formats.
    """
    if given is not None:
        register(given)
        # Spark looks up a format in the session of the calling thread. This call makes it the given session.
        given.createDataFrame([], "nothing int")
        yield given
        return
    spark = local_session(inherit=locks) if master is None else cluster_session(master, inherit=locks)
    try:
        yield spark
    finally:
        spark.stop()


class _PipelineRun:
    """One run: its sources, its dependent runners, and its state in the lakes."""

    def __init__(
        self,
        place: str,
        sources: Sequence[SourceRun],
        report: ReportProgress | None,
        *,
        available_now: bool,
        finish: threading.Event,
        state: control.RunState,
    ) -> None:
        self._place = place
        self._sources = sources
        self._report = report
        self._available_now = available_now
        self._finish = finish
        tasks = [task for source in sources for task in source.tasks]
        compared = [DependentRunner([source.fields]) for source in sources if source.fields is not None]
        self._local_runners = [DependentRunner([task for task in tasks if task.is_local]), *compared]
        self._remote_runners = [DependentRunner([task]) for task in tasks if not task.is_local]
        self._state = state
        self._state_files = [control.RunStateFile(source.lake, source.lock) for source in sources]
        self._written_at = 0.0

    def follow(self, spark: SparkSession) -> tuple[SourceProgress, ...]:
        """Run until the end, and merge all pending changes.

        Args:
            spark: the session of the queries.

        Returns:
            The last progress of each source.

        Raises:
            Error: a query or a vital task failed.
            KeyboardInterrupt: the user interrupted the run, or the caller's report raised it.
        """
        error: str | None = "it ended unexpectedly"
        try:
            with translate_full_disk(self._place):
                self._follow_and_merge(spark)
            error = None
        except Error as failed:
            error = str(failed)
            raise
        except KeyboardInterrupt:
            error = None
            raise
        finally:
            # LakeRefused: another run has taken over, and both files are its own. OSError: the first error is reported,
            # and a full disk is the likely reason of both.
            with suppress(LakeRefused) if error is None else suppress(LakeRefused, OSError):
                self._write_state(ended=True, error=error)
                for source in self._sources:
                    control.clear_stop_request(source.lake)
        return tuple(source.progress for source in self._sources)

    def _follow_and_merge(self, spark: SparkSession) -> None:
        """Run the queries and the tasks of dependents until the end, and merge all pending changes."""
        self._report_progress()  # so that a caller can interrupt the run before Spark's slow first batch
        for runner in (*self._local_runners, *self._remote_runners):
            runner.start()
        try:
            with translate_errors():
                self._run_queries(spark)
        finally:
            self._merge_all()

    def _run_queries(self, spark: SparkSession) -> None:
        """Start the queries and wait until they end, or until the run is asked to end."""
        queries = []
        with ThreadPoolExecutor(len(self._sources), "penstock-finish") as pool, ExitStack() as stack:
            for source in self._sources:
                queries.append(source.start(spark, available_now=self._available_now))
                stack.callback(queries[-1].stop)
            caught_up: list[Future[None]] = []
            while (active := [query for query in queries if query.isActive]) and not self._is_stop_requested():
                if self._finish.is_set() and not caught_up:
                    # On other threads, because this call blocks and the run must go on with its reports.
                    caught_up = [pool.submit(query.processAllAvailable) for query in active]
                if caught_up and all(each.done() for each in caught_up):
                    break
                active[0].awaitTermination(_POLL_SECONDS)
                self._report_progress()
                self._raise_failure()
                if any(not query.isActive and query.exception() is not None for query in queries):
                    break
        for query in queries:
            query.awaitTermination()  # the query has ended: this raises its error, if there is one, with the causes

    def _merge_all(self) -> None:
        """Wait until all tables have the pending changes; for other systems, wait only for a limited time."""
        for source in self._sources:
            source.update_progress()
        for runner in (*self._local_runners, *self._remote_runners):
            runner.finish()
        for runner in self._local_runners:
            while not runner.wait(_POLL_SECONDS):
                self._report_last()
        deadline = time.monotonic() + REMOTE_SECONDS
        for runner in self._remote_runners:
            runner.wait(max(0.0, deadline - time.monotonic()))
        self._report_last()
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the error of a vital task, if there is one."""
        for runner in (*self._local_runners, *self._remote_runners):
            if runner.failure is not None:
                raise runner.failure

    def _report_progress(self) -> None:
        """Report the progress of all sources; the caller's report may raise an exception to end the run."""
        for source in self._sources:
            source.lock.raise_if_lost()
        before = tuple(source.progress for source in self._sources)
        now = tuple(source.update_progress() for source in self._sources)
        if now != before or time.monotonic() - self._written_at > _STATE_SECONDS:
            self._write_state(ended=False, error=None)
        for progress in now if self._report is not None else ():
            assert self._report is not None
            self._report(progress)

    def _report_last(self) -> None:
        """Report to a caller that has already ended the run and may interrupt each report again."""
        with suppress(KeyboardInterrupt):
            self._report_progress()

    def _write_state(self, *, ended: bool, error: str | None) -> None:
        """Write the run's state into each lake."""
        self._written_at = time.monotonic()
        for source, file in zip(self._sources, self._state_files, strict=True):
            state = replace(
                self._state, updated=time.time(), ended=ended, error=error, progress=asdict(source.progress)
            )
            file.write(state)

    def _is_stop_requested(self) -> bool:
        return any(control.is_stop_requested(source.lake, self._state.run) for source in self._sources)
