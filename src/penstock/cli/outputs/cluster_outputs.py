"""The JSON of the commands for several nodes: replicate, move, failover, cluster and xdcr."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class ReplicationState(TypedDict):
    """The state of a replication.

    Attributes:
        vbuckets: vbuckets to replicate.
        running: vbuckets with a stream, or with a complete copy.
        protocol: dialect of the streams; empty while there are none.
        lag: changes that the target lacks.
        nodes: address of each source node -> changes that the target lacks.
        copied: changes that the target has.
        bytes: bytes that the sources have sent.
        seconds: time since the start.
    """

    vbuckets: int
    running: int
    protocol: str
    lag: int
    nodes: dict[str, int]
    copied: int
    bytes: int
    seconds: float


MovedVbucketLine = TypedDict(
    "MovedVbucketLine", {"vbucket": int, "from": str, "to": str, "seconds": float}
)  # `from` is a keyword, so this type has no class
MovedVbucketLine.__doc__ = """A vbucket that was moved.

Attributes:
    vbucket: number of the vbucket.
    from: address of the former owner.
    to: address of the new owner.
    seconds: duration of the takeover.
"""


class FailoverSummary(TypedDict):
    """The result of a failover.

    Attributes:
        promoted: address of each new owner -> its vbuckets.
        lost: vbuckets without a replica.
        risks: vbucket -> why acknowledged changes of it may be lost; only with --lose.
        reachable: whether the lost node answers.
    """

    promoted: dict[str, list[int]]
    lost: list[int]
    risks: dict[str, str]
    reachable: bool


class ClusterMoveLine(MovedVbucketLine):
    """A vbucket of a cluster's file that was moved.

    Attributes:
        bucket: name of the bucket.
    """

    bucket: str


class ClusterFailoverLine(FailoverSummary):
    """The result of a failover for a bucket of a cluster's file.

    Attributes:
        bucket: name of the bucket.
    """

    bucket: str


class ClusterReplicasLine(TypedDict):
    """The replicas of a bucket that `cluster run` keeps.

    Attributes:
        bucket: name of the bucket.
        replicas: replicas that run.
        lag: changes that they lack.
    """

    bucket: str
    replicas: int
    lag: int


class XdcrState(TypedDict):
    """The numbers of a replication. The last line has no rate and no lag.

    Attributes:
        received: changes that the source has sent.
        filtered: changes that the options leave out.
        unreadable: changes whose documents the filter cannot read; they are not replicated.
        written: changes that the target has stored.
        older: changes that lost against the target's version.
        missing: deletions of documents that the target did not have.
        refused: changes that the target refused for another reason.
        restarts: times that the replication resumed at its checkpoint.
        refusals: key and reason of the first refused changes.
        unreadable_examples: key and reason of the first unreadable changes.
        rate: received changes per second.
        lag: changes that the target lacks; null while a bucket does not answer.
        done: whether this is the last line.
    """

    received: int
    filtered: int
    unreadable: int
    written: int
    older: int
    missing: int
    refused: int
    restarts: int
    refusals: list[str]
    unreadable_examples: list[str]
    rate: NotRequired[float]
    lag: NotRequired[int | None]
    done: bool
