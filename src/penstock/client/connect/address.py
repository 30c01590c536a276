"""Connection strings: `couchbase://host[:port][,host...]/bucket?option=value`, with TLS `couchbases://`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self
from urllib.parse import parse_qsl, quote, unquote

from penstock.client.connect.credentials import Credentials
from penstock.errors import UsageError
from penstock.options import (
    FILE,
    SECONDS,
    TRUTH,
    member_of,
    nonempty,
    option,
    outside_name,
    parsed,
    read_options,
    text_list,
    whole_number,
)
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


def dialect_of(name: str) -> Dialect:
    """Return the dialect of this name. Raises UsageError."""
    dialect: Dialect = _DIALECTS.read("protocol", name)
    return dialect


_DIALECTS = member_of(Dialect)


def _collection_names(name: str, given: str) -> tuple[str, ...]:
    """Return the names in a list with commas, each once. Raises UsageError for an empty one."""
    names = tuple(dict.fromkeys(given.split(",")))
    if "" in names:
        raise UsageError(f"option {name} is {given!r}, expected names with commas between them")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Settings of a connection. In a connection string and in Spark they have the names of `outside_name`."""

    connect_timeout: float = option(SECONDS, "seconds for a connection to be made and set up", default=10.0)
    operation_timeout: float = option(SECONDS, "seconds for one request's answer", default=10.0)
    retry_seconds: float = option(SECONDS, "seconds for which a node that does not serve is tried again", default=30.0)
    flow_control_bytes: int = option(
        whole_number(64 * 1024, 2**32 - 1),
        "stream bytes that a producer may send ahead of what has been consumed",
        default=20 * 1024 * 1024,
    )
    noop_interval: int = option(
        whole_number(1, 10800),
        "seconds between the producer's liveness checks; silence of twice that ends the connection, and the next one "
        "may be silent for longer, up to 24 seconds",
        default=20,
    )
    vbucket_count: int = option(
        whole_number(1, MOST_VBUCKETS),
        "how many vbuckets a bucket without a cluster map has; the address alone serves it",
        default=0,
        shown="of the cluster map",
    )
    missing_vbuckets: MissingVbuckets = option(
        member_of(MissingVbuckets),
        "vbuckets that no node serves: fail after retrySeconds, or skip them and log a warning",
        default=MissingVbuckets.FAIL,
    )
    protocol: Dialect = option(
        parsed(lambda _, name: dialect_of(name)), "the dialect: tap, upr-draft, upr or dcp", default=Dialect.DCP
    )
    scope: str = option(nonempty("a name"), "only this scope's collections", default="", shown="all")
    collections: tuple[str, ...] = option(
        text_list(_collection_names),
        "only these: names in the scope, or `scope.name`",
        default=(),
        shown="all",
    )
    xattrs: bool = option(TRUTH, "changes with their extended attributes", default=False)
    ca: str = option(FILE, "PEM file with the authorities to trust instead of the system's", default="", shown="none")
    certificate: str = option(FILE, "PEM file with the client's certificate, and its key", default="", shown="none")
    certificate_key: str = option(
        FILE, "PEM file with the certificate's key, if it stands apart", default="", shown="none"
    )
    tls_verify: TlsVerify = option(
        member_of(TlsVerify), "what is checked of the node: full, or none", default=TlsVerify.FULL
    )

    @classmethod
    def from_text(cls, given: dict[str, str]) -> Self:
        """Read options by their outside names. Raises UsageError for an unknown name or a value out of range."""
        return cls(**read_options(cls, given, "in the connection string"))

    def tls_names(self) -> list[str]:
        """Return the outside names of those options that are given and say something of TLS."""
        return [outside_name(name) for name in _FOR_TLS if getattr(self, name) != getattr(ConnectionOptions(), name)]


_FOR_TLS = ("ca", "certificate", "certificate_key", "tls_verify")


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
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in given:
            raise UsageError(f"option {name} is given twice in the connection string, expected once")
        given[name] = value
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
