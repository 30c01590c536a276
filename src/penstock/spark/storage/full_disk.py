"""Full disks: every error that a full disk causes, as one sentence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import DiskFull, Error

_NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
"""The texts of a full disk and of a used quota. Java, Arrow and deltalake pass them on, and not the numbers."""


@contextmanager
def translate_full_disk(place: str) -> Iterator[None]:
    """Raise every error that a full disk causes as DiskFull.

    Args:
        place: the lake, table or directory that is written, for the sentence.

    Yields:
        Once, for the block.

    Raises:
        DiskFull: a disk had no room, or the user's quota is used.
        Error: the block failed for another reason.
        OSError: the block failed for another reason.
    """
    try:
        yield
    except (Error, OSError) as error:
        reason = next((text for text in _NO_ROOM if text in str(error)), None)
        if reason is None or isinstance(error, DiskFull):
            raise
        raise DiskFull(
            f"a disk is full while {place} is written ({reason}): make room, and run again to continue after the last"
            " commit"
        ) from error
