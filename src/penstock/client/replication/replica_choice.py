"""The replica that becomes active after its owner has failed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.client.connect.cluster_map import Endpoint
from penstock.store.history.failover_log import FailoverLog

__all__ = ["ReplicaReport", "choose_replica"]


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
