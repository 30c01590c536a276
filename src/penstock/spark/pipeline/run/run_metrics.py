"""A run's figures for Prometheus, served by this process on loopback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.errors import UsageError
from penstock.spark.pipeline.state.run_progress import DependentProgress, SourceProgress

__all__ = ["Figures", "serving"]

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
    "taken": ("rows", "Rows of the changelog taken in by this run."),
    "times": ("merges", "How often it has taken rows in."),
    "seconds": ("merge_seconds", "How long that took altogether."),
}
_DEPENDENT_GAUGES = {
    "pending": ("pending_rows", "Rows of the changelog that it has not taken in."),
    "failures": ("failures", "How often in a row it could not take them in."),
}


class Figures(Collector):
    """The newest progress of each source, as metrics called penstock_pipeline_*. port: where they are served, if so."""

    def __init__(self) -> None:
        self.port: int | None = None
        self._newest: dict[str, SourceProgress] = {}

    def take(self, progress: SourceProgress) -> None:
        self._newest[progress.source or ""] = progress

    def collect(self) -> Iterable[Metric]:
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
        yield from self._dependents([(source, each) for source, p in sources for each in p.dependents])

    def _dependents(self, found: list[tuple[str, DependentProgress]]) -> Iterable[Metric]:
        for name, (shown, text) in (_DEPENDENT_COUNTERS | _DEPENDENT_GAUGES).items():
            kind = CounterMetricFamily if name in _DEPENDENT_COUNTERS else GaugeMetricFamily
            family = kind(f"penstock_pipeline_kept_{shown}", text, labels=["source", "name", "kind"])
            for source, each in found:
                family.add_metric([source, each.name, each.kind], getattr(each, name))
            yield family


@contextmanager
def serving(port: int | None) -> Iterator[Figures]:
    """Serve figures at /metrics on a port of 127.0.0.1 while the block lasts; None: on none, 0: on any that is free.

    Raises UsageError for a port that cannot be had.
    """
    figures = Figures()
    if port is None:
        yield figures
        return
    registry = CollectorRegistry()
    registry.register(figures)
    try:
        server, thread = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise UsageError(f"port {port} of 127.0.0.1 for metrics: {error.strerror}") from None
    figures.port = server.server_port
    try:
        yield figures
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
