"""Keys of a pipeline's file that `penstock pipeline run` has as options. They are read without importing Arrow."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.login.credentials import Credentials, read_credentials_file, resolve_credentials
from penstock.client.login.password_options import PasswordOptions, choose_password
from penstock.client.signals.web_listener import LOOPBACK, WebListener, is_loopback
from penstock.errors import UsageError
from penstock.options import BOOLEAN, FILE, PORT, TEXT, check_limits, nonempty, number, option, shared_option


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When the micro-batches of a source start."""

    trigger_seconds: float = option(
        number(0, 86400), "seconds from the begin of a micro-batch to the next", default=1.0, flag="--trigger"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAddress:
    """The address of something that a run serves, and the login that other machines need."""

    host: str = option(
        nonempty("an address"), "the address of the port; needs a login if other machines reach it", default=LOOPBACK
    )
    login: str | None = option(FILE, 'file with the login, {"username": ..., "password": ...}', default=None)
    username: str | None = option(TEXT, "user name of the login, instead of the file `login`", default=None)
    password_file: str | None = shared_option(PasswordOptions)
    password_command: tuple[str, ...] | None = shared_option(PasswordOptions, secret=True)
    password_from: str | None = shared_option(PasswordOptions)

    def __post_init__(self) -> None:
        check_limits(self)
        password = choose_password(self)
        if self.login is not None and not (self.username is None and password is None):
            raise UsageError("login has the whole login, expected it without username and password")
        if (self.username is None) != (password is None):
            raise UsageError("username and a source of its password, expected both or neither")
        if not self.has_login and not is_loopback(self.host):
            raise UsageError(f"host is {self.host!r}, which other machines reach: expected a login for them")

    @property
    def has_login(self) -> bool:
        """Whether requests need a login."""
        return self.login is not None or self.username is not None

    def read_login(self) -> Credentials | None:
        """Return the login that requests need; None without one. Raises UsageError if it cannot be read."""
        if self.login is not None:
            return read_credentials_file(self.login)
        return resolve_credentials(self.username, choose_password(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics(ServedAddress):
    """The metrics for Prometheus."""

    port: int = option(PORT, "serve metrics for Prometheus on this port, at /metrics; 0: any free port")

    def make_listener(self) -> WebListener:
        """Return the address with its login. Raises UsageError if the login cannot be read."""
        return WebListener(self.port, self.host, self.read_login())


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings(ServedAddress):
    """The page about a run."""

    enabled: bool = option(BOOLEAN, "whether the run serves the page", default=True)
    port: int = option(
        PORT, "serve the page on this port, which may be that of the metrics; 0: any free port", default=0
    )

    def make_listener(self) -> WebListener | None:
        """Return the address with its login; None if it is not enabled. Raises UsageError for an unreadable login."""
        return WebListener(self.port, self.host, self.read_login(), "the dashboard") if self.enabled else None
