"""The server of a process's metrics for Prometheus, of its health and of its readiness."""

from __future__ import annotations

import base64
import hmac
import json
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from penstock.client.login.credentials import Credentials
from penstock.client.signals.metrics_listener import MetricsListener
from penstock.errors import UsageError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

__all__ = ["MeasuredWork", "serve_collector"]

_REQUEST_SECONDS = 20.0
"""Within which a client must send its request, and take the response."""


class MeasuredWork(Collector):
    """Metrics of a process, and whether it does its work."""

    def find_problems(self) -> Sequence[str]:
        """Return why the process is not ready; empty if it is. The texts name no user and no secret."""
        raise NotImplementedError


@contextmanager
def serve_collector(work: MeasuredWork, listener: MetricsListener) -> Iterator[int]:
    """Serve /metrics, /healthz and /readyz while the block runs, in threads.

    Args:
        work: makes the metrics for each request.
        listener: the address, and the login that /metrics requires. The other paths need none.

    Yields:
        The port.

    Raises:
        UsageError: the port cannot be used.
    """
    try:
        server = _MetricsServer(listener, _MetricsApp(work, listener.login))
    except OSError as error:
        where = f"port {listener.port} of {listener.host}"
        raise UsageError(f"cannot serve metrics on {where}: {error.strerror or error}") from None
    thread = Thread(target=server.serve_forever, name="penstock-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves each connection in a thread."""

    daemon_threads = True
    block_on_close = False  # a slow client must not delay the end of the process

    def __init__(self, listener: MetricsListener, app: _MetricsApp) -> None:
        found = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__((listener.host, listener.port), _MetricsHandler)
        self.set_app(app)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name in DNS, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has left."""


class _MetricsHandler(WSGIRequestHandler):
    """Reads requests, and logs none of them."""

    timeout = _REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Log nothing."""


class _MetricsApp:
    """The WSGI application.

    Args:
        work: the metrics and the readiness.
        login: required for metrics; None: no login is.
    """

    def __init__(self, work: MeasuredWork, login: Credentials | None) -> None:
        self._work = work
        self._authorization = None if login is None else _make_authorization(login)
        self._pages: dict[str, Callable[[WSGIEnvironment], _Page]] = {
            "/metrics": self._make_metrics,
            "/healthz": lambda _: ("200 OK", "text/plain; charset=utf-8", b"alive\n"),
            "/readyz": self._make_readiness,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve a request."""
        make = self._pages.get(environ.get("PATH_INFO", ""))
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            page = _make_text("405 Method Not Allowed")
        else:
            page = _make_text("404 Not Found") if make is None else make(environ)
        status, kind, body = page
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
        if status.startswith("401"):
            headers.append(("WWW-Authenticate", 'Basic realm="Penstock"'))
        start_response(status, headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _make_metrics(self, environ: WSGIEnvironment) -> _Page:
        if self._authorization is not None:
            given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, self._authorization):
                return _make_text("401 Unauthorized")
        encode, kind = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        return "200 OK", kind, encode(self._work)

    def _make_readiness(self, environ: WSGIEnvironment) -> _Page:
        problems = [*self._work.find_problems()]
        body = json.dumps({"ready": not problems, "problems": problems}).encode()
        return ("503 Service Unavailable" if problems else "200 OK"), "application/json", body


_Page = tuple[str, str, bytes]
"""Status line, content type and body."""


def _make_text(status: str) -> _Page:
    return status, "text/plain; charset=utf-8", f"{status[4:]}\n".encode()


def _make_authorization(login: Credentials) -> bytes:
    return b"Basic " + base64.b64encode(f"{login.username}:{login.password}".encode())
