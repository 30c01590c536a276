"""Directories of buckets with several histories, and everything that may happen to their files."""

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
from tests.store.failing import Place, contents, directory_in_memory, shown
from tests.store.written import flipped

__all__ = ["Damage", "Made", "damages", "histories"]

_PAGE = 512


class Made(NamedTuple):
    """The files of a bucket.

    Attributes:
        name: the history, and how it ended.
        files: all of them but the lock.
        older: the files at an earlier stop of the same bucket.
        forked: the files of a copy of it that went its own way.
        foreign: the files of another bucket.
        states: all states that a client has seen, newest last.
        clean: the bucket was closed.
        synced: how much of the last log file the inventory lists.
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
    def last(self) -> str:
        return max(name for name in self.files if name.startswith("log-"))


class Damage(NamedTuple):
    """What happens to the files of a bucket: `do` gets a directory with them."""

    made: Made
    what: str
    file: str
    do: Callable[[Path], object]


def _session(place: Place, numbers: range, *, compact: bool, clean: bool) -> list[Any]:
    """Open a bucket, change it, and stop it. Returns its states."""
    place.now += 10**9
    bucket = place(segment_bytes=1500)
    states = [shown(bucket)]
    for number in numbers:
        bucket.vbuckets[number % 3].set(b"key %d" % (number % 11), b"value %d" % number)
        states.append(shown(bucket))
        if number % 7 == 6:
            bucket.log.commits.run()
    if compact:
        bucket.compactor.rewrite_all()
        for number in numbers[:9]:
            bucket.vbuckets[1].set(b"key %d" % (number % 5), b"newer %d" % number)
            states.append(shown(bucket))
    bucket.log.commits.run()
    if clean:
        bucket.close()
    else:
        place.directory.let_go()
    return states


def _made(count: int, *, compact: bool, clean: bool, other: int) -> Made:
    with directory_in_memory() as path:
        place, wine = Place(path / "beer"), Place(path / "wine")
        for _ in range(3):
            next(wine.vbuuids)
        _session(place, range(count), compact=compact, clean=True)
        older = contents(place.path)
        copy = Place(path / "copy")
        shutil.copytree(place.path, copy.path)
        copy.now += 10**9 // 2
        _session(copy, range(500, 500 + other), compact=compact, clean=clean)
        states = _session(place, range(count, count + other), compact=compact, clean=clean)
        _session(wine, range(count + other), compact=compact, clean=clean)
        name = f"{count} changes, {'compacted' if compact else 'logs'}, {'closed' if clean else 'killed'}"
        files = contents(place.path)
        return Made(name, files, older, contents(copy.path), contents(wine.path), states, clean, _synced(place))


def _synced(place: Place) -> int:
    """Return how much of the last log file the inventory lists."""
    said = read_record(place.directory)
    assert said is not None
    return read_inventory(place.directory, bytes.fromhex(said["uuid"])).logs[-1].synced


@cache
def histories() -> list[Made]:
    return [
        _made(count, compact=compact, clean=clean, other=other)
        for count, other in ((4, 3), (40, 12), (90, 45))
        for compact in (False, True)
        for clean in (False, True)
    ]


def damages() -> Iterator[Damage]:
    for made in histories():
        for what, file, do in _of(made):
            yield Damage(made, what, file, do)


def _of(made: Made) -> Iterator[tuple[str, str, Callable[[Path], object]]]:
    for name, content in made.files.items():
        for what, changed in _contents(made, name, content):
            if changed != content:
                yield what, name, partial(_write, name, changed)
        yield "deleted", name, partial(_delete, [name])
        yield "renamed", name, partial(_rename, name)
        yield "a directory", name, partial(_make_directory, name)
        yield "a dangling symlink", name, partial(_make_symlink, name)
        for later in _later_names(made, name):
            yield f"a copy of {name}", later, partial(_write, later, content)
    for kind in ("log", "segment"):
        names = [name for name in made.files if name.startswith(kind)]
        for one, other in pairwise(names):
            yield f"exchanged with {other}", one, partial(_exchange, one, other)
        if names:
            yield f"every {kind} deleted", names[-1], partial(_delete, names)


def _contents(made: Made, name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    size = len(content)
    yield "emptied", b""
    for at in sorted({1, 8, 35, 36, 37, 60, size // 3, size // 2, made.synced - 1, made.synced, size - 9, size - 1}):
        if 0 < at < size:
            yield f"cut at {at}", content[:at]
    for at in sorted({0, 9, 25, 33, 36, 40, 45, 52, 70, size // 2, size - 30, size - 12, size - 5, size - 1}):
        if 0 <= at < size:
            yield f"flipped at {at}", flipped(content, at)
    for at in sorted({0, size // 2 // _PAGE * _PAGE, max(size - _PAGE, 0)}):
        yield f"zeros at {at}", content[:at] + bytes(len(content[at : at + _PAGE])) + content[at + _PAGE :]
    yield "garbage behind it", content + b"\x80garbage" * 9
    yield "zeros behind it", content + bytes(4096)
    yield "its own end behind it", content + content[-70:]
    for of, files in (("an older copy", made.older), ("a copy", made.forked), ("another bucket", made.foreign)):
        if name in files:
            yield f"that of {of}", files[name]
            if name.startswith("log"):
                yield f"the end of that of {of} behind it", content + files[name][-90:]


def _later_names(made: Made, name: str) -> list[str]:
    last = int(made.last.removeprefix("log-"))
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
