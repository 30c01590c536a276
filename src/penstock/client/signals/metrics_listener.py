"""Where a consumer or a pipeline serves its metrics: address, port and login."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.login.credentials import Credentials, read_credentials_file
from penstock.errors import UsageError
from penstock.options import FILE, nonempty, option

__all__ = ["LOOPBACK", "MetricsFlags", "MetricsListener", "read_listener"]

LOOPBACK = "127.0.0.1"
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFlags:
    """The options of commands that serve metrics."""

    metrics: str | None = option(
        nonempty("a port", metavar="[HOST:]PORT"),
        "serve metrics for Prometheus, /healthz and /readyz on this port of 127.0.0.1, or of HOST, which needs "
        "--metrics-login if other machines reach it; 0: any free port",
        default=None,
    )
    metrics_login: str | None = option(
        FILE, 'file with the login of the metrics, {"username": ..., "password": ...}', default=None
    )


@dataclass(frozen=True, slots=True)
class MetricsListener:
    """The place where metrics are served.

    Raises UsageError if other machines reach the port and no login is required.

    Attributes:
        port: the port; 0 for any free port.
        host: the address to listen on.
        login: the user name and password that requests for metrics must have; None: no login is required.
    """

    port: int
    host: str = LOOPBACK
    login: Credentials | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.login is None and not _is_loopback(self.host):
            raise UsageError(f"other machines reach metrics on {self.host}: expected a file with a login for them")

    def make_url(self, port: int) -> str:
        """Return the address of the metrics on the port that was taken."""
        return f"http://{format_endpoint(self.host, port)}/metrics"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_listener(flags: MetricsFlags) -> MetricsListener | None:
    """Return the place that a command's options name; None without one.

    Raises:
        UsageError: the options are invalid, or a login is missing.
    """
    if flags.metrics is None:
        if flags.metrics_login is not None:
            raise UsageError("--metrics-login without --metrics")
        return None
    host, _, port = flags.metrics.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= _MAX_PORT):
        raise UsageError(
            f"--metrics is {flags.metrics!r}, expected a port from 0 to {_MAX_PORT}, or HOST:PORT such as 10.0.0.1:9464"
        )
    bare = host.removeprefix("[").removesuffix("]")
    login = None if flags.metrics_login is None else read_credentials_file(flags.metrics_login)
    return MetricsListener(int(port), bare or LOOPBACK, login)
