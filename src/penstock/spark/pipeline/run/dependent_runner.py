"""Dependent runners: threads that apply changelog deltas to the current table and the dependents.

Each task has its own policy and its own failures. The current table and the local dependents share one thread for all
of a run, so that merges take turns. Each of the other dependents has its own thread, because the system that it informs
may be slow or away. Only a failure of the current table ends the run. All other tasks are tried again, with growing
pauses, and go on at their position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.errors import Error
from penstock.spark.dependents.dependent import IDLE_VERSIONS
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.tables.delta_table import DataFile
from penstock.spark.pipeline.state.run_progress import DependentProgress

__all__ = ["DependentRunner", "DependentTask"]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the first retry, and at most between two."""

_log = logging.getLogger("penstock.pipeline")


@dataclass(frozen=True, slots=True)
class _Commit:
    """Rows, in files, of the changelog that came with one look at it. at: seconds since the epoch."""

    version: int
    rows: int
    files: int
    at: float


class DependentTask:
    """The current table or one dependent in a run. Its runner's thread makes all calls but `now` and `gained`.

    Args:
        catch_up: applies all pending changes and returns the changelog version that it reaches.
        policy: when pending changes are applied.
        table_rows: returns how many rows a merge goes through, for the policy.
        is_local: the result lies in the lake; no other system is waited for.
        vital: a failure ends the run.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        catch_up: Callable[[], int],
        policy: MergePolicy,
        *,
        table_rows: Callable[[], int] = lambda: 0,
        is_local: bool = True,
        vital: bool = False,
    ) -> None:
        self.is_local = is_local
        self.policy = policy
        self.vital = vital
        self._catch_up = catch_up
        self._table_rows = table_rows
        self._lock = threading.Lock()
        self._state = DependentProgress(name, kind)
        self._pending: list[_Commit] = []
        self._newest = -1
        self._retry_at = 0.0

    @property
    def now(self) -> DependentProgress:
        """The progress."""
        return self._state

    def begins(self, version: int, newest: int, pending: Sequence[DataFile]) -> None:
        """Set the applied version, the changelog's newest version, and the files between the two."""
        self._state = replace(self._state, version=version)
        self.gained(newest, pending)

    def gained(self, version: int, files: Sequence[DataFile]) -> None:
        """Add files that the changelog has gained. version: the changelog's newest."""
        with self._lock:
            self._newest = version
            if rows := sum(file.rows for file in files):
                oldest = min(file.modified for file in files) / 1000
                self._pending.append(_Commit(version, rows, len(files), oldest))
                self._state = replace(self._state, pending=sum(each.rows for each in self._pending))

    def is_due(self, now: float) -> bool:
        """Return whether the policy finds a merge due. now: seconds since the epoch."""
        pending = self._pending
        if time.monotonic() < self._retry_at:
            return False
        if not pending:
            return self._newest - self._state.version >= IDLE_VERSIONS
        if self._state.version < 0:
            return True  # there is nothing yet that readers could find
        rows, files = self._state.pending, sum(each.files for each in pending)
        table_rows = self._table_rows() if rows >= self.policy.rows else 0
        return self.policy.due(rows, table_rows, now - pending[0].at, files)

    @property
    def is_behind(self) -> bool:
        """Whether there is anything to catch up with."""
        return self._newest > self._state.version

    def run(self) -> None:
        """Apply all pending changes. Raises the errors of a vital task; those of another are stored in its progress."""
        before, began = self._state.pending, time.monotonic()
        try:
            version = self._catch_up()
        except Exception as error:
            if self.vital:
                raise
            self._failed(error)
            return
        with self._lock:
            self._pending = [each for each in self._pending if each.version > version]
            left = sum(each.rows for each in self._pending)
            self._state = replace(
                self._state,
                version=version,
                pending=left,
                taken=self._state.taken + max(0, before - left),
                times=self._state.times + 1,
                seconds=self._state.seconds + time.monotonic() - began,
                error=None,
                failures=0,
            )

    def _failed(self, error: Exception) -> None:
        text = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, Error | OSError):
            text = f"{type(error).__name__}: {text}"
        failures = self._state.failures + 1
        pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
        if text != self._state.error:
            _log.warning("%s %s is behind and will be tried again: %s", self._state.kind, self._state.name, text)
        self._retry_at = time.monotonic() + pause
        with self._lock:
            self._state = replace(self._state, error=text, failures=failures)


class DependentRunner:
    """Runs tasks on a thread when they are due, until `finish`, which lets all of them catch up first.

    Attributes:
        failure: the error of a vital task, which has ended the thread; None otherwise.
    """

    def __init__(self, tasks: Iterable[DependentTask], look_seconds: float = 1.0) -> None:
        self.tasks = tuple(tasks)
        self.failure: Exception | None = None
        self._look_seconds = look_seconds
        self._wake = threading.Event()
        self._is_finishing = False
        self._thread = threading.Thread(target=self._main, name="penstock-dependents", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Ask for the end."""
        self._is_finishing = True
        self._wake.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end; tell whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            while not self._is_finishing:
                for task in self.tasks:
                    if task.is_due(time.time()):
                        task.run()
                self._wake.wait(self._look_seconds)
            for task in self.tasks:
                if task.is_behind:
                    task.run()
        except Exception as error:  # noqa: BLE001 - raised again by the run
            self.failure = error
