"""The metrics of a change stream. Each is declared once, for Prometheus, OpenTelemetry and the reference.

No metric has a label for the vbucket: 1024 series of each consumer would cost more than they say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.client.signals.consumer_report import ConsumerReport
from penstock.client.signals.metrics_server import MeasuredWork

OLDEST_SECONDS = 60.0
"""Age from which on the lag of a stream counts as unknown. A stream reports every few seconds."""


@dataclass(frozen=True, slots=True)
class ReportMetric:
    """A metric of a change stream.

    Attributes:
        name: the name after `penstock_stream_`, with the unit, without `_total`.
        is_counter: whether it only grows; otherwise it is a gauge.
        unit: the unit in UCUM, as OpenTelemetry writes it.
        text: the meaning.
        read: returns its value; None: there is none.
    """

    name: str
    is_counter: bool
    unit: str
    text: str
    read: Callable[[ConsumerReport], float | None]


METRICS = (
    ReportMetric("changes", True, "{change}", "Changes that were delivered.", lambda r: r.counts.changes),
    ReportMetric("received_bytes", True, "By", "Bytes of these changes.", lambda r: r.counts.received_bytes),
    ReportMetric("rollbacks", True, "{rollback}", "Vbuckets rolled back, each time.", lambda r: r.counts.rollbacks),
    ReportMetric("reconnects", True, "{connection}", "Connections opened again.", lambda r: r.counts.reconnects),
    ReportMetric("errors", True, "{error}", "Failures after which it tried again.", lambda r: r.counts.errors),
    ReportMetric(
        "unreadable",
        True,
        "{change}",
        "Changes that the filter could not read.",
        lambda r: r.counts.unreadable.count,
    ),
    ReportMetric(
        "last_error_timestamp_seconds",
        False,
        "s",
        "Time of the newest failure, since the epoch.",
        lambda r: r.counts.last_error_at or None,
    ),
    ReportMetric(
        "caught_up", False, "1", "1 if it had all changes of the bucket, else 0.", lambda r: float(r.is_caught_up)
    ),
    ReportMetric("lag_seqnos", False, "{seqno}", "Lag of all vbuckets together.", lambda r: r.lag_seqnos),
    ReportMetric(
        "largest_lag_seqnos", False, "{seqno}", "Lag of the vbucket that lags most.", lambda r: r.largest_lag_seqnos
    ),
    ReportMetric("lag_seconds", False, "s", "Lag of the vbucket that lags longest.", lambda r: r.lag_seconds),
    ReportMetric("lagging_vbuckets", False, "{vbucket}", "Vbuckets with a lag.", lambda r: r.lagging_vbuckets),
    ReportMetric("vbuckets", False, "{vbucket}", "Vbuckets that it reads.", lambda r: len(r.lags)),
    ReportMetric("missing_vbuckets", False, "{vbucket}", "Vbuckets without their node.", lambda r: len(r.missing)),
    ReportMetric("buffered_bytes", False, "By", "Bytes received, and not processed.", lambda r: r.buffered_bytes),
    ReportMetric(
        "seqnos_timestamp_seconds",
        False,
        "s",
        "Time at which the bucket reported the seqnos of the lag, since the epoch.",
        lambda r: r.seqnos_at or None,
    ),
)
"""All metrics of a report."""


class ReportCollector(MeasuredWork):
    """The newest report of a stream, as metrics named penstock_stream_*.

    Attributes:
        newest: the report; None before the first one.
    """

    def __init__(self) -> None:
        self.newest: ConsumerReport | None = None

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics; Prometheus' library calls this for each request."""
        newest = self.newest
        for metric in METRICS:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(f"penstock_stream_{metric.name}", metric.text, labels=["bucket"])
            if newest is not None and (value := metric.read(newest)) is not None:
                family.add_metric([newest.bucket], value)
            yield family

    def find_problems(self) -> Sequence[str]:
        """Return why the stream is not ready: it has no connection to a node, or its lag is not known."""
        newest = self.newest
        if newest is None:
            return ["no report yet"]
        problems = []
        if newest.missing:
            problems.append(f"{len(newest.missing)} vbuckets wait for their nodes")
        if not newest.seqnos_at:
            problems.append("the bucket has not reported its seqnos yet")
        elif (age := time.time() - newest.seqnos_at) > OLDEST_SECONDS:
            problems.append(
                f"the bucket reported its seqnos {math.ceil(age)} s ago, expected at most {OLDEST_SECONDS:.0f} s"
            )
        return problems
