"""The history of one vbucket: its states and branches, its changes, and the newest one of each key.

One thread at a time: nothing here locks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np

from penstock.store.history.collection_state import Ledger
from penstock.store.history.failover_log import FailoverEntry, FailoverLog, create_entry, prune, sanitised
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.hybrid_clock import HybridClock
from penstock.store.log.change_log import Log
from penstock.store.log.frame_fields import is_mutation
from penstock.store.log.key_search import UnloadedKeys
from penstock.store.log.key_table import KeyTable
from penstock.store.log.long_frame import Frame
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Segment
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import DELETION_HEAD

__all__ = [
    "BODY",
    "CAS",
    "DATATYPE",
    "EXTRAS_LENGTH",
    "KEY_LENGTH",
    "OPCODE",
    "REV_SEQNO",
    "History",
    "Newest",
]

_MUTATION = int(Opcode.DCP_MUTATION)
_ALIGNED = 16  # bytes, to which objects are rounded up
_INT_BYTES = 32
_FREED_PER_ROW = 4  # keys that are freed in the time in which one is read

Newest = tuple[Segment | RowIndex, int, tuple[int, ...]]
"""The newest change of a key: its row, and its head up to rev_seqno, where deletions and mutations look the same."""

OPCODE, KEY_LENGTH, EXTRAS_LENGTH, DATATYPE, BODY, CAS, REV_SEQNO = 1, 2, 3, 4, 6, 8, 10
"""Places in a head."""


class History:
    """What a Vbucket is beneath its documents.

    state: a VbucketState, None while it is deleted. failover_log: newest entry first. high_seqno: the newest change's,
    0 if there is none. items: documents there are (deleted ones are not, nor are system events). changed: gets this
    vbucket's number when a change comes that nobody has asked for. conflict_resolution: as in Settings.
    behind: the vbucket has yet to write system events of the bucket's manifest, in front of any other change.
    catch_up: writes them; called with the vbucket's number when it is active and may lack some.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_ledger",
        "_log",
        "_new_vbuuid",
        "_newest",
        "_now",
        "_whole_seqno",
        "behind",
        "catch_up",
        "conflict_resolution",
        "failover_log",
        "high_seqno",
        "id",
        "index",
        "items",
        "state",
    )

    def __init__(
        self,
        index: RowIndex,
        log: Log,
        *,
        clock: Callable[[], int],
        new_vbuuid: Callable[[], int],
        changed: set[int],
    ) -> None:
        self.id = index.vbucket
        self.conflict_resolution = "seqno"
        self.state: VbucketState | None = VbucketState.ACTIVE
        self.failover_log: FailoverLog = create_entry((), new_vbuuid(), 0)
        self.index = index
        self._log = log
        self._now = clock
        self._clock = HybridClock(clock)
        self._new_vbuuid = new_vbuuid
        self._changed = changed
        self.behind = False
        self.catch_up: Callable[[int], None] = lambda _: None
        # Of every key the seqno of its newest change, tombstones included.
        self._newest: MutableMapping[bytes, int] = {}
        self._begin()

    def _begin(self) -> None:
        self.high_seqno = 0
        self.items = 0
        stale = self._stale_keys()
        self._newest = {} if stale is None else KeyTable(stale)
        self._whole_seqno: int | None = None  # inside a snapshot: the end of the one before
        self._ledger: Ledger | None = None  # from the first system event on

    @property
    def vbuuid(self) -> int:
        """The branch of history that the vbucket is on."""
        return self.failover_log[0].vbuuid

    @property
    def max_cas(self) -> int:
        return self._clock.last

    def set_max_cas(self, cas: int) -> None:
        """Let the cas of every later change be above this one. It never goes down."""
        self._log.make_room_for_note(self)
        self._clock.see(cas)
        self._log.note(self)

    @property
    def whole_seqno(self) -> int:
        """The end of the last complete snapshot: high_seqno, unless `apply` has begun one and not ended it."""
        return self.high_seqno if self._whole_seqno is None else self._whole_seqno

    @property
    def lowest_snapshot_end(self) -> int:
        """No snapshot ends below: it would have to show a version that has been dropped."""
        return self.index.lowest_snapshot_end

    @property
    def purge_seqno(self) -> int:
        """The highest seqno of a tombstone that was dropped."""
        return self.index.purge_seqno

    @property
    def ledger(self) -> Ledger | None:
        """What it knows of its collections; None as long as no system event has said anything of them."""
        return self._ledger

    def doubt(self) -> None:
        """Take note that what it knows of its collections may not be what its changes say."""
        self._ledger = self._ledger or Ledger({})
        self._ledger.uid = None

    @property
    def persisted_seqno(self) -> int:
        """Changes up to here are as safe as this bucket can make them: on disk, or stored where there is no disk."""
        persisted = self._log.persisted(self.index)
        return self.high_seqno if persisted is None else persisted

    @property
    def index_bytes(self) -> int:
        """An estimate of what the keys occupy: their dict, and for each an object as long as the first, and an int."""
        newest = self._newest
        a_key = sys.getsizeof(next(iter(newest), b""))
        a_key += -a_key % _ALIGNED
        return sys.getsizeof(newest) + (a_key + _INT_BYTES) * len(newest)

    # States

    def set_state(self, state: VbucketState, *, takeover: bool = False) -> None:
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

    def remove(self) -> None:
        """Delete the vbucket with all it holds; set_state brings it back, with a history of its own."""
        self._log.make_room_for_note(self)
        self.state = None
        self._reset()

    def reset(self) -> None:
        """Forget all documents and all history: seqnos begin at 1 again, on a new branch. The state stays."""
        self._log.make_room_for_note(self)
        self._reset()

    def _reset(self) -> None:
        self.index.cut(0)
        self._begin()
        self.failover_log = create_entry((), self._new_vbuuid(), 0)
        self._log.note(self, cut=0)

    def set_failover_log(self, log: Iterable[tuple[int, int]]) -> None:
        """Take over the log of the vbucket that this one is a copy of; (vbuuid, seqno), newest first."""
        self._log.make_room_for_note(self)
        self.failover_log = sanitised(log) or create_entry((), self._new_vbuuid(), self.high_seqno)
        self._log.note(self)

    def restore(self, said: Mapping[str, Any]) -> None:
        """Take what `described` returned. Raises LookupError, TypeError or ValueError for something else."""
        self.state = VbucketState(said["state"]) if said["state"] is not None else None
        self.failover_log = tuple(FailoverEntry(vbuuid, seqno) for vbuuid, seqno in said["failover_log"])
        self._whole_seqno = said["whole_seqno"]
        self._clock.see(said["max_cas"])
        self.index.purge_seqno = said["purge_seqno"]
        self.index.purged_rev_seqno = said["purged_rev_seqno"]
        self.index.lowest_snapshot_end = said["lowest_snapshot_end"]
        self.index.cuts = [(number, seqno) for number, seqno in said["cuts"]]
        self._ledger = Ledger.restored(said["collections"]) if "collections" in said else None

    def see_cas(self, cas: int) -> None:
        """Let the cas of every later change be above this one, which the log has."""
        self._clock.see(cas)

    def rollback(self, seqno: int) -> int:
        """Go back to `seqno` and return how far that was. Nothing above counts any more; what it superseded is back.

        It ends at the last change up to `seqno`, and at 0, as `reset` does, where a version that would have to come
        back has been dropped, or that last change itself. Takes time in proportion to the vbucket.
        """
        self._log.make_room_for_note(self)
        cut = None
        if seqno < self.high_seqno:
            end = self.index.floor(seqno)
            if seqno < self.lowest_snapshot_end or not end or end < min(seqno, self.purge_seqno):
                self._reset()
                return 0
            self._go_back(seqno)
            cut = seqno
        self.failover_log = prune(self.failover_log, self.high_seqno)
        if not self.failover_log:
            self.failover_log = create_entry((), self._new_vbuuid(), self.high_seqno)
        self._log.note(self, cut)
        return self.high_seqno

    def _go_back(self, seqno: int) -> None:
        whole = self.whole_seqno
        self.index.cut(seqno)
        self.high_seqno = self.index.last_seqno
        self._whole_seqno = whole if whole < self.high_seqno else None
        self._newest = UnloadedKeys(self.index, self.take_keys, self._stale_keys())
        self._count_documents()

    def _stale_keys(self) -> KeyTable | None:
        """Return the keys that are there, if to free them at once takes long."""
        newest = self._newest.found if isinstance(self._newest, UnloadedKeys) else self._newest
        return newest if isinstance(newest, KeyTable) else None

    def load_keys(self) -> None:
        """Read from the frames which keys there are, and where. Takes time in proportion to the vbucket."""
        UnloadedKeys(self.index, self.take_keys).load()
        self._count_documents()

    def _count_documents(self) -> None:
        if self._ledger is None:
            self.items = sum(int(np.count_nonzero(is_mutation(buffer, at))) for buffer, at, _ in self.index.live())
        else:
            self._ledger, self.items = Ledger.read(self.index, self._ledger)

    @property
    def key_count(self) -> int:
        """How many keys there are, those of tombstones and system events included. May have to load them."""
        return len(self.loaded_keys())

    def forget_key(self, key: bytes, seqno: int) -> None:
        """Forget a key whose newest change is the one at `seqno`, which was dropped."""
        if seqno > self.high_seqno or self.index.find(seqno) is not None:
            return  # the vbucket has been emptied or rolled back since, and counts these seqnos again
        if self._ledger is not None:
            self._ledger.forget(key, seqno)
        if not isinstance(self._newest, UnloadedKeys) and self._newest.get(key) == seqno:
            del self._newest[key]

    def load_some_keys(self) -> int:
        """Go on with keys that were left to be loaded or freed; returns how many rows that took, 0: nothing is left."""
        if isinstance(self._newest, KeyTable):
            return -(-self._newest.free_some() // _FREED_PER_ROW)
        return self._newest.load_some() if isinstance(self._newest, UnloadedKeys) else 0

    def loaded_keys(self) -> Mapping[bytes, int]:
        """Return of every key the seqno of its newest change, tombstones and system events included."""
        return self._newest.load() if isinstance(self._newest, UnloadedKeys) else self._newest

    def take_keys(self, newest: MutableMapping[bytes, int]) -> None:
        self._newest = newest

    def settle(self, items: int, max_cas: int) -> None:
        """Begin where the index says; the keys come when they are needed. max_cas: the highest of its changes."""
        self.high_seqno = self.index.last_seqno
        if (self._whole_seqno or 0) >= self.high_seqno:  # a snapshot had begun, and its first change was lost
            self._whole_seqno = None
        self.items = items
        self._clock.see(max_cas)
        self._newest = UnloadedKeys(self.index, self.take_keys)
        if self._ledger is not None and self._ledger.seqno > self.high_seqno:  # the event was lost, the note was not
            self._ledger.uid = None

    def begin_branch(self, seqno: int | None = None) -> None:
        """Begin a branch at a change, None: the newest: what came behind it may have been seen, and was lost."""
        seqno = self.high_seqno if seqno is None else seqno
        self.failover_log = create_entry(self.failover_log, self._new_vbuuid(), seqno)
        self.index.purge_seqno = min(self.index.purge_seqno, seqno)
        self._log.note(self)

    def begin_anew(self) -> None:
        """Begin another history with what is there: whoever has followed this one starts over."""
        self.failover_log = create_entry((), self._new_vbuuid(), 0)
        self.index.purge_seqno, self.index.lowest_snapshot_end = 0, self.high_seqno
        self._log.note(self)

    def collection_highs(self) -> tuple[int, ...]:
        """Return the seqno of the newest change of each collection. Called from any thread."""
        return () if self._ledger is None else tuple(self._ledger.highs.values())  # the tuple is made at one moment

    def described(self) -> dict[str, Any]:
        """Return what `restore` needs besides the changes."""
        collections = {} if self._ledger is None else {"collections": self._ledger.described()}
        return {
            "vbucket": self.id,
            "state": self.state,
            "failover_log": self.failover_log,
            "purge_seqno": self.index.purge_seqno,
            "purged_rev_seqno": self.index.purged_rev_seqno,
            "lowest_snapshot_end": self.index.lowest_snapshot_end,
            "whole_seqno": self._whole_seqno,
            "max_cas": self._clock.last,
            "cuts": self.index.cuts,
            **collections,
        }

    def _begin_change(self, seqno: int, snapshot_end: int | None) -> None:
        """Take note that the change to come, at `seqno`, belongs to a snapshot that ends there.

        Before it is written: if the log ended between the two, its snapshot would seem to be complete.
        """
        if snapshot_end is not None and seqno < snapshot_end and self._whole_seqno is None:
            self._log.make_room_for_note(self)
            self._whole_seqno = self.high_seqno
            self._log.note(self)

    def _end_change(self, snapshot_end: int | None) -> None:
        """Take note, if the newest change is the last one of its snapshot, that this is complete."""
        if self._whole_seqno is not None and (snapshot_end is None or self.high_seqno >= snapshot_end):
            self._whole_seqno = None
            self._log.note(self)

    def end_snapshot(self, *, hides: bool) -> None:
        """Let the snapshot that `apply` is in be complete with the newest change.

        hides: it left seqnos out, so that it may lack versions that were current inside it: no snapshot ends there.
        """
        self._log.make_room_for_note(self)
        self._whole_seqno = None
        if hides:
            self.index.lowest_snapshot_end = max(self.index.lowest_snapshot_end, self.high_seqno)
        self._log.note(self)

    def snapshot(self, start_seqno: int, end_seqno: int) -> Snapshot:
        """Return the changes after start_seqno up to end_seqno, as they are now, whatever is written later.

        It ends at end_seqno; at the next change if there is none of that number; at lowest_snapshot_end if that is
        higher; at whole_seqno if that is lower. It is empty, and ends at start_seqno, if nothing lies between, or
        while lowest_snapshot_end is above whole_seqno.
        """
        whole = self.whole_seqno
        end = max(min(end_seqno, whole), self.index.lowest_snapshot_end)
        if end_seqno <= start_seqno or not start_seqno < end <= whole:
            end = start_seqno
        elif end < self.high_seqno:
            end = self.index.ceiling(end)
        return Snapshot(self.index, start_seqno, end)

    # Changes

    def _find(self, key: bytes, nbytes: int, frees: bool = False) -> Newest | None:
        """Return the newest change of a key. A frame of nbytes can be appended before any row moves.

        frees: as of LogRoom.make; only where the key has a document.
        """
        if self.behind:
            self.catch_up(self.id)
        segments = self._log.segments
        if segments.active.end + nbytes > segments.active.limit:
            self._log.room.make(nbytes, frees=frees and self._newest.get(key) is not None)
        seqno = self._newest.get(key)
        if seqno is None or (found := self.index.find(seqno)) is None:
            return None
        rows, row = found
        return rows, row, DELETION_HEAD.unpack_from(rows.buffer, rows.offsets_at[row])

    def _commit(self, old: Newest | None, key: bytes, seqno: int, frame: Frame) -> None:
        """Write the frame of a change, which supersedes the old one."""
        if frame[OPCODE] == _MUTATION:
            self.items += 1
        supersedes = 0
        index = self.index
        if old is not None:
            rows, row, head = old
            supersedes = rows.seqnos_at[row]
            rows.superseded_at[row] = seqno
            rows.dead += HEADER_BYTES + head[BODY]
            if head[OPCODE] == _MUTATION:
                self.items -= 1
        if seqno > self.high_seqno + 1:
            index.gaps = True
        index.offsets_at.append(self._log.segments.active.append(frame, supersedes))
        index.lengths_at.append(len(frame))
        index.superseded_at.append(0)
        index.seqnos_at.append(seqno)
        self._newest[key] = self.high_seqno = seqno
        if self._ledger is not None:
            was = old is not None and old[2][OPCODE] == _MUTATION
            self._ledger.count(key, seqno, (frame[OPCODE] == _MUTATION) - was)
