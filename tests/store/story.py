"""A bucket that is taken from step to step, and plain lists of what it ought to be."""

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
from tests.store.model import History, Tombstone, messages, read_all, tombstone

__all__ = ["Reader", "Story", "live_bytes"]

_MOST_COLLECTIONS = 3


@dataclass
class Reader:
    """A snapshot that is read bit by bit, and what is to come of it."""

    snapshot: Snapshot
    expected: list[Mutation | Tombstone]

    def read(self, max_bytes: int, window: int | None) -> None:
        read = messages(self.snapshot.read(9, max_bytes, window))
        assert read == [replace(change, opaque=9) for change in self.expected[: len(read)]]
        assert read or not self.expected or window == 0
        del self.expected[: len(read)]

    def read_to_the_end(self) -> None:
        while self.snapshot.remaining:
            self.read(300, None)
        assert not self.expected


@dataclass
class Story:
    """size: of values, from 100 on; below, it changes with each step."""

    bucket: BucketStore
    size: int
    histories: list[History] = field(init=False)
    readers: list[Reader] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.histories = [History(vbucket.id, log=[(vbucket.history.vbuuid, 0)]) for vbucket in self.bucket.vbuckets]

    def step(self, what: str, argument: int, detail: Any) -> None:
        """argument: the number of a vbucket."""
        self.number += 1
        getattr(self, what)(self.bucket.vbuckets[argument], self.histories[argument], detail)

    def manifest(self, _: Vbucket, __: History, number: int) -> None:
        """Make a collection, or drop one, or (number below 0) let one be another: there are a few at most."""
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
            self.absorb(vbucket, history)

    def absorb(self, vbucket: Vbucket, history: History) -> None:
        """Take note of the system events that a vbucket has just told."""
        for change in read_all(Snapshot(vbucket.index, history.high_seqno, vbucket.changes.high_seqno)):
            self.event(vbucket, history, change)

    def event(self, vbucket: Vbucket, history: History, change: Mutation | Tombstone) -> None:
        assert vbucket.history.state is VbucketState.ACTIVE
        assert parse_event_key(change.key) is not None
        whole = None if history.whole_seqno == history.high_seqno else history.whole_seqno
        history.apply(change)
        history.whole_seqno = change.by_seqno if whole is None else whole

    def inside(self, vbucket: Vbucket, history: History, detail: tuple[str, int, bytes]) -> None:
        """Do something to a document of a collection that the vbucket has, if there is one."""
        what, number, key = detail
        if collections := sorted(history.collections):
            self.make_whole(vbucket, history)
            prefix = pack_collection_id(collections[number % len(collections)])
            if prefix[0] in history.collections:
                getattr(self, what)(vbucket, history, prefix + key)

    def erase(self, vbucket: Vbucket, _: History, most: int) -> None:
        """Go on with what is left of dropped collections."""
        vbucket.collections.eraser.erase_some(most)

    def erase_all(self) -> None:
        while self.bucket.eraser.erase_some():
            pass

    def check_collections(self) -> None:
        """Check what vbuckets say of collections."""
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
        number, size = self.number, self.size
        return b"%d" % number + b"." * (size * number % 91 if size < 100 else size)

    @property
    def cas(self) -> int:
        """Of a change from elsewhere."""
        return self.number

    @property
    def delete_time(self) -> int:
        """Of a deletion from elsewhere, epoch seconds."""
        return self.number

    def set(self, vbucket: Vbucket, history: History, key: bytes) -> None:
        self.make_whole(vbucket, history)
        value = self.value
        history.store(key, value, vbucket.set(key, value).cas)

    def delete(self, vbucket: Vbucket, history: History, key: bytes) -> None:
        self.make_whole(vbucket, history)
        if key in history.documents:
            history.delete(key, vbucket.delete(key).cas)

    def make_whole(self, vbucket: Vbucket, history: History) -> None:
        """A vbucket that is a copy, inside a snapshot, is promoted before it changes documents itself."""
        if history.whole_seqno < history.high_seqno:
            self.promote(vbucket, history, False)

    def promote(self, vbucket: Vbucket, history: History, takeover: bool) -> None:
        self.state(vbucket, history, (VbucketState.REPLICA, False))
        self.state(vbucket, history, (VbucketState.ACTIVE, takeover))

    def state(self, vbucket: Vbucket, history: History, detail: tuple[VbucketState, bool]) -> None:
        state, takeover = detail
        vbucket.set_state(state, takeover=takeover)
        history.become(state, vbucket.history.vbuuid, takeover=takeover)
        self.absorb(vbucket, history)

    def apply(self, vbucket: Vbucket, history: History, detail: tuple[bytes, int, int]) -> None:
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
        self.applied(history, change, change.by_seqno + rest)

    def bury(self, vbucket: Vbucket, history: History, detail: tuple[bytes, int, int]) -> None:
        key, gap, rest = detail
        seqno, rev_seqno = vbucket.changes.high_seqno + 1 + gap, self.number * 3
        event = Event.DELETION if rest % 2 else Event.EXPIRATION
        same: dict[str, Any] = {"key": key, "cas": self.cas, "rev_seqno": rev_seqno, "delete_time": self.delete_time}
        vbucket.incoming.apply(event, seqno=seqno, snapshot_end=seqno + rest, **same)
        self.applied(history, tombstone(event, vbucket=vbucket.id, by_seqno=seqno, **same), seqno + rest)

    def applied(self, history: History, change: Mutation | Tombstone, snapshot_end: int) -> None:
        history.apply(change, snapshot_end)

    def rollback(self, vbucket: Vbucket, history: History, distance: int) -> None:
        seqno = max(vbucket.changes.high_seqno - distance, 0)
        there = [change.by_seqno for change in history.changes if vbucket.index.find(change.by_seqno) is not None]
        expected = max((one for one in there if one <= seqno), default=0)
        if seqno < vbucket.index.lowest_snapshot_end or expected < min(seqno, vbucket.index.purge_seqno):
            expected = 0  # some version is not there any more
        before = vbucket.changes.high_seqno
        assert vbucket.rollback(seqno) == expected
        history.rollback(expected, vbucket.history.vbuuid)
        if before and not expected:
            assert vbucket.history.vbuuid == max(other.history.vbuuid for other in self.bucket.vbuckets)
        self.absorb(vbucket, history)

    def reset(self, vbucket: Vbucket, history: History, _: int) -> None:
        vbucket.reset()
        history.reset(vbucket.history.vbuuid)
        self.absorb(vbucket, history)

    def open(self, vbucket: Vbucket, history: History, detail: tuple[int, int]) -> None:
        self.erase_all()
        start, length = min(detail[0], vbucket.changes.high_seqno), detail[1]
        end = vbucket.history.open_snapshot(start, start + length).end_seqno
        snapshot = Snapshot(vbucket.index, start, end, few=self.number % 2 * FEW)
        self.readers.append(Reader(snapshot, self.view(vbucket, history, snapshot.start_seqno, snapshot.end_seqno)))

    def read(self, _: Vbucket, __: History, detail: tuple[int, int | None]) -> None:
        """Go on with all readers. detail: at most so many bytes, and a window."""
        for reader in self.readers:
            reader.read(*detail)

    def view(self, vbucket: Vbucket, history: History, start: int, end: int) -> list[Mutation | Tombstone]:
        """Return what a snapshot of (start, end] is to show."""
        return history.view(start, end)


def live_bytes(histories: list[History]) -> int:
    return sum(len(change.encode()) for history in histories for change in history.newest.values())
