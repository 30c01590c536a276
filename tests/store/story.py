"""Runs random steps on a bucket, and compares the bucket with a model of each vbucket's history."""

from dataclasses import dataclass, field, replace
from typing import Any

from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import parse_event_key
from penstock.store.history.history_snapshot import FEW, Snapshot
from penstock.wire.codec.constants import VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from penstock.wire.values.collection_key import pack_collection_id
from tests.store.model import HistoryModel, Tombstone, decode_chunk, make_tombstone, read_all

_MOST_COLLECTIONS = 3


@dataclass
class SnapshotReader:
    """Reads a snapshot in parts, and compares the parts with the expected changes that are left."""

    snapshot: Snapshot
    expected: list[Mutation | Tombstone]

    def read(self, max_bytes: int, window: int | None) -> None:
        """Read and check one part."""
        read = decode_chunk(self.snapshot.read(9, max_bytes, window))
        assert read == [replace(change, opaque=9) for change in self.expected[: len(read)]]
        assert read or not self.expected or window == 0
        del self.expected[: len(read)]

    def read_to_the_end(self) -> None:
        """Read and check the rest of the snapshot."""
        while self.snapshot.remaining:
            self.read(300, None)
        assert not self.expected


@dataclass
class BucketStory:
    """A bucket, with a model of each vbucket's history; each step changes both.

    A step is the name of a method; its detail is the argument that the method needs.

    Attributes:
        bucket: the bucket under test.
        size: size of values in bytes if it is at least 100; else the sizes differ from step to step.
        histories: the expected history of each vbucket.
        readers: snapshots that are being read.
        number: steps so far.
    """

    bucket: BucketStore
    size: int
    histories: list[HistoryModel] = field(init=False)
    readers: list[SnapshotReader] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.histories = [
            HistoryModel(vbucket.id, failover_log=[(vbucket.history.vbuuid, 0)]) for vbucket in self.bucket.vbuckets
        ]

    def step(self, action: str, vbucket: int, detail: Any) -> None:
        """Call the method `action` with a vbucket, its history and the detail."""
        self.number += 1
        getattr(self, action)(self.bucket.vbuckets[vbucket], self.histories[vbucket], detail)

    def change_manifest(self, _: Vbucket, __: HistoryModel, number: int) -> None:
        """Add, drop or change a collection; there are never more than a few.

        Args:
            number: below 0: change the time limit of a collection. Index of a collection: drop it. Higher: add one.
        """
        manifest = self.bucket.manifests.current
        there = [collection for collection in manifest.collections.values() if collection.id]
        if number < 0:
            for collection in there[number % (len(there) or 1) :][:1]:
                max_ttl = 0 if collection.max_ttl is None else None  # no document expires with either
                manifest = manifest.with_max_ttl("_default", collection.name, max_ttl)
        elif number < len(there):
            manifest = manifest.without_collection("_default", there[number].name)
        elif len(there) < _MOST_COLLECTIONS:
            manifest = manifest.with_collection("_default", f"c{manifest.next_id}", history=bool(number % 2))
        self.bucket.rollout.set_manifest(manifest)
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            self.record_new_events(vbucket, history)

    def record_new_events(self, vbucket: Vbucket, history: HistoryModel) -> None:
        """Add the system events that a vbucket has just written to its history."""
        for change in read_all(Snapshot(vbucket.index, history.high_seqno, vbucket.changes.high_seqno)):
            self.record_event(vbucket, history, change)

    def record_event(self, vbucket: Vbucket, history: HistoryModel, change: Mutation | Tombstone) -> None:
        """Add a system event to the history of its vbucket."""
        assert vbucket.history.state is VbucketState.ACTIVE
        assert parse_event_key(change.key) is not None
        whole = None if history.whole_seqno == history.high_seqno else history.whole_seqno
        history.apply(change)
        history.whole_seqno = change.by_seqno if whole is None else whole

    def change_in_collection(self, vbucket: Vbucket, history: HistoryModel, detail: tuple[str, int, bytes]) -> None:
        """Change or read a document in one of the vbucket's collections, if it has any but the default one.

        The detail holds the method to call, a number that chooses the collection, and the key without its prefix.
        """
        action, number, key = detail
        if collections := sorted(history.collections):
            self.promote_inside_snapshot(vbucket, history)
            prefix = pack_collection_id(collections[number % len(collections)])
            if prefix[0] in history.collections:
                getattr(self, action)(vbucket, history, prefix + key)

    def erase(self, vbucket: Vbucket, _: HistoryModel, most: int) -> None:
        """Erase some more documents of dropped collections, at most `most`."""
        vbucket.collections.eraser.erase_some(most)

    def erase_all(self) -> None:
        """Erase all documents of dropped collections."""
        while self.bucket.eraser.erase_some():
            pass

    def check_collections(self) -> None:
        """Compare the collections of each vbucket, and the counters of each collection, with the history."""
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            collections = history.collections
            assert vbucket.collections.ids == {0, *collections}
            if vbucket.history.state is VbucketState.ACTIVE:
                assert vbucket.collections.ids == self.bucket.manifests.current.collections.keys()
                assert vbucket.collections.read_manifest().collections == self.bucket.manifests.current.collections
            for number, changes in collections.items():
                documents = [change for change in changes[1:] if isinstance(change, Mutation)]
                assert vbucket.collections.item_count(number) == len(documents)
                assert vbucket.collections.high_seqno(number) == max(change.by_seqno for change in changes)

    @property
    def value(self) -> bytes:
        """Value that this step stores."""
        number, size = self.number, self.size
        return b"%d" % number + b"." * (size * number % 91 if size < 100 else size)

    @property
    def cas(self) -> int:
        """Cas of a change that this step receives from another node."""
        return self.number

    @property
    def delete_time(self) -> int:
        """Time of a deletion that this step receives from another node, in seconds since the epoch."""
        return self.number

    def set(self, vbucket: Vbucket, history: HistoryModel, key: bytes) -> None:
        """Store a document."""
        self.promote_inside_snapshot(vbucket, history)
        value = self.value
        history.store(key, value, vbucket.set(key, value).cas)

    def delete(self, vbucket: Vbucket, history: HistoryModel, key: bytes) -> None:
        """Delete a document, if it exists."""
        self.promote_inside_snapshot(vbucket, history)
        if key in history.documents:
            history.delete(key, vbucket.delete(key).cas)

    def promote_inside_snapshot(self, vbucket: Vbucket, history: HistoryModel) -> None:
        """Promote a vbucket that is inside a snapshot, because it must not change documents itself until then."""
        if history.whole_seqno < history.high_seqno:
            self.promote(vbucket, history, False)

    def promote(self, vbucket: Vbucket, history: HistoryModel, takeover: bool) -> None:
        """Make the vbucket a replica and active again, which starts a branch unless it is a takeover."""
        self.set_state(vbucket, history, (VbucketState.REPLICA, False))
        self.set_state(vbucket, history, (VbucketState.ACTIVE, takeover))

    def set_state(self, vbucket: Vbucket, history: HistoryModel, detail: tuple[VbucketState, bool]) -> None:
        """Change the state; `detail` is the new state, and whether the change is a takeover."""
        state, takeover = detail
        vbucket.set_state(state, takeover=takeover)
        history.change_state(state, vbucket.history.vbuuid, takeover=takeover)
        self.record_new_events(vbucket, history)

    def apply(self, vbucket: Vbucket, history: HistoryModel, detail: tuple[bytes, int, int]) -> None:
        """Receive a mutation from another node.

        The detail holds the key, the gap before the change's seqno, and the distance to the end of its snapshot.
        """
        key, gap, rest = detail
        change = Mutation(
            vbucket=vbucket.id,
            key=key,
            value=self.value,
            cas=self.cas,
            by_seqno=vbucket.changes.high_seqno + 1 + gap,
            rev_seqno=self.number * 3,
            flags=self.number,
            lock_time=1,
            nru=2,
        )
        vbucket.incoming.apply(
            Event.MUTATION,
            key,
            change.value,
            cas=change.cas,
            rev_seqno=change.rev_seqno,
            seqno=change.by_seqno,
            snapshot_end=change.by_seqno + rest,
            flags=change.flags,
            lock_time=1,
            nru=2,
        )
        self.record_applied(history, change, change.by_seqno + rest)

    def apply_tombstone(self, vbucket: Vbucket, history: HistoryModel, detail: tuple[bytes, int, int]) -> None:
        """Receive a deletion or an expiration from another node; `detail` is as for `apply`."""
        key, gap, rest = detail
        seqno, rev_seqno = vbucket.changes.high_seqno + 1 + gap, self.number * 3
        event = Event.DELETION if rest % 2 else Event.EXPIRATION
        same: dict[str, Any] = {"key": key, "cas": self.cas, "rev_seqno": rev_seqno, "delete_time": self.delete_time}
        vbucket.incoming.apply(event, seqno=seqno, snapshot_end=seqno + rest, **same)
        self.record_applied(history, make_tombstone(event, vbucket=vbucket.id, by_seqno=seqno, **same), seqno + rest)

    def record_applied(self, history: HistoryModel, change: Mutation | Tombstone, snapshot_end: int) -> None:
        """Add a received change to its history."""
        history.apply(change, snapshot_end)

    def rollback(self, vbucket: Vbucket, history: HistoryModel, distance: int) -> None:
        """Roll the vbucket back by so many seqnos, and check where the rollback ends."""
        seqno = max(vbucket.changes.high_seqno - distance, 0)
        there = [change.by_seqno for change in history.changes if vbucket.index.find(change.by_seqno) is not None]
        expected = max((one for one in there if one <= seqno), default=0)
        if seqno < vbucket.index.lowest_snapshot_end or expected < min(seqno, vbucket.index.purge_seqno):
            expected = 0  # the vbucket no longer holds all versions of that time
        before = vbucket.changes.high_seqno
        assert vbucket.rollback(seqno) == expected
        history.rollback(expected, vbucket.history.vbuuid)
        if before and not expected:
            assert vbucket.history.vbuuid == max(other.history.vbuuid for other in self.bucket.vbuckets)
        self.record_new_events(vbucket, history)

    def reset(self, vbucket: Vbucket, history: HistoryModel, _: int) -> None:
        """Empty the vbucket and start a new history."""
        vbucket.reset()
        history.reset(vbucket.history.vbuuid)
        self.record_new_events(vbucket, history)

    def open_snapshot(self, vbucket: Vbucket, history: HistoryModel, detail: tuple[int, int]) -> None:
        """Open a snapshot that later steps read; `detail` is its start seqno and its length in seqnos."""
        self.erase_all()
        start, length = min(detail[0], vbucket.changes.high_seqno), detail[1]
        end = vbucket.history.open_snapshot(start, start + length).end_seqno
        snapshot = Snapshot(vbucket.index, start, end, few=self.number % 2 * FEW)
        self.readers.append(
            SnapshotReader(snapshot, self.list_snapshot(vbucket, history, snapshot.start_seqno, snapshot.end_seqno))
        )

    def read_snapshots(self, _: Vbucket, __: HistoryModel, detail: tuple[int, int | None]) -> None:
        """Read a part of every open snapshot; `detail` is max_bytes and window of `Snapshot.read`."""
        for reader in self.readers:
            reader.read(*detail)

    def list_snapshot(
        self, vbucket: Vbucket, history: HistoryModel, start: int, end: int
    ) -> list[Mutation | Tombstone]:
        """Return the expected changes of the snapshot (start, end]."""
        return history.list_snapshot(start, end)


def count_live_bytes(histories: list[HistoryModel]) -> int:
    """Return how many bytes the frames of the newest changes have."""
    return sum(len(change.encode()) for history in histories for change in history.newest.values())
