"""The cluster map: which nodes there are, and which of them has each vbucket. Pure; nothing here knows a socket.

A topology is a fixed list of places, the same for every node in it, and which of them this node is. Vbuckets are split
evenly and in order, so that no node needs to ask another who has what. Of its own vbuckets a node says where they are
only while they are active; those of others are where the split puts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from penstock.errors import UsageError
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState

__all__ = [
    "ANY_HOST",
    "CAPABILITIES",
    "EPOCH",
    "MAX_SHARED_VBUCKETS",
    "PLAIN_CACHE_CAPABILITIES",
    "NodePlace",
    "Topology",
    "at_host",
    "bucket_map",
    "dump",
    "node_map",
    "parse_places",
    "revised",
]

ANY_HOST = "$HOST"
"""In `nodes` and `serverList` of a cluster map: the address that the client has dialled."""

EPOCH = 1
"""Of all revisions. It is the revision itself that never goes back: see `revised`."""

MAX_SHARED_VBUCKETS = 1024
"""Of a bucket on several nodes. One node alone may have 65536."""

CAPABILITIES = (
    "cbhello",
    "cccp",
    "collections",
    "dcp",
    "dcp.IgnorePurgedTombstones",
    "durableWrite",
    "nodesExt",
    "preserveExpiry",
    "subdoc.BinaryXattr",
    "subdoc.DocumentMacroSupport",
    "subdoc.ReplaceBodyWithXattr",
    "subdoc.ReplicaRead",
    "subdoc.ReviveDocument",
    "tombstonedUserXAttrs",
    "touch",
    "xattr",
)
"""Of a bucket with vbuckets. Only what is there: a client that trusts `collections` prefixes its keys."""

COUCHAPI = "couchapi"
"""Capability of a bucket of type `couchbase`: the Java SDK refuses PersistTo without it."""

PLAIN_CACHE_CAPABILITIES = ("cbhello", "nodesExt")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where a node is. kv, mgmt, and with TLS kv_tls and mgmt_tls: its ports, 0 for what it does not have."""

    host: str = ANY_HOST
    kv: int = 0
    kv_tls: int = 0
    mgmt: int = 0
    mgmt_tls: int = 0

    def __post_init__(self) -> None:
        for name in ("kv", "kv_tls", "mgmt", "mgmt_tls"):
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise UsageError(f"{name} port {port}: expected 0 to 65535")
        if not self.host:
            raise UsageError("a node without a host: expected a name or an address")

    def at(self, port: int) -> str:
        """Return host and port in one, an IPv6 address in brackets."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def address(self) -> str:
        """What the node is called: its management port where it has one, as clients know nodes by it."""
        return self.at(self.mgmt or self.mgmt_tls or self.kv or self.kv_tls)

    def services(self) -> dict[str, int]:
        """Return the ports by the names of services.

        `mgmt` is never missing: clients take a node for unusable without. Where there is none it is the port for data.
        """
        ports = {"kv": self.kv, "kvSSL": self.kv_tls, "mgmt": self.mgmt, "mgmtSSL": self.mgmt_tls}
        found = {name: port for name, port in ports.items() if port}
        if not self.mgmt and not self.mgmt_tls:
            found["mgmt"] = self.kv or self.kv_tls
        return found


@dataclass(frozen=True, slots=True)
class Topology:
    """places: of all nodes, in an order that all of them know. this: which one is this node."""

    places: tuple[NodePlace, ...] = (NodePlace(),)
    this: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.this < len(self.places):
            raise UsageError(f"node {self.this} of {len(self.places)}: expected one of them, counted from 0")
        if len(self.places) > 1 and len(set(self.addresses)) < len(self.places):
            raise UsageError(f"two nodes in one place: {', '.join(self.addresses)}")

    @property
    def here(self) -> NodePlace:
        return self.places[self.this]

    def moved(self, here: NodePlace) -> Topology:
        """Return the same with this node in another place: where its listeners have got their ports."""
        return replace(self, places=(*self.places[: self.this], here, *self.places[self.this + 1 :]))

    def owner(self, vbucket: int, vbuckets: int) -> int:
        """Return which node has one of so many vbuckets."""
        return vbucket * len(self.places) // vbuckets

    def owned(self, vbuckets: int) -> range:
        """Return the vbuckets of this node."""
        nodes = len(self.places)
        # The lowest v with v * nodes // vbuckets >= n, for n this node and the next.
        return range(-(-self.this * vbuckets // nodes), -(-(self.this + 1) * vbuckets // nodes))

    @property
    def addresses(self) -> list[str]:
        """Where each node serves data: the same on all of them."""
        return [place.at(place.kv or place.kv_tls) for place in self.places]

    def bucket_uuid(self, name: str, own: str) -> str:
        """Return what clients know a bucket by: its own uuid on one node, on several one that all of them say.

        Clients take a bucket with another uuid for a new one of the same name.
        """
        return own if len(self.places) == 1 else uuid5(NAMESPACE_URL, " ".join([name, *self.addresses])).hex

    def check(self, vbuckets: int) -> None:
        """Raise UsageError where a bucket with so many vbuckets cannot be on these nodes."""
        nodes = len(self.places)
        if nodes > 1 and vbuckets > MAX_SHARED_VBUCKETS:
            raise UsageError(f"{vbuckets} vbuckets on {nodes} nodes: expected at most {MAX_SHARED_VBUCKETS}")
        if vbuckets < nodes:
            raise UsageError(f"{vbuckets} vbuckets on {nodes} nodes: expected at least one for each")


_PLACE = re.compile(
    r"(\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:]+)):(?P<kv>[0-9]{1,5})"
    r"(:(?P<mgmt>[0-9]{1,5}))?(:(?P<kv_tls>[0-9]{1,5}))?(:(?P<mgmt_tls>[0-9]{1,5}))?"
)


def parse_places(texts: Sequence[str], host: str, port: int) -> tuple[tuple[NodePlace, ...], int]:
    """Read places, `host:kv[:mgmt[:kv_tls[:mgmt_tls]]]`, and return them with the number of the one at host and port.

    The host only matters where several have the port: others may know this node by a name, or it listens everywhere.
    Raises UsageError for a text that is none, and if it cannot be told which one is here.
    """
    places = []
    for text in texts:
        parts = _PLACE.fullmatch(text)
        if parts is None:
            raise UsageError(f"node {text!r}: expected HOST:PORT or HOST:PORT:HTTP, an IPv6 address in brackets")
        ports = {name: int(parts[name] or 0) for name in ("kv", "mgmt", "kv_tls", "mgmt_tls")}
        places.append(NodePlace(host=parts["address"] or parts["name"], **ports))
    here = [number for number, place in enumerate(places) if place.kv == port]
    if len(here) > 1:
        here = [number for number in here if places[number].host == host]
    if len(here) != 1:
        raise UsageError(f"nodes {', '.join(texts)}: expected this one among them, {host}:{port}")
    return tuple(places), here[0]


def revised(revision: int, now_ns: int) -> int:
    """Return the revision after this one. now_ns: nanoseconds since the epoch.

    Milliseconds of the clock, or one more than before: so it grows across restarts without having been kept, and of
    two nodes with one topology the one that changed last has the higher.
    """
    return max(revision + 1, now_ns // 1_000_000)


def node_map(topology: Topology) -> dict[str, Any]:
    """Return the cluster map of a connection without a bucket, but for its revision."""
    return {
        "nodesExt": _extended(topology),
        "clusterCapabilitiesVer": [1, 0],
        "clusterCapabilities": {},
    }


def bucket_map(
    topology: Topology,
    vbuckets: Sequence[Vbucket],
    *,
    name: str,
    uuid: str,
    manifest_uid: int,
    replicas: int = 0,
    plain_cache: bool = False,
    persistent: bool = False,
) -> dict[str, Any]:
    """Return a bucket's cluster map, but for its revision. replicas: as it is to have them; they are nowhere.

    plain_cache: for clients that spread keys over nodes themselves (ketama). They ask for vbucket 0.
    """
    capabilities = sorted((*CAPABILITIES, COUCHAPI)) if persistent else CAPABILITIES
    said: dict[str, Any] = {
        "name": name,
        "uuid": uuid,
        "nodeLocator": "ketama" if plain_cache else "vbucket",
        "uri": f"/pools/default/buckets/{quote(name)}?bucket_uuid={uuid}",
        "streamingUri": f"/pools/default/bucketsStreaming/{quote(name)}?bucket_uuid={uuid}",
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": PLAIN_CACHE_CAPABILITIES if plain_cache else capabilities,
        "nodes": [
            {"hostname": place.address, "ports": {"direct": place.kv} if place.kv else {}} for place in topology.places
        ],
    }
    if not plain_cache:
        said["collectionsManifestUid"] = f"{manifest_uid:x}"
        said["vBucketServerMap"] = _server_map(topology, vbuckets, replicas)
    return said | node_map(topology)


def _server_map(topology: Topology, vbuckets: Sequence[Vbucket], replicas: int) -> dict[str, Any]:
    nowhere = [-1] * replicas
    places = [[topology.owner(number, len(vbuckets)), *nowhere] for number in range(len(vbuckets))]
    for number in topology.owned(len(vbuckets)):
        if vbuckets[number].history.state is not VbucketState.ACTIVE:
            places[number][0] = -1
    return {
        "hashAlgorithm": "CRC",
        "numReplicas": replicas,
        "serverList": topology.addresses,
        "vBucketMap": places,
    }


def _extended(topology: Topology) -> list[dict[str, Any]]:
    """Return nodesExt. A node at the dialled address has no hostname there, as in ns_server's maps.

    java-dcp-client 0.56 (Kafka, Elasticsearch and Spark connectors) takes `$HOST` in nodesExt for a literal name.
    """
    return [
        {
            "services": place.services(),
            **({"thisNode": True} if number == topology.this else {}),
            **({"hostname": place.host} if place.host != ANY_HOST else {}),
        }
        for number, place in enumerate(topology.places)
    ]


def dump(said: Mapping[str, Any]) -> bytes:
    """Return JSON without spaces: some clients look for `"rev":N` in the text."""
    return json.dumps(said, separators=(",", ":")).encode()


def at_host(text: bytes, host: str) -> bytes:
    """Return the JSON of a cluster map with a host in place of `$HOST`. host: a name or an address, no brackets."""
    bare = host.encode("ascii")
    joined = b"[%s]" % bare if b":" in bare else bare
    wild = ANY_HOST.encode()
    return text.replace(wild + b":", joined + b":").replace(wild, bare)
