"""A piece of rewriting: what to rewrite, and the three steps in which that is done.

Made and finished on the thread that owns the bucket, each in milliseconds; run in between on any thread, while the
bucket goes on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence, Set
from typing import Protocol

import pyarrow as pa

from penstock.store.log.rewrite import Limits, Rewritten, rewrite
from penstock.store.log.segment import Column, Segment

__all__ = ["MOST_DEAD", "PRESSED", "Compaction", "SegmentKeeper", "gain_of", "next_rewrite", "next_unclustered"]

MOST_DEAD = 0.2
"""The part of all frames that may be dead. Above it segments are rewritten that are dead to a smaller part."""

PRESSED = 0.125
"""The part of a segment that is worth a rewrite while the memory quota is nearly used up."""

_WORTH = 0.5  # the same where there is no hurry
_NANOSECONDS = 10**9


def gain_of(segment: Segment, now: int, purge_age: float) -> int:
    """Return how many bytes a rewrite of a clustered segment would drop, as far as is known; 0 for another segment.

    now: nanoseconds since the epoch. purge_age: seconds that a tombstone stays.
    """
    if not segment.clustered:
        return 0
    overdue = 0 < segment.purge_at < now // _NANOSECONDS - purge_age
    gain = segment.dead + (segment.tombstone_bytes if overdue else 0)
    return gain if now >= segment.stuck_until else max(gain - segment.stuck, 0)


def next_unclustered(sealed: Sequence[Segment], unready: Set[int]) -> slice | None:
    """Return the oldest segment that is not clustered and can be, None for none."""
    for place, segment in enumerate(sealed):
        if not segment.clustered and segment.ids[0] not in unready:
            return slice(place, place + 1)
    return None


def next_rewrite(
    sealed: Sequence[Segment],
    gains: Sequence[int],
    segment_bytes: int,
    *,
    front: int,
    pressed: bool,
    in_order: bool = True,
) -> tuple[slice | None, int]:
    """Return which segments to rewrite next, None for none: one that is worth it, and neighbours.

    A segment is worth it if a rewrite drops half of it; MOST_DEAD of it, if that part of the whole log is dead.

    Args:
        sealed: the sealed segments, oldest first.
        gains: for each of them the bytes that a rewrite drops.
        segment_bytes: neighbours are rewritten together if the result is at most that long.
        front: as returned by the last call, at first 0.
        pressed: memory is short.
        in_order: choose the oldest segment, because its dead frames hold back those in newer segments. Otherwise the
            segment with the most to drop for what is copied: with uniform overwrites that copies a quarter less.

    Returns:
        The segments, and the next `front`.
    """
    most = MOST_DEAD * sum(segment.size for segment in sealed)
    too_many = sum(segment.dead for segment in sealed) > most
    least = PRESSED if pressed else MOST_DEAD if too_many else _WORTH
    worth = [place for place, segment in enumerate(sealed) if gains[place] > least * segment.size]
    if worth:
        place = worth[0] if in_order else max(worth, key=lambda one: gains[one] / sealed[one].size)
        return _with_neighbours(sealed, gains, segment_bytes, place), front
    return _next_front(sealed, gains, front) if too_many else (None, front)


def _next_front(sealed: Sequence[Segment], gains: Sequence[int], front: int) -> tuple[slice | None, int]:
    """Return a segment whose rewrite may let newer segments drop what they have to keep because of its dead frames.

    One dead frame in front can hold back all later versions of its document. The passes over the log go from its
    beginning to its end, so that frames that die meanwhile do not stop them.
    """
    held = sum(segment.held for segment in sealed)
    for place, segment in enumerate(sealed):
        held -= segment.held
        if segment.ids[0] > front and gains[place] and held >= segment.live:
            return slice(place, place + 1), segment.ids[1]
    return None, 0


def _with_neighbours(sealed: Sequence[Segment], gains: Sequence[int], segment_bytes: int, place: int) -> slice:
    left = [segment.size - gain for segment, gain in zip(sealed, gains, strict=True)]
    start, end, live = place, place + 1, left[place]
    while end < len(sealed) and sealed[end].clustered and live + left[end] <= segment_bytes:
        live += left[end]
        end += 1
    while start > 0 and sealed[start - 1].clustered and live + left[start - 1] <= segment_bytes:
        start -= 1
        live += left[start]
    return slice(start, end)


class SegmentKeeper(Protocol):
    """Keeps rewritten segments and puts them in the place of their sources: the log."""

    def held(self, sources: Sequence[Segment]) -> Column | None: ...
    def keep(self, rewritten: Rewritten) -> Rewritten: ...
    def discard(self, rewritten: Rewritten | None) -> None: ...
    def install(self, sources: Sequence[Segment], rewritten: Rewritten) -> None: ...


class Compaction:
    """The rewriting of some segments of a log, neighbours, into one.

    error: what the disk said, if it did not take it; ENOMEM, if there was no memory for the work.
    """

    def __init__(self, log: SegmentKeeper, sources: Sequence[Segment], limits: Limits) -> None:
        self.sources = sources
        self.error: OSError | None = None
        self._log = log
        self._limits = limits
        self._cuts = [source.cuts for source in sources]
        self._fates: list[Column] = [source.fate.copy() for source in sources]
        self._rewritten: Rewritten | None = None

    def run(self) -> None:
        """Do the work, all but to put it in place."""
        held = self._log.held(self.sources)
        try:
            self._rewritten = self._log.keep(rewrite(self.sources, self._fates, self._limits, held))
        except OSError as error:
            self.error = error
        except MemoryError:
            self.error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        pa.default_memory_pool().release_unused()  # Arrow would keep what the copying took, up to 30 MB

    def finish(self) -> bool:
        """Let the new segment stand for the old ones.

        False, and nothing has changed: it could not be written, or a rollback meanwhile wants frames back.
        """
        if self._rewritten is None or [source.cuts for source in self.sources] != self._cuts:
            self._log.discard(self._rewritten)
            return False
        self._log.install(self.sources, self._rewritten)
        self.sources, self._fates, self._rewritten = (), [], None  # the log decides where the old ones end
        return True
