"""Repairs that are interrupted or killed, or that the disk refuses."""

import errno
import json
import re
import shutil
from itertools import chain, count
from pathlib import Path

import pytest

from penstock.errors import StoreRefused
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import INVENTORY
from penstock.store.disk.log_file import make_log_name
from penstock.store.recovery import repair_run as repairing
from penstock.store.recovery.overlay import OverlayDirectory
from penstock.store.recovery.repair_run import CheckReport
from tests.store.failing import FailingDirectory, Place, capture_state, read_files
from tests.store.memory_disk import ProcessDied
from tests.store.repairs import check_place, repair_place
from tests.store.written import flip_bit, write_all_file_kinds, write_files


@pytest.fixture
def place(memory_path: Path) -> Place:
    return Place(memory_path / "beer")


@pytest.mark.long
def test_next_repair_finishes_an_interrupted_repair(place: Place) -> None:
    written = write_all_file_kinds()
    content = written.files[written.last_log]
    broken = {**written.files, written.last_log: flip_bit(content, written.records[1].start)}
    refusals = []
    for operation in ("rename", "write", "sync", "sync_names", "create", "make"):
        for after in range(12):
            for file in place.path.glob("damaged*/*"):
                file.unlink()
            for directory in place.path.glob("damaged*"):
                directory.rmdir()
            write_files(place.path, broken)
            report = check_place(place)
            files = FailingDirectory(place.path)
            repairing.lock_for_repair(files)
            files.fail(operation, errno.EIO, after=after)
            try:
                repairing.repair_bucket(files, report)
            except StoreRefused as refusal:
                refusals.append(str(refusal))
            files.kill()
            check_repair_end(place, broken, report)
    assert len(refusals) > 8
    assert all(re.fullmatch(r".*beer: [^:]*: Input/output error", text) for text in refusals)


def check_repair_end(place: Place, broken: dict[str, bytes], report: CheckReport) -> None:
    """Finish an interrupted repair and check the bucket.

    After an interruption, either all files are unchanged, or the bucket is refused until the repair is finished.

    Args:
        place: directory of the bucket.
        broken: its files before the repair.
        report: report of the check before the repair.
    """
    record = json.loads((place.path / "bucket.json").read_text())
    if "repair" in record:
        with pytest.raises(StoreRefused, match=r"a repair was interrupted; `penstock check --repair` ends it$"):
            place()
        files = Directory(place.path)
        repairing.finish_repair(files, repairing.lock_for_repair(files))
        files.unlock()
    elif not any(place.path.glob("damaged*/*")):
        left = read_files(place.path)
        assert {name: left[name] for name in broken} == broken
        repair_place(place, check_place(place))
    again = check_place(place)
    assert not again.losses
    assert [left[:6] for left in again.remaining] == [left[:6] for left in report.remaining]
    assert not [name for name in read_files(place.path) if name.endswith((".repaired", ".new"))]
    kept = {name: content for path in place.path.glob("damaged*") for name, content in read_files(path).items()}
    assert kept == {name: content for name, content in broken.items() if name in kept}
    place().close()


def test_next_repair_removes_drafts_of_a_killed_repair(place: Place) -> None:
    written = write_all_file_kinds()
    write_files(place.path, {**written.files, written.last_log: flip_bit(written.files[written.last_log], 50)})
    for name in (f"{make_log_name(99)}.repaired", "notes.repaired"):
        (place.path / name).write_bytes(b"draft")
    repair_place(place, check_place(place))
    assert [name for name in read_files(place.path) if name.endswith(".repaired")] == ["notes.repaired"]


class FullOverlay(OverlayDirectory):
    """An overlay of a disk that becomes full.

    Attributes:
        left: writes that still succeed.
    """

    left = 3

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, data, offset)


@pytest.mark.parametrize("writes", range(6))
def test_repair_on_a_full_disk_changes_nothing(place: Place, writes: int) -> None:
    written = write_all_file_kinds()
    (segment,) = (name for name in written.files if name.startswith("segment"))
    broken = {**written.files, segment: flip_bit(written.files[segment], 70)}
    write_files(place.path, broken)
    report = check_place(place)

    def open_full_overlay(path: Path) -> OverlayDirectory:
        full = FullOverlay(path)
        full.left = writes
        return full

    files = Directory(place.path)
    repairing.lock_for_repair(files)
    with pytest.raises(StoreRefused, match=r"beer: .*No space left on device$"):
        repairing.repair_bucket(files, report, open_full_overlay)
    files.unlock()
    assert read_files(place.path) == broken


def test_check_refuses_other_directories(place: Place) -> None:
    bucket = place()
    with pytest.raises(StoreRefused, match=r"beer: in use by process \d+$"):
        check_place(place)
    bucket.close()
    for file in place.path.iterdir():
        file.unlink()
    with pytest.raises(StoreRefused, match=r"beer: nothing is in it, expected a bucket$"):
        check_place(place)
    files = FailingDirectory(place.path)
    files.fail("lock", errno.EROFS)
    with pytest.raises(StoreRefused, match=r"beer: cannot be written to: Read-only file system$"):
        check_place(place, files)


# Crashes


class DyingDirectory(Directory):
    """A directory whose process is killed at one of its calls.

    Attributes:
        left: one number, the calls before the kill; several directories may share the list.
    """

    left: list[int]

    def count_call(self) -> None:
        if not self.left[0]:
            raise ProcessDied
        self.left[0] -= 1

    def create(self, name: str) -> int:
        self.count_call()
        return super().create(name)

    def reopen(self, name: str, size: int) -> int:
        self.count_call()
        return super().reopen(name, size)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        self.count_call()
        return super().write(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        self.count_call()

    def sync_names(self) -> None:
        self.count_call()

    def rename(self, old: str, new: str) -> None:
        self.count_call()
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self.count_call()
        super().remove(name)

    def make_directory(self, name: str) -> None:
        self.count_call()
        super().make_directory(name)


class DyingOverlay(DyingDirectory, OverlayDirectory):
    """An overlay whose process is killed at one of its calls."""


def make_promised_segment(place: Place) -> dict[str, bytes]:
    """Return damaged files in which a segment that the log has promised still has the name of a draft.

    The damage is an older copy of the bucket record.
    """
    bucket = place(segment_bytes=8000)
    older = read_files(place.path)["bucket.json"]
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
    place.directory.kill()
    (place.path / f"{INVENTORY}.new").unlink()
    return {**read_files(place.path), "bucket.json": older, "bucket-copy.json": older}


def repair_dying(place: Place, calls: int) -> bool:
    """Repair as `penstock check --repair` does, with a kill after so many calls; return False if it was killed."""
    left = [calls]

    def open_dying_overlay(path: Path) -> DyingOverlay:
        overlay = DyingOverlay(path)
        overlay.left = left
        return overlay

    files = DyingDirectory(place.path)
    files.left = left
    try:
        record = repairing.lock_for_repair(files)
        if "repair" in record:
            record = repairing.finish_repair(files, record)
        report = repairing.check_bucket(files, record, clock=lambda: place.now, new_vbuuid=lambda: next(place.vbuuids))
        if report.losses:
            repairing.repair_bucket(files, report, open_dying_overlay)
    except ProcessDied:
        return False
    finally:
        files.unlock()
    return True


@pytest.mark.long
def test_repair_killed_at_any_call_loses_nothing(place: Place) -> None:
    files = make_promised_segment(place)
    assert [name for name in files if name.startswith("segment")] == [
        "segment-0000000001-0000000001", "segment-0000000001-0000000001.2.new"
    ]  # fmt: skip
    expected = None
    for calls in chain([10**6], count()):  # first without a kill, for the expected state
        shutil.rmtree(place.path)
        place.path.mkdir()
        write_files(place.path, files)
        died = not repair_dying(place, calls)
        attempts = calls
        while not repair_dying(place, attempts):  # the next repairs are killed too
            attempts += 5  # each leaves a directory, which costs the next repair some calls
        everything = {
            content for path in (place.path, *place.path.glob("damaged*")) for content in read_files(path).values()
        }
        assert {content for name, content in files.items() if name not in {"bucket.json", INVENTORY}} <= everything
        bucket = place()
        expected = expected or capture_state(bucket)
        assert capture_state(bucket) == expected
        bucket.close()
        if not died and calls < 10**6:
            break
    assert calls > 20
