"""Decides on the failover of a lost member: whether it is safe, and which replicas become active. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from penstock.client.replication.replica_choice import ReplicaReport, choose_replica
from penstock.errors import UsageError
from penstock.node.agreement.failover_settings import CLOCK_MARGIN
from penstock.node.agreement.revisions import count_majority
from penstock.node.membership.cluster_document import ClusterBucket, ClusterDocument
from penstock.node.membership.vbucket_map import Chain
from penstock.store.history.failover_log import sanitise_log

__all__ = [
    "MemberReport",
    "ReplicaState",
    "check_permission",
    "check_silence",
    "fail_over_member",
    "find_lost_member",
    "restore_member",
]


class ReplicaState(Struct, frozen=True, array_like=True):
    """A vbucket that a member has a replica of.

    Attributes:
        vbucket: its number.
        whole_seqno: end of its last complete snapshot.
        log: the newest entries of its failover log: vbuuid and seqno, newest first.
    """

    vbucket: int
    whole_seqno: int
    log: tuple[tuple[int, int], ...]


class MemberReport(Struct, frozen=True):
    """The report of a member about a lost member.

    Attributes:
        silent: seconds for which the member has not renewed the lease of the lost member.
        replicas: bucket -> its replicas of the vbuckets that the lost member owns.
    """

    silent: float
    replicas: Mapping[str, tuple[ReplicaState, ...]]


def find_lost_member(document: ClusterDocument, silent: Mapping[str, float]) -> str | None:
    """Return the member that has been silent for longest, if that is too long and a failover is permitted.

    Args:
        document: the newest document.
        silent: other member -> seconds of its silence.
    """
    settings = document.failover
    if not settings.enabled or settings.count >= settings.max_count:
        return None
    lost = [member for member in document.members if silent.get(member, 0.0) >= settings.timeout]
    return max(lost, key=silent.__getitem__, default=None)


def check_permission(document: ClusterDocument) -> None:
    """Raise UsageError if the settings do not permit an automatic failover."""
    settings = document.failover
    if not settings.enabled or settings.count >= settings.max_count:
        raise UsageError(f"{settings.count} failovers of at most {settings.max_count}, enabled: {settings.enabled}")


def check_silence(document: ClusterDocument, silent: float, age: float, timeout: float = 0.0) -> None:
    """Check that a member had no lease when the reports were made, and has none now.

    Args:
        document: the newest document.
        silent: seconds for which no member of a majority has renewed the lease of the lost member.
        age: seconds since the first report.
        timeout: seconds of silence that the caller needs besides.

    Raises:
        UsageError: the member may have a lease.
    """
    needed = max(timeout, document.lease_seconds * CLOCK_MARGIN + age)
    if silent < needed:
        raise UsageError(f"a member has renewed its lease {silent:.1f} s ago, expected at least {needed:.1f}")


def fail_over_member(document: ClusterDocument, lost: str, reports: Mapping[str, MemberReport]) -> ClusterDocument:
    """Return the document in which the best replicas own the vbuckets of a lost member. It is not counted.

    Args:
        document: the newest document.
        lost: id of the lost member.
        reports: member -> its report.

    Raises:
        UsageError: a vbucket has too few replicas, or the member is the last one.
    """
    nodes = tuple(replace(node, failed=node.failed or node.id == lost) for node in document.nodes)
    after = document.with_nodes(nodes)
    if not after.members:
        raise UsageError("the last member of a cluster cannot be failed over")
    for bucket in document.buckets:
        if lost not in bucket.map.nodes:
            continue
        if not bucket.map.copies:
            raise UsageError(f"bucket {bucket.name!r} is a plain cache: its keys on the lost node have no replicas")
        after = after.with_map(bucket.name, _choose_chains(bucket, lost, reports))
    return after


def _choose_chains(bucket: ClusterBucket, lost: str, reports: Mapping[str, MemberReport]) -> list[Chain]:
    replicas: dict[int, list[ReplicaReport]] = {}
    for member, report in reports.items():
        for state in report.replicas.get(bucket.name, ()):
            log = sanitise_log(state.log)
            if log and member != lost:
                replicas.setdefault(state.vbucket, []).append(ReplicaReport((member, 0), log, state.whole_seqno))
    return [
        _choose_chain(bucket.name, vbucket, chain, lost, replicas.get(vbucket, ()))
        for vbucket, chain in enumerate(bucket.read_chains())
    ]


def _choose_chain(name: str, vbucket: int, chain: Chain, lost: str, replicas: Sequence[ReplicaReport]) -> Chain:
    """Return the chain of a vbucket without the lost member.

    Each durable write is on a majority of the chain. So the reports must include a member of each majority.

    Raises:
        UsageError: too few replicas are known.
    """
    if chain[0] != lost:
        return tuple(None if node == lost else node for node in chain)
    placed = tuple(node for node in chain if node is not None)
    needed = len(placed) - count_majority(placed) + 1
    if len(replicas) < needed:
        raise UsageError(f"vbucket {vbucket} of bucket {name!r} has {len(replicas)} replicas, expected {needed}")
    owner = choose_replica(replicas).endpoint[0]
    return (owner, *(None if node in (owner, lost) else node for node in chain[1:]))


def restore_member(document: ClusterDocument, node: str) -> ClusterDocument:
    """Return the document in which a node that was failed over is a member again, without vbuckets.

    Raises:
        UsageError: the node is unknown, or was not failed over.
    """
    found = document.find_node(node)
    if found is None or not found.failed:
        raise UsageError("the node was not failed over, expected one with clusterMembership inactiveFailed")
    nodes = tuple(replace(known, failed=known.failed and known.id != node) for known in document.nodes)
    return document.with_nodes(nodes)
