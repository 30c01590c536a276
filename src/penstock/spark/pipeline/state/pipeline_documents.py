"""The documents of a pipeline's page: the status of each lake, as `penstock pipeline status` has it, and a history."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
from msgspec import Struct

from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition
from penstock.spark.pipeline.state.run_progress import RollbackEvent, SourceProgress
from penstock.spark.pipeline.state.source_lakes import find_source_lakes
from penstock.spark.pipeline.state.source_status import read_declared_status
from penstock.spark.storage.object_path import parse_place

SECONDS: Final = 1.0
_LARGEST_SHARE = 0.05
"""The part of the time that reading the lakes may take: after a slow look the next one is later."""

_POINTS: Final = 600
_MAX_ROLLBACKS: Final = 50


class ProgressPoint(NamedTuple):
    """Figures of a source at one moment. The page makes rates of the counters of two of them.

    Attributes:
        at: seconds since the epoch.
        rows: rows of the changelog.
        lag: seqnos that the changelog does not have yet; None: not known.
        batch_seconds: duration of the newest micro-batch.
        pending: rows that some table, index or sink has not applied yet, of the one that has most.
    """

    at: float
    rows: int
    lag: int | None
    batch_seconds: float | None
    pending: int | None


class DeadLetters(Struct):
    """The rows that a sink could not write.

    Attributes:
        name: the sink.
        path: their directory.
        rows: number of rows; None: the directory lies in an object store, and is not read.
    """

    name: str
    path: str
    rows: int | None


class SourceDocument(Struct):
    """One source.

    Attributes:
        status: the object that `penstock pipeline status --json` prints.
        points: figures of the last minutes, oldest first.
        rollbacks: the rollbacks since the run began, and the newest one before it; the newest one first.
        dead_letters: of each sink that keeps them.
    """

    status: dict[str, Any]
    points: list[ProgressPoint]
    rollbacks: list[RollbackEvent]
    dead_letters: list[DeadLetters]


class PipelineDocument(Struct):
    """The document.

    Attributes:
        at: seconds since the epoch.
        seconds: seconds until the next document.
        sources: the sources of the pipeline.
    """

    at: float
    seconds: float
    sources: list[SourceDocument]


class PipelineSource:
    """Makes the documents of one run, for the threads of a server of pages.

    Args:
        definition: the pipeline.
    """

    page = "pipeline.html"

    def __init__(self, definition: PipelineDefinition) -> None:
        places = [each for each in find_source_lakes(definition).declared if not each.source.paused]
        self._histories = {each.source.name: _SourceHistory() for each in places}
        # Objects of its own: the run's are used on other threads.
        self._lakes = {each.source.name: definition.open_lake(each.path) for each in places}
        self._definition = definition
        self._sources = {each.source.name: each.source for each in places}
        self._lock = threading.Lock()
        self._newest: PipelineDocument | None = None
        self._due_at = 0.0

    def update(self, progress: SourceProgress) -> None:
        """Keep the newest progress of a source."""
        self._histories[progress.source].add(progress, time.time())

    def open_stream(self) -> PipelineSource:
        """Return the documents for a new viewer: they are the same for all viewers."""
        return self

    def answer_post(self, path: str, body: bytes) -> None:
        """Return None: the page sends nothing."""

    def find_detail(self, path: str) -> None:
        """Return None: there are no other documents."""

    def make_next(self) -> tuple[PipelineDocument, float]:
        """Return the newest document, and the seconds until the next one. Raises UsageError for a damaged lake."""
        with self._lock:
            began = time.monotonic()
            if self._newest is None or began >= self._due_at:
                sources = [self._read_source(name) for name in self._lakes]
                seconds = max(SECONDS, (time.monotonic() - began) / _LARGEST_SHARE)
                self._newest = PipelineDocument(time.time(), seconds, sources)
                self._due_at = began + 0.9 * seconds
            return self._newest, self._newest.seconds

    def _read_source(self, name: str | None) -> SourceDocument:
        lake: LakeDirectory = self._lakes[name]
        source = self._sources[name]
        history = self._histories[name]
        status = read_declared_status(self._definition, source, lake)
        found = {each.at: each for each in (status.last_rollback, *history.rollbacks) if each is not None}
        rollbacks = [found[at] for at in sorted(found, reverse=True)]
        dependents = self._definition.list_dependents(source)
        letters = [each for kind in dependents if (each := history.count_letters(kind)) is not None]
        return SourceDocument(status.to_dict(), [*history.points], rollbacks, letters)


class _SourceHistory:
    """The figures of one source since the run began.

    Attributes:
        points, rollbacks: oldest first.
    """

    def __init__(self) -> None:
        self.points: deque[ProgressPoint] = deque(maxlen=_POINTS)
        self.rollbacks: deque[RollbackEvent] = deque(maxlen=_MAX_ROLLBACKS)
        self._letters: dict[str, dict[Path, int]] = {}

    def add(self, progress: SourceProgress, now: float) -> None:
        batch = progress.last_batch
        pending = max((each.pending for each in progress.dependents), default=None)
        rows, seconds = progress.changelog_rows, None if batch is None else batch.seconds
        self.points.append(ProgressPoint(now, rows, progress.lag, seconds, pending))
        newest = progress.last_rollback
        if newest is not None and (not self.rollbacks or self.rollbacks[-1] != newest):
            self.rollbacks.append(newest)

    def count_letters(self, kind: DependentKind) -> DeadLetters | None:
        """Return the dead letters of a sink; None if it keeps none."""
        if kind.dead_letters is None:
            return None
        path = parse_place(kind.dead_letters)
        if not isinstance(path, Path):
            return DeadLetters(kind.name, str(path), None)
        known = self._letters.get(kind.name, {})
        found = {
            each: known[each] if each in known else pq.read_metadata(each).num_rows
            for each in sorted(path.glob("*.parquet"))
        }
        self._letters[kind.name] = found
        return DeadLetters(kind.name, str(path), sum(found.values()))
