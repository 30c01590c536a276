"""The changes of one vbucket: the newest one of each key is found, the next one is written.

One thread at a time: nothing here locks.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import numpy as np

from penstock.errors import OutOfMemory, TemporaryFailure
from penstock.store.history.collection_state import CollectionState
from penstock.store.history.hybrid_clock import HybridClock
from penstock.store.history.vbucket_keys import VbucketKeys
from penstock.store.log.change_log import Log
from penstock.store.log.frame_fields import is_mutation
from penstock.store.log.long_frame import Frame
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Segment
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
    "REFUSED",
    "REV_SEQNO",
    "Newest",
    "VbucketChanges",
]

_MUTATION = int(Opcode.DCP_MUTATION)

REFUSED = (TemporaryFailure, OutOfMemory)
"""What the log raises while it takes nothing."""

Newest = tuple[Segment | RowIndex, int, tuple[int, ...]]
"""The newest change of a key: its row, and its head up to rev_seqno, where deletions and mutations look the same."""

OPCODE, KEY_LENGTH, EXTRAS_LENGTH, DATATYPE, BODY, CAS, REV_SEQNO = 1, 2, 3, 4, 6, 8, 10
"""Places in a head."""


class VbucketChanges:
    """The changes of a vbucket, in the log of its bucket.

    Attributes:
        high_seqno: the newest change's, 0 if there is none.
        items: how many documents there are; deleted ones are not, nor are system events.
        newest: of every key the seqno of its newest change; here, since every command looks it up, and one more object
            on the way costs a tenth of a GET when there are many vbuckets.
        keys: loads, counts and forgets these keys.
        clock: gives each change its cas.
        now: nanoseconds since the epoch.
        collection_state: what is in each collection; None as long as no system event was about any.
        changed: gets the vbucket's number when a change comes that nobody has asked for.
        behind: the vbucket has yet to write system events of the bucket's manifest, in front of any other change.
        catch_up: writes them; called with the vbucket's number when it is active and may lack some.
    """

    __slots__ = (
        "_segments",
        "behind",
        "catch_up",
        "changed",
        "clock",
        "collection_state",
        "high_seqno",
        "id",
        "index",
        "items",
        "keys",
        "log",
        "newest",
        "now",
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
        self.behind = False
        self.catch_up: Callable[[int], None] = lambda _: None
        self.high_seqno = 0
        self.items = 0
        self.collection_state: CollectionState | None = None  # from the first system event on

    def find(self, key: bytes, nbytes: int, frees: bool = False) -> Newest | None:
        """Return the newest change of a key. A frame of nbytes can be appended before any row moves.

        frees: as of LogRoom.make; only where the key has a document.
        """
        if self.behind:
            self.catch_up(self.id)
        segments = self._segments
        newest = self.newest
        if segments.active.end + nbytes > segments.active.limit:
            self.log.room.make(nbytes, frees=frees and newest.get(key) is not None)
            newest = self.newest
        seqno = newest.get(key)
        if seqno is None or (found := self.index.find(seqno)) is None:
            return None
        rows, row = found
        return rows, row, DELETION_HEAD.unpack_from(rows.buffer, rows.offsets_at[row])

    def look_up(self, key: bytes) -> Newest | None:
        """As `find`, but nothing is going to be written."""
        seqno = self.newest.get(key)
        if seqno is None or (found := self.index.find(seqno)) is None:
            return None
        rows, row = found
        return rows, row, DELETION_HEAD.unpack_from(rows.buffer, rows.offsets_at[row])

    def commit(self, old: Newest | None, key: bytes, seqno: int, frame: Frame) -> None:
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
        index.offsets_at.append(self._segments.active.append(frame, supersedes))
        index.lengths_at.append(len(frame))
        index.superseded_at.append(0)
        index.seqnos_at.append(seqno)
        self.newest[key] = self.high_seqno = seqno
        if self.collection_state is not None:
            was = old is not None and old[2][OPCODE] == _MUTATION
            self.collection_state.count(key, seqno, (frame[OPCODE] == _MUTATION) - was)

    # Many at once

    def clear(self) -> None:
        """Forget all changes."""
        self.index.cut(0)
        self.high_seqno = 0
        self.items = 0
        self.keys.clear()
        self.collection_state = None

    def cut(self, seqno: int) -> None:
        """Forget the changes above `seqno`; what they superseded counts again."""
        self.index.cut(seqno)
        self.high_seqno = self.index.last_seqno
        self.keys.unload()
        self._count_documents()

    def settle(self, items: int, max_cas: int) -> None:
        """Begin where the index says; the keys come when they are needed. max_cas: the highest of its changes."""
        self.high_seqno = self.index.last_seqno
        self.items = items
        self.clock.see(max_cas)
        self.keys.unload()
        state = self.collection_state
        if state is not None and state.seqno > self.high_seqno:  # the event was lost, the note was not
            state.uid = None

    def load_keys(self) -> None:
        """Read from the frames which keys there are, and where. Takes time in proportion to the vbucket."""
        self.keys.reload()
        self._count_documents()

    def forget_key(self, key: bytes, seqno: int) -> None:
        """Forget a key whose newest change is the one at `seqno`, which was dropped."""
        if seqno > self.high_seqno or self.index.find(seqno) is not None:
            return  # the vbucket has been emptied or rolled back since, and counts these seqnos again
        if self.collection_state is not None:
            self.collection_state.forget(key, seqno)
        self.keys.forget(key, seqno)

    def doubt_collections(self) -> None:
        """Take note that the collection state may not be what the changes say."""
        self.collection_state = self.collection_state or CollectionState({})
        self.collection_state.uid = None

    def _count_documents(self) -> None:
        if self.collection_state is None:
            self.items = sum(int(np.count_nonzero(is_mutation(buffer, at))) for buffer, at, _ in self.index.live())
        else:
            self.collection_state, self.items = CollectionState.read(self.index, self.collection_state)
