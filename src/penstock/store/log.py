"""The change log of a bucket: encoded frames of all vbuckets in one sequence of segments.

Frames are packed into the active segment in the order of commits. When it is full it is *sealed*: rewritten with the
frames of each vbucket next to each other, so that a backfill copies a few long runs, and without the frames that have
been superseded meanwhile. A sealed segment that is more than half superseded is rewritten in the same way.

This one lives in memory; DurableLog keeps the same on disk. Appends never move anything; make_room may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import OutOfMemory
from penstock.store.compaction import Compaction, worthwhile
from penstock.store.index import RowIndex
from penstock.store.rewrite import Limits, Purged, PurgeRequest, Rewritten
from penstock.store.segment import Column, Rows, Segment, new_buffer

if TYPE_CHECKING:
    from penstock.store.history import History

__all__ = ["SEGMENT_BYTES", "Log"]

SEGMENT_BYTES = 16 * 1024 * 1024  # sealed in about 15 ms, for which an event loop can be held

_LARGEST_SEGMENT = 1024 * 1024 * 1024  # its offsets, and twice them, fit into Arrow's 31 bits
_REWRITES_PER_SEGMENT = 8  # at even distances between two seals: two halves are all that a full one can leave behind
_ANY_SEQNO = 2**63 - 1


class Log:
    """The log of the vbuckets with these indexes, in memory.

    buffer: the active segment, written up to `end`. limit: a frame that would end above it needs make_room.
    fault: why nothing can be appended, None if it can. purged: tombstones that were dropped, whose keys nobody needs
    any more; for the caller to take out. quota: bytes that `occupied` may return; beyond, nothing is taken; None: any.
    quota_errors: how often that was so.
    """

    durable = False
    broken = False

    def __init__(self, indexes: Sequence[RowIndex], segment_bytes: int = SEGMENT_BYTES) -> None:
        if not 0 < segment_bytes <= _LARGEST_SEGMENT:
            raise ValueError(f"segments of {segment_bytes} bytes, expected 1 to {_LARGEST_SEGMENT}")
        self.indexes = indexes
        self.segment_bytes = segment_bytes
        self.sealed: list[Segment] = []
        self.fault: str | None = None
        self.purged: list[Purged] = []
        self.quota: int | None = None
        self.quota_errors = 0
        self.occupied: Callable[[], int] = lambda: 0
        self.begin(new_buffer(segment_bytes))

    def begin(self, buffer: memoryview) -> None:
        """Begin an empty active segment."""
        self.buffer = buffer
        self.end = 0
        self.limit = len(buffer) // _REWRITES_PER_SEGMENT
        for index in self.indexes:
            index.begin_tail(buffer)

    # What vbuckets write

    def append(self, frame: bytes | memoryview, supersedes: int) -> int:
        """Write a frame for which there is room and return its offset in the active segment.

        supersedes: the seqno, in the same vbucket, of the change that it replaces; 0 for none.
        """
        offset = self.end
        self.end = end = offset + len(frame)
        self.buffer[offset:end] = frame
        return offset

    def make_room(self, nbytes: int) -> None:
        """See to it that a frame of nbytes can be appended. Rows may move; call it when `end` + nbytes > `limit`.

        Does at most one seal or one rewrite, so that no call takes long. Raises TemporaryFailure, where the log is on
        disk and cannot grow; OutOfMemory.
        """
        self.check_quota()
        if self.end + nbytes > len(self.buffer):
            self._seal()
            self.begin(new_buffer(max(self.segment_bytes, nbytes)))
        else:
            self._rewrite_one()
        step = max(nbytes, len(self.buffer) // _REWRITES_PER_SEGMENT)
        self.limit = min(len(self.buffer), self.end + step)

    def check_quota(self) -> None:
        """Raise OutOfMemory if too much is occupied. That is looked at some times while a segment fills."""
        if self.quota is not None and (occupied := self.occupied()) > self.quota:
            self.quota_errors += 1
            raise OutOfMemory(f"{occupied} bytes of memory in use, limit {self.quota}")

    def make_room_for_note(self, history: History) -> None:
        """See to it that a note about a vbucket can be written. Raises as make_room does."""

    def note(self, history: History, cut: int | None = None) -> None:
        """Write down how things stand with a vbucket but for its changes.

        cut: those that it has above this seqno count no more.
        """

    def persisted(self, index: RowIndex) -> int | None:
        """Return the seqno up to which a vbucket's changes are on disk, None in memory."""
        return None

    # What only a log on disk has to do

    @property
    def uncommitted(self) -> int:
        """How many changes and notes no commit has taken yet."""
        return 0

    @property
    def unpersisted(self) -> int:
        """How many changes and notes are not on disk yet, those of the commit under way included."""
        return 0

    def commit(self) -> None:
        """Write to disk what was appended."""

    def close(self) -> None:
        """End well."""

    def compaction(self, everything: bool, purge: PurgeRequest | None = None) -> Compaction | None:
        """Return what is to be rewritten by somebody else: this log does that when it makes room."""
        return None

    # Rewriting

    def seal(self) -> None:
        """Let the active segment be a sealed one."""
        self._seal()
        self.begin(new_buffer(self.segment_bytes))

    def _seal(self) -> None:
        active = self.active()
        if active is not None:
            self._rewrite([active])

    def active(self) -> Segment | None:
        """Return the active segment as it is, if it holds anything: its rows by vbucket, its frames in commit order."""
        indexes = self.indexes
        counts = [len(index.offsets_at) for index in indexes]
        starts = np.zeros(len(indexes) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        if not starts[-1]:
            return None
        rows = Rows(
            seqnos=np.frombuffer(b"".join([index.seqnos_at for index in indexes]), np.int64),
            offsets=np.frombuffer(b"".join([index.offsets_at for index in indexes]), np.uint32),
            lengths=np.frombuffer(b"".join([index.lengths_at for index in indexes]), np.uint32),
            superseded=np.frombuffer(bytearray().join([index.superseded_at for index in indexes]), np.int64),
        )
        segment = Segment(self.buffer, starts, rows, clustered=False)
        segment.mark(segment.superseded)  # what was cut off is not in it
        return segment

    def _rewrite_one(self) -> None:
        """Rewrite the segment with most to gain, if more than half of it is dead, with neighbours that fit in."""
        chosen = worthwhile(self.sealed, [segment.dead for segment in self.sealed], self.segment_bytes)
        if chosen is not None:
            self._rewrite(self.sealed[chosen])

    def _rewrite(self, sources: Sequence[Segment]) -> None:
        compaction = Compaction(self, sources, self.limits())
        compaction.run()
        compaction.finish()

    def limits(self) -> Limits:
        """Return what a rewrite may drop: all that is superseded."""
        nothing = np.zeros(len(self.indexes), np.int64)
        return Limits(floors=nothing + _ANY_SEQNO, last_seqnos=nothing)

    def held(self, sources: Sequence[Segment]) -> Column | None:
        """As `choose` wants it. Nobody reads this log from its beginning."""
        return None

    def keep(self, rewritten: Rewritten) -> Rewritten:
        """Put the new segment where it is to stay. Called from any thread."""
        return rewritten

    def discard(self, rewritten: Rewritten | None) -> None:
        """Forget what `keep` has kept."""

    def install(self, sources: Sequence[Segment], rewritten: Rewritten) -> None:
        """Let the new segment stand for `sources`, or for the tails, if the source is not among the sealed ones."""
        segment, choice = rewritten.segment, rewritten.choice
        segment.mark(np.concatenate([source.superseded for source in sources])[choice.rows])
        listed = [source for source in sources if source in self.sealed]
        at = self.sealed.index(listed[0]) if listed else len(self.sealed)
        self.sealed[at : at + len(listed)] = [segment] if self.durable or len(choice.rows) else []
        for index, passed in zip(self.indexes, choice.passed.tolist(), strict=True):
            index.replace(listed, segment)
            index.raise_floors(passed)
        for purged in rewritten.purged:
            self.indexes[purged.vbucket].raise_floors(0, purged.seqno, purged.rev_seqno)
        self.purged += rewritten.purged

    # Sizes

    @property
    def frame_bytes(self) -> int:
        """Bytes of all frames in it, dead ones included."""
        return self.end + sum(segment.size for segment in self.sealed)

    @property
    def dead_bytes(self) -> int:
        """Bytes of frames that have been superseded, or forgotten with their vbucket's history."""
        return sum(index.dead for index in self.indexes) + sum(segment.dead for segment in self.sealed)

    @property
    def index_bytes(self) -> int:
        """Bytes of the rows' columns."""
        return sum(index.index_bytes for index in self.indexes) + sum(segment.index_bytes for segment in self.sealed)
