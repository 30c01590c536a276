"""What a vbucket knows of its collections, beside their documents: which there are, and how much is in each.

A vbucket has this state from its first system event on. Until then all is the default collection, and nothing is
counted.
All of it can be read from the vbucket's changes; on disk most of it is in the notes too, so that a bucket that is
opened need not read its keys for that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import RemoteProtocolError
from penstock.store.history.event_frames import EventFrame, owners, subject_of_key, system_events
from penstock.store.log.frame_fields import collection_ids, is_mutation, keys
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Segment
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, SYSTEM_COLLECTION, split_collection_key

__all__ = ["CollectionState", "collection_of", "count_segment", "mark_emptied"]

_ONE_BYTE = 0x80  # ids below take one byte in front of a key
_ID_BITS = 32
_RUN_FIELDS = 3  # of a run of collections in a note; up to format 3 there were pairs


def collection_of(key: bytes) -> int:
    """Return the collection that a key begins with, -1 if that is none."""
    try:
        return split_collection_key(key)[0]
    except RemoteProtocolError:
        return -1


class CollectionState:
    """What a vbucket knows of its collections beside their documents.

    Attributes:
        uid: of the manifest that the vbucket is up to; None: that has to be found out.
        seqno: of the newest system event.
        items: how many documents each collection has.
        highs: the seqno of the newest change of each collection, its events included.
        emptied: by collection, the seqno of the event before which nothing in it counts any more.
        erasing: of these the ones for which that is not yet done, and up to which seqno it is.
    """

    __slots__ = ("_noted", "emptied", "erasing", "highs", "items", "seqno", "uid")

    def __init__(self, highs: Mapping[int, int], items: Mapping[int, int] | None = None) -> None:
        self._noted: dict[str, list[list[int]]] | None = None  # what the notes say of `highs` and `emptied`
        self.uid: int | None = 0
        self.seqno = 0
        self.highs = dict(highs)
        self.items = dict(items) if items is not None else dict.fromkeys(self.highs, 0)
        self.emptied: dict[int, int] = {}
        self.erasing: dict[int, int] = {}

    def count(self, key: bytes, seqno: int, items: int) -> None:
        """Count a change of a document. items: how many documents there are more. Runs for every change."""
        collection = key[0]
        if collection >= _ONE_BYTE:
            collection = collection_of(key)
        if collection in self.highs:
            self.highs[collection] = seqno
            self.items[collection] += items

    def take(self, event: EventFrame, seqno: int) -> None:
        """Count a system event. A collection that begins although it is there is emptied."""
        self.uid, self.seqno, self._noted = event.subject.manifest_uid, seqno, None
        collection = event.collection_id
        if collection is None:
            return
        begins = event.kind is SystemEventKind.COLLECTION_BEGIN
        if event.is_end or (begins and collection in self.highs):
            self.highs.pop(collection, None)
            self.items.pop(collection, None)
            self.emptied[collection] = seqno
            self.erasing[collection] = 0
        if not event.is_end:
            self.items.setdefault(collection, 0)
            self.highs[collection] = seqno

    def forget(self, key: bytes, seqno: int) -> None:
        """Forget what ended at a tombstone that was dropped: nothing is left of it."""
        about = subject_of_key(key)
        if about is not None and about[0] and self.emptied.get(about[1]) == seqno:
            self.forget_ends([about[1]])

    def forget_ends(self, collections: Sequence[int]) -> None:
        """Forget that collections ended: the events that said so were lost or dropped."""
        for collection in collections:
            del self.emptied[collection]
            self._noted = None

    # Notes

    def described(self) -> dict[str, Any]:
        if self._noted is None:  # each log file begins with what all vbuckets have to say
            self._noted = {"known": _runs(sorted(self.highs)), "emptied": _pack_emptied(self.emptied)}
        return {"uid": self.uid, "seqno": self.seqno, **self._noted}

    @classmethod
    def restored(cls, said: Mapping[str, Any]) -> CollectionState:
        """Raises LookupError, TypeError or ValueError for what `described` never returned."""
        state = cls({collection: 0 for first, last in said["known"] for collection in range(first, last + 1)})
        state.uid = None if said["uid"] is None else int(said["uid"])
        state.seqno = int(said["seqno"])
        state.emptied = _unpack_emptied(said["emptied"])
        if all(len(run) == _RUN_FIELDS for run in said["emptied"]):
            state._noted = {"known": said["known"], "emptied": said["emptied"]}
        return state

    # From the changes

    @classmethod
    def read(cls, index: RowIndex, before: CollectionState) -> tuple[CollectionState | None, int]:
        """Return what the changes say, None if they say nothing of collections, and how many documents there are.

        before: what was known when there were more changes.
        """
        state = cls({DEFAULT_COLLECTION: 0})
        state.emptied = {
            collection: seqno
            for collection, seqno in before.emptied.items()
            if seqno <= index.last_seqno and index.find(seqno) is not None
        }
        for seqno, event in system_events(index):
            state._see(event, seqno)
        state.erasing = {
            collection: done
            for collection, done in before.erasing.items()
            if state.emptied.get(collection) == before.emptied[collection]
        }
        total = 0
        for buffer, offsets, seqnos in index.live():
            ids, documents = collection_ids(buffer, offsets), is_mutation(buffer, offsets)
            total += int(np.count_nonzero(documents & (ids != SYSTEM_COLLECTION)))
            for collection, items, high in _sums(ids, seqnos, documents):
                state.add(collection, items, high)
        return state if state.seqno or state.emptied else None, total

    def _see(self, event: EventFrame, seqno: int) -> None:
        """Count the newest event about something; the events come in their order."""
        self.uid, self.seqno = max(self.uid or 0, event.subject.manifest_uid), seqno
        collection = event.collection_id
        if collection is not None and event.is_end:
            self.highs.pop(collection, None)
            self.items.pop(collection, None)
            self.emptied[collection] = seqno
        elif collection is not None:
            self.highs[collection] = seqno
            self.items[collection] = 0

    def add(self, collection: int, items: int, high: int) -> None:
        """Count changes that nothing has superseded. high: the highest seqno of them."""
        if collection in self.highs:
            self.items[collection] += items
            self.highs[collection] = max(self.highs[collection], high)


def _runs(ids: Sequence[int]) -> list[list[int]]:
    """Return the first and the last of all ids that follow each other: mostly they do, and each note says them."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def _pack_emptied(emptied: Mapping[int, int]) -> list[list[int]]:
    """Return the first id and seqno of all that follow each other in both, and how many do.

    A manifest that drops a thousand collections says one such run to each vbucket.
    """
    runs: list[list[int]] = []
    for number, seqno in sorted(emptied.items()):
        if runs and (number, seqno) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1][2] += 1
        else:
            runs.append([number, seqno, 1])
    return runs


def _unpack_emptied(runs: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return what `_pack_emptied` was given. A pair is one collection and its seqno."""
    found = {}
    for first, seqno, *count in runs:
        for place in range(count[0] if count else 1):
            found[int(first) + place] = int(seqno) + place
    return found


def _sums(names: Column, seqnos: Column, documents: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
    """Yield of each name how many documents have it, and the highest seqno of any change that has."""
    found, places = np.unique(names, return_inverse=True)
    items = np.bincount(places, documents, minlength=len(found)).astype(np.int64)
    highs = np.zeros(len(found), np.int64)
    np.maximum.at(highs, places, seqnos)
    return zip(found.tolist(), items.tolist(), highs.tolist(), strict=True)


# Opening


def mark_emptied(segments: Sequence[Segment], states: Mapping[int, CollectionState]) -> None:
    """Let nothing count that was in a collection before that was emptied, if the event that says so is there.

    segments: all there are. states: by vbucket. Changes that have been superseded stay so by what has done that.
    """
    ends: dict[int, Column] = {}
    for vbucket, state in states.items():
        lost = [collection for collection, seqno in state.emptied.items() if not _has(segments, vbucket, seqno)]
        state.forget_ends(lost)
        for collection, seqno in state.emptied.items():
            ends.setdefault(collection, np.zeros(len(segments[0].ends), np.int64))[vbucket] = seqno
    if not ends:
        return
    concerned = np.maximum.reduce([*ends.values()])
    for segment in segments:
        vbuckets = segment.vbuckets
        rows = np.flatnonzero((segment.fate == 0) & (segment.seqnos < concerned[vbuckets]))
        ids = owners(segment.buffer, segment.offsets[rows])
        for collection, seqnos in ends.items():
            inside = rows[ids == collection]
            gone = inside[segment.seqnos[inside] < seqnos[vbuckets[inside]]]
            segment.superseded[gone] = seqnos[vbuckets[gone]]
            segment.dead += int(segment.lengths[gone].sum(dtype=np.int64))


def _has(segments: Sequence[Segment], vbucket: int, seqno: int) -> bool:
    for segment in reversed(segments):
        start, end = segment.starts[vbucket], segment.ends[vbucket]
        if start < end and segment.seqnos_at[start] <= seqno <= segment.seqnos_at[end - 1]:
            return segment.seqnos_at[bisect_left(segment.seqnos_at, seqno, start, end)] == seqno
    return False


def count_segment(segment: Segment, states: Mapping[int, CollectionState]) -> Column:
    """Add what is in a segment to states, by vbucket. Returns how many system events look like documents, of each."""
    has = np.zeros(len(segment.ends), bool)
    has[[*states]] = True
    rows = np.flatnonzero(has[segment.vbuckets] & (segment.fate == 0))
    rows = rows[np.argsort(segment.offsets[rows])]
    vbuckets, offsets, seqnos = segment.vbuckets[rows], segment.offsets[rows], segment.seqnos[rows]
    ids, documents = collection_ids(segment.buffer, offsets), is_mutation(segment.buffer, offsets)
    system = ids == SYSTEM_COLLECTION
    names = (vbuckets.astype(np.int64) << _ID_BITS) | np.where(ids < 0, SYSTEM_COLLECTION, ids)
    for name, items, high in _sums(names[~system], seqnos[~system], documents[~system]):
        states[name >> _ID_BITS].add(name & (2**_ID_BITS - 1), items, high)
    told = zip(vbuckets[system].tolist(), keys(segment.buffer, offsets[system]), seqnos[system].tolist(), strict=True)
    for vbucket, key, seqno in told:
        about = subject_of_key(key)
        if about is not None and about[0]:
            states[vbucket].add(about[1], 0, seqno)
    counts: Column = np.bincount(vbuckets[system & documents], minlength=len(segment.ends))
    return counts
