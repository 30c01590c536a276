"""Directories of buckets with several histories, and all kinds of damage to their files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from penstock.store.disk.inventory import read_inventory
from penstock.store.disk.log_file import make_log_name
from penstock.store.recovery.bucket_directory import read_record
from tests.store.failing import Place, capture_state, directory_in_memory, read_files
from tests.store.written import flip_bit

_PAGE = 512


class SavedBucket(NamedTuple):
    """The files of a bucket, with its earlier states.

    Attributes:
        name: a description of its history and of its end.
        files: content of each file, without the lock file.
        older: the files at an earlier stop of the same bucket.
        forked: the files of a copy of the bucket that had other changes since then.
        foreign: the files of another bucket.
        states: all states that a client has seen, newest last.
        clean: whether the bucket was closed; else its process was killed.
        synced: bytes of the last log file that the inventory lists.
    """

    name: str
    files: dict[str, bytes]
    older: dict[str, bytes]
    forked: dict[str, bytes]
    foreign: dict[str, bytes]
    states: list[Any]
    clean: bool
    synced: int

    @property
    def last_log(self) -> str:
        """Name of the last log file."""
        return max(name for name in self.files if name.startswith("log-"))


class FileDamage(NamedTuple):
    """A damage to the files of a bucket.

    Attributes:
        saved: the bucket.
        description: the damage in a few words; `cut at` ends with an offset.
        file: name of the damaged file.
        apply: damages the files in the given directory.
    """

    saved: SavedBucket
    description: str
    file: str
    apply: Callable[[Path], object]


def _run_session(place: Place, numbers: range, *, compact: bool, clean: bool) -> list[Any]:
    """Open a bucket, change it, and stop it.

    Args:
        place: the bucket's directory.
        numbers: one change is made for each.
        compact: whether to compact the bucket, and then to change it again.
        clean: whether to close the bucket; else its process is killed.

    Returns:
        The state of the bucket when it was opened, and after each change.
    """
    place.now += 10**9
    bucket = place(segment_bytes=1500)
    states = [capture_state(bucket)]
    for number in numbers:
        bucket.vbuckets[number % 3].set(b"key %d" % (number % 11), b"value %d" % number)
        states.append(capture_state(bucket))
        if number % 7 == 6:
            bucket.log.commits.run()
    if compact:
        bucket.compactor.rewrite_all()
        for number in numbers[:9]:
            bucket.vbuckets[1].set(b"key %d" % (number % 5), b"newer %d" % number)
            states.append(capture_state(bucket))
    bucket.log.commits.run()
    if clean:
        bucket.close()
    else:
        place.directory.kill()
    return states


def _make_saved_bucket(count: int, *, compact: bool, clean: bool, other: int) -> SavedBucket:
    with directory_in_memory() as path:
        place, wine = Place(path / "beer"), Place(path / "wine")
        for _ in range(3):
            next(wine.vbuuids)
        _run_session(place, range(count), compact=compact, clean=True)
        older = read_files(place.path)
        copy = Place(path / "copy")
        shutil.copytree(place.path, copy.path)
        copy.now += 10**9 // 2
        _run_session(copy, range(500, 500 + other), compact=compact, clean=clean)
        states = _run_session(place, range(count, count + other), compact=compact, clean=clean)
        _run_session(wine, range(count + other), compact=compact, clean=clean)
        name = f"{count} changes, {'compacted' if compact else 'logs'}, {'closed' if clean else 'killed'}"
        files = read_files(place.path)
        return SavedBucket(
            name, files, older, read_files(copy.path), read_files(wine.path), states, clean, _read_synced_size(place)
        )


def _read_synced_size(place: Place) -> int:
    """Return how many bytes of the last log file the inventory lists."""
    record = read_record(place.directory)
    assert record is not None
    return read_inventory(place.directory, bytes.fromhex(record["uuid"])).logs[-1].synced


@cache
def make_saved_buckets() -> list[SavedBucket]:
    """Return buckets of three sizes, with and without a compaction, closed and killed."""
    return [
        _make_saved_bucket(count, compact=compact, clean=clean, other=other)
        for count, other in ((4, 3), (40, 12), (90, 45))
        for compact in (False, True)
        for clean in (False, True)
    ]


def list_damages() -> Iterator[FileDamage]:
    """Yield every damage of every saved bucket."""
    for saved in make_saved_buckets():
        for description, file, apply in _list_damages_of(saved):
            yield FileDamage(saved, description, file, apply)


def _list_damages_of(saved: SavedBucket) -> Iterator[tuple[str, str, Callable[[Path], object]]]:
    """Yield the description of each damage, the name of the damaged file, and the function that does the damage."""
    for name, content in saved.files.items():
        for description, changed in _list_bad_contents(saved, name, content):
            if changed != content:
                yield description, name, partial(_write, name, changed)
        yield "deleted", name, partial(_delete, [name])
        yield "renamed", name, partial(_rename, name)
        yield "a directory", name, partial(_make_directory, name)
        yield "a dangling symlink", name, partial(_make_symlink, name)
        for later in _list_later_names(saved, name):
            yield f"a copy of {name}", later, partial(_write, later, content)
    for kind in ("log", "segment"):
        names = [name for name in saved.files if name.startswith(kind)]
        for one, other in pairwise(names):
            yield f"exchanged with {other}", one, partial(_exchange, one, other)
        if names:
            yield f"every {kind} deleted", names[-1], partial(_delete, names)


def _list_bad_contents(saved: SavedBucket, name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield bad contents of a file, each with a description; some may be equal to the good content."""
    size = len(content)
    yield "emptied", b""
    for at in sorted({1, 8, 35, 36, 37, 60, size // 3, size // 2, saved.synced - 1, saved.synced, size - 9, size - 1}):
        if 0 < at < size:
            yield f"cut at {at}", content[:at]
    for at in sorted({0, 9, 25, 33, 36, 40, 45, 52, 70, size // 2, size - 30, size - 12, size - 5, size - 1}):
        if 0 <= at < size:
            yield f"flipped at {at}", flip_bit(content, at)
    for at in sorted({0, size // 2 // _PAGE * _PAGE, max(size - _PAGE, 0)}):
        yield f"zeros at {at}", content[:at] + bytes(len(content[at : at + _PAGE])) + content[at + _PAGE :]
    yield "garbage behind it", content + b"\x80garbage" * 9
    yield "zeros behind it", content + bytes(4096)
    yield "its own end behind it", content + content[-70:]
    for of, files in (("an older copy", saved.older), ("a copy", saved.forked), ("another bucket", saved.foreign)):
        if name in files:
            yield f"content of {of}", files[name]
            if name.startswith("log"):
                yield f"end of the content of {of} behind it", content + files[name][-90:]


def _list_later_names(saved: SavedBucket, name: str) -> list[str]:
    """Return names of the same kind of file, with higher numbers than the bucket has."""
    last = int(saved.last_log.removeprefix("log-"))
    if name.startswith("log"):
        return [make_log_name(last + 1), make_log_name(last + 2)]
    if name.startswith("segment"):
        return [f"segment-{last:010d}-{last:010d}", f"segment-{last + 1:010d}-{last + 1:010d}"]
    return []


def _write(name: str, content: bytes, path: Path) -> None:
    (path / name).write_bytes(content)


def _delete(names: list[str], path: Path) -> None:
    for name in names:
        (path / name).unlink()


def _rename(name: str, path: Path) -> None:
    (path / name).rename(path / f"{name}.old")


def _make_directory(name: str, path: Path) -> None:
    (path / name).unlink()
    (path / name).mkdir()


def _make_symlink(name: str, path: Path) -> None:
    (path / name).unlink()
    (path / name).symlink_to("nowhere")


def _exchange(one: str, other: str, path: Path) -> None:
    content = (path / one).read_bytes()
    (path / one).write_bytes((path / other).read_bytes())
    (path / other).write_bytes(content)
