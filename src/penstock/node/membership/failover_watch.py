"""Watches the members of a cluster, and fails a lost member over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from penstock.errors import Error
from penstock.node.agreement.lease import LeaseStage
from penstock.node.agreement.revisions import Revision, count_majority
from penstock.node.membership.cluster_document import ClusterDocument
from penstock.node.membership.cluster_member import ClusterMember
from penstock.node.membership.failover_decision import (
    MemberReport,
    check_silence,
    fail_over_member,
    find_lost_member,
)
from penstock.node.membership.node_messages import ReportReply, ReportRequest

__all__ = ["FailoverWatch"]

logger = logging.getLogger("penstock.node")

_WATCH_SECONDS = 0.5


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
        state = self._member.state
        began = state.lease.clock()
        reports = await self._collect_reports(lost)
        document = state.document
        missing = [member for member, report in reports.items() if report.silent >= document.failover.timeout]
        if len(missing) < count_majority(document.members):
            return
        fail_over_member(document, lost, reports)  # raises before a majority suspends the lease

        def make_next(known: Revision, silent: Mapping[str, float]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
            newest = ClusterDocument.from_revision(known)
            if lost not in newest.members:
                return known.members, known.content  # another member was first
            check_silence(newest, silent.get(lost, 0.0), state.lease.clock() - began)
            after = fail_over_member(newest, lost, reports)
            return after.members, after.to_content()

        await self._member.agree(make_next, (lost,))
        logger.warning("node %s was lost for %g s and is failed over", lost, document.failover.timeout)

    async def _collect_reports(self, lost: str) -> Mapping[str, MemberReport]:
        members = [member for member in self._member.state.document.members if member != lost]
        replies = await asyncio.gather(*(self._request_report(member, lost) for member in members))
        return {member: reply for member, reply in zip(members, replies, strict=True) if reply is not None}

    async def _request_report(self, member: str, lost: str) -> MemberReport | None:
        if member == self._member.state.node:
            return self._member.make_report(lost)
        try:
            reply = await self._member.links.send(member, ReportRequest(lost))
        except Error:
            return None
        return reply.report if isinstance(reply, ReportReply) else None
