"""Metrics of a run for Prometheus, served by this process on loopback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.client.signals.metrics_server import serve_collector
from penstock.spark.pipeline.state.run_progress import DependentProgress, SourceProgress

__all__ = ["PipelineMetrics", "serve_metrics"]

_COUNTERS = {
    "rows": "Rows written to the changelog by this run.",
    "bytes": "Bytes of the files written to the changelog by this run.",
    "batches": "Micro-batches of the query so far.",
    "rollbacks": "Vbuckets rolled back, counted each time.",
}
_GAUGES = {
    "lag": "Seqnos of the bucket that the changelog does not have yet.",
    "changelog_rows": "Rows of the changelog.",
    "rows_per_second": "Rows written to the changelog in the last second or so.",
    "bytes_per_second": "Bytes written to the changelog in the last second or so.",
}
_DEPENDENT_COUNTERS = {
    "applied_rows": ("rows", "Rows of the changelog that this run has applied."),
    "merges": ("merges", "How often this run has applied pending rows."),
    "merge_seconds": ("merge_seconds", "Seconds that this run has spent applying rows."),
}
_DEPENDENT_GAUGES = {
    "pending": ("pending_rows", "Rows of the changelog that are not applied yet."),
    "failures": ("failures", "Failed attempts in a row to apply rows."),
}


class PipelineMetrics(Collector):
    """The newest progress of each source, as metrics named penstock_pipeline_*.

    Attributes:
        port: the port that serves the metrics, None if they are not served.
    """

    def __init__(self) -> None:
        self.port: int | None = None
        self._newest: dict[str, SourceProgress] = {}

    def update(self, progress: SourceProgress) -> None:
        """Store the newest progress of a source."""
        self._newest[progress.source or ""] = progress  # a label of Prometheus is text, never None

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics; Prometheus' library calls this for each request."""
        sources = sorted(self._newest.items())
        for name, text in (_COUNTERS | _GAUGES).items():
            kind = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
            family = kind(f"penstock_pipeline_{name}", text, labels=["source"])
            for source, progress in sources:
                if (value := getattr(progress, name)) is not None:
                    family.add_metric([source], value)
            yield family
        last = GaugeMetricFamily(
            "penstock_pipeline_last_rollback_seconds", "When the newest rollback was written.", labels=["source"]
        )
        for source, progress in sources:
            if progress.last_rollback is not None:
                last.add_metric([source], progress.last_rollback.at)
        yield last
        yield from self._collect_dependents([(source, each) for source, p in sources for each in p.dependents])

    def _collect_dependents(self, found: list[tuple[str, DependentProgress]]) -> Iterable[Metric]:
        for name, (shown, text) in (_DEPENDENT_COUNTERS | _DEPENDENT_GAUGES).items():
            kind = CounterMetricFamily if name in _DEPENDENT_COUNTERS else GaugeMetricFamily
            family = kind(f"penstock_pipeline_dependent_{shown}", text, labels=["source", "name", "kind"])
            for source, each in found:
                family.add_metric([source, each.name, each.kind], getattr(each, name))
            yield family


@contextmanager
def serve_metrics(port: int | None) -> Iterator[PipelineMetrics]:
    """Serve metrics at /metrics on a port of 127.0.0.1 while the block runs.

    Args:
        port: the port; 0 for any free port, None to serve nothing.

    Yields:
        The metrics to update.
    """
    figures = PipelineMetrics()
    if port is None:
        yield figures
        return
    with serve_collector(figures, port) as figures.port:
        yield figures
