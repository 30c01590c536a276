"""A bucket's history as plain lists, to hold the real one against; and buckets whose time and ids are made up."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.history.collection_state import read_collection
from penstock.store.history.event_frames import parse_event_key
from penstock.store.history.failover_log import MAX_ENTRIES
from penstock.store.history.frame_chunks import Chunk
from penstock.store.history.history_snapshot import Snapshot
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.frame import cut_frame, read_frame_length
from penstock.wire.codec.layout import decode_frame
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import DeletionV2, Expiration, Mutation

START = 1_700_000_000 * 10**9  # ns

Tombstone = DeletionV2 | Expiration


def tombstone(event: Event = Event.DELETION, *, delete_time: int = START // 10**9, **fields: Any) -> Tombstone:
    """Return the message of a tombstone in the log."""
    cls = Expiration if event is Event.EXPIRATION else DeletionV2
    return cls(delete_time=delete_time, **fields)


def new_bucket(
    *,
    vbuckets: int = 4,
    segment_bytes: int = 512,
    clock: Callable[[], int] | None = None,
    times: Iterator[int] | None = None,
) -> BucketStore:
    """Return a bucket with tiny segments, whose clock stands still unless told, and whose vbuuids count from 1.

    Its tombstones stay.
    """
    vbuuids = count(1)
    return BucketStore(
        "b",
        vbuckets=vbuckets,
        clock=clock or (lambda: START if times is None else next(times)),
        new_vbuuid=lambda: next(vbuuids),
        segment_bytes=segment_bytes,
        settings=BucketSettings(purge_age=10**12),
    )


def changes(data: bytes | bytearray) -> list[Mutation | Tombstone]:
    """Return the messages in whole frames."""
    return [message for _, message in _cut(data)]


def _cut(data: bytes | bytearray) -> Iterator[tuple[int, Mutation | Tombstone]]:
    """Yield where each frame begins, and what it says."""
    at = 0
    while at < len(data):
        length = read_frame_length(data, at)
        message = decode_frame(cut_frame(memoryview(data)[: at + length], at))
        assert isinstance(message, Mutation | Tombstone)
        yield at, message
        at += length


def read_all(snapshot: Snapshot, opaque: int = 0, max_bytes: int = 1 << 20) -> list[Mutation | Tombstone]:
    """Return what is left of a snapshot, read in chunks of at most max_bytes."""
    found = []
    while (chunk := snapshot.read(opaque, max_bytes)).frame_count:
        found += messages(chunk)
    assert snapshot.remaining == 0
    return found


def messages(chunk: Chunk) -> list[Mutation | Tombstone]:
    found = list(_cut(chunk.data))
    assert [at for at, _ in found] == list(chunk.offsets)
    assert len(found) == chunk.frame_count
    return [message for _, message in found]


@dataclass
class History:
    """One vbucket's changes, all of them, as the messages that they ought to be.

    whole_seqno: the end of the last snapshot that is complete. log: the failover log, at most MAX_ENTRIES of it.
    """

    vbucket: int
    changes: list[Mutation | Tombstone] = field(default_factory=list)
    whole_seqno: int = 0
    log: list[tuple[int, int]] = field(default_factory=list)
    state: VbucketState | None = VbucketState.ACTIVE

    def copy(self) -> "History":
        return replace(self, changes=list(self.changes), log=list(self.log))

    @property
    def high_seqno(self) -> int:
        return self.changes[-1].by_seqno if self.changes else 0

    @property
    def newest(self) -> dict[bytes, Mutation | Tombstone]:
        """Of each key that counts; those of collections that have ended do not."""
        ends = self.ends
        return {change.key: change for change in self.changes if not erased_by(change, ends)}

    @property
    def documents(self) -> dict[bytes, Mutation]:
        return {
            key: change
            for key, change in self.newest.items()
            if isinstance(change, Mutation) and parse_event_key(key) is None
        }

    @property
    def ends(self) -> dict[int, list[int]]:
        """By collection, the seqnos of the events that it has ended."""
        found: dict[int, list[int]] = {}
        for change in self.changes:
            if not isinstance(change, Mutation) and (about := parse_event_key(change.key)) is not None and about[0]:
                found.setdefault(about[1], []).append(change.by_seqno)
        return found

    @property
    def collections(self) -> dict[int, list[Mutation | Tombstone]]:
        """By collection that is there but the default one, its events and what is in it."""
        events = {about[1]: change for change in self.changes if (about := parse_event_key(change.key)) and about[0]}
        return {
            number: [event, *(change for key, change in self.newest.items() if read_collection(key) == number)]
            for number, event in events.items()
            if isinstance(event, Mutation)
        }

    def rev_seqno(self, key: bytes) -> int:
        return self.newest[key].rev_seqno + 1 if key in self.newest else 1

    def store(self, key: bytes, value: bytes, cas: int, **fields: Any) -> None:
        """Note a document that the vbucket stored itself. fields: where they are not as one would expect."""
        told = {"rev_seqno": self.rev_seqno(key), **fields}
        self.apply(Mutation(vbucket=self.vbucket, key=key, value=value, cas=cas, by_seqno=0, **told))

    def delete(self, key: bytes, cas: int, event: Event = Event.DELETION, **fields: Any) -> None:
        """Note a deletion of the vbucket's own."""
        told = {"rev_seqno": self.rev_seqno(key), **fields}
        self.apply(tombstone(event, vbucket=self.vbucket, key=key, cas=cas, by_seqno=0, **told))

    def apply(self, change: Mutation | Tombstone, snapshot_end: int = 0) -> None:
        """Note a change from elsewhere. by_seqno 0: the next one. snapshot_end 0: it is a snapshot by itself."""
        change = replace(change, by_seqno=change.by_seqno or self.high_seqno + 1)
        if change.by_seqno >= snapshot_end:
            self.whole_seqno = change.by_seqno
        self.changes.append(change)

    def become(self, state: VbucketState, vbuuid: int, *, takeover: bool = False) -> None:
        """Change the state. vbuuid: of the branch that begins if one does."""
        if state is VbucketState.ACTIVE and self.state is not VbucketState.ACTIVE:
            if self.state is not None and not takeover:
                self.begin_branch(vbuuid, self.whole_seqno)
            self.whole_seqno = self.high_seqno
        self.state = state

    def begin_branch(self, vbuuid: int, seqno: int) -> None:
        below = [entry for entry in self.log if entry[1] <= seqno]
        self.log = [(vbuuid, seqno), *below][:MAX_ENTRIES]

    def rollback(self, seqno: int, vbuuid: int) -> None:
        """Forget what is above; vbuuid: of the branch that begins if all are gone."""
        before = self.high_seqno
        self.changes = [change for change in self.changes if change.by_seqno <= seqno]
        self.whole_seqno = min(self.whole_seqno, self.high_seqno)
        self.log = [entry for entry in self.log if entry[1] <= self.high_seqno]
        if not self.log or (before and not self.changes):
            self.log = [(vbuuid, self.high_seqno)]

    def reset(self, vbuuid: int) -> None:
        self.changes, self.whole_seqno, self.log = [], 0, [(vbuuid, 0)]

    def view(self, start: int, end: int) -> list[Mutation | Tombstone]:
        """Return the deduplicated snapshot of (start, end]."""
        newest = {change.key: change for change in self.changes if change.by_seqno <= end}
        ends = self.ends
        return [
            change
            for change in self.changes
            if start < change.by_seqno <= end
            and newest[change.key] is change
            and not 0 < erased_by(change, ends) <= end
        ]

    def ceiling(self, seqno: int) -> int:
        """Return the seqno of the first change that is not below, the highest there is if all are."""
        return next((change.by_seqno for change in self.changes if change.by_seqno >= seqno), self.high_seqno)

    def superseded_by(self, change: Mutation | Tombstone) -> int:
        """Return the seqno of the next change of the same key, or of the end of its collection; 0 if there is none."""
        later = (other for other in self.changes if other.key == change.key and other.by_seqno > change.by_seqno)
        return next((other.by_seqno for other in later), 0) or erased_by(change, self.ends)


def erased_by(change: Mutation | Tombstone, ends: Mapping[int, list[int]]) -> int:
    """Return the seqno of the next event that a collection has ended which a change was in, or is about; else 0."""
    if not ends:
        return 0
    about = parse_event_key(change.key)
    ended = ends.get(about[1] if about is not None and about[0] else read_collection(change.key), [])
    return next((seqno for seqno in ended if seqno > change.by_seqno), 0)
