"""The nodes and vbuckets of a cluster map, as an orchestrator changes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.errors import RemoteProtocolError, UsageError

_ANY_HOST = "$HOST"
PUSHED_EPOCH = 2
"""Epoch of the first map of an orchestrator. Nodes use epoch 1 for maps of their own, whose revision is the time."""

MapVersion = tuple[int, int]
"""Epoch and revision of a map."""


@dataclass(frozen=True, slots=True)
class MapNode:
    """A node of a cluster map.

    Attributes:
        endpoint: host and port for data.
        services: its ports by the names of services.
        alternates: its alternate addresses, as nodesExt has them.
    """

    endpoint: Endpoint
    services: Mapping[str, int]
    alternates: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def get_endpoint(self, *, tls: bool) -> Endpoint:
        """Return host and port to connect to. Raises UsageError if the node has no port with TLS."""
        if not tls:
            return self.endpoint
        if "kvSSL" not in self.services:
            raise UsageError(f"node {self.address} has no port with TLS in the cluster map, expected kvSSL")
        return self.endpoint[0], self.services["kvSSL"]

    def is_at(self, endpoint: Endpoint) -> bool:
        """Return whether the node has this host and port, with TLS or without."""
        return endpoint in (self.endpoint, (self.endpoint[0], self.services.get("kvSSL")))

    @property
    def address(self) -> str:
        """Host and port for data as one text."""
        return format_endpoint(*self.endpoint)

    def to_dict(self, *, is_own: bool) -> dict[str, Any]:
        """Return the entry of nodesExt."""
        own = {"thisNode": True} if is_own else {}
        outer = {"alternateAddresses": dict(self.alternates)} if self.alternates else {}
        return {"services": dict(self.services), **own, "hostname": self.endpoint[0], **outer}


@dataclass(frozen=True, slots=True)
class MapLayout:
    """The nodes of a bucket and the place of each vbucket.

    Attributes:
        nodes: the nodes.
        chains: by vbucket, the indexes of its active node and of its replicas. NO_NODE: none.
    """

    nodes: tuple[MapNode, ...]
    chains: tuple[tuple[int, ...], ...]

    def find_node(self, endpoint: Endpoint) -> int:
        """Return the index of the node at a port with TLS or without, NO_NODE if the layout does not have it."""
        return next((at for at, node in enumerate(self.nodes) if node.is_at(endpoint)), NO_NODE)

    def require_node(self, endpoint: Endpoint) -> int:
        """Return the index of a node. Raises UsageError if the layout does not have it."""
        at = self.find_node(endpoint)
        if at == NO_NODE:
            known = ", ".join(node.address for node in self.nodes)
            raise UsageError(f"node {format_endpoint(*endpoint)} is not in the cluster map, expected one of {known}")
        return at

    def add_nodes(self, nodes: Iterable[MapNode]) -> MapLayout:
        """Return the layout with more nodes, behind the others. A node that it has is not added."""
        known = {node.endpoint for node in self.nodes}
        return replace(self, nodes=(*self.nodes, *(node for node in nodes if node.endpoint not in known)))

    def set_owners(self, owners: Mapping[int, int]) -> MapLayout:
        """Return the layout with other active nodes. A node is no replica of a vbucket that it owns.

        Args:
            owners: vbucket -> index of its new node, or NO_NODE.
        """
        chains = list(self.chains)
        for vbucket, owner in owners.items():
            replicas = (NO_NODE if place == owner else place for place in chains[vbucket][1:])
            chains[vbucket] = (owner, *replicas)
        return replace(self, chains=tuple(chains))

    def remove_node(self, endpoint: Endpoint) -> MapLayout:
        """Return the layout without a node. Its vbuckets have no active node then."""
        gone = self.find_node(endpoint)
        if gone == NO_NODE:
            return self

        def shift(place: int) -> int:
            return NO_NODE if place == gone else place - (place > gone)

        chains = tuple(tuple(shift(place) for place in chain) for chain in self.chains)
        return MapLayout((*self.nodes[:gone], *self.nodes[gone + 1 :]), chains)

    def set_replicas(self, replicas: Mapping[int, Sequence[int]]) -> MapLayout:
        """Return the layout with other replicas of vbuckets. All chains get the length of the longest one.

        Args:
            replicas: vbucket -> indexes of the nodes of its replicas, or NO_NODE.
        """
        chains = [(chain[0], *replicas.get(vbucket, chain[1:])) for vbucket, chain in enumerate(self.chains)]
        most = max(map(len, chains), default=1)
        return replace(self, chains=tuple((*chain, *[NO_NODE] * (most - len(chain))) for chain in chains))

    def empty_places(self, vbuckets: Iterable[int], node: int) -> MapLayout:
        """Return the layout without the replicas of vbuckets at a node. Their places in the chains stay empty."""
        chains = list(self.chains)
        for vbucket in vbuckets:
            owner, *replicas = chains[vbucket]
            chains[vbucket] = (owner, *(NO_NODE if place == node else place for place in replicas))
        return replace(self, chains=tuple(chains))

    def list_names(self, vbucket: int) -> list[str | None]:
        """Return the replication chain of a vbucket: the names of its nodes, None for a place without a node."""
        return [None if place == NO_NODE else self.nodes[place].address for place in self.chains[vbucket]]

    def list_places(self) -> list[tuple[str | None, list[str | None]]]:
        """Return the name of the owner of each vbucket, and the names of all its nodes."""
        return [(self.list_names(vbucket)[0], self.list_copies(vbucket)) for vbucket in range(len(self.chains))]

    def list_copies(self, vbucket: int) -> list[str | None]:
        """Return the replication chain of a vbucket without the places that have no node.

        A place without a node makes durable writes impossible if the others are no majority. A failover wants that, but
        a move takes replicas away on purpose.
        """
        return [name for name in self.list_names(vbucket) if name is not None]

    def list_owned(self, index: int) -> list[int]:
        """Return the vbuckets that are active on a node."""
        return [vbucket for vbucket, chain in enumerate(self.chains) if chain[0] == index]


def read_map_layout(document: Mapping[str, Any], dialled: Endpoint) -> MapLayout:
    """Return the layout in a cluster map.

    Args:
        document: the map.
        dialled: the node that has sent the map. Its host replaces the placeholder for the dialled host.

    Raises:
        RemoteProtocolError: the map has no vbuckets, or is malformed.
    """
    try:
        servers: list[str] = document["vBucketServerMap"]["serverList"]
        chains = tuple(tuple(map(int, row)) for row in document["vBucketServerMap"]["vBucketMap"])
        if not all(chain and all(NO_NODE <= place < len(servers) for place in chain) for chain in chains):
            raise ValueError("a vbucket on a node that is not in serverList")
        entries = document.get("nodesExt") or [{}] * len(servers)
        nodes = tuple(  # the nodes of the bucket come first in nodesExt, in the order of serverList
            _read_node(server, entries[at] if len(entries) >= len(servers) else {}, dialled)
            for at, server in enumerate(servers)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"cluster map without places of vbuckets: {error}") from None
    if not chains:
        raise RemoteProtocolError("cluster map without vbuckets, expected at least one")
    return MapLayout(nodes, chains)


def read_own_address(document: Mapping[str, Any], dialled: Endpoint) -> str:
    """Return the address of the node that has sent a map: its name in replication chains.

    Args:
        document: the map.
        dialled: host and port of the connection. They are the name if the map does not mark its node.

    Raises:
        RemoteProtocolError: the map is malformed.
    """
    own = read_own_node(document, dialled)
    return format_endpoint(*dialled) if own is None else own.address


def find_own_place(document: Mapping[str, Any]) -> int:
    """Return the index in nodesExt of the node that has sent or gets a map. NO_NODE if the map does not mark it.

    The nodes of the bucket come first, in the order of serverList. An index behind them is a node without vbuckets.

    Raises:
        RemoteProtocolError: the map is malformed.
    """
    try:
        servers, entries = document.get("vBucketServerMap", {}).get("serverList", ()), document.get("nodesExt") or ()
        marked = [at for at, entry in enumerate(entries) if entry.get("thisNode")]
        return marked[0] if len(marked) == 1 and len(entries) >= len(servers) else NO_NODE
    except (TypeError, AttributeError) as error:
        raise RemoteProtocolError(f"cluster map without ports of its node: {error}") from None


def read_own_node(document: Mapping[str, Any], dialled: Endpoint) -> MapNode | None:
    """Return the node that has sent a map, as the map marks it. The map may name no bucket, or leave the node out.

    Args:
        document: the map.
        dialled: host and port of the connection.

    Returns:
        The node; None if the map does not mark one.

    Raises:
        RemoteProtocolError: the map is malformed.
    """
    at = find_own_place(document)
    if at == NO_NODE:
        return None
    try:
        servers, entry = document.get("vBucketServerMap", {}).get("serverList", ()), document["nodesExt"][at]
        if at < len(servers):
            return _read_node(servers[at], entry, dialled)
        host, port = entry.get("hostname", _ANY_HOST), entry["services"].get("kv", dialled[1])
        return _read_node(format_endpoint(host, port), entry, dialled)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"cluster map without ports of its node: {error}") from None


def _read_node(server: str, entry: Mapping[str, Any], dialled: Endpoint) -> MapNode:
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    endpoint = (dialled[0] if host == _ANY_HOST else host, int(port))
    services = {str(name): int(number) for name, number in entry.get("services", {"kv": endpoint[1]}).items()}
    return MapNode(endpoint, services, dict(entry.get("alternateAddresses") or {}))


def read_version(document: Mapping[str, Any]) -> MapVersion:
    """Return epoch and revision of a map. A node of an old server sends none."""
    return document.get("revEpoch", 1), document.get("rev", 0)


def find_next_version(documents: Iterable[Mapping[str, Any]]) -> MapVersion:
    """Return the version of a map that is newer than these maps."""
    epoch, revision = max(map(read_version, documents), default=(1, 0))
    return max(epoch, PUSHED_EPOCH), revision + 1


def make_map_document(
    base: Mapping[str, Any], layout: MapLayout, version: MapVersion, own: Endpoint, outside: MapNode | None = None
) -> dict[str, Any]:
    """Return a cluster map for one node.

    Args:
        base: an earlier map. Its name, uuid and capabilities stay.
        layout: the nodes and vbuckets.
        version: epoch and revision of the map.
        own: the node that gets the map.
        outside: that node if the layout does not have it. It stands behind the others, and learns that it owns nothing.
    """
    epoch, revision = version
    last = [] if outside is None or layout.find_node(own) != NO_NODE else [outside.to_dict(is_own=True)]
    rest = {name: value for name, value in base.items() if name not in ("rev", "revEpoch")}
    return {
        "rev": revision,  # in front, because some clients search the text for it
        "revEpoch": epoch,
        **rest,
        "nodes": [_make_old_entry(node) for node in layout.nodes],
        "nodesExt": [*(node.to_dict(is_own=node.is_at(own)) for node in layout.nodes), *last],
        "vBucketServerMap": {
            **base.get("vBucketServerMap", {}),
            "serverList": [node.address for node in layout.nodes],
            "vBucketMap": _copy_rows(layout.chains),
        },
    }


def _make_old_entry(node: MapNode) -> dict[str, Any]:
    host, port = node.endpoint
    return {"hostname": format_endpoint(host, node.services.get("mgmt", port)), "ports": {"direct": port}}


def _copy_rows(chains: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(chain) for chain in chains]
