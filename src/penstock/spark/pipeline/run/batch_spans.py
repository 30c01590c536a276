"""Spans of a run: one for each micro-batch, and one for each time that a table or sink applies changes.

Spark reports a micro-batch when it has ended, so its span is made afterwards, with the times of the report.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from penstock.client.tracing.span_types import SpanType
from penstock.client.tracing.tracer import is_tracing, start_span
from penstock.spark.lake.tables.data_files import DataFile
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.source.offsets import Offset

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_MILLISECOND = 1_000_000
"""In nanoseconds, the unit of times of OpenTelemetry."""

BATCH_ATTRIBUTES = {
    "penstock.batch_id": "Spark's number of the micro-batch",
    "penstock.dependent.kind": "the kind of the table or sink",
    "penstock.from_seqnos": "sum of the seqnos of all vbuckets before the batch",
    "penstock.to_seqnos": "sum of the seqnos of all vbuckets after the batch",
    "penstock.version": "the version of the changelog that was reached",
}
"""Attribute of a pipeline's spans -> its meaning."""

BATCH = SpanType(
    "batch",
    "consumer",
    "A micro-batch, from its plan to its commit. The name has the source, or the bucket.",
    ("penstock.batch_id", "messaging.batch.message_count", "penstock.from_seqnos", "penstock.to_seqnos"),
)
PLAN = SpanType("plan", "internal", "The requests that find the end of the batch; child of `batch`.")
WRITE = SpanType(
    "write_changelog", "internal", "Read of the changes, and the commit to the changelog; child of `batch`."
)
_APPLIED = ("messaging.batch.message_count", "penstock.dependent.kind", "penstock.version", "error.type")
APPLY = SpanType(
    "apply",
    "internal",
    "The current table or an index applies rows; child of the newest `batch`, with links to the others.",
    _APPLIED,
)
SEND = SpanType("send", "client", "The same of a sink in another system.", _APPLIED)

PIPELINE_SPANS = (BATCH, PLAN, WRITE, APPLY, SEND)
"""All spans of a pipeline."""


class BatchSpans:
    """Makes the spans of one source's micro-batches.

    Args:
        name: of the source or the bucket.
        lake: the lake of the source.
    """

    def __init__(self, name: str, lake: LakeDirectory) -> None:
        self._name = name
        self._lake = lake
        self._reported = -1
        """The newest batch with a span."""
        self._files: list[DataFile] = []
        self._contexts: list[SpanContext] = []

    def take_reported(
        self, query: StreamingQuery | None, files: list[DataFile]
    ) -> tuple[list[DataFile], Sequence[SpanContext]]:
        """Return the files of batches that Spark has reported, and the spans of these batches.

        Other files come with a later call, because Spark reports a batch some milliseconds after its commit. Only
        then the batch has a span, whose children are the spans of the tables that apply its rows.

        Args:
            query: the running query, None before its start.
            files: the files that were committed since the last call.
        """
        if query is None or not is_tracing():
            return files, ()
        is_active = query.isActive  # before the reports: a query that has ended has made all of them
        self._files += files
        self._add_spans(query)
        if is_active and self._files and self._reported < (self._lake.find_newest_batch() or 0):
            return [], ()
        files, contexts, self._files, self._contexts = self._files, self._contexts, [], []
        return files, contexts

    def _add_spans(self, query: StreamingQuery) -> None:
        """Make the spans of batches that ended since the last call."""
        last = query.lastProgress
        if last is None or _find_executed(last) <= self._reported:
            return
        is_next = _has_run(last) and last.batchId == self._reported + 1
        ended = {each.batchId: each for each in ([last] if is_next else query.recentProgress) if _has_run(each)}
        batches = [each for batch, each in sorted(ended.items()) if batch > self._reported]
        # A batch without rows stores proofs: its commit has no files, and no table applies it.
        full = [each for each in batches if each.numInputRows]
        rows = _count_rows(self._files)
        counts = dict(zip_longest((each.batchId for each in full), rows if len(rows) == len(full) else ()))
        for progress in batches:
            contexts = self._make_span(progress, counts.get(progress.batchId) if progress.numInputRows else 0)
            self._contexts += contexts if progress.numInputRows else []
        self._reported = _find_executed(last)

    def _make_span(self, progress: StreamingQueryProgress, rows: int | None) -> list[SpanContext]:
        source, times = progress.sources[0], progress.durationMs
        began = round(datetime.fromisoformat(progress.timestamp).timestamp() * 1000) * _MILLISECOND
        attributes = {
            "penstock.batch_id": progress.batchId,
            "messaging.batch.message_count": rows,
            "penstock.from_seqnos": _sum_seqnos(source.startOffset),
            "penstock.to_seqnos": _sum_seqnos(source.endOffset),
        }
        span = start_span(BATCH, self._name, attributes, at=began)
        if span.context is None:
            return []
        planned = began + times.get("latestOffset", 0) * _MILLISECOND
        start_span(PLAN, self._name, {}, causes=[span.context], at=began).end(at=planned)
        end = began + times.get("triggerExecution", 0) * _MILLISECOND
        written = end - sum(times.get(name, 0) for name in ("commitOffsets", "commitBatch")) * _MILLISECOND
        write_began = max(planned, written - times.get("addBatch", 0) * _MILLISECOND)
        start_span(WRITE, self._name, {}, causes=[span.context], at=write_began).end(at=max(write_began, written))
        span.end(at=end)
        return [span.context]


def _has_run(progress: StreamingQueryProgress) -> bool:
    """Return whether a report is one of a batch, and not of a query that waits for changes."""
    return "addBatch" in progress.durationMs


def _find_executed(progress: StreamingQueryProgress) -> int:
    """Return the newest batch that has run."""
    return progress.batchId if _has_run(progress) else progress.batchId - 1


def _count_rows(files: Sequence[DataFile]) -> list[int]:
    """Return the rows of each commit, oldest first."""
    rows: dict[int, int] = {}
    for file in sorted(files, key=lambda file: file.modified):
        rows[file.modified] = rows.get(file.modified, 0) + file.rows
    return [*rows.values()]


def _sum_seqnos(offset: str | None) -> int:
    """Return the sum of the seqnos of an offset, which is null before the first batch."""
    found = json.loads(offset or "null")
    return 0 if found is None else sum(each.seqno for each in Offset.from_json(found).vbuckets)
