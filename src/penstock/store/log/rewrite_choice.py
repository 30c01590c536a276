"""Which segments of a log are worth a rewrite, and which is next."""

from __future__ import annotations

from collections.abc import Sequence, Set

from penstock.store.log.segment import Segment

MOST_DEAD = 0.2
"""The part of all frames that may be dead. Above it segments are rewritten that are dead to a smaller part."""

PRESSED = 0.125
"""The part of a segment that is worth a rewrite while the memory quota is nearly used up."""

_WORTH = 0.5  # the same where there is no hurry
_NANOSECONDS = 10**9


def estimate_gain(segment: Segment, now: int, purge_age: float) -> int:
    """Return how many bytes a rewrite of a clustered segment is known to drop; 0 for an unclustered segment.

    Args:
        segment: the segment.
        now: nanoseconds since the epoch.
        purge_age: seconds that a tombstone stays.
    """
    if not segment.is_clustered:
        return 0
    overdue = 0 < segment.purge_at < now // _NANOSECONDS - purge_age
    gain = segment.dead_bytes + (segment.tombstone_bytes if overdue else 0)
    return gain if now >= segment.stuck_until else max(gain - segment.stuck_bytes, 0)


def find_unclustered(sealed: Sequence[Segment], unready: Set[int]) -> slice | None:
    """Return the oldest segment that is ready to be clustered; None for none."""
    for place, segment in enumerate(sealed):
        if not segment.is_clustered and segment.ids[0] not in unready:
            return slice(place, place + 1)
    return None


def choose_next_rewrite(
    sealed: Sequence[Segment],
    gains: Sequence[int],
    segment_bytes: int,
    *,
    front: int,
    pressed: bool,
    in_order: bool = True,
) -> tuple[slice | None, int]:
    """Choose the segments to rewrite next: one that is worth it, and its neighbours.

    A segment is worth it if a rewrite drops half of it. If more than MOST_DEAD of the whole log is dead, MOST_DEAD of
    the segment is enough.

    Args:
        sealed: the sealed segments, oldest first.
        gains: for each of them the bytes that a rewrite drops.
        segment_bytes: neighbours are rewritten together if the result is at most that long.
        front: as returned by the last call, at first 0.
        pressed: memory is short.
        in_order: choose the oldest segment, because its dead frames protect frames in newer segments. Otherwise the
            segment with the best ratio of dropped to copied bytes; with uniform overwrites that copies a quarter less.

    Returns:
        The segments, None for none, and the next `front`.
    """
    most = MOST_DEAD * sum(segment.size for segment in sealed)
    too_many = sum(segment.dead_bytes for segment in sealed) > most
    least = PRESSED if pressed else MOST_DEAD if too_many else _WORTH
    worth = [place for place, segment in enumerate(sealed) if gains[place] > least * segment.size]
    if worth:
        place = worth[0] if in_order else max(worth, key=lambda one: gains[one] / sealed[one].size)
        return _add_neighbours(sealed, gains, segment_bytes, place), front
    return _choose_next_front(sealed, gains, front) if too_many else (None, front)


def _choose_next_front(sealed: Sequence[Segment], gains: Sequence[int], front: int) -> tuple[slice | None, int]:
    """Choose a segment whose dead frames keep newer segments from dropping frames.

    One dead frame in an old segment can protect all later versions of its document. The passes go from the oldest
    segment to the newest, so that frames that die meanwhile do not stop them.

    Returns:
        The segment, None for none, and the next `front`.
    """
    held = sum(segment.held_bytes for segment in sealed)
    for place, segment in enumerate(sealed):
        held -= segment.held_bytes
        if segment.ids[0] > front and gains[place] and held >= segment.live_bytes:
            return slice(place, place + 1), segment.ids[1]
    return None, 0


def _add_neighbours(sealed: Sequence[Segment], gains: Sequence[int], segment_bytes: int, place: int) -> slice:
    left = [segment.size - gain for segment, gain in zip(sealed, gains, strict=True)]
    start, end, live = place, place + 1, left[place]
    while end < len(sealed) and sealed[end].is_clustered and live + left[end] <= segment_bytes:
        live += left[end]
        end += 1
    while start > 0 and sealed[start - 1].is_clustered and live + left[start - 1] <= segment_bytes:
        start -= 1
        live += left[start]
    return slice(start, end)


def choose_next_in_pass(
    sealed: Sequence[Segment], left: Sequence[int], passed: int, segment_bytes: int
) -> slice | None:
    """Return the next segments of a pass over everything, together at most segment_bytes long; None at the end.

    Args:
        sealed: the sealed segments, oldest first.
        left: for each of them the bytes that a rewrite keeps.
        passed: the number of the last segment that the pass has rewritten.
        segment_bytes: the greatest length of the result.
    """
    start = next((place for place, segment in enumerate(sealed) if segment.ids[0] > passed), None)
    if start is None or not sealed[start].is_clustered:
        return None
    end, live = start + 1, left[start]
    while end < len(sealed) and sealed[end].is_clustered and live + left[end] <= segment_bytes:
        live += left[end]
        end += 1
    return slice(start, end)
