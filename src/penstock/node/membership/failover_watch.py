"""Failovers of members: automatic ones of lost members, and those that an administrator requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from penstock.errors import Error, TemporaryFailure, UsageError
from penstock.node.agreement.agreement_messages import Promise, Refused, RequestPromise
from penstock.node.agreement.failover_settings import CLOCK_MARGIN
from penstock.node.agreement.lease import LeaseStage
from penstock.node.agreement.revisions import Ballot, Revision, count_majority
from penstock.node.membership.cluster_document import ClusterDocument
from penstock.node.membership.cluster_member import ClusterMember
from penstock.node.membership.failover_decision import (
    MemberReport,
    check_permission,
    check_silence,
    fail_over_member,
    find_lost_member,
)
from penstock.node.membership.node_messages import ReportReply, ReportRequest

__all__ = ["FailoverWatch", "fail_over_on_request"]

logger = logging.getLogger("penstock.node")

_WATCH_SECONDS = 0.5
_SUSPENSIONS = 5  # attempts to suspend a lease; other changes can disturb each of them
_SLACK_SECONDS = 0.5  # the promises of a revision may take so long


class FailoverWatch:
    """Looks for a member that is lost for a majority. All members watch; the first decided change wins.

    Args:
        member: this member.
    """

    def __init__(self, member: ClusterMember) -> None:
        self._member = member
        self._problem = ""  # the reason that was logged last
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Watch no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            # A random pause: members that see the loss at once would disturb each other.
            await asyncio.sleep(_WATCH_SECONDS * (1 + self._member.random.random()))
            lost = self._find_lost()
            if lost is None:
                self._problem = ""
                continue
            try:
                await self._fail_over(lost)
            except Error as error:
                if str(error) != self._problem:
                    logger.warning("node %s is lost, and cannot be failed over: %s", lost, error)
                self._problem = str(error)

    def _find_lost(self) -> str | None:
        """Return the member that this member takes for lost. A member without a lease is in a minority itself."""
        state = self._member.state
        if state.lease.stage is not LeaseStage.HELD:
            return None
        others = [member for member in state.document.members if member != state.node]
        return find_lost_member(state.document, state.measure_silence(others))

    async def _fail_over(self, lost: str) -> None:
        """Fail a member over if a majority misses it.

        Raises:
            Error: the failover is not safe, or not permitted.
        """
        member = self._member
        began = member.state.lease.clock()
        reports = await _collect_reports(member, lost)
        document = member.state.document
        timeout = document.failover.timeout
        if sum(report.silent >= timeout for report in reports.values()) < count_majority(document.members):
            return
        fail_over_member(document, lost, reports)  # raises before a majority suspends the lease

        def change(newest: ClusterDocument, silent: float) -> ClusterDocument:
            check_permission(newest)
            check_silence(newest, silent, member.state.lease.clock() - began, newest.failover.timeout)
            after = fail_over_member(newest, lost, reports)
            return replace(after, failover=after.failover.count_failover())

        await _exclude(member, lost, change)
        logger.warning("node %s was lost for %g s and is failed over", lost, timeout)


async def fail_over_on_request(member: ClusterMember, lost: str) -> None:
    """Fail a member over, whether it answers or not. The settings of the automatic failover do not matter.

    A majority suspends its lease first. So a member that answers gives its vbuckets up before others own them, and
    there is time for its last changes to reach the replicas.

    Args:
        member: this member.
        lost: id of another member.

    Raises:
        UsageError: a vbucket has too few replicas, the node is no other member, or another change came in between.
        TemporaryFailure: fewer than a majority of the members answer.
    """
    state = member.state
    if lost == state.node:
        raise UsageError("a node cannot fail itself over, expected the request at another node")
    if lost not in state.document.members:
        raise UsageError("the node was failed over already, expected a member")
    fail_over_member(state.document, lost, await _collect_reports(member, lost))  # raises before anything has changed
    await _suspend_lease(member, lost)
    silence = state.document.lease_seconds * CLOCK_MARGIN + _SLACK_SECONDS
    await asyncio.sleep(max(0.0, silence - state.measure_silence([lost])[lost]))
    began = state.lease.clock()
    reports = await _collect_reports(member, lost)

    def change(newest: ClusterDocument, silent: float) -> ClusterDocument:
        check_silence(newest, silent, state.lease.clock() - began)
        return fail_over_member(newest, lost, reports)

    await _exclude(member, lost, change)
    logger.warning("node %s is failed over, as an administrator has requested", lost)


async def _suspend_lease(member: ClusterMember, lost: str) -> None:
    """Let a majority renew the lease of a member no longer, until they know a later revision."""
    state, ballot = member.state, Ballot(1, member.random.randbytes(8).hex())
    for _ in range(_SUSPENSIONS):
        request = RequestPromise(state.revision.number + 1, ballot, (lost,))
        members = state.document.members
        replies = await asyncio.gather(*(member.links.deliver(node, request) for node in members))
        if sum(isinstance(reply, Promise) for reply in replies) >= count_majority(members):
            return
        highest = [reply.promised.number for reply in replies if isinstance(reply, Refused)]
        ballot = Ballot(max(highest, default=ballot.number) + 1, ballot.change)
        await member.catch_up_with_all()
    raise TemporaryFailure("fewer than a majority of the nodes suspend the lease of the node, try again")


async def _exclude(
    member: ClusterMember, lost: str, change: Callable[[ClusterDocument, float], ClusterDocument]
) -> None:
    """Make the revision that excludes a member, unless another revision has done so.

    Args:
        member: this member.
        lost: id of the member to exclude.
        change: changes the document, given the seconds for which a majority has not renewed the lease of the member.
    """

    def make_next(known: Revision, silent: Mapping[str, float]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
        newest = ClusterDocument.from_revision(known)
        if lost not in newest.members:
            return known.members, known.content
        after = change(newest, silent.get(lost, 0.0))
        return after.members, after.to_content()

    await member.agree(make_next, (lost,))


async def _collect_reports(member: ClusterMember, lost: str) -> Mapping[str, MemberReport]:
    """Return the reports of the other members that answer about a member."""
    members = [each for each in member.state.document.members if each != lost]
    replies = await asyncio.gather(*(_request_report(member, each, lost) for each in members))
    return {each: reply for each, reply in zip(members, replies, strict=True) if reply is not None}


async def _request_report(member: ClusterMember, asked: str, lost: str) -> MemberReport | None:
    if asked == member.state.node:
        return member.make_report(lost)
    try:
        reply = await member.links.send(asked, ReportRequest(lost))
    except Error:
        return None
    return reply.report if isinstance(reply, ReportReply) else None
