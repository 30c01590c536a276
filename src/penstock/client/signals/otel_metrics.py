"""The metrics of a change stream for OpenTelemetry, on a meter of the program. Needs the extra `opentelemetry`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from penstock.client.signals.consumer_report import ConsumerReport
from penstock.client.signals.report_metrics import METRICS, ReportMetric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

NewestReport = Callable[[], ConsumerReport | None]
"""Returns the newest report; None before the first one, and after the last one."""


def observe_reports(meter: Meter, find_newest: NewestReport) -> None:
    """Create the instruments, named penstock.stream.*, on a meter.

    Args:
        meter: the meter. It keeps its instruments for ever, so a program uses it for one stream at a time.
        find_newest: is called by the meter's readers, in their threads.
    """
    for metric in METRICS:
        create = meter.create_observable_counter if metric.is_counter else meter.create_observable_gauge
        create(f"penstock.stream.{metric.name}", [partial(_observe, metric, find_newest)], metric.unit, metric.text)


def _observe(metric: ReportMetric, find_newest: NewestReport, options: CallbackOptions) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    newest = find_newest()
    if newest is not None and (value := metric.read(newest)) is not None:
        yield Observation(value, {"bucket": newest.bucket})
