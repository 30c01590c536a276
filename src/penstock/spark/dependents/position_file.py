"""The position of a dependent outside of the lake: a file of the lake with the changelog version that was applied."""

from __future__ import annotations

import json
import os
from pathlib import Path

from penstock.errors import Error
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta

__all__ = ["PositionFile", "position_files"]


class PositionFile:
    """One such file. consequence: what removing it leads to, for the error that a broken one is."""

    def __init__(self, path: Path, consequence: str) -> None:
        self.path = path
        self._consequence = consequence

    def read(self) -> tuple[str, int] | None:
        """Return the changelog's id and the version, None if there is no file. Raises Error if it is broken."""
        try:
            said = json.loads(self.path.read_bytes())
            return str(said["changelog"]), int(said["version"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise Error(f"{self.path} is no position; remove it, and {self._consequence}") from None

    def write(self, delta: ChangelogDelta) -> None:
        """Replace the position by the one that a delta reaches; after a crash the file has the old or the new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        with new.open("w") as file:
            json.dump({"changelog": delta.changelog_id, "version": delta.version}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)


def position_files(directory: Path, name: str) -> list[Path]:
    """Return the position file of a dependent in a directory, if it exists."""
    path = directory / f"{name}.json"
    return [path] if path.exists() else []
