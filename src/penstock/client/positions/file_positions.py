"""Positions in a file."""

from __future__ import annotations

from pathlib import Path

from penstock.argument_types import check_arguments
from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions, decode_positions, encode_positions
from penstock.client.positions.synced_file import read_file, remove_file, replace_file


@check_arguments
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
        content = read_file(self.path)
        return None if content is None else decode_positions(content, str(self.path))

    async def write(self, saved: SavedPositions) -> None:
        """Replace the file. Its new content and its name are on disk before this returns."""
        replace_file(self.path, encode_positions(saved) + b"\n")

    async def remove(self) -> None:
        """Remove the file, if it exists."""
        remove_file(self.path)
