"""The moves that balance a bucket, and the owners of vbuckets that have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.map_layout import MapLayout
from penstock.client.topology.balance_plan import plan_balance

__all__ = ["BalanceMoves", "choose_owners", "plan_moves"]


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


def choose_owners(layout: MapLayout, seqnos: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return an owner for each vbucket that has none, after a failover without a copy. Pure.

    It is the node that has most changes of the vbucket in any state, for example the lost node after its return. A
    vbucket that no node has begins empty at the node with the fewest vbuckets.

    Args:
        layout: the newest map.
        seqnos: for each node, the high seqnos of the vbuckets that it has.

    Returns:
        Vbucket -> index of its owner.
    """
    owned, owners = Counter(chain[0] for chain in layout.chains), {}
    for vbucket in layout.list_owned(NO_NODE):
        ranks = [(found.get(vbucket, 0), -owned[node], -node) for node, found in enumerate(seqnos)]
        owner = ranks.index(max(ranks))
        owners[vbucket] = owner
        owned[owner] += 1
    return owners
