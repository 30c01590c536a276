"""The lineage of a run: the events of its start, its progress and its end, for each source."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from penstock.errors import Error
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.definition.lineage_settings import LineageSettings
from penstock.spark.pipeline.lineage.event_sender import EventSender, append_event
from penstock.spark.pipeline.lineage.lineage_events import LineageJob, RunEventType, describe_job, generate_run_id
from penstock.spark.pipeline.state.run_progress import ReportProgress, SourceProgress


@contextmanager
def record_lineage(
    definition: PipelineDefinition,
    lakes: Iterable[tuple[SourceDefinition, LakeDirectory]],
    report: ReportProgress | None,
    *,
    is_batch: bool,
) -> Iterator[ReportProgress | None]:
    """Send the events of a run while the block runs, if the pipeline declares lineage.

    Args:
        definition: the pipeline.
        lakes: the sources that run, with their lakes.
        report: the caller's report of progress.
        is_batch: True if the run ends by itself.

    Yields:
        The report of progress to call: it also sends events.
    """
    settings = definition.lineage
    if settings is None:
        yield report
        return
    jobs = {
        source.name: describe_job(
            definition,
            source,
            lake,
            namespace=settings.namespace,
            job=settings.job,
            is_batch=is_batch,
        )
        for source, lake in lakes
    }
    with _open_sender(settings) as sender:
        run = _RunLineage(jobs, sender, settings.every_seconds)
        run.send_all(RunEventType.START)
        try:
            yield partial(run.report, report)
        except BaseException as error:
            run.send_all(*_describe_end(error))
            raise
        run.send_all(RunEventType.COMPLETE)


def _describe_end(error: BaseException) -> tuple[RunEventType, str | None]:
    """Return the transition of a run that an exception ended, and the error to show."""
    if not isinstance(error, Exception):
        return RunEventType.ABORT, None  # an interruption
    return RunEventType.FAIL, str(error) if isinstance(error, Error) else type(error).__name__


def _open_sender(settings: LineageSettings) -> EventSender:
    if settings.file is not None:
        return EventSender(partial(append_event, Path(settings.file)), settings.file)
    poster = settings.make_poster()
    return EventSender(poster.post, poster.shown_url)


class _RunLineage:
    """Makes the events of a run.

    Args:
        jobs: the job of each source.
        sender: delivers the events.
        every_seconds: least time between two events about the progress of a source.
    """

    def __init__(self, jobs: Mapping[str | None, LineageJob], sender: EventSender, every_seconds: float) -> None:
        self._jobs = jobs
        self._sender = sender
        self._every_seconds = every_seconds
        self._ids = {source: generate_run_id() for source in jobs}
        self._newest: dict[str | None, SourceProgress] = {}
        self._sent_at = dict.fromkeys(jobs, time.monotonic())

    def send_all(self, event_type: RunEventType, error: str | None = None) -> None:
        """Send an event about each source."""
        for source, job in self._jobs.items():
            self._sender.send(job.make_event(self._ids[source], event_type, self._newest.get(source), error))

    def report(self, report: ReportProgress | None, progress: SourceProgress) -> None:
        """Send an event about the progress of a source if the last one is old enough, and call the caller's report."""
        self._newest[progress.source] = progress
        now = time.monotonic()
        if now - self._sent_at[progress.source] >= self._every_seconds:
            self._sent_at[progress.source] = now
            job = self._jobs[progress.source]
            self._sender.send(job.make_event(self._ids[progress.source], RunEventType.RUNNING, progress))
        if report is not None:
            report(progress)
