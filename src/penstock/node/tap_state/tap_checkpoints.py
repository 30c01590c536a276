"""The checkpoints of a vbucket, as TAP numbers them: closed pieces of its history, and one open piece.

The store knows no checkpoints; here, a closed checkpoint is the seqno at its end. A checkpoint is closed by
CREATE_CHECKPOINT. In a copy, it is closed when the TAP producer starts the next one.
Source: ep-engine 2.5 checkpoint.cc. An active vbucket starts with checkpoint 2, after an empty checkpoint 1.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest, find_rollback_point
from penstock.wire.codec.constants import VbucketState

FIRST_OPEN = 2
"""Id of the first open checkpoint of an active vbucket."""

MAX_CLOSED = 1024
"""Closed checkpoints that are kept of each vbucket. A consumer with an older checkpoint gets a full backfill."""


class HistoryPoint(NamedTuple):
    """A point in a vbucket's history.

    Attributes:
        vbuuid: the branch of the history.
        seqno: the last seqno before the point.
    """

    vbuuid: int
    seqno: int


def is_on_history(vbucket: Vbucket, point: HistoryPoint, snap_end: int = 0) -> bool:
    """Return whether a consumer can continue from a point.

    Args:
        vbucket: the vbucket.
        point: the point.
        snap_end: the last seqno of the snapshot that the consumer has received in part, 0 for none.
    """
    request = StreamRequest(
        start_seqno=point.seqno,
        vbuuid=point.vbuuid,
        snap_start=0,
        snap_end=max(snap_end, point.seqno),
        strict_vbuuid=True,
    )
    return (
        find_rollback_point(
            vbucket.history.failover_log, vbucket.changes.high_seqno, vbucket.index.purge_seqno, request
        )
        is None
    )


class TapCheckpoints:
    """The checkpoints of one vbucket.

    Attributes:
        vbucket: the vbucket.
        open_id: the id of the open checkpoint; 0 while a TAP producer fills the vbucket.
    """

    def __init__(self, vbucket: Vbucket) -> None:
        self.vbucket = vbucket
        self.open_id = 0
        self._ends: dict[int, HistoryPoint] = {}  # of the closed checkpoints: ids and seqnos both ascend
        self.ensure_open()

    @property
    def last_closed_id(self) -> int:
        """The id of the last closed checkpoint, 0 for none."""
        return max(self.open_id - 1, 0)

    @property
    def start_seqnos(self) -> list[int]:
        """The seqnos after which the known checkpoints start."""
        return [end.seqno for end in self._ends.values()]

    @property
    def persisted_id(self) -> int:
        """The id of the last checkpoint that is on disk, 0 for none."""
        persisted = self.vbucket.history.persisted_seqno
        return max((closed for closed, end in self._ends.items() if end.seqno <= persisted), default=0)

    def ensure_open(self) -> None:
        """Open the first checkpoint of an active vbucket that has none."""
        if self.vbucket.history.state is VbucketState.ACTIVE and self.open_id < FIRST_OPEN:
            self.open_id = FIRST_OPEN
            self._ends = {FIRST_OPEN - 1: HistoryPoint(self.vbucket.history.vbuuid, 0)}

    def close_open(self) -> int:
        """Close the open checkpoint, unless it is empty.

        Returns:
            The id of the open checkpoint.
        """
        if self.find_start(self.open_id) != HistoryPoint(self.vbucket.history.vbuuid, self.vbucket.changes.high_seqno):
            self.open_checkpoint(self.open_id + 1)
        return self.open_id

    def open_checkpoint(self, checkpoint: int) -> None:
        """Open a checkpoint at the current seqno, which ends the previous one. Later checkpoints are forgotten."""
        self._ends = {closed: end for closed, end in self._ends.items() if closed < checkpoint - 1}
        self._ends[checkpoint - 1] = HistoryPoint(self.vbucket.history.vbuuid, self.vbucket.changes.high_seqno)
        self.open_id = checkpoint
        while len(self._ends) > MAX_CLOSED:
            del self._ends[next(iter(self._ends))]

    def find_start(self, checkpoint: int) -> HistoryPoint | None:
        """Return the start of a checkpoint, None if it is unknown or no longer on the vbucket's history."""
        point = self._ends.get(checkpoint - 1)
        return point if point is not None and is_on_history(self.vbucket, point) else None

    def find_end(self, checkpoint: int) -> int | None:
        """Return the last seqno of a checkpoint, None for the open one, 0 for one that was forgotten."""
        if checkpoint >= self.open_id:
            return None
        end = self._ends.get(checkpoint)
        return end.seqno if end is not None else 0

    def find_following(self, seqno: int, checkpoint: int = 0) -> int:
        """Return the first checkpoint above `checkpoint` that has changes after a seqno, or the open checkpoint."""
        later = (closed for closed, end in self._ends.items() if end.seqno > seqno and closed > checkpoint)
        return next(later, self.open_id)
