"""The history of one vbucket: its states and branches, and which of its snapshots are complete.

One thread at a time: nothing here locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from penstock.store.history.collection_state import CollectionState
from penstock.store.history.failover_log import FailoverEntry, FailoverLog, create_entry, prune, sanitised
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.vbucket_changes import REFUSED, VbucketChanges
from penstock.wire.codec.constants import VbucketState

__all__ = ["History"]


class History:
    """The states and branches of a vbucket. The log has a note of each change of them.

    Attributes:
        changes: the vbucket's changes.
        state: a VbucketState, None while the vbucket is deleted.
        failover_log: newest entry first.
    """

    __slots__ = ("_log", "_new_vbuuid", "_whole_seqno", "changes", "failover_log", "id", "index", "state")

    def __init__(self, changes: VbucketChanges, *, new_vbuuid: Callable[[], int]) -> None:
        self.id = changes.id
        self.index = changes.index
        self.changes = changes
        self.state: VbucketState | None = VbucketState.ACTIVE
        self.failover_log: FailoverLog = create_entry((), new_vbuuid(), 0)
        self._log = changes.log
        self._new_vbuuid = new_vbuuid
        self._whole_seqno: int | None = None  # inside a snapshot: the end of the one before

    @property
    def vbuuid(self) -> int:
        """The branch of history that the vbucket is on."""
        return self.failover_log[0].vbuuid

    @property
    def whole_seqno(self) -> int:
        """The end of the last complete snapshot: high_seqno, unless one has begun that has not ended."""
        return self.changes.high_seqno if self._whole_seqno is None else self._whole_seqno

    @property
    def persisted_seqno(self) -> int:
        """Changes up to here are as safe as this bucket can make them: on disk, or stored where there is no disk."""
        persisted = self._log.persisted(self.index)
        return self.changes.high_seqno if persisted is None else persisted

    def set_max_cas(self, cas: int) -> None:
        """Let the cas of every later change be above this one. It never goes down."""
        self._log.make_room_for_note(self)
        self.changes.clock.see(cas)
        self._log.note(self)

    # States

    def enter_state(self, state: VbucketState, *, takeover: bool = False) -> None:
        """Change the state. A vbucket that was deleted is there again, empty.

        Becoming active begins a new branch of history at the end of the last complete snapshot, unless this is a
        takeover: then the history of the vbucket's last owner goes on.
        """
        self._log.make_room_for_note(self)
        if state is VbucketState.ACTIVE and self.state is not VbucketState.ACTIVE:
            if self.state is not None and not takeover:
                self.failover_log = create_entry(self.failover_log, self._new_vbuuid(), self.whole_seqno)
            self._whole_seqno = None
        self.state = state
        self._log.note(self)

    def clear(self, *, removes: bool = False) -> None:
        """Forget all changes and branches: seqnos begin at 1 again, on a new branch.

        removes: the vbucket is deleted, too.
        """
        self._log.make_room_for_note(self)
        if removes:
            self.state = None
        self.changes.clear()
        self._whole_seqno = None
        self.failover_log = create_entry((), self._new_vbuuid(), 0)
        self._log.note(self, cut=0)

    def try_catch_up(self) -> None:
        """Let an active vbucket write what it lacks of the bucket's manifest; while the log takes nothing, later."""
        if self.state is VbucketState.ACTIVE:
            with suppress(*REFUSED):
                self.changes.catch_up(self.id)

    # Branches

    def set_failover_log(self, log: Iterable[tuple[int, int]]) -> None:
        """Take over the log of the vbucket that this one is a copy of; (vbuuid, seqno), newest first."""
        self._log.make_room_for_note(self)
        self.failover_log = sanitised(log) or create_entry((), self._new_vbuuid(), self.changes.high_seqno)
        self._log.note(self)

    def begin_branch(self, seqno: int | None = None) -> None:
        """Begin a branch at a change, None: the newest: later ones were lost, and a consumer may have seen them."""
        seqno = self.changes.high_seqno if seqno is None else seqno
        self.failover_log = create_entry(self.failover_log, self._new_vbuuid(), seqno)
        self.index.purge_seqno = min(self.index.purge_seqno, seqno)
        self._log.note(self)

    def start_new_history(self) -> None:
        """Start a new history with the changes that are there: consumers of the old one restart from zero."""
        self.failover_log = create_entry((), self._new_vbuuid(), 0)
        self.index.purge_seqno, self.index.lowest_snapshot_end = 0, self.changes.high_seqno
        self._log.note(self)

    def go_back(self, seqno: int) -> int:
        """Go back to `seqno` and return how far that was. Nothing above counts any more; what it superseded is back.

        It ends at the last change up to `seqno`, and at 0, as `clear` does, where a version that would have to come
        back has been dropped, or that last change itself. Takes time in proportion to the vbucket.
        """
        changes, index = self.changes, self.index
        self._log.make_room_for_note(self)
        cut = None
        if seqno < changes.high_seqno:
            end = index.floor(seqno)
            if seqno < index.lowest_snapshot_end or not end or end < min(seqno, index.purge_seqno):
                self.clear()
                return 0
            whole = self.whole_seqno
            changes.cut(seqno)
            self._whole_seqno = whole if whole < changes.high_seqno else None
            cut = seqno
        self.failover_log = prune(self.failover_log, changes.high_seqno)
        if not self.failover_log:
            self.failover_log = create_entry((), self._new_vbuuid(), changes.high_seqno)
        self._log.note(self, cut)
        return changes.high_seqno

    # Notes

    def described(self) -> dict[str, Any]:
        """Return what `restore` needs besides the changes."""
        index, state = self.index, self.changes.collection_state
        collections = {} if state is None else {"collections": state.described()}
        return {
            "vbucket": self.id,
            "state": self.state,
            "failover_log": self.failover_log,
            "purge_seqno": index.purge_seqno,
            "purged_rev_seqno": index.purged_rev_seqno,
            "lowest_snapshot_end": index.lowest_snapshot_end,
            "whole_seqno": self._whole_seqno,
            "max_cas": self.changes.clock.last,
            "cuts": index.cuts,
            **collections,
        }

    def restore(self, said: Mapping[str, Any]) -> None:
        """Take what `described` returned. Raises LookupError, TypeError or ValueError for something else."""
        index = self.index
        self.state = VbucketState(said["state"]) if said["state"] is not None else None
        self.failover_log = tuple(FailoverEntry(vbuuid, seqno) for vbuuid, seqno in said["failover_log"])
        self._whole_seqno = said["whole_seqno"]
        self.changes.clock.see(said["max_cas"])
        index.purge_seqno = said["purge_seqno"]
        index.purged_rev_seqno = said["purged_rev_seqno"]
        index.lowest_snapshot_end = said["lowest_snapshot_end"]
        index.cuts = [(number, seqno) for number, seqno in said["cuts"]]
        found = CollectionState.restored(said["collections"]) if "collections" in said else None
        self.changes.collection_state = found

    def settle(self, items: int, max_cas: int) -> None:
        """Begin where the index says. items: documents there are. max_cas: the highest of the vbucket's changes."""
        self.changes.settle(items, max_cas)
        if (self._whole_seqno or 0) >= self.changes.high_seqno:  # a snapshot had begun, its first change was lost
            self._whole_seqno = None

    # Snapshots

    def begin_change(self, seqno: int, snapshot_end: int | None) -> None:
        """Take note that the change to come, at `seqno`, belongs to a snapshot that ends there.

        Before it is written: if the log ended between the two, its snapshot would seem to be complete.
        """
        if snapshot_end is not None and seqno < snapshot_end and self._whole_seqno is None:
            self._log.make_room_for_note(self)
            self._whole_seqno = self.changes.high_seqno
            self._log.note(self)

    def end_change(self, snapshot_end: int | None) -> None:
        """Take note, if the newest change is the last one of its snapshot, that this is complete."""
        if self._whole_seqno is not None and (snapshot_end is None or self.changes.high_seqno >= snapshot_end):
            self._whole_seqno = None
            self._log.note(self)

    def end_snapshot(self, *, hides: bool) -> None:
        """Let the snapshot that has begun be complete with the newest change.

        hides: it left seqnos out, so that it may lack versions that were current inside it: no snapshot ends there.
        """
        self._log.make_room_for_note(self)
        self._whole_seqno = None
        if hides:
            self.index.lowest_snapshot_end = max(self.index.lowest_snapshot_end, self.changes.high_seqno)
        self._log.note(self)

    def snapshot(self, start_seqno: int, end_seqno: int) -> Snapshot:
        """Return the changes after start_seqno up to end_seqno, as they are now, whatever is written later.

        It ends at end_seqno; at the next change if there is none of that number; at lowest_snapshot_end if that is
        higher; at whole_seqno if that is lower. It is empty, and ends at start_seqno, if nothing lies between, or
        while lowest_snapshot_end is above whole_seqno.
        """
        index, whole = self.index, self.whole_seqno
        end = max(min(end_seqno, whole), index.lowest_snapshot_end)
        if end_seqno <= start_seqno or not start_seqno < end <= whole:
            end = start_seqno
        elif end < self.changes.high_seqno:
            end = index.ceiling(end)
        return Snapshot(index, start_seqno, end)

    def collection_highs(self) -> tuple[int, ...]:
        """Return the seqno of the newest change of each collection. Called from any thread."""
        state = self.changes.collection_state
        return () if state is None else tuple(state.highs.values())  # the tuple is made at one moment
