"""The history of one vbucket: its states and branches, its changes, and the newest one of each key.

One thread at a time: nothing here locks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from penstock.store.clock import HybridClock
from penstock.store.failover import FailoverLog, create_entry, prune, sanitised
from penstock.store.index import RowIndex
from penstock.store.log import Log
from penstock.store.segment import Segment
from penstock.store.snapshot import Snapshot
from penstock.wire.constants import Opcode, VbucketState
from penstock.wire.dcp import DELETION_HEAD
from penstock.wire.frame import HEADER, HEADER_BYTES

__all__ = ["BODY", "CAS", "OPCODE", "REV_SEQNO", "History", "Newest"]

_MUTATION = int(Opcode.DCP_MUTATION)
_KEY_BYTES = 64 + 32  # of a key of 16 to 31 bytes

Newest = tuple[Segment | RowIndex, int, tuple[int, ...]]
"""The newest change of a key: its row, and its head up to rev_seqno, where deletions and mutations look the same."""

OPCODE, BODY, CAS, REV_SEQNO = 1, 6, 8, 10
"""Places in a head."""


class History:
    """What a Vbucket is beneath its documents.

    state: a VbucketState, None while it is deleted. failover_log: newest entry first. high_seqno: the newest change's,
    0 if there is none. purge_seqno: the highest seqno of a tombstone that was dropped. items: documents there are
    (deleted ones are not). changed: gets this vbucket's number when a document is found expired.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_index",
        "_log",
        "_new_vbuuid",
        "_newest",
        "_now",
        "_whole_seqno",
        "failover_log",
        "high_seqno",
        "id",
        "items",
        "purge_seqno",
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
        self.state: VbucketState | None = VbucketState.ACTIVE
        self.failover_log: FailoverLog = create_entry((), new_vbuuid(), 0)
        self._index = index
        self._log = log
        self._now = clock
        self._clock = HybridClock(clock)
        self._new_vbuuid = new_vbuuid
        self._changed = changed
        self._begin()

    def _begin(self) -> None:
        self.high_seqno = 0
        self.purge_seqno = 0
        self.items = 0
        self._newest: dict[bytes, int] = {}  # of every key the seqno of its newest change, tombstones included
        self._whole_seqno: int | None = None  # inside a snapshot: the end of the one before

    @property
    def vbuuid(self) -> int:
        """The branch of history that the vbucket is on."""
        return self.failover_log[0].vbuuid

    @property
    def max_cas(self) -> int:
        return self._clock.last

    @property
    def whole_seqno(self) -> int:
        """The end of the last complete snapshot: high_seqno, unless `apply` has begun one and not ended it."""
        return self.high_seqno if self._whole_seqno is None else self._whole_seqno

    @property
    def lowest_snapshot_end(self) -> int:
        """No snapshot ends below: it would have to show a version that has been dropped."""
        return self._index.lowest_snapshot_end

    @property
    def persisted_seqno(self) -> int:
        """Changes up to here survive a restart."""
        return self._log.persisted_seqno

    @property
    def index_bytes(self) -> int:
        """An estimate of what the keys occupy: their dict, and for each an object of bytes and one of its seqno."""
        return sys.getsizeof(self._newest) + _KEY_BYTES * len(self._newest)

    # States

    def set_state(self, state: VbucketState, *, takeover: bool = False) -> None:
        """Change the state. A vbucket that was deleted is there again, empty.

        Becoming active begins a new branch of history at the end of the last complete snapshot, unless this is a
        takeover: then the history of the vbucket's last owner goes on.
        """
        if state is VbucketState.ACTIVE and self.state is not VbucketState.ACTIVE:
            if self.state is not None and not takeover:
                self.failover_log = create_entry(self.failover_log, self._new_vbuuid(), self.whole_seqno)
            self._whole_seqno = None
        self.state = state

    def remove(self) -> None:
        """Delete the vbucket with all it holds; set_state brings it back, with a history of its own."""
        self.reset()
        self.state = None

    def reset(self) -> None:
        """Forget all documents and all history: seqnos begin at 1 again, on a new branch. The state stays."""
        self._index.clear()
        self._begin()
        self.failover_log = create_entry((), self._new_vbuuid(), 0)

    def set_failover_log(self, log: Iterable[tuple[int, int]]) -> None:
        """Take over the log of the vbucket that this one is a copy of; (vbuuid, seqno), newest first."""
        self.failover_log = sanitised(log) or create_entry((), self._new_vbuuid(), self.high_seqno)

    def rollback(self, seqno: int) -> int:
        """Go back to `seqno` and return how far that was. Nothing above counts any more; what it superseded is back.

        It ends at the last change up to `seqno`, and at 0, as `reset` does, where a version that would have to come
        back has been dropped. Takes time in proportion to the vbucket.
        """
        if seqno < self.high_seqno and (seqno < self.lowest_snapshot_end or not self._go_back(seqno)):
            self.reset()
            return 0
        self.failover_log = prune(self.failover_log, self.high_seqno)
        if not self.failover_log:
            self.failover_log = create_entry((), self._new_vbuuid(), self.high_seqno)
        return self.high_seqno

    def _go_back(self, seqno: int) -> bool:
        """Write the changes up to seqno anew, superseded ones included. False, and nothing done: there are none."""
        kept: list[tuple[int, int, memoryview]] = []
        for rows, row in self._index.rows_up_to(seqno):
            at = rows.offsets_at[row]
            frame = rows.buffer[at : at + rows.lengths_at[row]]
            superseded = rows.superseded_at[row]
            kept.append((rows.seqnos_at[row], superseded if superseded <= seqno else 0, frame))
        if not kept:
            return False
        lowest, purged, whole = self.lowest_snapshot_end, self.purge_seqno, self.whole_seqno
        self._index.clear()
        self._begin()
        self._index.lowest_snapshot_end = lowest
        self.purge_seqno = min(purged, seqno)
        for by_seqno, superseded, frame in kept:
            if self._log.end + len(frame) > self._log.limit:
                self._log.make_room(len(frame))
            _, opcode, key_length, extras_length, *_ = HEADER.unpack_from(frame)
            key = frame[HEADER_BYTES + extras_length :][:key_length].tobytes()
            self._append(key, by_seqno, frame)
            if superseded:
                self._index.superseded_at[-1] = superseded
                self._index.dead += len(frame)
            else:
                self.items += opcode == _MUTATION
        if whole < self.high_seqno:
            self._whole_seqno = whole
        return True

    def _whole_up_to(self, high: int, snapshot_end: int | None) -> None:
        """Take note that the newest change, the one after `high`, belongs to a snapshot that ends there."""
        if snapshot_end is None or self.high_seqno >= snapshot_end:
            self._whole_seqno = None
        elif self._whole_seqno is None:
            self._whole_seqno = high

    def end_snapshot(self, *, hides: bool) -> None:
        """Let the snapshot that `apply` is in be complete with the newest change.

        hides: it left seqnos out, so that it may lack versions that were current inside it: no snapshot ends there.
        """
        self._whole_seqno = None
        if hides:
            self._index.lowest_snapshot_end = max(self._index.lowest_snapshot_end, self.high_seqno)

    def snapshot(self, start_seqno: int, end_seqno: int) -> Snapshot:
        """Return the changes after start_seqno up to end_seqno, as they are now, whatever is written later.

        It ends at end_seqno; at the next change if there is none of that number; at lowest_snapshot_end if that is
        higher; at whole_seqno if that is lower. It is empty, and ends at start_seqno, if nothing lies between, or
        while lowest_snapshot_end is above whole_seqno.
        """
        whole = self.whole_seqno
        end = max(min(end_seqno, whole), self._index.lowest_snapshot_end)
        if end_seqno <= start_seqno or not start_seqno < end <= whole:
            end = start_seqno
        elif end < self.high_seqno:
            end = self._index.ceiling(end)
        return Snapshot(self._index, start_seqno, end)

    # Changes

    def _find(self, key: bytes, nbytes: int) -> Newest | None:
        """Return the newest change of a key. A frame of nbytes can be appended before any row moves."""
        log = self._log
        if log.end + nbytes > log.limit:
            log.make_room(nbytes)
        seqno = self._newest.get(key)
        if seqno is None or (found := self._index.find(seqno)) is None:
            return None
        rows, row = found
        return rows, row, DELETION_HEAD.unpack_from(rows.buffer, rows.offsets_at[row])

    def _commit(self, old: Newest | None, key: bytes, seqno: int, frame: bytes) -> None:
        """Write the frame of a change, which supersedes the old one."""
        if frame[OPCODE] == _MUTATION:
            self.items += 1
        if old is not None:
            rows, row, head = old
            rows.superseded_at[row] = seqno
            rows.dead += HEADER_BYTES + head[BODY]
            if head[OPCODE] == _MUTATION:
                self.items -= 1
        self._append(key, seqno, frame)

    def _append(self, key: bytes, seqno: int, frame: bytes | memoryview) -> None:
        index = self._index
        if seqno > self.high_seqno + 1:
            index.gaps = True
        index.offsets_at.append(self._log.append(frame))
        index.lengths_at.append(len(frame))
        index.superseded_at.append(0)
        index.seqnos_at.append(seqno)
        self._newest[key] = self.high_seqno = seqno
