"""The identity of a bucket: whether two connection strings lead to the same documents."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.client.bucket import Bucket
from penstock.client.connect.cluster_map import NO_NODE
from penstock.errors import Error


@dataclass(frozen=True, slots=True)
class BucketIdentity:
    """The properties by which two buckets are compared, however their addresses are spelt.

    Attributes:
        uuid: the uuid of the bucket; empty if the server does not report it.
        branches: vbucket -> the vbuuid of its newest branch. Copies with the same history have the same vbuuids.
    """

    uuid: str = ""
    branches: frozenset[tuple[int, int]] = field(default=frozenset())

    def is_same_bucket(self, other: BucketIdentity) -> bool:
        """Return whether both are the same bucket, or copies of each other that share their history."""
        return bool(self.uuid and self.uuid == other.uuid) or not self.branches.isdisjoint(other.branches)


async def read_identity(bucket: Bucket) -> BucketIdentity:
    """Return the identity of a bucket. Raises the errors of connecting."""
    cluster = await bucket.cluster()
    # One vbucket is enough: all vbuckets of a copy have the history of its source.
    owned = [vbucket for vbucket, owner in enumerate(cluster.owners) if owner != NO_NODE][:1]
    try:
        logs = await bucket.failover_logs(owned)
    except Error:  # a user who may only write, or a server without DCP; the uuid must do
        return BucketIdentity(cluster.uuid)
    return BucketIdentity(cluster.uuid, frozenset((vbucket, log[0].vbuuid) for vbucket, log in logs.items()))
