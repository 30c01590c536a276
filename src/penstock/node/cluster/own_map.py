"""The cluster map of a node that stands alone, and its addresses. Pure.

An orchestrator that drives several nodes replaces the map by its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.replication.map_layout import MapNode, read_map_layout, read_own_address
from penstock.errors import RemoteProtocolError, UsageError
from penstock.names import quote_part
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState

ANY_HOST = "$HOST"
"""In `nodes` and `serverList` of a cluster map: stands for the host that the client has connected to."""

EPOCH = 1
"""Epoch of all revisions. It can stay the same because revisions never decrease: see `next_revision`."""

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


def next_revision(revision: int, now_ns: int) -> int:
    """Return the revision after this one: the time in milliseconds, or the previous revision plus 1.

    So revisions increase across restarts without being stored.

    Args:
        revision: the previous revision.
        now_ns: nanoseconds since the epoch.
    """
    return max(revision + 1, now_ns // 1_000_000)


def build_node_map(place: NodePlace) -> dict[str, Any]:
    """Return the cluster map of a connection without a bucket, without its revision."""
    return {
        "nodesExt": [_build_node_entry(place)],
        "clusterCapabilitiesVer": [1, 0],
        "clusterCapabilities": {},
    }


def build_bucket_map(
    place: NodePlace,
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
        place: the place of the node.
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
        "nodes": [{"hostname": place.address, "ports": {"direct": place.kv} if place.kv else {}}],
    }
    if not is_plain_cache:
        document["collectionsManifestUid"] = f"{manifest_uid:x}"
        document["vBucketServerMap"] = _build_server_map(place, vbuckets, replicas)
    return document | build_node_map(place)


def _build_server_map(place: NodePlace, vbuckets: Sequence[Vbucket], replicas: int) -> dict[str, Any]:
    owners = (0 if vbucket.history.state is VbucketState.ACTIVE else NO_NODE for vbucket in vbuckets)
    return {
        "hashAlgorithm": "CRC",
        "numReplicas": replicas,
        "serverList": [place.format_address(place.kv or place.kv_tls)],
        "vBucketMap": [[owner, *[NO_NODE] * replicas] for owner in owners],
    }


def _build_node_entry(place: NodePlace) -> dict[str, Any]:
    """Return the entry of nodesExt. A node with ANY_HOST has no hostname there, as in ns_server's maps.

    java-dcp-client 0.56 (Kafka, Elasticsearch and Spark connectors) takes `$HOST` in nodesExt for a literal name.
    """
    return {
        "services": place.list_services(),
        "thisNode": True,
        **({"hostname": place.host} if place.host != ANY_HOST else {}),
        **({"alternateAddresses": place.external.to_dict()} if place.external is not None else {}),
    }


def read_places(content: Mapping[str, Any], own: NodePlace) -> tuple[list[NodePlace], int]:
    """Return the nodes of a map that an orchestrator has pushed, and the number of this node.

    Args:
        content: the map.
        own: the place of this node: the only one if the map cannot be read or does not have the node.
    """
    here = (own.host, own.kv or own.kv_tls)
    try:
        nodes, name = read_map_layout(content, here).nodes, read_own_address(content, here)
        return [_make_place(node) for node in nodes], [node.address for node in nodes].index(name)
    except (RemoteProtocolError, UsageError, ValueError):
        return [own], 0


def _make_place(node: MapNode) -> NodePlace:
    ports = [node.services.get(name, 0) for name in ("kv", "kvSSL", "mgmt", "mgmtSSL")]
    return NodePlace(host=node.endpoint[0], kv=ports[0], kv_tls=ports[1], mgmt=ports[2], mgmt_tls=ports[3])


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
