"""Runs the rebalance of a cluster in a task of the node that was asked."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from penstock.client.connect.address import Address, ConnectionOptions
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.login.credentials import Credentials
from penstock.errors import Error, UsageError
from penstock.node.membership.cluster_document import ClusterDocument, ClusterNode
from penstock.node.membership.cluster_member import ClusterMember
from penstock.node.membership.cluster_service import ClusterService
from penstock.node.rebalance.bucket_rebalance import BucketRebalance
from penstock.node.rebalance.rebalance_progress import RebalanceProgress
from penstock.node.rebalance.rebalance_request import (
    RebalanceRequest,
    begin_rebalance,
    count_replicas,
    end_rebalance,
)

__all__ = ["Rebalancer"]

_CLOSE_SECONDS = 3.0
_RETRY_SECONDS = 1.0

logger = logging.getLogger("penstock.node")


class Rebalancer:
    """Rebalances the cluster when an administrator requests it. One node of a cluster does so at a time.

    Args:
        cluster: the membership in the cluster.
        authority: file with the certificates that sign those of the nodes, PEM; None: those of the system.

    Attributes:
        progress: the progress of the rebalance that runs here; None: none does.
        problem: why the last rebalance here has failed; empty: it has not.
    """

    def __init__(self, cluster: ClusterService, authority: Path | None) -> None:
        self._cluster = cluster
        self._authority = authority
        self._task: asyncio.Task[None] | None = None
        self._is_placing = False
        self._is_stopped = False
        self._is_closing = False
        self.progress: RebalanceProgress | None = None
        self.problem = ""

    def start(self) -> None:
        """End the rebalance that the last run of this node has left in the document."""
        member = self._cluster.member
        if member is not None and member.state.document.rebalancing == member.state.node:
            self._task = asyncio.get_running_loop().create_task(self._end(member))

    async def close(self) -> None:
        """End a running rebalance at once. The next one repairs a move that was interrupted."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
            self._task.cancel()

    async def begin(self, request: RebalanceRequest, credentials: Credentials | None) -> None:
        """Start a rebalance.

        Args:
            request: the request.
            credentials: the login of the administrator, for the key-value ports of the nodes; None: no login.

        Raises:
            UsageError: as `begin_rebalance`, or this node is in no cluster.
            TemporaryFailure: fewer than a majority of the nodes answer.
        """
        member = self._cluster.member
        if member is None:
            raise UsageError("this node is not in a cluster, expected one with other nodes")
        if self.progress is not None:
            raise UsageError("this node runs a rebalance already")
        own = member.state.node
        self.progress = RebalanceProgress(sorted(request.known))
        try:
            await member.change(lambda document: begin_rebalance(document, request, own))
        except BaseException:
            self.progress = None
            raise
        self._is_stopped, self._is_placing, self.problem = False, False, ""
        self._task = asyncio.get_running_loop().create_task(self._run(member, request, credentials))

    def stop(self) -> None:
        """Stop after the present moves. Vbuckets that have moved stay where they are.

        Raises:
            UsageError: the rebalance runs on another node.
        """
        member = self._cluster.member
        runner = None if member is None else member.state.document.find_node(member.state.document.rebalancing)
        if self.progress is None and runner is not None:
            raise UsageError(f"the rebalance runs on node {runner.otp_name}, expected the request there")
        self._is_stopped = True
        if self._is_placing and self._task is not None:
            self._task.cancel()

    async def _run(self, member: ClusterMember, request: RebalanceRequest, credentials: Credentials | None) -> None:
        try:
            await self._rebalance(member, request, credentials)
            if not self._is_stopped:
                await self._eject(member, request)
        except (OSError, Error) as error:
            self.problem = str(error)
            logger.error("the rebalance has failed: %s", error)
        finally:
            self.progress = None
            await self._end(member)

    async def _eject(self, member: ClusterMember, request: RebalanceRequest) -> None:
        """Remove the nodes that leave, this node last."""
        leaving = [node.id for node in member.state.document.nodes if node.otp_name in request.ejected]
        for node in sorted(leaving, key=lambda each: each == member.state.node):
            await self._cluster.remove_node(node)

    async def _end(self, member: ClusterMember) -> None:
        """Let the document name no rebalance of this node, once a majority answers."""
        while member.state.document.rebalancing == member.state.node:
            try:
                await member.change(partial(end_rebalance, own=member.state.node))
            except Error as error:
                logger.warning("the cluster does not know that the rebalance has ended: %s", error)
                if self._is_closing:
                    return
                await asyncio.sleep(_RETRY_SECONDS)

    async def _rebalance(
        self, member: ClusterMember, request: RebalanceRequest, credentials: Credentials | None
    ) -> None:
        for node in member.state.document.nodes:
            if node.failed:  # it has no vbuckets, and is left out by ns_server too
                await self._cluster.remove_node(node.id)
        document, progress = member.state.document, self.progress
        assert progress is not None
        tls = all(node.kv_tls for node in document.nodes)
        places = {_get_endpoint(node, tls=tls): node for node in document.nodes}
        leaving = [place for place, node in places.items() if node.otp_name in request.ejected]
        names = {place: node.otp_name for place, node in places.items()}
        async with AsyncExitStack() as stack:
            rebalances = [
                await stack.enter_async_context(
                    BucketRebalance(
                        self._make_address(document, member.state.node, bucket.name, credentials, tls=tls),
                        count_replicas(bucket, len(names) - len(leaving)),
                        names,
                        leaving,
                        progress,
                    )
                )
                for bucket in document.buckets
                if bucket.map.copies
            ]
            for each in rebalances:
                await each.move_vbuckets(lambda: self._is_stopped)
                if self._is_stopped:
                    return
                self._is_placing = True
                await each.place_replicas()
                self._is_placing = False

    def _make_address(
        self, document: ClusterDocument, own: str, bucket: str, credentials: Credentials | None, *, tls: bool
    ) -> Address:
        node = document.find_node(own)
        assert node is not None
        options = ConnectionOptions(ca=str(self._authority or "")) if tls else ConnectionOptions()
        return Address(
            hosts=(_get_endpoint(node, tls=tls),), bucket=bucket, options=options, tls=tls, credentials=credentials
        )


def _get_endpoint(node: ClusterNode, *, tls: bool) -> Endpoint:
    return node.host, node.kv_tls if tls else node.kv
