"""Reports of a stream that are repeated while it runs, and served for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from penstock.client.signals.consumer_report import ConsumerReport
from penstock.client.signals.consumer_reporter import ConsumerReporter

__all__ = ["REPORT_SECONDS", "repeat_reports", "serve_reports"]

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
        with suppress(asyncio.CancelledError):
            await reporting


@asynccontextmanager
async def serve_reports(reporter: ConsumerReporter, port: int, seconds: float = REPORT_SECONDS) -> AsyncIterator[int]:
    """Serve the reports of a stream as metrics at /metrics on a port of 127.0.0.1 while the block runs.

    Args:
        reporter: makes the reports.
        port: the port; 0 for any free port.
        seconds: the time between two reports.

    Yields:
        The port.

    Raises:
        UsageError: the port cannot be used.
    """
    from penstock.client.signals.metrics_server import serve_collector
    from penstock.client.signals.report_metrics import ReportCollector

    collector = ReportCollector()

    def keep(report: ConsumerReport) -> None:
        collector.newest = report

    with serve_collector(collector, port) as served:
        async with repeat_reports(reporter, keep, seconds):
            yield served
