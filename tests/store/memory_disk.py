"""A disk in memory: files and names that are only as safe as they were synced, and a process that can end anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import ENOENT
from itertools import count
from operator import eq
from pathlib import Path
from random import Random

from penstock.store.disk.bucket_files import Directory

__all__ = ["Died", "Disk"]


_SECTOR = 32  # bytes: log files of tests have a thousand


class Died(BaseException):
    """The process was killed, or lost its power: no code of its own comes after that."""


@dataclass(eq=False)
class File:
    """data: as a process reads it. synced: what of it is on disk for certain."""

    data: bytes = b""
    synced: bytes = b""

    def after_power_loss(self, random: Random) -> bytes:
        """Return what of it might be there.

        What was written since the last sync has come so far, and perhaps with a hole; or its sectors came in any order.
        """
        if random.random() < 0.3:
            return self._some_sectors(random)
        reached = random.randint(0, len(self.data))
        data = bytearray(self.data[:reached] + self.synced[reached:])
        safe = next((at for at, same in enumerate(map(eq, data, self.synced)) if not same), len(self.synced))
        if random.random() < 0.5 and safe < len(data):
            start = random.randint(safe, len(data))
            end = random.randint(start, min(len(data), start + 40))
            data[start:end] = bytes(end - start)
        return bytes(data)

    def _some_sectors(self, random: Random) -> bytes:
        """Return the file with some of the sectors that were written since the last sync; a missing one is zeros."""
        size = random.randint(min(len(self.synced), len(self.data)), max(len(self.synced), len(self.data)))
        before, after = self.synced.ljust(size, b"\0"), self.data.ljust(size, b"\0")
        sectors = range(0, size, _SECTOR)
        return b"".join(random.choice((before, after))[at : min(at + _SECTOR, size)] for at in sectors)


@dataclass(eq=False)
class Disk:
    """Of one directory. fuse: after so many more calls the process ends, in the middle of one; None: it does not.

    names: as a process sees them; on_disk: those that are for certain, `changes`: what has become of others since.
    """

    names: dict[str, File] = field(default_factory=dict)
    on_disk: dict[str, File] = field(default_factory=dict)
    changes: list[dict[str, File | None]] = field(default_factory=list)
    locked: bool = False
    fuse: int | None = None

    def __call__(self, path: Path) -> Directory:
        """Return what a bucket is to be opened with, in the place of Directory."""
        return _DiskDirectory(path, self)

    def kill(self) -> None:
        """The process ends; the system goes on, with all that was written, synced or not."""
        self.locked, self.fuse = False, None

    def lose_power(self, random: Random) -> None:
        """What is not synced may be gone: any of the new names, and any end of a file's new data."""
        self.kill()
        for change in self.changes:
            if random.random() < 0.7:
                _apply(change, self.on_disk)
        self.changes = []
        for file in set(self.on_disk.values()):
            file.data = file.synced = file.after_power_loss(random)
        self.names = dict(self.on_disk)


def _apply(change: dict[str, File | None], names: dict[str, File]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


class _DiskDirectory(Directory):
    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path)
        self._disk = disk
        self._files: dict[int, File] = {}
        self._descriptors = count(3)

    def _called(self) -> bool:
        """Tell whether the process ends in this call."""
        disk = self._disk
        if disk.fuse is None:
            return False
        disk.fuse -= 1
        return disk.fuse < 0

    def _call(self) -> None:
        if self._called():
            raise Died

    def _rename(self, change: dict[str, File | None]) -> None:
        self._call()
        self._disk.changes.append(change)
        _apply(change, self._disk.names)

    def _find(self, name: str) -> File:
        try:
            return self._disk.names[name]
        except KeyError:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), name) from None

    def _open(self, file: File) -> int:
        descriptor = next(self._descriptors)
        self._files[descriptor] = file
        return descriptor

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
        file = File()
        self._rename({name: file})
        return self._open(file)

    def reopen(self, name: str, size: int) -> int:
        self._call()
        file = self._find(name)
        file.data = file.data[:size]
        return self._open(file)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        file = self._files[descriptor]
        died = self._called()
        data = data[: len(data) // 2] if died else data
        file.data = file.data[:offset].ljust(offset, b"\0") + bytes(data) + file.data[offset + len(data) :]
        if died:
            raise Died
        return len(data)

    def sync(self, descriptor: int) -> None:
        self._call()
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
        self._call()
        for change in self._disk.changes:
            _apply(change, self._disk.on_disk)
        self._disk.changes = []
