"""The lock of a lake: one run at a time writes it. A lake in an object store has a lease instead, see `lake_lease`.

If a driver is killed, Spark's Java process lives on for a moment and may continue the query. The lock is a kernel lock
on an open file that Java inherits. So it is free once both processes have ended, for any reason.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import LakeRefused, UsageError
from penstock.spark.storage.lake_lease import HeldLease, check_lease, hold_lease, is_leased
from penstock.spark.storage.object_path import LakePath, ObjectPath

LOCK_NAME = "_lock"
"""The lock's file in the lake's directory."""
_POLL_SECONDS = 0.1
"""Seconds between two attempts to get the lock."""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The lock of a lake that this process holds.

    Attributes:
        descriptors: the open lock file, for processes that shall keep the lock; empty for a lease.
        lease: the lease of a lake in an object store.
    """

    descriptors: tuple[int, ...] = ()
    lease: HeldLease | None = None

    @property
    def token(self) -> str:
        """The name of the lease's owner, for `check_lock` in other processes; empty for a directory."""
        return "" if self.lease is None else self.lease.token

    def raise_if_lost(self) -> None:
        """Raise LakeRefused if another run has taken over. A kernel lock cannot be lost."""
        if self.lease is not None:
            self.lease.raise_if_lost()


@contextmanager
def hold_lock(directory: LakePath, timeout: float) -> Iterator[HeldLock]:
    """Hold the lock of a lake while the block runs.

    Raises LakeRefused if another run keeps the lock.

    Args:
        directory: the lake's place.
        timeout: seconds to wait for the run that holds the lock. A lease is awaited for as long as it lasts.

    Yields:
        The lock.
    """
    if isinstance(directory, ObjectPath):
        with hold_lease(directory, LOCK_NAME) as lease:
            yield HeldLock(lease=lease)
    else:
        with _hold_file(directory, timeout) as file:
            yield HeldLock((file,))


def check_lock(directory: LakePath, token: str) -> None:
    """Check in another process that a run still has its lake. Raises LakeRefused if another run has taken over.

    Args:
        directory: the lake's place.
        token: the run's token.
    """
    if token and isinstance(directory, ObjectPath):
        check_lease(directory, LOCK_NAME, token)


def is_held(directory: LakePath) -> bool:
    """Return whether a run holds a lake, or the Java process of a run that was killed."""
    if isinstance(directory, ObjectPath):
        return is_leased(directory, LOCK_NAME)
    try:
        file = os.open(directory / LOCK_NAME, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # A shared lock, so that two processes that only check do not exclude each other.
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        return True
    finally:
        os.close(file)


@contextmanager
def _hold_file(directory: Path, timeout: float) -> Iterator[int]:
    """Hold the kernel lock of a directory while the block runs.

    Args:
        directory: the lake's directory.
        timeout: seconds to wait.

    Yields:
        The descriptor of the open lock file.

    Raises:
        UsageError: the lock's file cannot be created.
    """
    try:
        file = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UsageError(f"the lake {directory} cannot be written: {error.strerror}") from error
    try:
        _acquire_lock(file, directory, timeout)
        try:
            yield file
        finally:
            # Closing is not enough: a Java process that still lives has the file open too.
            fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _acquire_lock(file: int, directory: Path, timeout: float) -> None:
    """Wait for the lock.

    Raises:
        LakeRefused: another run held the lock until the timeout.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LakeRefused(describe_held_lake(directory)) from None
            time.sleep(_POLL_SECONDS)


def describe_held_lake(directory: LakePath) -> str:
    """Return the sentence about a lake whose lock another run holds."""
    return f"another run writes {directory}; stop it first, or choose another directory"
