"""The main job: streaming queries from buckets to changelogs, and what is kept behind these.

A query writes the changelog exactly once for each micro-batch. The current table and all else is taken from what the
changelog has committed, while the query runs: a crash between the two leaves something to take in, which the next run
does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial

from pyspark.sql import SparkSession

from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.streams.dialect_check import check_dialect
from penstock.errors import Error, UsageError
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import locked
from penstock.spark.pipeline.definition.definition import PipelineDefinition, Source
from penstock.spark.pipeline.run.dependent_runner import DependentRunner
from penstock.spark.pipeline.run.dependent_tasks import tasks_of
from penstock.spark.pipeline.run.source_run import SourceRun
from penstock.spark.pipeline.run.spark_failure import in_one_sentence
from penstock.spark.pipeline.run.value_fields import fields_of
from penstock.spark.pipeline.state import run_state as control
from penstock.spark.pipeline.state.run_progress import ReportProgress, SourceProgress
from penstock.spark.runtime.spark_session import add_formats, cluster_session, local_session

__all__ = ["run"]

PATIENCE = 15.0
"""Seconds for the Java process of a driver that was killed to end; it takes about one."""

OTHERS_SECONDS = 30.0
"""How long a run that ends waits for dependents of other systems; the next run sends them what is left."""

_POLL_SECONDS = 1
"""How often progress is looked at and reported, however rarely a batch begins."""

_ACCOUNT_SECONDS = 5.0
"""How old a run's account of itself gets at most."""


def run(
    definition: PipelineDefinition,
    *,
    available_now: bool = False,
    spark: SparkSession | None = None,
    master: str | None = None,
    report: ReportProgress | None = None,
    finish: threading.Event | None = None,
) -> tuple[SourceProgress, ...]:
    """Follow the sources into their lakes until interrupted, or asked to stop through one of the lakes.

    available_now: end once what the buckets have now is in all tables. finish: once set, end as soon as the tables have
    caught up. spark: the session to run in; without it, one is started and stopped: on this machine, or on the cluster
    that `master` names as for spark-submit. report: called about once a second for each source. However this ends, what
    the changelogs have is merged before.
    Raises UsageError or LakeRefused for settings, a server, bucket or lake that cannot be used, before Spark starts;
    Unreachable if a node stays away; Error if a query fails.
    """
    places = [_Place(source, LakeDirectory(definition.lake_of(source))) for source in definition.sources]
    _check_places(definition, places)
    with LoopThread("penstock-pipeline") as loop, ExitStack() as stack:
        for place in places:
            stack.callback(place.close, loop)
            place.lake.check_owner(definition.tables.changelog_format)
            source = place.source.options()
            loop.run(check_dialect(source.address, source.dialect))
            loop.run(place.bucket.high_seqnos())
        locks = [stack.enter_context(locked(place.lake.path, PATIENCE)) for place in places]
        for place in places:
            # Once more: the run that had the lock may have written meanwhile.
            place.lake.check_owner(definition.tables.changelog_format)
            control.check_content(place.lake, place.source.content())
        # Twice: a stopped session no longer tells an error's causes.
        with in_one_sentence(), _session(spark, master, locks) as session, in_one_sentence():
            sources = [_source_run(definition, place, loop, session) for place in places]
            return _Run(sources, report, available_now, finish or threading.Event()).follow(session)


def _source_run(definition: PipelineDefinition, place: _Place, loop: LoopThread, session: SparkSession) -> SourceRun:
    return SourceRun(
        place.source,
        place.lake,
        place.bucket.vbuckets,
        partial(place.ask_high_seqnos, loop),
        tasks=tasks_of(definition, place.source, place.lake, session),
        table_format=definition.tables.changelog_format,
        fields=fields_of(place.source, place.lake),
    )


class _Place:
    """Where a source's changes come from and go to."""

    def __init__(self, source: Source, lake: LakeDirectory) -> None:
        self.source = source
        self.lake = lake
        self.bucket = Bucket(source.options().address)

    def ask_high_seqnos(self, loop: LoopThread) -> Future[dict[int, int]]:
        return loop.start(self.bucket.high_seqnos())

    def close(self, loop: LoopThread) -> None:
        loop.run(self.bucket.close())


def _check_places(definition: PipelineDefinition, places: Sequence[_Place]) -> None:
    """Raises UsageError where a lake of one source would be that of several."""
    if len(places) > 1 and LakeDirectory(definition.lake).changelog_table.path.exists():
        raise UsageError(
            f"the lake {definition.lake} holds the tables of one source, expected a directory for {len(places)} of them"
        )


@contextmanager
def _session(given: SparkSession | None, master: str | None, locks: Sequence[int]) -> Iterator[SparkSession]:
    if given is not None:
        add_formats(given)
        # Spark looks a format up in the calling thread's session, and this makes it the given one.
        given.createDataFrame([], "nothing int")
        yield given
        return
    spark = local_session(inherit=locks) if master is None else cluster_session(master, inherit=locks)
    try:
        yield spark
    finally:
        spark.stop()


class _Run:
    def __init__(
        self,
        sources: Sequence[SourceRun],
        report: ReportProgress | None,
        available_now: bool,
        finish: threading.Event,
    ) -> None:
        self._sources = sources
        self._report = report
        self._available_now = available_now
        self._finish = finish
        tasks = [task for source in sources for task in source.tasks]
        self._tables = DependentRunner([task for task in tasks if task.is_local])
        self._others = [DependentRunner([task]) for task in tasks if not task.is_local]
        self._account = control.begin()
        self._written_at = 0.0

    def follow(self, spark: SparkSession) -> tuple[SourceProgress, ...]:
        error: str | None = "it ended unexpectedly"
        try:
            self._tell()  # whoever waits for this to stop what Spark is long in starting can do so now
            for keeper in (self._tables, *self._others):
                keeper.start()
            try:
                with in_one_sentence():
                    self._watch(spark)
            finally:
                self._merge_all()
            error = None
        except Error as failed:
            error = str(failed)
            raise
        except KeyboardInterrupt:
            error = None
            raise
        finally:
            self._write_account(ended=True, error=error)
            for source in self._sources:
                control.forget_requests(source.lake)
        return tuple(source.progress for source in self._sources)

    def _watch(self, spark: SparkSession) -> None:
        """Run the queries to their end."""
        queries = []
        with ThreadPoolExecutor(len(self._sources), "penstock-finish") as pool, ExitStack() as stack:
            for source in self._sources:
                queries.append(source.start(spark, available_now=self._available_now))
                stack.callback(queries[-1].stop)
            caught_up: list[Future[None]] = []
            while (active := [query for query in queries if query.isActive]) and not self._is_asked_to_stop():
                if self._finish.is_set() and not caught_up:
                    caught_up = [pool.submit(query.processAllAvailable) for query in active]
                if caught_up and all(each.done() for each in caught_up):
                    break
                active[0].awaitTermination(_POLL_SECONDS)
                self._tell()
                self._raise_failure()
                if any(not query.isActive and query.exception() is not None for query in queries):
                    break
        for query in queries:
            query.awaitTermination()  # it has ended: this raises the error that ended it, if one did, with its causes

    def _merge_all(self) -> None:
        """Wait until all tables have the pending changes; for other systems, only for a limited time."""
        for source in self._sources:
            source.look()
        for keeper in (self._tables, *self._others):
            keeper.finish()
        while not self._tables.wait(_POLL_SECONDS):
            self._tell_in_passing()
        deadline = time.monotonic() + OTHERS_SECONDS
        for keeper in self._others:
            keeper.wait(max(0.0, deadline - time.monotonic()))
        self._tell_in_passing()
        self._raise_failure()

    def _raise_failure(self) -> None:
        for keeper in (self._tables, *self._others):
            if keeper.failure is not None:
                raise keeper.failure

    def _tell(self) -> None:
        """Report where everything stands; the report may raise, to end the run."""
        before = tuple(source.progress for source in self._sources)
        now = tuple(source.look() for source in self._sources)
        if now != before or time.monotonic() - self._written_at > _ACCOUNT_SECONDS:
            self._write_account(ended=False, error=None)
        for progress in now if self._report is not None else ():
            assert self._report is not None
            self._report(progress)

    def _tell_in_passing(self) -> None:
        """Report to a caller that has ended the run already and raises at each report."""
        with suppress(KeyboardInterrupt):
            self._tell()

    def _write_account(self, *, ended: bool, error: str | None) -> None:
        self._written_at = time.monotonic()
        for source in self._sources:
            account = replace(
                self._account, updated=time.time(), ended=ended, error=error, said=asdict(source.progress)
            )
            account.write(source.lake)

    def _is_asked_to_stop(self) -> bool:
        return any(control.is_asked_to_stop(source.lake, self._account.run) for source in self._sources)
