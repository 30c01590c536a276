"""The cluster map as a client reads it: which node has each vbucket. Source: kv_engine docs/BinaryProtocol.md, CCCP."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from penstock.client.connect.address import MOST_PORT, MOST_VBUCKETS, is_host
from penstock.errors import RemoteProtocolError
from penstock.wire.values.peer_json import read_peer_json

__all__ = ["NOBODY", "ClusterMap", "Place", "read_map"]

_MOST_NODES = 1024
_DIALLED = "$HOST"
"""In place of a host: the one that the client has connected to."""

NOBODY = -1

Place = tuple[str, int]
"""Host, without brackets, and port."""


class ClusterMap(NamedTuple):
    """Which node has each vbucket.

    Attributes:
        places: the nodes that have vbuckets.
        owners: by vbucket, the index of the node that has it active; NOBODY: none, for now.
        bucket: the name of the bucket, empty where the map does not have it.
    """

    places: tuple[Place, ...]
    owners: tuple[int, ...]
    bucket: str = ""

    @property
    def vbuckets(self) -> int:
        return len(self.owners)


_Row = Annotated[list[Annotated[int, Meta(ge=-(2**31), lt=2**31)]], Meta(min_length=1)]


class _ServerMap(Struct):
    """Which server has each vbucket. vBucketMap: by vbucket, places in serverList, the active one first."""

    serverList: list[str] = []
    vBucketMap: list[_Row] = []


_Port = Annotated[int, Meta(ge=1, le=MOST_PORT)]


class _Services(Struct):
    """The ports of a node's services, of which the client uses these."""

    kv: _Port | None = None
    kvSSL: _Port | None = None


class _Node(Struct):
    """One entry of nodesExt."""

    services: _Services
    hostname: str = _DIALLED
    thisNode: bool = False

    def host(self, dialled: str) -> str:
        return dialled if self.hostname == _DIALLED else self.hostname


class _Config(Struct):
    """A cluster map, as far as the client reads it."""

    name: str | None = None
    nodesExt: list[_Node] = []
    vBucketServerMap: _ServerMap | None = None


def read_map(config: bytes, dialled: Place, *, tls: bool = False) -> ClusterMap | None:
    """Return the cluster map in a node's answer. dialled: where that node was reached, as which it stays known here.

    None if there is no map of vbuckets: the answer is empty, or a map of nodes alone, or one without vbuckets yet.
    A single node is where it was reached, whatever it is called there. tls: the places of the others are those where
    they speak TLS. Raises RemoteProtocolError for JSON that is no such map.
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
    if wrong := [owner for owner in owners if not NOBODY <= owner < count]:
        raise RemoteProtocolError(f"cluster map with a vbucket on node {wrong[0]} of {count}")
    places: tuple[Place, ...] = (dialled,)
    if count > 1:
        places = tuple(_at(read.nodesExt, _split(server, dialled[0]), dialled[0], tls=tls) for server in servers)
        places = _with_dialled(places, read.nodesExt, dialled)
    # A single node has every vbucket; its refusals show which of them it does not serve now.
    return ClusterMap(places, owners if count > 1 else (0,) * len(owners), read.name or "")


def _check_counts(vbuckets: int, servers: int, nodes: int) -> None:
    if vbuckets > MOST_VBUCKETS:
        raise RemoteProtocolError(f"cluster map with {vbuckets} vbuckets, expected 1 to {MOST_VBUCKETS}")
    if not 0 < servers <= _MOST_NODES:
        raise RemoteProtocolError(f"cluster map with {servers} nodes, expected 1 to {_MOST_NODES}")
    if nodes > _MOST_NODES:
        raise RemoteProtocolError(f"cluster map with {nodes} entries in nodesExt, expected at most {_MOST_NODES}")


_SERVER = re.compile(r"(?:\[(?P<address>[^\[\]]{1,64})\]|(?P<name>[^\[\]:]{1,255})):(?P<port>[0-9]{1,5})", re.ASCII)
_SHOWN = 80


def _split(server: str, dialled: str) -> Place:
    parts = _SERVER.fullmatch(server)
    port = int(parts["port"]) if parts else 0
    if parts is not None and 0 < port <= MOST_PORT:
        host = parts["address"] or parts["name"]
        if host == _DIALLED:
            return dialled, port
        if is_host(host, in_brackets=bool(parts["address"])):
            return host, port
    raise RemoteProtocolError(f"cluster map with the server {server[:_SHOWN]!r}, expected host:port")


def _at(nodes: list[_Node], place: Place, dialled: str, *, tls: bool) -> Place:
    """Return where the node of a place is to be connected to."""
    if not tls:
        return place
    host, port = place
    for node in nodes:
        ports = node.services
        if node.host(dialled) == host and port in (ports.kv, ports.kvSSL) and ports.kvSSL:
            return host, ports.kvSSL
    raise RemoteProtocolError(f"cluster map without a TLS port of {host}:{port}, expected services.kvSSL of each node")


def _with_dialled(places: tuple[Place, ...], nodes: list[_Node], dialled: Place) -> tuple[Place, ...]:
    """Put the place that was reached for what its node calls itself, so that it is not connected to once more."""
    this = [node for node in nodes if node.thisNode]
    if dialled in places or len(this) != 1:
        return places
    ports, host = this[0].services, this[0].host(dialled[0])
    own = {(host, ports.kv), (host, ports.kvSSL)}
    return tuple(dialled if place in own else place for place in places)
