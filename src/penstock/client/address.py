"""Connection strings: `couchbase://host[:port][,host...]/bucket?option=value`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import UsageError

DEFAULT_PORT = 11210
DEFAULT_URL = f"couchbase://127.0.0.1:{DEFAULT_PORT}/default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a connection. In a connection string and in Spark they have the names in brackets.

    connect_timeout: seconds for a connection to be made and set up (connectTimeout).
    operation_timeout: seconds for one request's answer (operationTimeout).
    retry_seconds: how long a node that is not there is tried again, from the last success on (retrySeconds).
    flow_control_bytes: stream bytes a producer may send ahead of what has been consumed (flowControlBytes).
    noop_interval: seconds between the producer's liveness checks; silence of twice that ends the connection
    (noopInterval).
    """

    connect_timeout: float = 10.0
    operation_timeout: float = 10.0
    retry_seconds: float = 30.0
    flow_control_bytes: int = 20 * 1024 * 1024
    noop_interval: int = 20

    @classmethod
    def from_text(cls, given: dict[str, str]) -> Self:
        """Read options by their outside names. Raises UsageError for an unknown name or a value out of range."""
        return replace(cls(), **{field: _number(name, given[name]) for name, field in _known(given)})


def _known(given: dict[str, str]) -> list[tuple[str, str]]:
    names = {outside_name(field.name): field.name for field in fields(Options)}
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r} in the connection string; known are {', '.join(names)}")
    return [(name, names[name]) for name in given]


def outside_name(field: str) -> str:
    """Return the name of an option in connection strings and in Spark: connect_timeout is connectTimeout there."""
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


_RANGES = {"noopInterval": (1, 10800), "flowControlBytes": (64 * 1024, 2**32 - 1)}


def _number(name: str, text: str) -> Any:
    low, high = _RANGES.get(name, (0.001, 86400.0))
    kind: type[int] | type[float] = int if name in _RANGES else float
    try:
        number = kind(text)
    except ValueError:
        number = kind(-1)
    if not low <= number <= high:
        raise UsageError(f"option {name} is {text!r}, expected a number from {low} to {high}")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a bucket is, and how to talk to it."""

    hosts: tuple[tuple[str, int], ...]
    bucket: str
    options: Options

    def __str__(self) -> str:
        return f"couchbase://{','.join(f'{_bracketed(host)}:{port}' for host, port in self.hosts)}/{self.bucket}"


def parse_address(url: str) -> Address:
    """Read a connection string. Raises UsageError with what was found and what was expected."""
    if "://" not in url:
        raise UsageError(f"connection string {url!r} has no scheme, expected couchbase://host:port/bucket")
    scheme, rest = url.split("://", 1)
    if scheme == "couchbases":
        raise UsageError("couchbases:// needs TLS, which this version does not speak yet; use couchbase://")
    if scheme != "couchbase":
        raise UsageError(f"connection string begins with {scheme}://, expected couchbase://")
    try:
        parts = urlsplit("//" + rest)
    except ValueError as error:
        raise UsageError(f"connection string {url!r}: {error}; expected couchbase://host:port/bucket") from None
    if "@" in parts.netloc:
        raise UsageError("connection string holds a login, which this version does not speak yet; remove it")
    if parts.fragment:
        raise UsageError(f"connection string has #{parts.fragment} at its end, expected couchbase://host:port/bucket")
    hosts = tuple(_host(text) for text in parts.netloc.split(","))
    bucket = unquote(parts.path.removeprefix("/")) or "default"
    if "/" in bucket:
        raise UsageError(f"bucket name {bucket!r} in the connection string holds a '/'")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    return Address(hosts=hosts, bucket=bucket, options=Options.from_text(given))


def _host(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if not host:
        raise UsageError("connection string names no host, expected couchbase://host:port/bucket")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"port {port!r} in the connection string, expected a number from 1 to 65535")
    try:
        host.encode("idna")
    except UnicodeError:
        raise UsageError(f"host {host!r} in the connection string, expected a name or an address") from None
    return host.strip("[]"), int(port)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
