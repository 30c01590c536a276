"""Positions in a file."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions, decode_positions, encode_positions
from penstock.errors import Error
from penstock.store.disk.bucket_files import Directory

__all__ = ["FilePositions"]


class FilePositions(PositionStore):
    """Keeps positions in a file. A program that is killed at any moment leaves the old or the new content.

    Args:
        path: the file; its directory must exist.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser()

    def __str__(self) -> str:
        return f"file:{self.path}"

    async def read(self) -> SavedPositions | None:
        """Return the positions in the file; None if there is no file."""
        try:
            content = self._read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Error(f"{self.path} cannot be read: {error.strerror or error}") from error
        return decode_positions(content, str(self.path))

    async def write(self, saved: SavedPositions) -> None:
        """Replace the file. Its new content and its name are on disk before this returns."""
        try:
            self._replace(encode_positions(saved) + b"\n")
        except OSError as error:
            raise Error(f"{self.path} cannot be written: {error.strerror or error}") from error

    async def remove(self) -> None:
        """Remove the file, if it exists."""
        try:
            Directory(self.path.parent).remove(self.path.name)
        except OSError as error:
            raise Error(f"{self.path} cannot be removed: {error.strerror or error}") from error

    # Not on a thread: a cancelled write would go on there, beside the next one. The file is small.

    def _read(self) -> bytes:
        return self.path.read_bytes()

    def _replace(self, content: bytes) -> None:
        directory = Directory(self.path.parent)
        # Each process has a draft of its own: a rename never publishes an incomplete draft.
        draft = f".{self.path.name}.{os.getpid()}.new"
        directory.remove(draft)
        directory.write_file(draft, (0, memoryview(content)))
        directory.rename(draft, self.path.name)
        directory.sync_names()
