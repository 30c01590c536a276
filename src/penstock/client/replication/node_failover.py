"""Failover: the best replicas of a lost node's vbuckets become active, and all nodes get the new map."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.connect.stat_numbers import read_number
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.map_layout import MapLayout
from penstock.client.replication.map_publisher import MapPublisher
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replica_choice import NodeReport, ReplicaReport, choose_replica, find_owner
from penstock.errors import Error, UsageError
from penstock.wire.codec.constants import VbucketState

__all__ = ["FailoverResult", "fail_over"]


class FailoverResult(NamedTuple):
    """The result of a failover.

    Attributes:
        promoted: vbucket -> the node where it is active now.
        lost: vbuckets without any replica. No node serves them.
        is_reachable: whether the lost node has answered. Then its vbuckets are dead.
    """

    promoted: Mapping[int, Endpoint]
    lost: tuple[int, ...]
    is_reachable: bool


async def fail_over(publisher: MapPublisher, node: Endpoint, address: Address) -> FailoverResult:
    """Promote the best replica of each vbucket that no remaining node has active.

    Args:
        publisher: the newest map of the remaining nodes.
        node: the lost node. If it answers, its active vbuckets become dead first, so that no vbucket has two owners.
        address: the bucket; its options and credentials are used for all nodes.

    Returns:
        The vbuckets that were promoted.

    Raises:
        UsageError: no other node remains.
        Error, OSError: a remaining node does not answer.
    """
    layout = publisher.layout.remove_node(node)
    if not layout.nodes:
        raise UsageError(f"{node[0]}:{node[1]} is the only node, expected others with its replicas")
    is_reachable = await _stop_node(NodeControl(address, node))
    controls = [publisher.get_control(endpoint) for endpoint in publisher.list_endpoints(layout)]
    reports = await asyncio.gather(*map(_read_report, controls))
    owners = {
        vbucket: find_owner(vbucket, reports, chain[0] if publisher.has_shared_map else NO_NODE)
        for vbucket, chain in enumerate(layout.chains)
    }
    orphans = {vbucket for vbucket, owner in owners.items() if owner == NO_NODE}
    promoted = await _choose_replicas(orphans, controls, reports)
    owners |= {vbucket: layout.require_node(endpoint) for vbucket, endpoint in promoted.items()}
    layout = _make_layout(layout, owners, reports)
    for at, control in enumerate(controls):
        mine = {vbucket for vbucket, owner in owners.items() if owner == at}
        await control.set_states(mine & promoted.keys(), VbucketState.ACTIVE)
        await control.set_chains({vbucket: layout.list_names(vbucket) for vbucket in mine}, VbucketState.ACTIVE)
        strays = _find(reports[at].states, VbucketState.ACTIVE) - mine - (orphans - promoted.keys())
        await control.delete_vbuckets(vbucket for vbucket in strays if not reports[at].seqnos.get(vbucket, 0))
    await publisher.publish(layout, removed=[node] if is_reachable else ())
    return FailoverResult(promoted, tuple(sorted(orphans - promoted.keys())), is_reachable)


async def _read_report(control: NodeControl) -> NodeReport:
    return NodeReport(await control.read_states(), await control.read_seqnos())


async def _choose_replicas(
    orphans: Collection[int], controls: Sequence[NodeControl], reports: Sequence[NodeReport]
) -> dict[int, Endpoint]:
    """Return the node of the best replica of each vbucket without an owner; nothing for a vbucket without replicas."""
    replicas = [_find(report.states, VbucketState.REPLICA) & {*orphans} for report in reports]
    found = await asyncio.gather(*map(_read_replicas, controls, replicas))
    choices = {vbucket: [each[vbucket] for each in found if vbucket in each] for vbucket in sorted(orphans)}
    return {vbucket: choose_replica(each).endpoint for vbucket, each in choices.items() if each}


def _make_layout(layout: MapLayout, owners: Mapping[int, int], reports: Sequence[NodeReport]) -> MapLayout:
    """Return the layout with these owners, and with the replicas that exist."""

    def keep(vbucket: int, place: int) -> int:
        return place if place != NO_NODE and reports[place].has(vbucket, VbucketState.REPLICA) else NO_NODE

    after = layout.set_owners(owners)
    return after.set_replicas({vb: [keep(vb, place) for place in chain[1:]] for vb, chain in enumerate(after.chains)})


def _find(states: Mapping[int, VbucketState], wanted: VbucketState) -> set[int]:
    return {vbucket for vbucket, state in states.items() if state is wanted}


async def _stop_node(control: NodeControl) -> bool:
    """Make the active vbuckets of the lost node dead. Return whether the node has answered."""
    options = replace(control.address.options, retry_seconds=0.0)
    control = NodeControl(replace(control.address, options=options))
    try:
        await control.set_states(_find(await control.read_states(), VbucketState.ACTIVE), VbucketState.DEAD)
    except (OSError, Error):
        return False
    finally:
        await control.close()
    return True


async def _read_replicas(control: NodeControl, vbuckets: Collection[int]) -> dict[int, ReplicaReport]:
    """Return the reports of a node about its replicas."""
    if not vbuckets:
        return {}
    logs, seqnos = await control.read_failover_logs(vbuckets), await control.read_seqnos()
    details = await control.read_stats("vbucket-details")
    found = {}
    for vbucket in vbuckets:
        name = f"vb_{vbucket}:whole_seqno"
        # Other servers do not report the end of the last complete snapshot.
        whole = read_number(name, details[name]) if name in details else seqnos.get(vbucket, 0)
        found[vbucket] = ReplicaReport(control.endpoint, logs[vbucket], whole)
    return found
