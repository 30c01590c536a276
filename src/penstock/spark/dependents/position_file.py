"""The version of a changelog that something outside of the lake has taken in, remembered in a file of the lake."""

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
        """Put in its place what is reached with these delta, for certain: whoever dies here has the old or the new."""
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
