"""The table of `penstock cluster status` from a sample of all nodes of a bucket. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.cluster.replica_choice import NodeReport, parse_node_report
from penstock.client.cluster.vbucket_rows import VbucketRow, make_vbucket_rows
from penstock.client.replication.map_layout import MapLayout, MapNode
from penstock.client.topology.node_reports import BucketReport, NodeStatsReport

CHAIN_GROUPS = ("vbucket", "vbucket-seqno", "vbucket-details")
"""The groups that have a part of the table. Servers without the last one have the others."""


def make_chain_rows(bucket: str, report: BucketReport) -> list[VbucketRow] | None:
    """Return owner, replicas, lag, age and state of each vbucket; None if no node reports states of vbuckets.

    Args:
        bucket: the name of the bucket.
        report: the groups CHAIN_GROUPS of each node, as far as it has them.

    Raises:
        RemoteProtocolError: a number is malformed.
    """
    found: Sequence[NodeReport | None] = [_read_node(node) for node in report.nodes]
    if not any(found):
        return None
    replicas = report.map.replicas or ((),) * report.map.vbuckets
    chains = tuple((owner, *chain) for owner, chain in zip(report.map.owners, replicas, strict=True))
    nodes = tuple(MapNode(endpoint, {"kv": endpoint[1]}) for endpoint in report.map.endpoints)
    return make_vbucket_rows(bucket, MapLayout(nodes, chains), found)


def _read_node(node: NodeStatsReport) -> NodeReport | None:
    """Return the vbuckets of a node; None if it does not answer, or does not report them."""
    if node.groups is None:
        return None
    report = parse_node_report({name: text for group in CHAIN_GROUPS for name, text in node.groups[group].items()})
    return report if report.states else None
