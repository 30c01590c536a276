"""The address where a process serves metrics or a page: host, port and login."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.login.credentials import Credentials, read_credentials_file
from penstock.digits import read_digits
from penstock.errors import UsageError
from penstock.options import FILE, nonempty, option

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardFlags:
    """The options of commands that serve a page about their work."""

    dashboard: str | None = option(
        nonempty("a port", metavar="[HOST:]PORT"),
        "serve a page about the run on this port of 127.0.0.1, or of HOST, which needs --dashboard-login if other "
        "machines reach it; 0: any free port; may be the port of --metrics",
        default=None,
    )
    dashboard_login: str | None = option(
        FILE,
        'file with the login of the page, {"username": ..., "password": ...}; without it, the printed address has a '
        "token",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class WebListener:
    """The address where a process serves metrics or a page.

    Raises UsageError if other machines reach the port and no login is required.

    Attributes:
        port: the port; 0 for any free port.
        host: the address to listen on.
        login: the user name and password that requests must have; None: no login is required.
        purpose: the contents, for messages.
    """

    port: int
    host: str = LOOPBACK
    login: Credentials | None = field(default=None, repr=False)
    purpose: str = "metrics"

    def __post_init__(self) -> None:
        if self.login is None and not is_loopback(self.host):
            raise UsageError(
                f"other machines reach {self.purpose} on {self.host}: expected a file with a login for them"
            )

    def make_url(self, port: int, path: str = "/metrics") -> str:
        """Return the address of a path on the port that was taken."""
        return f"http://{format_endpoint(self.host, port)}{path}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_listener(
    place: str | None, login_file: str | None, *, flag: str = "--metrics", purpose: str = "metrics"
) -> WebListener | None:
    """Return the address that a command's options name; None without one.

    Args:
        place: the option's [HOST:]PORT; None: it was not given.
        login_file: the file with the login, the option FLAG-login.
        flag: the name of the option.
        purpose: the contents, for messages.

    Raises:
        UsageError: the options are invalid, or a login is missing.
    """
    if place is None:
        if login_file is not None:
            raise UsageError(f"{flag}-login without {flag}")
        return None
    host, _, digits = place.rpartition(":")
    port = read_digits(digits, _MAX_PORT)
    if port is None:
        raise UsageError(
            f"{flag} is {place!r}, expected a port from 0 to {_MAX_PORT}, or HOST:PORT such as 10.0.0.1:9464"
        )
    bare = host.removeprefix("[").removesuffix("]")
    login = None if login_file is None else read_credentials_file(login_file)
    return WebListener(port, bare or LOOPBACK, login, purpose)
