"""How far a replication is: changes that the target lacks, by source node and in total. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.client.discovery.endpoint import Endpoint, format_endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationProgress:
    """The state of a replication at one moment.

    Attributes:
        vbuckets: the number of vbuckets to replicate.
        running: vbuckets with a stream, or with a complete copy.
        protocol: the dialect of the streams; empty while there are none.
        nodes: address of each source node -> changes that the target lacks of its vbuckets.
        copied: changes that the target has.
        nbytes: bytes that the sources have sent.
        seconds: time since the start.
    """

    vbuckets: int
    running: int
    protocol: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    copied: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def lag(self) -> int:
        """Changes that the target lacks, of all nodes."""
        return sum(self.nodes.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as a JSON object."""
        return {
            "vbuckets": self.vbuckets,
            "running": self.running,
            "protocol": self.protocol,
            "lag": self.lag,
            "nodes": dict(self.nodes),
            "copied": self.copied,
            "bytes": self.nbytes,
            "seconds": round(self.seconds, 3),
        }


def find_lag(
    owned: Mapping[Endpoint, Collection[int]], source: Mapping[int, int], target: Mapping[int, int]
) -> dict[str, int]:
    """Return the changes that the target lacks, by the address of the source node.

    Args:
        owned: source node -> its vbuckets.
        source: high seqnos at the source.
        target: high seqnos at the target.
    """
    return {
        format_endpoint(host, port): sum(max(source.get(vb, 0) - target.get(vb, 0), 0) for vb in vbuckets)
        for (host, port), vbuckets in owned.items()
    }


class CatchUpGoals:
    """The seqnos at which a replication has all changes that existed at its start."""

    def __init__(self) -> None:
        self._goals: dict[int, int] = {}

    def find_reached(self, running: Collection[int], source: Mapping[int, int], target: Mapping[int, int]) -> set[int]:
        """Return the running vbuckets that have all changes of the first call.

        Args:
            running: vbuckets whose stream was accepted. Before, the target may have another branch.
            source: high seqnos at the source. After a failover they may be below those of the first call.
            target: high seqnos at the target, read after those of the source.
        """
        for vbucket, seqno in source.items():
            self._goals[vbucket] = min(seqno, self._goals.get(vbucket, seqno))
        return {vb for vb in running if vb in self._goals and target.get(vb, 0) >= self._goals[vb]}
