"""Statistics of all nodes of a bucket at about the same time, as far as the nodes answer and have them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.node_link import NodeLink
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.topology.nodes import Nodes
from penstock.errors import Error, StatusError

__all__ = ["BucketReport", "NodeStatsReport", "request_node_reports"]


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


async def request_node_reports(nodes: Nodes, groups: Sequence[str], timeout: float) -> BucketReport:
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
