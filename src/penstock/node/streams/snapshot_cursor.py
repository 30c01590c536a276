"""A stream's way through the history of its vbucket: which snapshot it sends next, and up to which seqno."""

from __future__ import annotations

from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.rollback import StreamRequest, misses_purged
from penstock.wire.codec.frame import EXTRAS_LENGTH_AT, HEADER_BYTES
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = ["SnapshotCursor"]

_LOOK_BACK = 4096
"""How many seqnos are searched for the last one that a consumer sees: a few milliseconds."""


class SnapshotCursor:
    """Reads a vbucket's history, one snapshot after the other.

    Snapshots are opened when the stream's turn comes, so a thousand streams that wait for theirs hold nothing.

    Attributes:
        seqno: the last one of the newest snapshot.
        end_seqno: the last change that the consumer wants. A snapshot that cannot end there goes on to its own end.
        snapshot: the one that is read, None between two of them.
        is_first: the newest snapshot is the first one, or none was opened yet.
        is_plain: the newest snapshot has only documents of the default collection, and no system events.
        announced_start, announced_end: the bounds of the newest snapshot, as its marker has them.
    """

    __slots__ = (
        "_ignores_purged",
        "_purge_seqno",
        "_resumed",
        "_vbucket",
        "announced_end",
        "announced_start",
        "end_seqno",
        "is_first",
        "is_plain",
        "seqno",
        "snapshot",
    )

    def __init__(self, vbucket: Vbucket, asked: StreamRequest, end_seqno: int) -> None:
        self.seqno = asked.start_seqno
        self.end_seqno = end_seqno
        self.snapshot: Snapshot | None = None
        self.is_first = True
        self.is_plain = False
        self.announced_start = self.announced_end = 0
        self._vbucket = vbucket
        self._ignores_purged = asked.ignore_purged
        self._purge_seqno = vbucket.index.purge_seqno  # up to here, the consumer needs no tombstone that is gone
        # The first snapshot completes the one that the consumer is in: it goes back to where that began, and on to
        # where that ended at least, since what the consumer has of it may lack versions that came up to there.
        self._resumed: tuple[int, int] | None = asked.snap_start, asked.snap_end

    @property
    def remaining(self) -> int:
        """How many changes are left to read, at most."""
        unseen = max(min(self._vbucket.changes.high_seqno, self.end_seqno) - self.seqno, 0)
        return unseen + (self.snapshot.remaining if self.snapshot else 0)

    def restart(self) -> None:
        """Go on with the vbucket's new history, from its beginning."""
        self.snapshot = self._resumed = None
        self.seqno = 0
        self._purge_seqno = self._vbucket.index.purge_seqno

    def lacks_tombstones(self) -> bool:
        """Tell whether a compaction has dropped tombstones behind the newest snapshot, before the stream sent them."""
        return not self._ignores_purged and misses_purged(
            self._vbucket.index.purge_seqno, self._purge_seqno, self.seqno
        )

    def open_next(self, *, sees_all: bool) -> Snapshot | None:
        """Open the next snapshot and return it; None if there is none, or the consumer would see nothing of it.

        Args:
            sees_all: the consumer learns of the last seqno whatever change has it. Otherwise it sees changes of the
                default collection only.
        """
        vbucket = self._vbucket
        self._purge_seqno = vbucket.index.purge_seqno
        start, end = self.seqno + 1, self.end_seqno
        if self._resumed is not None:
            start, end = min(start, self._resumed[0]), max(end, self._resumed[1])
        is_plain = vbucket.changes.collection_state is None
        snapshot = vbucket.history.snapshot(self.seqno, end)
        announced_end = snapshot.end_seqno
        if not is_plain and not sees_all and announced_end > self.seqno:
            if DEFAULT_COLLECTION not in vbucket.collections.ids:
                self.end_seqno = self.seqno  # what there is of it is going to be erased, and nothing can follow
                return None
            snapshot, announced_end = _visible_snapshot(vbucket, snapshot)
        before, self.seqno = self.seqno, snapshot.end_seqno
        if announced_end <= before:
            return None
        self.is_first = self._resumed is not None
        self._resumed = None
        self.snapshot, self.is_plain = snapshot, is_plain
        self.announced_start, self.announced_end = start, announced_end
        return snapshot


def _visible_snapshot(vbucket: Vbucket, snapshot: Snapshot) -> tuple[Snapshot, int]:
    """Return a snapshot like this one, and the last seqno of it in the default collection; its start, if there is none.

    A consumer without collections cannot be told that something else is at the end. Where the seqno is hard to find,
    the snapshot goes on to a known one.
    """
    start, end = snapshot.start_seqno, snapshot.end_seqno
    high = vbucket.collections.high_seqno(DEFAULT_COLLECTION)
    if high <= end:
        return snapshot, max(high, start)
    last = _last_visible(vbucket, max(start, end - _LOOK_BACK), end)
    if last or end - _LOOK_BACK <= start:
        return snapshot, max(last, start)
    longer = vbucket.history.snapshot(start, high)
    return longer, longer.end_seqno


def _last_visible(vbucket: Vbucket, start: int, end: int) -> int:
    """Return the last seqno of a range that is in the default collection, 0 if there is none."""
    index = vbucket.index
    for seqno in range(end, start, -1):
        found = index.find(seqno)
        if found is not None:
            (rows, row), buffer = found, found[0].buffer
            begin = rows.offsets_at[row]
            owner = buffer[begin + HEADER_BYTES + buffer[begin + EXTRAS_LENGTH_AT]]
            if owner == DEFAULT_COLLECTION and not 0 < rows.superseded_at[row] <= end:
                return seqno
    return 0
