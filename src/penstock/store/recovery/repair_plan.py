"""What is left of a bucket whose files are damaged, what is lost, and what its consumers have to be told.

What is lost, and why nobody comes to believe in a history that never was:

- The log counts up to the first bad record. What comes behind is lost too: it may depend on what was there, and any
  beginning of the log is a state that the bucket has been in. Active vbuckets begin a branch at the newest change that
  is left, as after a crash; consumers that have seen more roll back to it.
- If a segment was made when the log was already longer, frames may be missing in it that only changes behind that
  place had superseded. Then all vbuckets begin another history, with what is left: every consumer starts over.
- Of a segment, the frames in bad parts are lost; all of them, where it does not say what it holds. What they had
  superseded is back, unless something newer supersedes it. A vbucket that lost some begins a branch in front of the
  first of them, or, if a snapshot could no longer end there, another history. Behind its bad part, a log may have said
  that a snapshot cannot end there: then it is another history as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import DurableLog
from penstock.store.disk.sealed_segment import SegmentFile
from penstock.store.history.vbucket_changes import VbucketChanges
from penstock.store.history.vbucket_history import VbucketHistory
from penstock.store.log.frame_fields import read_by_seqnos, read_keys, read_vbuckets
from penstock.store.log.records import salvage_records
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import CUT, Column, Rows, Segment, gather_frames
from penstock.store.recovery.found_files import Damage, FileGap, FoundFiles, IgnoredLog
from penstock.store.recovery.log_replay import recover_log
from penstock.store.recovery.overlay import DiscardingDirectory
from penstock.wire.codec.constants import VbucketState

__all__ = [
    "DamageLoss",
    "LostChanges",
    "RemainingVbucket",
    "RepairPlan",
    "TrialRecovery",
    "apply_plan",
    "describe_vbucket",
    "plan_repair",
]

Mask = npt.NDArray[np.bool_]


class LostChanges(NamedTuple):
    """Changes of a vbucket that are lost.

    Attributes:
        changes: how many; None: unknown, any of those with these seqnos.
        last_seqno: None: unknown.
    """

    vbucket: int
    changes: int | None
    first_seqno: int
    last_seqno: int | None


class DamageLoss(NamedTuple):
    """What a damage costs.

    Attributes:
        notes: how many notes about the states of vbuckets are lost.
        unreadable: bytes that cannot be read any more.
    """

    damage: Damage
    lost: list[LostChanges]
    notes: int = 0
    unreadable: int = 0


class RemainingVbucket(NamedTuple):
    """What there is, or is left, of a vbucket.

    Attributes:
        state: None while it is deleted.
        rollback: the seqno to which consumers go back that have seen more; None: nothing was lost.
    """

    vbucket: int
    state: VbucketState | None
    documents: int
    changes: int
    first_seqno: int
    high_seqno: int
    rollback: int | None


class RepairPlan(NamedTuple):
    """What a repair makes of a bucket.

    Attributes:
        found: the files after the repair.
        rebuilt: segments that have to be written for that.
        is_cut: the log lost its end.
        behind: numbers of log files that do not count any longer.
        first_lost: by vbucket, the lowest seqno of a change that may be lost from a segment.
        floors: by vbucket, the least lowest_snapshot_end after the repair.
        starts_over: all vbuckets begin another history.
        described: what else is known of vbuckets, where no log file is left.
        clean: the bucket was closed well.
    """

    losses: list[DamageLoss]
    found: FoundFiles
    rebuilt: list[SegmentFile]
    is_cut: bool
    dropped_logs: list[int]
    first_lost: dict[int, int]
    floors: dict[int, int]
    starts_over: bool
    descriptions: Mapping[int, Mapping[str, Any]]
    was_clean: bool


class RecoveredBucket(NamedTuple):
    log: DurableLog
    histories: list[VbucketHistory]


class TrialRecovery:
    """A bucket with nothing in it, again and again. said: what its directory says; the others: as of Bucket.open."""

    def __init__(self, record: Mapping[str, Any], *, clock: Callable[[], int], new_vbuuid: Callable[[], int]) -> None:
        self.record = record
        self.uuid = bytes.fromhex(record["uuid"])
        self._clock = clock
        self._new_vbuuid = new_vbuuid

    def recover(
        self, found: FoundFiles, described: Mapping[int, Mapping[str, Any]], directory: Directory | None = None
    ) -> RecoveredBucket:
        """Return it with what was found. directory: what it writes to, None: to nothing."""
        indexes = [RowIndex(vbucket) for vbucket in range(self.record["vbuckets"])]
        files = directory or DiscardingDirectory(Path())
        log = DurableLog(indexes, files, BucketSettings(), uuid=self.uuid, clock=self._clock)
        histories = [
            VbucketHistory(VbucketChanges(index, log, clock=self._clock), new_vbuuid=self._new_vbuuid)
            for index in indexes
        ]
        log.segments.histories = histories
        for vbucket, description in described.items():
            histories[vbucket].restore(description)
        recover_log(log, histories, found)
        return RecoveredBucket(log, histories)


# Planning


def plan_repair(found: FoundFiles, blank: TrialRecovery) -> RepairPlan:
    """Return what a repair makes of files. Raises StoreDamaged for a note that is whole, and says what cannot be."""
    if not found.damage:
        return RepairPlan([], found, [], False, [], {}, {}, False, {}, found.is_clean)
    described = (
        {} if found.logs or found.end is None else _read_descriptions(found.end.ignored, blank.record["vbuckets"])
    )
    histories = blank.recover(found, described).histories
    bad = [_mask_blocks(sealed.segment, blocks) for sealed, blocks in _group_by_segment(found)]
    losses = [DamageLoss(damage, []) for damage in found.other_damage]
    losses += [
        DamageLoss(one.damage, _find_lost_in_blocks(found.sealed[one.place].segment, [one.block]))
        for one in found.bad_blocks
    ]
    losses += [DamageLoss(gap.damage, _find_lost_in_gap(gap, histories)) for gap in found.gaps]
    first_lost: dict[int, int] = {}
    for lost in (lost for loss in losses for lost in loss.lost):
        first_lost[lost.vbucket] = min(lost.first_seqno, first_lost.get(lost.vbucket, lost.first_seqno))
    sealed = [_remove_rows(one, rows) if rows.any() else one for one, rows in zip(found.sealed, bad, strict=True)]
    sealed += [_make_empty_segment(gap.ids, len(histories)) for gap in found.gaps]
    sealed.sort(key=lambda one: one.segment.ids)
    left = found._replace(sealed=sealed, bad_blocks=[], gaps=[], end=None, other_damage=[])
    starts_over = found.end is not None and _is_newer_than_log(found)
    concerned = range(len(histories)) if starts_over else sorted(first_lost)
    floors: dict[int, int] = {}
    if concerned:
        left, floors = _remove_older_versions(left, blank.recover(left, described).histories, concerned)
    if found.end is not None:
        losses.append(_find_lost_behind(found.end.damage, found.end.ignored))
    return RepairPlan(
        losses,
        left,
        rebuilt=[one for one in left.sealed if not one.nbytes],
        is_cut=found.end is not None,
        dropped_logs=[] if found.end is None else [behind.number for behind in found.end.ignored],
        first_lost=first_lost,
        floors=floors,
        starts_over=starts_over,
        descriptions=described,
        was_clean=found.is_clean,
    )


def _group_by_segment(found: FoundFiles) -> list[tuple[SegmentFile, list[slice]]]:
    blocks: list[list[slice]] = [[] for _ in found.sealed]
    for bad in found.bad_blocks:
        blocks[bad.place].append(bad.block)
    return list(zip(found.sealed, blocks, strict=True))


def _mask_blocks(segment: Segment, blocks: Iterable[slice]) -> Mask:
    """Return which rows have some of their frame in one of these parts of the frames."""
    starts = segment.offsets.astype(np.int64)
    ends = starts + segment.lengths
    mask = np.zeros(len(starts), bool)
    for block in blocks:
        mask |= (starts < block.stop) & (ends > block.start)
    return mask


def _find_lost_in_blocks(segment: Segment, blocks: list[slice]) -> list[LostChanges]:
    rows = _mask_blocks(segment, blocks) & (segment.fates != CUT)
    return _count_lost(segment.vbuckets[rows], segment.seqnos[rows])


def _count_lost(vbuckets: npt.NDArray[np.uint16], seqnos: Column) -> list[LostChanges]:
    """Return how many changes that is of each vbucket, with which seqnos."""
    found = []
    for vbucket in np.unique(vbuckets).tolist():
        of_it = seqnos[vbuckets == vbucket]
        found.append(LostChanges(vbucket, len(of_it), int(of_it.min()), int(of_it.max())))
    return found


def _find_lost_in_gap(gap: FileGap, histories: Sequence[VbucketHistory]) -> list[LostChanges]:
    """Return what may have been in files of which nothing is left: what lies between the others."""
    found = []
    for history in histories:
        before, after = _find_seqnos_around(history.index, gap.ids)
        if history.state is not None and after != before + 1:
            found.append(LostChanges(history.id, None, before + 1, after - 1 if after else None))
    return found


def _find_seqnos_around(index: RowIndex, ids: tuple[int, int]) -> tuple[int, int]:
    """Return the last seqno in front of some log files, and the first behind them; 0 for none."""
    before = after = 0
    for segment, first in zip(index.segments, index.first_seqnos, strict=True):
        if segment.ids[1] < ids[0]:
            before = segment.seqnos_at[segment.ends[index.vbucket] - 1]
        elif not after:
            after = first
    if not after and index.seqnos_at:
        after = index.seqnos_at[0]
    return before, after


def _find_lost_behind(damage: Damage, behind: Iterable[IgnoredLog]) -> DamageLoss:
    """Return what is lost with the rest of the log, as far as it can be read."""
    vbuckets, seqnos = [np.zeros(0, np.uint16)], [np.zeros(0, np.int64)]
    notes = unreadable = 0
    for file in behind:
        at = file.start
        for start, scanned in salvage_records(file.data, file.seed, at):
            vbuckets.append(read_vbuckets(file.data, scanned.offsets))
            seqnos.append(read_by_seqnos(file.data, scanned.offsets))
            notes += len(scanned.notes)
            unreadable += start - at
            at = scanned.end
        unreadable += len(file.data) - at
    return DamageLoss(damage, _count_lost(np.concatenate(vbuckets), np.concatenate(seqnos)), notes, unreadable)


def _read_descriptions(behind: Iterable[IgnoredLog], vbuckets: int) -> dict[int, dict[str, Any]]:
    """Return the newest descriptions of vbuckets that can be read in log files that do not count."""
    found: dict[int, dict[str, Any]] = {}
    for file in behind:
        for _, scanned in salvage_records(file.data, file.seed, file.start):
            for _, text in scanned.notes:
                said = json.loads(text)
                for description in said.get("head", [said] if "vbucket" in said else []):
                    if description["vbucket"] < vbuckets:
                        found[description["vbucket"]] = description
    return found


def _is_newer_than_log(found: FoundFiles) -> bool:
    """Tell whether a segment was made when the log was longer than it is now, or nothing is left of the log."""
    if not found.logs:
        return True
    end = found.logs[-1].number, found.logs[-1].scanned.end
    return any(sealed.as_of > end for sealed in found.sealed)


# Segments


def _remove_rows(sealed: SegmentFile, gone: Mask) -> SegmentFile:
    """Return a segment without some of its rows."""
    segment = sealed.segment
    assert segment.supersedes is not None
    kept = np.flatnonzero(~gone)
    starts = np.zeros(len(segment.starts), np.int32)
    np.cumsum(np.bincount(segment.vbuckets[kept], minlength=len(starts) - 1), out=starts[1:])
    lengths = segment.lengths[kept]
    packed = (np.cumsum(lengths, dtype=np.int64) - lengths).astype(np.uint32)
    frames = memoryview(b"")
    if len(kept):
        frames = gather_frames(segment.buffer, segment.offsets[kept].astype(np.int64), lengths)
    rows = Rows(segment.seqnos[kept], packed, lengths, np.zeros(len(kept), np.int64), segment.supersedes[kept])
    left = Segment(frames, starts, rows, ids=segment.ids)
    left.sealed_at = segment.sealed_at
    return sealed._replace(segment=left, name="", nbytes=0)


def _make_empty_segment(ids: tuple[int, int], vbuckets: int) -> SegmentFile:
    """Return a segment without a row."""
    nothing = np.zeros(0, np.int64)
    lengths = nothing.astype(np.uint32)
    rows = Rows(nothing, lengths, lengths, nothing, nothing)
    segment = Segment(memoryview(b""), np.zeros(vbuckets + 1, np.int32), rows, ids=ids)
    return SegmentFile(segment, (0, 0), lengths)


class _Version(NamedTuple):
    """A change of a document. place, row: where it lies among the segments; None: in a log file."""

    seqno: int
    is_live: bool
    place: tuple[int, int] | None


def _remove_older_versions(
    found: FoundFiles, histories: Sequence[VbucketHistory], vbuckets: Iterable[int]
) -> tuple[FoundFiles, dict[int, int]]:
    """Let only the newest change of each document count, also where what had superseded another one is lost.

    That one goes, with all that are older: what it superseded would be back. Returns the files without them, and for
    each vbucket the highest seqno of a change that supersedes one now.
    """
    places = {id(sealed.segment): place for place, sealed in enumerate(found.sealed)}
    gone = [np.zeros(len(sealed.segment.seqnos), bool) for sealed in found.sealed]
    floors: dict[int, int] = {}
    for vbucket in vbuckets:
        for versions in _read_versions(histories[vbucket].index, places).values():
            back = max((n for n, version in enumerate(versions[:-1]) if version.is_live), default=-1)
            for version in versions[: back + 1]:
                assert version.place is not None, "a change in the log is superseded by one that was in a segment"
                place, row = version.place
                gone[place][row] = True
            if back >= 0:
                floors[vbucket] = max(versions[back + 1].seqno, floors.get(vbucket, 0))
    sealed = [_remove_rows(one, rows) if rows.any() else one for one, rows in zip(found.sealed, gone, strict=True)]
    return found._replace(sealed=sealed), floors


def _read_versions(index: RowIndex, places: Mapping[int, int]) -> dict[bytes, list[_Version]]:
    """Return all changes that a vbucket has of each document, oldest first. places: of segments, by their ids."""
    found: dict[bytes, list[_Version]] = {}
    for segment in index.segments:
        place = places.get(id(segment))
        rows = range(segment.starts[index.vbucket], segment.ends[index.vbucket])
        offsets = segment.offsets[rows.start : rows.stop].astype(np.int64)
        for row, key in zip(rows, read_keys(segment.buffer, offsets), strict=True):
            where = None if place is None else (place, row)
            version = _Version(segment.seqnos_at[row], not segment.superseded_at[row], where)
            found.setdefault(key, []).append(version)
    tail = zip(
        read_keys(index.buffer, np.array(index.offsets_at, np.int64)), index.seqnos_at, index.superseded_at, strict=True
    )
    for key, seqno, superseded in tail:
        found.setdefault(key, []).append(_Version(seqno, not superseded, None))
    return found


# Carrying it out


def apply_plan(histories: Sequence[VbucketHistory], plan: RepairPlan) -> dict[int, int]:
    """Let vbuckets with what is left of them begin the branches that tell their consumers so.

    Returns, by vbucket, where those have to go back to that have seen more.
    """
    rollbacks = {}
    for history in histories:
        first, index = plan.first_lost.get(history.id), history.index
        if history.state is None:
            continue
        seqno = history.changes.high_seqno if first is None else min(first - 1, history.changes.high_seqno)
        starts_over = plan.starts_over or (first is not None and (plan.is_cut or seqno < index.lowest_snapshot_end))
        index.raise_floors(plan.floors.get(history.id, 0))
        if starts_over or first is not None:
            history.changes.invalidate_collections()
        if starts_over:
            history.start_new_history()
            rollbacks[history.id] = 0
        elif first is not None or (history.state is VbucketState.ACTIVE and not plan.was_clean):
            history.begin_branch(seqno)
            rollbacks[history.id] = seqno
    return rollbacks


def describe_vbucket(history: VbucketHistory, rollback: int | None) -> RemainingVbucket:
    """Return what there is of a vbucket."""
    index = history.index
    tail = index.seqnos_at
    sealed = sum(segment.ends[history.id] - segment.starts[history.id] for segment in index.segments)
    first = index.first_seqnos[0] if index.first_seqnos else tail[0] if tail else 0
    return RemainingVbucket(
        history.id,
        history.state,
        history.changes.items,
        sealed + len(tail),
        first,
        history.changes.high_seqno,
        rollback,
    )
