"""Checkpoints: positions in the source whose changes the target has on disk. Decisions without I/O.

A change counts as replicated when the target's disk has it. Until then, a crash of the target may lose it without any
error for the replicator. Every vbucket that loses changes starts a new branch. So each checkpoint names the branch and
the seqno of each vbucket of the target. If the target no longer has one of them, changes are sent again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import gcd

from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.client.topology.persisted_seqnos import PersistedSeqno
from penstock.store.history.failover_log import FailoverLog
from penstock.store.history.rollback import MAX_SEQNO, StreamRequest, find_rollback_point


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Positions in the source whose changes the target has.

    Attributes:
        positions: source vbucket -> position after the last replicated change.
        target_ends: target vbucket -> the end of its history that includes these changes.
    """

    positions: Mapping[int, Position] = field(default_factory=dict)
    target_ends: Mapping[int, SnapshotEnd] = field(default_factory=dict)


def find_lost_ends(checkpoint: Checkpoint, logs: Mapping[int, FailoverLog]) -> list[int]:
    """Return the target vbuckets that may have lost changes of a checkpoint.

    Args:
        checkpoint: the checkpoint.
        logs: target vbucket -> its failover log now.
    """
    return [
        vbucket
        for vbucket, end in checkpoint.target_ends.items()
        if end.seqno and (vbucket not in logs or _has_lost(end, logs[vbucket]))
    ]


def _has_lost(end: SnapshotEnd, log: FailoverLog) -> bool:
    request = StreamRequest(start_seqno=end.seqno, vbuuid=end.vbuuid, snap_start=end.seqno, snap_end=end.seqno)
    return find_rollback_point(log, MAX_SEQNO, 0, request) is not None


def forget_positions(
    positions: Mapping[int, Position], lost: Collection[int], sources: int, targets: int
) -> dict[int, Position]:
    """Return the positions without those of vbuckets whose documents may be in a lost vbucket of the target.

    Both buckets compute vbuckets from the same hash of the key, modulo their numbers of vbuckets.

    Args:
        positions: source vbucket -> position.
        lost: vbuckets of the target.
        sources: the number of vbuckets of the source.
        targets: the number of vbuckets of the target.
    """
    common = gcd(sources, targets)
    remainders = {vbucket % common for vbucket in lost}
    return {vbucket: each for vbucket, each in positions.items() if vbucket % common not in remainders}


class CheckpointTracker:
    """Decides when acknowledged changes become a checkpoint.

    Attributes:
        committed: the newest checkpoint.
        acknowledged: source vbucket -> position after the last change that the target has acknowledged.
    """

    def __init__(self, committed: Checkpoint, branches: Mapping[int, int], *, is_persistent: bool) -> None:
        """Create a tracker.

        Args:
            committed: the checkpoint at the start.
            branches: target vbucket -> its newest branch at the start.
            is_persistent: whether the target writes changes to disk. If not, acknowledged changes make a checkpoint.
        """
        self.committed = committed
        self.acknowledged = dict(committed.positions)
        self._branches = dict(branches)
        self._is_persistent = is_persistent
        self._pending: Checkpoint | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the checkpoint includes all acknowledged changes."""
        return self.committed.positions == self.acknowledged

    def acknowledge(self, positions: Mapping[int, Position]) -> None:
        """Record positions whose changes the target has acknowledged."""
        self.acknowledged.update(positions)

    def has_new_branch(self, seqnos: Mapping[int, PersistedSeqno]) -> bool:
        """Return whether a vbucket of the target has started a new branch, which may lack acknowledged changes."""
        return any(self._branches.get(vbucket) != each.vbuuid for vbucket, each in seqnos.items())

    def observe(self, acknowledged: Mapping[int, Position], seqnos: Mapping[int, PersistedSeqno]) -> Checkpoint | None:
        """Return a new checkpoint if the target's disk has reached one.

        Args:
            acknowledged: the acknowledged positions before the seqnos were requested.
            seqnos: target vbucket -> its seqnos, all in the branches of the start.
        """
        if self._pending is None and acknowledged != self.committed.positions:
            ends = {vbucket: SnapshotEnd(each.high_seqno, each.vbuuid) for vbucket, each in seqnos.items()}
            self._pending = Checkpoint(dict(acknowledged), ends)
        if self._pending is None or not self._is_on_disk(self._pending, seqnos):
            return None
        self.committed, self._pending = self._pending, None
        return self.committed

    def _is_on_disk(self, checkpoint: Checkpoint, seqnos: Mapping[int, PersistedSeqno]) -> bool:
        return not self._is_persistent or all(
            vbucket in seqnos and seqnos[vbucket].persisted_seqno >= end.seqno
            for vbucket, end in checkpoint.target_ends.items()
        )
