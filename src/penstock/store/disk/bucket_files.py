"""The files of one bucket: the one place of the store that calls the operating system.

What fails raises OSError, as the system says it; tests put a Directory in its place that fails when they want it to.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["Directory"]

_LOCK = "lock"


class Directory:
    """A directory and what is done with the files in it, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> bool:
        """Make the directory this process's own until `unlock`, or its end. False: another one has it."""
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        with suppress(OSError):  # that only says who has it, and a disk that is full has no room for it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return True

    def read_owner(self) -> str:
        """Return what the lock says about who has it, a process id."""
        return (self.path / _LOCK).read_text(encoding="ascii", errors="replace").strip()

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def list_names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.path) if entry.is_file())

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def map(self, name: str) -> memoryview:
        """Return a file's bytes, which are read when they are looked at. The file may be removed meanwhile."""
        descriptor = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not os.fstat(descriptor).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def create(self, name: str) -> int:
        """Make a file, anew if it is there, and return its descriptor."""
        return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def reopen(self, name: str, size: int) -> int:
        """Return the descriptor of a file that is there, after what is behind `size` bytes has been cut off."""
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(descriptor, size)
        return descriptor

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Write some of the data, and return how many bytes that was."""
        return os.pwrite(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        """Return when what was written is on disk."""
        os.fdatasync(descriptor)

    def watch(self, descriptor: int, name: str) -> Callable[[], bool]:
        """Return a function that tells whether an open file still has its name.

        Another program may have removed, moved or replaced it. The function makes one system call and no objects of
        pathlib: it runs at every commit. No other file gets the number of an open file, so the number identifies it.
        """
        path, own = str(self.path / name), os.fstat(descriptor)
        number, device = own.st_ino, own.st_dev

        def has_name() -> bool:
            try:
                there = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return there.st_ino == number and there.st_dev == device

        return has_name

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path / old, self.path / new)

    def make_directory(self, name: str) -> None:
        (self.path / name).mkdir()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def sync_names(self) -> None:
        """Return when files that were made, renamed or removed are so on disk."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_all(self, descriptor: int, data: memoryview, offset: int) -> None:
        while data:
            written = self.write(descriptor, data, offset)
            data, offset = data[written:], offset + written

    def write_file(self, name: str, *parts: tuple[int, memoryview]) -> None:
        """Write a file of these parts, each at its offset, synced. What there is of it if that fails is removed."""
        descriptor = self.create(name)
        try:
            for offset, data in parts:
                self.write_all(descriptor, data, offset)
            self.sync(descriptor)
        except OSError:
            self.remove(name)
            raise
        finally:
            self.close(descriptor)
