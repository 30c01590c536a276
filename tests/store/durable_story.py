"""Compacts, restarts and crashes a bucket in a disk in memory, and compares the bucket with a model."""

from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.log_file import parse_log_number
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.collection_state import read_collection
from penstock.store.history.event_frames import parse_event_key
from penstock.store.history.failover_log import MAX_ENTRIES
from penstock.store.history.history_snapshot import KeptVersions, Snapshot, open_parts
from penstock.store.history.vbucket_changes import CAS
from penstock.store.log.compaction import Compaction
from penstock.wire.codec.constants import VbucketState
from penstock.wire.messages.dcp import DELETION_HEAD, Mutation
from tests.store.memory_disk import ProcessDied
from tests.store.model import HistoryModel, Tombstone, find_erasing_event, read_all
from tests.store.recorded_story import SECOND, RecordedState, RecordedStory
from tests.store.story import BucketStory


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


class DurableStory(RecordedStory):
    """Steps of a bucket on disk, with compactions, restarts and crashes.

    Attributes:
        running: the compaction that is under way, if any.
        purged: vbucket and cas of tombstones that were dropped at some time; a crash may bring one back.
    """

    def __init__(self, settings: BucketSettings, *, size: int = 20, vbuckets: int = 4) -> None:
        self.running: RunningCompaction | None = None
        self.purged: set[tuple[int, int]] = set()
        super().__init__(settings, size=size, vbuckets=vbuckets)

    # Compactions

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
            retained = settings.keeps_history
            if settings.retention_seconds and running.now - made > settings.retention_seconds * SECOND:
                retained = False
            if settings.retention_bytes and running.position - position > settings.retention_bytes:
                retained = False
            assert not retained
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
        if not self.settings.keeps_history:
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
                BucketStory.record_event(self, vbucket, history, change)  # it is no record of its own
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
                    self.check_versions(vbucket, history, start, end)

    def check_versions(self, vbucket: Vbucket, history: HistoryModel, start: int, end: int) -> None:
        """Check that a snapshot with change history has every version above the floor, and no other older version."""
        floor = vbucket.index.history_floor
        begins = {0: 0, **vbucket.collections.history_begins}
        expected = {change.by_seqno: change for change in self.list_snapshot(vbucket, history, start, end)}
        for change in history.changes:
            begin = begins.get(read_collection(change.key), end)
            if max(start, floor, begin) < change.by_seqno <= end:
                expected[change.by_seqno] = change
        parts = open_parts(vbucket.index, start, end, KeptVersions(floor, begins))
        assert [change for part in parts for change in read_all(part)] == [expected[one] for one in sorted(expected)]
        assert len(parts) <= 2
