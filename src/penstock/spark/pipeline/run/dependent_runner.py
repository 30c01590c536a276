"""Dependent runners: threads that apply changelog deltas to the current table and the dependents.

Each task has its own policy and its own failures. The current table and the local dependents share one thread for all
of a run, so that merges take turns. Each of the other dependents has its own thread, because the system that it sends
to may be slow or unreachable. Only a failure of the current table ends the run. Other tasks are tried again after
growing pauses, and continue at their position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from penstock.client.tracing.tracer import trace_work
from penstock.errors import Error
from penstock.spark.dependents.dependent import IDLE_VERSIONS
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.tables.data_files import DataFile
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.run.batch_spans import APPLY, SEND
from penstock.spark.pipeline.state.run_progress import DependentProgress
from penstock.spark.tables.misfits import RestReport

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the first retry, and greatest number of seconds between two attempts."""

_log = logging.getLogger("penstock.pipeline")


@dataclass(frozen=True, slots=True)
class _PendingCommit:
    """Changelog rows found by one poll.

    Attributes:
        version: the changelog version with these rows.
        rows: number of rows.
        files: number of files.
        at: when the oldest of them was committed, in seconds since the epoch.
        spans: the spans of their micro-batches.
    """

    version: int
    rows: int
    files: int
    at: float
    spans: Sequence[SpanContext] = ()


class DependentTask:
    """The current table or one dependent in a run.

    Its runner's thread makes all calls except `progress` and `add_pending`.

    Args:
        name: the dependent's name, or "current".
        kind: the dependent's kind, or "current".
        catch_up: applies all pending changes and returns the changelog version that it reaches.
        policy: decides when pending changes are applied.
        table_rows: returns the number of rows of its table, all of which a merge reads; None without a table.
        report_rest: returns the values that no column of its table has; None for other tables than typed ones.
        is_local: the result lies in the lake, so no other system can delay it.
        is_vital: a failure ends the run.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        catch_up: Callable[[], int],
        policy: MergePolicy,
        *,
        table_rows: Callable[[], int] | None = None,
        report_rest: Callable[[], RestReport | None] = lambda: None,
        is_local: bool = True,
        is_vital: bool = False,
    ) -> None:
        self.is_local = is_local
        self.policy = policy
        self.is_vital = is_vital
        self._catch_up = catch_up
        self._table_rows = table_rows
        self._report_rest = report_rest
        self._lock = threading.Lock()
        self._state = DependentProgress(name, kind)
        self._pending: list[_PendingCommit] = []
        self._newest = -1
        self._retry_at = 0.0

    @property
    def progress(self) -> DependentProgress:
        """The progress so far."""
        return self._state

    def list_progress(self) -> list[DependentProgress]:
        """Return the progress, as one of the rows of a run."""
        return [self._state]

    def set_position(self, version: int, newest: int, pending: Sequence[DataFile]) -> None:
        """Set the applied version, the changelog's newest version, and the files between the two."""
        self._state = replace(self._state, version=version, rows=self._count_rows(version), rest=self._report_rest())
        self.add_pending(newest, pending)

    def add_pending(self, version: int, files: Sequence[DataFile], spans: Sequence[SpanContext] = ()) -> None:
        """Add files that the changelog has gained.

        Args:
            version: the changelog's newest version.
            files: the added files.
            spans: the spans of their micro-batches.
        """
        with self._lock:
            self._newest = version
            if rows := sum(file.rows for file in files):
                oldest = min(file.modified for file in files) / 1000
                self._pending.append(_PendingCommit(version, rows, len(files), oldest, spans))
                self._state = replace(self._state, pending=sum(each.rows for each in self._pending))

    def is_due(self, now: float) -> bool:
        """Return whether the policy finds a merge due.

        Args:
            now: seconds since the epoch.

        Returns:
            False during the pause after a failure.
        """
        pending = self._pending
        if time.monotonic() < self._retry_at:
            return False
        if not pending:
            return self._newest - self._state.version >= IDLE_VERSIONS
        if self._state.version < 0:
            return True  # without a first merge, readers find nothing
        rows, files = self._state.pending, sum(each.files for each in pending)
        # Counting rows reads the table's log, so it is done only if the number can decide.
        table_rows = (self._count_rows() or 0) if rows >= self.policy.rows else 0
        return self.policy.is_due(rows, table_rows, now - pending[0].at, files)

    @property
    def is_behind(self) -> bool:
        """Whether the changelog has versions that are not applied."""
        return self._newest > self._state.version

    def run(self) -> None:
        """Apply all pending changes. An error of a vital task is raised; other errors are stored in the progress."""
        before, began = self._state.pending, time.monotonic()
        try:
            version = self._trace_catch_up()
        except Exception as error:  # of any kind: a user's SQL may raise it, and the other tasks must continue
            if self.is_vital:
                raise
            self._record_failure(error)
            return
        self.record_applied(version, before, time.monotonic() - began)

    def record_applied(self, version: int, before: int | None = None, seconds: float = 0.0) -> None:
        """Store that all changes up to a version are applied.

        Args:
            version: the version.
            before: rows that were pending before; None for those that are pending now.
            seconds: the time that it took.
        """
        rows, rest = self._count_rows(version), self._report_rest()
        with self._lock:
            before = self._state.pending if before is None else before
            self._pending = [each for each in self._pending if each.version > version]
            left = sum(each.rows for each in self._pending)
            self._state = replace(
                self._state,
                version=version,
                pending=left,
                rows=rows,
                rest=rest,
                applied_rows=self._state.applied_rows + max(0, before - left),
                merges=self._state.merges + 1,
                merge_seconds=self._state.merge_seconds + seconds,
                error=None,
                failures=0,
            )

    def _count_rows(self, version: int = 0) -> int | None:
        """Return the number of rows of the table, None without one. Before version 0 no table has rows."""
        return None if self._table_rows is None or version < 0 else self._table_rows()

    def _trace_catch_up(self) -> int:
        """Apply all pending changes within a span.

        Returns:
            The version that was reached.
        """
        attributes = {
            "messaging.batch.message_count": self._state.pending,
            "penstock.dependent.kind": self._state.kind,
        }
        causes = [span for each in [*self._pending] for span in each.spans]
        with trace_work(APPLY if self.is_local else SEND, self._state.name, attributes, causes=causes) as span:
            version = self._catch_up()
            span.set({"penstock.version": version})
            return version

    def _record_failure(self, error: Exception) -> None:
        """Store the failure, and set the time of the next attempt."""
        text = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, Error | OSError):
            text = f"{type(error).__name__}: {text}"
        failures = self._state.failures + 1
        pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
        if text != self._state.error:  # a system that stays unreachable is logged once
            _log.warning("%s %s failed and will be retried: %s", self._state.kind, self._state.name, text)
        self._retry_at = time.monotonic() + pause
        with self._lock:
            self._state = replace(self._state, error=text, failures=failures)


def initialize_task(task: DependentTask, lake: LakeDirectory, known: tuple[str, int] | None) -> DependentTask:
    """Return the task with its pending changes set.

    Args:
        task: the task.
        lake: the lake of the changelog.
        known: id and version of the changelog that were applied, None if nothing was applied.

    Returns:
        The same task.
    """
    delta = find_delta(lake, known)
    if delta is not None:
        task.set_position(-1 if delta.is_full or known is None else known[1], delta.version, delta.files)
    return task


class RunnerTask(Protocol):
    """Work of a runner's thread: a DependentTask, or the comparison of values with their fields."""

    def is_due(self, now: float) -> bool:
        """Return whether the task should run at this time, in seconds since the epoch."""

    @property
    def is_behind(self) -> bool:
        """Whether the task must run once more before the end."""

    def run(self) -> None:
        """Do the work that waits. An exception ends the thread."""


class DependentRunner:
    """Runs due tasks on a thread until `finish`, and then lets all tasks catch up.

    Args:
        tasks: the tasks of this thread.
        poll_seconds: seconds between two checks for due tasks.

    Attributes:
        tasks: the tasks of this thread.
        failure: the error of a vital task, which has ended the thread; otherwise None.
    """

    def __init__(self, tasks: Iterable[RunnerTask], poll_seconds: float = 1.0) -> None:
        self.tasks = tuple(tasks)
        self.failure: Exception | None = None
        self._poll_seconds = poll_seconds
        self._wake = threading.Event()
        self._is_finishing = False
        # A daemon: a request that hangs in another system must not keep the process alive after the run.
        self._thread = threading.Thread(target=self._main, name="penstock-dependents", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Request the end; returns at once."""
        self._is_finishing = True
        self._wake.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the thread has ended.

        Args:
            seconds: longest wait; None for no limit.

        Returns:
            True if the thread has ended.
        """
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            while not self._is_finishing:
                for task in self.tasks:
                    if task.is_due(time.time()):
                        task.run()
                self._wake.wait(self._poll_seconds)
            for task in self.tasks:
                if task.is_behind:
                    task.run()
        except Exception as error:  # noqa: BLE001 - the run raises it on its own thread
            self.failure = error
