"""The lock of a lake: one run at a time writes it.

If a driver is killed, Spark's Java process lives on for a moment and may continue the query. The lock is a kernel lock
on an open file that Java inherits. So it is free once both processes have ended, for any reason.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import LakeRefused, UsageError

LOCK_NAME = "_lock"
"""The lock's file in the lake's directory."""
_POLL_SECONDS = 0.1
"""Seconds between two attempts to get the lock."""


@contextmanager
def hold_lock(directory: Path, timeout: float) -> Iterator[int]:
    """Hold the lock of a lake's directory while the block runs.

    Raises LakeRefused if another run keeps the lock.

    Args:
        directory: the lake's directory.
        timeout: seconds to wait for the run that holds the lock.

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


def describe_held_lake(directory: Path) -> str:
    """Return the sentence about a lake whose lock another run holds."""
    return f"another run writes {directory}; stop it first, or choose another directory"
