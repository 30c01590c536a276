"""Failover: the best replicas of a lost node's vbuckets become active, and all nodes get the new map."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.replica_choice import (
    NodeReport,
    Promotion,
    ReplicaReport,
    find_owner,
    parse_node_report,
    plan_promotion,
)
from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.map_layout import MapLayout
from penstock.client.replication.node_control import NodeControl, check_identities
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.errors import Error, UsageError
from penstock.wire.codec.constants import VbucketState


class FailoverResult(NamedTuple):
    """The result of a failover.

    Attributes:
        promoted: vbucket -> the node where it is active now.
        lost: vbuckets without any replica. No node serves them.
        risks: vbucket -> why acknowledged changes of it may be lost.
        is_reachable: whether the lost node has answered. Then its vbuckets are dead.
    """

    promoted: Mapping[int, Endpoint]
    lost: tuple[int, ...]
    risks: Mapping[int, str]
    is_reachable: bool


async def fail_over(
    publisher: MapPublisher, node: Endpoint, address: Address, *, may_lose: bool = False
) -> FailoverResult:
    """Promote the best replica of each vbucket that no remaining node has active.

    Nothing changes if a promotion may lose an acknowledged durable write, unless that is permitted. Each vbucket keeps
    the places of its chain, so that the next failover knows which nodes may have such writes.

    Args:
        publisher: the newest map of the remaining nodes.
        node: the lost node. If it answers, its active vbuckets become dead first, so that no vbucket has two owners.
        address: the bucket; its options and credentials are used for all nodes.
        may_lose: promote any copy, and leave vbuckets without one.

    Returns:
        The vbuckets that were promoted.

    Raises:
        UsageError: no other node remains, or a promotion may lose changes.
        Error, OSError: a remaining node does not answer.
    """
    scan = await _scan_nodes(publisher, node)
    await _check_lost(NodeControl(address, node), scan.controls)
    _check_risks(scan, may_lose=may_lose)
    stopped = await _stop_node(NodeControl(address, node))
    is_reachable = stopped is not None
    if stopped is not None:  # it has acknowledged writes until now
        scan = await _scan_nodes(publisher, node)
        try:
            _check_risks(scan, may_lose=may_lose)
        except UsageError:  # a copy was lost meanwhile
            await _restart_node(publisher, node, stopped)
            raise
    promoted = {vb: found.replica.endpoint for vb, found in scan.plans.items() if found.replica is not None}
    owners = scan.owners | {vb: scan.layout.require_node(endpoint) for vb, endpoint in promoted.items()}
    layout = make_failover_layout(scan.layout, owners, scan.reports)
    for at, control in enumerate(scan.controls):
        mine = {vbucket for vbucket, owner in owners.items() if owner == at}
        await control.set_chains({vbucket: [layout.list_names(vbucket)] for vbucket in mine}, VbucketState.ACTIVE)
        report = scan.reports[at]
        strays = _find(report.states, VbucketState.ACTIVE) - mine - (scan.plans.keys() - promoted.keys())
        await control.delete_vbuckets(vbucket for vbucket in strays if not report.is_filled(vbucket))
    await publisher.publish(layout, removed=[node] if is_reachable else ())
    lost = tuple(sorted(scan.plans.keys() - promoted.keys()))
    return FailoverResult(promoted, lost, scan.risks, is_reachable)


def format_risks(risks: Mapping[int, str]) -> str:
    """Return risks as one text: the vbuckets of each reason."""
    by_reason: dict[str, list[int]] = {}
    for vbucket, reason in sorted(risks.items()):
        by_reason.setdefault(reason, []).append(vbucket)
    return "; ".join(f"vbuckets {format_ranges(vbuckets, ', ')}: {reason}" for reason, vbuckets in by_reason.items())


class _NodeScan(NamedTuple):
    """The remaining nodes, and the decision about each vbucket without an owner.

    Attributes:
        layout: the newest map without the lost node.
        controls: the remaining nodes, in the order of the layout.
        reports: their vbuckets.
        owners: vbucket -> index of the node that has it active, or NO_NODE.
        plans: the decisions, by vbucket.
    """

    layout: MapLayout
    controls: Sequence[NodeControl]
    reports: Sequence[NodeReport]
    owners: dict[int, int]
    plans: dict[int, Promotion]

    @property
    def risks(self) -> dict[int, str]:
        """The vbuckets of which changes may be lost, with the reasons."""
        return {vbucket: plan.risk for vbucket, plan in self.plans.items() if plan.risk}


async def _scan_nodes(publisher: MapPublisher, node: Endpoint) -> _NodeScan:
    """Ask the remaining nodes for their vbuckets. Raises UsageError if there are none."""
    layout, endpoints = publisher.layout.remove_node(node), publisher.list_endpoints(publisher.layout)
    if not layout.nodes:
        raise UsageError(f"{node[0]}:{node[1]} is the only node, expected others with its replicas")
    controls = [publisher.get_control(endpoint) for endpoint in publisher.list_endpoints(layout)]
    reports = await asyncio.gather(*map(read_report, controls))
    owners = {
        vbucket: find_owner(vbucket, reports, chain[0] if publisher.has_shared_map else NO_NODE)
        for vbucket, chain in enumerate(layout.chains)
    }
    orphans = sorted(vbucket for vbucket, owner in owners.items() if owner == NO_NODE)
    replicas = [_find(report.states, VbucketState.REPLICA) & {*orphans} for report in reports]
    found = await asyncio.gather(*map(read_copies, controls, reports, replicas))
    plans = {}
    for vbucket in orphans:
        chain = [None if at == NO_NODE else endpoints[at] for at in publisher.layout.chains[vbucket]]
        plans[vbucket] = plan_promotion(chain, [each[vbucket] for each in found if vbucket in each])
    return _NodeScan(layout, controls, reports, owners, plans)


async def read_report(control: NodeControl) -> NodeReport:
    """Return the vbuckets of a node."""
    return parse_node_report(await control.read_stats("vbucket-details"))


def make_failover_layout(layout: MapLayout, owners: Mapping[int, int], reports: Sequence[NodeReport]) -> MapLayout:
    """Return the layout with these owners, and with the replicas that exist. Other places stay empty. Pure."""

    def keep(vbucket: int, place: int) -> int:
        return place if place != NO_NODE and reports[place].has(vbucket, VbucketState.REPLICA) else NO_NODE

    after = layout.set_owners(owners)
    return after.set_replicas({vb: [keep(vb, place) for place in chain[1:]] for vb, chain in enumerate(after.chains)})


def _find(states: Mapping[int, VbucketState], wanted: VbucketState) -> set[int]:
    return {vbucket for vbucket, state in states.items() if state is wanted}


async def _check_lost(lost: NodeControl, others: Sequence[NodeControl]) -> None:
    """Raise UsageError if the lost node answers, and is one of the others or runs on a copy of its directory."""
    lost = NodeControl(lost.address.with_retries(0.0))
    try:
        await check_identities((lost, *others))
    finally:
        await lost.close()


def _check_risks(scan: _NodeScan, *, may_lose: bool) -> None:
    if scan.risks and not may_lose:
        raise UsageError(f"{format_risks(scan.risks)}; expected copies without risk, or --lose. Nothing has changed")


async def _stop_node(control: NodeControl) -> set[int] | None:
    """Make the active vbuckets of the lost node dead, and return them. None if the node does not answer."""
    control = NodeControl(control.address.with_retries(0.0))
    try:
        active = _find(await control.read_states(), VbucketState.ACTIVE)
        await control.set_states(active, VbucketState.DEAD)
    except (OSError, Error):
        return None
    finally:
        await control.close()
    return active


async def _restart_node(publisher: MapPublisher, node: Endpoint, stopped: Collection[int]) -> None:
    """Make those of the stopped vbuckets active again that the map gives to the node."""
    layout = publisher.layout
    at = layout.find_node(node)
    owned = set() if at == NO_NODE else {*layout.list_owned(at)}.intersection(stopped)
    chains = {vbucket: [layout.list_copies(vbucket)] for vbucket in owned}
    await publisher.get_control(node).set_chains(chains, VbucketState.ACTIVE)


async def read_copies(control: NodeControl, report: NodeReport, vbuckets: Collection[int]) -> dict[int, ReplicaReport]:
    """Return the reports of a node about its copies of vbuckets.

    Args:
        control: the node.
        report: its vbuckets.
        vbuckets: vbuckets that it has, in any state.
    """
    logs = await control.read_failover_logs(vbuckets) if vbuckets else {}
    # Other servers do not report the end of the last complete snapshot.
    wholes = {vb: report.whole_seqnos.get(vb, report.seqnos.get(vb, 0)) for vb in vbuckets}
    stored = report.stored_seqnos
    return {
        vb: ReplicaReport(control.endpoint, logs[vb], wholes[vb], report.is_fed(vb), stored.get(vb)) for vb in vbuckets
    }
