"""Request of the cluster map, and its replacement for a server without one, which has the whole bucket."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from penstock.client.connect.address import MAX_VBUCKETS, Address, Bootstrap
from penstock.client.connect.cluster_map import ClusterMap, parse_cluster_map
from penstock.client.connect.node_link import UNKNOWN_COMMAND_STATUSES, UNSUPPORTED_STATUSES, NodeLink
from penstock.client.connect.tls_context import make_tls_context
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.discovery.http_map import HTTP_PORT, HTTP_TLS_PORT, fetch_bucket_map
from penstock.client.login.credentials import Credentials
from penstock.errors import (
    BucketNotServed,
    ConnectionClosed,
    Error,
    OperationTimeout,
    UnsupportedServer,
    UsageError,
)
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import GetClusterConfig


class NoClusterMap(BucketNotServed):
    """The data port has no cluster map, or not yet, and its node does not have all vbuckets."""


class ClusterMapPending(NoClusterMap):
    """The bucket exists, and its cluster map has not arrived yet. So a first connection waits for it too.

    The states of the node's vbuckets do not replace the map: a failover may have happened while the node was down.
    """

    retriable = True


async def request_cluster_map(
    link: NodeLink, endpoint: Endpoint, address: Address, *, is_selected: bool = True
) -> ClusterMap:
    """Return the cluster map of the bucket.

    A server without cluster management (memcached with only an engine) has no map. Its one node has all vbuckets. The
    option vbucketCount or the node's statistics give their number.

    Args:
        link: the connection.
        endpoint: host and port to which it is connected.
        address: the bucket.
        is_selected: whether SELECT_BUCKET chose the bucket; otherwise its name in the map or the statistics is checked.

    Raises:
        BucketNotServed: there is no map, or not yet, and the statistics do not show all vbuckets.
        ClusterMapPending: the server has cluster management, and the map of the bucket has not arrived yet.
        UnsupportedServer: there is no map, and the bucket is a plain cache without vbuckets.
        UsageError: the server chose another bucket for this connection, or has more vbuckets than vbucketCount.
        RemoteProtocolError: the map is malformed.
        StatusError, OperationTimeout, ConnectionClosed: as NodeLink.request raises them.
    """
    found = None
    if address.http_hosts:
        found = await request_http_map(address)
    elif not address.options.vbucket_count:
        accept = (*UNSUPPORTED_STATUSES, Status.KEY_ENOENT)
        config = await link.request(GetClusterConfig(), address.options.operation_timeout, accept=accept)
        if config.specific == Status.KEY_ENOENT:
            raise ClusterMapPending(
                f"{link.peer} has the bucket {address.bucket!r}, and no cluster map of it yet: the server is starting; "
                "if no cluster manager sends the map, give the option vbucketCount=N"
            )
        if config.specific in UNKNOWN_COMMAND_STATUSES:
            link.unknown_opcodes.add(Opcode.GET_CLUSTER_CONFIG)
        found = (
            None
            if config.specific
            else parse_cluster_map(config.value, endpoint, tls=address.tls, network=address.options.network)
        )
    if found is None:
        try:
            found = await _make_single_node_map(link, endpoint, address)
        except NoClusterMap as error:
            found = await _request_fallback_map(link, endpoint, address, error)
    if not is_selected and found.bucket not in ("", address.bucket):
        raise UsageError(
            f"{link.peer} chose bucket {found.bucket!r} for this connection, expected {address.bucket!r}: "
            "this server chooses the bucket by the user name, or by the port"
        )
    return found


async def request_http_map(address: Address, hosts: Sequence[Endpoint] = ()) -> ClusterMap:
    """Return the cluster map from the first management port that sends it.

    Args:
        address: the bucket.
        hosts: the management ports; none: those of the connection string.

    Raises:
        UsageError: the password would be sent unencrypted.
        BucketNotServed: there is no such bucket, or it has no vbuckets yet.
        Error, OSError: as `fetch_bucket_map` and `parse_cluster_map` raise them.
    """
    options = address.options
    tls = make_tls_context(options) if address.tls else None
    failure: Exception | None = None
    for host, port in hosts or address.http_hosts:
        check_http_secrecy(address, host)
        try:
            text = await fetch_bucket_map(
                (host, port), address.bucket, address.credentials, tls, options.connect_timeout
            )
        except (OSError, ConnectionClosed, OperationTimeout, BucketNotServed) as error:
            failure = failure or error
            continue
        found = parse_cluster_map(text, (host, port), tls=address.tls, network=options.network, is_data_port=False)
        if found is not None:
            return found
        failure = failure or BucketNotServed(f"{format_endpoint(host, port)} has no vbuckets of {address} yet")
    assert failure is not None  # there is at least one host
    raise failure


def check_http_secrecy(address: Address, host: str) -> None:
    """Raise UsageError if others could read the login that is sent over HTTP."""
    credentials, is_local = address.credentials, host in ("127.0.0.1", "::1", "localhost")
    if credentials is None or address.tls:
        return
    if not isinstance(credentials, Credentials):
        raise UsageError("a token is sent over TLS only, expected couchbases://")
    if credentials.password and not (is_local or address.options.allow_plain):
        raise UsageError(
            f"HTTP needs the password unencrypted at {host}; expected couchbases://, or the option allowPlain"
        )


async def _request_fallback_map(
    link: NodeLink, endpoint: Endpoint, address: Address, error: NoClusterMap
) -> ClusterMap:
    """Return the map over HTTP of a server that does not know GET_CLUSTER_CONFIG. Raises `error` if there is none."""
    if Opcode.GET_CLUSTER_CONFIG not in link.unknown_opcodes or address.options.bootstrap is not Bootstrap.AUTO:
        raise error
    try:
        return await request_http_map(address, [(endpoint[0], HTTP_TLS_PORT if address.tls else HTTP_PORT)])
    except (OSError, Error) as failure:
        raise NoClusterMap(f"{error}; over HTTP: {failure}") from None


async def _make_single_node_map(link: NodeLink, endpoint: Endpoint, address: Address) -> ClusterMap:
    """Return the map of a bucket on this node alone. Raises the errors of `request_cluster_map`."""
    timeout, count = address.options.operation_timeout, address.options.vbucket_count
    states = await link.request_stats("vbucket", timeout, optional=True)
    stats = await link.request_stats("", timeout, optional=True)
    if count:
        served = [vbucket for vbucket, state in _read_states(states).items() if state != "dead"]
        if served and max(served) >= count:
            raise UsageError(
                f"{link.peer} has vbucket {max(served)}, expected vbuckets 0 to {count - 1} (option vbucketCount)"
            )
    else:
        most = stats.get("ep_max_vbuckets", "")
        count = count_vbuckets(states, most)
        if not count and stats and not states and "ep_version" not in stats:
            raise UnsupportedServer(
                f"{link.peer} is memcached, or the bucket is of type memcached: it has no vbuckets, and no change "
                "streams; expected a bucket of type couchbase or ephemeral"
            )
        if not count:
            raise NoClusterMap(
                f"{link.peer} has no cluster map, and its statistics show {_describe_states(states, most)}; "
                "if it has the whole bucket, give the option vbucketCount=N"
            )
    # The login selects the bucket of its name, also if the engine has no statistic of it.
    is_by_login = address.credentials is not None and address.credentials.username == address.bucket
    return ClusterMap((endpoint,), (0,) * count, "" if is_by_login else stats.get("ep_couch_bucket", ""))


def count_vbuckets(states: Mapping[str, str], most: str) -> int:
    """Return the number of vbuckets if one node certainly has all of them, else 0.

    Args:
        states: the statistics group vbucket: `vb_N` and the state of that vbucket.
        most: the statistic ep_max_vbuckets.
    """
    by_number = _read_states(states)
    whole = list(range(min(len(by_number), MAX_VBUCKETS)))
    is_whole = sorted(by_number) == whole and most == str(len(by_number))
    return len(by_number) if is_whole and {*by_number.values()} == {"active"} else 0


_VBUCKET = re.compile(r"vb_(\d{1,5})", re.ASCII)


def _read_states(states: Mapping[str, str]) -> dict[int, str]:
    return {int(parts[1]): state for name, state in states.items() if (parts := _VBUCKET.fullmatch(name))}


def _describe_states(states: Mapping[str, str], most: str) -> str:
    by_number = _read_states(states)
    if not by_number:
        return "no vbuckets"
    inactive = sum(state != "active" for state in by_number.values())
    limit = f" of at most {most}" if most.isdecimal() else ""
    state = f", {inactive} of them not active" if inactive else ""
    return f"{len(by_number)} vbuckets{limit}{state}"
