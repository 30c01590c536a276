"""The vbuckets of a node after a failover: replicas of the new owner become active, those of the lost node dead."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.node.buckets.bucket_list import BucketList
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.membership.cluster_document import ClusterDocument
from penstock.node.membership.failover_decision import ReplicaState
from penstock.node.membership.member_state import MemberState
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState

__all__ = ["apply_owners", "list_replicas"]

_REPORTED_BRANCHES = 8  # of a failover log: replicas differ in the newest branches


def list_replicas(buckets: BucketList, state: MemberState, owner: str) -> Mapping[str, tuple[ReplicaState, ...]]:
    """Return by bucket the replicas of the vbuckets that a member owns. All of them have followed an owner.

    A vbucket that is active here has just been moved, and the document does not know it yet. Or this node has lost it
    and does not use that document yet. Then it is no replica.

    Args:
        buckets: the buckets of this node.
        state: has the document.
        owner: id of the member.
    """
    return {
        bucket.name: tuple(
            _make_state(vbucket)
            for vbucket, chain in zip(buckets[bucket.name].store.vbuckets, bucket.read_chains(), strict=True)
            if chain[0] == owner and vbucket.id not in state.lost.get(bucket.spec.uuid or "", ()) and _is_copy(vbucket)
        )
        for bucket in state.document.buckets
        if bucket.name in buckets and bucket.map.copies
    }


def _is_copy(vbucket: Vbucket) -> bool:
    """Return whether a vbucket can replace its owner: it has a complete snapshot, or is the copy of an empty vbucket.

    A replica that the map lists may never have followed, or may have received a part of its first snapshot.
    """
    history, high_seqno = vbucket.history, vbucket.changes.high_seqno
    if history.state is VbucketState.ACTIVE:
        return high_seqno > 0
    return history.state is VbucketState.REPLICA and (history.whole_seqno > 0 or (history.is_copy and not high_seqno))


def _make_state(vbucket: Vbucket) -> ReplicaState:
    log = tuple((entry.vbuuid, entry.seqno) for entry in vbucket.history.failover_log[:_REPORTED_BRANCHES])
    return ReplicaState(vbucket.id, vbucket.history.whole_seqno, log)


def apply_owners(served: ServedBucket, document: ClusterDocument, own: str, lost: Collection[int]) -> None:
    """Let the replicas become active that the document makes the owners of their vbuckets, and lost vbuckets dead.

    Args:
        served: the bucket of this node.
        document: the newest document.
        own: id of this node.
        lost: vbuckets that this node owned before.
    """
    for number in lost:
        vbucket = served.store.vbuckets[number]
        if vbucket.history.state is VbucketState.ACTIVE:
            _set_state(served, vbucket, VbucketState.DEAD)
    chains = document.get_bucket(served.store.name).read_chains()
    for vbucket, chain in zip(served.store.vbuckets, chains, strict=False):
        if chain[0] != own or vbucket.history.state is not VbucketState.REPLICA:
            continue
        _set_state(served, vbucket, VbucketState.ACTIVE)


def _set_state(served: ServedBucket, vbucket: Vbucket, state: VbucketState) -> None:
    vbucket.set_state(state)
    served.report_event(vbucket, VbucketEvent.STATE_CHANGED)
    served.notify()
