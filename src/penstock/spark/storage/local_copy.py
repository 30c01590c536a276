"""A local copy of an object, for programs that need a file: SQLite reads and writes pages in place."""

from __future__ import annotations

import weakref
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import obstore

from penstock.errors import LakeRefused
from penstock.spark.storage.object_client import ObjectChanged, open_store, put_if, translate_errors
from penstock.spark.storage.object_path import ObjectPath


class LocalCopy:
    """A file of this machine with the content of an object. It is removed at the end; a kill leaves it as waste.

    Args:
        place: the object, which need not exist.

    Attributes:
        path: the file; it exists if the object exists.
    """

    def __init__(self, place: ObjectPath) -> None:
        directory = mkdtemp(prefix="penstock-copy-")
        weakref.finalize(self, rmtree, directory, ignore_errors=True)
        self.path = Path(directory) / place.name
        self._place = place
        self._version: str | None = None

    def update(self) -> bool:
        """Fetch the object unless the file has its newest version.

        Returns:
            False if there is no object.
        """
        try:
            version = self._place.stat().version
            if version != self._version:
                self._fetch()
        except FileNotFoundError:
            self.discard()
            return False
        return True

    def publish(self) -> None:
        """Replace the object by the file. If that fails, the file is fetched again before its next use.

        Raises:
            LakeRefused: another process replaced the object since it was fetched.
        """
        content, version = self.path.read_bytes(), self._version
        self._version = None
        try:
            self._version = put_if(self._place.root, self._place.key, content, version)
        except ObjectChanged:
            raise LakeRefused(f"another run has replaced {self._place}; only one run may write a lake") from None
        finally:
            if self._version is None:
                self.discard()

    def discard(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
        self._version = None

    def _fetch(self) -> None:
        place, draft = self._place, self.path.with_suffix(".new")

        def write() -> str:
            found: Any = obstore.get(open_store(place.root), place.key)
            with draft.open("wb") as file:
                for chunk in found.stream():
                    file.write(chunk)
            return str(found.meta["e_tag"])

        version = translate_errors(place, write)
        draft.replace(self.path)
        self._version = version
