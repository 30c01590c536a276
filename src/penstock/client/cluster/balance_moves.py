"""The moves that balance a bucket: vbuckets that move together, and their nodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.topology.balance_plan import plan_balance


class BalanceMoves(NamedTuple):
    """Vbuckets that move together, as `VbucketMover.move` takes them.

    Attributes:
        vbuckets: their numbers.
        source: their owner.
        target: their next owner.
    """

    vbuckets: list[int]
    source: Endpoint
    target: Endpoint


def plan_moves(publisher: MapPublisher, leaving: Collection[Endpoint] = ()) -> list[BalanceMoves]:
    """Return the fewest moves after which the nodes differ by at most one vbucket.

    Args:
        publisher: the newest map of the bucket.
        leaving: nodes of the map that have no vbuckets afterwards.
    """
    layout = publisher.layout
    gone = [layout.require_node(endpoint) for endpoint in leaving]
    pairs: dict[tuple[int, int], list[int]] = {}
    for vbucket, source, target in plan_balance([chain[0] for chain in layout.chains], len(layout.nodes), gone):
        pairs.setdefault((source, target), []).append(vbucket)
    nodes = publisher.list_endpoints(layout)
    return [BalanceMoves(vbuckets, nodes[source], nodes[target]) for (source, target), vbuckets in pairs.items()]
