"""The files of one bucket: the only module of the store that calls the operating system.

A method raises the OSError of the system call that failed. Tests replace the Directory by one whose calls fail.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_LOCK = "lock"


class Directory:
    """A directory, and the operations on the files in it. Files are given by name.

    Attributes:
        path: the path of the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def make(self) -> None:
        """Create the directory, with the directories above it, unless it exists."""
        self.path.mkdir(parents=True, exist_ok=True)

    def lock(self) -> bool:
        """Lock the directory for this process, until `unlock` or until the process ends.

        Returns:
            False if another process holds the lock.

        Raises:
            OSError: the lock file cannot be opened.
        """
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        with suppress(OSError):  # the process id only informs users, and a full disk has no room for it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return True

    def read_owner(self) -> str:
        """Return the process id in the lock file: the process that holds the lock, or held it last."""
        return (self.path / _LOCK).read_text(encoding="ascii", errors="replace").strip()

    def unlock(self) -> None:
        """Release the lock, if this process holds it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def list_names(self) -> list[str]:
        """Return the names of all files in the directory, sorted."""
        return sorted(entry.name for entry in os.scandir(self.path) if entry.is_file())

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return (self.path / name).read_bytes()

    def map(self, name: str) -> memoryview:
        """Map a file into memory and return its bytes. The system reads them when they are used.

        Returns:
            The bytes, which stay valid after the file was removed.
        """
        descriptor = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not os.fstat(descriptor).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def create(self, name: str) -> int:
        """Create a file, or truncate an existing one.

        Returns:
            The open descriptor.
        """
        return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def reopen(self, name: str, size: int) -> int:
        """Open an existing file and truncate it to `size` bytes.

        Returns:
            The open descriptor.
        """
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(descriptor, size)
        return descriptor

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Write some of the data at an offset of the file.

        Returns:
            How many bytes were written, at least 1 if there is data.
        """
        return os.pwrite(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        """Wait until all written data of the file is on disk."""
        os.fdatasync(descriptor)

    def watch(self, descriptor: int, name: str) -> Callable[[], bool]:
        """Return a function that checks whether an open file still has its name.

        Another program may have removed, moved or replaced the file. The function runs at every commit, so it makes
        one system call and no objects of pathlib. The inode number identifies the file: no other file gets the inode
        number of an open file.
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
        """Close an open file."""
        os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename a file. It replaces an existing file of the new name."""
        os.rename(self.path / old, self.path / new)

    def make_directory(self, name: str) -> None:
        """Create a subdirectory."""
        (self.path / name).mkdir()

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        (self.path / name).unlink(missing_ok=True)

    def sync_names(self) -> None:
        """Wait until all created, renamed and removed names of the directory are on disk."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_all(self, descriptor: int, data: memoryview, offset: int) -> None:
        """Write all of the data at an offset of the file."""
        while data:
            written = self.write(descriptor, data, offset)
            data, offset = data[written:], offset + written

    def write_file(self, name: str, *parts: tuple[int, memoryview]) -> None:
        """Write a file and sync it. If that fails, the incomplete file is removed.

        Args:
            name: the name of the file.
            parts: pairs of an offset in the file and the bytes to write there.

        Raises:
            OSError: the file could not be written or synced.
        """
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
