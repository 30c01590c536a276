"""Which frames of some segments are to be kept, and those in one segment: the pure half of compaction.

A frame is dropped only together with, or after, every older frame of its document. Otherwise whoever reads the log
from its beginning would find the older frame, and nothing that supersedes it: the document would be back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.store.log.frame_fields import delete_times, keys, rev_seqnos
from penstock.store.log.records import supersedes_of
from penstock.store.log.row_lookup import find_rows
from penstock.store.log.segment import CUT, Column, Lengths, Rows, Segment, gather, gather_pieces, new_buffer

__all__ = ["Choice", "Limits", "PurgeRequest", "Purged", "Rewritten", "choose", "rewrite"]

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
        """Return which rows the request covers. times: when the documents were deleted, 0 for live ones."""
        selected: Mask = (vbuckets == self.vbucket) & (times > 0)
        if not self.everything:
            selected &= times < self.before
            if self.up_to_seqno:
                selected &= seqnos <= min(self.up_to_seqno, _LAST_SEQNO)
        return selected


class Limits(NamedTuple):
    """What may be dropped.

    Attributes:
        floors: for each vbucket the highest seqno whose superseded frame may be dropped.
        last_seqnos: for each vbucket the seqno of its newest change, which stays.
        purge_before: tombstones of documents deleted before this epoch second may be dropped; 0 for none.
        kept: returns names (as `name`) of tombstones that stay all the same. It is called on the thread that rewrites,
            and only if there are tombstones to drop: there can be millions of such names.
        purge: more tombstones that may be dropped, because a client asked for it.
    """

    floors: Column
    last_seqnos: Column
    purge_before: int = 0
    kept: Callable[[], Column] = lambda: _NONE
    purge: PurgeRequest | None = None


class Joined(NamedTuple):
    """The rows of several segments, one after the other. fates: as Segment.fate, when the work began."""

    vbuckets: Numbers
    seqnos: Column
    lengths: Lengths
    fates: Column


class Choice(NamedTuple):
    """Which rows of some segments are kept, and what that costs.

    Attributes:
        rows: the rows to be kept, in the order of (vbucket, seqno).
        passed: for each vbucket the highest seqno that superseded a dropped frame, 0 if there was none.
        purged: the rows of tombstones that are dropped.
        held: bytes of frames that are kept only because an older segment has an older frame of their document.
        recent: bytes of superseded frames that are above the floors.
    """

    rows: Column
    passed: Column
    purged: Column
    held: int = 0
    recent: int = 0


class Purged(NamedTuple):
    """A tombstone that was dropped."""

    vbucket: int
    key: bytes
    seqno: int
    rev_seqno: int


class Rewritten(NamedTuple):
    """What became of some segments.

    Attributes:
        segment: without superseding seqnos; they are found in the rows of the sources that `choice` lists.
        purged: the tombstones that were dropped.
        draft: the name of the segment's file, if it is in one.
    """

    segment: Segment
    choice: Choice
    purged: list[Purged]
    draft: str = ""


def join(sources: Sequence[Segment], fates: Sequence[Column]) -> Joined:
    return Joined(
        np.concatenate([source.vbuckets for source in sources]),
        np.concatenate([source.seqnos for source in sources]),
        np.concatenate([source.lengths for source in sources]),
        np.concatenate(fates),
    )


def choose(rows: Joined, limits: Limits, purgeable: Mask | None = None, held: Column | None = None) -> Choice:
    """Choose the rows to keep.

    purgeable: which rows are tombstones whose time is over. held: numbers (as `name`) of changes that superseded a
    frame in an older segment; None where nobody will read the log from its beginning.
    """
    fates = rows.fates
    superseded = (fates > 0) & (fates <= limits.floors[rows.vbuckets])
    expendable = superseded.copy()
    if purgeable is not None:
        purgeable &= (fates == 0) & (rows.seqnos != limits.last_seqnos[rows.vbuckets])
        if purgeable.any():
            purgeable &= ~_among(name(rows.vbuckets, rows.seqnos), limits.kept())
        expendable |= purgeable
    held_bytes = 0
    if held is not None:
        before = expendable.copy()
        _hold(rows, expendable, held)
        held_bytes = int(rows.lengths[before & ~expendable].sum(dtype=np.int64))
        superseded &= expendable
    recent = int(rows.lengths[fates > limits.floors[rows.vbuckets]].sum(dtype=np.int64))
    passed = _highest(rows.vbuckets, fates, superseded, len(limits.floors))
    purged = np.zeros(0, np.int64) if purgeable is None else np.flatnonzero(purgeable & expendable)
    kept = np.flatnonzero(~expendable & (fates != CUT))
    return Choice(kept[np.argsort(rows.vbuckets[kept], kind="stable")], passed, purged, held_bytes, recent)


def _hold(rows: Joined, expendable: Mask, held: Column) -> None:
    """Keep what supersedes a frame that is kept, in an older segment or here, and what supersedes that in its turn."""
    staying = (rows.fates > 0) & ~expendable
    blocked = np.concatenate([held, name(rows.vbuckets[staying], rows.fates[staying])])
    candidates = np.flatnonzero(expendable)
    candidates = candidates[np.lexsort((rows.seqnos[candidates], rows.vbuckets[candidates]))]
    vbuckets, seqnos = rows.vbuckets[candidates], rows.seqnos[candidates]
    found = np.flatnonzero(_among(name(vbuckets, seqnos), blocked))
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


def _among(names: Column, others: Column) -> Mask:
    """As np.isin, which holds all threads up for as long as it takes; sorting and searching do not."""
    if not len(others):
        return np.zeros(len(names), bool)
    others = np.sort(others)
    places = np.minimum(np.searchsorted(others, names), len(others) - 1)
    among: Mask = others[places] == names
    return among


def name(vbuckets: Numbers, seqnos: Column) -> Column:
    """Return one number for each (vbucket, seqno). Two may share one only with seqnos above 2^47."""
    return seqnos ^ (vbuckets.astype(np.int64) << _VBUCKET_AT)


def superseding(segments: Sequence[Segment]) -> Column:
    """Return the names of all changes that supersede a frame in these segments."""
    found = [np.zeros(0, np.int64)]
    for segment in segments:
        if segment.dead:
            fates = segment.fate
            rows = np.flatnonzero(fates > 0)
            found.append(name(segment.vbuckets[rows], fates[rows]))
    return np.concatenate(found)


def _highest(vbuckets: Numbers, seqnos: Column, mask: Mask, count: int) -> Column:
    highest = np.zeros(count, np.int64)
    np.maximum.at(highest, vbuckets[mask], seqnos[mask])
    return highest


def rewrite(
    sources: Sequence[Segment], fates: Sequence[Column], limits: Limits, held: Column | None = None
) -> Rewritten:
    """Return one clustered segment with what is to be kept of `sources`, which lie next to each other, oldest first.

    It holds the supersedes column if held is given.
    """
    rows = join(sources, fates)
    times = purgeable = None
    if limits.purge_before or limits.purge is not None:
        times = np.concatenate([delete_times(source.buffer, source.offsets) for source in sources])
        purgeable = (times > 0) & (times < limits.purge_before)
        if limits.purge is not None:
            purgeable |= limits.purge.select(rows.vbuckets, rows.seqnos, times)
    choice = choose(rows, limits, purgeable, held)
    kept = choice.rows
    starts = np.zeros(len(limits.floors) + 1, np.int32)
    np.cumsum(np.bincount(rows.vbuckets[kept], minlength=len(limits.floors)), out=starts[1:])
    lengths = rows.lengths[kept]
    packed = np.cumsum(lengths, dtype=np.int64) - lengths
    supersedes = None if held is None else np.concatenate([_supersedes(source) for source in sources])[kept]
    columns = Rows(rows.seqnos[kept], packed.astype(np.uint32), lengths, np.zeros(len(kept), np.int64), supersedes)
    frames = _frames(sources, kept, lengths)
    segment = Segment(frames, starts, columns, ids=(sources[0].ids[0], sources[-1].ids[1]))
    segment.held = choice.held
    segment.sealed_at = sources[-1].sealed_at
    if times is not None:
        tombstones = (times[kept] > 0) & (rows.fates[kept] == 0)
        segment.tombstone_bytes = int(lengths[tombstones].sum(dtype=np.int64))
        segment.purge_at = int(times[kept][tombstones].max(initial=0))
    return Rewritten(segment, choice, _purged(sources, rows, choice.purged))


def _purged(sources: Sequence[Segment], rows: Joined, gone: Column) -> list[Purged]:
    found: list[Purged] = []
    first = 0
    for source in sources:
        here = gone[(gone >= first) & (gone < first + len(source.seqnos))]
        offsets = source.offsets[here - first]
        order = np.argsort(offsets)
        here, offsets = here[order], offsets[order]
        numbers, seqnos = rows.vbuckets[here].tolist(), rows.seqnos[here].tolist()
        revs = rev_seqnos(source.buffer, offsets).tolist()
        found += map(Purged, numbers, keys(source.buffer, offsets), seqnos, revs)
        first += len(source.seqnos)
    return found


def _supersedes(source: Segment) -> Column:
    return supersedes_of(source.buffer, source.offsets) if source.supersedes is None else source.supersedes


def _frames(sources: Sequence[Segment], kept: Column, lengths: Lengths) -> memoryview:
    """Return the frames of these rows of the sources, next to each other."""
    if not len(kept):
        return memoryview(b"")
    if len(sources) == 1:
        return gather(sources[0].buffer, sources[0].offsets[kept].astype(np.int64), lengths)
    # Piece by piece, so that hardly anything is in memory three times.
    ends = np.cumsum(lengths, dtype=np.int64)
    target = np.frombuffer(new_buffer(int(ends[-1])), np.uint8)
    first = 0
    for source in sources:
        here = np.flatnonzero((kept >= first) & (kept < first + len(source.seqnos)))
        offsets = source.offsets[kept[here] - first].astype(np.int64)
        for part, piece in gather_pieces(source.buffer, offsets, lengths[here]):
            rows = here[part]
            _place(np.frombuffer(piece, np.uint8), rows, lengths[rows], target, ends)
        first += len(source.seqnos)
    return target.data


def _place(frames: Bytes, rows: Column, lengths: Lengths, target: Bytes, ends: Column) -> None:
    """Copy frames that lie next to each other to where these rows lie. ends: of all rows in the target."""
    runs = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    starts = (ends[rows[runs]] - lengths[runs]).tolist()
    bounds = [*(np.cumsum(lengths, dtype=np.int64)[runs] - lengths[runs]).tolist(), len(frames)]
    # numpy lets other threads go on while it copies a long run.
    for start, begin, end in zip(starts, bounds[:-1], bounds[1:], strict=True):
        target[start : start + end - begin] = frames[begin:end]
