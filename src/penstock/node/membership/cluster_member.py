"""A member of a cluster: answers the requests of the others, changes the document, and asks for newer revisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from penstock.errors import AccessDenied, Error, TemporaryFailure
from penstock.node.agreement.agreement_messages import Ask, Known, Learn, Newer
from penstock.node.agreement.attempt import Outbox, Stage
from penstock.node.agreement.change_run import Author, MakeNext, begin_change, receive_change_reply, retry_change
from penstock.node.agreement.lease import LeaseStage
from penstock.node.agreement.revisions import Revision, count_majority
from penstock.node.agreement.serving_lease import ServingLease
from penstock.node.membership.cluster_document import ClusterDocument, ClusterNode, count_flush
from penstock.node.membership.failover_decision import MemberReport, ReplicaState
from penstock.node.membership.member_links import Courier, MemberLinks
from penstock.node.membership.member_state import MemberState
from penstock.node.membership.node_messages import (
    FlushReply,
    FlushRequest,
    JoinReply,
    JoinRequest,
    NodeReply,
    ReportReply,
    ReportRequest,
    encode_message,
    sign,
    verify_request,
)

__all__ = ["ChangeDocument", "ClusterMember"]

logger = logging.getLogger("penstock.node")

_ASKS_PER_LEASE = 8  # a few of them may be lost
_LONGEST_PAUSE = 0.2  # between two attempts of a change

_FAILOVER_SECONDS = 5.0
"""A failover is completed so soon after the end of the lease. Else its author has crashed."""

ChangeDocument = Callable[[ClusterDocument], ClusterDocument]
"""Returns the changed document. It may be called several times, and may raise to refuse the change."""


def _add_node(node: ClusterNode, document: ClusterDocument) -> ClusterDocument:
    return document if document.find_node(node.id) else document.with_node(node)


def _is_forgotten(lease: ServingLease) -> bool:
    """Return whether the lease ended so long ago that a failover would have been completed."""
    return lease.stage is LeaseStage.LAPSED and lease.seconds_lapsed > _FAILOVER_SECONDS


class _UnchangedDocument(Exception):
    """A change has no effect on the newest document."""


class ClusterMember:
    """Takes part in the agreement of a cluster.

    Args:
        state: the durable state.
        links: sends requests to the members.
        change_seconds: time within which a majority must agree on a change.
        flush: deletes the documents of a bucket of this node.
        list_replicas: returns this node's replicas of vbuckets that a member owns, by bucket.
        random: random numbers of the names of changes, and of pauses.

    Attributes:
        state: as the argument.
        links: as the argument.
        random: as the argument.
    """

    def __init__(
        self,
        state: MemberState,
        links: MemberLinks,
        change_seconds: float,
        flush: Callable[[str], Awaitable[None]],
        list_replicas: Callable[[str], Mapping[str, tuple[ReplicaState, ...]]],
        *,
        random: Random,
    ) -> None:
        self.state = state
        self.links = links
        self.random = random
        self._change_seconds = change_seconds
        self._flush = flush
        self._list_replicas = list_replicas
        # A flush from before the start of the node is not repeated: its documents may be newer.
        self._flushed = {bucket.spec.uuid or "": bucket.flushes for bucket in state.document.buckets}
        self._changing = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None
        self._asking: dict[str, asyncio.Task[None]] = {}  # one request to each node
        self._renewing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask the other members for newer revisions from now on."""
        self.state.apply()
        self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def stop(self) -> None:
        """Ask no longer."""
        tasks = [task for task in (self._polling, self._renewing, *self._asking.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def receive(self, text: bytes, proof: str) -> tuple[bytes, str]:
        """Return the reply to a message of another member, with its proof.

        Raises:
            AuthenticationFailed: the sender does not know the secret.
            RemoteProtocolError: the message is malformed.
            TemporaryFailure: the state cannot be stored, or the cluster cannot be changed.
        """
        message = verify_request(self.state.secret, self.state.node, text, proof)
        body = message.body
        if isinstance(body, JoinRequest):
            await self.change(partial(_add_node, body.node))
            reply = NodeReply(JoinReply(self.state.revision.number))
        elif isinstance(body, FlushRequest):
            await self._flush_once(body)
            reply = NodeReply(FlushReply())
        elif isinstance(body, ReportRequest):
            reply = NodeReply(ReportReply(self.make_report(body.lost)))
        else:
            reply = NodeReply(await self.state.answer(body))
            if isinstance(body, Learn):
                await self.state.wait_applied()
        answer = encode_message(reply)
        return answer, sign(self.state.secret, answer, message.nonce)

    def make_report(self, lost: str) -> MemberReport:
        """Return the report of this node about a member that may be lost."""
        return MemberReport(self.state.measure_silence([lost])[lost], self._list_replicas(lost))

    async def flush(self, bucket: str) -> None:
        """Delete the documents of a bucket on all nodes.

        Raises:
            Error: one of the nodes does not answer, or refuses. Others may have deleted their documents.
        """
        counted = (await self.change(partial(count_flush, name=bucket))).get_bucket(bucket)
        request = FlushRequest(bucket, counted.spec.uuid or "", counted.flushes)
        await self._flush_once(request)
        others = [node for node in self.state.document.members if node != self.state.node]
        await asyncio.gather(*(self.links.send(node, request) for node in others))

    async def _flush_once(self, request: FlushRequest) -> None:
        """Delete the documents of a bucket, unless the request is a repeated one.

        Raises:
            TemporaryFailure: the node does not know this flush, or has carried it out.
            Error: the bucket cannot be flushed.
        """
        known = self.state.document.find_bucket(request.bucket)
        newest = 0 if known is None or known.spec.uuid != request.uuid else known.flushes
        done = self._flushed.get(request.uuid, 0)
        if not done < request.number <= newest:
            text = f"flush {request.number} of bucket {request.bucket!r}: expected {done + 1} to {newest}"
            raise TemporaryFailure(text)
        self._flushed[request.uuid] = request.number
        await self._flush(request.bucket)

    async def _poll(self) -> None:
        """Ask all nodes for newer revisions and for the lease, again and again. A slow node delays no other."""
        while True:
            for node in self.state.document.nodes:
                if node.id not in self._asking:
                    task = asyncio.get_running_loop().create_task(self.catch_up(node.id))
                    self._asking[node.id] = task
                    task.add_done_callback(partial(self._end_asking, node.id))
            await asyncio.sleep(self.state.document.lease_seconds / _ASKS_PER_LEASE)

    def _end_asking(self, node: str, task: asyncio.Task[None]) -> None:
        del self._asking[node]

    async def catch_up_with_all(self) -> None:
        """Ask all nodes for a newer revision and for the lease. Those that do not answer cost a few seconds."""
        await asyncio.gather(*(self.catch_up(node.id) for node in self.state.document.nodes))

    async def catch_up(self, node: str) -> None:
        """Ask a node for a newer revision and for the lease. Errors are logged: the next request may succeed."""
        lease, number = self.state.lease, self.state.revision.number
        sent_at = lease.clock()
        try:
            reply = await self.links.deliver(node, Ask(number, self.state.node))
            if isinstance(reply, Newer):
                await self.state.answer(Learn(reply.revision))
            elif isinstance(reply, Known) and reply.grants:
                lease.receive_grant(node, sent_at)
            elif isinstance(reply, Known) and reply.number == number and _is_forgotten(lease):
                self._end_suspicion()
        except Error as error:
            logger.warning("node %s: %s", node, error)

    def _end_suspicion(self) -> None:
        """Make a revision without a change: a failover that was not completed has suspended the lease of this node."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew_revision())

    async def _renew_revision(self) -> None:
        def keep(known: Revision, silent: Mapping[str, float]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
            return known.members, known.content

        try:
            await self.agree(keep)
        except Error as error:
            logger.warning("the lease of this node is suspended: %s", error)

    async def change(self, change: ChangeDocument) -> ClusterDocument:
        """Change the document. Returns once all nodes that answer use the changed document, or after a limit.

        Returns:
            The newest document.

        Raises:
            TemporaryFailure: fewer than a majority of the nodes answer. The change may still become effective if
                another node finishes it.
            Error: the change is refused.
        """

        def make_next(known: Revision, silent: Mapping[str, float]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
            before = ClusterDocument.from_revision(known)
            after = change(before)
            if after == before:
                raise _UnchangedDocument
            return after.members, after.to_content()

        with suppress(_UnchangedDocument):
            await self.agree(make_next)
        return self.state.document

    async def agree(self, make_next: MakeNext, suspects: tuple[str, ...] = ()) -> None:
        """Make a revision. Returns and raises as `change` does.

        Args:
            make_next: makes the revision.
            suspects: members that the revision may exclude.
        """
        try:
            async with asyncio.timeout(self._change_seconds):
                async with self._changing:
                    reports = await self._run_change(make_next, suspects)
            await self.state.wait_applied()
            await self._report(reports)
        except TimeoutError:
            raise TemporaryFailure(self._describe_minority()) from None

    async def _run_change(self, make_next: MakeNext, suspects: tuple[str, ...]) -> Outbox:
        """Run a change until a revision contains it.

        Returns:
            The reports of the decision that are left to send.
        """
        author = Author(self.state.node, self.random.randbytes(8).hex(), suspects)
        courier = Courier(self.links.deliver)
        try:
            run, outbox = begin_change(self.state.revision, author, make_next)
            while True:
                if run.result is not None:
                    await self.state.answer(Learn(run.result))
                    self._check_membership(run.result)
                    if run.refusal is not None:
                        await self._report(outbox)
                        raise run.refusal
                    return outbox
                courier.send(outbox)
                received = await courier.receive()
                if received is not None:
                    run, outbox = receive_change_reply(run, *received)
                if received is None or run.attempt.stage is Stage.REFUSED:
                    await asyncio.sleep(self.random.random() * _LONGEST_PAUSE)
                    run, outbox = retry_change(run)
        finally:
            courier.close()

    def _check_membership(self, result: Revision) -> None:
        """Raise AccessDenied if another node has removed this node, so that its change may be lost."""
        if self.state.node not in result.members and self.state.node not in result.changes:
            raise AccessDenied("this node was removed from the cluster")

    async def _report(self, reports: Outbox) -> None:
        """Report a decision to the other nodes. Nodes that do not answer ask for it later."""
        others = [self.links.deliver(node, request) for node, request in reports if node != self.state.node]
        await asyncio.gather(*others)

    async def confirm_decision(self) -> bool:
        """Report the newest revision to its members. A removed node must not forget its votes before a majority knows.

        Returns:
            Whether a majority of the members knows the revision.
        """
        newest = self.state.revision
        members = [node for node in newest.members if node != self.state.node]
        replies = await asyncio.gather(*(self.links.deliver(node, Learn(newest)) for node in members))
        knowing = sum(isinstance(reply, Known | Newer) for reply in replies)
        return knowing >= count_majority(newest.members)

    def _describe_minority(self) -> str:
        members = self.state.document.members
        healthy = sum(map(self.links.is_healthy, members))
        return (
            f"the cluster cannot be changed: {healthy} of {len(members)} nodes answer, expected at least "
            f"{count_majority(members)}"
        )
