"""The synchronous writes of one vbucket: prepares, and their commits and aborts.

A prepare is undecided while the newest change of its document is older, and no abort has superseded it. No other write
of the document is accepted meanwhile. So the changes alone show which prepares are undecided, also after a crash or a
rollback. A commit supersedes its prepare, like the document's version before. Only the second of the two stands in the
record of the commit; the first is derived again when a bucket is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from penstock.store.history.prepare_frames import (
    PREPARE_BYTES,
    PREPARED_PREFIX,
    PendingPrepare,
    is_hidden_frame,
    make_abort_frame,
    make_committed_frame,
    make_prepare_frame,
    read_prepare,
)
from penstock.store.history.vbucket_changes import Newest, VbucketChanges
from penstock.store.log.frame_fields import read_collection_ids, read_keys
from penstock.store.log.log_segments import LoggedVbucket
from penstock.store.log.logged_frames import Frame
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, PREPARED_COLLECTION, split_collection_key

Chains = tuple[tuple[str | None, ...], ...]
"""The replication chains of a vbucket: names of nodes, the active node first. None is a replica that does not exist."""

_NANOSECONDS = 10**9
_KEPT_COMMITS: Final = 4096
"""Commits whose prepare is remembered: a stream that is further behind gets a mutation instead of the commit."""


def _ignore_key(key: bytes) -> None:
    """Do nothing."""


class VbucketPrepares:
    """The synchronous writes of a vbucket.

    Attributes:
        pending: the undecided prepares by the key of their document, in the order of their seqnos.
        is_used: whether the vbucket ever had a prepare. The log has a note of it before the first one.
        high_prepare_seqno: the seqno of the newest prepare, 0 if there is none.
        chains: the replication chains that an orchestrator has set; empty: none.
        on_begin: called with the document's key when a prepare becomes undecided.
        on_recover: called with the document's key when a prepare was found again; its decision may be lost.
        on_end: called with the document's key when it is decided.
    """

    __slots__ = (
        "_changes",
        "_commits",
        "_history",
        "_settled",
        "chains",
        "high_prepare_seqno",
        "is_used",
        "on_begin",
        "on_end",
        "on_recover",
        "pending",
    )

    def __init__(self, changes: VbucketChanges, history: LoggedVbucket) -> None:
        self.pending: dict[bytes, PendingPrepare] = {}
        self.is_used = False
        self.high_prepare_seqno = 0
        self.chains: Chains = ()
        self.on_begin: Callable[[bytes], None] = _ignore_key
        self.on_recover: Callable[[bytes], None] = _ignore_key
        self.on_end: Callable[[bytes], None] = _ignore_key
        self._changes = changes
        self._history = history
        self._commits: dict[int, int] = {}
        self._settled = 0

    def set_chains(self, chains: Chains) -> None:
        """Set the replication chains; empty: none. Raises REFUSED; then nothing has changed."""
        if chains != self.chains:
            self._changes.log.make_room_for_note(self._history)
            self.chains = chains
            self._changes.log.write_note(self._history)

    # Seqnos

    @property
    def settled_seqno(self) -> int:
        """The seqno up to which all prepares are decided."""
        if self.pending:
            return next(iter(self.pending.values())).seqno - 1
        return self._changes.high_seqno

    @property
    def high_completed_seqno(self) -> int:
        """The seqno of the newest prepare up to which all prepares are decided, or a seqno directly below the next."""
        return min(self.settled_seqno, self.high_prepare_seqno)

    def find_visible(self, seqno: int) -> int:
        """Return the highest seqno up to this one of a change that is neither a prepare nor an abort; 0 for none."""
        index = self._changes.index
        while self.is_used and seqno:
            found = index.find(seqno)
            if found is None:
                seqno = index.find_floor(seqno)
            elif is_hidden_frame(found[0].buffer, found[0].offsets_at[found[1]]):
                seqno = index.find_floor(seqno - 1)
            else:
                break
        return seqno

    def find_prepare_of(self, seqno: int, *, last_seqno: int) -> int:
        """Return the seqno of the prepare that a change has committed; 0 if it is unknown, or above `last_seqno`."""
        found = self._commits.get(seqno, 0)
        return found if found <= last_seqno else 0

    # Writes

    def prepare(self, key: bytes, frame: Frame, level: DurabilityLevel, seqno: int | None = None) -> int:
        """Write a prepare.

        Args:
            key: the key of the document.
            frame: the frame of the document, as the commit will write it; its seqno does not matter.
            level: the durability level.
            seqno: the seqno of the prepare; None: the next one.

        Returns:
            The seqno of the prepare.

        Raises:
            REFUSED: TemporaryFailure or OutOfMemory; the log accepts no changes.
        """
        changes = self._changes
        self._note_use()
        if key in self.pending:  # a producer that has left the abort out
            self._settle(key, seqno or changes.high_seqno + 1)
        prepared_key = PREPARED_PREFIX + key
        old = changes.find(prepared_key, len(frame) + len(prepared_key) + PREPARE_BYTES)
        seqno = seqno or changes.high_seqno + 1
        changes.commit(old, prepared_key, seqno, make_prepare_frame(key, seqno, frame, level))
        self.pending[key] = PendingPrepare(seqno, level)
        self.high_prepare_seqno = seqno
        self.on_begin(key)
        return seqno

    def commit(self, key: bytes, seqno: int | None = None) -> int | None:
        """Commit the undecided prepare of a document.

        Args:
            key: the key of the document.
            seqno: the seqno of the commit; None: the next one.

        Returns:
            The seqno of the commit; None if the collection was dropped meanwhile, and the prepare was aborted.

        Raises:
            REFUSED: TemporaryFailure or OutOfMemory; the log accepts no changes.
        """
        changes, prepare = self._changes, self.pending[key]
        if not _has_collection(changes, key):
            self.abort(key, seqno)
            return None
        found = read_prepare(self._look_up(prepare))
        assert found is not None
        old = changes.find(key, len(found[1]), frees=True)
        found = read_prepare(self._look_up(prepare))  # its segment may have been replaced
        assert found is not None
        seqno = seqno or changes.high_seqno + 1
        changes.commit(old, key, seqno, make_committed_frame(found[1], seqno))
        self._settle(key, seqno)
        self._commits[seqno] = prepare.seqno
        if len(self._commits) > _KEPT_COMMITS:
            del self._commits[next(iter(self._commits))]
        return seqno

    def abort(self, key: bytes, seqno: int | None = None, prepared_seqno: int = 0) -> int:
        """Abort the undecided prepare of a document.

        Args:
            key: the key of the document.
            seqno: the seqno of the abort; None: the next one.
            prepared_seqno: the seqno of the prepare, if this vbucket does not have it.

        Returns:
            The seqno of the abort.

        Raises:
            REFUSED: TemporaryFailure or OutOfMemory; the log accepts no changes.
        """
        self._note_use()
        changes = self._changes
        prepare = self.pending.get(key) or PendingPrepare(prepared_seqno, DurabilityLevel.MAJORITY)
        prepared_key = PREPARED_PREFIX + key
        old = changes.find(prepared_key, len(prepared_key) + PREPARE_BYTES, frees=True)
        seqno, now = seqno or changes.high_seqno + 1, changes.now() // _NANOSECONDS
        frame = make_abort_frame(key, prepare, old, vbucket=changes.id, seqno=seqno, now=now)
        changes.commit(old, prepared_key, seqno, frame)
        self.high_prepare_seqno = max(self.high_prepare_seqno, prepare.seqno)
        if self.pending.pop(key, None) is not None:
            self.on_end(key)
        return seqno

    def _note_use(self) -> None:
        """Write a note that the vbucket has prepares, before the first one."""
        if not self.is_used:
            self._changes.log.make_room_for_note(self._history)
            self.is_used = True
            self._changes.log.write_note(self._history)

    def settle_by_change(self, key: bytes, seqno: int) -> None:
        """Regard the prepare of a document as decided by a change: the producer has sent no commit or abort."""
        if key in self.pending:
            self._settle(key, seqno)

    def _settle(self, key: bytes, seqno: int) -> None:
        """Let the change at `seqno` supersede the prepare of a document."""
        prepare = self.pending.pop(key)
        self._supersede(key, prepare.seqno, seqno)
        self.on_end(key)

    def _supersede(self, key: bytes, prepare_seqno: int, seqno: int) -> None:
        changes, prepared_key = self._changes, PREPARED_PREFIX + key
        if changes.newest.get(prepared_key) == prepare_seqno:
            del changes.newest[prepared_key]
        found = changes.index.find(prepare_seqno)
        if found is not None:
            rows, row = found
            rows.superseded_at[row] = seqno
            rows.dead_bytes += rows.lengths_at[row]

    def _look_up(self, prepare: PendingPrepare) -> Newest:
        found = self._changes.look_up_seqno(prepare.seqno)
        assert found is not None, "an undecided prepare is not superseded, so no compaction drops it"
        return found

    # The changes as a whole

    def clear(self) -> None:
        """Forget all prepares: the vbucket was emptied."""
        for key in tuple(self.pending):
            del self.pending[key]
            self.on_end(key)
        self._commits.clear()
        self.high_prepare_seqno = self._settled = 0

    def recover(self) -> None:
        """Find the undecided prepares in the changes. Takes time in proportion to the vbucket, if it ever had some."""
        settled, self._settled = self._settled, 0
        if not self.is_used:
            return
        high = self.high_prepare_seqno
        self.clear()
        changes = self._changes
        decided = []
        for key, seqno in self._find_prepares():
            decision = self._find_decision(key, seqno, settled)
            if decision:
                decided.append((key, seqno, decision))
                continue
            found = read_prepare(self._look_up(PendingPrepare(seqno, DurabilityLevel.MAJORITY)))
            assert found is not None
            self.pending.pop(key, None)
            self.pending[key] = PendingPrepare(seqno, found[0])
            self.on_recover(key)
            high = max(high, seqno)
        for key, seqno, decision in decided:
            self._supersede(key, seqno, decision)
            high = max(high, seqno)
        self.high_prepare_seqno = min(high, changes.high_seqno)
        if decided:
            changes.keys.unload()

    def _find_prepares(self) -> list[tuple[bytes, int]]:
        """Return the key of the document and the seqno of each prepare that is not superseded, in their order."""
        found = []
        for buffer, offsets, seqnos in self._changes.index.iterate_live_frames():
            hidden = np.flatnonzero(read_collection_ids(buffer, offsets) == PREPARED_COLLECTION)
            if not len(hidden):
                continue
            hidden = hidden[np.argsort(offsets[hidden])]
            for key, seqno in zip(read_keys(buffer, offsets[hidden]), seqnos[hidden].tolist(), strict=True):
                newest = self._changes.look_up_seqno(seqno)
                if newest is not None and read_prepare(newest) is not None:
                    found.append((key[len(PREPARED_PREFIX) :], seqno))
        return sorted(found, key=lambda one: one[1])

    def _find_decision(self, key: bytes, seqno: int, settled: int) -> int:
        """Return the seqno of a change that has decided a prepare, 0 if it is undecided.

        Args:
            key: the key of the document.
            seqno: the seqno of the prepare.
            settled: a seqno up to which all prepares were decided when it was noted.
        """
        changes = self._changes
        newest = changes.newest.get(key, 0)
        if newest > seqno:
            return newest
        state = changes.collection_state
        emptied = 0 if state is None else state.emptied.get(split_collection_key(key)[0], 0)
        if emptied > seqno:
            return emptied
        # The tombstone of a committed deletion may have been purged.
        return max(changes.index.purge_seqno, seqno + 1) if seqno <= settled else 0

    # Notes

    def to_dict(self) -> dict[str, Any]:
        """Return the part of the vbucket's note about prepares."""
        chains = {"chains": self.chains} if self.chains else {}
        if not self.is_used:
            return chains
        return {"settled_seqno": self.settled_seqno, "prepare_seqno": self.high_prepare_seqno, **chains}

    def restore(self, description: Mapping[str, Any]) -> None:
        """Restore the result of `to_dict`, from the vbucket's note."""
        self.is_used = "settled_seqno" in description
        self._settled = int(description.get("settled_seqno", 0))
        self.high_prepare_seqno = int(description.get("prepare_seqno", 0))
        self.chains = tuple(tuple(chain) for chain in description.get("chains", ()))  # earlier logs do not have them


def _has_collection(changes: VbucketChanges, key: bytes) -> bool:
    state, collection = changes.collection_state, split_collection_key(key)[0]
    return collection in state.highs if state is not None else collection == DEFAULT_COLLECTION
