"""The metrics of a process for Prometheus, its health and its readiness, as a site of its HTTP server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from penstock.client.login.credentials import Credentials
from penstock.client.signals.web_listener import WebListener
from penstock.client.signals.web_server import WebAccess, WebRequest, WebResponse, serve_sites


class MeasuredWork(Collector):
    """Metrics of a process, and whether it does its work."""

    def find_problems(self) -> Sequence[str]:
        """Return why the process is not ready; empty if it is. The texts name no user and no secret."""
        raise NotImplementedError


@contextmanager
def serve_collector(work: MeasuredWork, listener: WebListener) -> Iterator[int]:
    """Serve /metrics, /healthz and /readyz while the block runs, in threads.

    Args:
        work: makes the metrics for each request.
        listener: the address, and the login that /metrics requires. The other paths need none.

    Yields:
        The port.

    Raises:
        UsageError: the port cannot be used.
    """
    with serve_sites([MetricsSite(work, listener.login)], listener) as port:
        yield port


class MetricsSite:
    """Answers /metrics, /healthz and /readyz.

    Args:
        work: the metrics and the readiness.
        login: required for metrics; None: no login is.
    """

    def __init__(self, work: MeasuredWork, login: Credentials | None) -> None:
        self._work = work
        self._access = WebAccess(login)

    def __call__(self, request: WebRequest) -> WebResponse | None:
        """Answer a request; None for another path."""
        if request.method == "POST" and request.path in ("/metrics", "/readyz", "/healthz"):
            return WebResponse.refuse_method()
        if request.path == "/metrics":
            return self._access.refuse(request) or self._make_metrics(request)
        if request.path == "/readyz":
            return self._make_readiness()
        return WebResponse.from_text("200 OK", "alive") if request.path == "/healthz" else None

    def _make_metrics(self, request: WebRequest) -> WebResponse:
        encode, kind = choose_encoder(request.get_header("accept"))
        return WebResponse("200 OK", kind, encode(self._work))

    def _make_readiness(self) -> WebResponse:
        problems = [*self._work.find_problems()]
        body = json.dumps({"ready": not problems, "problems": problems}).encode()
        return WebResponse("503 Service Unavailable" if problems else "200 OK", "application/json", body)
