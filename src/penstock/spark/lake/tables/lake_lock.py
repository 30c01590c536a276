"""One run at a time on a lake.

A driver that is killed leaves Spark's Java process behind for a moment, in which it may go on with the query. The lock
is the kernel's, on an open file that Java inherits: it is free once both processes are gone, however they ended.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import LakeRefused, UsageError

NAME = "_lock"
_LOOK_SECONDS = 0.1


@contextmanager
def locked(directory: Path, patience: float) -> Iterator[int]:
    """Hold the lock of a lake's directory and give its open file.

    patience: seconds to wait for one who has it. Raises LakeRefused after that, UsageError where no file can be made.
    """
    try:
        file = os.open(directory / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UsageError(f"the lake {directory} cannot be written: {error.strerror}") from error
    try:
        _acquire(file, directory, patience)
        try:
            yield file
        finally:
            # Closing it would not do: a Java that lives on has it open too.
            fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _acquire(file: int, directory: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                text = f"another run writes {directory}; stop it first, or choose another directory"
                raise LakeRefused(text) from None
            time.sleep(_LOOK_SECONDS)
