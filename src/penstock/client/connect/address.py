"""Connection strings: `couchbase://host[:port][,host...]/bucket?option=value`, with TLS `couchbases://`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote

from penstock.client.connect.credentials import Credentials
from penstock.errors import UsageError
from penstock.wire.codec.constants import Dialect

MOST_VBUCKETS = 65536
MOST_PORT = 65535
DEFAULT_PORT, DEFAULT_TLS_PORT = 11210, 11207
DEFAULT_URL = f"couchbase://127.0.0.1:{DEFAULT_PORT}/default"
_EXPECTED = "couchbase://host:port/bucket"


class TlsVerify(StrEnum):
    """What is checked of a node that is connected to by TLS. NONE: nothing, so that anybody may answer in its place."""

    FULL = "full"
    NONE = "none"


class MissingVbuckets(StrEnum):
    """What a read does about vbuckets that no node serves: wait and FAIL, or SKIP them and report it."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Settings of a connection. In a connection string and in Spark they have the names in brackets.

    connect_timeout: seconds for a connection to be made and set up (connectTimeout).
    operation_timeout: seconds for one request's answer (operationTimeout).
    retry_seconds: how long a node that does not serve is tried again, from the first failure on (retrySeconds).
    flow_control_bytes: stream bytes a producer may send ahead of what has been consumed (flowControlBytes).
    noop_interval: seconds between the producer's liveness checks; silence of twice that ends the connection, and
    each time that this happens the next connection may be silent for longer, up to 24 seconds (noopInterval).
    vbucket_count: how many vbuckets the bucket has; the address alone serves it, and no cluster map is asked for. 0:
    as in the cluster map (vbucketCount).
    missing_vbuckets: what a read up to now does about vbuckets that no node serves: `fail` after retry_seconds, or
    `skip` them, with a warning that names them (missingVbuckets).
    protocol: the dialect of change streams: tap, upr-draft, upr or dcp (protocol).
    scope, collections: the part of the bucket whose changes are wanted: one scope, or collections as `name` of that
    scope (`_default` if there is none) or `scope.name`, with commas between them (scope, collections).
    xattrs: changes come with the documents' extended attributes (xattrs).
    ca: a PEM file with the authorities that are believed instead of the system's (ca). certificate, certificate_key:
    PEM files with what the client shows of itself; a key may also stand in the first (certificate, certificateKey).
    tls_verify: a TlsVerify (tlsVerify). These four are for couchbases:// only.
    """

    connect_timeout: float = 10.0
    operation_timeout: float = 10.0
    retry_seconds: float = 30.0
    flow_control_bytes: int = 20 * 1024 * 1024
    noop_interval: int = 20
    vbucket_count: int = 0
    missing_vbuckets: MissingVbuckets = MissingVbuckets.FAIL
    protocol: Dialect = Dialect.DCP
    scope: str = ""
    collections: tuple[str, ...] = ()
    xattrs: bool = False
    ca: str = ""
    certificate: str = ""
    certificate_key: str = ""
    tls_verify: TlsVerify = TlsVerify.FULL

    @classmethod
    def from_text(cls, given: dict[str, str]) -> Self:
        """Read options by their outside names. Raises UsageError for an unknown name or a value out of range."""
        names = {outside_name(field.name): field.name for field in fields(cls)}
        for name in given:
            if name not in names:
                raise UsageError(f"unknown option {name!r} in the connection string; known are {', '.join(names)}")
        values: dict[str, Any] = {
            names[name]: _READ[name](text) if name in _READ else _number(names[name], text)
            for name, text in given.items()
        }
        return cls(**values)

    def tls_names(self) -> list[str]:
        """Return the outside names of those options that are given and say something of TLS."""
        return [outside_name(name) for name in _FOR_TLS if getattr(self, name) != getattr(ConnectionOptions(), name)]


def dialect_of(name: str) -> Dialect:
    """Return the dialect of this name. Raises UsageError."""
    if name not in Dialect._value2member_map_:
        raise UsageError(f"option protocol is {name!r}, expected one of {', '.join(Dialect)}")
    return Dialect(name)


def collection_names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, each once. Raises UsageError for an empty one."""
    names = tuple(dict.fromkeys(text.split(",")))
    if "" in names:
        raise UsageError(f"option collections is {text!r}, expected names with commas between them")
    return names


def truth_of(name: str, text: str) -> bool:
    """Return the value of an option that is true or false. Raises UsageError."""
    if text not in ("true", "false"):
        raise UsageError(f"option {name} is {text!r}, expected true or false")
    return text == "true"


def _missing_of(name: str) -> MissingVbuckets:
    if name not in MissingVbuckets._value2member_map_:
        raise UsageError(f"option missingVbuckets is {name!r}, expected one of {', '.join(MissingVbuckets)}")
    return MissingVbuckets(name)


def _verify_of(name: str) -> TlsVerify:
    if name not in TlsVerify._value2member_map_:
        raise UsageError(f"option tlsVerify is {name!r}, expected one of {', '.join(TlsVerify)}")
    return TlsVerify(name)


def _not_empty(name: str, what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not text:
            raise UsageError(f"option {name} is empty, expected {what}")
        return text

    return read


_FOR_TLS = ("ca", "certificate", "certificate_key", "tls_verify")
_READ: dict[str, Callable[[str], Any]] = {
    "missingVbuckets": _missing_of,
    "protocol": dialect_of,
    "scope": _not_empty("scope", "a name"),
    "collections": collection_names,
    "xattrs": lambda text: truth_of("xattrs", text),
    "ca": _not_empty("ca", "a file"),
    "certificate": _not_empty("certificate", "a file"),
    "certificateKey": _not_empty("certificateKey", "a file"),
    "tlsVerify": _verify_of,
}
"""By outside name, how an option is read that is no number."""


def outside_name(field: str) -> str:
    """Return the name of an option in connection strings and in Spark: connect_timeout is connectTimeout there."""
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


_WHOLE = {
    "noop_interval": (1, 10800),
    "flow_control_bytes": (64 * 1024, 2**32 - 1),
    "vbucket_count": (1, MOST_VBUCKETS),
}
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
    """Where a bucket is, and how to talk to it. hosts: names or addresses, and ports. credentials: of the login.

    Raises UsageError for several hosts with the option vbucketCount: no map shows which has what.
    """

    hosts: tuple[tuple[str, int], ...]
    bucket: str
    options: ConnectionOptions
    tls: bool = False
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        if self.options.vbucket_count and len(self.hosts) > 1:
            raise UsageError(
                f"option vbucketCount with {len(self.hosts)} hosts, expected one, which has the whole bucket"
            )

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"couchbase{'s' * self.tls}://{hosts}/{quote(self.bucket)}"


def parse_address(url: str, credentials: Credentials | None = None) -> Address:
    """Read a connection string. Raises UsageError with what was found and what was expected, never with a password."""
    scheme, found, rest = url.partition("://")
    if "@" in url:  # first of all, and wherever it stands: no other message may show what could be a password
        raise UsageError("connection string holds a login; a username and its password are given apart from it")
    if not found:
        raise UsageError(f"connection string {url!r} has no scheme, expected {_EXPECTED}")
    if scheme not in ("couchbase", "couchbases"):
        raise UsageError(
            f"connection string begins with {scheme}://, expected couchbase:// or, with TLS, couchbases://"
        )
    rest, _, fragment = rest.partition("#")
    if fragment:
        raise UsageError(f"connection string has #{fragment} at its end, expected {_EXPECTED}")
    rest, _, query = rest.partition("?")
    hosts, _, path = rest.partition("/")
    tls = scheme == "couchbases"
    options = ConnectionOptions.from_text(_pairs(query))
    if not tls and (named := options.tls_names()):
        raise UsageError(f"option {named[0]} is about TLS, expected couchbases:// in front of it")
    if options.certificate_key and not options.certificate:
        raise UsageError("option certificateKey without certificate")
    return Address(
        hosts=tuple(_host(text, DEFAULT_TLS_PORT if tls else DEFAULT_PORT) for text in hosts.split(",")),
        bucket=_bucket(unquote(path)) if path else "default",
        options=options,
        tls=tls,
        credentials=credentials,
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


def _host(text: str, default_port: int) -> tuple[str, int]:
    parts = _HOST.fullmatch(text)
    if parts is None:
        raise UsageError(f"host {text!r} in the connection string, expected name:port or [IPv6 address]:port")
    host, port = parts["address"] or parts["name"], parts["port"]
    if not host:
        raise UsageError(f"connection string names no host, expected {_EXPECTED}")
    if not is_host(host, in_brackets=bool(parts["address"])):
        kind = "an IPv6 address in the brackets" if parts["address"] else "a name or an address"
        raise UsageError(f"host {host!r} in the connection string, expected {kind}")
    if port is None:
        return host, default_port
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= MOST_PORT):
        raise UsageError(f"port {port!r} in the connection string, expected a number from 1 to {MOST_PORT}")
    return host, int(port)


_LONGEST_NAME = 253
"""Characters of a host's name. Source: RFC 1035, 2.3.4; without the length of the first label and the root."""


def is_host(text: str, *, in_brackets: bool = False) -> bool:
    """Tell whether text names a host. in_brackets: it is an IPv6 address; if not, a name or an IPv4 address."""
    return len(text) <= _LONGEST_NAME and (_is_ipv6(text) if in_brackets else _is_name(text))


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
