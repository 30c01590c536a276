"""Changes of buckets, collections and users: on this node if it stands alone, else on all nodes of its cluster."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from msgspec.structs import replace as with_fields

from penstock.errors import Error, InvalidArguments, StatusError, TemporaryFailure, Unreachable, UsageError
from penstock.node.auth.users import Account
from penstock.node.auth.users_file import UsersFile, change_users
from penstock.node.buckets.bucket_list import MAX_BUCKETS, BucketList
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.pushed_map import PushedMap
from penstock.node.cluster.topology import AlternateAddress, Topology
from penstock.node.membership.cluster_document import ClusterDocument, ClusterUsers
from penstock.node.membership.cluster_member import ClusterMember
from penstock.node.membership.cluster_service import ClusterService
from penstock.node.membership.map_chains import read_chains
from penstock.node.membership.vbucket_map import MapRevision
from penstock.store.definition.manifest import Manifest

__all__ = ["Administration", "ChangeAccounts", "ChangeManifest", "change_alternate_address"]

ChangeManifest = Callable[[Manifest], Manifest]
"""Returns the changed manifest, or the same one. It may be called several times, and may raise to refuse the change."""

ChangeAccounts = Callable[[dict[str, Account]], None]
"""Changes accounts in place. It may be called several times, and may raise to refuse the change."""


class Administration:
    """Makes the changes that administrators request. In a cluster, all methods raise TemporaryFailure in a minority.

    Args:
        buckets: the buckets of the node.
        users: the users of the node; None: no login is needed.
        cluster: the cluster of the node.
    """

    def __init__(self, buckets: BucketList, users: UsersFile | None, cluster: ClusterService) -> None:
        self._buckets = buckets
        self._users = users
        self._cluster = cluster

    async def create_bucket(self, spec: BucketSpec) -> None:
        """Create a bucket.

        Raises:
            UsageError: it exists, or cannot exist.
        """
        member = self._cluster.member
        if member is None:
            await self._buckets.create(spec)
            return
        made = replace(spec, uuid=secrets.token_hex(16))

        def add(document: ClusterDocument) -> ClusterDocument:
            if len(document.buckets) >= MAX_BUCKETS:
                raise UsageError(f"{len(document.buckets)} buckets exist: the limit is {MAX_BUCKETS}")
            return document.with_bucket(made)

        await member.change(add)

    async def change_bucket(self, spec: BucketSpec) -> None:
        """Replace the definition of the bucket with the same name.

        Raises:
            UsageError: the bucket does not exist, or its disk refuses the definition.
        """
        member = self._cluster.member
        if member is None:
            self._buckets.change_spec(spec)
        else:
            await member.change(lambda document: document.with_spec(spec))

    async def delete_bucket(self, name: str) -> None:
        """Delete a bucket.

        Raises:
            UsageError: it does not exist, or mirrors another node's bucket.
            StoreRefused: its directory cannot be removed.
        """
        member = self._cluster.member
        if member is None:
            await self._buckets.delete(name)
        else:
            await member.change(lambda document: document.without_bucket(name))

    @property
    def shares_maps(self) -> bool:
        """Whether a change of a bucket's map holds on other nodes too."""
        return self._cluster.member is not None

    async def change_map(self, served: ServedBucket, pushed: PushedMap) -> None:
        """Give the vbuckets of a bucket to other nodes. The same map once more changes nothing.

        Raises:
            InvalidArguments: the map does not fit the bucket, or names a node that is no member.
            KeyExists: the map is older than the newest one, or has its version and other places.
            TemporaryFailure: the map cannot be stored, or only a minority of the nodes answers.
        """
        member = self._cluster.member
        if member is None:
            served.cluster_map.replace(pushed)
            return

        def change_document(document: ClusterDocument) -> ClusterDocument:
            revision = MapRevision(pushed.epoch, pushed.revision)
            return document.with_map(served.store.name, read_chains(pushed, document, own_host), revision)

        own_host = served.topology.own_place.host
        try:
            # Each node of the cluster gets the map, and all but the first have it already.
            if change_document(member.state.document) is member.state.document:
                await member.state.wait_applied()
            else:
                await member.change(change_document)
        except UsageError as error:
            raise InvalidArguments(str(error)) from error
        except StatusError:
            raise
        except Error as error:
            raise TemporaryFailure(str(error)) from error

    async def flush_bucket(self, name: str) -> None:
        """Delete all documents of a bucket.

        Raises:
            UsageError: the bucket does not exist.
            NotSupported: flush is disabled for the bucket.
            TemporaryFailure: a disk or a node does not permit it now.
        """
        member = self._cluster.member
        try:
            await (self._buckets.flush(name) if member is None else member.flush(name))
        except Unreachable as error:
            raise TemporaryFailure(f"bucket {name!r} is not flushed on all nodes: {error}") from error

    async def change_manifest(self, served: ServedBucket, change: ChangeManifest) -> Manifest:
        """Change the scopes and collections of a bucket. Its vbuckets write the events afterwards.

        Returns:
            The newest manifest.

        Raises:
            StatusError: the change is refused.
        """
        member, name = self._cluster.member, served.store.name
        if member is None:
            before = served.store.manifests.current
            after = change(before)
            if after is not before:
                served.change_manifest(after)
            return after

        def change_document(document: ClusterDocument) -> ClusterDocument:
            return document.with_manifest(name, change(document.get_bucket(name).read_manifest()))

        return (await member.change(change_document)).get_bucket(name).read_manifest()

    async def change_users(self, file: UsersFile, change: ChangeAccounts) -> None:
        """Change the users.

        Raises:
            Error: the file cannot be changed, or the change is refused.
        """
        member = self._cluster.member
        if member is None:
            await asyncio.to_thread(_change_file, file, change)
            file.reload()
            return

        def change_document(document: ClusterDocument) -> ClusterDocument:
            assert document.users is not None
            accounts, secret = document.users.read_accounts()
            change(accounts)
            return document.with_users(ClusterUsers.from_accounts(accounts, secret))

        await member.change(change_document)


def _change_file(file: UsersFile, change: ChangeAccounts) -> None:
    with change_users(file.path) as accounts:
        change(accounts)


class PublishingNode(Protocol):
    """A node, as its alternate address needs it."""

    @property
    def topology(self) -> Topology:
        """The nodes of the buckets, and the place of this node among them."""

    def set_topology(self, topology: Topology) -> None:
        """Publish the nodes of the buckets."""


async def change_alternate_address(
    node: PublishingNode, member: ClusterMember | None, external: AlternateAddress | None
) -> None:
    """Give a node an alternate address, or take it away. In a cluster, all nodes publish it.

    Args:
        node: the node.
        member: the member of a cluster that the node is; None: the node stands alone.
        external: the address; None: none.

    Raises:
        UsageError: the node has a list of nodes, which do not send each other their alternate addresses.
        TemporaryFailure: only a minority of the cluster answers.
    """
    topology = node.topology
    if member is not None:
        own_id = member.state.node

        def change(document: ClusterDocument) -> ClusterDocument:
            own = document.find_node(own_id)
            return document if own is None else document.with_node(with_fields(own, external=external))

        await member.change(change)
    elif len(topology.places) > 1:
        raise UsageError("nodes of a list have no alternate addresses, expected nodes of a cluster")
    else:
        node.set_topology(topology.with_own_place(replace(topology.own_place, external=external)))
