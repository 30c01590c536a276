"""A model of a vbucket's history in plain lists, and buckets with a fixed clock and counted vbuuids."""

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


def make_tombstone(event: Event = Event.DELETION, *, delete_time: int = START // 10**9, **fields: Any) -> Tombstone:
    """Return the message of a tombstone in the log."""
    cls = Expiration if event is Event.EXPIRATION else DeletionV2
    return cls(delete_time=delete_time, **fields)


def make_bucket(
    *,
    vbuckets: int = 4,
    segment_bytes: int = 512,
    clock: Callable[[], int] | None = None,
    times: Iterator[int] | None = None,
) -> BucketStore:
    """Return a bucket in memory with tiny segments. Its vbuuids count from 1, and its tombstones are never purged.

    Args:
        vbuckets: number of vbuckets.
        segment_bytes: size of a segment.
        clock: returns the time, in ns since the epoch. Default: the next one of `times`.
        times: times that the clock returns one after the other; None: it always returns START.
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


def decode_changes(data: bytes | bytearray) -> list[Mutation | Tombstone]:
    """Return the messages of frames; `data` holds whole frames."""
    return [message for _, message in _iterate_frames(data)]


def _iterate_frames(data: bytes | bytearray) -> Iterator[tuple[int, Mutation | Tombstone]]:
    """Yield the offset and the message of each frame."""
    at = 0
    while at < len(data):
        length = read_frame_length(data, at)
        message = decode_frame(cut_frame(memoryview(data)[: at + length], at))
        assert isinstance(message, Mutation | Tombstone)
        yield at, message
        at += length


def read_all(snapshot: Snapshot, opaque: int = 0, max_bytes: int = 1 << 20) -> list[Mutation | Tombstone]:
    """Read the rest of a snapshot.

    Args:
        snapshot: snapshot to read to its end.
        opaque: opaque of the messages.
        max_bytes: size that each read asks for.
    """
    found = []
    while (chunk := snapshot.read(opaque, max_bytes)).frame_count:
        found += decode_chunk(chunk)
    assert snapshot.remaining == 0
    return found


def decode_chunk(chunk: Chunk) -> list[Mutation | Tombstone]:
    """Return the messages of a chunk, and check its offsets and its frame count."""
    found = list(_iterate_frames(chunk.data))
    assert [at for at, _ in found] == list(chunk.offsets)
    assert len(found) == chunk.frame_count
    return [message for _, message in found]


@dataclass
class HistoryModel:
    """The expected history of one vbucket: a list of all changes, which nothing deduplicates or purges.

    Attributes:
        vbucket: number of the vbucket.
        changes: the expected messages, by seqno.
        whole_seqno: end of the last complete snapshot.
        failover_log: (vbuuid, seqno) of the branches, newest first, at most MAX_ENTRIES.
        state: state of the vbucket; None: it was deleted.
    """

    vbucket: int
    changes: list[Mutation | Tombstone] = field(default_factory=list)
    whole_seqno: int = 0
    failover_log: list[tuple[int, int]] = field(default_factory=list)
    state: VbucketState | None = VbucketState.ACTIVE

    def copy(self) -> "HistoryModel":
        """Return a history that later changes of this one do not reach."""
        return replace(self, changes=list(self.changes), failover_log=list(self.failover_log))

    @property
    def high_seqno(self) -> int:
        """Seqno of the newest change, 0 without changes."""
        return self.changes[-1].by_seqno if self.changes else 0

    @property
    def newest(self) -> dict[bytes, Mutation | Tombstone]:
        """The newest change of each key, without keys of collections that have ended."""
        ends = self.collection_ends
        return {change.key: change for change in self.changes if not find_erasing_event(change, ends)}

    @property
    def documents(self) -> dict[bytes, Mutation]:
        """The documents by key, without system events."""
        return {
            key: change
            for key, change in self.newest.items()
            if isinstance(change, Mutation) and parse_event_key(key) is None
        }

    @property
    def collection_ends(self) -> dict[int, list[int]]:
        """Collection id -> the seqnos of the events that ended the collection."""
        found: dict[int, list[int]] = {}
        for change in self.changes:
            if not isinstance(change, Mutation) and (about := parse_event_key(change.key)) is not None and about[0]:
                found.setdefault(about[1], []).append(change.by_seqno)
        return found

    @property
    def collections(self) -> dict[int, list[Mutation | Tombstone]]:
        """Id of each present collection but the default one -> its newest event, then its newest changes."""
        events = {about[1]: change for change in self.changes if (about := parse_event_key(change.key)) and about[0]}
        return {
            number: [event, *(change for key, change in self.newest.items() if read_collection(key) == number)]
            for number, event in events.items()
            if isinstance(event, Mutation)
        }

    def next_rev_seqno(self, key: bytes) -> int:
        """Return the rev_seqno of the key's next change."""
        return self.newest[key].rev_seqno + 1 if key in self.newest else 1

    def store(self, key: bytes, value: bytes, cas: int, **fields: Any) -> None:
        """Add a document that the vbucket stored itself; `fields` are those that differ from the default."""
        fields = {"rev_seqno": self.next_rev_seqno(key), **fields}
        self.apply(Mutation(vbucket=self.vbucket, key=key, value=value, cas=cas, by_seqno=0, **fields))

    def delete(self, key: bytes, cas: int, event: Event = Event.DELETION, **fields: Any) -> None:
        """Add a deletion that the vbucket made itself."""
        fields = {"rev_seqno": self.next_rev_seqno(key), **fields}
        self.apply(make_tombstone(event, vbucket=self.vbucket, key=key, cas=cas, by_seqno=0, **fields))

    def apply(self, change: Mutation | Tombstone, snapshot_end: int = 0) -> None:
        """Add a change.

        Args:
            change: the message; a by_seqno of 0 stands for the next seqno.
            snapshot_end: end of the snapshot that the change belongs to; 0: the change is a snapshot by itself.
        """
        change = replace(change, by_seqno=change.by_seqno or self.high_seqno + 1)
        if change.by_seqno >= snapshot_end:
            self.whole_seqno = change.by_seqno
        self.changes.append(change)

    def change_state(self, state: VbucketState, vbuuid: int, *, takeover: bool = False) -> None:
        """Change the state; if that starts a branch, `vbuuid` is the branch's."""
        if state is VbucketState.ACTIVE and self.state is not VbucketState.ACTIVE:
            if self.state is not None and not takeover:
                self.begin_branch(vbuuid, self.whole_seqno)
            self.whole_seqno = self.high_seqno
        self.state = state

    def begin_branch(self, vbuuid: int, seqno: int) -> None:
        """Start a branch at a seqno, and drop the entries above it from the failover log."""
        below = [entry for entry in self.failover_log if entry[1] <= seqno]
        self.failover_log = [(vbuuid, seqno), *below][:MAX_ENTRIES]

    def rollback(self, seqno: int, vbuuid: int) -> None:
        """Drop the changes above `seqno`; if none is left, a branch with this vbuuid starts."""
        before = self.high_seqno
        self.changes = [change for change in self.changes if change.by_seqno <= seqno]
        self.whole_seqno = min(self.whole_seqno, self.high_seqno)
        self.failover_log = [entry for entry in self.failover_log if entry[1] <= self.high_seqno]
        if not self.failover_log or (before and not self.changes):
            self.failover_log = [(vbuuid, self.high_seqno)]

    def reset(self, vbuuid: int) -> None:
        """Drop all changes, and start a new history with this vbuuid."""
        self.changes, self.whole_seqno, self.failover_log = [], 0, [(vbuuid, 0)]

    def list_snapshot(self, start: int, end: int) -> list[Mutation | Tombstone]:
        """Return the changes of the deduplicated snapshot (start, end]."""
        newest = {change.key: change for change in self.changes if change.by_seqno <= end}
        ends = self.collection_ends
        return [
            change
            for change in self.changes
            if start < change.by_seqno <= end
            and newest[change.key] is change
            and not 0 < find_erasing_event(change, ends) <= end
        ]

    def find_ceiling(self, seqno: int) -> int:
        """Return the lowest seqno of a change at or above `seqno`, or the high seqno if all changes are below."""
        return next((change.by_seqno for change in self.changes if change.by_seqno >= seqno), self.high_seqno)

    def find_superseding(self, change: Mutation | Tombstone) -> int:
        """Return the seqno of the next change of the same key or of the end of its collection, 0 without either."""
        later = (other for other in self.changes if other.key == change.key and other.by_seqno > change.by_seqno)
        return next((other.by_seqno for other in later), 0) or find_erasing_event(change, self.collection_ends)


def find_erasing_event(change: Mutation | Tombstone, ends: Mapping[int, list[int]]) -> int:
    """Return the seqno of the event that ended the collection of a change, 0 if none did.

    Args:
        change: a document's change, whose key names the collection, or a system event about the collection.
        ends: collection id -> the seqnos of the events that ended it.
    """
    if not ends:
        return 0
    about = parse_event_key(change.key)
    ended = ends.get(about[1] if about is not None and about[0] else read_collection(change.key), [])
    return next((seqno for seqno in ended if seqno > change.by_seqno), 0)
