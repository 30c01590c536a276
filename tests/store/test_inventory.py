"""The inventory of a bucket's directory: when it is written, what it costs, and directories that have none yet."""

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
from tests.store.failing import FailingDirectory, Place, contents, shown
from tests.store.memory_disk import Died, Disk


@pytest.fixture
def place(memory: Path) -> Place:
    return Place(memory / "beer")


def listed(place: Place) -> Inventory:
    said = json.loads((place.path / "bucket.json").read_bytes())
    return read_inventory(Directory(place.path), bytes.fromhex(said["uuid"]))


def fill(place: Place, count: int = 60, *, compact: bool = False, close: bool = True) -> list[object]:
    """Store changes in a few log files, and return what a client sees of them."""
    bucket = place(segment_bytes=1000)
    for number in range(count):
        bucket.vbuckets[number % 4].set(b"key %d" % (number % 9), b"value %d" % number)
        if number % 10 == 9:
            bucket.log.commits.run()
    if compact:
        bucket.compactor.rewrite_all()
    bucket.log.commits.run()
    before = shown(bucket)
    if close:
        bucket.close()
    else:
        place.directory.let_go()
    return before


class Counted(FailingDirectory):
    """Takes note of how often each operation is called."""

    calls: list[str]

    def sync(self, descriptor: int) -> None:
        self.calls.append(f"sync {self._open[descriptor][:3]}")
        super().sync(descriptor)

    def sync_names(self) -> None:
        self.calls.append("sync_names")
        super().sync_names()


def test_it_lists_what_there_is(place: Place) -> None:
    fill(place, compact=True)
    found = listed(place)
    names = [f"segment-{one.ids[0]:010d}-{one.ids[1]:010d}" for one in found.segments]
    names += [f"log-{one.number:010d}" for one in found.logs]
    assert sorted(names) == [name for name in contents(place.path) if name[:3] in {"log", "seg"}]
    assert found.is_clean
    for one in found.logs:
        assert (place.path / f"log-{one.number:010d}").stat().st_size == one.synced
    bucket = place()
    assert not listed(place).is_clean
    assert listed(place).generation > found.generation
    bucket.close()


def test_a_commit_costs_nothing_and_a_switch_one_file(place: Place) -> None:
    """A log file that begins: its name, its first commit, the inventory, and that one's name."""
    bucket = place(segment_bytes=2000)
    directory = place.directory
    directory.__class__ = Counted
    assert isinstance(directory, Counted)
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
            assert len(directory.calls) in (4, 5)  # with the rest of the log file before
    assert bucket.log.segments.sealed


def test_a_directory_of_an_older_release_gets_one(place: Place) -> None:
    before = fill(place, compact=True)
    for name in (INVENTORY, "bucket-copy.json"):
        (place.path / name).unlink()
    directory = Directory(place.path)
    said = unpack_json(directory.read("bucket.json"))
    said.pop("revision")
    replace_json(directory, "bucket.json", {**said, "format": 2})
    bucket = place()
    assert shown(bucket) == before
    assert "not clean" not in bucket.recovery_summary
    assert listed(place).segments
    bucket.close()
    assert unpack_json(directory.read("bucket.json"))["format"] == 4
    (place.path / INVENTORY).unlink()
    with pytest.raises(
        StoreDamaged, match=r"beer: inventory\.json: missing; .*`penstock check --repair` saves the others$"
    ):
        place()


def test_a_crash_at_the_first_opening_by_this_release() -> None:
    """Also between the first inventory and the new format, and with an older release that goes on from there."""
    fuse, windows, died = 0, 0, True
    while died:
        disk, died = Disk(), False
        bucket = _open(disk)
        for number in range(9):
            bucket.vbuckets[number % 4].set(b"key %d" % number, b"older")
        bucket.close()
        before = shown(bucket)
        _make_older(disk)
        disk.fuse = fuse
        try:
            _open(disk).close()
        except Died:
            died = True
        disk.kill()
        if INVENTORY in disk.names and b'"format": 2' in disk.names["bucket.json"].data:
            windows += 1
            before = _go_on_as_an_older_release(disk)
        for _ in range(2):
            bucket = _open(disk)
            assert shown(bucket) == before
            bucket.close()
        fuse += 1
    assert windows > 1


def test_new_format_is_written_before_the_log_uses_it() -> None:
    """So that an older release refuses the directory for its format, after a crash wherever it was."""
    fuse, older, died = 0, 0, True
    while died:
        disk, died = Disk(), False
        bucket = _open(disk)
        bucket.vbuckets[0].set(b"key", b"value")
        bucket.close()
        said = unpack_json(disk.names["bucket.json"].data)
        replace_json(disk(Path()), "bucket.json", {**said, "format": 3})
        before = _logs(disk)
        disk.fuse = fuse
        try:
            _open(disk).close()
        except Died:
            died = True
        disk.kill()
        if unpack_json(disk.names["bucket.json"].data)["format"] == 3:
            older += 1
            assert _logs(disk) == before
        fuse += 1
    assert fuse > older > 1


def _logs(disk: Disk) -> dict[str, bytes]:
    return {name: bytes(file.data) for name, file in disk.names.items() if name.startswith("log-")}


def _make_older(disk: Disk) -> None:
    said = unpack_json(disk.names["bucket.json"].data)
    for name in (INVENTORY, "bucket-copy.json"):
        disk.names.pop(name, None)
    said.pop("revision", None)
    replace_json(disk(Path()), "bucket.json", {**said, "format": 2})


def _go_on_as_an_older_release(disk: Disk) -> list[object]:
    """Store changes as a release does that neither reads nor writes inventories; return what a client sees."""
    inventory = disk.names[INVENTORY]
    _make_older(disk)
    bucket = _open(disk)
    bucket.vbuckets[0].set(b"key 0", b"newer")
    bucket.log.room.seal_active()
    bucket.close()
    _make_older(disk)
    disk.names[INVENTORY] = inventory
    return shown(bucket)


def test_one_of_another_bucket(place: Place, memory: Path) -> None:
    fill(place)
    other = Place(memory / "wine")
    next(other.vbuuids)
    fill(other)
    shutil.copy(other.path / INVENTORY, place.path / INVENTORY)
    with pytest.raises(BadInventory, match="it is of the bucket with uuid"):
        listed(place)
    with pytest.raises(StoreDamaged, match=r"inventory\.json, offset 0: it is of the bucket with uuid"):
        place()


@pytest.mark.parametrize("compact", [False, True])
def test_an_older_copy(place: Place, *, compact: bool) -> None:
    """It helps nobody, so the files are held against each other, and nothing is taken from them."""
    fill(place)
    older = (place.path / INVENTORY).read_bytes()
    before = fill(place, compact=compact)
    (place.path / INVENTORY).write_bytes(older)
    with pytest.raises(StoreDamaged, match=r"inventory\.json, offset 0: an older copy: generation \d+, and "):
        place()
    assert before


def test_older_copy_of_the_bucket_record_is_found(place: Place) -> None:
    fill(place)
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


def test_a_log_file_of_a_copy_that_went_its_own_way(place: Place, memory: Path) -> None:
    """Two directories that were one once: what one has written since is no part of the other."""
    fill(place, 10)
    copy = Place(memory / "copy")
    shutil.copytree(place.path, copy.path)
    copy.now += 1
    fill(place, 12, close=False)
    fill(copy, 13, close=False)
    name = max(name for name in contents(copy.path) if name.startswith("log"))
    shutil.copy(copy.path / name, place.path / name)
    with pytest.raises(StoreDamaged, match=rf"{name}, offset 0: it is not the file that inventory\.json lists"):
        place()


def test_a_segment_that_has_the_name_of_a_draft_yet(place: Place) -> None:
    """The inventory lists it, so it counts; a crash came before it got its name."""
    before = fill(place, compact=True)
    name = max(name for name in contents(place.path) if name.startswith("segment"))
    (place.path / name).rename(place.path / f"{name}.3.new")
    bucket = place()
    assert shown(bucket) == before
    assert name in contents(place.path)
    assert not [name for name in contents(place.path) if name.endswith(".new")]
    bucket.close()


@pytest.mark.parametrize("has_inventory", [True, False])
def test_a_crash_while_a_segment_replaces_one_of_its_own_name(*, has_inventory: bool) -> None:
    """One segment was rewritten alone, so the draft takes the place of the file with its name."""
    fuse, died = 0, True
    while died:
        disk, died = Disk(), False
        _open(disk).close()
        bucket = _open(disk)
        for number in range(40):
            bucket.vbuckets[number % 4].set(b"key %d" % number, b"older" * 4)
        bucket.compactor.rewrite_all()
        for number in range(36):
            bucket.vbuckets[number % 4].set(b"key %d" % number, b"newer")
        bucket.log.commits.run()
        before = shown(bucket)
        disk.fuse = fuse
        try:
            compaction = bucket.compactor.next_piece()
            assert compaction is not None
            compaction.run()
            compaction.finish()
            bucket.log.commits.run()
        except Died:
            died = True
        disk.kill()
        if not has_inventory:
            _make_older(disk)
        for _ in range(2):
            bucket = _open(disk)
            assert shown(bucket) == before
            assert [name for name in disk.names if name.startswith("segment")] == ["segment-0000000001-0000000001"]
            bucket.close()
        fuse += 1
    assert fuse > 10


def _open(disk: Disk) -> BucketStore:
    return BucketStore.open(
        Path(),
        "beer",
        vbuckets=4,
        clock=lambda: 10**18,
        new_vbuuid=lambda: 1,
        directory=disk,
        settings=BucketSettings(),
    )


def test_a_start_without_room_for_it_changes_nothing(place: Place) -> None:
    """A segment that the log has promised gets its name only when it is listed, and what it replaces stays as long."""
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
    before = shown(bucket)
    place.directory.let_go()
    (place.path / f"{INVENTORY}.new").unlink()
    files = contents(place.path)
    assert [name for name in files if name.endswith(".new")]
    place.prepare = lambda directory: directory.fail("sync inv", ENOSPC)
    for _ in range(2):
        with pytest.raises(StoreRefused, match="No space left on device"):
            place()
        place.directory.let_go()
    assert contents(place.path) == files
    place.prepare = lambda directory: None
    bucket = place()
    assert shown(bucket) == before
    bucket.close()
