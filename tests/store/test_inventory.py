"""The inventory of a bucket's directory: when it is written, its costs, and directories that have none yet."""

import json
import shutil
from errno import ENOSPC
from pathlib import Path

import pytest

from penstock.errors import StoreDamaged, StoreRefused
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import replace_json, unpack_json
from penstock.store.disk.inventory import INVENTORY, BadInventory, Inventory, read_inventory
from tests.store.failing import FailingDirectory, Place, capture_state, read_files
from tests.store.memory_disk import MemoryDisk, ProcessDied


@pytest.fixture
def place(memory_path: Path) -> Place:
    return Place(memory_path / "beer")


def read_listed(place: Place) -> Inventory:
    record = json.loads((place.path / "bucket.json").read_bytes())
    return read_inventory(Directory(place.path), bytes.fromhex(record["uuid"]))


def fill_bucket(place: Place, count: int = 60, *, compact: bool = False, close: bool = True) -> list[object]:
    """Store changes in a few log files, and return the state that a client sees."""
    bucket = place(segment_bytes=1000)
    for number in range(count):
        bucket.vbuckets[number % 4].set(b"key %d" % (number % 9), b"value %d" % number)
        if number % 10 == 9:
            bucket.log.commits.run()
    if compact:
        bucket.compactor.rewrite_all()
    bucket.log.commits.run()
    before = capture_state(bucket)
    if close:
        bucket.close()
    else:
        place.directory.kill()
    return before


class CountingDirectory(FailingDirectory):
    """A directory that records the calls of its syncs.

    Attributes:
        calls: operations that were called, in order.
    """

    calls: list[str]

    def sync(self, descriptor: int) -> None:
        self.calls.append(f"sync {self._open[descriptor][:3]}")
        super().sync(descriptor)

    def sync_names(self) -> None:
        self.calls.append("sync_names")
        super().sync_names()


def test_inventory_lists_the_files_of_the_directory(place: Place) -> None:
    fill_bucket(place, compact=True)
    found = read_listed(place)
    names = [f"segment-{one.ids[0]:010d}-{one.ids[1]:010d}" for one in found.segments]
    names += [f"log-{one.number:010d}" for one in found.logs]
    assert sorted(names) == [name for name in read_files(place.path) if name[:3] in {"log", "seg"}]
    assert found.is_clean
    for one in found.logs:
        assert (place.path / f"log-{one.number:010d}").stat().st_size == one.synced
    bucket = place()
    assert not read_listed(place).is_clean
    assert read_listed(place).generation > found.generation
    bucket.close()


def test_inventory_is_written_only_when_a_log_file_is_started(place: Place) -> None:
    """The start of a log file syncs the file's name, its first commit, the inventory, and the inventory's name."""
    bucket = place(segment_bytes=2000)
    directory = place.directory
    directory.__class__ = CountingDirectory
    assert isinstance(directory, CountingDirectory)
    directory.calls = []
    for number in range(100):
        files = len(bucket.log.segments.sealed)
        bucket.vbuckets[0].set(b"key %d" % number, b"value")
        directory.calls.clear()
        bucket.log.commits.run()
        if len(bucket.log.segments.sealed) == files:
            assert directory.calls == ["sync log"]
        else:
            assert directory.calls[-4:] == ["sync_names", "sync log", "sync inv", "sync_names"]
            assert len(directory.calls) in (4, 5)  # 5 if the log file before had unsynced changes
    assert bucket.log.segments.sealed


def test_directory_of_an_older_release_gets_an_inventory(place: Place) -> None:
    before = fill_bucket(place, compact=True)
    for name in (INVENTORY, "bucket-copy.json"):
        (place.path / name).unlink()
    directory = Directory(place.path)
    record = unpack_json(directory.read("bucket.json"))
    record.pop("revision")
    replace_json(directory, "bucket.json", {**record, "format": 2})
    bucket = place()
    assert capture_state(bucket) == before
    assert "not clean" not in bucket.recovery_summary
    assert read_listed(place).segments
    bucket.close()
    assert unpack_json(directory.read("bucket.json"))["format"] == 4
    (place.path / INVENTORY).unlink()
    with pytest.raises(
        StoreDamaged, match=r"beer: inventory\.json: missing; .*`penstock check --repair` saves the others$"
    ):
        place()


def test_crash_at_the_first_opening_by_this_release_loses_nothing() -> None:
    """Crashes at every call, including those between the first inventory and the new format.

    After a crash between those two, an older release may open the directory and change it.
    """
    calls, windows, died = 0, 0, True
    while died:
        disk, died = MemoryDisk(), False
        bucket = _open_bucket(disk)
        for number in range(9):
            bucket.vbuckets[number % 4].set(b"key %d" % number, b"older")
        bucket.close()
        before = capture_state(bucket)
        _make_older(disk)
        disk.calls_left = calls
        try:
            _open_bucket(disk).close()
        except ProcessDied:
            died = True
        disk.kill()
        if INVENTORY in disk.names and b'"format": 2' in disk.names["bucket.json"].data:
            windows += 1
            before = _change_as_an_older_release(disk)
        for _ in range(2):
            bucket = _open_bucket(disk)
            assert capture_state(bucket) == before
            bucket.close()
        calls += 1
    assert windows > 1


def test_new_format_is_written_before_the_log_uses_it() -> None:
    """After a crash at any call, an older release then refuses the directory because of its format."""
    calls, older, died = 0, 0, True
    while died:
        disk, died = MemoryDisk(), False
        bucket = _open_bucket(disk)
        bucket.vbuckets[0].set(b"key", b"value")
        bucket.close()
        record = unpack_json(disk.names["bucket.json"].data)
        replace_json(disk(Path()), "bucket.json", {**record, "format": 3})
        before = _read_logs(disk)
        disk.calls_left = calls
        try:
            _open_bucket(disk).close()
        except ProcessDied:
            died = True
        disk.kill()
        if unpack_json(disk.names["bucket.json"].data)["format"] == 3:
            older += 1
            assert _read_logs(disk) == before
        calls += 1
    assert calls > older > 1


def _read_logs(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: bytes(file.data) for name, file in disk.names.items() if name.startswith("log-")}


def _make_older(disk: MemoryDisk) -> None:
    """Change a directory to format 2, which has neither an inventory nor a copy of the bucket record."""
    record = unpack_json(disk.names["bucket.json"].data)
    for name in (INVENTORY, "bucket-copy.json"):
        disk.names.pop(name, None)
    record.pop("revision", None)
    replace_json(disk(Path()), "bucket.json", {**record, "format": 2})


def _change_as_an_older_release(disk: MemoryDisk) -> list[object]:
    """Store changes as a release without inventories does, and return the state that a client sees."""
    inventory = disk.names[INVENTORY]
    _make_older(disk)
    bucket = _open_bucket(disk)
    bucket.vbuckets[0].set(b"key 0", b"newer")
    bucket.log.room.seal_active()
    bucket.close()
    _make_older(disk)
    disk.names[INVENTORY] = inventory
    return capture_state(bucket)


def test_inventory_of_another_bucket_is_refused(place: Place, memory_path: Path) -> None:
    fill_bucket(place)
    other = Place(memory_path / "wine")
    next(other.vbuuids)
    fill_bucket(other)
    shutil.copy(other.path / INVENTORY, place.path / INVENTORY)
    with pytest.raises(BadInventory, match="it is of the bucket with uuid"):
        read_listed(place)
    with pytest.raises(StoreDamaged, match=r"inventory\.json, offset 0: it is of the bucket with uuid"):
        place()


@pytest.mark.parametrize("compact", [False, True])
def test_older_copy_of_the_inventory_is_refused(place: Place, *, compact: bool) -> None:
    """An older copy proves nothing, so the opening compares the files, and changes none of them."""
    fill_bucket(place)
    older = (place.path / INVENTORY).read_bytes()
    before = fill_bucket(place, compact=compact)
    (place.path / INVENTORY).write_bytes(older)
    with pytest.raises(StoreDamaged, match=r"inventory\.json, offset 0: an older copy: generation \d+, and "):
        place()
    assert before


def test_older_copy_of_the_bucket_record_is_refused(place: Place) -> None:
    fill_bucket(place)
    older = (place.path / "bucket.json").read_bytes()
    bucket = place()
    bucket.record.set_properties({"flush": True})
    bucket.close()
    (place.path / "bucket.json").write_bytes(older)
    restores = r"; `penstock check --repair` restores it from bucket-copy\.json$"
    with pytest.raises(StoreDamaged, match=rf"/bucket\.json: an older copy: revision 1, expected 2{restores}"):
        place()
    (place.path / "bucket-copy.json").write_bytes(older)
    with pytest.raises(StoreDamaged, match=r"bucket\.json, offset 0: an older copy: revision 1, expected 2 or above"):
        place()


def test_log_file_of_a_diverged_copy_is_refused(place: Place, memory_path: Path) -> None:
    """Two copies of a directory have changed since: a log file of one copy does not belong to the other copy."""
    fill_bucket(place, 10)
    copy = Place(memory_path / "copy")
    shutil.copytree(place.path, copy.path)
    copy.now += 1
    fill_bucket(place, 12, close=False)
    fill_bucket(copy, 13, close=False)
    name = max(name for name in read_files(place.path) if name.startswith("log"))
    shutil.copy(copy.path / name, place.path / name)
    with pytest.raises(StoreDamaged, match=rf"{name}, offset 0: it is not the file that inventory\.json lists"):
        place()


def test_listed_segment_with_the_name_of_a_draft_is_used(place: Place) -> None:
    """The inventory lists the segment, and a crash came before the segment got its final name."""
    before = fill_bucket(place, compact=True)
    name = max(name for name in read_files(place.path) if name.startswith("segment"))
    (place.path / name).rename(place.path / f"{name}.3.new")
    bucket = place()
    assert capture_state(bucket) == before
    assert name in read_files(place.path)
    assert not [name for name in read_files(place.path) if name.endswith(".new")]
    bucket.close()


@pytest.mark.parametrize("has_inventory", [True, False])
def test_crash_while_a_segment_is_rewritten_alone_loses_nothing(*, has_inventory: bool) -> None:
    """The rewrite of one segment has the same name as that segment, so the draft replaces the file."""
    calls, died = 0, True
    while died:
        disk, died = MemoryDisk(), False
        _open_bucket(disk).close()
        bucket = _open_bucket(disk)
        for number in range(40):
            bucket.vbuckets[number % 4].set(b"key %d" % number, b"older" * 4)
        bucket.compactor.rewrite_all()
        for number in range(36):
            bucket.vbuckets[number % 4].set(b"key %d" % number, b"newer")
        bucket.log.commits.run()
        before = capture_state(bucket)
        disk.calls_left = calls
        try:
            compaction = bucket.compactor.next_piece()
            assert compaction is not None
            compaction.run()
            compaction.finish()
            bucket.log.commits.run()
        except ProcessDied:
            died = True
        disk.kill()
        if not has_inventory:
            _make_older(disk)
        for _ in range(2):
            bucket = _open_bucket(disk)
            assert capture_state(bucket) == before
            assert [name for name in disk.names if name.startswith("segment")] == ["segment-0000000001-0000000001"]
            bucket.close()
        calls += 1
    assert calls > 10


def test_name_of_a_rewritten_segment_is_on_disk_before_the_log_has_a_note_of_it() -> None:
    """A power failure may lose a name that was not synced, and a note of a draft without a file has no meaning."""
    disk = MemoryDisk()
    bucket = _open_bucket(disk)
    for number in range(40):
        bucket.vbuckets[number % 4].set(b"key %d" % (number % 4), b"value")
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece(everything=True)
    assert compaction is not None
    compaction.run()
    drafts = [name for name in disk.names if name.startswith("segment")]
    assert drafts
    assert disk.on_disk.keys() >= set(drafts)


def _open_bucket(disk: MemoryDisk) -> BucketStore:
    return BucketStore.open(
        Path(),
        "beer",
        vbuckets=4,
        clock=lambda: 10**18,
        new_vbuuid=lambda: 1,
        directory=disk,
        settings=BucketSettings(),
    )


def test_start_without_room_for_the_inventory_changes_nothing(place: Place) -> None:
    """A segment gets its final name after the inventory lists it, and the replaced files stay until then."""
    bucket = place()
    for number in range(90):
        bucket.vbuckets[number % 4].set(b"key %d" % (number % 9), b"value %d" % number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    assert compaction.finish()
    place.directory.fail("rename", ENOSPC)
    bucket.log.commits.run()
    before = capture_state(bucket)
    place.directory.kill()
    (place.path / f"{INVENTORY}.new").unlink()
    files = read_files(place.path)
    assert [name for name in files if name.endswith(".new")]
    place.prepare = lambda directory: directory.fail("sync inv", ENOSPC)
    for _ in range(2):
        with pytest.raises(StoreRefused, match="No space left on device"):
            place()
        place.directory.kill()
    assert read_files(place.path) == files
    place.prepare = lambda directory: None
    bucket = place()
    assert capture_state(bucket) == before
    bucket.close()
