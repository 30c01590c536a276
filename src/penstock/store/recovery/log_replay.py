"""The replay of a bucket's files: fills its segments, tails and vbuckets.

The superseded rows are computed for all vbuckets at once. Keys are loaded later, because streams do not need them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import StoreDamaged
from penstock.store.disk.durable_log import DurableLog
from penstock.store.disk.inventory import Inventory, ListedLog
from penstock.store.disk.log_file import make_log_name
from penstock.store.history.collection_state import CollectionState, count_segment, mark_emptied
from penstock.store.history.hybrid_clock import LAST_SEEN
from penstock.store.history.vbucket_history import VbucketHistory
from penstock.store.log.frame_fields import mask_mutations, read_by_seqnos, read_cas_values, read_vbuckets
from penstock.store.log.records import read_supersedes
from penstock.store.log.row_lookup import find_rows
from penstock.store.log.segment import CUT, Column, Rows, Segment
from penstock.store.recovery.found_files import FoundFiles, ReadLog

# Rows


class _Cut(NamedTuple):
    """A rollback in a log file.

    Attributes:
        vbucket: the vbucket that was rolled back.
        seqno: changes of the vbucket above this seqno do not count.
        offset: the offset of the note about the rollback; changes behind it count.
    """

    vbucket: int
    seqno: int
    offset: int


def recover_log(log: DurableLog, histories: Sequence[VbucketHistory], found: FoundFiles) -> None:
    """Fill an empty log and its vbuckets with the contents of the files.

    The last log file becomes the active one. If there is none, a new one is begun. The log's inventory lists the files;
    the caller has yet to write it.

    Args:
        log: the empty log.
        histories: the histories of all vbuckets, by number.
        found: the files that count.

    Raises:
        StoreDamaged: a note is invalid, or a change is in a vbucket that the bucket does not have.
    """
    log.inventory.newest = Inventory(
        generation=found.generation,
        segments=tuple(sealed.listing for sealed in found.sealed),
        logs=tuple(
            ListedLog(read.number, read.scanned.end, read.compute_identity(read.scanned.end)) for read in found.logs
        ),
    )
    sealed = [one.segment for one in found.sealed]
    log.segments.sealed = sealed
    unclustered = _read_rows(sealed, histories, found.logs)
    segments = [*sealed, *unclustered]
    mark_superseded(segments)
    states = {history.id: state for history in histories if (state := history.changes.collection_state) is not None}
    mark_emptied(segments, states)
    for segment in [*sealed, *unclustered[:-1]]:
        for history in histories:
            history.index.replace([], segment)
    if unclustered:
        log.resume_file([*sealed, *unclustered[:-1]], unclustered[-1], found.logs[-1].scanned.end)
    else:
        log.begin_file(sealed[-1].ids[1] + 1 if sealed else 1)
    _start_vbuckets(histories, segments, states, newest=unclustered or sealed)


def _read_rows(
    sealed: Sequence[Segment], histories: Sequence[VbucketHistory], logs: Sequence[ReadLog]
) -> list[Segment]:
    """Apply the notes of log files, and cut rolled-back changes off the segments.

    Returns:
        For each log file a segment with the rows that count.
    """
    cuts = [_apply_notes(read, histories) for read in logs]
    for history in histories:
        for segment in sealed:
            for number, seqno in history.index.cuts:
                if segment.ids[1] < number:
                    segment.cut(history.id, seqno)
    unclustered = []
    for place, read in enumerate(logs):
        later = [cut._replace(offset=len(read.data)) for more in cuts[place + 1 :] for cut in more]
        unclustered.append(_make_segment(read, len(histories), [*cuts[place], *later]))
    return unclustered


def _start_vbuckets(
    histories: Sequence[VbucketHistory],
    segments: Sequence[Segment],
    states: Mapping[int, CollectionState],
    newest: Sequence[Segment],
) -> None:
    """Set the number of documents and the newest cas of each vbucket.

    Args:
        histories: the histories of all vbuckets, by number.
        segments: all segments, with their superseded rows.
        states: the collection state of each vbucket that has one; receives the counts of its collections.
        newest: the segments that have the newest cas of each vbucket.
    """
    items, max_cas = np.zeros(len(histories), np.int64), np.zeros(len(histories), np.uint64)
    for segment in segments:
        items += _count_items(segment)
        if states:
            items -= count_segment(segment, states)
    for segment in newest:
        max_cas = np.maximum(max_cas, _find_newest_cas(segment))
    for history, count, cas_seen in zip(histories, items.tolist(), max_cas.tolist(), strict=True):
        history.start_from_index(count, cas_seen)
        history.index.loaded_seqno = history.index.last_seqno


def _apply_notes(read: ReadLog, histories: Sequence[VbucketHistory]) -> list[_Cut]:
    """Apply the notes of a log file to the vbuckets.

    Returns:
        The rollbacks in the file, in order.

    Raises:
        StoreDamaged: a note is invalid.
    """
    cuts = []
    for at, text in read.scanned.notes:
        try:
            note = json.loads(text)
            for description in note.get("head", [note] if "vbucket" in note else []):
                histories[description["vbucket"]].restore(description)
            for vbucket, *floors in note.get("floors", ()):
                histories[vbucket].index.raise_floors(*floors)
            if "cas" in note:
                vbucket, assigned = note["cas"]
                histories[vbucket].changes.clock.observe(assigned)
            if "cut" in note:
                cuts.append(_Cut(note["vbucket"], note["cut"], at))
        except (LookupError, TypeError, ValueError) as error:
            raise StoreDamaged(
                f"{make_log_name(read.number)}, offset {at}: a note with invalid contents: {error}"
            ) from error
    return cuts


def _make_segment(read: ReadLog, vbuckets: int, cuts: Iterable[_Cut]) -> Segment:
    """Return a segment with the rows of a log file that count.

    Args:
        read: the log file.
        vbuckets: how many vbuckets the bucket has.
        cuts: the rollbacks in this file and in later files.

    Returns:
        The segment, which is not clustered.

    Raises:
        StoreDamaged: a change is in a vbucket that the bucket does not have.
    """
    scanned = read.scanned
    numbers, seqnos = read_vbuckets(read.data, scanned.offsets), read_by_seqnos(read.data, scanned.offsets)
    if len(numbers) and int(numbers.max()) >= vbuckets:
        raise StoreDamaged(f"{make_log_name(read.number)}: a change in vbucket {int(numbers.max())} of {vbuckets}")
    order = np.argsort(numbers, kind="stable")
    counting = np.ones(len(order), bool)
    bounds = np.searchsorted(numbers[order], np.arange(vbuckets + 1))
    for vbucket, seqno, offset in cuts:
        rows = order[bounds[vbucket] : bounds[vbucket + 1]]
        counting[rows[(scanned.offsets[rows] < offset) & (seqnos[rows] > seqno)]] = False
    order = order[counting[order]]
    starts = np.searchsorted(numbers[order], np.arange(vbuckets + 1)).astype(np.int32)
    columns = Rows(
        seqnos[order],
        scanned.offsets[order].astype(np.uint32),
        scanned.lengths[order],
        np.zeros(len(order), np.int64),
        scanned.supersedes[order],
    )
    return Segment(read.data, starts, columns, clustered=False, ids=(read.number, read.number))


def mark_superseded(segments: Sequence[Segment]) -> None:
    """Set which rows are superseded. Each row that counts names the seqno that it supersedes.

    A superseded row may be missing, because compaction dropped it.

    Args:
        segments: all segments of the log, oldest first.
    """
    if not segments:
        return
    numbers = np.concatenate([segment.vbuckets for segment in segments])
    seqnos = np.concatenate([segment.seqnos for segment in segments])
    targets = np.concatenate([_read_targets(segment) for segment in segments])
    counting = np.concatenate([segment.fates for segment in segments]) != CUT
    order = np.flatnonzero(counting)
    # A stable sort by vbucket sorts by (vbucket, seqno): each segment is sorted so, and segments are oldest first.
    order = order[np.argsort(numbers[order], kind="stable")]
    superseding = order[targets[order] > 0]
    found = find_rows(numbers[order], seqnos[order], numbers[superseding], targets[superseding])
    superseded = np.zeros(len(numbers), np.int64)
    superseded[order[found[found >= 0]]] = seqnos[superseding[found >= 0]]
    bounds = np.cumsum([0, *(len(segment.seqnos) for segment in segments)]).tolist()
    for segment, start, end in zip(segments, bounds[:-1], bounds[1:], strict=True):
        segment.set_superseded(superseded[start:end])


def _read_targets(segment: Segment) -> Column:
    if segment.supersedes is None:
        return read_supersedes(segment.buffer, segment.offsets)
    return segment.supersedes


def _count_items(segment: Segment) -> Column:
    """Return the number of live documents of each vbucket in a segment, system events included."""
    live = np.flatnonzero(segment.fates == 0)
    documents = live[mask_mutations(segment.buffer, segment.offsets[live])]
    counts: Column = np.bincount(segment.vbuckets[documents], minlength=len(segment.ends))
    return counts


def _find_newest_cas(segment: Segment) -> npt.NDArray[np.uint64]:
    highest = np.zeros(len(segment.ends), np.uint64)
    found = read_cas_values(segment.buffer, segment.offsets)
    seen = found <= LAST_SEEN
    np.maximum.at(highest, segment.vbuckets[seen], found[seen])
    return highest
