"""The state of a vbucket's collections beside their documents: which exist, and how many documents each has.

A vbucket has this state from its first system event on. Until then it has the default collection alone, and nothing is
counted. All of the state can be read from the vbucket's changes. On disk most of it is in the notes too, so that
opening a bucket need not read its keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import RemoteProtocolError
from penstock.store.history.event_frames import EventFrame, find_system_events, parse_event_key, read_owners
from penstock.store.log.frame_fields import mask_mutations, read_collection_ids, read_keys
from penstock.store.log.logged_frames import FrameRun
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Segment
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, SYSTEM_COLLECTION, split_collection_key

_ONE_BYTE = 0x80  # ids below take one byte in front of a key
_ID_BITS = 32
_RUN_FIELDS = 3  # of a run of collections in a note; up to format 3 there were pairs


def read_collection(key: bytes) -> int:
    """Return the collection id at the beginning of a key; -1 if there is no valid id."""
    try:
        return split_collection_key(key)[0]
    except RemoteProtocolError:
        return -1


class CollectionState:
    """The collections of a vbucket beside their documents.

    Attributes:
        manifest_uid: uid of the manifest that the vbucket has reached; None: it must be read from the changes.
        seqno: the seqno of the newest system event.
        items: how many documents each collection has.
        highs: the seqno of the newest change of each collection, its events included.
        histories: the collections whose older versions are streamed, where the bucket keeps history.
        emptied: for each ended collection the seqno of the event that ended it; earlier changes in it no longer count.
        erasing: those of them whose changes are not all erased, and up to which seqno they are.
    """

    __slots__ = ("_noted", "emptied", "erasing", "highs", "histories", "items", "manifest_uid", "seqno")

    def __init__(self, highs: Mapping[int, int], items: Mapping[int, int] | None = None) -> None:
        self._noted: dict[str, list[list[int]]] | None = None  # `highs` and `emptied` as in the notes
        self.manifest_uid: int | None = 0
        self.seqno = 0
        self.highs = dict(highs)
        self.items = dict(items) if items is not None else dict.fromkeys(self.highs, 0)
        self.histories: set[int] = set()
        self.emptied: dict[int, int] = {}
        self.erasing: dict[int, int] = {}

    def count_change(self, key: bytes, seqno: int, items: int) -> None:
        """Count a change of a document. items: by how much the number of documents grows. Runs for every change."""
        collection = key[0]
        if collection >= _ONE_BYTE:
            collection = read_collection(key)
        if collection in self.highs:
            self.highs[collection] = seqno
            self.items[collection] += items

    def count_run(self, run: FrameRun, items: Column) -> None:
        """Count changes of documents. items: as of `count_change`, for each change."""
        collections = np.frombuffer(bytes([key[0] for key in run.keys]), np.uint8)
        for collection in np.unique(collections).tolist():
            if collection in self.highs:
                of_collection = collections == collection
                self.highs[collection] = int(run.seqnos[of_collection][-1])
                self.items[collection] += int(items[of_collection].sum())

    def apply_event(self, event: EventFrame, seqno: int) -> None:
        """Count a system event. A collection that begins although it exists is emptied."""
        self.manifest_uid, self.seqno, self._noted = event.subject.manifest_uid, seqno, None
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
        self._note_history(event, collection)

    def _note_history(self, event: EventFrame, collection: int) -> None:
        """Record whether the collection of an event has history; an ended collection has none."""
        if getattr(event.subject, "history", False):
            self.histories.add(collection)
        else:
            self.histories.discard(collection)

    def forget_end_at(self, key: bytes, seqno: int) -> None:
        """Forget a collection's end if its event is the tombstone that was dropped: none of its changes is left."""
        about = parse_event_key(key)
        if about is not None and about[0] and self.emptied.get(about[1]) == seqno:
            self.forget_ends([about[1]])

    def forget_ends(self, collections: Sequence[int]) -> None:
        """Forget that collections ended, because the events were lost or dropped."""
        for collection in collections:
            del self.emptied[collection]
            self._noted = None

    # Notes

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a part of the vbucket's note."""
        if self._noted is None:  # made once: each log file begins with the descriptions of all vbuckets
            self._noted = {
                "known": _pack_ids(sorted(self.highs)),
                "history": _pack_ids(sorted(self.histories)),
                "emptied": _pack_emptied(self.emptied),
            }
        return {"uid": self.manifest_uid, "seqno": self.seqno, **self._noted}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> CollectionState:
        """Return the state from the result of `to_dict`.

        It raises LookupError, TypeError or ValueError for any other content.
        """
        state = cls(dict.fromkeys(_unpack_ids(description["known"]), 0))
        state.histories = set(_unpack_ids(description.get("history", ())))  # earlier logs do not have it
        state.manifest_uid = None if description["uid"] is None else int(description["uid"])
        state.seqno = int(description["seqno"])
        state.emptied = _unpack_emptied(description["emptied"])
        if all(len(run) == _RUN_FIELDS for run in description["emptied"]):
            state._noted = {name: description.get(name, []) for name in ("known", "history", "emptied")}
        return state

    # From the changes

    @classmethod
    def read_changes(cls, index: RowIndex, before: CollectionState) -> tuple[CollectionState | None, int]:
        """Return the state that the changes show, None if they have no system events, and the number of documents.

        Args:
            index: the rows of the vbucket.
            before: the state when there were more changes.
        """
        state = cls({DEFAULT_COLLECTION: 0})
        state.emptied = {
            collection: seqno
            for collection, seqno in before.emptied.items()
            if seqno <= index.last_seqno and index.find(seqno) is not None
        }
        for seqno, event in find_system_events(index):
            state._count_newest_event(event, seqno)
        state.erasing = {
            collection: done
            for collection, done in before.erasing.items()
            if state.emptied.get(collection) == before.emptied[collection]
        }
        total = 0
        for buffer, offsets, seqnos in index.iterate_live_frames():
            ids, documents = read_collection_ids(buffer, offsets), mask_mutations(buffer, offsets)
            total += int(np.count_nonzero(documents & (ids != SYSTEM_COLLECTION)))
            for collection, items, high in _sum_by_name(ids, seqnos, documents):
                state.add_changes(collection, items, high)
        return state if state.seqno or state.emptied else None, total

    def _count_newest_event(self, event: EventFrame, seqno: int) -> None:
        """Count the newest event of a scope or collection; the events come in the order of their seqnos."""
        self.manifest_uid, self.seqno = max(self.manifest_uid or 0, event.subject.manifest_uid), seqno
        collection = event.collection_id
        if collection is not None and event.is_end:
            self.highs.pop(collection, None)
            self.items.pop(collection, None)
            self.emptied[collection] = seqno
        elif collection is not None:
            self.highs[collection] = seqno
            self.items[collection] = 0
        if collection is not None:
            self._note_history(event, collection)

    def add_changes(self, collection: int, items: int, high: int) -> None:
        """Count changes that are not superseded. high: the highest of their seqnos."""
        if collection in self.highs:
            self.items[collection] += items
            self.highs[collection] = max(self.highs[collection], high)


def _pack_ids(ids: Sequence[int]) -> list[list[int]]:
    """Return the first and the last id of each run of adjacent ids. Ids are mostly adjacent, and each note has them."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def _unpack_ids(runs: Iterable[Sequence[int]]) -> Iterator[int]:
    """Return the argument of `_pack_ids` from its result."""
    return (number for first, last in runs for number in range(int(first), int(last) + 1))


def _pack_emptied(emptied: Mapping[int, int]) -> list[list[int]]:
    """Return the runs of entries whose ids and seqnos both ascend by one: the first id, its seqno, and the count.

    A manifest that drops a thousand collections makes one such run in each vbucket.
    """
    runs: list[list[int]] = []
    for number, seqno in sorted(emptied.items()):
        if runs and (number, seqno) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1][2] += 1
        else:
            runs.append([number, seqno, 1])
    return runs


def _unpack_emptied(runs: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return the argument of `_pack_emptied` from its result. A pair is one collection and its seqno."""
    found = {}
    for first, seqno, *count in runs:
        for place in range(count[0] if count else 1):
            found[int(first) + place] = int(seqno) + place
    return found


def _sum_by_name(names: Column, seqnos: Column, documents: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
    """Return for each name how many documents have it, and the highest seqno of a change that has it."""
    found, places = np.unique(names, return_inverse=True)
    items = np.bincount(places, documents, minlength=len(found)).astype(np.int64)
    highs = np.zeros(len(found), np.int64)
    np.maximum.at(highs, places, seqnos)
    return zip(found.tolist(), items.tolist(), highs.tolist(), strict=True)


# Opening


def mark_emptied(segments: Sequence[Segment], states: Mapping[int, CollectionState]) -> None:
    """Supersede the changes of collections that were emptied later, if the event is there.

    Changes that are superseded already keep their superseding seqno.

    Args:
        segments: all segments of the log.
        states: the collection state of each vbucket that has one.
    """
    ends: dict[int, Column] = {}
    for vbucket, state in states.items():
        lost = [collection for collection, seqno in state.emptied.items() if not _has_change(segments, vbucket, seqno)]
        state.forget_ends(lost)
        for collection, seqno in state.emptied.items():
            ends.setdefault(collection, np.zeros(len(segments[0].ends), np.int64))[vbucket] = seqno
    if not ends:
        return
    concerned = np.maximum.reduce([*ends.values()])
    for segment in segments:
        vbuckets = segment.vbuckets
        rows = np.flatnonzero((segment.fates == 0) & (segment.seqnos < concerned[vbuckets]))
        ids = read_owners(segment.buffer, segment.offsets[rows])
        for collection, seqnos in ends.items():
            inside = rows[ids == collection]
            gone = inside[segment.seqnos[inside] < seqnos[vbuckets[inside]]]
            segment.superseded[gone] = seqnos[vbuckets[gone]]
            segment.dead_bytes += int(segment.lengths[gone].sum(dtype=np.int64))


def _has_change(segments: Sequence[Segment], vbucket: int, seqno: int) -> bool:
    for segment in reversed(segments):
        start, end = segment.starts[vbucket], segment.ends[vbucket]
        if start < end and segment.seqnos_at[start] <= seqno <= segment.seqnos_at[end - 1]:
            return segment.seqnos_at[bisect_left(segment.seqnos_at, seqno, start, end)] == seqno
    return False


def count_segment(segment: Segment, states: Mapping[int, CollectionState]) -> Column:
    """Add the live changes of a segment to the states, by vbucket.

    Returns:
        For each vbucket, how many system events look like documents.
    """
    has = np.zeros(len(segment.ends), bool)
    has[[*states]] = True
    rows = np.flatnonzero(has[segment.vbuckets] & (segment.fates == 0))
    rows = rows[np.argsort(segment.offsets[rows])]
    vbuckets, offsets, seqnos = segment.vbuckets[rows], segment.offsets[rows], segment.seqnos[rows]
    ids, documents = read_collection_ids(segment.buffer, offsets), mask_mutations(segment.buffer, offsets)
    system = ids == SYSTEM_COLLECTION
    names = (vbuckets.astype(np.int64) << _ID_BITS) | np.where(ids < 0, SYSTEM_COLLECTION, ids)
    for name, items, high in _sum_by_name(names[~system], seqnos[~system], documents[~system]):
        states[name >> _ID_BITS].add_changes(name & (2**_ID_BITS - 1), items, high)
    events = zip(
        vbuckets[system].tolist(), read_keys(segment.buffer, offsets[system]), seqnos[system].tolist(), strict=True
    )
    for vbucket, key, seqno in events:
        about = parse_event_key(key)
        if about is not None and about[0]:
            states[vbucket].add_changes(about[1], 0, seqno)
    counts: Column = np.bincount(vbuckets[system & documents], minlength=len(segment.ends))
    return counts
