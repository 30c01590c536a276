"""The cluster map: the node of each vbucket. Source: kv_engine docs/BinaryProtocol.md, CCCP."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field

from penstock.client.connect.address import MAX_PORT, MAX_VBUCKETS, Network, is_host
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.errors import RemoteProtocolError, ServiceMissing
from penstock.wire.values.peer_json import read_peer_json

_MAX_NODES = 1024
_DIALLED_HOST = "$HOST"
"""Placeholder in a map for the host to which the client has connected."""

NO_NODE = -1


class ClusterMap(NamedTuple):
    """The nodes of a bucket, and the node of each vbucket.

    Attributes:
        places: the nodes that have vbuckets.
        owners: by vbucket, the index of the node that has it active; NO_NODE: none at the moment.
        bucket: the name of the bucket, empty where the map does not have it.
        replicas: by vbucket, the indices of the nodes that have its replicas; empty where the map names none.
        uuid: identifies the bucket among buckets of its name; empty where the map does not have it.
        version: epoch and revision of the map; (0, 0) where the map has none.
    """

    endpoints: tuple[Endpoint, ...]
    owners: tuple[int, ...]
    bucket: str = ""
    replicas: tuple[tuple[int, ...], ...] = ()
    uuid: str = ""
    version: tuple[int, int] = (0, 0)

    @property
    def vbuckets(self) -> int:
        """The number of vbuckets."""
        return len(self.owners)

    def is_of_other_bucket(self, found: ClusterMap) -> bool:
        """Return whether a later map is of another bucket of the same name: this one was deleted."""
        return bool(self.uuid and found.uuid) and self.uuid != found.uuid

    def choose_newer(self, found: ClusterMap) -> ClusterMap:
        """Return the newer one of this map and a map that arrived later. A node may send an old map.

        The epoch counts before the revision, because ns_server begins revisions again after an unsafe failover. A map
        without a revision cannot be compared, so it counts as newer.
        """
        is_older = found.version[1] > 0 and found.version < self.version
        return self if is_older and not self.is_of_other_bucket(found) else found

    def is_outdated_by(self, found: ClusterMap) -> bool:
        """Return whether a map that was not requested is newer than this one, or of another bucket of its name.

        A map of the same version is not newer, although another node may describe it with other endpoints.
        """
        if self.is_of_other_bucket(found):
            return True
        return found.version > self.version if found.version[1] > 0 else found != self


_Row = Annotated[list[Annotated[int, Meta(ge=-(2**31), lt=2**31)]], Meta(min_length=1)]


class _ServerMap(Struct):
    """The vbuckets of each server.

    Attributes:
        serverList: host:port of each server.
        vBucketMap: vbucket -> indexes in serverList, the active server first.
    """

    serverList: list[str] = []
    vBucketMap: list[_Row] = []


_Revision = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Port = Annotated[int, Meta(ge=1, le=MAX_PORT)]


class _Services(Struct):
    """The ports of a node's services that the client uses."""

    kv: _Port | None = None
    kvSSL: _Port | None = None


class _AlternateAddress(Struct):
    """The address of a node for clients behind a router. Without ports, the services have their usual ports there."""

    hostname: str
    ports: _Services | None = None


class _AlternateAddresses(Struct):
    external: _AlternateAddress | None = None


class _Node(Struct):
    """An entry of nodesExt."""

    services: _Services
    hostname: str = _DIALLED_HOST
    thisNode: bool = False
    alternateAddresses: _AlternateAddresses = field(default_factory=_AlternateAddresses)

    def resolve_host(self, dialled: str) -> str:
        """Return the node's host, or the dialled host if the entry has only the placeholder."""
        return dialled if self.hostname == _DIALLED_HOST else self.hostname

    def list_endpoints(self, dialled: str) -> list[Endpoint]:
        """Return the endpoints of the node's data service; none if it does not have the service."""
        return _list_data_ports(self.resolve_host(dialled), self.services)

    def list_external(self) -> list[Endpoint]:
        """Return the endpoints of the node's data service at its alternate address; none if it has none."""
        external = self.alternateAddresses.external
        return [] if external is None else _list_data_ports(external.hostname, external.ports or self.services)

    def find_endpoint(self, dialled: str, *, tls: bool, network: Network) -> Endpoint | None:
        """Return the endpoint to connect to, None if the node does not have it."""
        host, ports, external = self.resolve_host(dialled), self.services, self.alternateAddresses.external
        if network is Network.EXTERNAL:
            if external is None:
                return None
            host, ports = external.hostname, external.ports or ports
            if not is_host(host, in_brackets=":" in host):
                raise RemoteProtocolError(f"cluster map with the alternate address {host[:_SHOWN_CHARACTERS]!r}")
        port = ports.kvSSL if tls else ports.kv
        return None if port is None else (host, port)


def _list_data_ports(host: str, ports: _Services) -> list[Endpoint]:
    return [(host, port) for port in (ports.kv, ports.kvSSL) if port is not None]


class _Config(Struct):
    """The members of a cluster map that the client reads."""

    name: str | None = None
    uuid: str | None = None
    rev: _Revision | None = None
    revEpoch: _Revision | None = None
    nodesExt: list[_Node] = []
    vBucketServerMap: _ServerMap | None = None


def parse_cluster_map(
    config: bytes,
    dialled: Endpoint,
    *,
    tls: bool = False,
    network: Network = Network.AUTO,
    is_data_port: bool = True,
) -> ClusterMap | None:
    """Return the cluster map in a node's answer.

    Args:
        config: the JSON of the answer.
        dialled: the endpoint to which the client has connected. It replaces the node's own name in the map.
        tls: return the TLS ports of the other nodes.
        network: the addresses of the other nodes to return.
        is_data_port: whether the client has dialled the data port. A map from another port has all endpoints as named.

    Returns:
        None if there is no map of vbuckets: the answer is empty, or the map has no vbuckets (yet).

    Raises:
        RemoteProtocolError: the JSON is not a valid map.
        ServiceMissing: a node does not have the port or the alternate address.
    """
    if not config:
        return None
    read = read_peer_json(config, _Config, "cluster map")
    if read.vBucketServerMap is None or not read.vBucketServerMap.vBucketMap:
        return None
    servers, rows = read.vBucketServerMap.serverList, read.vBucketServerMap.vBucketMap
    count = len(servers)
    _check_counts(len(rows), count, len(read.nodesExt))
    owners = tuple(row[0] for row in rows)
    if wrong := [owner for owner in owners if not NO_NODE <= owner < count]:
        raise RemoteProtocolError(f"cluster map with a vbucket on node {wrong[0]} of {count}")
    places: tuple[Endpoint, ...] = (dialled,)
    if (
        count > 1
        or not is_data_port
        or _is_other_node(_parse_server(servers[0], dialled[0]), read.nodesExt, dialled[0])
    ):
        found_in = choose_network(read.nodesExt, dialled) if network is Network.AUTO else network
        places = tuple(
            _find_endpoint(read.nodesExt, _parse_server(server, dialled[0]), dialled[0], tls=tls, network=found_in)
            for server in servers
        )
        if is_data_port:
            places = _replace_own_endpoint(places, read.nodesExt, dialled)
    found = ClusterMap(
        places, owners, read.name or "", uuid=read.uuid or "", version=(read.revEpoch or 0, read.rev or 0)
    )
    # A single node has every vbucket; its NOT_MY_VBUCKET answers show the vbuckets that it does not serve now.
    if count == 1:
        return found._replace(owners=(0,) * len(owners))
    return found._replace(replicas=_list_replicas(rows, count))


def _list_replicas(rows: list[_Row], count: int) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of each vbucket. Raises RemoteProtocolError for a node that the map does not have."""
    found = tuple(tuple(index for index in row[1:] if index != NO_NODE) for row in rows)
    if wrong := [index for indexes in found for index in indexes if not 0 <= index < count]:
        raise RemoteProtocolError(f"cluster map with a replica on node {wrong[0]} of {count}")
    return found if any(found) else ()


def _is_other_node(server: Endpoint, nodes: list[_Node], dialled: str) -> bool:
    """Return whether the one server of a map is not the dialled node.

    The dialled node was removed from the cluster, or does not have the data service.
    """
    if any(node.thisNode and server in node.list_endpoints(dialled) for node in nodes):
        return False
    if len(nodes) == 1:
        return not nodes[0].thisNode and nodes[0].hostname != _DIALLED_HOST
    return any(not node.thisNode and server in node.list_endpoints(dialled) for node in nodes)


def _check_counts(vbuckets: int, servers: int, nodes: int) -> None:
    if vbuckets > MAX_VBUCKETS:
        raise RemoteProtocolError(f"cluster map with {vbuckets} vbuckets, expected 1 to {MAX_VBUCKETS}")
    if not 0 < servers <= _MAX_NODES:
        raise RemoteProtocolError(f"cluster map with {servers} nodes, expected 1 to {_MAX_NODES}")
    if nodes > _MAX_NODES:
        raise RemoteProtocolError(f"cluster map with {nodes} entries in nodesExt, expected at most {_MAX_NODES}")


_SERVER = re.compile(r"(?:\[(?P<address>[^\[\]]{1,64})\]|(?P<name>[^\[\]:]{1,255})):(?P<port>[0-9]{1,5})", re.ASCII)
_SHOWN_CHARACTERS = 80


def _parse_server(server: str, dialled: str) -> Endpoint:
    parts = _SERVER.fullmatch(server)
    port = int(parts["port"]) if parts else 0
    if parts is not None and 0 < port <= MAX_PORT:
        host = parts["address"] or parts["name"]
        if host == _DIALLED_HOST:
            return dialled, port
        if is_host(host, in_brackets=bool(parts["address"])):
            return host, port
    raise RemoteProtocolError(f"cluster map with the server {server[:_SHOWN_CHARACTERS]!r}, expected host:port")


def choose_network(nodes: list[_Node], dialled: Endpoint) -> Network:
    """Return the addresses among which a map has the dialled host.

    Host and port count before the host alone, because nodes behind a router often share its host.
    """
    own = {endpoint for node in nodes for endpoint in node.list_endpoints(dialled[0])}
    external = {endpoint for node in nodes for endpoint in node.list_external()}
    if dialled in own or dialled not in external:
        hosts = {host for host, _ in external} - {host for host, _ in own}
        return Network.EXTERNAL if dialled not in own and dialled[0] in hosts else Network.DEFAULT
    return Network.EXTERNAL


def _find_endpoint(nodes: list[_Node], endpoint: Endpoint, dialled: str, *, tls: bool, network: Network) -> Endpoint:
    """Return the endpoint to connect to, for a node by its endpoint in serverList."""
    if not tls and network is Network.DEFAULT:
        return endpoint
    for node in nodes:
        found = node.find_endpoint(dialled, tls=tls, network=network)
        if found is not None and endpoint in node.list_endpoints(dialled):
            return found
    name = format_endpoint(*endpoint)
    if network is Network.EXTERNAL:
        raise ServiceMissing(
            f"the cluster map has no data port {'with TLS ' * tls}at an alternate address of {name} (network=external)"
        )
    raise ServiceMissing(
        f"the cluster map has no data port with TLS of {name}, expected services.kvSSL of each node; enable TLS there, "
        "or use couchbase://"
    )


def _replace_own_endpoint(
    endpoints: tuple[Endpoint, ...], nodes: list[_Node], dialled: Endpoint
) -> tuple[Endpoint, ...]:
    """Replace the node's own name by the dialled endpoint, so that the client does not connect to it twice."""
    this = [node for node in nodes if node.thisNode]
    if dialled in endpoints or len(this) != 1:
        return endpoints
    own = [*this[0].list_endpoints(dialled[0]), *this[0].list_external()]
    return tuple(dialled if place in own else place for place in endpoints)
