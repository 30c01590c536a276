"""Faults of the disk: they are recorded here, and changes are refused because of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import ENOENT
from pathlib import Path

from penstock.store.log.log_room import LogRoom


class DiskFaults:
    """Records faults of the disk and makes the log refuse changes.

    Attributes:
        is_broken: a sync has failed or files were lost, so the content of the disk is unknown. Later commits do not
            change that.
    """

    def __init__(self, room: LogRoom) -> None:
        self.is_broken = False
        self._room = room

    def run_sync(self, call: Callable[..., None], *arguments: int) -> None:
        """Call a function that syncs. If it fails, the content of the disk is unknown from then on.

        Args:
            call: a method of Directory that syncs.
            arguments: the arguments of the call.

        Raises:
            OSError: the sync failed.
        """
        try:
            call(*arguments)
        except OSError as error:
            self.is_broken = True
            self._room.refuse_changes(
                f"a sync has failed ({error.strerror or error}): the content of the disk is unknown, so no change is "
                "stored until the bucket is opened again"
            )
            raise

    def fail_for_lost_file(self, path: Path) -> None:
        """Refuse changes until the bucket is opened again: the open log file no longer has its name.

        The next opening of the bucket would not find the file.

        Args:
            path: the path that the file had.

        Raises:
            FileNotFoundError: always.
        """
        self.is_broken = True
        self._room.refuse_changes(
            f"{path} was deleted, moved or replaced while the bucket was open: changes stored since then are lost, "
            "and no change is stored until the bucket is opened again"
        )
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path.name)

    def refuse_changes(self, error: OSError) -> None:
        """Refuse changes until a commit succeeds."""
        if not self.is_broken:
            self._room.refuse_changes(f"the disk does not accept writes: {error.strerror or error}")
