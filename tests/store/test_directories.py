"""Directories that a bucket cannot be in: one sentence each, and nothing is changed."""

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
from tests.store.failing import Place, contents, shown
from tests.store.mounts import run_with_mounts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(memory: Path) -> Place:
    """A directory with a bucket that has been closed."""
    place = Place(memory / "beer")
    bucket = place()
    bucket.vbuckets[0].set(b"key", b"value")
    bucket.close()
    return place


def say(place: Place, **said: Any) -> None:
    """Change what a directory says about its bucket."""
    directory = Directory(place.path)
    write_record(directory, {**(read_record(directory) or {}), **said})


def empty(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def foreign(place: Place) -> None:
    empty(place.path)
    (place.path / "photo.jpg").write_bytes(b"")


def without_name(place: Place) -> None:
    (place.path / "bucket.json").unlink()
    (place.path / "bucket-copy.json").unlink()


def a_file(place: Place) -> None:
    empty(place.path)
    place.path.rmdir()
    place.path.write_bytes(b"")


def below_a_file(place: Place) -> None:
    (place.path / "file").write_bytes(b"")
    place.path = place.path / "file" / "beer"


def a_directory_in_the_way(place: Place) -> None:
    empty(place.path)
    (place.path / "log-0000000001").mkdir()


def newer(place: Place) -> None:
    (place.path / "bucket.json").write_text('{"format": 5, "shards": []}')


def failing(operation: str, number: int) -> Callable[[Place], None]:
    def prepare(place: Place) -> None:
        place.prepare = lambda directory: directory.fail(operation, number)

    return prepare


NOT_TAKEN = "the disk does not accept writes"
REFUSED: list[tuple[str, Callable[[Place], None], str]] = [
    ("another format", lambda place: say(place, format=0), "beer: format 0, this version knows 2 to 4"),
    ("an older format", lambda place: say(place, format=1), "beer: format 1, this version knows 2 to 4"),
    ("a newer format", newer, "beer: format 5, this version knows 2 to 4"),
    ("another bucket's", lambda place: say(place, name="wine"), "beer: of bucket 'wine', not 'beer'"),
    ("other vbuckets", lambda place: say(place, vbuckets=1024), "beer: 1024 vbuckets, not 4"),
    ("something else's", foreign, "beer: has photo.jpg, but no bucket.json: it is no bucket's directory"),
    ("of no name", without_name, "beer: has inventory.json, but no bucket.json: it is no bucket's directory"),
    ("a file", a_file, "beer: cannot be written to: File exists"),
    ("below a file", below_a_file, "beer: cannot be written to: Not a directory"),
    ("a directory in the way", a_directory_in_the_way, f"beer: {NOT_TAKEN}: Is a directory"),
    ("read-only", failing("lock", errno.EROFS), "beer: cannot be written to: Read-only file system"),
    ("full", failing("write", errno.ENOSPC), f"beer: {NOT_TAKEN}: No space left on device"),
    ("unreadable", failing("map", errno.EIO), "beer: cannot be read and written to: Input/output error"),
    ("not to be written", failing("reopen", errno.EACCES), "beer: cannot be read and written to: Permission denied"),
    ("broken", failing("sync", errno.EIO), "beer: cannot be read and written to: Input/output error"),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_directory_that_is_refused(place: Place, prepare: Callable[[Place], None], said: str) -> None:
    prepare(place)
    for _ in range(2):  # the lock is nobody's after that
        with pytest.raises(StoreRefused) as raised:
            place()
        assert str(raised.value).endswith(said)
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


def test_files_of_others_are_left_alone(place: Place) -> None:
    others = {"README", "log-1", "log-0000000001.new", "notes.new", "segment-1-2", "segment-0000000001-0000000001.new"}
    for name in others:
        (place.path / name).write_bytes(b"mine")
    draft = place.path / "segment-0000000001-0000000001.0.new"
    draft.write_bytes(b"a bucket's own")
    bucket = place()
    assert shown(bucket)[0][2] == 1
    bucket.close()
    assert {name for name, content in contents(place.path).items() if content == b"mine"} == others
    assert not draft.exists()


@pytest.mark.process
def test_a_bucket_that_another_process_has_open(place: Place) -> None:
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
    bucket = place()  # nobody has to clean up behind a process that is gone
    assert bucket.vbuckets[0].get(b"key") is not None
    bucket.close()


@pytest.mark.process
def test_a_file_system_that_is_read_only(tmp_path: Path) -> None:
    place = Place(tmp_path / "beer")
    place().close()
    before = contents(place.path)
    code = "import sys; from pathlib import Path; from tests.store.failing import Place\nPlace(Path(sys.argv[1]))()"
    mounts = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0"'
    done = run_with_mounts(mounts, place.path, [sys.executable, "-c", code, str(place.path)])
    last = done.stderr.splitlines()[-1]
    assert last == f"penstock.errors.StoreRefused: {place.path}: cannot be written to: Read-only file system"
    assert contents(place.path) == before
