"""Directories that cannot hold a bucket: each is refused with one sentence, and nothing in it changes."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreDamaged, StoreRefused
from penstock.store.disk.bucket_files import Directory
from penstock.store.recovery.bucket_directory import read_record, write_record
from tests.store.failing import Place, capture_state, read_files
from tests.store.mounts import run_with_mounts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(memory_path: Path) -> Place:
    """Return a directory with a closed bucket."""
    place = Place(memory_path / "beer")
    bucket = place()
    bucket.vbuckets[0].set(b"key", b"value")
    bucket.close()
    return place


def change_record(place: Place, **members: Any) -> None:
    """Change members of the bucket record of a directory."""
    directory = Directory(place.path)
    write_record(directory, {**(read_record(directory) or {}), **members})


def delete_files(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def leave_foreign_file(place: Place) -> None:
    delete_files(place.path)
    (place.path / "photo.jpg").write_bytes(b"")


def delete_records(place: Place) -> None:
    (place.path / "bucket.json").unlink()
    (place.path / "bucket-copy.json").unlink()


def replace_by_file(place: Place) -> None:
    delete_files(place.path)
    place.path.rmdir()
    place.path.write_bytes(b"")


def move_below_file(place: Place) -> None:
    (place.path / "file").write_bytes(b"")
    place.path = place.path / "file" / "beer"


def block_log_name(place: Place) -> None:
    delete_files(place.path)
    (place.path / "log-0000000001").mkdir()


def write_newer_record(place: Place) -> None:
    (place.path / "bucket.json").write_text('{"format": 5, "shards": []}')


def fail_operation(operation: str, number: int) -> Callable[[Place], None]:
    def prepare(place: Place) -> None:
        place.prepare = lambda directory: directory.fail(operation, number)

    return prepare


NOT_TAKEN = "the disk does not accept writes"
REFUSED: list[tuple[str, Callable[[Place], None], str]] = [
    ("another format", lambda place: change_record(place, format=0), "beer: format 0, this version knows 2 to 4"),
    ("an older format", lambda place: change_record(place, format=1), "beer: format 1, this version knows 2 to 4"),
    ("a newer format", write_newer_record, "beer: format 5, this version knows 2 to 4"),
    ("another bucket's", lambda place: change_record(place, name="wine"), "beer: of bucket 'wine', not 'beer'"),
    ("other vbuckets", lambda place: change_record(place, vbuckets=1024), "beer: 1024 vbuckets, not 4"),
    ("something else's", leave_foreign_file, "beer: has photo.jpg, but no bucket.json: it is no bucket's directory"),
    ("of no name", delete_records, "beer: has inventory.json, but no bucket.json: it is no bucket's directory"),
    ("a file", replace_by_file, "beer: cannot be written to: File exists"),
    ("below a file", move_below_file, "beer: cannot be written to: Not a directory"),
    ("a directory in the way", block_log_name, f"beer: {NOT_TAKEN}: Is a directory"),
    ("read-only", fail_operation("lock", errno.EROFS), "beer: cannot be written to: Read-only file system"),
    ("full", fail_operation("write", errno.ENOSPC), f"beer: {NOT_TAKEN}: No space left on device"),
    ("unreadable", fail_operation("map", errno.EIO), "beer: cannot be read and written to: Input/output error"),
    ("no access", fail_operation("reopen", errno.EACCES), "beer: cannot be read and written to: Permission denied"),
    ("broken", fail_operation("sync", errno.EIO), "beer: cannot be read and written to: Input/output error"),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_unusable_directory_is_refused(place: Place, prepare: Callable[[Place], None], message: str) -> None:
    prepare(place)
    for _ in range(2):  # the first refusal has released the lock
        with pytest.raises(StoreRefused) as raised:
            place()
        assert str(raised.value).endswith(message)
        assert str(raised.value).startswith(str(place.path))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "{}", '{"format": 2}', "\xff"])
def test_directory_without_a_bucket_record_is_refused(place: Place, text: str) -> None:
    (place.path / "bucket.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(
        StoreDamaged,
        match=r"/beer/bucket\.json: does not describe a bucket: [^\n]*; `penstock check --repair` [^\n]*$",
    ):
        place()
    assert (place.path / "bucket.json").read_bytes() == text.encode("latin-1")


def test_other_files_in_the_directory_are_kept(place: Place) -> None:
    others = {"README", "log-1", "log-0000000001.new", "notes.new", "segment-1-2", "segment-0000000001-0000000001.new"}
    for name in others:
        (place.path / name).write_bytes(b"mine")
    draft = place.path / "segment-0000000001-0000000001.0.new"
    draft.write_bytes(b"a bucket's own")
    bucket = place()
    assert capture_state(bucket)[0][2] == 1
    bucket.close()
    assert {name for name, content in read_files(place.path).items() if content == b"mine"} == others
    assert not draft.exists()


@pytest.mark.process
def test_bucket_open_in_another_process_is_refused(place: Place) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.store.failing import Place\n"
        "bucket = Place(Path(sys.argv[1]))()\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(place.path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreRefused, match=rf"/beer: in use by process {process.pid}$"):
            place()
        process.kill()
    bucket = place()  # the lock of a killed process needs no cleaning up
    assert bucket.vbuckets[0].get(b"key") is not None
    bucket.close()


@pytest.mark.process
def test_read_only_file_system_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path / "beer")
    place().close()
    before = read_files(place.path)
    code = "import sys; from pathlib import Path; from tests.store.failing import Place\nPlace(Path(sys.argv[1]))()"
    mounts = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0"'
    done = run_with_mounts(mounts, place.path, [sys.executable, "-c", code, str(place.path)])
    last = done.stderr.splitlines()[-1]
    assert last == f"penstock.errors.StoreRefused: {place.path}: cannot be written to: Read-only file system"
    assert read_files(place.path) == before
