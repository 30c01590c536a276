"""Which vbuckets move so that all nodes have the same number. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["PlannedMove", "plan_balance"]


class PlannedMove(NamedTuple):
    """A vbucket and the indexes of its nodes, before and after."""

    vbucket: int
    source: int
    target: int


def plan_balance(owners: Sequence[int], nodes: int) -> list[PlannedMove]:
    """Return the fewest moves after which the nodes differ by at most one vbucket.

    Args:
        owners: by vbucket, the index of its node. A vbucket without a node stays as it is.
        nodes: the number of nodes.
    """
    owned: list[list[int]] = [[] for _ in range(nodes)]
    for vbucket, owner in enumerate(owners):
        if owner >= 0:
            owned[owner].append(vbucket)
    share, extra = divmod(sum(map(len, owned)), nodes)
    # The fullest nodes keep one vbucket more: then they give one less away.
    fullest = sorted(range(nodes), key=lambda node: (-len(owned[node]), node))
    goals = {node: share + (rank < extra) for rank, node in enumerate(fullest)}
    free = [(vbucket, node) for node in range(nodes) for vbucket in owned[node][goals[node] :]]
    targets = [node for node in range(nodes) for _ in range(goals[node] - len(owned[node]))]
    return [PlannedMove(vbucket, source, target) for (vbucket, source), target in zip(free, targets, strict=True)]
