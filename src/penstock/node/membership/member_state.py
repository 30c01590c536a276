"""The durable acceptor of a member: it answers requests once their effect is on disk, and keeps the newest document."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

from msgspec.structs import replace

from penstock.errors import TemporaryFailure
from penstock.node.agreement.acceptor_state import answer_request
from penstock.node.agreement.agreement_messages import Ask, Known, Promise, Reply, Request, RequestPromise
from penstock.node.agreement.revisions import Revision
from penstock.node.agreement.serving_lease import ServingLease
from penstock.node.agreement.silence import Silence, change_members, measure_silence, note_renewal
from penstock.node.cluster.topology import NodePlace
from penstock.node.membership.cluster_document import ClusterDocument, LostVbuckets, list_lost_vbuckets
from penstock.node.membership.member_file import MemberFile, StoredMember

__all__ = ["MemberState", "RevisionUser"]

_APPLY_SECONDS = 5.0


class RevisionUser(Protocol):
    """Uses the newest revision."""

    def schedule(self, revision: Revision, lost: LostVbuckets) -> None:
        """Use a revision from now on.

        Args:
            revision: the revision.
            lost: vbuckets that must not stay active.
        """

    async def wait(self, number: int, seconds: float) -> None:
        """Wait until this revision or a later one is in use, at most for some seconds."""


class MemberState:
    """The state of a member.

    Args:
        member: the stored part.
        file: stores it.
        user: uses each new revision that lists the node, and the one that removes it.
        lease: the lease of the node.

    Attributes:
        document: the document of the newest known revision.
        lease: as the argument.
    """

    def __init__(self, member: StoredMember, file: MemberFile, user: RevisionUser, lease: ServingLease) -> None:
        self._member = member
        self._file = file
        self._user = user
        self.document = ClusterDocument.from_revision(member.state.revision)
        self.lease = lease
        has_voted = member.state.vote is not None
        lease.begin(member.node, self.document.lease_seconds, member.state.revision, has_voted=has_voted)
        self._silence = Silence(lease.clock(), member.state.revision.members)
        self._lock = asyncio.Lock()
        self._is_forgotten = False
        self._places = {node.id: node.place for node in self.document.nodes}

    @property
    def node(self) -> str:
        """Id of the node."""
        return self._member.node

    @property
    def secret(self) -> str:
        """The secret of the cluster."""
        return self._member.secret

    @property
    def is_joining(self) -> bool:
        """Whether no revision has listed the node yet."""
        return self._member.is_joining

    @property
    def revision(self) -> Revision:
        """The newest known revision."""
        return self._member.state.revision

    @property
    def lost(self) -> LostVbuckets:
        """Vbuckets that the node has lost, and that may be active on it still."""
        return self._member.lost

    def find_place(self, node: str) -> NodePlace | None:
        """Return the place of a member, also of one that the newest revision has removed; None if it is unknown."""
        return self._places.get(node)

    async def answer(self, request: Request) -> Reply:
        """Return the reply to a request. The new state is on disk before.

        Raises:
            RemoteProtocolError: the request has an invalid document.
            TemporaryFailure: the state cannot be stored.
        """
        # A task of its own: a caller that is cancelled must not let the next answer overtake this one to the disk.
        return await asyncio.shield(asyncio.get_running_loop().create_task(self._answer_and_store(request)))

    async def wait_applied(self) -> None:
        """Wait until the node uses the newest revision, at most for some seconds."""
        if not self.is_joining:
            await self._user.wait(self.revision.number, _APPLY_SECONDS)

    def apply(self) -> None:
        """Let the node use the newest revision soon."""
        if not self.is_joining:
            self._user.schedule(self.revision, self.lost)

    async def note_applied(self, number: int) -> None:
        """Note that the node uses a revision, and that the vbuckets that it has lost are not active on disk.

        Args:
            number: number of the revision.

        Raises:
            TemporaryFailure: that cannot be stored.
        """
        async with self._lock:
            if self.lost and number == self.revision.number:
                await self._store(replace(self._member, lost={}))
        self.lease.apply(number)

    async def forget(self) -> None:
        """Remove the stored state, for ever: a request that is under way must not store it again.

        Raises:
            TemporaryFailure: the file cannot be removed.
        """
        async with self._lock:
            self._is_forgotten = True
            await asyncio.to_thread(self._file.remove)

    async def _store(self, member: StoredMember) -> None:
        if self._is_forgotten:
            raise TemporaryFailure("this node was removed from the cluster")
        await asyncio.to_thread(self._file.write, member)
        self._member = member

    async def _answer_and_store(self, request: Request) -> Reply:
        async with self._lock:
            state, reply = answer_request(self._member.state, request)
            if state != self._member.state:
                document = ClusterDocument.from_revision(state.revision)
                is_joining = self.is_joining and self.node not in state.revision.members
                is_newer = state.revision.number > self.revision.number
                lost = list_lost_vbuckets(self.document, document, self.node, self.lost)
                await self._store(replace(self._member, state=state, is_joining=is_joining, lost=lost))
                if is_newer:
                    self._use(document)
                elif state.vote is not None:
                    self.lease.note_vote()
            return self._note_silence(request, reply)

    def _note_silence(self, request: Request, reply: Reply) -> Reply:
        """Note a renewed lease, or add the silence of the suspects to a promise.

        Returns:
            The reply.
        """
        now = self.lease.clock()
        if isinstance(request, Ask) and isinstance(reply, Known) and reply.grants:
            self._silence = note_renewal(self._silence, request.renews, now)
        if isinstance(request, RequestPromise) and isinstance(reply, Promise):
            return replace(reply, silent=measure_silence(self._silence, request.suspects, now))
        return reply

    def measure_silence(self, members: Collection[str]) -> Mapping[str, float]:
        """Return the seconds for which this node has renewed no lease of these members."""
        return measure_silence(self._silence, members, self.lease.clock())

    def _use(self, document: ClusterDocument) -> None:
        self._silence = change_members(self._silence, self.revision.members, self.lease.clock())
        self.lease.learn(self.revision)
        before = {node.id: node.place for node in self.document.nodes}  # removed nodes are notified too
        self.document, self._places = document, before | {node.id: node.place for node in document.nodes}
        self.apply()
