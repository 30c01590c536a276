"""Metrics of a run for Prometheus, its readiness and its page, served by this process."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.client.dashboard.dashboard_site import DashboardSite
from penstock.client.signals.metrics_server import MeasuredWork, MetricsSite
from penstock.client.signals.report_metrics import OLDEST_SECONDS
from penstock.client.signals.web_listener import WebListener
from penstock.client.signals.web_server import Site, serve_sites
from penstock.names import escape_text
from penstock.spark.pipeline.definition.definition import PipelineDefinition
from penstock.spark.pipeline.state.pipeline_documents import PipelineSource
from penstock.spark.pipeline.state.run_progress import DependentProgress, SourceProgress

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
    "applied_rows": ("applied_rows", "Rows of the changelog that this run has applied."),
    "merges": ("merges", "How often this run has applied pending rows."),
    "merge_seconds": ("merge_seconds", "Seconds that this run has spent applying rows."),
}
_DEPENDENT_GAUGES = {
    "rows": ("rows", "Rows of its table in the lake, such as the documents of current."),
    "pending": ("pending_rows", "Rows of the changelog that are not applied yet."),
    "failures": ("failures", "Failed attempts in a row to apply rows."),
}


class PipelineMetrics(MeasuredWork):
    """The newest progress of each source, as metrics named penstock_pipeline_*.

    Args:
        sources: names of all sources of the run; None for a source without a name.
    """

    def __init__(self, sources: Sequence[str | None] = ()) -> None:
        self._sources = sources
        self._updated_at = time.monotonic()
        self._newest: dict[str, SourceProgress] = {}

    def update(self, progress: SourceProgress) -> None:
        """Store the newest progress of a source."""
        self._newest[progress.source or ""] = progress  # a label of Prometheus is text, never None
        self._updated_at = time.monotonic()

    def find_problems(self) -> Sequence[str]:
        """Return why the run is not ready: a source without its bucket, or a table whose last merge failed."""
        problems = [each for source in self._sources for each in _find_source_problems(self._newest.get(source or ""))]
        if (age := time.monotonic() - self._updated_at) > OLDEST_SECONDS:
            problems.append(
                f"the run reported its progress {math.ceil(age)} s ago, expected at most {OLDEST_SECONDS:.0f} s"
            )
        return problems

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
                if (value := getattr(each, name)) is not None:
                    family.add_metric([source, each.name, each.kind], value)
            yield family
        yield from _collect_rests(found)


def _collect_rests(found: list[tuple[str, DependentProgress]]) -> Iterator[Metric]:
    """Yield the values that no column of the typed tables has: in all, and by field and reason."""
    rows = GaugeMetricFamily(
        "penstock_pipeline_table_rest_rows",
        "Rows of a typed table with a _rest.",
        labels=["source", "name"],
    )
    values = GaugeMetricFamily(
        "penstock_pipeline_table_rest_values",
        "Values in the _rest of a typed table, by field and reason.",
        labels=["source", "name", "field", "reason"],
    )
    for source, each in found:
        if each.rest is not None:
            rows.add_metric([source, each.name], each.rest.rows)
            for misfit in each.rest.misfits:
                values.add_metric([source, each.name, escape_text(misfit.field), misfit.reason], misfit.values)
    yield rows
    yield values


def _find_source_problems(progress: SourceProgress | None) -> Iterator[str]:
    if progress is None:
        yield "no progress yet"
        return
    source = "" if progress.source is None else f"source {progress.source}: "
    if progress.lag is None:
        yield f"{source}the lag is not known"
    if progress.missing_vbuckets:
        yield f"{source}{len(progress.missing_vbuckets)} vbuckets wait for their nodes"
    for each in progress.dependents:
        if each.failures:
            yield f"{source}{each.kind} {each.name} has failed {each.failures} times in a row"


@contextmanager
def serve_run(
    definition: PipelineDefinition, metrics: WebListener | None, dashboard: WebListener | None
) -> Iterator[ServedRun]:
    """Serve metrics and the page of a run while the block runs: on one port if both have the same address.

    Args:
        definition: the pipeline.
        metrics: where to serve metrics, health and readiness; None: nowhere.
        dashboard: where to serve the page; None: nowhere.

    Yields:
        The run's figures to update, and the addresses.
    """
    served = ServedRun(PipelineMetrics([source.name for source in definition.sources if not source.paused]))
    sites: dict[tuple[str, int], tuple[WebListener, list[Site]]] = {}

    def add_site(listener: WebListener, site: Site) -> None:
        sites.setdefault((listener.host, listener.port), (listener, []))[1].append(site)

    with ExitStack() as stack:
        page: DashboardSite | None = None
        if metrics is not None:
            add_site(metrics, MetricsSite(served.metrics, metrics.login))
        if dashboard is not None:
            served.documents = PipelineSource(definition)
            page = stack.enter_context(DashboardSite(served.documents, dashboard))
            add_site(dashboard, page)
        ports = {place: stack.enter_context(serve_sites(found, one)) for place, (one, found) in sites.items()}
        if metrics is not None:
            served.urls["metrics"] = metrics.make_url(ports[metrics.host, metrics.port])
        if dashboard is not None and page is not None:
            served.urls["dashboard"] = page.make_url(ports[dashboard.host, dashboard.port])
        yield served


class ServedRun:
    """The figures of a run that are served.

    Args:
        metrics: those for Prometheus.

    Attributes:
        documents: those of the page; None: it is not served.
        urls: the addresses of the pages metrics and dashboard, with the token of the dashboard.
    """

    def __init__(self, metrics: PipelineMetrics) -> None:
        self.metrics = metrics
        self.documents: PipelineSource | None = None
        self.urls: dict[str, str] = {}

    def update(self, progress: SourceProgress) -> None:
        """Store the newest progress of a source."""
        self.metrics.update(progress)
        if self.documents is not None:
            self.documents.update(progress)
