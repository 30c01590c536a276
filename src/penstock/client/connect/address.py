"""Connection strings: `couchbase://host[:port][,host...]/bucket?option=value`, with TLS `couchbases://`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Self
from urllib.parse import parse_qsl, unquote

from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.discovery.http_map import HTTP_PORT, HTTP_TLS_PORT
from penstock.client.login.credentials import Login
from penstock.digits import read_digits
from penstock.errors import UsageError
from penstock.names import find_bucket_name_error, quote_part
from penstock.options import (
    BOOLEAN,
    FILE,
    SECONDS,
    member_of,
    nonempty,
    option,
    parsed,
    read_options,
    text_list,
    to_external_name,
    whole_number,
)
from penstock.wire.codec.constants import Dialect

MAX_VBUCKETS = 65536
MAX_PORT = 65535
DEFAULT_PORT, DEFAULT_TLS_PORT = 11210, 11207
_DEFAULT_PORTS = {
    **{(False, False): DEFAULT_PORT, (False, True): DEFAULT_TLS_PORT},
    **{(True, False): HTTP_PORT, (True, True): HTTP_TLS_PORT},
}
"""The port of a host without one, by whether the map comes over HTTP, and whether connections have TLS."""
DEFAULT_URL = f"couchbase://127.0.0.1:{DEFAULT_PORT}/default"
_EXPECTED = "couchbase://host:port/bucket"


class TlsVerify(StrEnum):
    """The checks of a node's TLS certificate.

    Attributes:
        FULL: the certificate's authority and host name.
        NONE: no check, so that any program may impersonate the node.
    """

    FULL = "full"
    NONE = "none"


class Network(StrEnum):
    """The addresses of nodes that a client uses, where nodes have alternate addresses.

    Attributes:
        AUTO: the addresses among which the map has the host of the connection string; else the nodes' own.
        DEFAULT: the nodes' own addresses.
        EXTERNAL: the alternate addresses, for clients behind a router.
    """

    AUTO = "auto"
    DEFAULT = "default"
    EXTERNAL = "external"


class Bootstrap(StrEnum):
    """The source of the cluster map.

    Attributes:
        AUTO: the data port; over HTTP if the server has no GET_CLUSTER_CONFIG and more nodes.
        CCCP: the data port only.
        HTTP: the management port, which the connection string names then.
    """

    AUTO = "auto"
    CCCP = "cccp"
    HTTP = "http"


class MissingVbuckets(StrEnum):
    """The handling of vbuckets that no node serves.

    Attributes:
        FAIL: the read waits for them, and then fails.
        SKIP: the read leaves them out, and logs a warning.
    """

    FAIL = "fail"
    SKIP = "skip"


class RecreatedBucket(StrEnum):
    """The handling of a bucket that was deleted, and created again with its old name, while a stream reads it.

    Attributes:
        ROLLBACK: the stream rolls back to seqno 0, reads the new bucket, and logs a warning.
        FAIL: the stream raises BucketRecreated.
    """

    ROLLBACK = "rollback"
    FAIL = "fail"


class Compression(StrEnum):
    """The compression of values in DCP streams. Programs always receive plain values.

    Attributes:
        AUTO: values arrive as the node stores them.
        OFF: the node inflates compressed values before it sends them.
        FORCE: the node compresses values, if that makes them shorter.
    """

    AUTO = "auto"
    OFF = "off"
    FORCE = "force"


def parse_dialect(name: str) -> Dialect:
    """Return the dialect with a name. Raises UsageError if there is none."""
    dialect: Dialect = _DIALECTS.read("protocol", name)
    return dialect


_DIALECTS = member_of(Dialect)


def _parse_collection_names(name: str, given: str) -> tuple[str, ...]:
    """Return the distinct names in a list with commas. Raises UsageError for an empty name."""
    names = tuple(dict.fromkeys(given.split(",")))
    if "" in names:
        raise UsageError(f"option {name} is {given!r}, expected names with commas between them")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options of a connection string. Spark has the same options; both use the names of `external_name`."""

    given_in: ClassVar[str] = "the connection string"

    connect_timeout: float = option(SECONDS, "timeout for connecting and login, in seconds", default=10.0)
    operation_timeout: float = option(SECONDS, "timeout for the answer to a request, in seconds", default=10.0)
    retry_seconds: float = option(
        SECONDS, "seconds for which failed requests and connections are retried", default=30.0
    )
    flow_control_bytes: int = option(
        whole_number(64 * 1024, 2**32 - 1),
        "flow-control window: stream bytes that a producer may send before they are consumed",
        default=20 * 1024 * 1024,
    )
    stream_connections: int = option(
        whole_number(1, 16),
        "connections of a change stream to each node: they divide the vbuckets and the flow-control window; TAP has 1",
        default=1,
    )
    document_connections: int = option(
        whole_number(1, 16),
        "connections to each node for requests of documents; a new one is opened while all others are busy. Concurrent "
        "requests may then be executed in any order",
        default=1,
    )
    noop_interval: int = option(
        whole_number(1, 10800),
        "seconds between the producer's liveness checks; a connection that is silent for twice as long is closed, and "
        "the tolerated silence of the next connection is doubled, up to 24 seconds",
        default=20,
    )
    network: Network = option(
        member_of(Network),
        "addresses of the nodes: their own (default), their alternate addresses (external), or those with the host of "
        "the connection string (auto)",
        default=Network.AUTO,
    )
    bootstrap: Bootstrap = option(
        member_of(Bootstrap),
        "source of the cluster map: data ports (cccp); HTTP, where the connection string has management ports (http); "
        "data ports, and HTTP at a server without GET_CLUSTER_CONFIG (auto)",
        default=Bootstrap.AUTO,
    )
    dns_srv: bool = option(
        BOOLEAN,
        "find the nodes by DNS SRV records, if the connection string has one name without a port; needs penstock[dns]",
        default=True,
    )
    vbucket_count: int = option(
        whole_number(1, MAX_VBUCKETS),
        "number of vbuckets, for a server without a cluster map; the one host must serve the whole bucket",
        default=0,
        shown="of the cluster map",
    )
    missing_vbuckets: MissingVbuckets = option(
        member_of(MissingVbuckets),
        "action if no node serves a vbucket: fail after retrySeconds, or skip it and log a warning",
        default=MissingVbuckets.FAIL,
    )
    recreated_bucket: RecreatedBucket = option(
        member_of(RecreatedBucket),
        "action if the bucket is deleted and created again during a stream: roll back to zero with a warning, or fail",
        default=RecreatedBucket.ROLLBACK,
    )
    protocol: Dialect = option(
        parsed(lambda _, name: parse_dialect(name), metavar="NAME", words=Dialect),
        "the dialect: tap, upr-draft, upr or dcp",
        default=Dialect.DCP,
    )
    scope: str = option(nonempty("a name"), "read only the collections of this scope", default="", shown="all")
    collections: tuple[str, ...] = option(
        text_list(_parse_collection_names),
        "read only these collections: names in the scope, or `scope.name`",
        default=(),
        shown="all",
    )
    xattrs: bool = option(BOOLEAN, "include the extended attributes of changes", default=False)
    compression: Compression = option(
        member_of(Compression),
        "values of DCP streams on the wire: as the node stores them (auto), plain (off), or compressed by the node "
        "(force), for a slow network; programs always receive plain values",
        default=Compression.AUTO,
    )
    mitigate_rollback: bool = option(
        BOOLEAN,
        "read only changes that the active node and all replicas have on disk, so that no failover makes them void",
        default=False,
    )
    change_history: bool = option(
        BOOLEAN, "include the older versions of documents that the bucket keeps; not in Spark", default=False
    )
    out_of_order: bool = option(
        BOOLEAN,
        "let the node begin a stream of one collection with its documents in any order, which is faster; not in Spark",
        default=False,
    )
    allow_plain: bool = option(
        BOOLEAN,
        "log in by PLAIN or CRAM-MD5 without TLS too, if the server offers nothing better: others on the network can "
        "read or guess the password",
        default=False,
    )
    ca: str = option(FILE, "PEM file of trusted authorities, instead of the system's", default="", shown="none")
    certificate: str = option(FILE, "PEM file of the client's certificate and key", default="", shown="none")
    certificate_key: str = option(
        FILE, "PEM file of the key, if it is not in the certificate file", default="", shown="none"
    )
    tls_verify: TlsVerify = option(
        member_of(TlsVerify), "verification of the node's certificate: full or none", default=TlsVerify.FULL
    )

    @property
    def stream_window(self) -> int:
        """The flow-control window of one stream connection, in bytes."""
        return self.flow_control_bytes // self.stream_connections

    @classmethod
    def from_text(cls, given: dict[str, str]) -> Self:
        """Return options given by external names. Raises UsageError for an unknown name or an invalid value."""
        return cls(**read_options(cls, given, "in the connection string"))

    def list_tls_options(self) -> list[str]:
        """Return the external names of the TLS options that differ from their defaults."""
        return [
            to_external_name(name) for name in _TLS_OPTIONS if getattr(self, name) != getattr(ConnectionOptions(), name)
        ]


_TLS_OPTIONS = ("ca", "certificate", "certificate_key", "tls_verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a bucket, with the options and credentials of its connections.

    Raises UsageError for several hosts with the option vbucketCount: no map assigns the vbuckets to hosts then. The
    option bootstrap=http contradicts it too.

    Attributes:
        hosts: names or IP addresses, each with a port.
        bucket: the name of the bucket.
        options: the options of the connection string.
        tls: whether connections are encrypted.
        credentials: None: no login.
        http_hosts: the hosts of the connection string if their ports are management ports; no data connection goes to
            them.
        srv_host: the host that may have SRV records, because the connection string has no port; None: none.
        routes: host and port of a node -> those to connect to instead, for example around a proxy. It may change.
    """

    hosts: tuple[tuple[str, int], ...]
    bucket: str
    options: ConnectionOptions
    tls: bool = False
    credentials: Login | None = None
    srv_host: Endpoint | None = None
    http_hosts: tuple[Endpoint, ...] = ()
    routes: Mapping[Endpoint, Endpoint] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.options.vbucket_count and len(self.hosts) > 1:
            raise UsageError(
                f"option vbucketCount with {len(self.hosts)} hosts, expected one host, which serves the whole bucket"
            )
        if self.options.vbucket_count and self.http_hosts:
            raise UsageError("option vbucketCount with bootstrap=http, expected one of both")

    def with_retries(self, seconds: float) -> Address:
        """Return the address with another time for repeated attempts; 0 for a single attempt."""
        return replace(self, options=replace(self.options, retry_seconds=seconds))

    def __str__(self) -> str:
        hosts = ",".join(each[0] if each == self.srv_host else format_endpoint(*each) for each in self.hosts)
        return f"couchbase{'s' * self.tls}://{hosts}/{quote_part(self.bucket)}"


def parse_address(url: str, credentials: Login | None = None) -> Address:
    """Return the address in a connection string.

    Args:
        url: the connection string.
        credentials: user name and password, or a token; None: no login.

    Raises:
        UsageError: the connection string is invalid. The message never contains a password.
    """
    scheme, found, rest = url.partition("://")
    if "@" in url:  # checked first: no other message may quote a part that could be a password
        raise UsageError("connection string contains a login; pass username and password separately")
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
    options = ConnectionOptions.from_text(_parse_query(query))
    if not tls and (named := options.list_tls_options()):
        raise UsageError(f"option {named[0]} needs TLS, expected couchbases://")
    if options.certificate_key and not options.certificate:
        raise UsageError("option certificateKey without certificate")
    is_http = options.bootstrap is Bootstrap.HTTP
    default_port = _DEFAULT_PORTS[is_http, tls]
    places = tuple(parse_host(text, default_port) for text in hosts.split(","))
    may_have_records = options.dns_srv and not (options.vbucket_count or is_http) and _is_srv_name(hosts)
    return Address(
        hosts=places,
        bucket=_check_bucket_name(unquote(path)) if path else "default",
        options=options,
        tls=tls,
        credentials=credentials,
        srv_host=places[0] if may_have_records else None,
        http_hosts=places if is_http else (),
    )


def _is_srv_name(hosts: str) -> bool:
    """Return whether the hosts of a connection string are one name, which is no IP address and has no port."""
    if any(each in hosts for each in ",:[]"):
        return False
    try:
        ipaddress.ip_address(hosts)
    except ValueError:
        return True
    return False


def _parse_query(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in given:
            raise UsageError(f"option {name} is given twice in the connection string, expected once")
        given[name] = value
    return given


def _check_bucket_name(name: str) -> str:
    if expected := find_bucket_name_error(name):
        raise UsageError(f"bucket name {name!r}, {expected}")
    return name


_HOST = re.compile(r"(\[(?P<address>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(:(?P<port>[^:]*))?")


def parse_host(text: str, default_port: int) -> Endpoint:
    """Return host and port of a text such as `name:port` or `[::1]`.

    Raises:
        UsageError: the text is invalid.
    """
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
    number = read_digits(port, MAX_PORT, 1)
    if number is None:
        raise UsageError(f"port {port!r} in the connection string, expected a number from 1 to {MAX_PORT}")
    return host, number


_LONGEST_NAME = 253
"""Characters of a host's name. Source: RFC 1035, 2.3.4; without the length of the first label and the root."""


def is_host(text: str, *, in_brackets: bool = False) -> bool:
    """Return whether a text is a host: an IPv6 address if `in_brackets`, otherwise a name or an IPv4 address."""
    return len(text) <= _LONGEST_NAME and (_is_ipv6(text) if in_brackets else _is_dns_name(text))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_dns_name(text: str) -> bool:
    """Return whether a text can be resolved. The resolver raises UnicodeError, no OSError, for an impossible name."""
    try:
        return re.fullmatch(r"[A-Za-z0-9._-]+", text.encode("idna").decode()) is not None
    except UnicodeError:
        return False
