"""Which vbuckets move so that all nodes have the same number, and the nodes of their replicas. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from penstock.client.connect.cluster_map import NO_NODE
from penstock.errors import UsageError


class PlannedMove(NamedTuple):
    """A vbucket and the indexes of its nodes, before and after."""

    vbucket: int
    source: int
    target: int


def plan_balance(owners: Sequence[int], nodes: int, leaving: Collection[int] = ()) -> list[PlannedMove]:
    """Return the fewest moves after which the nodes differ by at most one vbucket.

    Args:
        owners: by vbucket, the index of its node. A vbucket without a node stays as it is.
        nodes: the number of nodes.
        leaving: indexes of nodes that have no vbuckets afterwards. Another node must remain.
    """
    owned: list[list[int]] = [[] for _ in range(nodes)]
    for vbucket, owner in enumerate(owners):
        if owner >= 0:
            owned[owner].append(vbucket)
    # The fullest nodes keep one vbucket more: then they give one less away.
    fullest = sorted(set(range(nodes)).difference(leaving), key=lambda node: (-len(owned[node]), node))
    share, extra = divmod(sum(map(len, owned)), len(fullest))
    goals = dict.fromkeys(leaving, 0) | {node: share + (rank < extra) for rank, node in enumerate(fullest)}
    free = [(vbucket, node) for node in range(nodes) for vbucket in owned[node][goals[node] :]]
    targets = [node for node in range(nodes) for _ in range(goals[node] - len(owned[node]))]
    return [PlannedMove(vbucket, source, target) for (vbucket, source), target in zip(free, targets, strict=True)]


def check_replicas(count: int, nodes: int) -> None:
    """Raise UsageError if there are too few nodes for a number of replicas."""
    if count >= nodes:
        raise UsageError(f"{count} replicas on {nodes} nodes, expected at most {nodes - 1}")


def plan_replicas(
    chains: Sequence[Sequence[int]], nodes: int, count: int, leaving: Collection[int] = ()
) -> dict[int, list[int]]:
    """Return the nodes of the replicas of each vbucket: other nodes than its owner, evenly, the present ones first.

    A vbucket without an owner gets none.

    Args:
        chains: by vbucket, the indexes of its owner and of its present replicas, or NO_NODE.
        nodes: the number of nodes.
        count: replicas of each vbucket.
        leaving: indexes of nodes that have no replicas afterwards.

    Raises:
        UsageError: there are too few nodes.
    """
    loads = {place: 0 for place in range(nodes) if place not in leaving}
    check_replicas(count, len(loads))
    planned: dict[int, list[int]] = {}
    share = -(-len(chains) * count // len(loads))
    owned = {vbucket: chain for vbucket, chain in enumerate(chains) if chain[0] != NO_NODE}
    for vbucket, (owner, *present) in owned.items():
        kept = [place for place in present if place in loads and place != owner and loads[place] < share][:count]
        for place in kept:
            loads[place] += 1
        planned[vbucket] = kept
    for vbucket, (owner, *_) in owned.items():
        while len(planned[vbucket]) < count:
            free = (place for place in loads if place != owner and place not in planned[vbucket])
            chosen = min(free, key=lambda place: loads[place])
            loads[chosen] += 1
            planned[vbucket].append(chosen)
    while _even_out(planned, [chain[0] for chain in chains], loads):
        pass
    return planned


def _even_out(planned: dict[int, list[int]], owners: Sequence[int], loads: dict[int, int]) -> bool:
    """Give a replica of the fullest node to an emptier one. Returns whether the loads have become more even."""
    fullest = max(loads, key=lambda place: loads[place])
    for place in sorted(loads, key=lambda each: loads[each]):
        if loads[fullest] - loads[place] < 2:
            return False
        for vbucket, places in planned.items():
            if fullest in places and place not in (owners[vbucket], *places):
                places[places.index(fullest)] = place
                loads[fullest] -= 1
                loads[place] += 1
                return True
    return False
