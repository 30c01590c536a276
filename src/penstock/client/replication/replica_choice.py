"""The owner of a vbucket, and the replica that becomes active after the owner has failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import Endpoint
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.constants import VbucketState

__all__ = ["NodeReport", "ReplicaReport", "choose_replica", "find_owner"]


class NodeReport(NamedTuple):
    """The vbuckets of a node.

    Attributes:
        states: states of its vbuckets; missing vbuckets are left out.
        seqnos: high seqnos of its active vbuckets and replicas.
    """

    states: Mapping[int, VbucketState]
    seqnos: Mapping[int, int]

    def has(self, vbucket: int, state: VbucketState) -> bool:
        """Return whether the node has a vbucket in a state."""
        return self.states.get(vbucket) is state


def find_owner(vbucket: int, reports: Sequence[NodeReport], mapped: int) -> int:
    """Return the index of the node that owns a vbucket, NO_NODE if none does.

    An active vbucket without changes is not always an owner: a new bucket has all of its vbuckets active.

    Args:
        vbucket: the vbucket.
        reports: the vbuckets of each node.
        mapped: index of its owner in a map that several nodes share, or NO_NODE.
    """
    active = [at for at, report in enumerate(reports) if report.has(vbucket, VbucketState.ACTIVE)]
    if mapped in active:
        return mapped
    filled = [at for at in active if reports[at].seqnos.get(vbucket, 0)]
    return max(filled, key=lambda at: reports[at].seqnos[vbucket], default=NO_NODE)


class ReplicaReport(NamedTuple):
    """A replica as its node reports it.

    Attributes:
        endpoint: the node.
        failover_log: newest entry first.
        whole_seqno: end of its last complete snapshot: the seqno from which it would continue.
    """

    endpoint: Endpoint
    failover_log: FailoverLog
    whole_seqno: int

    def is_ancestor_of(self, other: ReplicaReport) -> bool:
        """Return whether the other replica is on a later branch of this replica's history."""
        return any(entry.vbuuid == self.failover_log[0].vbuuid for entry in other.failover_log[1:])


def choose_replica(reports: Sequence[ReplicaReport]) -> ReplicaReport:
    """Return the replica with the highest complete seqno in the newest branch.

    A replica of an older branch may have a higher seqno, but its last changes were lost in an earlier failover.

    Args:
        reports: at least one replica, each with a failover log that is not empty.
    """
    newest = [each for each in reports if not any(each.is_ancestor_of(other) for other in reports)]
    return max(newest or reports, key=lambda report: (report.whole_seqno, report.endpoint))
