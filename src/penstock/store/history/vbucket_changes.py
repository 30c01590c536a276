"""The changes of one vbucket: finds the newest change of each key, and writes the next change.

One thread at a time: there are no locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, MutableMapping

import numpy as np

from penstock.errors import OutOfMemory, TemporaryFailure
from penstock.store.history.collection_state import CollectionState
from penstock.store.history.hybrid_clock import HybridClock
from penstock.store.history.vbucket_keys import VbucketKeys
from penstock.store.log.change_log import Log
from penstock.store.log.frame_fields import mask_mutations
from penstock.store.log.logged_frames import Frame, FrameRun
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Segment
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import DELETION_HEAD
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

_MUTATION = int(Opcode.DCP_MUTATION)
_FIRST_HIGHS = {DEFAULT_COLLECTION: 1}

REFUSED = (TemporaryFailure, OutOfMemory)
"""The errors that the log raises while it refuses changes."""

# A plain tuple. A NamedTuple takes 0.15 to 0.25 us more to make, a slots class 0.1 to 0.2 us and more for each access.
# That is 3 to 8 % of a SET of a present key.
Newest = tuple[Segment | RowIndex, int, tuple[int, ...]]
"""The newest change of a key: its row, and its head up to rev_seqno, where deletions and mutations look the same."""

OPCODE, KEY_LENGTH, EXTRAS_LENGTH, DATATYPE, BODY, CAS, REV_SEQNO = 1, 2, 3, 4, 6, 8, 10
"""Places in a head."""


class VbucketChanges:
    """The changes of a vbucket in the log of its bucket.

    Attributes:
        id: the vbucket's number.
        index: the rows of the changes.
        log: the bucket's log.
        high_seqno: the seqno of the newest change, 0 if there is none.
        items: the number of documents, without tombstones and system events.
        newest: for every key the seqno of its newest change. It is here because every command looks it up: one more
            object on the way costs a tenth of a GET with many vbuckets.
        keys: loads, counts and forgets these keys.
        clock: gives each change its cas.
        now: returns nanoseconds since the epoch.
        collection_state: the counts of each collection; None until the first system event.
        changed: receives the vbucket's number when the store writes a change that no client requested.
        is_behind: the vbucket must write system events of the bucket's manifest before any other change.
        catch_up: writes them. It is called with the vbucket's number when an active vbucket may lack some.
        refusal: the reason why the vbucket accepts no changes for the moment; empty if it does.
    """

    __slots__ = (
        "_segments",
        "catch_up",
        "changed",
        "clock",
        "collection_state",
        "high_seqno",
        "id",
        "index",
        "is_behind",
        "items",
        "keys",
        "log",
        "newest",
        "now",
        "refusal",
    )

    def __init__(self, index: RowIndex, log: Log, *, clock: Callable[[], int], changed: set[int] | None = None) -> None:
        self.id = index.vbucket
        self.index = index
        self.log = log
        self._segments = log.segments
        self.now = clock
        self.clock = HybridClock(clock)
        self.newest: MutableMapping[bytes, int] = {}
        self.keys = VbucketKeys(index, self)
        self.changed: set[int] = set() if changed is None else changed
        self.is_behind = False
        self.catch_up: Callable[[int], None] = lambda _: None
        self.refusal = ""
        self.high_seqno = 0
        self.items = 0
        self.collection_state: CollectionState | None = None  # from the first system event on

    @property
    def is_unused(self) -> bool:
        """Whether there are no changes but the system event with which a bucket with change history begins."""
        state = self.collection_state
        begins = state is not None and self.high_seqno == 1 and state.seqno == 1 and state.highs == _FIRST_HIGHS
        return not self.high_seqno or begins

    def find(self, key: bytes, nbytes: int, frees: bool = False) -> Newest | None:
        """Return the newest change of a key. A frame of nbytes can be appended before any row moves.

        Args:
            key: the key.
            nbytes: bytes of the frame to append.
            frees: as of LogRoom.make_room; it applies only if the key has a document.

        Raises:
            TemporaryFailure: the vbucket or the log accepts no changes; OutOfMemory likewise.
        """
        if self.is_behind:
            self.catch_up(self.id)
        if self.refusal:
            self.check_refusal()
        segments = self._segments
        newest = self.newest
        if segments.active.end + nbytes > segments.active.limit:
            self.log.room.make_room(nbytes, frees=frees and newest.get(key) is not None)
            newest = self.newest
        seqno = newest.get(key)
        if seqno is None or (found := self.index.find(seqno)) is None:
            return None
        rows, row = found
        return rows, row, DELETION_HEAD.unpack_from(rows.buffer, rows.offsets_at[row])

    def check_refusal(self) -> None:
        """Check that the vbucket accepts changes.

        Raises:
            TemporaryFailure: it does not, for the moment.
        """
        if self.refusal:
            raise TemporaryFailure(f"vbucket {self.id}: {self.refusal}", vbucket=self.id)

    def look_up(self, key: bytes) -> Newest | None:
        """Return the newest change of a key, for reading only."""
        seqno = self.newest.get(key)
        return None if seqno is None else self.look_up_seqno(seqno)

    def look_up_seqno(self, seqno: int) -> Newest | None:
        """Return the change at a seqno, which must not be above the highest one; None if there is none."""
        if (found := self.index.find(seqno)) is None:
            return None
        rows, row = found
        return rows, row, DELETION_HEAD.unpack_from(rows.buffer, rows.offsets_at[row])

    def commit(self, old: Newest | None, key: bytes, seqno: int, frame: Frame) -> None:
        """Append the frame of a change, which supersedes the old one."""
        if frame[OPCODE] == _MUTATION:
            self.items += 1
        supersedes = 0
        index = self.index
        if old is not None:
            rows, row, head = old
            supersedes = rows.seqnos_at[row]
            rows.superseded_at[row] = seqno
            rows.dead_bytes += HEADER_BYTES + head[BODY]
            if head[OPCODE] == _MUTATION:
                self.items -= 1
        if seqno > self.high_seqno + 1:
            index.begin_gap(seqno)
        index.offsets_at.append(self._segments.active.append(frame, supersedes))
        index.lengths_at.append(len(frame))
        index.superseded_at.append(0)
        index.seqnos_at.append(seqno)
        self.newest[key] = self.high_seqno = seqno
        if self.collection_state is not None:
            was = old is not None and old[2][OPCODE] == _MUTATION
            self.collection_state.count_change(key, seqno, (frame[OPCODE] == _MUTATION) - was)

    # Many at once

    def commit_run(self, run: FrameRun) -> None:
        """Append the frames of changes, which supersede the older changes of their keys.

        Args:
            run: the changes. If the log refuses one, those before it are stored.

        Raises:
            TemporaryFailure: the log refuses a change; OutOfMemory likewise.
        """
        segments = self._segments
        while run.change_count:
            room = segments.active.limit - segments.active.end
            fitting = run.count_fitting(room, segments.active.overhead)
            if not fitting:
                frees = not run.is_mutation[0] and self.newest.get(run.keys[0]) is not None
                self.log.room.make_room(int(run.lengths[0]), frees=frees)
                fitting = max(
                    1, run.count_fitting(segments.active.limit - segments.active.end, segments.active.overhead)
                )
            self._commit_fitting(run.cut(0, fitting))
            run = run.cut(fitting, run.change_count)

    def _commit_fitting(self, run: FrameRun) -> None:
        """Append changes for which there is room."""
        index, count, lengths = self.index, run.change_count, run.lengths
        was_there, supersedes, superseded = (np.zeros(count, np.int64) for _ in range(3))
        numbers: list[int] = run.seqnos.tolist()
        for place, (key, seqno) in enumerate(zip(run.keys, numbers, strict=True)):
            old = self.newest.get(key)  # a look-up may end the loading of the keys, which replaces `newest`
            self.newest[key] = seqno
            if old is None:
                continue
            if old >= numbers[0]:
                replaced = bisect_left(numbers, old)
                superseded[replaced] = seqno
                index.dead_bytes += int(lengths[replaced])
                was_there[place] = run.is_mutation[replaced]
            elif (found := index.find(old)) is not None:
                rows, row = found
                rows.superseded_at[row] = seqno
                rows.dead_bytes += rows.lengths_at[row]
                was_there[place] = rows.buffer[rows.offsets_at[row] + OPCODE] == _MUTATION
            else:
                continue
            supersedes[place] = old
        items = run.is_mutation - was_there
        self.items += int(items.sum())
        gaps = np.flatnonzero(np.diff(run.seqnos, prepend=self.high_seqno) > 1)
        if len(gaps):
            index.begin_gap(numbers[gaps[-1]])
        offsets = self._segments.active.append_run(run, supersedes)
        index.append_rows(run.seqnos, offsets, lengths, superseded)
        self.high_seqno = numbers[-1]
        if self.collection_state is not None:
            self.collection_state.count_run(run, items)

    def clear(self) -> None:
        """Remove all changes."""
        self.index.cut(0)
        self.high_seqno = 0
        self.items = 0
        self.keys.clear()
        self.collection_state = None

    def cut(self, seqno: int) -> None:
        """Remove the changes above `seqno`; changes that they superseded count again."""
        self.index.cut(seqno)
        self.high_seqno = self.index.last_seqno
        self.keys.unload()
        self._count_documents()

    def start_from_index(self, items: int, max_cas: int) -> None:
        """Start with the changes in the index. The keys are loaded later.

        Args:
            items: the number of documents.
            max_cas: the highest cas of the changes.
        """
        self.high_seqno = self.index.last_seqno
        self.items = items
        self.clock.observe(max_cas)
        self.keys.unload()
        state = self.collection_state
        if state is not None and state.seqno > self.high_seqno:  # the event was lost, the note was not
            state.manifest_uid = None

    def load_keys(self) -> None:
        """Read all keys and their seqnos from the frames. Takes time in proportion to the vbucket."""
        self.keys.reload()
        self._count_documents()

    def forget_key(self, key: bytes, seqno: int) -> None:
        """Forget a key if its newest change is the dropped one at `seqno`."""
        if seqno > self.high_seqno or self.index.find(seqno) is not None:
            return  # the vbucket has been emptied or rolled back since, and counts these seqnos again
        if self.collection_state is not None:
            self.collection_state.forget_end_at(key, seqno)
        self.keys.forget(key, seqno)

    def invalidate_collections(self) -> None:
        """Record that the collection state may differ from the changes."""
        self.collection_state = self.collection_state or CollectionState({})
        self.collection_state.manifest_uid = None

    def _count_documents(self) -> None:
        if self.collection_state is None:
            self.items = sum(
                int(np.count_nonzero(mask_mutations(buffer, at))) for buffer, at, _ in self.index.iterate_live_frames()
            )
        else:
            self.collection_state, self.items = CollectionState.read_changes(self.index, self.collection_state)

    def list_collection_highs(self) -> tuple[int, ...]:
        """Return the seqno of the newest change of each collection. Any thread may call this."""
        state = self.collection_state
        return () if state is None else tuple(state.highs.values())  # the tuple is made at one moment
