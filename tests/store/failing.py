"""A directory that fails when it is told to, and a bucket in it that is opened again and again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.bucket_files import Directory
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.history_snapshot import Snapshot
from penstock.wire.messages.dcp import Mutation
from tests.store.model import START, Tombstone, read_all

__all__ = ["FailingDirectory", "Place", "contents", "directory_in_memory", "newest", "shown"]

_IN_MEMORY = Path("/dev/shm")


class FailingDirectory(Directory):
    """It takes note of what is synced, and does not sync it: that would take most of a test's time.

    Operations have the names of methods; `sync log` and `sync inv` are those of log files and of the inventory.

    limit: how many bytes of so many a write takes at once. during: by operation, what happens while it runs, once.
    failures: how many calls have failed.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.limit: Callable[[int], int] = lambda nbytes: nbytes
        self.during: dict[str, Callable[[], object]] = {}
        self.failures = 0
        self._failing: dict[str, tuple[range, int]] = {}
        self._open: dict[int, str] = {}
        self._synced: dict[str, int] = {}

    def fail(self, operation: str, number: int, *, after: int = 0, times: int = 10**9) -> None:
        """Let an operation fail with this errno: `times` times, after so many calls that succeed."""
        self._failing[operation] = range(after, after + times), number

    def heal(self) -> None:
        self._failing.clear()

    @contextmanager
    def _doing(self, operation: str) -> Iterator[None]:
        calls, number = self._failing.get(operation, (range(0), 0))
        if calls:
            self._failing[operation] = range(max(calls.start - 1, 0), calls.stop - 1), number
            if calls.start == 0:
                self.failures += 1
                raise OSError(number, os.strerror(number))
        yield
        if operation in self.during:
            self.during.pop(operation)()

    def lock(self) -> bool:
        with self._doing("lock"):
            return super().lock()

    def map(self, name: str) -> memoryview:
        with self._doing("map"):
            return super().map(name)

    def create(self, name: str) -> int:
        with self._doing("create"):
            descriptor = super().create(name)
            self._open[descriptor] = name
            self._synced[name] = 0
            return descriptor

    def reopen(self, name: str, size: int) -> int:
        with self._doing("reopen"):
            descriptor = super().reopen(name, size)
            self._open[descriptor] = name
            self._synced[name] = 0
            return descriptor

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        with self._doing("write"):
            return super().write(descriptor, data[: max(self.limit(len(data)), 1)], offset)

    def sync(self, descriptor: int) -> None:
        with self._doing("sync"), self._doing(f"sync {self._open[descriptor][:3]}"):
            self._synced[self._open[descriptor]] = os.fstat(descriptor).st_size

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        del self._open[descriptor]

    def rename(self, old: str, new: str) -> None:
        with self._doing("rename"):
            super().rename(old, new)
            if old in self._synced:
                self._synced[new] = self._synced.pop(old)

    def remove(self, name: str) -> None:
        with self._doing("remove"):
            super().remove(name)

    def make_directory(self, name: str) -> None:
        with self._doing("make"):
            super().make_directory(name)

    def sync_names(self) -> None:
        with self._doing("sync_names"):
            pass

    def let_go(self) -> None:
        """End as a process does that is killed: what it has written is there."""
        for descriptor in tuple(self._open):
            self.close(descriptor)
        self.unlock()

    def power_off(self, random: Random | None = None) -> None:
        """End as a machine does that loses power: what was written and not synced is gone, or torn and with a hole."""
        self.let_go()
        for name in self.list_names():
            content = bytearray(self.read(name))
            synced = min(self._synced.get(name, len(content)), len(content))
            if random is None:
                del content[synced:]
            else:
                del content[random.randint(synced, len(content)) :]
                hole = random.randint(synced, len(content))
                content[hole : hole + 50] = bytes(len(content[hole : hole + 50]))
            (self.path / name).write_bytes(content)


class Place:
    """A directory for a bucket of four vbuckets. now: the clock, ns. prepare: called with the directory whenever it is
    opened, before anything is done in it. tell_time: called for the time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = START
        self.tell_time: Callable[[], int] = lambda: self.now
        self.directory = FailingDirectory(path)
        self.prepare: Callable[[FailingDirectory], object] = lambda directory: None
        self.vbuuids = count(1)

    def __call__(self, name: str = "beer", *, vbuckets: int = 4, **settings: Any) -> BucketStore:
        return BucketStore.open(
            self.path,
            name,
            vbuckets=vbuckets,
            clock=self.tell_time,
            new_vbuuid=lambda: next(self.vbuuids),
            settings=BucketSettings(**{"segment_bytes": 2048, **settings}),
            directory=self._enter,
        )

    def _enter(self, path: Path) -> FailingDirectory:
        self.directory = FailingDirectory(path)
        self.prepare(self.directory)
        return self.directory


@contextmanager
def directory_in_memory() -> Iterator[Path]:
    """Give a directory for as long as it is used, in memory where there is such a thing."""
    with TemporaryDirectory(dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None) as path:
        yield Path(path)


def contents(path: Path) -> dict[str, bytes]:
    """Return what every file of a bucket holds, but the lock."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.is_file() and file.name != "lock"}


def shown(bucket: BucketStore) -> list[Any]:
    """Return all that a client could see of a bucket but its branches."""
    return [
        (
            vbucket.history.state,
            vbucket.changes.high_seqno,
            vbucket.changes.items,
            [(change, vbucket.get(change.key)) for change in current],
        )
        for vbucket in bucket.vbuckets
        for current in [newest(vbucket)]
    ]


def newest(vbucket: Vbucket) -> list[Mutation | Tombstone]:
    """Return the newest change of each key, in order, those of an incomplete snapshot too."""
    return read_all(Snapshot(vbucket.index, 0, vbucket.changes.high_seqno))
