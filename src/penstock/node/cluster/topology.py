"""The cluster map: the nodes, and the node of each vbucket. Pure.

A topology is a list of places, the same on every node, and the number of this node. Vbuckets are split evenly and in
order over the nodes, so that nodes need not ask each other. A node lists its own vbuckets only while they are active,
and those of other nodes always.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any
from uuid import NAMESPACE_URL, uuid5

from msgspec import Meta, Struct

from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import format_endpoint
from penstock.errors import UsageError
from penstock.names import quote_part
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState

__all__ = [
    "ANY_HOST",
    "CAPABILITIES",
    "EPOCH",
    "MAX_SHARED_VBUCKETS",
    "PLAIN_CACHE_CAPABILITIES",
    "AlternateAddress",
    "NodePlace",
    "Topology",
    "build_bucket_map",
    "build_node_map",
    "dump_json",
    "insert_host",
    "next_revision",
    "parse_places",
]

ANY_HOST = "$HOST"
"""In `nodes` and `serverList` of a cluster map: stands for the host that the client has connected to."""

EPOCH = 1
"""Epoch of all revisions. It can stay the same because revisions never decrease: see `next_revision`."""

MAX_SHARED_VBUCKETS = 1024
"""Vbuckets of a bucket on several nodes. A single node can have 65536."""

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
"""Capabilities of a bucket with vbuckets. Clients rely on them: with `collections` they prefix their keys."""

COUCHAPI = "couchapi"
"""Capability of a bucket of type `couchbase`: the Java SDK refuses PersistTo without it."""

HISTORY = "nonDedupedHistory"
"""Capability of a bucket with change history."""

PLAIN_CACHE_CAPABILITIES = ("cbhello", "nodesExt")


_Port = Annotated[int, Meta(ge=0, le=65535)]


class AlternateAddress(Struct, frozen=True, kw_only=True):
    """The address of a node for clients behind a router.

    Attributes:
        host: a name or an IP address.
        kv: port for data; 0: none, like the other ports. Without any port, all ports are those of the node.
        kv_tls: port for data over TLS.
        mgmt: port for HTTP.
        mgmt_tls: port for HTTPS.
    """

    host: str
    kv: _Port = 0
    kv_tls: _Port = 0
    mgmt: _Port = 0
    mgmt_tls: _Port = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of alternateAddresses."""
        named = {"kv": self.kv, "kvSSL": self.kv_tls, "mgmt": self.mgmt, "mgmtSSL": self.mgmt_tls}
        ports = {name: port for name, port in named.items() if port}
        return {"external": {"hostname": self.host, **({"ports": ports} if ports else {})}}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """The addresses of a node.

    Attributes:
        host: a name or an IP address.
        kv: port for data; 0: none.
        kv_tls: port for data over TLS; 0: none.
        mgmt: port for HTTP; 0: none.
        mgmt_tls: port for HTTPS; 0: none.
        external: the alternate address; None: none.

    Raises:
        UsageError: a port is out of range, or the host is empty.
    """

    host: str = ANY_HOST
    kv: int = 0
    kv_tls: int = 0
    mgmt: int = 0
    mgmt_tls: int = 0
    external: AlternateAddress | None = None

    def __post_init__(self) -> None:
        for name in ("kv", "kv_tls", "mgmt", "mgmt_tls"):
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise UsageError(f"{name} port {port}: expected 0 to 65535")
        if not self.host:
            raise UsageError("a node without a host: expected a name or an address")

    def format_address(self, port: int) -> str:
        """Return host and port as one text, an IPv6 address in brackets."""
        return format_endpoint(self.host, port)

    @property
    def address(self) -> str:
        """The node's name in cluster documents: host and management port, or another port if there is none."""
        return self.format_address(self.mgmt or self.mgmt_tls or self.kv or self.kv_tls)

    def list_services(self) -> dict[str, int]:
        """Return the ports by the names of services.

        `mgmt` is always there, since clients ignore a node without it. A node without HTTP lists its port for data.
        """
        ports = {"kv": self.kv, "kvSSL": self.kv_tls, "mgmt": self.mgmt, "mgmtSSL": self.mgmt_tls}
        found = {name: port for name, port in ports.items() if port}
        if not self.mgmt and not self.mgmt_tls:
            found["mgmt"] = self.kv or self.kv_tls
        return found


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes of a cluster.

    Attributes:
        places: places of all nodes, in an order that all of them share.
        own_number: number of this node in `places`.

    Raises:
        UsageError: `own_number` is out of range, or two nodes have the same address.
    """

    places: tuple[NodePlace, ...] = (NodePlace(),)
    own_number: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.own_number < len(self.places):
            raise UsageError(f"node {self.own_number} of {len(self.places)}: expected one of them, counted from 0")
        if len(self.places) > 1 and len(set(self.addresses)) < len(self.places):
            raise UsageError(f"two nodes have the same address: {', '.join(self.addresses)}")

    @property
    def own_place(self) -> NodePlace:
        """The place of this node."""
        return self.places[self.own_number]

    def with_own_place(self, here: NodePlace) -> Topology:
        """Return the same topology with another place of this node, whose listeners have got their ports."""
        return replace(self, places=(*self.places[: self.own_number], here, *self.places[self.own_number + 1 :]))

    def find_owner(self, vbucket: int, vbuckets: int) -> int:
        """Return the number of the node that owns a vbucket."""
        return vbucket * len(self.places) // vbuckets

    def list_owned(self, vbuckets: int) -> Sequence[int]:
        """Return the vbuckets that this node owns."""
        nodes, place = len(self.places), self.own_number
        # The lowest v with v * nodes // vbuckets >= n, for n the place of this node and the next.
        return range(-(-place * vbuckets // nodes), -(-(place + 1) * vbuckets // nodes))

    @property
    def addresses(self) -> list[str]:
        """The addresses for data of all nodes, the same on each of them."""
        return [place.format_address(place.kv or place.kv_tls) for place in self.places]

    def make_bucket_uuid(self, name: str, own: str) -> str:
        """Return the uuid by which clients know a bucket.

        On one node it is the bucket's own; on several nodes it is derived from their addresses, so that all report the
        same.
        Clients take a bucket with another uuid for a new bucket of the same name.
        """
        return own if len(self.places) == 1 else uuid5(NAMESPACE_URL, " ".join([name, *self.addresses])).hex

    def check_vbuckets(self, vbuckets: int) -> None:
        """Raise UsageError if vbuckets of this number cannot be split over these nodes."""
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
    """Return the places of texts `host:kv[:mgmt[:kv_tls[:mgmt_tls]]]`, and the number of the place at host and port.

    The host matters only if several places have the port: other nodes may know this node by another name.

    Raises:
        UsageError: a text is invalid, or this node is not found among the places.
    """
    places = []
    for text in texts:
        parts = _PLACE.fullmatch(text)
        if parts is None:
            raise UsageError(f"node {text!r}: expected HOST:PORT or HOST:PORT:HTTP, an IPv6 address in brackets")
        ports: dict[str, Any] = {name: int(parts[name] or 0) for name in ("kv", "mgmt", "kv_tls", "mgmt_tls")}
        places.append(NodePlace(host=parts["address"] or parts["name"], **ports))
    here = [number for number, place in enumerate(places) if place.kv == port]
    if len(here) > 1:
        here = [number for number in here if places[number].host == host]
    if len(here) != 1:
        raise UsageError(f"nodes {', '.join(texts)}: expected this one among them, {format_endpoint(host, port)}")
    return tuple(places), here[0]


def next_revision(revision: int, now_ns: int) -> int:
    """Return the revision after this one: the time in milliseconds, or the previous revision plus 1.

    So revisions increase across restarts without being stored. Of two nodes with one topology, the node that changed
    last
    has the higher revision.

    Args:
        revision: the previous revision.
        now_ns: nanoseconds since the epoch.
    """
    return max(revision + 1, now_ns // 1_000_000)


def build_node_map(topology: Topology) -> dict[str, Any]:
    """Return the cluster map of a connection without a bucket, without its revision."""
    return {
        "nodesExt": _build_nodes_ext(topology),
        "clusterCapabilitiesVer": [1, 0],
        "clusterCapabilities": {},
    }


def build_bucket_map(
    topology: Topology,
    vbuckets: Sequence[Vbucket],
    *,
    name: str,
    uuid: str,
    manifest_uid: int,
    replicas: int = 0,
    is_plain_cache: bool = False,
    is_persistent: bool = False,
    has_history: bool = False,
) -> dict[str, Any]:
    """Return a bucket's cluster map without its revision.

    Args:
        topology: the nodes.
        vbuckets: the bucket's vbuckets on this node.
        name: the bucket's name.
        uuid: the uuid by which clients know the bucket.
        manifest_uid: uid of its manifest of collections.
        replicas: configured number of replicas. The map lists those without a node too.
        is_plain_cache: clients choose the node by ketama hashing, and send vbucket 0.
        is_persistent: clients can wait for persistence.
        has_history: the bucket can have change history.
    """
    more = [name for name, has in ((COUCHAPI, is_persistent), (HISTORY, has_history)) if has]
    capabilities = sorted((*CAPABILITIES, *more))
    document: dict[str, Any] = {
        "name": name,
        "uuid": uuid,
        "nodeLocator": "ketama" if is_plain_cache else "vbucket",
        "uri": f"/pools/default/buckets/{quote_part(name)}?bucket_uuid={uuid}",
        "streamingUri": f"/pools/default/bucketsStreaming/{quote_part(name)}?bucket_uuid={uuid}",
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": PLAIN_CACHE_CAPABILITIES if is_plain_cache else capabilities,
        "nodes": [
            {"hostname": place.address, "ports": {"direct": place.kv} if place.kv else {}} for place in topology.places
        ],
    }
    if not is_plain_cache:
        document["collectionsManifestUid"] = f"{manifest_uid:x}"
        document["vBucketServerMap"] = _build_server_map(topology, vbuckets, replicas)
    return document | build_node_map(topology)


def _build_server_map(topology: Topology, vbuckets: Sequence[Vbucket], replicas: int) -> dict[str, Any]:
    owners = [topology.find_owner(number, len(vbuckets)) for number in range(len(vbuckets))]
    for number in topology.list_owned(len(vbuckets)):
        if vbuckets[number].history.state is not VbucketState.ACTIVE:
            owners[number] = NO_NODE
    return {
        "hashAlgorithm": "CRC",
        "numReplicas": replicas,
        "serverList": topology.addresses,
        "vBucketMap": [[owner, *[NO_NODE] * replicas] for owner in owners],
    }


def _build_nodes_ext(topology: Topology) -> list[dict[str, Any]]:
    """Return nodesExt. A node with ANY_HOST has no hostname there, as in ns_server's maps.

    java-dcp-client 0.56 (Kafka, Elasticsearch and Spark connectors) takes `$HOST` in nodesExt for a literal name.
    """
    return [
        {
            "services": place.list_services(),
            **({"thisNode": True} if number == topology.own_number else {}),
            **({"hostname": place.host} if place.host != ANY_HOST else {}),
            **({"alternateAddresses": place.external.to_dict()} if place.external is not None else {}),
        }
        for number, place in enumerate(topology.places)
    ]


def dump_json(document: Mapping[str, Any]) -> bytes:
    """Return a document as JSON without spaces: some clients search the text for `"rev":N`."""
    return json.dumps(document, separators=(",", ":")).encode()


def insert_host(text: bytes, host: str) -> bytes:
    """Return the JSON of a cluster map with a host in place of `$HOST`.

    Args:
        text: the JSON.
        host: a name or an IP address, without brackets.
    """
    bare = host.encode("ascii")
    joined = b"[%s]" % bare if b":" in bare else bare
    wild = ANY_HOST.encode()
    return text.replace(wild + b":", joined + b":").replace(wild, bare)
