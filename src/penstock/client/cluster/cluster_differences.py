"""The differences between a cluster's file and its nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.client.cluster.cluster_file import BucketEntry, UserEntry
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.replication.map_layout import MapLayout
from penstock.client.topology.balance_plan import plan_balance, plan_replicas
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.errors import UsageError


@dataclass(frozen=True, slots=True)
class ClusterDifference:
    """A difference between a cluster's file and its nodes.

    Attributes:
        subject: the bucket or user, and its node.
        found: the present state.
        expected: the state that the file declares.
    """

    subject: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.found}, expected {self.expected}"


def compare_bucket(bucket: BucketEntry, node: str, present: Mapping[str, int]) -> ClusterDifference | None:
    """Return the difference of a bucket at a node, None if the node has it.

    Args:
        bucket: the bucket.
        node: the name of the node.
        present: the buckets of the node -> their numbers of vbuckets.

    Raises:
        UsageError: the bucket has another number of vbuckets, which cannot be changed.
    """
    found, subject = present.get(bucket.name), f"bucket {bucket.name} at {node}"
    if found is None:
        return ClusterDifference(subject, "missing", f"{bucket.vbuckets} vbuckets")
    if found != bucket.vbuckets:
        raise UsageError(f"{subject}: {found} vbuckets, expected {bucket.vbuckets}")
    return None


def compare_user(user: UserEntry, node: str, present: Mapping[str, Iterable[str]]) -> ClusterDifference | None:
    """Return the difference of a user at a node, None if the user has these roles.

    Args:
        user: the user.
        node: the name of the node.
        present: the users of the node -> their roles.
    """
    subject, expected = f"user {user.name} at {node}", _format_roles(user.roles)
    if user.name not in present:
        return ClusterDifference(subject, "missing", expected)
    found = _format_roles(present[user.name])
    return None if found == expected else ClusterDifference(subject, found, expected)


def _format_roles(roles: Iterable[str]) -> str:
    return f"roles {', '.join(sorted({*map(_shorten_role, roles)})) or 'none'}"


def _shorten_role(role: str) -> str:
    """Return a role in its shortest form: a node lists `data_reader[beer]` as `data_reader[beer:*:*]`."""
    name, _, places = role.removesuffix("]").partition("[")
    while places.endswith(":*"):
        places = places.removesuffix(":*")
    return f"{name}[{places}]" if places else name


def compare_places(
    bucket: BucketEntry, layout: MapLayout, strays: Sequence[Iterable[int]], idle: Collection[int] = ()
) -> list[ClusterDifference]:
    """Return the differences of the places of a bucket's vbuckets.

    Args:
        bucket: the bucket.
        layout: the newest map.
        strays: for each node of the layout, the vbuckets that are active or dead there although they belong to others.
        idle: the vbuckets that are not active at their owner in the layout.
    """
    subject, count = f"bucket {bucket.name}", len(layout.nodes)
    found = [
        ClusterDifference(
            f"{subject} at {node.address}",
            f"vbuckets {format_ranges(sorted(extra), ', ')} of other nodes",
            "replicas alone",
        )
        for node, extra in zip(layout.nodes, strays, strict=True)
        if extra
    ]
    if idle:
        found.append(
            ClusterDifference(subject, f"vbuckets {format_ranges(sorted(idle), ', ')} not active", "one owner of each")
        )
    moves = plan_balance([chain[0] for chain in layout.chains], count)
    if moves:
        found.append(ClusterDifference(subject, f"{len(moves)} vbuckets to move", "an even spread"))
    wanted = layout.set_replicas(plan_replicas(layout.chains, count, bucket.replicas))
    missing = _count_missing(layout, wanted)
    if missing and not moves:  # moves change the replicas too
        expected = f"{bucket.replicas} of each vbucket, evenly"
        found.append(ClusterDifference(subject, f"{missing} replicas to place or to remove", expected))
    return found


def _count_missing(layout: MapLayout, wanted: MapLayout) -> int:
    """Return the number of vbuckets whose replicas are not where they should be, or that have a place without one."""
    pairs = zip(layout.chains, wanted.chains, strict=True)
    return sum(sorted(before[1:]) != sorted(after[1:]) for before, after in pairs if after[0] != NO_NODE)
