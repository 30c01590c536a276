"""Which vbuckets of a target become replicas before a replication. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.errors import UsageError
from penstock.wire.codec.constants import VbucketState


def find_new_replicas(
    vbuckets: Collection[int],
    states: Mapping[int, VbucketState],
    seqnos: Mapping[int, int],
    *,
    overwrite: bool,
    keeps_active: bool = False,
) -> set[int]:
    """Return the vbuckets whose state must be changed to replica.

    Args:
        vbuckets: the vbuckets to replicate.
        states: states of the target's vbuckets; missing vbuckets are left out.
        seqnos: high seqnos of the target's active vbuckets.
        overwrite: an active vbucket with changes may become a replica.
        keeps_active: no active vbucket may become a replica, not even an empty one.

    Raises:
        UsageError: the target has an active vbucket with changes, which might be lost, or must keep it.
    """
    active = {vbucket for vbucket in vbuckets if states.get(vbucket) is VbucketState.ACTIVE}
    if active and keeps_active:
        raise UsageError(f"vbucket {min(active)} of the target is active, expected a replica")
    filled = sorted(vbucket for vbucket in active if seqnos.get(vbucket, 0))
    if filled and not overwrite:
        raise UsageError(
            f"vbucket {filled[0]} of the target is active and has {seqnos[filled[0]]} changes ({len(filled)} vbuckets "
            "in all), expected replicas; the option to overwrite makes it a replica, and loses its own changes"
        )
    return {vbucket for vbucket in vbuckets if states.get(vbucket) is not VbucketState.REPLICA}
