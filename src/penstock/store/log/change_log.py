"""The change log of a bucket: encoded frames of all vbuckets in one sequence of segments.

Frames are packed into the active segment in the order of commits. When it is full it is *sealed*, and the next one
begins. Compaction then *clusters* it: a new segment has the frames of each vbucket next to each other, so that a
backfill copies a few long runs, and lacks the frames that were superseded meanwhile. Later it rewrites the segments
with many dead frames in the same way.

This log lives in memory; DurableLog keeps the same on disk. Appends never move anything; make_room may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from penstock.errors import OutOfMemory, TemporaryFailure
from penstock.store.definition.bucket_settings import Settings
from penstock.store.log.compaction import PRESSED, Compaction, gain_of, next_rewrite, next_unclustered
from penstock.store.log.long_frame import Frame
from penstock.store.log.quota import Quota
from penstock.store.log.rewrite import Choice, Limits, Purged, PurgeRequest, Rewritten
from penstock.store.log.rewrite import name as name_of
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Rows, Segment, new_buffer

__all__ = ["SEGMENT_BYTES", "Log", "LoggedVbucket"]

SEGMENT_BYTES = 16 * 1024 * 1024  # in memory; sealed in a few milliseconds, for which an event loop can be held

_LARGEST_SEGMENT = 1024 * 1024 * 1024  # its offsets, and twice them, fit into Arrow's 31 bits
_LOOKS_PER_SEGMENT = 8  # at even distances between two seals
_BEHIND = 256 * 1024 * 1024  # bytes of sealed segments that wait for compaction, or as many as four segments have
_SHORT_PURGE_AGE = 60.0  # seconds. Source: kv_engine, ephemeral_metadata_purge_age
_NANOSECONDS = 10**9
_ANY_SEQNO = 2**63 - 1


class LoggedVbucket(Protocol):
    """What the log asks of each vbucket."""

    @property
    def id(self) -> int: ...
    @property
    def index(self) -> RowIndex: ...

    def collection_highs(self) -> tuple[int, ...]:
        """Return the seqno of the newest change of each collection. Called from any thread."""

    def described(self) -> dict[str, Any]:
        """Return what the log notes of the vbucket, to be restored with it."""


class Log:
    """The log of the vbuckets with these indexes, in memory.

    Attributes:
        buffer: the active segment, written up to `end`.
        limit: a frame that would end above it needs make_room.
        sealed: all other segments, oldest first.
        fault: why nothing can be appended, None if it can.
        compacting: a compaction is under way.
        purged: tombstones that were dropped, whose keys nobody needs any more; for the caller to take out.
        histories: the vbuckets.
        quota: what the bucket may occupy in memory.
        compact: called after a seal, and several times while a segment fills; begins or does a compaction.
        can_delete: tells whether documents may and can be deleted to free memory.
    """

    durable = False
    broken = False

    def __init__(
        self,
        indexes: Sequence[RowIndex],
        segment_bytes: int = SEGMENT_BYTES,
        *,
        settings: Settings | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        if not 0 < segment_bytes <= _LARGEST_SEGMENT:
            raise ValueError(f"segments of {segment_bytes} bytes, expected 1 to {_LARGEST_SEGMENT}")
        self.indexes = indexes
        self.settings = settings or Settings()
        self.quota = Quota(self.settings.memory_bytes)
        self.sealed: list[Segment] = []
        self.histories: Sequence[LoggedVbucket] = ()
        self.fault: str | None = None
        self.purged: list[Purged] = []
        self.compacting = False
        self.compact: Callable[[], None] = lambda: None
        self.can_delete: Callable[[], bool] = lambda: False
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._most_behind = max(_BEHIND, 4 * segment_bytes)
        self._passed = 0  # by a pass over everything: the number of the last segment
        self._front = 0  # by a pass over what holds others back: likewise
        self._number = 1
        self.begin(new_buffer(self.segment_bytes))

    @property
    def number(self) -> int:
        """The number of the active segment; each has a higher one than those before it."""
        return self._number

    @property
    def segment_bytes(self) -> int:
        """Bytes of a segment. A small quota makes small segments: the active one is in memory as a whole."""
        return self.quota.segment_bytes(self._segment_bytes)

    def begin(self, buffer: memoryview) -> None:
        """Begin an empty active segment."""
        self.buffer = buffer
        self.end = 0
        for index in self.indexes:
            index.begin_tail(buffer)
        self._raise_limit(0)

    def _raise_limit(self, nbytes: int) -> None:
        """Let frames be appended up to the next look, and one of nbytes in any case."""
        step = 0 if self.quota.is_exceeded else len(self.buffer) // _LOOKS_PER_SEGMENT
        self.limit = min(len(self.buffer), self.end + max(nbytes, step))

    # What vbuckets write

    def append(self, frame: Frame, supersedes: int) -> int:
        """Write a frame for which there is room and return its offset in the active segment.

        supersedes: the seqno, in the same vbucket, of the change that it replaces; 0 for none.
        """
        offset = self.end
        self.end = end = offset + len(frame)
        if isinstance(frame, bytes):
            self.buffer[offset:end] = frame
        else:
            frame.write_to(self.buffer[offset:end])
        return offset

    def make_room(self, nbytes: int, *, frees: bool = False) -> None:
        """See to it that a frame of nbytes can be appended. Rows may move; call it when `end` + nbytes > `limit`.

        frees: the frame supersedes a document and has none itself, so it is taken above the quota, too.
        Raises TemporaryFailure while the log cannot take it, and where memory is about to be freed; OutOfMemory.
        """
        self.check()
        self.check_quota(frees=frees)
        if self.end + nbytes > len(self.buffer):
            self.check_behind()
            self.roll(nbytes)
        self.compact()
        self._raise_limit(nbytes)

    def begin_segment_for(self, nbytes: int) -> bool:
        """Make room for frames of nbytes together, if the log takes anything; True: that took a new segment."""
        number = self.number
        if self.end + nbytes > self.limit and not self.quota.is_exceeded:
            with suppress(TemporaryFailure, OutOfMemory):
                self.make_room(nbytes)
        return self.number != number

    def check(self) -> None:
        """Raise TemporaryFailure while nothing can be appended."""
        if self.fault is not None:
            raise TemporaryFailure(self.fault)

    def check_behind(self) -> None:
        """Raise TemporaryFailure if too many sealed segments wait for compaction."""
        if self.waiting_bytes > self._most_behind:
            raise TemporaryFailure("too many changes wait for compaction, try again soon")

    def check_quota(self, *, frees: bool = False) -> None:
        """Free memory where much is in use. Raises as Quota.refuse does above the quota, unless the change frees some.

        That is looked at some times while a segment fills.
        """
        quota = self.quota
        if quota.look() and quota.is_pressed:
            self.seal_dead()
            self.compact()
            quota.look()
            quota.helps = self.frees() or self.can_delete()
        if quota.is_exceeded and not frees:
            self.limit = 0  # so that the next change asks again
            quota.refuse()

    def seal_dead(self) -> None:
        """Seal the active segment if compaction can free much of it."""
        if not self.compacting and PRESSED * self.end < sum(index.dead for index in self.indexes):
            self.roll(0)

    def frees(self) -> bool:
        """Tell whether compaction is about to free memory."""
        return self.compacting or self.waiting_bytes > 0 or self._next_rewrite()[0] is not None

    def make_room_for_note(self, history: LoggedVbucket) -> None:
        """See to it that a note about a vbucket can be written. Raises as make_room does."""

    def note(self, history: LoggedVbucket, cut: int | None = None) -> None:
        """Write down how things stand with a vbucket but for its changes.

        cut: those that it has above this seqno count no more.
        """
        if cut is not None:
            self.quota.doubt()

    def note_cas(self, vbucket: int, cas: int) -> None:
        """Write down a cas that was given without a change. Raises TemporaryFailure while the log cannot take it."""

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

    # Rewriting

    def seal(self) -> None:
        """Let the active segment be a sealed one."""
        self._passed = 0  # for a pass over everything
        if any(index.offsets_at or index.dead for index in self.indexes):
            self.roll(0)

    def roll(self, nbytes: int) -> None:
        """Seal the active segment, if there is anything in it, and begin the next one, with room for nbytes more."""
        active = self.active()
        if active is not None:
            self.list_sealed(active)
        self._number += 1
        self.begin(new_buffer(max(self.segment_bytes, nbytes)))

    def list_sealed(self, segment: Segment) -> None:
        """Take the active segment for a sealed one."""
        segment.ids = self.number, self.number
        self.sealed.append(segment)
        for index in self.indexes:
            index.replace([], segment)

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

    def compaction(self, everything: bool, purge: PurgeRequest | None = None) -> Compaction | None:
        """Return the next piece of rewriting that is worth doing; None while there is none, or one is under way.

        everything: also where there is little to gain, each segment once, until None is returned. purge: tombstones
        to drop before their time.
        """
        if self.compacting or not self.sealed:
            return None
        chosen = next_unclustered(self.sealed, self.unready())
        if chosen is None:
            if everything:
                chosen = self._once()
            else:
                chosen, self._front = self._next_rewrite()
        if chosen is None:
            return None
        self.compacting = True
        return Compaction(self, self.sealed[chosen], self.limits()._replace(purge=purge))

    @property
    def purge_age(self) -> float:
        """Seconds that a tombstone stays. Those of documents that had to go for lack of memory must go themselves."""
        age = self.settings.purge_age
        return min(age, _SHORT_PURGE_AGE) if self.settings.auto_delete and self.quota.is_pressed else age

    def unready(self) -> set[int]:
        """Return the numbers of sealed segments that cannot be rewritten yet."""
        return set()

    def _next_rewrite(self) -> tuple[slice | None, int]:
        """Return the segments that are worth a rewrite, and the next `_front`."""
        now = self._clock()
        gains = [gain_of(segment, now, self.purge_age) for segment in self.sealed]
        return next_rewrite(
            self.sealed,
            gains,
            self.segment_bytes,
            front=self._front,
            pressed=self.quota.is_pressed,
            in_order=self.durable,
        )

    def _once(self) -> slice | None:
        """Return the next segments, together as large as one may be, that a pass over everything has not reached."""
        start = next((n for n, segment in enumerate(self.sealed) if segment.ids[0] > self._passed), None)
        if start is None or not self.sealed[start].clustered:
            self._passed = 0
            return None
        end, live = start + 1, self.sealed[start].live
        while (
            end < len(self.sealed) and self.sealed[end].clustered and live + self.sealed[end].live <= self.segment_bytes
        ):
            live += self.sealed[end].live
            end += 1
        self._passed = self.sealed[end - 1].ids[1]
        return slice(start, end)

    def limits(self) -> Limits:
        """Return what a rewrite may drop: what is superseded, and tombstones whose time is over.

        Of tombstones the newest change of a vbucket stays, and of each collection.
        """
        return Limits(
            floors=self.floors(),
            last_seqnos=np.array([index.last_seqno for index in self.indexes], np.int64),
            purge_before=max(self._clock() // _NANOSECONDS - int(self.purge_age), 0),
            kept=self._newest_of_collections,
        )

    def _newest_of_collections(self) -> Column:
        """Return the names of the newest change of each collection in each vbucket. Called from any thread."""
        found = [np.zeros(0, np.int64)]
        for history in self.histories:
            if highs := history.collection_highs():
                seqnos = np.array(highs, np.int64)
                found.append(name_of(np.full(len(seqnos), history.id, np.uint16), seqnos))
        return np.concatenate(found)

    def floors(self) -> Column:
        """Return for each vbucket the highest seqno whose superseded frame may be dropped."""
        return np.full(len(self.indexes), _ANY_SEQNO, np.int64)

    def held(self, sources: Sequence[Segment]) -> Column | None:
        """As `choose` wants it. Nobody reads this log from its beginning."""
        return None

    def keep(self, rewritten: Rewritten) -> Rewritten:
        """Put the new segment where it is to stay. Called from any thread."""
        return rewritten

    def discard(self, rewritten: Rewritten | None) -> None:
        """Forget what `keep` has kept."""
        self.compacting = False

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
        self._note_rewrite(sources, rewritten)
        self.compacting = False
        self.quota.doubt()

    def _note_rewrite(self, sources: Sequence[Segment], rewritten: Rewritten) -> None:
        """Note what a rewrite could not drop: trying again helps only later, or once one has dropped older frames."""
        segment, now = rewritten.segment, self._clock()
        dropped = sum(source.size for source in sources) - segment.size
        if not dropped:
            segment.rest(gain_of(segment, now, self.purge_age), now)
            return
        overdue = gain_of(segment, now, self.purge_age) - segment.dead
        segment.rest(self.retained(rewritten.choice) + overdue, now)
        for newer in self.sealed:
            if newer.ids[0] > segment.ids[1]:
                newer.rest(0, now)

    def retained(self, choice: Choice) -> int:
        """Return how many bytes of dead frames a rewrite had to keep, and the next one has to."""
        return choice.held

    # Sizes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of sealed segments that are not clustered yet."""
        return sum(len(segment.buffer) for segment in self.sealed if not segment.clustered)

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
