"""A bucket on a disk in memory, taken from step to step, and what it ought to be after each of them; also when it is
opened again, however its process has ended.
"""

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
from tests.store.memory_disk import Died, Disk
from tests.store.model import START, History, Tombstone, erased_by, read_all
from tests.store.story import Story

__all__ = ["Crash", "DurableStory"]

SECOND = 10**9
PATH = Path(gettempdir())  # nothing is written there
LAST_SEEN = 2**64 - 2**48  # cas values above do not count
_WHILE_ERASING = {
    "manifest",
    "erase",
    "set",
    "delete",
    "inside",
    "rollback",
    "commit",
    "seal",
    "run",
    "finish",
    "crash",
}


class Crash(NamedTuple):
    """How a process ends. during: a commit, close, compact, or the run of a compaction, in so many calls of the
    operating system; or nothing. power: does the system end with it? seed: of what is lost then. openings: after so
    many calls it ends again while it opens the bucket.
    """

    during: str
    calls: int
    power: bool
    seed: int
    openings: list[int]


class Told(NamedTuple):
    """The histories after a record of the log. floors: lowest_snapshot_end and purge_seqno of each."""

    histories: list[History]
    floors: list[tuple[int, int]]


def rows_of(vbucket: Vbucket) -> set[tuple[int, int]]:
    """Return by_seqno and cas of all changes that a vbucket has, superseded ones included.

    The newest snapshot alone does not tell states apart: an event of before a rollback may be superseded by now.
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


class Plan(NamedTuple):
    """A compaction that has begun, and when: the time, the place in the log, and what was on disk of each vbucket."""

    compaction: Compaction
    now: int
    position: int
    persisted: list[int]


class DurableStory(Story):
    """told: what the bucket may be after a crash, newest last; the first of them is on disk. purged: by vbucket and
    cas, tombstones that were dropped at some time: a crash may bring one back. ends: of all log files there have been.
    made: by vbucket, cas and seqno, when and where in the log a change was made.
    """

    def __init__(self, settings: BucketSettings, *, size: int = 20, vbuckets: int = 4) -> None:
        self.settings = settings
        self.disk = Disk()
        self.now = START
        self.vbuuids = 0
        self.plan: Plan | None = None
        self.purged: set[tuple[int, int]] = set()
        self.ends: dict[int, int] = {}
        self.made: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.told: list[Told] = []
        self.vbuckets = vbuckets
        super().__init__(self.opened(), size)
        self.note()
        self.committed()

    def opened(self) -> BucketStore:
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
        self.vbuuids += 1
        return self.vbuuids

    @property
    def log(self) -> DurableLog:
        assert isinstance(self.bucket.log, DurableLog)
        return self.bucket.log

    def position(self) -> int:
        """Return how many bytes have ever been written to log files. To be called before each commit."""
        self.ends |= {file.number: file.end for file in [*self.log.pending.files, self.log.pending.active]}
        return sum(self.ends.values())

    def end_of(self, vbucket: Vbucket, change: Mutation | Tombstone) -> int:
        """Return how many bytes the log had with a change that was just made. Notes behind it may have begun a file."""
        self.position()
        found = vbucket.index.find(change.by_seqno)
        assert found is not None
        rows, row = found
        number = rows.ids[0] if isinstance(rows, Segment) else self.log.pending.active.number
        before = sum(end for other, end in self.ends.items() if other < number)
        return before + rows.offsets_at[row] + rows.lengths_at[row]

    def note(self) -> None:
        """Take note of what the bucket is after a record."""
        floors = [(vbucket.index.lowest_snapshot_end, vbucket.index.purge_seqno) for vbucket in self.bucket.vbuckets]
        self.told.append(Told([history.copy() for history in self.histories], floors))

    def committed(self) -> None:
        """All that was told is on disk."""
        assert (self.bucket.log.room.fault, self.bucket.log.commits.uncommitted_records) == (None, 0)
        for vbucket in self.bucket.vbuckets:
            assert vbucket.history.persisted_seqno == vbucket.changes.high_seqno
        del self.told[:-1]

    def step(self, what: str, argument: int, detail: Any) -> None:
        vbucket, history = self.bucket.vbuckets[argument], self.histories[argument]
        if history.state is None:
            self.state(vbucket, history, (VbucketState.ACTIVE, False))
        if what not in _WHILE_ERASING:
            self.erase_all()
        super().step(what, argument, detail)
        for vbucket in self.bucket.vbuckets:
            assert vbucket.history.persisted_seqno <= vbucket.changes.high_seqno
            assert vbucket.history.whole_seqno == self.histories[vbucket.id].whole_seqno
            assert vbucket.index.lowest_snapshot_end <= vbucket.changes.high_seqno
        for segment in self.log.segments.sealed:
            assert segment.dead_bytes == segment.lengths[segment.fates != 0].sum()

    # Changes: after each record a note

    @property
    def cas(self) -> int:
        """Of a change from elsewhere."""
        return {1: self.now + self.number, 2: 2**64 - 1 - self.number}.get(self.number % 8, self.number)

    @property
    def delete_time(self) -> int:
        return self.now // SECOND if self.number % 2 else self.number

    def newest(self, vbucket: Vbucket, history: History, key: bytes) -> Mutation | Tombstone | None:
        """Return the newest change of a key, None if there is none or it was purged."""
        change = history.newest.get(key)
        return None if change is None or vbucket.index.find(change.by_seqno) is None else change

    def has_expired(self, change: Mutation | Tombstone | None) -> bool:
        return isinstance(change, Mutation) and 0 < change.expiry <= self.now // SECOND

    def own(self, vbucket: Vbucket, history: History) -> None:
        """Check the change that a vbucket has just made itself, and take note of it."""
        change = history.changes[-1]
        assert read_all(Snapshot(vbucket.index, change.by_seqno - 1, change.by_seqno)) == [change]
        assert change.cas > max((old.cas for old in history.changes[:-1] if old.cas <= LAST_SEEN), default=0)
        self.made[vbucket.id, change.cas, change.by_seqno] = self.now, self.end_of(vbucket, change)
        self.note()

    def set(self, vbucket: Vbucket, history: History, detail: Any) -> None:
        key, expiry = detail if isinstance(detail, tuple) else (detail, 0)
        if history.state is not VbucketState.ACTIVE:
            self.apply(vbucket, history, (key, 0, 0))
            return
        self.make_whole(vbucket, history)
        value, old = self.value, self.newest(vbucket, history, key)
        cas = vbucket.set(key, value, expiry=expiry).cas
        rev_seqno = (old.rev_seqno if old else vbucket.index.purged_rev_seqno) + 1
        history.store(key, value, cas, rev_seqno=rev_seqno, expiry=expiry and self.now // SECOND + expiry)
        self.own(vbucket, history)

    def delete(self, vbucket: Vbucket, history: History, key: bytes) -> None:
        if history.state is not VbucketState.ACTIVE:
            self.bury(vbucket, history, (key, 0, 0))
            return
        self.make_whole(vbucket, history)
        if key not in history.documents:
            return
        if self.has_expired(history.documents[key]):
            with pytest.raises(KeyNotFound):
                vbucket.delete(key)
            self.expired(vbucket, history)
        else:
            history.delete(key, vbucket.delete(key).cas, delete_time=self.now // SECOND)
            self.own(vbucket, history)

    def get(self, vbucket: Vbucket, history: History, key: bytes) -> None:
        """Read a document, which expires if it is over."""
        document = history.documents.get(key)
        item = vbucket.get(key)
        if document is None or self.has_expired(document):
            assert item is None
            if document is not None and history.state is VbucketState.ACTIVE:
                self.expired(vbucket, history)
        else:
            assert item is not None
            assert (item.value, item.cas, item.seqno) == (document.value, document.cas, document.by_seqno)
            assert (item.rev_seqno, item.flags) == (document.rev_seqno, document.flags)

    def expired(self, vbucket: Vbucket, history: History) -> None:
        """Take note of the documents that have just become tombstones."""
        was_whole = history.whole_seqno == history.high_seqno
        whole = history.whole_seqno
        new = read_all(Snapshot(vbucket.index, history.high_seqno, vbucket.changes.high_seqno))
        assert len(new) == vbucket.changes.high_seqno - history.high_seqno
        for change in new:
            assert self.has_expired(history.documents[change.key])
            history.delete(change.key, change.cas, Event.EXPIRATION, delete_time=self.now // SECOND)
            if not was_whole:
                history.whole_seqno = whole
            self.own(vbucket, history)

    def pager(self, *_: Any) -> None:
        while self.bucket.pager.expire_some():
            pass
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            if history.state is VbucketState.ACTIVE:
                self.expired(vbucket, history)
                assert not any(map(self.has_expired, history.documents.values()))

    def state(self, vbucket: Vbucket, history: History, detail: tuple[VbucketState, bool]) -> None:
        super().state(vbucket, history, detail)
        self.note()

    def absorb(self, vbucket: Vbucket, history: History) -> None:
        self.note()  # what has led to the events comes before them
        super().absorb(vbucket, history)

    def event(self, vbucket: Vbucket, history: History, change: Mutation | Tombstone) -> None:
        super().event(vbucket, history, change)
        self.own(vbucket, history)

    def inside(self, vbucket: Vbucket, history: History, detail: tuple[str, int, bytes]) -> None:
        if history.state is not None:
            super().inside(vbucket, history, detail)

    def applied(self, history: History, change: Mutation | Tombstone, snapshot_end: int) -> None:
        """A snapshot's first change comes after the note that it begins, its last one before the note that it ends."""
        before = history.whole_seqno, history.high_seqno
        super().applied(history, change, snapshot_end)
        place = self.end_of(self.bucket.vbuckets[history.vbucket], change)
        self.made[history.vbucket, change.cas, change.by_seqno] = self.now, place
        if before[0] < before[1] and history.whole_seqno == history.high_seqno:
            history.whole_seqno = before[0]
            self.note()
            history.whole_seqno = history.high_seqno
        self.note()

    def rollback(self, vbucket: Vbucket, history: History, distance: int) -> None:
        super().rollback(vbucket, history, distance)
        self.note()

    def reset(self, vbucket: Vbucket, history: History, _: int) -> None:
        super().reset(vbucket, history, _)
        self.note()

    def remove(self, vbucket: Vbucket, history: History, _: int) -> None:
        vbucket.remove()
        history.reset(vbucket.history.vbuuid)
        history.state = None
        self.note()

    # Time, and the log

    def wait(self, _: Vbucket, __: History, seconds: int) -> None:
        self.now += seconds * SECOND

    def load(self, vbucket: Vbucket, _: History, bucket: bool) -> None:
        """Load all keys, or some of one vbucket."""
        if bucket:
            while self.bucket.keys.load_some():
                pass
        else:
            vbucket.changes.keys.load_some()

    def seal(self, *_: Any) -> None:
        self.bucket.log.room.seal_active()

    def commit(self, *_: Any) -> None:
        self.position()
        self.bucket.log.commits.run()
        self.committed()

    def cluster(self, *_: Any) -> None:
        """Let the newest changes be clustered, but for what is to give the new file its name."""
        self.finish()
        self.seal()
        self.commit()
        self.begin_one(False)
        self.run()
        self.finish()

    def begin(self, _: Vbucket, __: History, everything: bool) -> None:
        self.begin_one(everything)

    def begin_one(self, everything: bool) -> bool:
        """Begin a compaction if none is under way, and there is something to be done."""
        position = self.position()
        compaction = self.bucket.compactor.next_piece(everything)
        if compaction is None:
            return False
        assert self.plan is None
        persisted = [vbucket.history.persisted_seqno for vbucket in self.bucket.vbuckets]
        self.plan = Plan(compaction, self.now, position, persisted)
        return True

    def run(self, *_: Any) -> None:
        if self.plan is not None:
            self.plan.compaction.run()

    def finish(self, *_: Any) -> None:
        plan, self.plan = self.plan, None
        if plan is None:
            return
        before = self.present()
        plan.compaction.finish()
        assert plan.compaction.error is None
        after = self.present()
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            for change in history.changes:
                if change.by_seqno in before[vbucket.id] - after[vbucket.id]:
                    self.dropped(vbucket, history, change, plan)
        self.note()

    def present(self) -> list[frozenset[int]]:
        """Return which changes there are, for each vbucket."""
        return [
            frozenset(change.by_seqno for change in history.changes if vbucket.index.find(change.by_seqno) is not None)
            for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True)
        ]

    def dropped(self, vbucket: Vbucket, history: History, change: Mutation | Tombstone, plan: Plan) -> None:
        """Check that this change was one that a compaction may drop."""
        by = history.superseded_by(change)
        settings = self.settings
        if 0 < by <= vbucket.index.lowest_snapshot_end:
            superseding = next(other for other in history.changes if other.by_seqno == by)
            made, position = self.made[vbucket.id, superseding.cas, by]
            assert by <= plan.persisted[vbucket.id]
            retained = settings.retention_seconds is None or plan.now - made <= settings.retention_seconds * SECOND
            if settings.retention_bytes is not None and plan.position - position > settings.retention_bytes:
                retained = False
            assert not retained or 0 in (settings.retention_seconds, settings.retention_bytes)
        else:
            assert not isinstance(change, Mutation)
            assert change.delete_time < plan.now // SECOND - settings.purge_age
            assert vbucket.index.purge_seqno >= change.by_seqno
            assert vbucket.index.purged_rev_seqno >= change.rev_seqno
            self.purged.add((vbucket.id, change.cas))

    def compact(self, *_: Any) -> None:
        """As BucketStore.compact, step by step."""
        self.erase_all()
        self.run()
        self.finish()
        self.seal()
        self.commit()
        while self.begin_one(True):
            self.run()
            self.finish()
            self.commit()
        if 0 in (self.settings.retention_seconds, self.settings.retention_bytes):
            assert self.bucket.collect_stats().dead_bytes == 0
            for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
                for change in history.changes:
                    assert not history.superseded_by(change) or vbucket.index.find(change.by_seqno) is None

    # Ends, and beginnings

    def reopen(self, _: Vbucket, __: History, read: int) -> None:
        """Stop well, and open the bucket again. read: as check_keys takes it."""
        self.bucket.close()
        self.committed()
        self.opened_again(self.opened())
        assert "not clean" not in self.bucket.recovery_summary
        self.recognise(self.told[-1:], new_entries=range(1), first_vbuuid=self.vbuuids + 1)
        self.check()
        self.check_keys(read)

    def crash(self, _: Vbucket, __: History, how: Crash) -> None:
        random = Random(how.seed)
        persisted = self.end(how)
        first_vbuuid = self.vbuuids + 1
        for calls in [*how.openings, None]:
            if how.power:
                self.disk.lose_power(random)
            else:
                self.disk.kill()
            self.disk.fuse = calls
            with suppress(Died):
                self.opened_again(self.opened())
                break
        clean = "not clean" not in self.bucket.recovery_summary
        before = self.histories
        new_entries = range(1) if clean else range(1, 2 + len(how.openings))
        self.recognise(self.told[-1:] if clean else self.told, new_entries=new_entries, first_vbuuid=first_vbuuid)
        for seqno, old, now in zip(persisted, before, self.histories, strict=True):
            assert now.high_seqno >= seqno
            kept = [[change for change in history.changes if change.by_seqno == seqno] for history in (old, now)]
            assert kept[0] == kept[1]
        self.check()
        self.check_keys(how.seed % 3)

    def end(self, how: Crash) -> list[int]:
        """Let the process end. Returns what was persisted, as it said last."""
        self.disk.fuse = how.calls
        with suppress(Died):
            match how.during:
                case "commit":
                    self.commit()
                case "close":
                    self.bucket.close()
                    self.committed()
                case "compact":
                    self.compact()
                case "run":
                    self.run()
                case "manifest":
                    self.bucket.rollout.set_manifest(
                        self.bucket.manifests.current.with_collection("_default", f"d{self.number}")
                    )
                    self.catch_up()
        return [vbucket.history.persisted_seqno for vbucket in self.bucket.vbuckets]

    def catch_up(self) -> None:
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            self.absorb(vbucket, history)

    def opened_again(self, bucket: BucketStore) -> None:
        self.disk.fuse = None
        self.bucket = bucket
        self.erase_all()
        self.readers = []
        self.plan = None
        self.ends = {number: end for number, end in self.ends.items() if number < self.log.pending.active.number}
        for name, file in self.disk.names.items():
            if (number := parse_log_number(name)) is not None:
                self.ends[number] = len(file.data)

    def recognise(self, told: list[Told], *, new_entries: range, first_vbuuid: int) -> None:
        """Find out what the bucket is now, of what it may be."""
        logs = []
        for vbucket in self.bucket.vbuckets:
            log = [(entry.vbuuid, entry.seqno) for entry in vbucket.history.failover_log]
            new = [entry for entry in log if entry[0] >= first_vbuuid]
            assert log[: len(new)] == new
            told_since = len(self.newest_events(vbucket))
            assert {seqno for _, seqno in new} <= {
                *range(vbucket.changes.high_seqno - told_since, vbucket.changes.high_seqno + 1)
            }
            assert len(new) in (new_entries if vbucket.history.state is VbucketState.ACTIVE else range(1))
            logs.append((new, log[len(new) :]))
        found = [one for one in told if self.matches(one, [old for _, old in logs])]
        assert found, "this is none of the states that the bucket has been in since the last commit"
        self.histories = [
            self.extended(vbucket, history)
            for vbucket, history in zip(self.bucket.vbuckets, found[-1].histories, strict=True)
        ]
        for history, (new, _) in zip(self.histories, logs, strict=True):
            history.log = [*new, *history.log][:MAX_ENTRIES]
        self.told = []
        self.note()
        self.committed()

    def newest_events(self, vbucket: Vbucket) -> list[Mutation | Tombstone]:
        """Return the system events that a vbucket's changes end with."""
        found = []
        for change in reversed(read_all(Snapshot(vbucket.index, 0, vbucket.changes.high_seqno))):
            if parse_event_key(change.key) is None:
                break
            found.append(change)
        return found[::-1]

    def extended(self, vbucket: Vbucket, history: History) -> History:
        """Return a history with the events that the vbucket has told since, because it was behind."""
        history = history.copy()
        for change in self.newest_events(vbucket):
            if change.by_seqno > history.high_seqno and vbucket.history.state is VbucketState.ACTIVE:
                super().event(vbucket, history, change)
                self.made[vbucket.id, change.cas, change.by_seqno] = self.now, self.position()
        return history

    def matches(self, told: Told, logs: list[Any]) -> bool:
        histories = [
            self.extended(vbucket, history)
            for vbucket, history in zip(self.bucket.vbuckets, told.histories, strict=True)
        ]
        return all(
            (vbucket.history.state, vbucket.changes.high_seqno, vbucket.history.whole_seqno)
            == (history.state, history.high_seqno, history.whole_seqno)
            and (vbucket.index.lowest_snapshot_end, vbucket.index.purge_seqno) == floors
            and log == history.log[: MAX_ENTRIES - len(vbucket.history.failover_log) + len(log)]
            and read_all(Snapshot(vbucket.index, 0, vbucket.changes.high_seqno))
            == self.view(vbucket, history, 0, vbucket.changes.high_seqno)
            and rows_of(vbucket) <= {(change.by_seqno, change.cas) for change in history.changes}
            for vbucket, history, floors, log in zip(self.bucket.vbuckets, histories, told.floors, logs, strict=True)
        )

    # What there is to see

    def view(self, vbucket: Vbucket, history: History, start: int, end: int) -> list[Mutation | Tombstone]:
        """As it was told, but for tombstones that were purged."""
        shown = []
        newest = {change.key: change for change in history.changes if change.by_seqno <= end}
        ends = history.ends
        for change in history.changes:
            if start < change.by_seqno <= end and not 0 < erased_by(change, ends) <= end:
                purged = (vbucket.id, change.cas) in self.purged
                if newest[change.key] is change and not (purged and vbucket.index.find(change.by_seqno) is None):
                    shown.append(change)
        return shown

    def check(self) -> None:
        """Check all that a client can see, at every seqno that a snapshot may end at."""
        self.erase_all()
        self.check_collections()
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            assert vbucket.history.state is history.state
            assert [tuple(entry) for entry in vbucket.history.failover_log] == history.log
            assert vbucket.history.whole_seqno == history.whole_seqno
            assert vbucket.changes.items == len(history.documents)
            assert vbucket.changes.high_seqno == history.high_seqno
            self.check_snapshots(vbucket, history)

    def check_keys(self, read: int) -> None:
        """Read no keys, some of each vbucket, or (2) all, with their documents."""
        if read == 1:
            for vbucket in self.bucket.vbuckets:
                vbucket.changes.keys.load_some()
        elif read == 2:
            self.check_documents()

    def check_documents(self) -> None:
        for vbucket, history in zip(self.bucket.vbuckets, self.histories, strict=True):
            for key in sorted(history.newest):
                if parse_event_key(key) is None:
                    self.get(vbucket, history, key)

    def check_snapshots(self, vbucket: Vbucket, history: History) -> None:
        lowest, whole = vbucket.index.lowest_snapshot_end, history.whole_seqno
        there = [change.by_seqno for change in history.changes if vbucket.index.find(change.by_seqno) is not None]
        for change in history.changes:
            if change.by_seqno not in there and (vbucket.id, change.cas) not in self.purged:
                assert 0 < history.superseded_by(change) <= lowest
        for asked in range(1, whole + 1 if whole < 200 else 1):
            end = next(seqno for seqno in there if seqno >= max(asked, lowest)) if lowest <= whole else 0
            assert vbucket.history.open_snapshot(0, asked).end_seqno == end
        for end in there:
            if lowest <= end <= whole:
                for start in {0, end // 2}:
                    snapshot = vbucket.history.open_snapshot(start, end)
                    assert snapshot.end_seqno == end
                    assert read_all(snapshot) == self.view(vbucket, history, start, end)
                    again = Snapshot(vbucket.index, start, end, few=0)
                    assert read_all(again) == self.view(vbucket, history, start, end)
