"""The checks of a rebalance, and whether a cluster needs one. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec.structs import replace

from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.topology.balance_plan import plan_balance
from penstock.errors import UsageError
from penstock.node.membership.cluster_document import ClusterBucket, ClusterDocument

__all__ = [
    "MismatchedNodes",
    "NoNodesLeft",
    "RebalanceRequest",
    "begin_rebalance",
    "count_replicas",
    "end_rebalance",
    "is_balanced",
]


class MismatchedNodes(UsageError):
    """The request does not name all nodes of the cluster."""


class NoNodesLeft(UsageError):
    """The request removes all members."""


@dataclass(frozen=True, slots=True)
class RebalanceRequest:
    """A request of an administrator.

    Attributes:
        known: names of all nodes, as `ClusterNode.otp_name`. A cluster with other nodes refuses the request.
        ejected: names of the nodes that leave the cluster afterwards.
    """

    known: frozenset[str]
    ejected: frozenset[str]


def begin_rebalance(document: ClusterDocument, request: RebalanceRequest, own: str) -> ClusterDocument:
    """Return the document that names the member that runs a rebalance.

    Args:
        document: the newest document.
        request: the request.
        own: id of the member that runs it.

    Raises:
        MismatchedNodes: the request does not name the nodes of the cluster.
        NoNodesLeft: the request removes all members.
        UsageError: another rebalance is running, or a node that leaves has a plain cache.
    """
    names = {node.otp_name: node for node in document.nodes}
    if request.known != names.keys() or not request.ejected <= request.known:
        found = ", ".join(sorted(request.known)) or "none"
        raise MismatchedNodes(f"knownNodes are {found}, expected {', '.join(sorted(names))}")
    leaving = {names[name].id for name in request.ejected}
    if leaving.issuperset(document.members):
        raise NoNodesLeft("all members would leave, expected one that remains")
    if document.rebalancing not in ("", own):
        runner = document.find_node(document.rebalancing)
        raise UsageError(f"node {runner.otp_name if runner else document.rebalancing} runs a rebalance already")
    for bucket in document.buckets:
        if not bucket.map.copies and leaving.intersection(bucket.map.nodes):
            raise UsageError(f"bucket {bucket.name!r} is a plain cache: its keys cannot move from a node that leaves")
    return replace(document, rebalancing=own)


def end_rebalance(document: ClusterDocument, own: str) -> ClusterDocument:
    """Return the document after the rebalance of a member."""
    return replace(document, rebalancing="") if document.rebalancing == own else document


def count_replicas(bucket: ClusterBucket, nodes: int) -> int:
    """Return the number of replicas of each vbucket: that of the bucket, or as many as the nodes permit."""
    return min(bucket.spec.replicas, nodes - 1)


def is_balanced(document: ClusterDocument) -> bool:
    """Return whether a rebalance would change nothing: no failed nodes, and all vbuckets and replicas in their places.

    The nodes of replicas are not compared, only their number.
    """
    if len(document.members) < len(document.nodes):
        return False
    return all(_has_balanced_map(bucket, document.members) for bucket in document.buckets if bucket.map.copies)


def _has_balanced_map(bucket: ClusterBucket, members: Collection[str]) -> bool:
    chains, numbers = bucket.read_chains(), {member: number for number, member in enumerate(members)}
    owners = [NO_NODE if chain[0] is None else numbers[chain[0]] for chain in chains]
    placed = 1 + count_replicas(bucket, len(members))
    is_whole = all(sum(node is not None for node in chain) == placed for chain in chains)
    return is_whole and NO_NODE not in owners and not plan_balance(owners, len(members))
