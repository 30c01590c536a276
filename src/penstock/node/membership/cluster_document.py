"""The document that the nodes of a cluster agree on: nodes, buckets with their collections, users. Pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from penstock.errors import BucketNotServed, Error, RemoteProtocolError, UsageError
from penstock.node.agreement.revisions import Revision
from penstock.node.auth.users import Account
from penstock.node.auth.users_file import SECRET_BYTES, accounts_from_dict, accounts_to_dict
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.cluster.topology import NodePlace, Topology
from penstock.store.definition.manifest import DEFAULT_MANIFEST, Manifest
from penstock.store.definition.manifest_json import manifest_from_dict, manifest_to_dict

__all__ = ["MAX_DOCUMENT_BYTES", "ClusterBucket", "ClusterDocument", "ClusterNode", "ClusterUsers"]

MAX_DOCUMENT_BYTES = 768 * 1024
"""A message has one document at most and must fit into the body of a request, which is limited to 1 MiB."""


_MAX_REMOVED = 100


class ClusterNode(Struct, frozen=True, kw_only=True):
    """A node of a cluster.

    Attributes:
        id: stays the same as long as the node is a member. A node that joins again gets another id.
        host: as in NodePlace, like the ports.
    """

    id: str
    host: str
    kv: int = 0
    kv_tls: int = 0
    mgmt: int = 0
    mgmt_tls: int = 0

    @classmethod
    def from_place(cls, node: str, place: NodePlace) -> ClusterNode:
        """Return a node at a place."""
        ports = {name: getattr(place, name) for name in ("kv", "kv_tls", "mgmt", "mgmt_tls")}
        return cls(id=node, host=place.host, **ports)

    @property
    def otp_name(self) -> str:
        """The name by which clients of ns_server remove the node."""
        return f"ns_{self.id}@{self.host}"

    @property
    def place(self) -> NodePlace:
        """The addresses of the node."""
        return NodePlace(**{name: value for name, value in asdict(self).items() if name != "id"})


class ClusterBucket(Struct, frozen=True, kw_only=True):
    """A bucket of a cluster.

    Attributes:
        name: the name.
        vbuckets: number of vbuckets.
        properties: as in `BucketSpec.list_properties`, with the uuid.
        owners: ids of the nodes that own its vbuckets: each owns one part, in this order.
        manifest: scopes and collections, as in `manifest_to_dict`.
    """

    name: str
    vbuckets: int
    properties: Mapping[str, Any]
    owners: tuple[str, ...]
    manifest: Mapping[str, Any]

    @property
    def spec(self) -> BucketSpec:
        """The definition of the bucket."""
        return BucketSpec.from_properties(self.name, self.vbuckets, self.properties)

    def read_manifest(self) -> Manifest:
        """Return the scopes and collections."""
        return manifest_from_dict(self.manifest)


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
        removed: ids of the nodes that were removed last. A recorded message cannot add them again.
    """

    uuid: str
    nodes: tuple[ClusterNode, ...]
    removed: tuple[str, ...] = ()
    buckets: tuple[ClusterBucket, ...] = ()
    users: ClusterUsers | None = None

    @classmethod
    def from_revision(cls, revision: Revision) -> ClusterDocument:
        """Return the document of a revision.

        Raises:
            RemoteProtocolError: the revision has no valid document.
        """
        try:
            document = msgspec.convert(revision.content, cls)
            document.check()
        except (ValueError, LookupError, TypeError, AttributeError, Error) as error:
            raise RemoteProtocolError(f"document {revision.number} of the cluster: {error}") from None
        return document

    def check(self) -> None:
        """Raise an error if a part of the document cannot be used."""
        if not self.nodes:
            raise UsageError("no nodes: expected at least one")
        for node in self.nodes:
            self.make_topology(node.id)
        for bucket in self.buckets:
            _ = bucket.spec, bucket.read_manifest(), self.make_bucket_topology(self.nodes[0].id, bucket.name)
        if self.users is not None:
            self.users.read_accounts()

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
        """The ids of the nodes."""
        return tuple(node.id for node in self.nodes)

    def find_node(self, node: str) -> ClusterNode | None:
        """Return the node with an id, None if it is no member."""
        return next((known for known in self.nodes if known.id == node), None)

    def with_node(self, node: ClusterNode) -> ClusterDocument:
        """Return the document with a node that joins, or with another place of a member.

        Raises:
            UsageError: the node was removed.
        """
        if node.id in self.removed:
            raise UsageError(f"node {node.id} was removed from the cluster")
        others = tuple(node if known.id == node.id else known for known in self.nodes)
        return replace(self, nodes=others if node.id in self.members else (*others, node))

    def without_node(self, node: str) -> ClusterDocument:
        """Return the document without a node."""
        left = tuple(known for known in self.nodes if known.id != node)
        return replace(self, nodes=left, removed=(*self.removed, node)[-_MAX_REMOVED:])

    def make_topology(self, own: str, owners: tuple[str, ...] | None = None) -> Topology:
        """Return the topology of a member.

        Args:
            own: id of the member.
            owners: ids of the nodes that own vbuckets; None: all.
        """
        numbers = {node.id: number for number, node in enumerate(self.nodes)}
        known = None if owners is None else tuple(numbers[owner] for owner in owners if owner in numbers)
        return Topology(tuple(node.place for node in self.nodes), numbers[own], known or None)

    def make_bucket_topology(self, own: str, name: str) -> Topology:
        """Return the topology of a bucket, as a member sees it; all nodes for an unknown bucket."""
        found = self.find_bucket(name)
        return self.make_topology(own, None if found is None else found.owners)

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

    def with_bucket(self, spec: BucketSpec, manifest: Manifest = DEFAULT_MANIFEST) -> ClusterDocument:
        """Return the document with another bucket, whose vbuckets are spread over all nodes.

        Raises:
            UsageError: a bucket has the name, or cannot be on so many nodes.
        """
        if self.find_bucket(spec.name) is not None:
            raise UsageError(f"bucket {spec.name!r} exists already")
        if not spec.is_plain_cache:
            self.make_topology(self.nodes[0].id).check_vbuckets(spec.vbuckets)
        made = ClusterBucket(
            name=spec.name,
            vbuckets=spec.vbuckets,
            properties=spec.list_properties(),
            owners=self.members,
            manifest=manifest_to_dict(manifest),
        )
        return replace(self, buckets=(*self.buckets, made))

    def with_spec(self, spec: BucketSpec) -> ClusterDocument:
        """Return the document with another definition of a bucket. Raises BucketNotServed."""
        return self._with_changed_bucket(replace(self.get_bucket(spec.name), properties=spec.list_properties()))

    def with_manifest(self, name: str, manifest: Manifest) -> ClusterDocument:
        """Return the document with other scopes and collections of a bucket. Raises BucketNotServed."""
        return self._with_changed_bucket(replace(self.get_bucket(name), manifest=manifest_to_dict(manifest)))

    def _with_changed_bucket(self, changed: ClusterBucket) -> ClusterDocument:
        return replace(
            self, buckets=tuple(changed if bucket.name == changed.name else bucket for bucket in self.buckets)
        )

    def without_bucket(self, name: str) -> ClusterDocument:
        """Return the document without a bucket. Raises BucketNotServed."""
        gone = self.get_bucket(name)
        return replace(self, buckets=tuple(bucket for bucket in self.buckets if bucket is not gone))

    def with_users(self, users: ClusterUsers) -> ClusterDocument:
        """Return the document with other users."""
        return replace(self, users=users)
