"""Chains of the members of a cluster, read from the map of an orchestrator. Pure."""

from __future__ import annotations

from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.replication.map_layout import read_map_layout
from penstock.errors import RemoteProtocolError, UsageError
from penstock.node.cluster.pushed_map import PushedMap
from penstock.node.membership.cluster_document import ClusterDocument
from penstock.node.membership.vbucket_map import Chain

__all__ = ["read_chains"]


def read_chains(pushed: PushedMap, document: ClusterDocument, own_host: str) -> list[Chain]:
    """Return by vbucket the ids of its owner and of its replicas.

    Args:
        pushed: the map.
        document: the members. Others may stand in the map, but not in its chains.
        own_host: the host that the placeholder of the dialled host stands for.

    Raises:
        UsageError: the map is malformed, or has a vbucket on a node that is no member.
    """
    try:
        layout = read_map_layout(pushed.content, (own_host, 0))
    except RemoteProtocolError as error:
        raise UsageError(str(error)) from None
    members = {(node.host, node.kv or node.kv_tls): node.id for node in document.nodes}
    for place in sorted({place for chain in layout.chains for place in chain} - {NO_NODE}):
        if layout.nodes[place].endpoint not in members:
            raise UsageError(f"vbuckets on {layout.nodes[place].address}, expected members of the cluster")
    ids = [members.get(node.endpoint) for node in layout.nodes]
    return [tuple(None if place == NO_NODE else ids[place] for place in chain) for chain in layout.chains]
