"""The plan of a repair: the changes that are lost, the changes that remain, and the rollbacks of consumers.

These rules keep consumers from relying on a history that never existed:

- The log counts up to its first bad record. Later records are lost too, because they may depend on it. Any beginning of
  the log is a state that the bucket has had. Active vbuckets begin a branch at the newest remaining change, as after a
  crash. Consumers that have seen more roll back to that change.
- A segment may have been made when the log was longer than it is now. It may lack frames that only lost changes had
  superseded. So all vbuckets start a new history with the remaining changes: every consumer restarts from zero.
  The same holds if the log may have lost the note about the frames that the newest segment lacks.
- In a segment, the frames in bad parts are lost, or all frames if its description is bad. A version that a lost frame
  had superseded counts again, unless a newer change supersedes it. A vbucket that lost frames begins a branch before
  the first of them. It starts a new history instead if a snapshot can no longer end there. It also does so if the log
  lost its end, because the lost records may have noted that no snapshot can end there.
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

Mask = npt.NDArray[np.bool_]


class LostChanges(NamedTuple):
    """Lost changes of a vbucket.

    Attributes:
        vbucket: the number of the vbucket.
        changes: how many changes are lost; None: any number of those with these seqnos.
        first_seqno: the lowest seqno that may be lost.
        last_seqno: the highest seqno that may be lost; None: unknown.
    """

    vbucket: int
    changes: int | None
    first_seqno: int
    last_seqno: int | None


class DamageLoss(NamedTuple):
    """The changes that are lost because of one damage.

    Attributes:
        damage: the damage.
        lost: the lost changes by vbucket, as far as they are known.
        notes: how many notes about the states of vbuckets are lost.
        unreadable: how many bytes are unreadable.
    """

    damage: Damage
    lost: list[LostChanges]
    notes: int = 0
    unreadable: int = 0


class RemainingVbucket(NamedTuple):
    """The contents of a vbucket, after a repair if the bucket is damaged.

    Attributes:
        vbucket: the number of the vbucket.
        state: None: the vbucket is deleted.
        documents: how many documents it has.
        changes: how many changes are in its files.
        first_seqno: the seqno of the oldest of these changes, 0 if there are none.
        high_seqno: its high seqno.
        rollback: the seqno to which consumers roll back if they have seen more; None: nothing was lost.
    """

    vbucket: int
    state: VbucketState | None
    documents: int
    changes: int
    first_seqno: int
    high_seqno: int
    rollback: int | None


class RepairPlan(NamedTuple):
    """The result of a repair, before it is written.

    Attributes:
        losses: the lost changes by damage.
        found: the files after the repair.
        rebuilt: segments that the repair writes again, without lost and outdated frames.
        is_cut: the log lost its end.
        dropped_logs: numbers of log files that no longer count, in full or from some offset on.
        first_lost: by vbucket, the lowest seqno of a change that may be lost from a segment.
        floors: by vbucket, the least `lowest_snapshot_end` of its index after the repair.
        starts_over: all vbuckets start a new history.
        descriptions: the newest readable state of each vbucket, if no log file is left.
        was_clean: the bucket was closed before the check.
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
    """The log and the vbuckets of a trial recovery."""

    log: DurableLog
    histories: list[VbucketHistory]


class TrialRecovery:
    """Recovers a bucket from any set of its files, as a new object each time.

    Args:
        record: the content of `bucket.json`.
        clock: returns nanoseconds since the epoch.
        new_vbuuid: returns a random number from 1 to 2^48-1 at each call.

    Attributes:
        record: the content of `bucket.json`.
        uuid: the bucket's uuid, 16 bytes.
    """

    def __init__(self, record: Mapping[str, Any], *, clock: Callable[[], int], new_vbuuid: Callable[[], int]) -> None:
        self.record = record
        self.uuid = bytes.fromhex(record["uuid"])
        self._clock = clock
        self._new_vbuuid = new_vbuuid

    def recover(
        self, found: FoundFiles, descriptions: Mapping[int, Mapping[str, Any]], directory: Directory | None = None
    ) -> RecoveredBucket:
        """Return a new bucket with the contents of some files.

        Args:
            found: the files.
            descriptions: by vbucket, its state before the notes in the files are applied.
            directory: the directory that the bucket writes to; None: its writes are discarded.

        Returns:
            The bucket.

        Raises:
            StoreDamaged: a valid record has invalid contents.
        """
        indexes = [RowIndex(vbucket) for vbucket in range(self.record["vbuckets"])]
        files = directory or DiscardingDirectory(Path())
        log = DurableLog(indexes, files, BucketSettings(), uuid=self.uuid, clock=self._clock)
        histories = [
            VbucketHistory(VbucketChanges(index, log, clock=self._clock), new_vbuuid=self._new_vbuuid)
            for index in indexes
        ]
        log.segments.histories = histories
        for vbucket, description in descriptions.items():
            histories[vbucket].restore(description)
        try:
            recover_log(log, histories, found)
        finally:
            if directory is None:
                log.release()  # a check of many buckets would otherwise run out of file descriptors
        return RecoveredBucket(log, histories)


# Planning


def plan_repair(found: FoundFiles, trial: TrialRecovery) -> RepairPlan:
    """Return how a repair changes the files of a bucket.

    Args:
        found: the files as they are.
        trial: recovers the bucket from sets of these files.

    Returns:
        The plan. Without damage it changes nothing.

    Raises:
        StoreDamaged: a note with a valid checksum has invalid contents.
    """
    if not found.damage:
        return RepairPlan([], found, [], False, [], {}, {}, False, {}, found.is_clean)
    descriptions = (
        {} if found.logs or found.end is None else _read_descriptions(found.end.ignored, trial.record["vbuckets"])
    )
    histories = trial.recover(found, descriptions).histories
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
    starts_over = found.may_lack_limits
    concerned = range(len(histories)) if starts_over else sorted(first_lost)
    floors: dict[int, int] = {}
    if concerned:
        left, floors = _remove_older_versions(left, trial.recover(left, descriptions).histories, concerned)
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
        descriptions=descriptions,
        was_clean=found.is_clean,
    )


def _group_by_segment(found: FoundFiles) -> list[tuple[SegmentFile, list[slice]]]:
    blocks: list[list[slice]] = [[] for _ in found.sealed]
    for bad in found.bad_blocks:
        blocks[bad.place].append(bad.block)
    return list(zip(found.sealed, blocks, strict=True))


def _mask_blocks(segment: Segment, blocks: Iterable[slice]) -> Mask:
    """Return the rows whose frame overlaps one of the blocks. Each block is a range of bytes of the frames."""
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
    """Return lost changes by vbucket. The two columns have the vbucket and the seqno of each change."""
    found = []
    for vbucket in np.unique(vbuckets).tolist():
        lost = seqnos[vbuckets == vbucket]
        found.append(LostChanges(vbucket, len(lost), int(lost.min()), int(lost.max())))
    return found


def _find_lost_in_gap(gap: FileGap, histories: Sequence[VbucketHistory]) -> list[LostChanges]:
    """Return the changes that a missing file may have had: those between the changes of the files around it."""
    found = []
    for history in histories:
        before, after = _find_seqnos_around(history.index, gap.ids)
        if history.state is not None and after != before + 1:
            found.append(LostChanges(history.id, None, before + 1, after - 1 if after else None))
    return found


def _find_seqnos_around(index: RowIndex, ids: tuple[int, int]) -> tuple[int, int]:
    """Return the last seqno before a range of log files, and the first seqno after the range; 0 for none."""
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
    """Return the changes that are lost with the rest of the log, as far as its records are readable."""
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
    """Return the newest readable state of each vbucket in log files that do not count. `behind` is oldest first."""
    found: dict[int, dict[str, Any]] = {}
    for file in behind:
        for _, scanned in salvage_records(file.data, file.seed, file.start):
            for _, text in scanned.notes:
                note = json.loads(text)
                for description in note.get("head", [note] if "vbucket" in note else []):
                    if description["vbucket"] < vbuckets:
                        found[description["vbucket"]] = description
    return found


# Segments


def _remove_rows(sealed: SegmentFile, removed: Mask) -> SegmentFile:
    """Return a segment without some of its rows. It has no file yet."""
    segment = sealed.segment
    assert segment.supersedes is not None
    kept = np.flatnonzero(~removed)
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
    """Return a segment without rows, which replaces missing log files."""
    nothing = np.zeros(0, np.int64)
    lengths = nothing.astype(np.uint32)
    rows = Rows(nothing, lengths, lengths, nothing, nothing)
    segment = Segment(memoryview(b""), np.zeros(vbuckets + 1, np.int32), rows, ids=ids)
    return SegmentFile(segment, (0, 0), lengths)


class _Version(NamedTuple):
    """A change of a document.

    Attributes:
        seqno: the seqno of the change.
        is_live: whether no change supersedes it.
        place: the position of its segment in FoundFiles.sealed, and its row there; None: it is in a log file.
    """

    seqno: int
    is_live: bool
    place: tuple[int, int] | None


def _remove_older_versions(
    found: FoundFiles, histories: Sequence[VbucketHistory], vbuckets: Iterable[int]
) -> tuple[FoundFiles, dict[int, int]]:
    """Remove older versions of documents that count again because the change that superseded them is lost.

    A document may have a newer change, which superseded only the lost change. Then the older version is removed, and
    with it all versions before it: otherwise those that it superseded would count again.

    Args:
        found: the files without the lost changes.
        histories: the histories that were recovered from these files.
        vbuckets: the vbuckets that lost changes.

    Returns:
        The files without the older versions. By vbucket, the highest seqno of a change that followed a removed version:
        no snapshot can end below it.
    """
    places = {id(sealed.segment): place for place, sealed in enumerate(found.sealed)}
    removed = [np.zeros(len(sealed.segment.seqnos), bool) for sealed in found.sealed]
    floors: dict[int, int] = {}
    for vbucket in vbuckets:
        for versions in _read_versions(histories[vbucket].index, places).values():
            last = max((n for n, version in enumerate(versions[:-1]) if version.is_live), default=-1)
            for version in versions[: last + 1]:
                assert version.place is not None, "a change in the log is superseded by one that was in a segment"
                place, row = version.place
                removed[place][row] = True
            if last >= 0:
                floors[vbucket] = max(versions[last + 1].seqno, floors.get(vbucket, 0))
    sealed = [_remove_rows(one, rows) if rows.any() else one for one, rows in zip(found.sealed, removed, strict=True)]
    return found._replace(sealed=sealed), floors


def _read_versions(index: RowIndex, places: Mapping[int, int]) -> dict[bytes, list[_Version]]:
    """Return all changes of each document of a vbucket, oldest first.

    Args:
        index: the rows of the vbucket.
        places: id() of a segment -> its position in FoundFiles.sealed. Segments of log files are not in it.
    """
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


# Applying the plan


def apply_plan(histories: Sequence[VbucketHistory], plan: RepairPlan) -> dict[int, int]:
    """Begin the branches and histories that make consumers of lost changes roll back.

    Args:
        histories: the histories of all vbuckets, recovered from the files of the plan.
        plan: the plan.

    Returns:
        By vbucket, the seqno to which consumers roll back if they have seen more; 0: they restart from zero.
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
            index.history_floor = history.changes.high_seqno
        if starts_over:
            history.start_new_history()
            rollbacks[history.id] = 0
        elif first is not None or (history.state is VbucketState.ACTIVE and not plan.was_clean):
            history.begin_branch(seqno)
            rollbacks[history.id] = seqno
    return rollbacks


def describe_vbucket(history: VbucketHistory, rollback: int | None) -> RemainingVbucket:
    """Return the contents of a vbucket.

    Args:
        history: the history of the vbucket.
        rollback: the seqno to which its consumers roll back; None: nothing was lost.
    """
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
