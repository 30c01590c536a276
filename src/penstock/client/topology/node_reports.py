"""Statistics of all nodes of a bucket at about the same time, as far as the nodes answer and have them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.node_link import NodeLink
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.topology.nodes import Nodes
from penstock.errors import Error, StatusError
from penstock.wire.messages.collections import GetManifest


class NodeStatsReport(NamedTuple):
    """The statistics of one node.

    Attributes:
        endpoint: the node.
        is_first: whether it answers the requests that any node can answer.
        groups: group -> statistics; empty for a group that the node does not have, or denies to the user. None: the
            node did not answer.
    """

    endpoint: Endpoint
    is_first: bool
    groups: Mapping[str, Mapping[str, str]] | None


class BucketReport(NamedTuple):
    """The statistics of all nodes.

    Attributes:
        map: the cluster map.
        nodes: the report of each node, by its index in the map.
    """

    map: ClusterMap
    nodes: Sequence[NodeStatsReport]


class NodeReports:
    """Requests that every node of a bucket answers for itself, with the retries and errors of reading commands."""

    def __init__(self, nodes: Nodes, address: Address) -> None:
        self._nodes = nodes
        self._address = address

    async def all_node_stats(self, groups: Sequence[str]) -> BucketReport:
        """Return groups of statistics of all nodes, as far as the nodes answer and have them."""
        timeout = self._address.options.operation_timeout
        return await self._nodes.run_with_retry(lambda: _request_reports(self._nodes, groups, timeout))

    async def owner_stats(self, vbucket: int, groups: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return groups of statistics of the node that has a vbucket, empty for a group that it does not have.

        Raises the errors of `stats`.
        """

        async def ask() -> dict[str, dict[str, str]]:
            link = (await self._nodes.connect_owners([vbucket]))[vbucket]
            timeout = self._address.options.operation_timeout
            return {group: await link.request_stats(group, timeout, optional=True) for group in groups}

        return await self._nodes.run_with_retry(ask)

    async def manifests(self) -> list[bytes]:
        """Return the collections manifest of each node, as JSON; none if the nodes have no collections."""

        async def ask() -> list[bytes]:
            links = await self._nodes.connect_all()
            if not self._nodes.has_collections:
                return []
            timeout = self._address.options.operation_timeout
            replies = await asyncio.gather(*(link.request(GetManifest(), timeout) for _, link in links))
            return [reply.value for reply in replies]

        return await self._nodes.run_with_retry(ask)


async def _request_reports(nodes: Nodes, groups: Sequence[str], timeout: float) -> BucketReport:
    """Return groups of statistics of all nodes. A node that cannot be reached makes no error if any other node answers.

    Args:
        nodes: the connections.
        groups: names of the groups.
        timeout: seconds for the answer to each group.

    Raises the errors of `Nodes.connect_first`.
    """
    first = await nodes.connect_first()
    links = await nodes.connect_reachable()
    found = nodes.map  # read after connecting, which may replace the map
    answers = await asyncio.gather(*(_request_groups(link, groups, timeout) for link in links))
    if any(answer is None for answer in answers):
        nodes.invalidate_map()
    reports = [
        NodeStatsReport(endpoint, link is first, answer)
        for endpoint, link, answer in zip(found.endpoints, links, answers, strict=True)
    ]
    return BucketReport(found, reports)


async def _request_groups(
    link: NodeLink | None, groups: Sequence[str], timeout: float
) -> Mapping[str, Mapping[str, str]] | None:
    if link is None:
        return None
    found: dict[str, Mapping[str, str]] = {}
    for group in groups:
        try:
            found[group] = await link.request_stats(group, timeout)
        except StatusError:
            found[group] = {}
        except (Error, OSError):
            return None
    return found
