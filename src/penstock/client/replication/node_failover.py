"""Failover: the best replicas of a lost node's vbuckets become active, and all nodes get the new map."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import NO_NODE, Endpoint
from penstock.client.connect.stat_numbers import read_number
from penstock.client.replication.map_publisher import MapPublisher
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replica_choice import ReplicaReport, choose_replica
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
    states = await asyncio.gather(*(control.read_states() for control in controls))
    count = len(layout.chains)
    owners = {vb: at for at, known in enumerate(states) for vb in _find(known, VbucketState.ACTIVE) if vb < count}
    orphans = set(range(count)) - owners.keys()
    replicas = [_find(known, VbucketState.REPLICA) & orphans for known in states]
    reports = await asyncio.gather(*map(_read_reports, controls, replicas))
    promoted: dict[int, Endpoint] = {}
    for vbucket in sorted(orphans):
        found = [each[vbucket] for each in reports if vbucket in each]
        if found:
            promoted[vbucket] = choose_replica(found).endpoint
    for control in controls:
        mine = [vbucket for vbucket, endpoint in promoted.items() if endpoint == control.endpoint]
        await control.set_states(mine, VbucketState.ACTIVE)
    owners |= {vbucket: layout.require_node(endpoint) for vbucket, endpoint in promoted.items()}
    everywhere = {vbucket: owners.get(vbucket, NO_NODE) for vbucket in range(count)}
    await publisher.publish(layout.set_owners(everywhere), removed=[node] if is_reachable else ())
    return FailoverResult(promoted, tuple(sorted(orphans - promoted.keys())), is_reachable)


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


async def _read_reports(control: NodeControl, vbuckets: Collection[int]) -> dict[int, ReplicaReport]:
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
