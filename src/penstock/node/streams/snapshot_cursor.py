"""A stream's position in the history of its vbucket: chooses the next snapshot."""

from __future__ import annotations

from penstock.store.documents.key_order import KeyOrderSnapshot, open_key_order
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.history_snapshot import KeptVersions, Snapshot, open_parts
from penstock.store.history.rollback import StreamRequest, has_unsent_tombstones
from penstock.wire.codec.frame import EXTRAS_LENGTH_AT, HEADER_BYTES
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

_SEARCHED_SEQNOS = 4096
"""Seqnos that are searched for the last one that a consumer sees: a few milliseconds."""


class SnapshotCursor:
    """Reads a vbucket's history, one snapshot after the other.

    A snapshot is opened when the stream has its turn. So a thousand waiting streams hold no snapshots.

    Attributes:
        seqno: the last seqno of the newest snapshot.
        end_seqno: the last seqno that the consumer requests. A snapshot that cannot end there continues to its own end.
        snapshot: the snapshot that is being read, None between two snapshots.
        is_first: whether the newest snapshot is the first one, or none was opened yet.
        is_plain: whether the newest snapshot has only documents of the default collection, and no system events.
        announced_start, announced_end: the bounds of the newest snapshot in its marker.
    """

    __slots__ = (
        "_history_part",
        "_ignores_purged",
        "_purge_seqno",
        "_resumed_bounds",
        "_vbucket",
        "announced_end",
        "announced_start",
        "end_seqno",
        "is_first",
        "is_plain",
        "seqno",
        "snapshot",
    )

    def __init__(self, vbucket: Vbucket, request: StreamRequest, end_seqno: int) -> None:
        self.seqno = request.start_seqno
        self.end_seqno = end_seqno
        self.snapshot: Snapshot | KeyOrderSnapshot | None = None
        self.is_first = True
        self.is_plain = False
        self.announced_start = self.announced_end = 0
        self._history_part: Snapshot | None = None  # the second part of the newest snapshot
        self._vbucket = vbucket
        self._ignores_purged = request.ignore_purged
        self._purge_seqno = vbucket.index.purge_seqno  # tombstones purged up to here are no loss to the consumer
        # The first snapshot completes the snapshot that the consumer has in part. It starts at the start of that
        # snapshot and reaches at least its end: deduplication may have hidden versions up to there.
        self._resumed_bounds: tuple[int, int] | None = request.snap_start, request.snap_end

    @property
    def remaining(self) -> int:
        """Number of changes that are left to read, at most."""
        unseen = max(min(self._vbucket.changes.high_seqno, self.end_seqno) - self.seqno, 0)
        return unseen + sum(part.remaining for part in (self.snapshot, self._history_part) if part)

    @property
    def first_remaining(self) -> int:
        """Number of changes of the first snapshot that are left to read, at most."""
        if self._resumed_bounds is not None:  # no snapshot was opened yet
            return self.remaining
        return self.snapshot.remaining if self.is_first and self.snapshot is not None else 0

    def restart(self) -> None:
        """Continue with the vbucket's new history, from its start."""
        self.snapshot = self._history_part = self._resumed_bounds = None
        self.seqno = 0
        self._purge_seqno = self._vbucket.index.purge_seqno

    def lacks_tombstones(self) -> bool:
        """Return whether a compaction has purged tombstones that the stream has not sent yet."""
        return not self._ignores_purged and has_unsent_tombstones(
            self._vbucket.index.purge_seqno, self._purge_seqno, self.seqno
        )

    def open_key_order(self, collection_id: int | None) -> bool:
        """Start with the keys of one collection in their order.

        Args:
            collection_id: the collection; None for a stream of several.

        Returns:
            Whether it is possible: only from seqno 0, up to the newest change, for a collection of limited size.
        """
        if collection_id is None or self._resumed_bounds != (0, 0) or self.seqno:
            return False
        if self.end_seqno < self._vbucket.collections.high_seqno(collection_id):
            return False
        snapshot = open_key_order(self._vbucket, collection_id)
        if snapshot is None:
            return False
        self._purge_seqno = self._vbucket.index.purge_seqno
        self._resumed_bounds = None
        self.snapshot = snapshot
        self.announced_start, self.announced_end = 0, min(snapshot.end_seqno, self.end_seqno)
        self.seqno = self.announced_end
        return True

    def open_snapshot(
        self, *, sees_all: bool, history: bool = False, last_selected: int | None = None
    ) -> Snapshot | None:
        """Return the next snapshot; None if there is none, or the consumer would see none of it.

        Args:
            sees_all: whether the consumer learns the last seqno of any change. Otherwise it sees only changes of the
                default collection.
            history: whether the snapshot has the older versions, of collections with history. It may have two parts.
            last_selected: the newest seqno that the consumer sees; None: any seqno. A snapshot after the first one is
                announced up to there.
        """
        vbucket = self._vbucket
        self._purge_seqno = vbucket.index.purge_seqno
        if vbucket.changes.high_seqno <= self.seqno:
            return None
        start, end = self.seqno + 1, self.end_seqno
        if self._resumed_bounds is not None:
            start, end = min(start, self._resumed_bounds[0]), max(end, self._resumed_bounds[1])
        is_plain = vbucket.collections.is_plain
        snapshot = vbucket.history.open_snapshot(self.seqno, end)
        announced_end = snapshot.end_seqno
        if not is_plain and not sees_all and announced_end > self.seqno:
            if DEFAULT_COLLECTION not in vbucket.collections.ids:
                self.end_seqno = self.seqno  # the rest of the collection will be erased, and no change can follow
                return None
            snapshot, announced_end = _open_visible_snapshot(vbucket, snapshot)
        if last_selected is not None and self._resumed_bounds is None:
            announced_end = min(announced_end, max(last_selected, self.seqno))
        before, self.seqno = self.seqno, snapshot.end_seqno
        if announced_end <= before:
            return None
        if history and (parts := self._open_parts(snapshot)):
            snapshot, self._history_part = parts[0], parts[1] if len(parts) > 1 else None
        self.is_first = self._resumed_bounds is not None
        self._resumed_bounds = None
        self.snapshot, self.is_plain = snapshot, is_plain
        self.announced_start, self.announced_end = start, announced_end
        return snapshot

    def _open_parts(self, snapshot: Snapshot) -> list[Snapshot]:
        """Return the parts of a snapshot with the older versions; none if all of its changes were erased."""
        index, begins = self._vbucket.index, self._vbucket.collections.history_begins
        return open_parts(index, snapshot.start_seqno, snapshot.end_seqno, KeptVersions(index.history_floor, begins))

    def drop_snapshot(self) -> None:
        """Read no more of the newest snapshot."""
        self.snapshot = self._history_part = None

    def open_history_part(self) -> Snapshot | None:
        """Return the second part of the newest snapshot, after the first part was read; None if it has none."""
        self.snapshot, self._history_part = self._history_part, None
        return self.snapshot


def _open_visible_snapshot(vbucket: Vbucket, snapshot: Snapshot) -> tuple[Snapshot, int]:
    """Return a snapshot like the given one, and its last seqno in the default collection, or its start without one.

    A consumer without collections cannot learn that a change of another collection ends the snapshot. If the seqno is
    hard to find, the snapshot is extended to a known one.
    """
    start, end = snapshot.start_seqno, snapshot.end_seqno
    high = vbucket.collections.high_seqno(DEFAULT_COLLECTION)
    if high <= end:
        return snapshot, max(high, start)
    last = _find_last_visible(vbucket, max(start, end - _SEARCHED_SEQNOS), end)
    if last or end - _SEARCHED_SEQNOS <= start:
        return snapshot, max(last, start)
    longer = vbucket.history.open_snapshot(start, high)
    return longer, longer.end_seqno


def _find_last_visible(vbucket: Vbucket, start: int, end: int) -> int:
    """Return the last seqno of a range in the default collection, 0 if there is none."""
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
