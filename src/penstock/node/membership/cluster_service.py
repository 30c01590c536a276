"""The cluster of a node: how the node joins, takes part, and leaves."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace as with_fields

from penstock.errors import AccessDenied, Error, TemporaryFailure, Unreachable, UsageError
from penstock.node.agreement.acceptor_state import AcceptorState
from penstock.node.agreement.failover_settings import FailoverSettings
from penstock.node.agreement.revisions import Revision
from penstock.node.agreement.serving_lease import ServingLease
from penstock.node.auth.users_file import read_users, replace_users
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.topology import ANY_HOST, NodePlace, Topology
from penstock.node.membership.cluster_document import ClusterDocument, ClusterNode, ClusterUsers
from penstock.node.membership.cluster_member import ClusterMember
from penstock.node.membership.document_applier import AppliedNode, DocumentApplier
from penstock.node.membership.document_replicas import list_replicas
from penstock.node.membership.failover_watch import FailoverWatch
from penstock.node.membership.map_chains import read_chains
from penstock.node.membership.member_file import MemberFile, StoredMember
from penstock.node.membership.member_links import MemberLinks
from penstock.node.membership.member_state import MemberState
from penstock.node.membership.node_messages import JoinReply, JoinRequest
from penstock.node.membership.node_requests import NodeRequests, NodeResponse, make_basic_login
from penstock.node.membership.vbucket_map import MapRevision
from penstock.wire.codec.constants import VbucketState
from penstock.wire.values.peer_json import read_peer_json

__all__ = [
    "INVITATION_PATH",
    "JOIN_PATH",
    "JOIN_SECONDS",
    "ClusterService",
    "Invitation",
    "parse_node_address",
]

logger = logging.getLogger("penstock.node")

INVITATION_PATH = "/cluster/invitation"
JOIN_PATH = "/cluster/join"
_LOGIN_SECONDS = 20.0
_ADDED_SECONDS = 30.0

JOIN_SECONDS = _LOGIN_SECONDS + _ADDED_SECONDS + 10.0
"""The longest time of `ClusterService.join`."""

_RETRY_SECONDS = 1.0
_ADDRESS = re.compile(
    r"((?P<scheme>https?)://)?(\[(?P<address>[^\[\]/]+)\]|(?P<name>[^\[\]:/@]+))(:(?P<port>[0-9]{1,5}))?/?"
)
_PORTS = {"http": 8091, "https": 18091}


class Invitation(Struct, frozen=True):
    """Lets a node join a cluster. `repr` shows no secret.

    Attributes:
        secret: the secret of the cluster.
        revision: the newest revision; any of its members can add the node.
    """

    secret: str
    revision: Revision

    def __repr__(self) -> str:
        return f"Invitation(revision {self.revision.number})"


class JoiningNode(AppliedNode, Protocol):
    """A node, as its cluster needs it."""

    @property
    def topology(self) -> Topology:
        """The nodes of the buckets, and the place of this node among them."""


class ClusterService:
    """Joins and leaves clusters, and forms the cluster of a node that stands alone.

    Args:
        node: the node.
        file: stores the membership.
        requests: sends requests to other nodes.
        host: the address of the node's ports.
        has_fixed_nodes: the node was started with a list of nodes, and cannot be in another cluster.
        change_seconds: as in ClusterMember.
        lease: the lease of the node.
        lease_seconds: duration of the leases in a cluster that this node forms.
        failover: settings of the automatic failover in a cluster that this node forms.
        random: random numbers of identifiers. Secrets always come from the operating system.

    Attributes:
        member: takes part in the cluster; None: the node stands alone.
    """

    def __init__(
        self,
        node: JoiningNode,
        file: MemberFile,
        requests: NodeRequests,
        host: str,
        *,
        has_fixed_nodes: bool,
        change_seconds: float,
        lease: ServingLease,
        lease_seconds: float,
        failover: FailoverSettings,
        random: Random,
    ) -> None:
        self._node = node
        self._file = file
        self._requests = requests
        self._host = host
        self._has_fixed_nodes = has_fixed_nodes
        self._change_seconds = change_seconds
        self._lease = lease
        self._lease_seconds = lease_seconds
        self._failover = failover
        self._random = random
        self._watch: FailoverWatch | None = None
        self._lock = asyncio.Lock()  # one at a time joins, leaves, or forms the cluster
        self._applier: DocumentApplier | None = None
        self._joining: asyncio.Task[None] | None = None
        self.member: ClusterMember | None = None

    def load(self) -> bool:
        """Become the member that the node was before it was stopped.

        Returns:
            Whether it was a member.

        Raises:
            StoreDamaged: the file cannot be read.
        """
        member = self._file.read()
        if member is not None:
            self._become(member)
        return member is not None

    async def start(self) -> None:
        """Take part in the cluster, now that the ports are open. The node is up to date if other members answer."""
        member = self.member
        if member is not None:
            self._take_part(member)
            await member.catch_up_with_all()
            await member.state.wait_applied()

    def _take_part(self, member: ClusterMember) -> None:
        member.start()
        assert self._watch is not None
        self._watch.start()
        self._joining = asyncio.get_running_loop().create_task(self._update_place(member))

    async def stop(self) -> None:
        """Take part no longer. The membership stays stored."""
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.wait([self._joining])
        if self._watch is not None:
            await self._watch.stop()
        if self.member is not None:
            await self.member.stop()
        if self._applier is not None:
            await self._applier.stop()

    def make_topology(self, bucket: str | None = None) -> Topology | None:
        """Return the topology of this node, or of a bucket by its name; None if the node stands alone."""
        member = self.member
        if member is None or member.state.document.find_node(member.state.node) is None:
            return None
        document, own = member.state.document, member.state.node
        return document.make_topology(own) if bucket is None else document.make_bucket_topology(own, bucket)

    def _become(self, member: StoredMember) -> ClusterMember:
        leave, note_applied = partial(self._leave, member.node), partial(self._note_applied, member.node)
        self._applier = DocumentApplier(self._node, member.node, leave, note_applied)
        state = MemberState(member, self._file, self._applier, self._lease)
        links = MemberLinks(state, self._requests, self._lease.clock)
        buckets = self._node.buckets
        report = partial(list_replicas, buckets, state)
        self.member = ClusterMember(state, links, self._change_seconds, buckets.flush, report, random=self._random)
        self._watch = FailoverWatch(self.member)
        return self.member

    async def _note_applied(self, node: str, number: int) -> None:
        if self.member is not None and self.member.state.node == node:
            await self.member.state.note_applied(number)

    # A cluster of one node

    async def invite(self, host: str) -> Invitation:
        """Return an invitation to this cluster. A node that stands alone forms a cluster first.

        Args:
            host: the name or address by which the other node knows this node.

        Raises:
            UsageError: this node cannot be part of a cluster.
            TemporaryFailure: the cluster cannot be stored.
        """
        async with self._lock:
            member = self.member or await self._form(host)
        return Invitation(member.state.secret, member.state.revision)

    async def _form(self, host: str) -> ClusterMember:
        """Form a cluster of this node with its buckets, collections and users.

        Returns:
            The first member.
        """
        self._check_may_join()
        buckets, own = self._node.buckets, self._random.randbytes(8).hex()
        place = ClusterNode.from_place(own, self._node.topology.own_place)
        own_host = self._get_own_host() or host
        self._requests.check(with_fields(place, host=own_host).place)
        document = ClusterDocument(uuid=self._random.randbytes(16).hex(), nodes=(with_fields(place, host=own_host),))
        newest = max((MapRevision(*served.cluster_map.version) for served in buckets.values()), default=MapRevision())
        document = with_fields(document, newest_map=newest, lease_seconds=self._lease_seconds, failover=self._failover)
        for served in buckets.values():
            document = document.with_bucket(replace(served.spec, uuid=served.uuid), served.store.manifests.current)
            pushed = served.cluster_map.pushed
            if pushed is not None:
                document = document.with_map(served.store.name, read_chains(pushed, document, own_host))
        for served in buckets.values():
            buckets.change_spec(replace(served.spec, uuid=served.uuid))
        users = self._node.users
        if users is not None:
            document = document.with_users(ClusterUsers.from_accounts(*read_users(users.path)))
        revision = Revision(1, document.members, {}, document.to_content())
        kept = StoredMember(own, secrets.token_hex(32), AcceptorState(revision))
        await asyncio.to_thread(self._file.write, kept)
        member = self._become(kept)
        self._take_part(member)
        return member

    def _check_may_join(self) -> None:
        if self._has_fixed_nodes:
            raise UsageError("this node has a fixed list of nodes: start it without --node to let nodes join")
        for name, served in self._node.buckets.items():
            if served.bridge is not None:
                raise UsageError(f"bucket {name!r} mirrors another node's bucket: the node cannot be in a cluster")

    def _get_own_host(self) -> str | None:
        """Return the own address, None if the node listens on all addresses."""
        return None if self._host in ("0.0.0.0", "::", ANY_HOST) else self._host

    # Joining

    async def join(self, address: str, user: str, password: str) -> None:
        """Join the cluster of another node, with the login of an administrator there.

        Raises:
            UsageError: the node is a member already, has documents, or has users where the cluster has none.
            AccessDenied: the login is refused.
            Unreachable: the other node does not answer.
            TemporaryFailure: the cluster cannot be changed now. The node goes on trying.
        """
        place = parse_node_address(address)
        login = make_basic_login(user, password) if user else {}
        response = await self._requests.post(place, INVITATION_PATH, b"", login, seconds=_LOGIN_SECONDS)
        _check_response(place, response)
        invitation = read_peer_json(response.body, Invitation, "invitation of a node")
        await self.accept(invitation, _find_own_address(place))
        member, joining = self.member, self._joining
        assert member is not None
        assert joining is not None
        await asyncio.wait([joining], timeout=_ADDED_SECONDS)
        if member.state.is_joining:
            raise TemporaryFailure(f"node {place.address} has not added this node yet: this node goes on trying")
        await member.state.wait_applied()

    async def accept(self, invitation: Invitation, host: str) -> ClusterNode:
        """Prepare to become a member. The node's empty buckets are deleted.

        Args:
            invitation: the invitation.
            host: the address by which other nodes reach this node if it listens on all addresses.

        Returns:
            This node, to be added by a member.

        Raises:
            UsageError: as in `join`.
        """
        async with self._lock:
            if self.member is not None:
                raise UsageError("this node is a member of a cluster already: remove it there first")
            self._check_may_join()
            document = ClusterDocument.from_revision(invitation.revision)
            if (document.users is None) != (self._node.users is None):
                has, needs = ("no users", "users") if self._node.users is None else ("users", "none")
                raise UsageError(f"this node has {has}, and the cluster has {needs}: start it like the other nodes")
            for name, served in self._node.buckets.items():
                if _has_changes(served):
                    raise UsageError(f"bucket {name!r} has documents: only a node with empty buckets can join")
            own = ClusterNode.from_place(self._random.randbytes(8).hex(), self._node.topology.own_place)
            own = with_fields(own, host=self._get_own_host() or host)
            self._requests.check(own.place)
            for name in tuple(self._node.buckets):
                await self._node.buckets.delete(name)
            kept = StoredMember(own.id, invitation.secret, AcceptorState(invitation.revision), is_joining=True)
            await asyncio.to_thread(self._file.write, kept)
            self._take_part(self._become(kept))
            return own

    async def _complete_join(self, member: ClusterMember) -> None:
        """Ask the members to add this node, until one has done so."""
        while member.state.is_joining:
            problem: Error | None = None
            for other in member.state.document.nodes:
                try:
                    reply = await member.links.send(other.id, JoinRequest(self._make_own_node(member)))
                except Error as error:
                    problem = error
                else:
                    assert isinstance(reply, JoinReply)
                    await member.catch_up(other.id)
                    break
            if member.state.is_joining:
                logger.warning("the cluster has not added this node yet: %s", problem)
                await asyncio.sleep(_RETRY_SECONDS)

    def _make_own_node(self, member: ClusterMember) -> ClusterNode:
        known = member.state.document.find_node(member.state.node)
        own = ClusterNode.from_place(member.state.node, self._node.topology.own_place)
        first = member.state.document.nodes[0].place
        if known is None:
            return with_fields(own, host=self._get_own_host() or _find_own_address(first))
        return with_fields(own, host=known.host, external=known.external, failed=known.failed)

    async def _update_place(self, member: ClusterMember) -> None:
        """Complete a join that a stop has interrupted, and publish the present ports of this node."""
        await self._complete_join(member)
        await member.catch_up_with_all()  # its first lease
        while (own := self._make_own_node(member)) != member.state.document.find_node(member.state.node):
            try:
                await member.change(partial(_move_node, own))
            except TemporaryFailure as error:
                logger.warning("the address of this node is not known to the cluster: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            except Error as error:
                if member.state.node in member.state.revision.members:  # else the node was removed meanwhile
                    logger.error("the address of this node is not known to the cluster: %s", error)
                return

    async def add_node(self, address: str, user: str, password: str, own_host: str) -> ClusterNode:
        """Let another node join this cluster, with the login of an administrator there.

        Args:
            address: the HTTP address of the other node.
            user: the user name; empty: no login.
            password: the password.
            own_host: the name or address by which the client knows this node.

        Returns:
            The node that was added.

        Raises:
            UsageError: one of the nodes cannot be part of a cluster, or refuses.
            AccessDenied: the login is refused.
            Unreachable: the other node does not answer.
            TemporaryFailure: the cluster cannot be changed.
        """
        place = parse_node_address(address)
        self._requests.check(place)
        invitation = await self.invite(own_host)
        member = self.member
        assert member is not None
        login = make_basic_login(user, password) if user else {}
        text = msgspec.json.encode(invitation)
        response = await self._requests.post(place, JOIN_PATH, text, login, seconds=_LOGIN_SECONDS)
        _check_response(place, response)
        added = read_peer_json(response.body, ClusterNode, "node that joins")
        await member.change(lambda document: document.with_node(added))
        return added

    # Leaving

    async def remove_node(self, node: str) -> None:
        """Remove a member that has no vbuckets and no replicas.

        Raises:
            UsageError: the node is no member, is the last one, or has vbuckets or replicas.
            TemporaryFailure: the cluster cannot be changed.
        """
        member = self.member
        if member is None:
            raise UsageError("this node is not in a cluster")

        def remove(document: ClusterDocument) -> ClusterDocument:
            if document.find_node(node) is None:
                raise UsageError("Server does not exist.")
            if len(document.nodes) == 1:
                raise UsageError("the last node of a cluster cannot be removed")
            return document.without_node(node)

        await member.change(remove)

    async def _leave(self, node: str) -> bool:
        """Forget the cluster if this node was removed. Its buckets are deleted: it owned no vbuckets.

        Args:
            node: the id of the removed member. The node may have joined again since, with another id.

        Returns:
            False: the node is still joining, or must wait until the others know of the removal.
        """
        member = self.member
        if member is None or member.state.node != node:
            return True
        if member.state.is_joining or not await member.confirm_decision():
            return False
        logger.warning("this node was removed from its cluster: it has no buckets now")
        if self._watch is not None:
            await self._watch.stop()
        await member.stop()
        for name in tuple(self._node.buckets):
            await self._node.buckets.delete(name)
        if (users := self._node.users) is not None:
            await asyncio.to_thread(lambda: replace_users(users.path, *read_users(users.path)))
        await member.state.forget()
        self.member = None
        self._lease.end()
        place = with_fields(ClusterNode.from_place("", self._node.topology.own_place), host=ANY_HOST).place
        self._node.set_topology(Topology((place,)))
        return True


def _move_node(node: ClusterNode, document: ClusterDocument) -> ClusterDocument:
    return document if document.find_node(node.id) is None else document.with_node(node)


def _has_changes(served: ServedBucket) -> bool:
    return any(
        vbucket.changes.high_seqno > 0
        for vbucket in served.store.vbuckets
        if vbucket.history.state is not None and vbucket.history.state is not VbucketState.DEAD
    )


def parse_node_address(text: str) -> NodePlace:
    """Return the place of an HTTP address, such as `https://10.0.0.5:18091` or `10.0.0.5`.

    Raises:
        UsageError: the text is no such address.
    """
    parts = _ADDRESS.fullmatch(text.strip())
    if parts is None:
        raise UsageError(f"address {text[:100]!r} of a node: expected http://HOST:PORT or https://HOST:PORT")
    scheme, host = parts["scheme"] or "http", parts["address"] or parts["name"]
    port = int(parts["port"] or _PORTS[scheme])
    return NodePlace(host=host, mgmt_tls=port) if scheme == "https" else NodePlace(host=host, mgmt=port)


def _find_own_address(place: NodePlace) -> str:
    """Return the own address on the way to another node. Nothing is sent."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect((place.host, place.mgmt_tls or place.mgmt))
            return str(way.getsockname()[0])
    raise Unreachable(f"node {place.address}: no way to this address")


def _check_response(place: NodePlace, response: NodeResponse) -> None:
    if response.status == 200:
        return
    if response.status in (401, 403):
        raise AccessDenied(f"node {place.address} refuses the login: {response.reason}")
    raise UsageError(f"node {place.address} refuses: {response.reason}")
