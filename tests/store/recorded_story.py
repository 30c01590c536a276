"""Runs random steps on a bucket in a disk in memory, and keeps the model after each record of the log."""

from pathlib import Path
from tempfile import gettempdir
from typing import Any, NamedTuple

import pytest

from penstock.errors import KeyNotFound
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.durable_log import DurableLog
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.log.segment import Segment
from penstock.wire.codec.constants import VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from tests.store.memory_disk import MemoryDisk
from tests.store.model import START, HistoryModel, Tombstone, read_all
from tests.store.story import BucketStory

SECOND = 10**9
PATH = Path(gettempdir())  # a name only: all files are in the MemoryDisk
LAST_SEEN = 2**64 - 2**48  # the bucket's clock ignores higher cas values
_WHILE_ERASING = {
    "change_manifest",
    "erase",
    "set",
    "delete",
    "change_in_collection",
    "rollback",
    "commit",
    "seal",
    "run",
    "finish",
    "crash",
}


class RecordedState(NamedTuple):
    """The model after one record of the log.

    Attributes:
        histories: a copy of each vbucket's history.
        floors: lowest_snapshot_end and purge_seqno of each vbucket.
    """

    histories: list[HistoryModel]
    floors: list[tuple[int, int]]


class RecordedStory(BucketStory):
    """Steps of a bucket on disk.

    After each record of the log the model is kept, because the bucket may be in that state after a crash.

    Attributes:
        settings: settings of the bucket.
        disk: the disk with the bucket's files.
        now: time of the bucket's clock, in ns since the epoch.
        vbuuids: number of vbuuids that branches have got.
        log_ends: size of every log file that has ever been, by number.
        change_places: vbucket, cas and seqno of a change -> the time, and the bytes of the log, when it was made.
        possible_states: states that the bucket may have after a crash, newest last; the first of them is on disk.
        vbuckets: number of vbuckets.
    """

    def __init__(self, settings: BucketSettings, *, size: int = 20, vbuckets: int = 4) -> None:
        self.settings = settings
        self.disk = MemoryDisk()
        self.now = START
        self.vbuuids = 0
        self.log_ends: dict[int, int] = {}
        self.change_places: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.possible_states: list[RecordedState] = []
        self.vbuckets = vbuckets
        super().__init__(self.open_bucket(), size)
        self.record_state()
        self.check_committed()

    def open_bucket(self) -> BucketStore:
        """Open the bucket of the disk."""
        return BucketStore.open(
            PATH,
            "b",
            vbuckets=self.vbuckets,
            clock=lambda: self.now,
            new_vbuuid=self.new_vbuuid,
            settings=self.settings,
            directory=self.disk,
        )

    def new_vbuuid(self) -> int:
        """Return the next vbuuid."""
        self.vbuuids += 1
        return self.vbuuids

    @property
    def log(self) -> DurableLog:
        """The bucket's log, which is one on disk."""
        assert isinstance(self.bucket.log, DurableLog)
        return self.bucket.log

    def measure_log(self) -> int:
        """Return how many bytes have ever been written to log files; call it before each commit."""
        self.log_ends |= {file.number: file.end for file in [*self.log.pending.files, self.log.pending.active]}
        return sum(self.log_ends.values())

    def find_end(self, vbucket: Vbucket, change: Mutation | Tombstone) -> int:
        """Return the size of the log, as `measure_log` counts it, up to the end of a change that was just made.

        It is not the end of the log, because a note behind the change may have started another log file.
        """
        self.measure_log()
        found = vbucket.index.find(change.by_seqno)
        assert found is not None
        rows, row = found
        number = rows.ids[0] if isinstance(rows, Segment) else self.log.pending.active.number
        before = sum(end for other, end in self.log_ends.items() if other < number)
        return before + rows.offsets_at[row] + rows.lengths_at[row]

    def record_state(self) -> None:
        """Keep the model after a record, as a state that the bucket may have after a crash."""
        floors = [(vbucket.index.lowest_snapshot_end, vbucket.index.purge_seqno) for vbucket in self.bucket.vbuckets]
        self.possible_states.append(RecordedState([history.copy() for history in self.histories], floors))

    def check_committed(self) -> None:
        """Check that all changes are on disk, and drop all possible states but the newest."""
        assert (self.bucket.log.room.fault, self.bucket.log.commits.uncommitted_records) == (None, 0)
        for vbucket in self.bucket.vbuckets:
            assert vbucket.history.persisted_seqno == vbucket.changes.high_seqno
        del self.possible_states[:-1]

    def step(self, action: str, vbucket: int, detail: Any) -> None:
        """Take a step, and check the floors of all vbuckets and the counters of all segments."""
        if self.histories[vbucket].state is None:
            self.set_state(self.bucket.vbuckets[vbucket], self.histories[vbucket], (VbucketState.ACTIVE, False))
        if action not in _WHILE_ERASING:
            self.erase_all()
        super().step(action, vbucket, detail)
        for each in self.bucket.vbuckets:
            assert each.history.persisted_seqno <= each.changes.high_seqno
            assert each.history.whole_seqno == self.histories[each.id].whole_seqno
            assert each.index.lowest_snapshot_end <= each.changes.high_seqno
        for segment in self.log.segments.sealed:
            assert segment.dead_bytes == segment.lengths[segment.fates != 0].sum()

    # Changes: the model is kept after each record

    @property
    def cas(self) -> int:
        """Cas of a change that this step receives; now and then above the clock, or too high for it."""
        return {1: self.now + self.number, 2: 2**64 - 1 - self.number}.get(self.number % 8, self.number)

    @property
    def delete_time(self) -> int:
        """Time of a deletion that this step receives, in seconds since the epoch: now, or long ago."""
        return self.now // SECOND if self.number % 2 else self.number

    def find_newest(self, vbucket: Vbucket, history: HistoryModel, key: bytes) -> Mutation | Tombstone | None:
        """Return the newest change of a key, None if there is none or it was purged."""
        change = history.newest.get(key)
        return None if change is None or vbucket.index.find(change.by_seqno) is None else change

    def has_expired(self, change: Mutation | Tombstone | None) -> bool:
        """Return whether a change is a document whose expiry has been reached."""
        return isinstance(change, Mutation) and 0 < change.expiry <= self.now // SECOND

    def record_own_change(self, vbucket: Vbucket, history: HistoryModel) -> None:
        """Check the newest change, which the vbucket made itself, and keep its place and the model after it."""
        change = history.changes[-1]
        assert read_all(Snapshot(vbucket.index, change.by_seqno - 1, change.by_seqno)) == [change]
        assert change.cas > max((old.cas for old in history.changes[:-1] if old.cas <= LAST_SEEN), default=0)
        self.change_places[vbucket.id, change.cas, change.by_seqno] = self.now, self.find_end(vbucket, change)
        self.record_state()

    def set(self, vbucket: Vbucket, history: HistoryModel, detail: Any) -> None:
        """Store or receive a document; the detail is its key, or its key and its relative expiry."""
        key, expiry = detail if isinstance(detail, tuple) else (detail, 0)
        if history.state is not VbucketState.ACTIVE:
            self.apply(vbucket, history, (key, 0, 0))
            return
        self.promote_inside_snapshot(vbucket, history)
        value, old = self.value, self.find_newest(vbucket, history, key)
        cas = vbucket.set(key, value, expiry=expiry).cas
        rev_seqno = (old.rev_seqno if old else vbucket.index.purged_rev_seqno) + 1
        history.store(key, value, cas, rev_seqno=rev_seqno, expiry=expiry and self.now // SECOND + expiry)
        self.record_own_change(vbucket, history)

    def delete(self, vbucket: Vbucket, history: HistoryModel, key: bytes) -> None:
        """Delete a document that exists and has not expired, or receive a deletion."""
        if history.state is not VbucketState.ACTIVE:
            self.apply_tombstone(vbucket, history, (key, 0, 0))
            return
        self.promote_inside_snapshot(vbucket, history)
        if key not in history.documents:
            return
        if self.has_expired(history.documents[key]):
            with pytest.raises(KeyNotFound):
                vbucket.delete(key)
            self.record_expired(vbucket, history)
        else:
            history.delete(key, vbucket.delete(key).cas, delete_time=self.now // SECOND)
            self.record_own_change(vbucket, history)

    def get(self, vbucket: Vbucket, history: HistoryModel, key: bytes) -> None:
        """Read a document; if its expiry has been reached, it becomes a tombstone."""
        document = history.documents.get(key)
        item = vbucket.get(key)
        if document is None or self.has_expired(document):
            assert item is None
            if document is not None and history.state is VbucketState.ACTIVE:
                self.record_expired(vbucket, history)
        else:
            assert item is not None
            assert (item.value, item.cas, item.seqno) == (document.value, document.cas, document.by_seqno)
            assert (item.rev_seqno, item.flags) == (document.rev_seqno, document.flags)

    def record_expired(self, vbucket: Vbucket, history: HistoryModel) -> None:
        """Add the tombstones of documents that have just expired to the history."""
        was_whole = history.whole_seqno == history.high_seqno
        whole = history.whole_seqno
        new = read_all(Snapshot(vbucket.index, history.high_seqno, vbucket.changes.high_seqno))
        assert len(new) == vbucket.changes.high_seqno - history.high_seqno
        for change in new:
            assert self.has_expired(history.documents[change.key])
            history.delete(change.key, change.cas, Event.EXPIRATION, delete_time=self.now // SECOND)
            if not was_whole:
                history.whole_seqno = whole
            self.record_own_change(vbucket, history)

    def expire(self, *_: Any) -> None:
        """Let the pager expire all documents whose expiry has been reached."""
        while self.bucket.pager.expire_some():
            pass
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            if history.state is VbucketState.ACTIVE:
                self.record_expired(vbucket, history)
                assert not any(map(self.has_expired, history.documents.values()))

    def set_state(self, vbucket: Vbucket, history: HistoryModel, detail: tuple[VbucketState, bool]) -> None:
        """Change the state, and keep the model."""
        super().set_state(vbucket, history, detail)
        self.record_state()

    def record_new_events(self, vbucket: Vbucket, history: HistoryModel) -> None:
        """Keep the model before the events, because their cause has a record in front of theirs; then add them."""
        self.record_state()
        super().record_new_events(vbucket, history)

    def record_event(self, vbucket: Vbucket, history: HistoryModel, change: Mutation | Tombstone) -> None:
        """Add a system event, and keep the model."""
        super().record_event(vbucket, history, change)
        self.record_own_change(vbucket, history)

    def change_in_collection(self, vbucket: Vbucket, history: HistoryModel, detail: tuple[str, int, bytes]) -> None:
        """Change or read a document in a collection, unless the vbucket was deleted."""
        if history.state is not None:
            super().change_in_collection(vbucket, history, detail)

    def record_applied(self, history: HistoryModel, change: Mutation | Tombstone, snapshot_end: int) -> None:
        """Add a received change, and keep the model after it, and after the note that ends its snapshot.

        A snapshot's first change comes behind the note of its beginning. Its last change comes before the note of its
        end, so the snapshot is incomplete after that record.
        """
        before = history.whole_seqno, history.high_seqno
        super().record_applied(history, change, snapshot_end)
        place = self.find_end(self.bucket.vbuckets[history.vbucket], change)
        self.change_places[history.vbucket, change.cas, change.by_seqno] = self.now, place
        if before[0] < before[1] and history.whole_seqno == history.high_seqno:
            history.whole_seqno = before[0]
            self.record_state()
            history.whole_seqno = history.high_seqno
        self.record_state()

    def rollback(self, vbucket: Vbucket, history: HistoryModel, distance: int) -> None:
        """Roll the vbucket back, and keep the model."""
        super().rollback(vbucket, history, distance)
        self.record_state()

    def reset(self, vbucket: Vbucket, history: HistoryModel, _: int) -> None:
        """Empty the vbucket, and keep the model."""
        super().reset(vbucket, history, _)
        self.record_state()

    def remove(self, vbucket: Vbucket, history: HistoryModel, _: int) -> None:
        """Delete the vbucket, and keep the model."""
        vbucket.remove()
        history.reset(vbucket.history.vbuuid)
        history.state = None
        self.record_state()

    # Time

    def wait(self, _: Vbucket, __: HistoryModel, seconds: int) -> None:
        """Move the clock forward."""
        self.now += seconds * SECOND

    def load_keys(self, vbucket: Vbucket, _: HistoryModel, bucket: bool) -> None:
        """Load all keys of the bucket, or some of one vbucket."""
        if bucket:
            while self.bucket.keys.load_some():
                pass
        else:
            vbucket.changes.keys.load_some()
