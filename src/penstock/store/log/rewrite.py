"""The pure half of compaction: which frames of some segments are kept, and one segment with those frames.

A frame is dropped only together with, or after, every older frame of its document. Otherwise a reader of the log would
find the older frame, and nothing that supersedes it: the deleted document would return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.store.log.frame_fields import read_delete_times, read_keys, read_rev_seqnos
from penstock.store.log.records import read_supersedes
from penstock.store.log.row_lookup import find_rows
from penstock.store.log.segment import CUT, Column, Lengths, Rows, Segment, gather_frames, gather_pieces, new_buffer

Numbers = npt.NDArray[np.uint16]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_NONE = np.zeros(0, np.int64)
_LAST_SEQNO = 2**63 - 1
_VBUCKET_AT = 47  # the bit, in one number of vbucket and seqno


class PurgeRequest(NamedTuple):
    """Tombstones of one vbucket that a compaction drops, although the purge age has not passed.

    Attributes:
        vbucket: the vbucket whose tombstones are dropped.
        before: epoch second; tombstones of documents that were deleted earlier are dropped.
        up_to_seqno: `before` applies only to tombstones up to this seqno; 0: to all.
        everything: drop every tombstone; the two limits do not apply.
    """

    vbucket: int
    before: int = 0
    up_to_seqno: int = 0
    everything: bool = False

    def select(self, vbuckets: Numbers, seqnos: Column, times: Column) -> Mask:
        """Return which rows the request covers.

        Args:
            vbuckets: the vbucket of each row.
            seqnos: the seqno of each row.
            times: when the documents were deleted, in epoch seconds; 0 for live ones.
        """
        selected: Mask = (vbuckets == self.vbucket) & (times > 0)
        if not self.everything:
            selected &= times < self.before
            if self.up_to_seqno:
                selected &= seqnos <= min(self.up_to_seqno, _LAST_SEQNO)
        return selected


class RewriteLimits(NamedTuple):
    """The frames that a rewrite may drop.

    Attributes:
        floors: for each vbucket the highest seqno whose superseded frame may be dropped. Tombstones above it stay, too.
        last_seqnos: for each vbucket the seqno of its newest change, which stays.
        purge_before: epoch second; tombstones of documents deleted earlier may be dropped. 0: no tombstone may.
        find_kept: returns ids (as `make_change_ids`) of tombstones that stay. The rewriting thread calls it only if
            there are tombstones to drop, because there can be millions of ids.
        purge: more tombstones that may be dropped, at a client's request.
    """

    floors: Column
    last_seqnos: Column
    purge_before: int = 0
    find_kept: Callable[[], Column] = lambda: _NONE
    purge: PurgeRequest | None = None


class JoinedRows(NamedTuple):
    """The rows of several segments, one after the other. fates: Segment.fates at the beginning of the rewrite."""

    vbuckets: Numbers
    seqnos: Column
    lengths: Lengths
    fates: Column


class RowChoice(NamedTuple):
    """The rows of some segments that are kept, and the costs of keeping them.

    Attributes:
        rows: the rows to keep, in the order of (vbucket, seqno).
        passed: for each vbucket the highest seqno that superseded a dropped frame, 0 if there was none.
        purged: the rows of tombstones that are dropped.
        held_bytes: bytes of frames that stay only because an older segment has an older frame of their document.
        recent_bytes: bytes of superseded frames above the floors.
    """

    rows: Column
    passed: Column
    purged: Column
    held_bytes: int = 0
    recent_bytes: int = 0


class PurgedTombstone(NamedTuple):
    """A tombstone that was dropped."""

    vbucket: int
    key: bytes
    seqno: int
    rev_seqno: int


class RewrittenSegment(NamedTuple):
    """The result of a rewrite.

    Attributes:
        segment: the new segment, without superseding seqnos. These are in the rows of the sources that `choice` lists.
        choice: the rows that were kept.
        purged: the tombstones that were dropped.
        draft: the name of the segment's file; empty in memory.
    """

    segment: Segment
    choice: RowChoice
    purged: list[PurgedTombstone]
    draft: str = ""


def join_rows(sources: Sequence[Segment], fates: Sequence[Column]) -> JoinedRows:
    """Return the rows of segments one after the other, with their fates."""
    return JoinedRows(
        np.concatenate([source.vbuckets for source in sources]),
        np.concatenate([source.seqnos for source in sources]),
        np.concatenate([source.lengths for source in sources]),
        np.concatenate(fates),
    )


def choose_rows(
    rows: JoinedRows, limits: RewriteLimits, purgeable: Mask | None = None, held: Column | None = None
) -> RowChoice:
    """Choose the rows to keep.

    Args:
        rows: the rows of all segments.
        limits: the frames that may be dropped.
        purgeable: which rows are tombstones that may be dropped; None: no row.
        held: ids (as `make_change_ids`) of changes that superseded a frame in an older segment. None for a log in
            memory, which no program reads from its beginning.

    Returns:
        The rows to keep.
    """
    fates = rows.fates
    superseded = (fates > 0) & (fates <= limits.floors[rows.vbuckets])
    expendable = superseded.copy()
    if purgeable is not None:
        purgeable &= (fates == 0) & (rows.seqnos != limits.last_seqnos[rows.vbuckets])
        purgeable &= rows.seqnos <= limits.floors[rows.vbuckets]
        if purgeable.any():
            purgeable &= ~_find_members(make_change_ids(rows.vbuckets, rows.seqnos), limits.find_kept())
        expendable |= purgeable
    held_bytes = 0
    if held is not None:
        before = expendable.copy()
        _keep_superseding_rows(rows, expendable, held)
        held_bytes = int(rows.lengths[before & ~expendable].sum(dtype=np.int64))
        superseded &= expendable
    recent = int(rows.lengths[fates > limits.floors[rows.vbuckets]].sum(dtype=np.int64))
    passed = _find_highest(rows.vbuckets, fates, superseded, len(limits.floors))
    purged = np.zeros(0, np.int64) if purgeable is None else np.flatnonzero(purgeable & expendable)
    kept = np.flatnonzero(~expendable & (fates != CUT))
    return RowChoice(kept[np.argsort(rows.vbuckets[kept], kind="stable")], passed, purged, held_bytes, recent)


def _keep_superseding_rows(rows: JoinedRows, expendable: Mask, held: Column) -> None:
    """Keep the rows that supersede a kept frame, and those that supersede these rows in turn.

    The kept frame may be in an older segment or here.
    """
    staying = (rows.fates > 0) & ~expendable
    blocked = np.concatenate([held, make_change_ids(rows.vbuckets[staying], rows.fates[staying])])
    candidates = np.flatnonzero(expendable)
    candidates = candidates[np.lexsort((rows.seqnos[candidates], rows.vbuckets[candidates]))]
    vbuckets, seqnos = rows.vbuckets[candidates], rows.seqnos[candidates]
    found = np.flatnonzero(_find_members(make_change_ids(vbuckets, seqnos), blocked))
    if not len(found):
        return
    # From version to version of all documents at once; each row is looked at once, however many a document has.
    nexts = find_rows(vbuckets, seqnos, vbuckets, rows.fates[candidates])
    kept = np.zeros(len(candidates), bool)
    while len(found):
        kept[found] = True
        found = nexts[found]
        found = found[found >= 0]
        found = found[~kept[found]]
    expendable[candidates[kept]] = False


def _find_members(names: Column, others: Column) -> Mask:
    """Return which ids are among others. np.isin would hold the GIL all the time; sorting and searching do not."""
    if not len(others):
        return np.zeros(len(names), bool)
    others = np.sort(others)
    places = np.minimum(np.searchsorted(others, names), len(others) - 1)
    among: Mask = others[places] == names
    return among


def make_change_ids(vbuckets: Numbers, seqnos: Column) -> Column:
    """Return one number for each (vbucket, seqno). Two of them may be equal only with seqnos above 2^47."""
    return seqnos ^ (vbuckets.astype(np.int64) << _VBUCKET_AT)


def find_superseding_changes(segments: Sequence[Segment]) -> Column:
    """Return the ids of all changes that supersede a frame in these segments."""
    found = [np.zeros(0, np.int64)]
    for segment in segments:
        if segment.dead_bytes:
            fates = segment.fates
            rows = np.flatnonzero(fates > 0)
            found.append(make_change_ids(segment.vbuckets[rows], fates[rows]))
    return np.concatenate(found)


def _find_highest(vbuckets: Numbers, seqnos: Column, mask: Mask, count: int) -> Column:
    highest = np.zeros(count, np.int64)
    np.maximum.at(highest, vbuckets[mask], seqnos[mask])
    return highest


def rewrite_segments(
    sources: Sequence[Segment], fates: Sequence[Column], limits: RewriteLimits, held: Column | None = None
) -> RewrittenSegment:
    """Rewrite neighbouring segments into one clustered segment.

    Args:
        sources: the segments, oldest first.
        fates: Segment.fates of each source, at the beginning of the rewrite.
        limits: the frames that may be dropped.
        held: as of `choose_rows`. If it is given, the segment gets the supersedes column.

    Returns:
        The new segment.
    """
    rows = join_rows(sources, fates)
    times = purgeable = None
    if limits.purge_before or limits.purge is not None:
        times = np.concatenate([read_delete_times(source.buffer, source.offsets) for source in sources])
        purgeable = (times > 0) & (times < limits.purge_before)
        if limits.purge is not None:
            purgeable |= limits.purge.select(rows.vbuckets, rows.seqnos, times)
    choice = choose_rows(rows, limits, purgeable, held)
    kept = choice.rows
    starts = np.zeros(len(limits.floors) + 1, np.int32)
    np.cumsum(np.bincount(rows.vbuckets[kept], minlength=len(limits.floors)), out=starts[1:])
    lengths = rows.lengths[kept]
    packed = np.cumsum(lengths, dtype=np.int64) - lengths
    supersedes = (
        None if held is None else np.concatenate([_read_segment_supersedes(source) for source in sources])[kept]
    )
    columns = Rows(rows.seqnos[kept], packed.astype(np.uint32), lengths, np.zeros(len(kept), np.int64), supersedes)
    frames = _gather_frames(sources, kept, lengths)
    segment = Segment(frames, starts, columns, ids=(sources[0].ids[0], sources[-1].ids[1]))
    segment.held_bytes = choice.held_bytes
    segment.sealed_at = max((source.sealed_at for source in sources if source.size), default=sources[-1].sealed_at)
    if times is not None:
        tombstones = (times[kept] > 0) & (rows.fates[kept] == 0)
        segment.tombstone_bytes = int(lengths[tombstones].sum(dtype=np.int64))
        segment.purge_at = int(times[kept][tombstones].max(initial=0))
    return RewrittenSegment(segment, choice, _read_purged(sources, rows, choice.purged))


def _read_purged(sources: Sequence[Segment], rows: JoinedRows, gone: Column) -> list[PurgedTombstone]:
    found: list[PurgedTombstone] = []
    first = 0
    for source in sources:
        here = gone[(gone >= first) & (gone < first + len(source.seqnos))]
        offsets = source.offsets[here - first]
        order = np.argsort(offsets)
        here, offsets = here[order], offsets[order]
        numbers, seqnos = rows.vbuckets[here].tolist(), rows.seqnos[here].tolist()
        revs = read_rev_seqnos(source.buffer, offsets).tolist()
        found += map(PurgedTombstone, numbers, read_keys(source.buffer, offsets), seqnos, revs)
        first += len(source.seqnos)
    return found


def _read_segment_supersedes(source: Segment) -> Column:
    return read_supersedes(source.buffer, source.offsets) if source.supersedes is None else source.supersedes


def _gather_frames(sources: Sequence[Segment], kept: Column, lengths: Lengths) -> memoryview:
    """Return the frames of these rows of the sources, next to each other."""
    if not len(kept):
        return memoryview(b"")
    if len(sources) == 1:
        return gather_frames(sources[0].buffer, sources[0].offsets[kept].astype(np.int64), lengths)
    # Piece by piece, so that hardly anything is in memory three times.
    ends = np.cumsum(lengths, dtype=np.int64)
    target = np.frombuffer(new_buffer(int(ends[-1])), np.uint8)
    first = 0
    for source in sources:
        here = np.flatnonzero((kept >= first) & (kept < first + len(source.seqnos)))
        offsets = source.offsets[kept[here] - first].astype(np.int64)
        for part, piece in gather_pieces(source.buffer, offsets, lengths[here]):
            rows = here[part]
            _copy_frames(np.frombuffer(piece, np.uint8), rows, lengths[rows], target, ends)
        first += len(source.seqnos)
    return target.data


def _copy_frames(frames: Bytes, rows: Column, lengths: Lengths, target: Bytes, ends: Column) -> None:
    """Copy adjacent frames to the places of these rows. ends: where each row ends in the target."""
    runs = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    starts = (ends[rows[runs]] - lengths[runs]).tolist()
    bounds = [*(np.cumsum(lengths, dtype=np.int64)[runs] - lengths[runs]).tolist(), len(frames)]
    # numpy lets other threads go on while it copies a long run.
    for start, begin, end in zip(starts, bounds[:-1], bounds[1:], strict=True):
        target[start : start + end - begin] = frames[begin:end]
