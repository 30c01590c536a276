"""The checkpoints of a vbucket, as TAP numbers them: the history in pieces, the last of which is open.

The store knows none; a checkpoint here is the seqno that it ended with. One is closed when a client asks for it
(CREATE_CHECKPOINT), or a TAP producer whose copy this vbucket is begins the next.
Source: ep-engine 2.5 checkpoint.cc; an active vbucket begins with checkpoint 2, after an empty one.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest, rollback_point
from penstock.wire.codec.constants import VbucketState

__all__ = ["KEPT", "Checkpoints", "Point", "is_on_history"]

FIRST_OPEN = 2

KEPT = 1024
"""Closed checkpoints that are remembered of each vbucket; a consumer that is further behind gets a full backfill."""


class Point(NamedTuple):
    """A place in a vbucket's history: the branch it was on, and the last seqno before it."""

    vbuuid: int
    seqno: int


def is_on_history(vbucket: Vbucket, point: Point, snap_end: int = 0) -> bool:
    """Tell whether a consumer that stands there can go on. snap_end: of the snapshot that it is in the middle of."""
    asked = StreamRequest(
        start_seqno=point.seqno,
        vbuuid=point.vbuuid,
        snap_start=0,
        snap_end=max(snap_end, point.seqno),
        strict_vbuuid=True,
    )
    return (
        rollback_point(vbucket.history.failover_log, vbucket.changes.high_seqno, vbucket.index.purge_seqno, asked)
        is None
    )


class Checkpoints:
    """Of one vbucket. open_id: the open one's; 0 while a TAP producer fills this vbucket."""

    def __init__(self, vbucket: Vbucket) -> None:
        self.vbucket = vbucket
        self.open_id = 0
        self._ends: dict[int, Point] = {}  # of closed ones, ascending in both
        self.settle()

    @property
    def last_closed(self) -> int:
        return max(self.open_id - 1, 0)

    @property
    def starts(self) -> list[int]:
        """Where the checkpoints begin of which that is known: behind these seqnos."""
        return [end.seqno for end in self._ends.values()]

    @property
    def persisted(self) -> int:
        """The last one that would survive a restart, 0 for none."""
        persisted = self.vbucket.history.persisted_seqno
        return max((closed for closed, end in self._ends.items() if end.seqno <= persisted), default=0)

    def settle(self) -> None:
        """See to it that an active vbucket has an open checkpoint of its own."""
        if self.vbucket.history.state is VbucketState.ACTIVE and self.open_id < FIRST_OPEN:
            self.open_id = FIRST_OPEN
            self._ends = {FIRST_OPEN - 1: Point(self.vbucket.history.vbuuid, 0)}

    def create(self) -> int:
        """Close the open checkpoint, unless it is empty. Returns the id of the one that is open then."""
        if self.start_of(self.open_id) != Point(self.vbucket.history.vbuuid, self.vbucket.changes.high_seqno):
            self.begin(self.open_id + 1)
        return self.open_id

    def begin(self, checkpoint: int) -> None:
        """Open a checkpoint here; the one before ends here, and none of this id or above has been."""
        self._ends = {closed: end for closed, end in self._ends.items() if closed < checkpoint - 1}
        self._ends[checkpoint - 1] = Point(self.vbucket.history.vbuuid, self.vbucket.changes.high_seqno)
        self.open_id = checkpoint
        while len(self._ends) > KEPT:
            del self._ends[next(iter(self._ends))]

    def start_of(self, checkpoint: int) -> Point | None:
        """Return where a checkpoint begins; None if that is not known, or no longer on the vbucket's history."""
        point = self._ends.get(checkpoint - 1)
        return point if point is not None and is_on_history(self.vbucket, point) else None

    def end_of(self, checkpoint: int) -> int | None:
        """Return the last seqno of a checkpoint, None of the open one. One that was forgotten ended at 0."""
        if checkpoint >= self.open_id:
            return None
        end = self._ends.get(checkpoint)
        return end.seqno if end is not None else 0

    def after(self, seqno: int, checkpoint: int = 0) -> int:
        """Return the checkpoint above `checkpoint` in which the first change after this seqno lies, or would."""
        later = (closed for closed, end in self._ends.items() if end.seqno > seqno and closed > checkpoint)
        return next(later, self.open_id)
