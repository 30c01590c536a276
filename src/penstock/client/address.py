"""Connection strings: `couchbase://host[:port][,host...]/bucket?option=value`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote

from penstock.errors import UsageError
from penstock.wire.constants import Dialect

DEFAULT_PORT = 11210
DEFAULT_URL = f"couchbase://127.0.0.1:{DEFAULT_PORT}/default"
_EXPECTED = "couchbase://host:port/bucket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a connection. In a connection string and in Spark they have the names in brackets.

    connect_timeout: seconds for a connection to be made and set up (connectTimeout).
    operation_timeout: seconds for one request's answer (operationTimeout).
    retry_seconds: how long a node that does not serve is tried again, from the first failure on (retrySeconds).
    flow_control_bytes: stream bytes a producer may send ahead of what has been consumed (flowControlBytes).
    noop_interval: seconds between the producer's liveness checks; silence of twice that ends the connection
    (noopInterval).
    protocol: the dialect of change streams: tap, upr-draft, upr or dcp (protocol).
    """

    connect_timeout: float = 10.0
    operation_timeout: float = 10.0
    retry_seconds: float = 30.0
    flow_control_bytes: int = 20 * 1024 * 1024
    noop_interval: int = 20
    protocol: Dialect = Dialect.DCP

    @classmethod
    def from_text(cls, given: dict[str, str]) -> Self:
        """Read options by their outside names. Raises UsageError for an unknown name or a value out of range."""
        names = {outside_name(field.name): field.name for field in fields(cls)}
        for name in given:
            if name not in names:
                raise UsageError(f"unknown option {name!r} in the connection string; known are {', '.join(names)}")
        read = {"protocol": dialect_of}
        values: dict[str, Any] = {
            names[name]: read[name](text) if name in read else _number(names[name], text)
            for name, text in given.items()
        }
        return cls(**values)


def dialect_of(name: str) -> Dialect:
    """Return the dialect of this name. Raises UsageError."""
    if name not in Dialect._value2member_map_:
        raise UsageError(f"option protocol is {name!r}, expected one of {', '.join(Dialect)}")
    return Dialect(name)


def outside_name(field: str) -> str:
    """Return the name of an option in connection strings and in Spark: connect_timeout is connectTimeout there."""
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


_WHOLE = {"noop_interval": (1, 10800), "flow_control_bytes": (64 * 1024, 2**32 - 1)}
_SECONDS = (0.001, 86400.0)


def _number(field: str, text: str) -> int | float:
    low, high = _WHOLE.get(field, _SECONDS)
    kind: type[int] | type[float] = int if field in _WHOLE else float
    try:
        number = kind(text)
    except ValueError:
        number = kind(-1)
    if not (low <= number <= high and text.isascii() and "_" not in text):
        what = "a whole number" if field in _WHOLE else "a number"
        raise UsageError(f"option {outside_name(field)} is {text!r}, expected {what} from {low} to {high}")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a bucket is, and how to talk to it. hosts: names or addresses, and ports."""

    hosts: tuple[tuple[str, int], ...]
    bucket: str
    options: Options

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"couchbase://{hosts}/{quote(self.bucket)}"


def parse_address(url: str) -> Address:
    """Read a connection string. Raises UsageError with what was found and what was expected, never with a password."""
    scheme, found, rest = url.partition("://")
    if "@" in url:  # first of all, and wherever it stands: no other message may show what could be a password
        raise UsageError("connection string holds a login, which this version does not speak yet; remove it")
    if not found:
        raise UsageError(f"connection string {url!r} has no scheme, expected {_EXPECTED}")
    if scheme == "couchbases":
        raise UsageError("couchbases:// needs TLS, which this version does not speak yet; use couchbase://")
    if scheme != "couchbase":
        raise UsageError(f"connection string begins with {scheme}://, expected couchbase://")
    rest, _, fragment = rest.partition("#")
    if fragment:
        raise UsageError(f"connection string has #{fragment} at its end, expected {_EXPECTED}")
    rest, _, query = rest.partition("?")
    hosts, _, path = rest.partition("/")
    return Address(
        hosts=tuple(_host(text) for text in hosts.split(",")),
        bucket=_bucket(unquote(path)) if path else "default",
        options=Options.from_text(_pairs(query)),
    )


def _pairs(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in given:
            raise UsageError(f"option {name} is given twice in the connection string, expected once")
        given[name] = text
    return given


_BUCKET_NAME = re.compile(r"[A-Za-z0-9_.%-]{1,100}")


def _bucket(name: str) -> str:
    if not _BUCKET_NAME.fullmatch(name):
        raise UsageError(f"bucket name {name!r}, expected 1 to 100 of the characters A-Z a-z 0-9 _ . % -")
    return name


_HOST = re.compile(r"(\[(?P<address>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(:(?P<port>[^:]*))?")


def _host(text: str) -> tuple[str, int]:
    parts = _HOST.fullmatch(text)
    if parts is None:
        raise UsageError(f"host {text!r} in the connection string, expected name:port or [IPv6 address]:port")
    host, port = parts["address"] or parts["name"], parts["port"]
    if not host:
        raise UsageError(f"connection string names no host, expected {_EXPECTED}")
    if not (_is_ipv6(host) if parts["address"] else _is_name(host)):
        kind = "an IPv6 address in the brackets" if parts["address"] else "a name or an address"
        raise UsageError(f"host {host!r} in the connection string, expected {kind}")
    if port is None:
        return host, DEFAULT_PORT
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise UsageError(f"port {port!r} in the connection string, expected a number from 1 to 65535")
    return host, int(port)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_name(text: str) -> bool:
    """Tell whether the resolver can be asked: for a name that cannot be one it raises what is no OSError."""
    try:
        return re.fullmatch(r"[A-Za-z0-9._-]+", text.encode("idna").decode()) is not None
    except UnicodeError:
        return False
