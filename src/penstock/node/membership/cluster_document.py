"""The document that the nodes of a cluster agree on: nodes, buckets with their collections, users. Pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from penstock.client.connect.cluster_map import NO_NODE
from penstock.errors import BucketNotServed, Error, KeyExists, RemoteProtocolError, UsageError
from penstock.node.agreement.failover_settings import FailoverSettings
from penstock.node.agreement.lease import DEFAULT_LEASE_SECONDS, check_lease
from penstock.node.agreement.revisions import Revision
from penstock.node.auth.users import Account
from penstock.node.auth.users_file import SECRET_BYTES, accounts_from_dict, accounts_to_dict
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.cluster.topology import AlternateAddress, NodePlace, Topology
from penstock.node.membership.vbucket_map import Chain, MapRevision, VbucketMap, spread_vbuckets
from penstock.store.definition.manifest import Manifest
from penstock.store.definition.manifest_json import manifest_from_dict, manifest_to_dict

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "ClusterBucket",
    "ClusterDocument",
    "ClusterNode",
    "ClusterUsers",
    "LostVbuckets",
    "count_flush",
    "list_lost_vbuckets",
]

LostVbuckets = Mapping[str, tuple[int, ...]]
"""Uuid of a bucket -> vbuckets that a node owns no longer."""


MAX_DOCUMENT_BYTES = 768 * 1024
"""A message has one document at most and must fit into the body of a request, which is limited to 1 MiB."""


_MAX_REMOVED = 100


class ClusterNode(Struct, frozen=True, kw_only=True):
    """A node of a cluster.

    Attributes:
        id: stays the same as long as the node is in the cluster. A node that joins again gets another id.
        host: as in NodePlace, like the ports.
        external: the alternate address; None: none.
        failed: the node was failed over. It is no member until it is added again, and has no vbuckets.
    """

    id: str
    host: str
    kv: int = 0
    kv_tls: int = 0
    mgmt: int = 0
    mgmt_tls: int = 0
    external: AlternateAddress | None = None
    failed: bool = False

    @classmethod
    def from_place(cls, node: str, place: NodePlace) -> ClusterNode:
        """Return a node at a place."""
        ports = {name: getattr(place, name) for name in ("kv", "kv_tls", "mgmt", "mgmt_tls")}
        return cls(id=node, host=place.host, external=place.external, **ports)

    @property
    def otp_name(self) -> str:
        """The name by which clients of ns_server remove the node."""
        return f"ns_{self.id}@{self.host}"

    @property
    def place(self) -> NodePlace:
        """The addresses of the node."""
        return NodePlace(**{name: value for name, value in asdict(self).items() if name not in ("id", "failed")})


class ClusterBucket(Struct, frozen=True, kw_only=True):
    """A bucket of a cluster.

    Attributes:
        name: the name.
        vbuckets: number of vbuckets.
        properties: as in `BucketSpec.list_properties`, with the uuid.
        map: the nodes of its vbuckets.
        manifest: scopes and collections, as in `manifest_to_dict`.
        flushes: number of its flushes. A recorded request to flush it has an older number.
    """

    name: str
    vbuckets: int
    properties: Mapping[str, Any]
    map: VbucketMap
    manifest: Mapping[str, Any]
    flushes: int = 0

    @property
    def spec(self) -> BucketSpec:
        """The definition of the bucket."""
        return BucketSpec.from_properties(self.name, self.vbuckets, self.properties)

    def read_manifest(self) -> Manifest:
        """Return the scopes and collections."""
        return manifest_from_dict(self.manifest)

    def read_chains(self) -> tuple[Chain, ...]:
        """Return by vbucket the ids of its owner and of its replicas; nothing for a plain cache."""
        return self.map.read_chains(self.vbuckets)


class ClusterUsers(Struct, frozen=True):
    """The users of a cluster, as in a file of users.

    Attributes:
        secret: key of the challenges of unknown users, in Base64.
        accounts: as in `accounts_to_dict`.
    """

    secret: str
    accounts: Mapping[str, Any]

    @classmethod
    def from_accounts(cls, accounts: Mapping[str, Account], secret: bytes) -> ClusterUsers:
        """Return the users with these accounts."""
        return cls(b64encode(secret).decode(), accounts_to_dict(accounts))

    def read_accounts(self) -> tuple[dict[str, Account], bytes]:
        """Return the accounts by name, and the secret."""
        secret = b64decode(self.secret, validate=True)
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret of {len(secret)} bytes, expected {SECRET_BYTES}")
        return accounts_from_dict(self.accounts), secret


class ClusterDocument(Struct, frozen=True, kw_only=True):
    """The document. A change makes another document.

    Attributes:
        uuid: identifies the cluster to clients.
        nodes: the nodes, in the order in which they joined.
        buckets: the buckets.
        users: the users; None: no login is needed.
        lease_seconds: duration of the leases of the nodes.
        failover: the settings of the automatic failover.
        removed: ids of the nodes that were removed last. A recorded message cannot add them again.
        newest_map: the newest revision of all maps, also of deleted buckets. Each change of a map has a newer one.
        rebalancing: id of the member that runs a rebalance; empty: none does.
    """

    uuid: str
    nodes: tuple[ClusterNode, ...]
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    failover: FailoverSettings = FailoverSettings()
    removed: tuple[str, ...] = ()
    buckets: tuple[ClusterBucket, ...] = ()
    users: ClusterUsers | None = None
    newest_map: MapRevision = MapRevision()
    rebalancing: str = ""

    @classmethod
    def from_revision(cls, revision: Revision) -> ClusterDocument:
        """Return the document of a revision.

        Raises:
            RemoteProtocolError: the revision has no valid document.
        """
        try:
            document = msgspec.convert(revision.content, cls)
            _check_document(document)
        except (ValueError, LookupError, TypeError, AttributeError, Error) as error:
            raise RemoteProtocolError(f"document {revision.number} of the cluster: {error}") from None
        return document

    def to_content(self) -> dict[str, Any]:
        """Return the content of a revision.

        Raises:
            UsageError: the document is too long.
        """
        content: dict[str, Any] = msgspec.to_builtins(self)
        size = len(msgspec.json.encode(content))
        if size > MAX_DOCUMENT_BYTES:
            raise UsageError(f"the cluster's document would have {size} bytes: the limit is {MAX_DOCUMENT_BYTES}")
        return content

    # Nodes

    @property
    def members(self) -> tuple[str, ...]:
        """The ids of the nodes that agree on changes: all that were not failed over."""
        return tuple(node.id for node in self.nodes if not node.failed)

    def find_node(self, node: str) -> ClusterNode | None:
        """Return the node with an id, None if it is unknown."""
        return next((known for known in self.nodes if known.id == node), None)

    def with_node(self, node: ClusterNode) -> ClusterDocument:
        """Return the document with a node that joins, or with another place of a member.

        Raises:
            UsageError: the node was removed.
        """
        if node.id in self.removed:
            raise UsageError(f"node {node.id} was removed from the cluster")
        if node in self.nodes:
            return self
        others = tuple(node if known.id == node.id else known for known in self.nodes)
        return self.with_nodes((*others, node) if self.find_node(node.id) is None else others)

    def with_nodes(self, nodes: tuple[ClusterNode, ...]) -> ClusterDocument:
        """Return the document with other nodes. Maps list the members, so all maps have a newer revision."""
        revision = self.newest_map.successor
        buckets = tuple(replace(bucket, map=replace(bucket.map, revision=revision)) for bucket in self.buckets)
        is_running = any(node.id == self.rebalancing and not node.failed for node in nodes)
        rebalancing = self.rebalancing if is_running else ""
        return replace(self, nodes=nodes, buckets=buckets, newest_map=revision, rebalancing=rebalancing)

    def without_node(self, node: str) -> ClusterDocument:
        """Return the document without a node.

        Raises:
            UsageError: the node has vbuckets or replicas.
        """
        if self.has_vbuckets(node):
            raise UsageError("Cannot remove active server.")
        if self.find_node(node) is None:
            return self
        left = tuple(known for known in self.nodes if known.id != node)
        return replace(self.with_nodes(left), removed=(*self.removed, node)[-_MAX_REMOVED:])

    def has_vbuckets(self, node: str) -> bool:
        """Return whether a bucket has a vbucket or a replica on a node, or is a plain cache there."""
        return any(node in bucket.map.nodes for bucket in self.buckets)

    def make_topology(self, own: str) -> Topology:
        """Return the topology of a member."""
        return Topology(
            tuple(node.place for node in self.nodes),
            [node.id for node in self.nodes].index(own),
            failed=frozenset(number for number, node in enumerate(self.nodes) if node.failed),
        )

    def make_bucket_topology(self, own: str, name: str) -> Topology:
        """Return the topology of a bucket, as a member sees it; all nodes for an unknown bucket."""
        topology, bucket = self.make_topology(own), self.find_bucket(name)
        if bucket is None:
            return topology
        numbers: dict[str | None, int] = {node.id: number for number, node in enumerate(self.nodes)}
        chains = tuple(tuple(numbers.get(node, NO_NODE) for node in chain) for chain in bucket.read_chains())
        revision = bucket.map.revision
        return topology.with_chains(chains or None, (revision.epoch, revision.number))

    # Buckets

    def find_bucket(self, name: str) -> ClusterBucket | None:
        """Return the bucket with a name, None if it does not exist."""
        return next((bucket for bucket in self.buckets if bucket.name == name), None)

    def get_bucket(self, name: str) -> ClusterBucket:
        """Return the bucket with a name. Raises BucketNotServed if it does not exist."""
        found = self.find_bucket(name)
        if found is None:
            raise BucketNotServed(f"bucket {name!r} does not exist")
        return found

    def with_bucket(self, spec: BucketSpec, manifest: Manifest | None = None) -> ClusterDocument:
        """Return the document with another bucket, whose vbuckets are spread over all nodes.

        Args:
            spec: the definition of the bucket.
            manifest: its scopes and collections; None: those of a new bucket.

        Raises:
            UsageError: a bucket has the name, or cannot be on so many nodes.
        """
        if self.find_bucket(spec.name) is not None:
            raise UsageError(f"bucket {spec.name!r} exists already")
        revision = self.newest_map.successor
        if spec.is_plain_cache:
            placed = VbucketMap(revision=revision, nodes=self.members)
        else:
            self.make_topology(self.nodes[0].id).check_vbuckets(spec.vbuckets)
            placed = VbucketMap.from_chains(spread_vbuckets(self.members, spec.vbuckets), revision)
        made = ClusterBucket(
            name=spec.name,
            vbuckets=spec.vbuckets,
            properties=spec.list_properties(),
            map=placed,
            manifest=manifest_to_dict(manifest or spec.make_first_manifest()),
        )
        return replace(self, buckets=(*self.buckets, made), newest_map=revision)

    def with_spec(self, spec: BucketSpec) -> ClusterDocument:
        """Return the document with another definition of a bucket. Raises BucketNotServed."""
        return self._with_changed_bucket(replace(self.get_bucket(spec.name), properties=spec.list_properties()))

    def with_manifest(self, name: str, manifest: Manifest) -> ClusterDocument:
        """Return the document with other scopes and collections of a bucket. Raises BucketNotServed."""
        return self._with_changed_bucket(replace(self.get_bucket(name), manifest=manifest_to_dict(manifest)))

    def with_map(self, name: str, chains: Sequence[Chain], revision: MapRevision | None = None) -> ClusterDocument:
        """Return the document with other nodes of a bucket's vbuckets.

        Args:
            name: the bucket.
            chains: by vbucket, the ids of its owner and of its replicas.
            revision: the revision of the map; None: the next one.

        Raises:
            BucketNotServed: the bucket does not exist.
            KeyExists: the bucket has a newer map.
            UsageError: a node is no member, or the chains do not fit the bucket.
        """
        bucket = self.get_bucket(name)
        newer = revision or self.newest_map.successor
        newer.check()
        if not bucket.map.copies or len(chains) != bucket.vbuckets:
            raise UsageError(f"a map of {len(chains)} vbuckets for bucket {name!r}, expected {bucket.vbuckets}")
        placed = VbucketMap.from_chains(chains, newer)
        unknown = sorted(set(placed.nodes).difference(self.members))
        if unknown:
            raise UsageError(f"a map with node {unknown[0]}, expected members of the cluster")
        if replace(placed, revision=bucket.map.revision) == bucket.map and revision in (None, bucket.map.revision):
            return self
        if newer <= bucket.map.revision:
            found, newest = f"{newer.epoch}:{newer.number}", f"{bucket.map.revision.epoch}:{bucket.map.revision.number}"
            raise KeyExists(f"cluster map with revision {found}, expected one above {newest}")
        changed = replace(bucket, map=placed)
        return replace(_replace_bucket(self, changed), newest_map=max(newer, self.newest_map))

    def _with_changed_bucket(self, changed: ClusterBucket) -> ClusterDocument:
        """Return the document with another definition of a bucket, which its map shows too."""
        if changed in self.buckets:
            return self
        revision = self.newest_map.successor
        changed = replace(changed, map=replace(changed.map, revision=revision))
        return replace(_replace_bucket(self, changed), newest_map=revision)

    def without_bucket(self, name: str) -> ClusterDocument:
        """Return the document without a bucket. Raises BucketNotServed."""
        gone = self.get_bucket(name)
        return replace(self, buckets=tuple(bucket for bucket in self.buckets if bucket is not gone))

    def with_users(self, users: ClusterUsers) -> ClusterDocument:
        """Return the document with other users."""
        return replace(self, users=users)


def count_flush(document: ClusterDocument, name: str) -> ClusterDocument:
    """Return the document with one more flush of a bucket. Raises BucketNotServed."""
    bucket = document.get_bucket(name)
    return _replace_bucket(document, replace(bucket, flushes=bucket.flushes + 1))


def list_lost_vbuckets(
    before: ClusterDocument, after: ClusterDocument, own: str, known: LostVbuckets | None = None
) -> LostVbuckets:
    """Return the vbuckets that a node owned, and that a later document does not give to it.

    Args:
        before: the document before.
        after: the later one.
        own: id of the node.
        known: vbuckets that the node had lost before.
    """
    owned = {bucket.spec.uuid or "": _list_owned(bucket, own) for bucket in before.buckets}
    lost = {}
    for bucket in after.buckets:
        uuid = bucket.spec.uuid or ""
        vbuckets = owned.get(uuid, set()).union((known or {}).get(uuid, ()))
        lost[uuid] = tuple(sorted(vbuckets - _list_owned(bucket, own)))
    return {uuid: vbuckets for uuid, vbuckets in lost.items() if vbuckets}


def _list_owned(bucket: ClusterBucket, own: str) -> set[int]:
    return {vbucket for vbucket, chain in enumerate(bucket.read_chains()) if chain[0] == own}


def _check_document(document: ClusterDocument) -> None:
    """Raise an error if a part of the document cannot be used."""
    if not document.members:
        raise UsageError("no members: expected at least one")
    check_lease(document.lease_seconds)
    document.failover.check(document.lease_seconds)
    for node in document.nodes:
        document.make_topology(node.id)
    for bucket in document.buckets:
        _ = bucket.spec, bucket.read_manifest(), document.make_bucket_topology(document.nodes[0].id, bucket.name)
        if not set(bucket.map.nodes) <= set(document.members):
            raise UsageError(f"bucket {bucket.name!r} is on {bucket.map.nodes}, expected members")
    if document.users is not None:
        document.users.read_accounts()


def _replace_bucket(document: ClusterDocument, changed: ClusterBucket) -> ClusterDocument:
    buckets = tuple(changed if bucket.name == changed.name else bucket for bucket in document.buckets)
    return replace(document, buckets=buckets)
