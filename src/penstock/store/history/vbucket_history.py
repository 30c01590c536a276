"""The history of one vbucket: its states and branches, and which of its snapshots are complete.

One thread at a time: there are no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.store.history.collection_state import CollectionState
from penstock.store.history.failover_log import FailoverLog, create_entry, prune_log, sanitise_log
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.vbucket_changes import REFUSED, VbucketChanges
from penstock.store.history.vbucket_prepares import VbucketPrepares
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.messages.kv import FailoverEntry

_MILLISECOND = 1_000_000


@dataclass(slots=True)
class CopyFeed:
    """A connection whose messages fill copies of vbuckets.

    Attributes:
        clock: returns nanoseconds of a monotonic clock.
        last_ns: time of its newest message.
    """

    clock: Callable[[], int]
    last_ns: int = 0

    def __post_init__(self) -> None:
        self.last_ns = self.last_ns or self.clock()

    def record_message(self) -> None:
        """Record that a message has come now."""
        self.last_ns = self.clock()

    def measure_age(self) -> int:
        """Return the milliseconds since the newest message."""
        return (self.clock() - self.last_ns) // _MILLISECOND


class VbucketHistory:
    """The states and branches of a vbucket. The log has a note of each of their changes.

    Attributes:
        id: the vbucket's number.
        index: the rows of the vbucket.
        changes: the vbucket's changes.
        prepares: its synchronous writes.
        state: a VbucketState, None while the vbucket is deleted.
        is_served: clients may read and write it: it is active, and the newest map names this node as its owner.
        failover_log: newest entry first.
        feed: the connection that fills this copy, or the last one that did; None: none has since the start.
        snapshot_end: the end of the open snapshot, while whole_seqno is below the newest change.
    """

    __slots__ = (
        "_is_owned",
        "_log",
        "_new_vbuuid",
        "_whole_seqno",
        "changes",
        "failover_log",
        "feed",
        "id",
        "index",
        "is_served",
        "prepares",
        "snapshot_end",
        "state",
    )

    def __init__(self, changes: VbucketChanges, *, new_vbuuid: Callable[[], int]) -> None:
        self.id = changes.id
        self.index = changes.index
        self.changes = changes
        self.prepares = VbucketPrepares(changes, self)
        self._is_owned = True
        self._set_state(VbucketState.ACTIVE)
        self.failover_log: FailoverLog = create_entry((), new_vbuuid(), 0)
        self.feed: CopyFeed | None = None
        self._log = changes.log
        self._new_vbuuid = new_vbuuid
        self._whole_seqno: int | None = None  # inside a snapshot: the end of the one before
        self.snapshot_end = 0

    @property
    def vbuuid(self) -> int:
        """The branch of history that the vbucket is on."""
        return self.failover_log[0].vbuuid

    @property
    def whole_seqno(self) -> int:
        """The end of the last complete snapshot: high_seqno, unless a snapshot has begun and not ended."""
        return self.changes.high_seqno if self._whole_seqno is None else self._whole_seqno

    @property
    def persisted_seqno(self) -> int:
        """The seqno up to which changes are on disk, or stored if there is no disk."""
        persisted = self._log.find_persisted_seqno(self.index)
        return self.changes.high_seqno if persisted is None else persisted

    def set_max_cas(self, cas: int) -> None:
        """Make the cas of every later change higher than this one. The limit never goes down."""
        self._log.make_room_for_note(self)
        self.changes.clock.observe(cas)
        self._log.write_note(self)

    # States

    def enter_state(self, state: VbucketState, *, takeover: bool = False) -> None:
        """Change the state. A deleted vbucket returns empty.

        Becoming active begins a new branch at the end of the last complete snapshot. A takeover instead continues the
        history of the vbucket's last owner.
        """
        self._log.make_room_for_note(self)
        if state is VbucketState.ACTIVE and self.state is not VbucketState.ACTIVE:
            if self.state is not None and not takeover:
                self.failover_log = create_entry(self.failover_log, self._new_vbuuid(), self.whole_seqno)
            self._whole_seqno = self.feed = None
        self._set_state(state)
        self._log.write_note(self)

    def _set_state(self, state: VbucketState | None) -> None:
        self.state = state
        self.is_served = self._is_owned and state is VbucketState.ACTIVE

    def set_owned(self, *, is_owned: bool) -> None:
        """Let clients use the vbucket while it is active, or refuse them: a map gives it to another node."""
        self._is_owned = is_owned
        self._set_state(self.state)

    def clear(self, *, removes: bool = False) -> None:
        """Remove all changes and branches: seqnos begin at 1 again, on a new branch.

        Args:
            removes: delete the vbucket, too.
        """
        self._log.make_room_for_note(self)
        if removes:
            self._set_state(None)
            self.prepares.chains = ()
        self.changes.clear()
        self.prepares.clear()
        self._whole_seqno = self.feed = None
        self.failover_log = create_entry((), self._new_vbuuid(), 0)
        self._log.write_note(self, cut=0)

    def try_catch_up(self) -> None:
        """Let an active vbucket write the manifest's missing events. Refused events come later."""
        if self.state is VbucketState.ACTIVE:
            with suppress(*REFUSED):
                self.changes.catch_up(self.id)

    # Branches

    def set_failover_log(self, log: Iterable[tuple[int, int]]) -> None:
        """Adopt the log of the vbucket that this one copies; (vbuuid, seqno), newest first."""
        self._log.make_room_for_note(self)
        self.failover_log = sanitise_log(log) or create_entry((), self._new_vbuuid(), self.changes.high_seqno)
        self._log.write_note(self)

    def adopt_purge_seqno(self, seqno: int) -> None:
        """Record that the history that this vbucket copies lacks tombstones up to a seqno."""
        if seqno > self.index.purge_seqno:
            self._log.make_room_for_note(self)
            self.index.raise_floors(0, purged=seqno)
            self._log.write_note(self)

    def begin_branch(self, seqno: int | None = None) -> None:
        """Begin a branch at a seqno, None: the newest.

        Later changes were lost, and a consumer may have received them.
        """
        seqno = self.changes.high_seqno if seqno is None else seqno
        self.failover_log = create_entry(self.failover_log, self._new_vbuuid(), seqno)
        self.index.purge_seqno = min(self.index.purge_seqno, seqno)
        self._log.write_note(self)

    def start_new_history(self) -> None:
        """Start a new history with the present changes: consumers of the old history restart from zero."""
        self.failover_log, self.feed = create_entry((), self._new_vbuuid(), 0), None
        self.index.purge_seqno, self.index.lowest_snapshot_end = 0, self.changes.high_seqno
        self.index.history_floor = self.changes.high_seqno
        self._log.write_note(self)

    def roll_back(self, seqno: int) -> int:
        """Roll back to `seqno`. Changes above it no longer count; changes that they superseded count again.

        The rollback ends at the last change up to `seqno`. It ends at 0, as `clear` does, if that change was dropped,
        or a version that must return was dropped. Takes time in proportion to the vbucket.

        Returns:
            The seqno at which it ended.
        """
        changes, index = self.changes, self.index
        self._log.make_room_for_note(self)
        cut = None
        if seqno < changes.high_seqno:
            end = index.find_floor(seqno)
            if seqno < index.lowest_snapshot_end or not end or end < min(seqno, index.purge_seqno):
                self.clear()
                return 0
            whole = self.whole_seqno
            changes.cut(seqno)
            self.prepares.recover()
            self._whole_seqno = whole if whole < changes.high_seqno else None
            cut = seqno
        self.failover_log = prune_log(self.failover_log, changes.high_seqno)
        if not self.failover_log:
            self.failover_log = create_entry((), self._new_vbuuid(), changes.high_seqno)
        self._log.write_note(self, cut)
        return changes.high_seqno

    # Notes

    def to_dict(self) -> dict[str, Any]:
        """Return the description that `restore` needs besides the changes."""
        index, state = self.index, self.changes.collection_state
        collections = {} if state is None else {"collections": state.to_dict()}
        snapshot = {} if self._whole_seqno is None else {"snapshot_end": self.snapshot_end}
        return {
            "vbucket": self.id,
            "state": self.state,
            "failover_log": self.failover_log,
            "purge_seqno": index.purge_seqno,
            "purged_rev_seqno": index.purged_rev_seqno,
            "lowest_snapshot_end": index.lowest_snapshot_end,
            "history_floor": index.history_floor,
            "whole_seqno": self._whole_seqno,
            "max_cas": self.changes.clock.last,
            "cuts": index.cuts,
            **snapshot,
            **collections,
            **self.prepares.to_dict(),
        }

    def restore(self, description: Mapping[str, Any]) -> None:
        """Restore the result of `to_dict`. It raises LookupError, TypeError or ValueError for any other content."""
        index = self.index
        self._set_state(VbucketState(description["state"]) if description["state"] is not None else None)
        self.failover_log = tuple(FailoverEntry(vbuuid, seqno) for vbuuid, seqno in description["failover_log"])
        self._whole_seqno = description["whole_seqno"]
        self.snapshot_end = description.get("snapshot_end", MAX_SEQNO)  # earlier logs do not have it
        self.changes.clock.observe(description["max_cas"])
        index.purge_seqno = description["purge_seqno"]
        index.purged_rev_seqno = description["purged_rev_seqno"]
        index.lowest_snapshot_end = description["lowest_snapshot_end"]
        index.history_floor = description.get(
            "history_floor", max(index.lowest_snapshot_end, index.purge_seqno)
        )  # earlier logs do not have it
        index.cuts = [(number, seqno) for number, seqno in description["cuts"]]
        found = CollectionState.from_dict(description["collections"]) if "collections" in description else None
        self.changes.collection_state = found
        self.prepares.restore(description)

    def start_from_index(self, items: int, max_cas: int) -> None:
        """Start with the changes in the index.

        Args:
            items: the number of documents.
            max_cas: the highest cas of the vbucket's changes.
        """
        self.changes.start_from_index(items, max_cas)
        self.prepares.recover()
        if (self._whole_seqno or 0) >= self.changes.high_seqno:  # a snapshot had begun, its first change was lost
            self._whole_seqno = None
        if self._whole_seqno is not None:  # the log ends in a snapshot, whose gaps are in no note
            self.index.history_floor = self.changes.high_seqno

    # Snapshots

    def begin_change(self, seqno: int, snapshot_end: int | None) -> None:
        """Record that the next change, at `seqno`, belongs to a snapshot that ends at `snapshot_end`.

        The note is written before the change. If the log ended between the two, the snapshot would seem complete.
        """
        if snapshot_end is None or seqno >= snapshot_end:
            return
        if self._whole_seqno is None or snapshot_end > self.snapshot_end:
            self._log.make_room_for_note(self)
            self._whole_seqno = self.whole_seqno
            self.snapshot_end = snapshot_end
            self._log.write_note(self)

    def end_change(self, snapshot_end: int | None, *, hides: bool = False) -> None:
        """Record that a snapshot is complete, if the newest change is its last one.

        Args:
            snapshot_end: the end of the snapshot; None: the change is a snapshot by itself.
            hides: as of `end_snapshot`.
        """
        if self._whole_seqno is None and not hides:
            return
        high_seqno = self.changes.high_seqno
        if snapshot_end is None or high_seqno >= snapshot_end:
            self._whole_seqno = None
            if hides:
                self.index.lowest_snapshot_end = max(self.index.lowest_snapshot_end, high_seqno)
            self._log.write_note(self)

    def end_snapshot(self, *, hides: bool) -> None:
        """Record that the snapshot is complete with the newest change.

        Args:
            hides: the snapshot left seqnos out, so it may lack versions that were current inside it. No snapshot may
                end there.
        """
        self._log.make_room_for_note(self)
        self._whole_seqno = None
        if hides:
            self.index.lowest_snapshot_end = max(self.index.lowest_snapshot_end, self.changes.high_seqno)
        self._log.write_note(self)

    def open_snapshot(self, start_seqno: int, end_seqno: int) -> Snapshot:
        """Return the changes after start_seqno up to end_seqno, as they are now. Later writes do not affect it.

        It ends at end_seqno, or at the next change if none has that number. It ends at lowest_snapshot_end if that is
        higher, at whole_seqno if that is lower. It is empty, and ends at start_seqno, if nothing lies between, or while
        lowest_snapshot_end is above whole_seqno.
        """
        index, whole = self.index, self.whole_seqno
        end = max(min(end_seqno, whole), index.lowest_snapshot_end)
        if end_seqno <= start_seqno or not start_seqno < end <= whole:
            end = start_seqno
        elif end < self.changes.high_seqno:
            end = index.find_ceiling(end)
        return Snapshot(index, start_seqno, end)
