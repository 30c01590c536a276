"""Runs random steps, crashes and restarts on a bucket in a disk in memory, and compares the bucket with a model."""

from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import Any, NamedTuple

import pytest

from penstock.errors import KeyNotFound
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.durable_log import DurableLog
from penstock.store.disk.log_file import parse_log_number
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import parse_event_key
from penstock.store.history.failover_log import MAX_ENTRIES
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.vbucket_changes import CAS
from penstock.store.log.compaction import Compaction
from penstock.store.log.segment import Segment
from penstock.wire.codec.constants import VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import DELETION_HEAD, Mutation
from tests.store.memory_disk import MemoryDisk, ProcessDied
from tests.store.model import START, HistoryModel, Tombstone, find_erasing_event, read_all
from tests.store.story import BucketStory

__all__ = ["CrashPlan", "DurableStory"]

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


class CrashPlan(NamedTuple):
    """The end of a process.

    Attributes:
        during: the method that runs when the process ends (see `end_process`), or `nothing`.
        calls: calls of the operating system in that method before the process ends.
        power: whether the power fails too.
        seed: seed of the data that a power loss takes.
        openings: one for each opening after the crash that also crashes: calls before the process ends again.
    """

    during: str
    calls: int
    power: bool
    seed: int
    openings: list[int]


class RecordedState(NamedTuple):
    """The model after one record of the log.

    Attributes:
        histories: a copy of each vbucket's history.
        floors: lowest_snapshot_end and purge_seqno of each vbucket.
    """

    histories: list[HistoryModel]
    floors: list[tuple[int, int]]


def list_rows(vbucket: Vbucket) -> set[tuple[int, int]]:
    """Return by_seqno and cas of all changes that a vbucket holds, including superseded ones.

    The newest snapshot alone does not identify a state: a system event from before a rollback may be superseded.
    """
    found = set()
    seqno = 0
    while seqno < vbucket.changes.high_seqno:
        seqno = vbucket.index.find_ceiling(seqno + 1)
        place = vbucket.index.find(seqno)
        assert place is not None
        rows, row = place
        found.add((seqno, DELETION_HEAD.unpack_from(rows.buffer, rows.offsets_at[row])[CAS]))
    return found


class RunningCompaction(NamedTuple):
    """A compaction that has begun.

    Attributes:
        compaction: the compaction.
        now: time of its beginning, in ns since the epoch.
        position: bytes of the log at its beginning, as `measure_log` returns them.
        persisted: the persisted seqno of each vbucket at its beginning.
    """

    compaction: Compaction
    now: int
    position: int
    persisted: list[int]


class DurableStory(BucketStory):
    """Steps of a bucket on disk, with compactions, restarts and crashes.

    After each record of the log the model is kept, because the bucket may be in that state after a crash.

    Attributes:
        settings: settings of the bucket.
        disk: the disk with the bucket's files.
        now: time of the bucket's clock, in ns since the epoch.
        vbuuids: number of vbuuids that branches have got.
        running: the compaction that is under way, if any.
        purged: vbucket and cas of tombstones that were dropped at some time; a crash may bring one back.
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
        self.running: RunningCompaction | None = None
        self.purged: set[tuple[int, int]] = set()
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

    # Time, and the log

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

    def seal(self, *_: Any) -> None:
        """Seal the active log file."""
        self.bucket.log.room.seal_active()

    def commit(self, *_: Any) -> None:
        """Commit the log."""
        self.measure_log()
        self.bucket.log.commits.run()
        self.check_committed()

    def cluster(self, *_: Any) -> None:
        """Compact the newest changes into a segment; the next commit gives the segment its name."""
        self.finish()
        self.seal()
        self.commit()
        self.begin_compaction(False)
        self.run()
        self.finish()

    def begin(self, _: Vbucket, __: HistoryModel, everything: bool) -> None:
        """Begin a compaction, if possible."""
        self.begin_compaction(everything)

    def begin_compaction(self, everything: bool) -> bool:
        """Begin a compaction if none is under way and one is useful; return whether it began."""
        position = self.measure_log()
        compaction = self.bucket.compactor.next_piece(everything)
        if compaction is None:
            return False
        assert self.running is None
        persisted = [vbucket.history.persisted_seqno for vbucket in self.bucket.vbuckets]
        self.running = RunningCompaction(compaction, self.now, position, persisted)
        return True

    def run(self, *_: Any) -> None:
        """Run the compaction that is under way, if any."""
        if self.running is not None:
            self.running.compaction.run()

    def finish(self, *_: Any) -> None:
        """Finish the compaction that is under way, if any, and check the changes that it has dropped."""
        running, self.running = self.running, None
        if running is None:
            return
        before = self.list_present()
        running.compaction.finish()
        assert running.compaction.error is None
        after = self.list_present()
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            for change in history.changes:
                if change.by_seqno in before[vbucket.id] - after[vbucket.id]:
                    self.check_dropped(vbucket, history, change, running)
        self.record_state()

    def list_present(self) -> list[frozenset[int]]:
        """Return the seqnos of the changes that each vbucket holds."""
        return [
            frozenset(change.by_seqno for change in history.changes if vbucket.index.find(change.by_seqno) is not None)
            for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True)
        ]

    def check_dropped(
        self, vbucket: Vbucket, history: HistoryModel, change: Mutation | Tombstone, running: RunningCompaction
    ) -> None:
        """Check that the compaction was allowed to drop this change."""
        by = history.find_superseding(change)
        settings = self.settings
        if 0 < by <= vbucket.index.lowest_snapshot_end:
            superseding = next(other for other in history.changes if other.by_seqno == by)
            made, position = self.change_places[vbucket.id, superseding.cas, by]
            assert by <= running.persisted[vbucket.id]
            retained = settings.retention_seconds is None or running.now - made <= settings.retention_seconds * SECOND
            if settings.retention_bytes is not None and running.position - position > settings.retention_bytes:
                retained = False
            assert not retained or 0 in (settings.retention_seconds, settings.retention_bytes)
        else:
            assert not isinstance(change, Mutation)
            assert change.delete_time < running.now // SECOND - settings.purge_age
            assert vbucket.index.purge_seqno >= change.by_seqno
            assert vbucket.index.purged_rev_seqno >= change.rev_seqno
            self.purged.add((vbucket.id, change.cas))

    def compact(self, *_: Any) -> None:
        """Compact everything, step by step as `BucketStore.compact` does."""
        self.erase_all()
        self.run()
        self.finish()
        self.seal()
        self.commit()
        while self.begin_compaction(True):
            self.run()
            self.finish()
            self.commit()
        if 0 in (self.settings.retention_seconds, self.settings.retention_bytes):
            assert self.bucket.collect_stats().dead_bytes == 0
            for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
                for change in history.changes:
                    assert not history.find_superseding(change) or vbucket.index.find(change.by_seqno) is None

    # Restarts

    def reopen(self, _: Vbucket, __: HistoryModel, read: int) -> None:
        """Close the bucket and open it again; `read` is the argument of `check_keys`."""
        self.bucket.close()
        self.check_committed()
        self.adopt_bucket(self.open_bucket())
        assert "not clean" not in self.bucket.recovery_summary
        self.recognise_state(self.possible_states[-1:], new_entries=range(1), first_vbuuid=self.vbuuids + 1)
        self.check()
        self.check_keys(read)

    def crash(self, _: Vbucket, __: HistoryModel, how: CrashPlan) -> None:
        random = Random(how.seed)
        persisted = self.end_process(how)
        first_vbuuid = self.vbuuids + 1
        for calls in [*how.openings, None]:
            if how.power:
                self.disk.lose_power(random)
            else:
                self.disk.kill()
            self.disk.calls_left = calls
            with suppress(ProcessDied):
                self.adopt_bucket(self.open_bucket())
                break
        clean = "not clean" not in self.bucket.recovery_summary
        before = self.histories
        new_entries = range(1) if clean else range(1, 2 + len(how.openings))
        self.recognise_state(
            self.possible_states[-1:] if clean else self.possible_states,
            new_entries=new_entries,
            first_vbuuid=first_vbuuid,
        )
        for seqno, old, now in zip(persisted, before, self.histories, strict=True):
            assert now.high_seqno >= seqno
            kept = [[change for change in history.changes if change.by_seqno == seqno] for history in (old, now)]
            assert kept[0] == kept[1]
        self.check()
        self.check_keys(how.seed % 3)

    def end_process(self, how: CrashPlan) -> list[int]:
        """End the process, and return the persisted seqno that each vbucket reported last."""
        self.disk.calls_left = how.calls
        with suppress(ProcessDied):
            match how.during:
                case "commit":
                    self.commit()
                case "close":
                    self.bucket.close()
                    self.check_committed()
                case "compact":
                    self.compact()
                case "run":
                    self.run()
                case "manifest":
                    self.bucket.rollout.set_manifest(
                        self.bucket.manifests.current.with_collection("_default", f"d{self.number}")
                    )
                    self.record_events_of_all()
        return [vbucket.history.persisted_seqno for vbucket in self.bucket.vbuckets]

    def record_events_of_all(self) -> None:
        """Add new system events of all vbuckets to their histories."""
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            self.record_new_events(vbucket, history)

    def adopt_bucket(self, bucket: BucketStore) -> None:
        """Continue with a bucket that was just opened."""
        self.disk.calls_left = None
        self.bucket = bucket
        self.erase_all()
        self.readers = []
        self.running = None
        self.log_ends = {
            number: end for number, end in self.log_ends.items() if number < self.log.pending.active.number
        }
        for name, file in self.disk.names.items():
            if (number := parse_log_number(name)) is not None:
                self.log_ends[number] = len(file.data)

    def recognise_state(self, states: list[RecordedState], *, new_entries: range, first_vbuuid: int) -> None:
        """Find the newest state that the opened bucket matches, and continue from there.

        Args:
            states: states that the bucket may have.
            new_entries: number of entries that each failover log of an active vbucket may have got.
            first_vbuuid: lowest vbuuid of such an entry.
        """
        logs = []
        for vbucket in self.bucket.vbuckets:
            log = [(entry.vbuuid, entry.seqno) for entry in vbucket.history.failover_log]
            new = [entry for entry in log if entry[0] >= first_vbuuid]
            assert log[: len(new)] == new
            events = len(self.list_newest_events(vbucket))
            assert {seqno for _, seqno in new} <= {
                *range(vbucket.changes.high_seqno - events, vbucket.changes.high_seqno + 1)
            }
            assert len(new) in (new_entries if vbucket.history.state is VbucketState.ACTIVE else range(1))
            logs.append((new, log[len(new) :]))
        found = [state for state in states if self.matches(state, [old for _, old in logs])]
        assert found, "the bucket is in no state that it had since the last commit"
        self.histories = [
            self.extend_history(vbucket, history)
            for vbucket, history in zip(self.bucket.vbuckets, found[-1].histories, strict=True)
        ]
        for history, (new, _) in zip(self.histories, logs, strict=True):
            history.failover_log = [*new, *history.failover_log][:MAX_ENTRIES]
        self.possible_states = []
        self.record_state()
        self.check_committed()

    def list_newest_events(self, vbucket: Vbucket) -> list[Mutation | Tombstone]:
        """Return the system events behind the vbucket's last other change."""
        found = []
        for change in reversed(read_all(Snapshot(vbucket.index, 0, vbucket.changes.high_seqno))):
            if parse_event_key(change.key) is None:
                break
            found.append(change)
        return found[::-1]

    def extend_history(self, vbucket: Vbucket, history: HistoryModel) -> HistoryModel:
        """Return a history with the events that the vbucket wrote at its opening because it was behind the manifest."""
        history = history.copy()
        for change in self.list_newest_events(vbucket):
            if change.by_seqno > history.high_seqno and vbucket.history.state is VbucketState.ACTIVE:
                super().record_event(vbucket, history, change)
                self.change_places[vbucket.id, change.cas, change.by_seqno] = self.now, self.measure_log()
        return history

    def matches(self, state: RecordedState, logs: list[Any]) -> bool:
        """Return whether the bucket is in a state; `logs` are the failover logs without entries of the opening."""
        histories = [
            self.extend_history(vbucket, history)
            for vbucket, history in zip(self.bucket.vbuckets, state.histories, strict=True)
        ]
        return all(
            (vbucket.history.state, vbucket.changes.high_seqno, vbucket.history.whole_seqno)
            == (history.state, history.high_seqno, history.whole_seqno)
            and (vbucket.index.lowest_snapshot_end, vbucket.index.purge_seqno) == floors
            and log == history.failover_log[: MAX_ENTRIES - len(vbucket.history.failover_log) + len(log)]
            and read_all(Snapshot(vbucket.index, 0, vbucket.changes.high_seqno))
            == self.list_snapshot(vbucket, history, 0, vbucket.changes.high_seqno)
            and list_rows(vbucket) <= {(change.by_seqno, change.cas) for change in history.changes}
            for vbucket, history, floors, log in zip(self.bucket.vbuckets, histories, state.floors, logs, strict=True)
        )

    # Checks

    def list_snapshot(
        self, vbucket: Vbucket, history: HistoryModel, start: int, end: int
    ) -> list[Mutation | Tombstone]:
        """Return the expected changes of the snapshot (start, end], without purged tombstones."""
        shown = []
        newest = {change.key: change for change in history.changes if change.by_seqno <= end}
        ends = history.collection_ends
        for change in history.changes:
            if start < change.by_seqno <= end and not 0 < find_erasing_event(change, ends) <= end:
                purged = (vbucket.id, change.cas) in self.purged
                if newest[change.key] is change and not (purged and vbucket.index.find(change.by_seqno) is None):
                    shown.append(change)
        return shown

    def check(self) -> None:
        """Compare all that a client can see with the model, with a snapshot for each seqno that can end one."""
        self.erase_all()
        self.check_collections()
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            assert vbucket.history.state is history.state
            assert [tuple(entry) for entry in vbucket.history.failover_log] == history.failover_log
            assert vbucket.history.whole_seqno == history.whole_seqno
            assert vbucket.changes.items == len(history.documents)
            assert vbucket.changes.high_seqno == history.high_seqno
            self.check_snapshots(vbucket, history)

    def check_keys(self, read: int) -> None:
        """Load no keys (0), some keys of each vbucket (1), or all keys by reading their documents (2)."""
        if read == 1:
            for vbucket in self.bucket.vbuckets:
                vbucket.changes.keys.load_some()
        elif read == 2:
            self.check_documents()

    def check_documents(self) -> None:
        """Read and check every document."""
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            for key in sorted(history.newest):
                if parse_event_key(key) is None:
                    self.get(vbucket, history, key)

    def check_snapshots(self, vbucket: Vbucket, history: HistoryModel) -> None:
        """Check the end and the changes of every snapshot that the vbucket can open."""
        lowest, whole = vbucket.index.lowest_snapshot_end, history.whole_seqno
        there = [change.by_seqno for change in history.changes if vbucket.index.find(change.by_seqno) is not None]
        for change in history.changes:
            if change.by_seqno not in there and (vbucket.id, change.cas) not in self.purged:
                assert 0 < history.find_superseding(change) <= lowest
        for asked in range(1, whole + 1 if whole < 200 else 1):
            end = next(seqno for seqno in there if seqno >= max(asked, lowest)) if lowest <= whole else 0
            assert vbucket.history.open_snapshot(0, asked).end_seqno == end
        for end in there:
            if lowest <= end <= whole:
                for start in {0, end // 2}:
                    snapshot = vbucket.history.open_snapshot(start, end)
                    assert snapshot.end_seqno == end
                    assert read_all(snapshot) == self.list_snapshot(vbucket, history, start, end)
                    again = Snapshot(vbucket.index, start, end, few=0)
                    assert read_all(again) == self.list_snapshot(vbucket, history, start, end)
