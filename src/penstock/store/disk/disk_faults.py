"""What goes wrong with the disk, and what is refused because of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import ENOENT
from pathlib import Path

from penstock.store.log.log_room import LogRoom

__all__ = ["DiskFaults"]


class DiskFaults:
    """Notes what the disk did not take, so that changes are refused.

    Attributes:
        broken: a sync has failed, or files are gone, so nobody knows what is on disk. No commit ends that.
    """

    def __init__(self, room: LogRoom) -> None:
        self.is_broken = False
        self._room = room

    def run_sync(self, call: Callable[..., None], *arguments: int) -> None:
        """Call a function that syncs. If it raises OSError, nothing is known of the disk any more."""
        try:
            call(*arguments)
        except OSError as error:
            self.is_broken = True
            self._room.refuse_changes(
                f"a sync has failed ({error.strerror or error}): nobody knows what is on disk, so nothing is stored "
                "until the bucket is opened anew"
            )
            raise

    def fail_for_lost_file(self, path: Path) -> None:
        """Raise OSError for good: the log file that is written is no longer the file that an opening would find."""
        self.is_broken = True
        self._room.refuse_changes(
            f"{path} was deleted, moved or replaced while the bucket was open: what was "
            "stored since then is lost, and nothing is stored until the bucket is opened anew"
        )
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path.name)

    def refuse_changes(self, error: OSError) -> None:
        """Refuse changes until a commit succeeds."""
        if not self.is_broken:
            self._room.refuse_changes(f"the disk does not take what is to be written: {error.strerror or error}")
