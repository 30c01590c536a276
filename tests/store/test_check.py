"""What is said of damaged files, what a repair leaves, and that no consumer comes to believe what never was."""

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st

from penstock.errors import KeyNotFound, StoreDamaged, StoreRefused
from penstock.store.bucket_store import BucketStore
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import INVENTORY
from penstock.store.disk.log_file import log_name
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.failover_log import FailoverLog
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.rollback import StreamRequest, rollback_point
from penstock.store.recovery import repair_run as repairing
from penstock.store.recovery.overlay import Overlay
from penstock.store.recovery.repair_plan import Lost
from penstock.store.recovery.repair_run import Report
from penstock.wire.codec.constants import VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from tests.store import model
from tests.store.failing import FailingDirectory, Place, contents, directory_in_memory, newest, shown
from tests.store.memory_disk import Died
from tests.store.model import Tombstone, read_all
from tests.store.written import flipped, of_all_kinds, of_one_file, put

Change = Mutation | Tombstone


@pytest.fixture
def place(memory: Path) -> Place:
    return Place(memory / "beer")


def check(place: Place, directory: Directory | None = None) -> Report:
    """Check a bucket, which changes nothing."""
    files = directory or Directory(place.path)
    before = contents(place.path)
    said = repairing.enter(files)
    try:
        report = repairing.check(files, said, clock=lambda: place.now, new_vbuuid=lambda: next(place.vbuuids))
    finally:
        files.unlock()
    assert contents(place.path) == before
    return report


def repair(place: Place, report: Report) -> str:
    files = Directory(place.path)
    repairing.enter(files)
    try:
        return repairing.repair(files, report)
    finally:
        files.unlock()


def rows(vbucket: Vbucket) -> dict[int, Change]:
    """Return all changes that a vbucket has, by their seqnos, also those that are superseded."""
    index = vbucket.index
    found: list[Change] = []
    for segment in index.segments:
        for row in range(segment.starts[index.vbucket], segment.ends[index.vbucket]):
            at = segment.offsets_at[row]
            found += model.changes(bytes(segment.buffer[at : at + segment.lengths_at[row]]))
    for at, length in zip(index.offsets_at, index.lengths_at, strict=True):
        found += model.changes(bytes(index.buffer[at : at + length]))
    return {change.by_seqno: change for change in found}


# A story, and its end


class Told(NamedTuple):
    """A vbucket as it was before its files were damaged.

    history: all changes of the history that it is on. ever: all that there have been. rows: those that it still had.
    """

    failover_log: FailoverLog
    history: list[Change]
    ever: list[Change]
    rows: dict[int, Change]


class Story:
    """Changes a bucket at random, and takes note of each change."""

    def __init__(self, place: Place, random: Random) -> None:
        self.place = place
        self.random = random
        self.bucket = place(segment_bytes=random.choice([700, 1200, 2500]), purge_age=random.choice([0, 10**6]))
        self.histories: list[list[Change]] = [[] for _ in self.bucket.vbuckets]
        self.ever: list[list[Change]] = [[] for _ in self.bucket.vbuckets]
        self.bucket.vbuckets[3].set_state(VbucketState.REPLICA)

    def step(self) -> None:
        vbucket = self.random.choice(self.bucket.vbuckets[:3])
        steps: dict[Callable[[Vbucket], None], float] = {
            self.set: 20,
            self.delete: 4,
            self.copy: 4,
            self.fail_over: 1,
            self.reset: 0.3,
            self.wait: 1,
            self.seal: 2,
            self.commit: 4,
            self.rewrite: 4,
        }
        (what,) = self.random.choices(list(steps), list(steps.values()))
        what(vbucket)

    def note(self, vbucket: Vbucket) -> None:
        change = read_all(Snapshot(vbucket.index, vbucket.changes.high_seqno - 1, vbucket.changes.high_seqno))
        self.histories[vbucket.id] += change
        self.ever[vbucket.id] += change

    def set(self, vbucket: Vbucket) -> None:
        vbucket.set(b"key %d" % self.random.randrange(8), b"value %d" % self.random.randrange(1000))
        self.note(vbucket)

    def delete(self, vbucket: Vbucket) -> None:
        try:
            vbucket.delete(b"key %d" % self.random.randrange(8))
        except KeyNotFound:
            return
        self.note(vbucket)

    def copy(self, _: Vbucket) -> None:
        """Let the replica have some more changes of another history, perhaps not to the end of a snapshot."""
        replica = self.bucket.vbuckets[3]
        end = replica.changes.high_seqno + self.random.randrange(1, 8)
        while replica.changes.high_seqno < end and self.random.random() < 0.8:
            key, seqno = (
                b"key %d" % self.random.randrange(8),
                replica.changes.high_seqno + self.random.choice([1, 1, 2]),
            )
            replica.incoming.apply(Event.MUTATION, key, b"", cas=seqno, rev_seqno=seqno, seqno=seqno, snapshot_end=end)
            self.note(replica)

    def fail_over(self, vbucket: Vbucket) -> None:
        """Some of the newest changes are lost, and another branch begins there."""
        vbucket.set_state(VbucketState.REPLICA)
        high = vbucket.rollback(max(vbucket.changes.high_seqno - self.random.randrange(4), 0))
        vbucket.set_state(VbucketState.ACTIVE)
        history = self.histories[vbucket.id]
        history[:] = [change for change in history if change.by_seqno <= high]

    def reset(self, vbucket: Vbucket) -> None:
        vbucket.reset()
        self.histories[vbucket.id].clear()

    def wait(self, _: Vbucket) -> None:
        self.place.now += 10**9

    def seal(self, _: Vbucket) -> None:
        self.bucket.log.room.seal()

    def commit(self, _: Vbucket) -> None:
        self.bucket.log.commits.run()

    def rewrite(self, _: Vbucket) -> None:
        compaction = self.bucket.compactor.next_piece(everything=self.random.random() < 0.5)
        if compaction is not None:
            compaction.run()
            compaction.finish()

    def end(self) -> list[Told]:
        self.bucket.log.commits.run()
        told = [
            Told(vbucket.history.failover_log, self.histories[vbucket.id], self.ever[vbucket.id], rows(vbucket))
            for vbucket in self.bucket.vbuckets
        ]
        if self.random.random() < 0.5:
            self.bucket.close()
        else:
            self.place.directory.let_go()
        return told


def damage(path: Path, random: Random) -> str:
    """Damage one file of a bucket, if there is any left, and return how."""
    files = [file for file in sorted(path.iterdir()) if file.name not in {"bucket.json", "bucket-copy.json", "lock"}]
    if not files:
        return "nothing left to damage"
    file = random.choice(files)
    content = file.read_bytes()
    at = random.randrange(len(content)) if content else 0
    how = random.choice(["flipped", "flipped", "cut", "zeros", "gone"])
    if how == "gone" or not content:
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[:at])
    elif how == "zeros":
        file.write_bytes(content[:at] + bytes(len(content[at : at + 200])) + content[at + 200 :])
    else:
        file.write_bytes(flipped(content, at))
    return f"{file.name}, {how} at {at} of {len(content)}"


@given(st.integers(0, 2**32), st.sampled_from([20, 60, 120]), st.sampled_from([1, 1, 2]))
@example(27191, 20, 2)  # a segment's change is lost, and the note in the log that it superseded a dropped one
def test_a_repair_loses_what_it_says_and_deceives_nobody(seed: int, steps: int, damages: int) -> None:
    random = Random(seed)
    with directory_in_memory() as path:
        place = Place(path / "beer")
        story = Story(place, random)
        for _ in range(steps):
            story.step()
        told = story.end()
        done = [damage(place.path, random) for _ in range(damages)]
        note(f"{done}")
        report = check(place)
        for loss in report.losses:
            note(f"{loss}")
        if not report.losses:
            place().close()
            return
        with pytest.raises(StoreDamaged):
            place()
        before = contents(place.path)
        aside = repair(place, report)
        kept = contents(place.path / aside)
        assert {**contents(place.path), **kept, "bucket.json": b""} == {
            **contents(place.path), **before, "bucket.json": b""
        }  # fmt: skip
        again = check(place)
        assert not again.losses
        assert again.found.clean
        assert again.left == [left._replace(rollback=None) for left in report.left]
        bucket = place()
        # A last log file that is gone may have held anything, and who should know?
        check_what_is_left(bucket, report, told, gone=any(how.startswith("log") and "gone" in how for how in done))
        for _ in range(2):
            for vbucket, before_it in zip(bucket.vbuckets[:3], told, strict=False):
                check_consumers(vbucket, before_it, report.left[vbucket.id].rollback)
            for number in range(3 * random.randrange(20)):  # the seqnos of what was lost are given out again
                bucket.vbuckets[number % 3].set(b"key %d" % (number % 10), b"new")
        bucket.close()


def check_what_is_left(bucket: BucketStore, report: Report, told: list[Told], *, gone: bool) -> None:
    lost = [lost for loss in report.losses for lost in loss.lost]
    # Of bytes that are not there, or not to be read, nobody can say what they were.
    unknown = gone or report.found.torn is not None
    unknown |= any(loss.unreadable or not loss.damage.nbytes for loss in report.losses)
    for vbucket, before, left in zip(bucket.vbuckets, told, report.left, strict=True):
        found = rows(vbucket)
        assert (vbucket.history.state, vbucket.changes.items, len(found)) == (left.state, left.documents, left.changes)
        assert (min(found, default=0), vbucket.changes.high_seqno) == (left.first_seqno, left.high_seqno)
        assert all(change in before.ever for change in found.values())
        live = newest(vbucket)
        assert len({change.key for change in live}) == len(live)
        last = {change.key: change for change in found.values()}
        assert sorted(change.by_seqno for change in live) == sorted(change.by_seqno for change in last.values())
        same = {seqno for seqno, change in before.rows.items() if found.get(seqno) == change}
        missing = before.rows.keys() - same
        for one in lost:
            if one.vbucket == vbucket.id:
                high = one.last_seqno or max(missing, default=0)
                missing -= set(range(one.first_seqno, high + 1))
        for seqno in missing:
            superseding = last.get(before.rows[seqno].key)
            is_superseded = superseding is not None and superseding.by_seqno > seqno
            if is_superseded and report.found.end is None:  # so no snapshot can end where it was the newest
                key = before.rows[seqno].key
                newer = (one.by_seqno for one in found.values() if one.key == key and one.by_seqno > seqno)
                assert vbucket.index.lowest_snapshot_end >= min(newer)
            assert is_superseded or (unknown and seqno > max(same, default=0))


def check_consumers(vbucket: Vbucket, before: Told, rollback: int | None) -> None:
    """Let every consumer that there may have been go on, and compare what it has then with what there is."""
    there = documents(newest(vbucket))
    for vbuuid, seqno in positions(before):
        point = asked(vbucket, vbuuid, seqno)
        if rollback is not None and seqno > rollback and vbuuid == before.failover_log[0].vbuuid:
            assert point in {0, rollback}
        base = seqno if point is None else point
        if point:  # it asks again from there
            assert base < seqno
        has = [change for change in before.history if change.by_seqno <= base]
        comes = read_all(vbucket.history.snapshot(base, vbucket.changes.high_seqno))
        assert documents([*has, *comes]) == there


def positions(told: Told) -> Iterator[tuple[int, int]]:
    """Yield the branch and the seqno of each consumer that there may be: at any change of a branch."""
    end = max((change.by_seqno for change in told.history), default=0)
    for entry in told.failover_log:
        for change in told.history:
            if change.by_seqno <= end:
                yield entry.vbuuid, change.by_seqno
        end = entry.seqno


def asked(vbucket: Vbucket, vbuuid: int, seqno: int) -> int | None:
    request = StreamRequest(start_seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno)
    return rollback_point(vbucket.history.failover_log, vbucket.changes.high_seqno, vbucket.index.purge_seqno, request)


def documents(changes: list[Change]) -> dict[bytes, Change]:
    last = {change.key: change for change in changes}
    return {key: change for key, change in last.items() if isinstance(change, Mutation)}


# What is said


def restored(place: Place, files: dict[str, bytes], name: str, content: bytes | None) -> Report:
    """Put files in place, one of them with other content or (None) missing, and check them."""
    put(place.path, {key: value for key, value in {**files, name: content}.items() if value is not None})
    return check(place)


def test_a_bucket_that_is_whole(place: Place) -> None:
    written = of_all_kinds()
    put(place.path, written.files)
    report = check(place)
    assert (report.losses, report.found.torn, report.found.clean) == ([], None, False)
    bucket = place()
    assert [(left.state, left.high_seqno, left.documents, left.rollback) for left in report.left] == [
        (vbucket.history.state, vbucket.changes.high_seqno, vbucket.changes.items, None) for vbucket in bucket.vbuckets
    ]
    assert [left.changes for left in report.left] == [len(rows(vbucket)) for vbucket in bucket.vbuckets]
    bucket.close()
    assert check(place).found.clean


def test_a_torn_end_is_no_damage(place: Place) -> None:
    written = of_one_file()
    last = written.records[-1]
    report = restored(place, written.files, written.last, written.files[written.last][: last.end - 1])
    assert report.losses == []
    assert report.found.torn == (written.last, last.start, last.end - last.start - 1)
    assert shown(place()) == written.before(last.start)


def test_a_bad_record_ends_the_log(place: Place) -> None:
    written = of_one_file()
    content = written.files[written.last]
    for number, record in enumerate(written.records[:-4]):
        report = restored(place, written.files, written.last, flipped(content, record.end - 1))
        (loss,) = report.losses
        assert (loss.damage.file, loss.damage.offset) == (written.last, record.start)
        assert loss.damage.nbytes == len(content) - record.start
        assert loss.unreadable == record.end - record.start
        assert sum(lost.changes or 0 for lost in loss.lost) + loss.notes == len(written.records) - number - 1
        assert repair(place, report) == "damaged"
        bucket = place()
        assert shown(bucket) == written.before(record.start)
        assert bucket.recovered.endswith("log files")
        bucket.close()
        assert sorted(contents(place.path / "damaged")) == ["inventory.json", written.last]
        shutil.rmtree(place.path / "damaged")


def test_of_a_segment_only_what_lies_in_bad_parts_is_lost(place: Place) -> None:
    bucket = place(segment_bytes=8 * 1024 * 1024)
    for number in range(40):
        bucket.vbuckets[number % 2].set(b"key %d" % number, bytes(100_000))
    bucket.compactor.rewrite_all()
    bucket.close()
    (name,) = (name for name in contents(place.path) if name.startswith("segment"))
    size = 100_000 + len(b"key 10") + 55
    content = bytearray((place.path / name).read_bytes())
    content[64 + 2 * 1024 * 1024 + 5] ^= 1  # in the third MiB: frames 20 to 31, of which 20 begins in the second
    (place.path / name).write_bytes(content)
    report = check(place)
    (loss,) = report.losses
    mib = 1024 * 1024
    assert loss.damage == (name, 64 + 2 * mib, mib, f"{mib} bytes are not as their checksum says")
    first, last = 2 * mib // size, 3 * mib // size
    assert loss.lost == [Lost(1, last - first + 1, first - 20 + 1, last - 20 + 1)]
    assert [left.rollback for left in report.left] == [None, first - 20, None, None]
    assert [left.changes for left in report.left] == [20, 20 - (last - first + 1), 0, 0]
    repair(place, report)
    bucket = place()
    assert sorted(rows(bucket.vbuckets[1])) == [*range(1, first - 20 + 1), *range(last - 20 + 2, 21)]
    assert bucket.vbuckets[0].changes.items == 20
    vbuuids = [entry.vbuuid for entry in bucket.vbuckets[1].history.failover_log]
    assert [asked(bucket.vbuckets[1], vbuuids[-1], seqno) for seqno in (first - 20, first - 19, 20)] == [
        None, first - 20, first - 20
    ]  # fmt: skip
    bucket.close()


def test_all_start_over_where_a_segment_knows_more_than_the_log(place: Place) -> None:
    written = of_all_kinds()
    content = written.files[written.last]
    first = written.records[1]
    assert first.end < written.as_of
    report = restored(place, written.files, written.last, flipped(content, first.start))
    assert [left.rollback for left in report.left] == [0, 0, 0, 0]
    old = [dict(vbucket.history.failover_log) for vbucket in undamaged(written.files)]
    repair(place, report)
    bucket = place()
    for vbucket, log in zip(bucket.vbuckets, old, strict=True):
        assert [entry.seqno for entry in vbucket.history.failover_log] == [0]
        assert vbucket.history.vbuuid not in log
        assert vbucket.index.lowest_snapshot_end == vbucket.changes.high_seqno
    bucket.close()


def undamaged(files: dict[str, bytes]) -> list[Vbucket]:
    with directory_in_memory() as path:
        put(path, files)
        bucket = Place(path)()
        bucket.close()
        return list(bucket.vbuckets)


def test_states_are_kept_also_where_only_what_does_not_count_has_them(place: Place) -> None:
    written = of_all_kinds()
    assert undamaged(written.files)[2].history.state is VbucketState.REPLICA
    (before,) = (name for name in written.files if name.startswith("log") and name != written.last)
    files = {name: content for name, content in written.files.items() if name != before}
    report = restored(place, files, before, None)
    assert [left.state for left in report.left][2] is VbucketState.REPLICA
    content = written.files[written.last]
    report = restored(place, files, written.last, flipped(content, written.records[0].start))
    assert not report.plan.found.logs
    assert [left.state for left in report.left][2] is VbucketState.REPLICA
    repair(place, report)
    bucket = place()
    assert bucket.vbuckets[2].history.state is VbucketState.REPLICA
    bucket.vbuckets[0].set(b"new", b"value")
    bucket.close()
    assert not check(place).losses


# What can go wrong


def test_what_was_replaced_is_kept_each_time(place: Place) -> None:
    written = of_one_file()
    put(place.path, written.files)
    for number, aside in enumerate(["damaged", "damaged-2", "damaged-3"]):
        broken = flipped((place.path / written.last).read_bytes(), written.records[5 - number].start)
        (place.path / written.last).write_bytes(broken)
        report = check(place)
        assert repair(place, report) == aside
        kept = contents(place.path / aside)
        assert kept == {written.last: broken, "inventory.json": kept["inventory.json"]}
    place().close()


def test_a_repair_that_is_interrupted_is_ended_by_the_next(place: Place) -> None:
    written = of_all_kinds()
    content = written.files[written.last]
    broken = {**written.files, written.last: flipped(content, written.records[1].start)}
    interruptions = 0
    for operation in ("rename", "write", "sync", "sync_names", "create", "make"):
        for after in range(12):
            for file in place.path.glob("damaged*/*"):
                file.unlink()
            for directory in place.path.glob("damaged*"):
                directory.rmdir()
            put(place.path, broken)
            report = check(place)
            files = FailingDirectory(place.path)
            repairing.enter(files)
            files.fail(operation, errno.EIO, after=after)
            try:
                repairing.repair(files, report)
            except (OSError, StoreRefused):
                interruptions += 1
            files.let_go()
            end_of_repair(place, broken, report)
    assert interruptions > 8


def end_of_repair(place: Place, broken: dict[str, bytes], report: Report) -> None:
    """Check that a bucket is either as it was, or can only be used when its repair has ended."""
    said = json.loads((place.path / "bucket.json").read_text())
    if "repair" in said:
        with pytest.raises(StoreRefused, match=r"a repair was interrupted; `penstock check --repair` ends it$"):
            place()
        files = Directory(place.path)
        repairing.finish(files, repairing.enter(files))
        files.unlock()
    elif not any(place.path.glob("damaged*/*")):
        left = contents(place.path)
        assert {name: left[name] for name in broken} == broken
        repair(place, check(place))
    again = check(place)
    assert not again.losses
    assert [left[:6] for left in again.left] == [left[:6] for left in report.left]
    assert not [name for name in contents(place.path) if name.endswith((".repaired", ".new"))]
    kept = {name: content for path in place.path.glob("damaged*") for name, content in contents(path).items()}
    assert kept == {name: content for name, content in broken.items() if name in kept}
    place().close()


def test_drafts_of_a_repair_that_was_killed_are_removed_by_the_next(place: Place) -> None:
    written = of_all_kinds()
    put(place.path, {**written.files, written.last: flipped(written.files[written.last], 50)})
    for name in (f"{log_name(99)}.repaired", "notes.repaired"):
        (place.path / name).write_bytes(b"draft")
    repair(place, check(place))
    assert [name for name in contents(place.path) if name.endswith(".repaired")] == ["notes.repaired"]


class FullOverlay(Overlay):
    """Takes so many writes."""

    left = 3

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, data, offset)


@pytest.mark.parametrize("writes", range(6))
def test_a_repair_that_the_disk_does_not_take_changes_nothing(place: Place, writes: int) -> None:
    written = of_all_kinds()
    (segment,) = (name for name in written.files if name.startswith("segment"))
    broken = {**written.files, segment: flipped(written.files[segment], 70)}
    put(place.path, broken)
    report = check(place)

    def overlay(path: Path) -> Overlay:
        full = FullOverlay(path)
        full.left = writes
        return full

    files = Directory(place.path)
    repairing.enter(files)
    with pytest.raises(StoreRefused, match=r"beer: .*No space left on device$"):
        repairing.repair(files, report, overlay)
    files.unlock()
    assert contents(place.path) == broken


def test_a_directory_that_cannot_be_checked(place: Place) -> None:
    bucket = place()
    with pytest.raises(StoreRefused, match=r"beer: in use by process \d+$"):
        check(place)
    bucket.close()
    for file in place.path.iterdir():
        file.unlink()
    with pytest.raises(StoreRefused, match=r"beer: nothing is in it, expected a bucket$"):
        check(place)
    files = FailingDirectory(place.path)
    files.fail("lock", errno.EROFS)
    with pytest.raises(StoreRefused, match=r"beer: cannot be written to: Read-only file system$"):
        check(place, files)


# Crashes


class Dying(Directory):
    """The process is killed at one of its calls. left: how many come before that, shared with others."""

    left: list[int]

    def call(self) -> None:
        if not self.left[0]:
            raise Died
        self.left[0] -= 1

    def create(self, name: str) -> int:
        self.call()
        return super().create(name)

    def reopen(self, name: str, size: int) -> int:
        self.call()
        return super().reopen(name, size)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        self.call()
        return super().write(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        self.call()

    def sync_names(self) -> None:
        self.call()

    def rename(self, old: str, new: str) -> None:
        self.call()
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self.call()
        super().remove(name)

    def make_directory(self, name: str) -> None:
        self.call()
        super().make_directory(name)


class DyingOverlay(Dying, Overlay):
    pass


def promised(place: Place) -> dict[str, bytes]:
    """Return files with a segment that the log has promised and that has the name of a draft, and a damage."""
    bucket = place(segment_bytes=8000)
    older = contents(place.path)["bucket.json"]
    bucket.record.set_properties({"flush": True})
    for number in range(40):
        bucket.vbuckets[number % 4].set(b"key %d" % number, b"older" * 4)
    bucket.compactor.rewrite_all()
    for number in range(36):
        bucket.vbuckets[number % 4].set(b"key %d" % number, b"newer")
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    assert compaction.finish()
    place.directory.fail("rename", errno.EIO)
    bucket.log.commits.run()
    place.directory.let_go()
    (place.path / f"{INVENTORY}.new").unlink()
    return {**contents(place.path), "bucket.json": older, "bucket-copy.json": older}


def repair_dying(place: Place, calls: int) -> bool:
    """Repair as `penstock check --repair` does, and be killed after so many calls; False: it was killed."""
    left = [calls]

    def dying(path: Path) -> DyingOverlay:
        overlay = DyingOverlay(path)
        overlay.left = left
        return overlay

    files = Dying(place.path)
    files.left = left
    try:
        said = repairing.enter(files)
        if "repair" in said:
            said = repairing.finish(files, said)
        report = repairing.check(files, said, clock=lambda: place.now, new_vbuuid=lambda: next(place.vbuuids))
        if report.losses:
            repairing.repair(files, report, dying)
    except Died:
        return False
    finally:
        files.unlock()
    return True


def test_a_repair_that_is_killed_at_any_call_loses_nothing(place: Place) -> None:
    files = promised(place)
    assert [name for name in files if name.startswith("segment")] == [
        "segment-0000000001-0000000001", "segment-0000000001-0000000001.2.new"
    ]  # fmt: skip
    wanted = None
    for calls in chain([10**6], count()):  # first without a kill
        shutil.rmtree(place.path)
        place.path.mkdir()
        put(place.path, files)
        died = not repair_dying(place, calls)
        attempts = calls
        while not repair_dying(place, attempts):  # killed again and again
            attempts += 5  # each leaves a directory that the next one passes
        everything = {
            content for path in (place.path, *place.path.glob("damaged*")) for content in contents(path).values()
        }
        assert {content for name, content in files.items() if name not in {"bucket.json", INVENTORY}} <= everything
        bucket = place()
        wanted = wanted or shown(bucket)
        assert shown(bucket) == wanted
        bucket.close()
        if not died and calls < 10**6:
            break
    assert calls > 20
