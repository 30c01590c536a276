"""The position of a dependent outside of the lake: a file in the lake with the applied changelog version."""

from __future__ import annotations

import json

from penstock.errors import Error
from penstock.spark.storage.object_path import LakePath
from penstock.spark.storage.stored_documents import StoredDocument


class PositionFile:
    """A position file.

    Args:
        path: the file.
        consequence: the effect of removing the file, for the error about a damaged file.
    """

    def __init__(self, path: LakePath, consequence: str) -> None:
        self.path = path
        self._document = StoredDocument(path)
        self._consequence = consequence

    def read(self) -> tuple[str, int] | None:
        """Return the changelog's id and version, None if there is no file.

        Returns:
            The applied position.

        Raises:
            Error: the file is damaged.
        """
        try:
            content = json.loads(self._document.read())
            return str(content["changelog"]), int(content["version"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise Error(f"{self.path} is not a position file; remove it, then {self._consequence}") from None

    def write(self, changelog_id: str, version: int) -> None:
        """Store a position. After a crash the file has the old or the new position."""
        self._document.replace(json.dumps({"changelog": changelog_id, "version": version}), is_synced=True)


def list_position_files(directory: LakePath, name: str) -> list[LakePath]:
    """Return the position file of a dependent in a directory, if it exists."""
    path = directory / f"{name}.json"
    return [path] if path.exists() else []
