"""Reports of a stream that are repeated while it runs, and served for Prometheus and OpenTelemetry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from penstock.client.signals.consumer_report import ConsumerReport
from penstock.client.signals.consumer_reporter import ConsumerReporter
from penstock.client.signals.web_listener import WebListener

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

REPORT_SECONDS = 5.0
"""Seconds between two reports that are served. Prometheus asks every 15 seconds or so."""


@asynccontextmanager
async def repeat_reports(
    reporter: ConsumerReporter, handle: Callable[[ConsumerReport], None], seconds: float
) -> AsyncIterator[None]:
    """Report again and again while the block runs.

    Args:
        reporter: makes the reports.
        handle: receives each report, on the event loop.
        seconds: the time between two reports.
    """

    async def report() -> None:
        while True:
            handle(await reporter.report())
            await asyncio.sleep(seconds)

    reporting = asyncio.create_task(report())
    try:
        yield
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


@asynccontextmanager
async def serve_reports(
    reporter: ConsumerReporter,
    listener: WebListener | None,
    *,
    meter: Meter | None = None,
    seconds: float = REPORT_SECONDS,
) -> AsyncIterator[int | None]:
    """Serve the reports of a stream as metrics while the block runs.

    Args:
        reporter: makes the reports.
        listener: where to serve Prometheus; None: nowhere.
        meter: for OpenTelemetry; None: not for OpenTelemetry.
        seconds: the time between two reports.

    Yields:
        The port; None without one.

    Raises:
        UsageError: the port cannot be used.
    """
    if listener is None and meter is None:
        yield None
        return
    port: int | None = None
    from penstock.client.signals.report_metrics import ReportCollector

    collector = ReportCollector()

    def keep(report: ConsumerReport | None) -> None:
        collector.newest = report

    with ExitStack() as stack:
        if listener is not None:
            from penstock.client.signals.metrics_server import serve_collector

            port = stack.enter_context(serve_collector(collector, listener))
        if meter is not None:
            from penstock.client.signals.otel_metrics import observe_reports

            observe_reports(meter, lambda: collector.newest)
            stack.callback(keep, None)
        async with repeat_reports(reporter, keep, seconds):
            yield port
