"""Repair of owners: a vbucket that is not active at its owner in the map becomes active where its changes are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.node_failover import read_copies, read_report
from penstock.client.cluster.replica_choice import NodeReport, ReplicaReport, choose_replica
from penstock.client.cluster.vbucket_mover import wait_until_closed
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.relays.node_relay import TAKEOVER
from penstock.client.replication.map_layout import MapLayout
from penstock.wire.codec.constants import VbucketState


def find_idle(layout: MapLayout, reports: Sequence[NodeReport]) -> set[int]:
    """Return the vbuckets that have no owner in the map, or are not active there.

    A killed move leaves such a vbucket. So does a crash of the owner that takes its newest state from the disk, and a
    failover without a copy.

    Args:
        layout: the newest map.
        reports: the vbuckets of each of its nodes.
    """
    return {
        vbucket
        for vbucket, (owner, *_) in enumerate(layout.chains)
        if owner == NO_NODE or not reports[owner].has(vbucket, VbucketState.ACTIVE)
    }


def choose_copy(chain: Sequence[Endpoint | None], copies: Sequence[ReplicaReport]) -> ReplicaReport | None:
    """Return the copy that becomes active, in any state; None if there is none.

    The former owner of an unfinished move is not in the chain, but on the same branch, and may have more changes. A
    node that was failed over may have a branch of its own, which counts only if the chain has no copy.

    Args:
        chain: the nodes of the vbucket in the newest map; None for a place without a node.
        copies: all copies. Every node of the map has answered.
    """
    branches = {each.failover_log[0] for each in copies if each.endpoint in chain}
    candidates = [each for each in copies if each.failover_log[0] in branches] or copies
    return choose_replica(candidates) if candidates else None


async def restore_owners(publisher: MapPublisher) -> None:
    """Make each vbucket active that is not at its owner, where most of its changes are, and publish the map.

    A vbucket that no node has begins empty: at its owner, or at the node with the fewest vbuckets.

    Args:
        publisher: the newest map of the bucket, which no other program changes.

    Raises:
        Error, OSError: a node of the map does not answer.
        KeyExists: as in `MapPublisher.publish`.
    """
    layout = publisher.layout
    endpoints = publisher.list_endpoints(layout)
    controls = [publisher.get_control(endpoint) for endpoint in endpoints]
    for control in controls:  # a killed takeover may still make a vbucket active
        await wait_until_closed(control, TAKEOVER)
    reports = await asyncio.gather(*map(read_report, controls))
    idle = find_idle(layout, reports)
    if not idle:
        return
    present = (idle & report.states.keys() for report in reports)
    found = await asyncio.gather(*map(read_copies, controls, reports, present))
    owned, owners = Counter(chain[0] for chain in layout.chains), {}
    for vbucket in sorted(idle):
        owner, *_ = layout.chains[vbucket]
        chain = [None if place == NO_NODE else endpoints[place] for place in layout.chains[vbucket]]
        best = choose_copy(chain, [each[vbucket] for each in found if vbucket in each])
        if best is not None:
            owner = endpoints.index(best.endpoint)
        elif owner == NO_NODE:
            owner = min(range(len(endpoints)), key=owned.__getitem__)
        owners[vbucket] = owner
        owned[owner] += 1
    after = layout.set_owners({vb: at for vb, at in owners.items() if at != layout.chains[vb][0]})
    for at, control in enumerate(controls):
        mine = [vbucket for vbucket, owner in owners.items() if owner == at]
        await control.set_chains({vbucket: [after.list_names(vbucket)] for vbucket in mine}, VbucketState.ACTIVE)
    await publisher.publish(after)
