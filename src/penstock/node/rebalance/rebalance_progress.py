"""The progress of a rebalance: the steps of each node, planned and done. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

__all__ = ["RebalanceProgress"]


class RebalanceProgress:
    """Counts steps: a vbucket that moves is one of both nodes, the replicas of a bucket are one of each node.

    Args:
        nodes: names of the nodes.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self._planned: Counter[str] = Counter(dict.fromkeys(nodes, 0))
        self._done: Counter[str] = Counter()

    def plan(self, nodes: Iterable[str], steps: int = 1) -> None:
        """Add steps of some nodes."""
        for node in nodes:
            self._planned[node] += steps

    def complete(self, nodes: Iterable[str]) -> None:
        """Count one step of some nodes as done."""
        self._done.update(nodes)

    @property
    def total(self) -> float:
        """The part of all steps that is done, 0 to 1."""
        return _divide(self._done.total(), self._planned.total())

    @property
    def by_node(self) -> dict[str, float]:
        """The part of the steps of each node that is done, 0 to 1. A node without steps has none to do: 1."""
        return {node: _divide(self._done[node], planned) for node, planned in self._planned.items()}


def _divide(done: int, planned: int) -> float:
    return min(1.0, done / planned) if planned else 1.0
