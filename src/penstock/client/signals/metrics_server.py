"""The server of metrics for Prometheus, on a port of loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from penstock.errors import UsageError

__all__ = ["serve_collector"]


@contextmanager
def serve_collector(collector: Collector, port: int) -> Iterator[int]:
    """Serve the metrics of a collector at /metrics on a port of 127.0.0.1, in a thread, while the block runs.

    Args:
        collector: makes the metrics for each request, in that thread.
        port: the port; 0 for any free port.

    Yields:
        The port.

    Raises:
        UsageError: the port cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise UsageError(f"cannot serve metrics on port {port} of 127.0.0.1: {error.strerror}") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
