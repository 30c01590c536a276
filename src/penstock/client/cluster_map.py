"""The cluster map as a client reads it: which node has each vbucket. Source: kv_engine docs/BinaryProtocol.md, CCCP."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from penstock.client.address import MOST_VBUCKETS
from penstock.errors import RemoteProtocolError

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


def read_map(config: bytes, dialled: Place, *, tls: bool = False) -> ClusterMap | None:
    """Return what a node says of its cluster. dialled: where that node was reached, as which it stays known here.

    None if there is no map of vbuckets: the answer is empty, or a map of nodes alone, or one without vbuckets yet.
    A single node is where it was reached, whatever it is called there. tls: the places of the others are those where
    they speak TLS. Raises RemoteProtocolError for JSON that is no such map.
    """
    if not config:
        return None
    try:
        said: dict[str, Any] = json.loads(config)
        server_map = said.get("vBucketServerMap")
        if not server_map or server_map.get("vBucketMap") == []:
            return None
        servers, rows = server_map["serverList"], server_map["vBucketMap"]
        nodes, name = said.get("nodesExt", []), said.get("name")
        count = len(servers)
        owners = tuple(int(row[0]) for row in rows)
        places = tuple(_split(server, dialled[0]) for server in servers) if count > 1 else (dialled,)
        if count > 1:
            places = _with_dialled(tuple(_at(nodes, place, dialled[0], tls=tls) for place in places), nodes, dialled)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise RemoteProtocolError(
            f"cluster map of {len(config)} bytes without vBucketServerMap, or with a bad one"
        ) from None
    if not 0 < len(owners) <= MOST_VBUCKETS:
        raise RemoteProtocolError(f"cluster map with {len(owners)} vbuckets, expected 1 to {MOST_VBUCKETS}")
    if not 0 < count <= _MOST_NODES:
        raise RemoteProtocolError(f"cluster map with {count} nodes, expected 1 to {_MOST_NODES}")
    if wrong := [owner for owner in owners if not NOBODY <= owner < count]:
        raise RemoteProtocolError(f"cluster map with a vbucket on node {wrong[0]} of {count}")
    # Who is alone has everything; what it does not serve just now, it says itself.
    return ClusterMap(places, owners if count > 1 else (0,) * len(owners), name if isinstance(name, str) else "")


_SERVER = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.%]+)\]|(?P<name>[^\[\]:]+)):(?P<port>[0-9]{1,5})")


def _split(server: str, dialled: str) -> Place:
    parts = _SERVER.fullmatch(server)
    if parts is None:
        raise ValueError(server)
    host = parts["address"] or parts["name"]
    return dialled if host == _DIALLED else host, int(parts["port"])


def _at(nodes: list[dict[str, Any]], place: Place, dialled: str, *, tls: bool) -> Place:
    """Return where the node of a place is to be connected to."""
    if not tls:
        return place
    host, port = place
    for node in nodes:
        ports = node["services"]
        if _host_of(node, dialled) == host and port in (ports.get("kv"), ports.get("kvSSL")):
            return host, int(ports["kvSSL"])
    raise KeyError(place)


def _with_dialled(places: tuple[Place, ...], nodes: list[dict[str, Any]], dialled: Place) -> tuple[Place, ...]:
    """Put the place that was reached for what its node calls itself, so that it is not connected to once more."""
    this = [node for node in nodes if node.get("thisNode")]
    if dialled in places or len(this) != 1:
        return places
    ports, host = this[0]["services"], _host_of(this[0], dialled[0])
    own = {(host, ports.get("kv")), (host, ports.get("kvSSL"))}
    return tuple(dialled if place in own else place for place in places)


def _host_of(node: dict[str, Any], dialled: str) -> str:
    host: str = node.get("hostname", _DIALLED)
    return dialled if host == _DIALLED else host
