"""A directory whose operations fail on demand, and a bucket in it that tests open many times."""

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

_IN_MEMORY = Path("/dev/shm")


class FailingDirectory(Directory):
    """A directory on disk whose operations a test lets fail.

    It records the synced size of each file instead of a sync, which would take most of a test's time.
    Operations have the names of methods; `sync log` and `sync inv` are the syncs of log files and of the inventory.

    Attributes:
        limit: number of bytes of a write -> number of them that the disk writes at once.
        during: operation -> function that is called once, at the end of the operation's next call.
        failures: number of calls that have failed.
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
        """Let an operation fail.

        Args:
            operation: name of the operation.
            number: errno of the error.
            after: calls that succeed before the first failure.
            times: calls that fail.
        """
        self._failing[operation] = range(after, after + times), number

    def heal(self) -> None:
        """Let all operations succeed again."""
        self._failing.clear()

    @contextmanager
    def _run_operation(self, operation: str) -> Iterator[None]:
        """Raise OSError if the operation is to fail now; else run the caller's block, then the function of `during`."""
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
        with self._run_operation("lock"):
            return super().lock()

    def map(self, name: str) -> memoryview:
        with self._run_operation("map"):
            return super().map(name)

    def create(self, name: str) -> int:
        with self._run_operation("create"):
            descriptor = super().create(name)
            self._open[descriptor] = name
            self._synced[name] = 0
            return descriptor

    def reopen(self, name: str, size: int) -> int:
        with self._run_operation("reopen"):
            descriptor = super().reopen(name, size)
            self._open[descriptor] = name
            self._synced[name] = 0
            return descriptor

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        with self._run_operation("write"):
            return super().write(descriptor, data[: max(self.limit(len(data)), 1)], offset)

    def sync(self, descriptor: int) -> None:
        with self._run_operation("sync"), self._run_operation(f"sync {self._open[descriptor][:3]}"):
            self._synced[self._open[descriptor]] = os.fstat(descriptor).st_size

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        del self._open[descriptor]

    def rename(self, old: str, new: str) -> None:
        with self._run_operation("rename"):
            super().rename(old, new)
            if old in self._synced:
                self._synced[new] = self._synced.pop(old)

    def remove(self, name: str) -> None:
        with self._run_operation("remove"):
            super().remove(name)

    def make_directory(self, name: str) -> None:
        with self._run_operation("make"):
            super().make_directory(name)

    def sync_names(self) -> None:
        with self._run_operation("sync_names"):
            pass

    def kill(self) -> None:
        """End as a killed process does: all that it has written stays."""
        for descriptor in tuple(self._open):
            self.close(descriptor)
        self.unlock()

    def lose_power(self, random: Random | None = None) -> None:
        """End as a machine without power does: unsynced data is lost.

        Args:
            random: keeps a random part of the unsynced data, with a hole; None: all of it is lost.
        """
        self.kill()
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
    """Opens a bucket in one directory, as often as a test likes; call it to open the bucket.

    Attributes:
        path: the directory.
        now: time of the bucket's clock, in ns since the epoch.
        clock: returns the time for the bucket; `now`, unless a test replaces it.
        directory: the directory of the newest opening; a test lets its operations fail.
        prepare: called with the directory at each opening, before any operation in it.
        vbuuids: the vbuuids of new branches, which count from 1 over all openings.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = START
        self.clock: Callable[[], int] = lambda: self.now
        self.directory = FailingDirectory(path)
        self.prepare: Callable[[FailingDirectory], object] = lambda directory: None
        self.vbuuids = count(1)

    def __call__(self, name: str = "beer", *, vbuckets: int = 4, **settings: Any) -> BucketStore:
        """Open the bucket; `settings` are fields of BucketSettings."""
        return BucketStore.open(
            self.path,
            name,
            vbuckets=vbuckets,
            clock=self.clock,
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
    """Yield a temporary directory, in memory if the system has a file system there."""
    with TemporaryDirectory(dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None) as path:
        yield Path(path)


def read_files(path: Path) -> dict[str, bytes]:
    """Return the content of each file of a bucket, without the lock file."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.is_file() and file.name != "lock"}


def capture_state(bucket: BucketStore) -> list[Any]:
    """Return everything that a client can see of a bucket, except its branches."""
    return [
        (
            vbucket.history.state,
            vbucket.changes.high_seqno,
            vbucket.changes.items,
            [(change, vbucket.get(change.key)) for change in current],
        )
        for vbucket in bucket.vbuckets
        for current in [read_newest_changes(vbucket)]
    ]


def read_newest_changes(vbucket: Vbucket) -> list[Mutation | Tombstone]:
    """Return the newest change of each key by seqno, including changes of an incomplete snapshot."""
    return read_all(Snapshot(vbucket.index, 0, vbucket.changes.high_seqno))
