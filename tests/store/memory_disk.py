"""A disk in memory that loses unsynced data, and a process that can end at any call of the operating system."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import ENOENT
from itertools import count
from operator import eq
from pathlib import Path
from random import Random
from typing import NoReturn

from penstock.store.disk.bucket_files import Directory

_SECTOR = 32  # bytes: a log file of a test has about a thousand bytes, so it needs small sectors


class ProcessDied(BaseException):
    """The process was killed, or the power failed.

    It is no Exception, so that no handler of the code under test runs after the end of the process.
    """


@dataclass(eq=False)
class DiskFile:
    """A file in memory.

    Attributes:
        data: content that a process reads.
        synced: content at the last sync, which is certainly on disk.
    """

    data: bytes = b""
    synced: bytes = b""

    def lose_unsynced_data(self, random: Random) -> bytes:
        """Return a content that the file may have after a power loss.

        Data written since the last sync is there up to a random offset, perhaps with a hole. Or random sectors of it
        are there, because a disk may write them in any order.
        """
        if random.random() < 0.3:
            return self._lose_some_sectors(random)
        reached = random.randint(0, len(self.data))
        data = bytearray(self.data[:reached] + self.synced[reached:])
        safe = next((at for at, same in enumerate(map(eq, data, self.synced)) if not same), len(self.synced))
        if random.random() < 0.5 and safe < len(data):
            start = random.randint(safe, len(data))
            end = random.randint(start, min(len(data), start + 40))
            data[start:end] = bytes(end - start)
        return bytes(data)

    def _lose_some_sectors(self, random: Random) -> bytes:
        """Return the file with some of the sectors written since the last sync; missing sectors are zeros."""
        size = random.randint(min(len(self.synced), len(self.data)), max(len(self.synced), len(self.data)))
        before, after = self.synced.ljust(size, b"\0"), self.data.ljust(size, b"\0")
        sectors = range(0, size, _SECTOR)
        return b"".join(random.choice((before, after))[at : min(at + _SECTOR, size)] for at in sectors)


@dataclass(eq=False)
class MemoryDisk:
    """A disk with one directory. A bucket is opened with it in the place of `Directory`.

    Attributes:
        names: the directory as a process sees it.
        on_disk: the directory at its last sync.
        changes: changes of names since then, in order; the file of a removed name is None.
        locked: whether a process has locked the directory.
        calls_left: calls that succeed before the process ends in the middle of the next one; None: it does not end.
        on_death: called as the process ends in the middle of a call.
    """

    names: dict[str, DiskFile] = field(default_factory=dict)
    on_disk: dict[str, DiskFile] = field(default_factory=dict)
    changes: list[dict[str, DiskFile | None]] = field(default_factory=list)
    locked: bool = False
    calls_left: int | None = None
    on_death: Callable[[], None] = lambda: None

    def __call__(self, path: Path) -> Directory:
        """Return the directory of this disk; `BucketStore.open` calls the disk as it calls the class `Directory`."""
        return _MemoryDirectory(path, self)

    def kill(self) -> None:
        """End the process. The system keeps running, so written data stays, synced or not."""
        self.locked, self.calls_left = False, None

    def lose_power(self, random: Random) -> None:
        """End the process and the system, which may lose any unsynced name and any unsynced data of a file."""
        self.kill()
        for change in self.changes:
            if random.random() < 0.7:
                _apply(change, self.on_disk)
        self.changes = []
        for file in set(self.on_disk.values()):
            file.data = file.synced = file.lose_unsynced_data(random)
        self.names = dict(self.on_disk)


def _apply(change: dict[str, DiskFile | None], names: dict[str, DiskFile]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


class _MemoryDirectory(Directory):
    """The directory of a `MemoryDisk`; each changing operation counts as one call."""

    def __init__(self, path: Path, disk: MemoryDisk) -> None:
        super().__init__(path)
        self._disk = disk
        self._files: dict[int, DiskFile] = {}
        self._descriptors = count(3)

    def _ends_in_this_call(self) -> bool:
        """Count a call, and return whether the process ends in it."""
        disk = self._disk
        if disk.calls_left is None:
            return False
        disk.calls_left -= 1
        return disk.calls_left < 0

    def _make_call(self) -> None:
        if self._ends_in_this_call():
            self._end_process()

    def _end_process(self) -> NoReturn:
        self._disk.on_death()
        raise ProcessDied

    def _rename(self, change: dict[str, DiskFile | None]) -> None:
        self._make_call()
        self._disk.changes.append(change)
        _apply(change, self._disk.names)

    def _find(self, name: str) -> DiskFile:
        try:
            return self._disk.names[name]
        except KeyError:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), name) from None

    def _open(self, file: DiskFile) -> int:
        descriptor = next(self._descriptors)
        self._files[descriptor] = file
        return descriptor

    def make(self) -> None:
        pass  # the disk has only this directory

    def lock(self) -> bool:
        free, self._disk.locked = not self._disk.locked, True
        return free

    def read_owner(self) -> str:
        return "1"

    def unlock(self) -> None:
        self._disk.locked = False

    def list_names(self) -> list[str]:
        return sorted(self._disk.names)

    def read(self, name: str) -> bytes:
        return self._find(name).data

    def map(self, name: str) -> memoryview:
        return memoryview(self._find(name).data)

    def create(self, name: str) -> int:
        file = DiskFile()
        self._rename({name: file})
        return self._open(file)

    def reopen(self, name: str, size: int) -> int:
        self._make_call()
        file = self._find(name)
        file.data = file.data[:size]
        return self._open(file)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        file = self._files[descriptor]
        died = self._ends_in_this_call()
        data = data[: len(data) // 2] if died else data
        file.data = file.data[:offset].ljust(offset, b"\0") + bytes(data) + file.data[offset + len(data) :]
        if died:
            self._end_process()
        return len(data)

    def sync(self, descriptor: int) -> None:
        self._make_call()
        file = self._files[descriptor]
        file.synced = file.data

    def watch(self, descriptor: int, name: str) -> Callable[[], bool]:
        file = self._files[descriptor]
        return lambda: self._disk.names.get(name) is file

    def close(self, descriptor: int) -> None:
        del self._files[descriptor]

    def rename(self, old: str, new: str) -> None:
        self._rename({new: self._find(old), old: None})

    def remove(self, name: str) -> None:
        self._rename({name: None})

    def sync_names(self) -> None:
        self._make_call()
        for change in self._disk.changes:
            _apply(change, self._disk.on_disk)
        self._disk.changes = []
