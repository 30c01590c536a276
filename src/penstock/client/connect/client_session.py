"""Opening of a connection to the first host that serves the bucket, with TLS and handshake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from random import Random, SystemRandom
from typing import NamedTuple, TypeVar

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.handshake import (
    COMMANDS,
    NodeWithoutData,
    Purpose,
    RefusedDeleteTimes,
    begin_handshake,
    perform_handshake,
)
from penstock.client.connect.map_request import request_http_map
from penstock.client.connect.node_link import UNSUPPORTED_STATUSES, NodeLink
from penstock.client.connect.retry import is_retriable
from penstock.client.connect.tls_context import make_tls_context
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.discovery.first_bytes import EXPECTED_PORTS
from penstock.client.discovery.srv_lookup import find_srv_endpoints
from penstock.client.login.credentials import Credentials
from penstock.client.tracing.span_types import CONNECT
from penstock.client.tracing.tracer import WorkSpan, trace_work
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketNotServed,
    ConnectionClosed,
    OperationTimeout,
    StatusError,
)
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import GetClusterConfig

T = TypeVar("T")

_SYSTEM = SystemRandom()

STREAM_NAMES: ContextVar[Random] = ContextVar("STREAM_NAMES", default=_SYSTEM)
"""Random numbers of the names of stream connections. A simulation replaces them in the context of a client."""


def make_unique_suffix() -> str:
    """Return 64 random bits in hexadecimal, for a unique name of a connection."""
    return f"{STREAM_NAMES.get().getrandbits(64):016x}"


def generate_stream_name() -> str:
    """Return a unique name for a stream connection. A node closes a connection when another uses its name."""
    return f"penstock:{make_unique_suffix()}"


class ClientSession(NamedTuple):
    """A connection after its handshake.

    Attributes:
        link: the connection.
        endpoint: host and port of its node.
        map: the cluster map that the node sent.
        features: the HELLO features that both sides agreed on.
    """

    link: NodeLink
    endpoint: Endpoint
    map: ClusterMap
    features: frozenset[int]

    @property
    def vbuckets(self) -> int:
        """The number of vbuckets of the bucket."""
        return self.map.vbuckets

    @property
    def has_collections(self) -> bool:
        """Whether keys have collection ids on this connection."""
        return Feature.COLLECTIONS in self.features

    @property
    def has_durable_writes(self) -> bool:
        """Whether requests may carry a durability level."""
        return self.features >= {Feature.ALT_REQUEST, Feature.SYNC_REPLICATION}


async def open_session(
    address: Address, purpose: Purpose = COMMANDS, endpoints: Iterable[Endpoint] | None = None
) -> ClientSession:
    """Connect to the first host that serves the bucket.

    If the login is refused, and its source has a new password, the client tries once more.

    Raises the errors of `perform_handshake` and NodeLink.open. Some of OSError, OperationTimeout, ConnectionClosed and
    StatusError are temporary, see `is_retriable`.

    Args:
        address: the bucket.
        purpose: the features and streams that the connection needs.
        endpoints: the nodes to try, instead of the hosts of the address; not empty.

    Returns:
        The connection after its handshake.
    """
    if isinstance(address.credentials, Credentials):
        address = replace(address, credentials=address.credentials.find_newest())
    places = None if endpoints is None else [*endpoints]
    attributes = {
        "db.system.name": "couchbase",
        "db.namespace": address.bucket,
        "messaging.client.id": purpose.stream_name or None,
    }
    with trace_work(CONNECT, address.bucket, attributes) as span:
        found = await _log_in(address, purpose, places, span)
        span.set({"server.address": found.endpoint[0], "server.port": found.endpoint[1]})
        return found


async def _log_in(address: Address, purpose: Purpose, places: list[Endpoint] | None, span: WorkSpan) -> ClientSession:
    """Connect with the login of the address, and once more with a new password if the first one is refused."""
    try:
        return await _open_first_session(address, purpose, places, span)
    except AuthenticationFailed:
        if not isinstance(address.credentials, Credentials) or address.credentials.source is None:
            raise
        # On a thread: a command may run for seconds.
        replaced = await asyncio.to_thread(address.credentials.read_again)
        if replaced is None:
            raise
    return await _open_first_session(replace(address, credentials=replaced), purpose, places, span)


async def _open_first_session(
    address: Address, purpose: Purpose, endpoints: Iterable[Endpoint] | None, span: WorkSpan
) -> ClientSession:
    """Connect to the first host that serves the bucket, with one login."""
    failure: Exception | None = None
    places = await _list_places(address, address.hosts if endpoints is None else endpoints)
    for place in places:  # the list grows while it is read
        try:
            try:
                return await _open_session_at(place, address, purpose)
            except RefusedDeleteTimes:
                return await _open_session_at(place, address, replace(purpose, delete_times=False))
        except NodeWithoutData as error:
            failure = failure or error
            places += [other for other in error.endpoints if other not in places]
        except (AccessDenied, AuthenticationFailed):
            raise  # a later error of an unreachable host must not replace it
        except (OSError, ConnectionClosed, OperationTimeout, StatusError, BucketNotServed) as error:
            # Another host may serve the bucket. If none does, a permanent failure is raised before a temporary one.
            if failure is None or is_retriable(failure, has_served=False):
                failure = error
            refusal = {"server.address": place[0], "server.port": place[1], "error.type": type(error).__name__}
            span.add_event("refused", refusal)
    assert failure is not None  # an address has at least one host
    raise failure


async def _list_places(address: Address, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Return the endpoints to try.

    Endpoints of SRV records take the place of the name that has them, and data ports that of management ports.
    """
    places = list(endpoints)
    host = address.srv_host
    if host is not None and host in places:
        at = places.index(host)
        places[at : at + 1] = await find_srv_endpoints(host[0], tls=address.tls) or (host,)
    if not address.http_hosts or not any(place in address.http_hosts for place in places):
        return list(dict.fromkeys(places))
    found = await request_http_map(address)
    return list(dict.fromkeys((*(place for place in places if place not in address.http_hosts), *found.endpoints)))


async def request_node_map(endpoint: Endpoint, address: Address) -> bytes:
    """Return the map of a node that names no bucket: its own ports. It is empty if the node has none.

    Raises the errors of `open_session`.

    Args:
        endpoint: host and port of the node.
        address: any of its buckets, for options and credentials.
    """

    async def ask(link: NodeLink) -> bytes:
        await begin_handshake(link, endpoint, address, COMMANDS)
        accept = (*UNSUPPORTED_STATUSES, Status.NO_BUCKET, Status.KEY_ENOENT)
        reply = await link.request(GetClusterConfig(), address.options.connect_timeout, accept=accept)
        await link.close()
        return b"" if reply.specific else bytes(reply.value)

    return await _connect(endpoint, address, COMMANDS, ask)


async def _open_session_at(endpoint: Endpoint, address: Address, purpose: Purpose) -> ClientSession:
    async def prepare(link: NodeLink) -> ClientSession:
        agreed = await perform_handshake(link, endpoint, address, purpose)
        return ClientSession(link, endpoint, agreed.map, agreed.features)

    return await _connect(endpoint, address, purpose, prepare)


async def _connect(
    endpoint: Endpoint, address: Address, purpose: Purpose, prepare: Callable[[NodeLink], Awaitable[T]]
) -> T:
    """Return the result of a function of a new connection, which is closed if the function fails."""
    (host, port), timeout = address.routes.get(endpoint, endpoint), address.options.connect_timeout
    tls = make_tls_context(address.options) if address.tls else None
    link = await NodeLink.open(host, port, timeout, purpose.on_stream, purpose.dialect, tls=tls)
    try:
        async with asyncio.timeout(timeout):
            return await prepare(link)
    except TimeoutError:
        await link.close()
        peer = format_endpoint(host, port)
        if not link.has_received:
            silent = f"{peer} accepts connections, but sent nothing within {timeout:g} s; {EXPECTED_PORTS}"
            raise OperationTimeout(silent) from None
        raise OperationTimeout(f"{peer} did not set up the connection within {timeout:g} s") from None
    except BaseException:
        await link.close()
        raise
