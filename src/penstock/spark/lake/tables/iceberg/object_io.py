"""The metadata files of Iceberg tables in an object store, read and written with the library of all other objects.

So PyIceberg finds the same store, with the same credentials and retries. PyIceberg imports this module by its name.
"""

from __future__ import annotations

import io
from typing import Any
from urllib.parse import urlsplit

import obstore
from pyiceberg.io import FileIO, InputFile, OutputFile

from penstock.spark.storage.object_client import open_store, translate_errors
from penstock.spark.storage.object_path import ObjectPath


class _ObjectInput(InputFile):
    """An object that is read whole: manifests and metadata are small."""

    def __len__(self) -> int:
        return _locate(self.location).stat().st_size

    def exists(self) -> bool:
        return _locate(self.location).is_file()

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(_locate(self.location).read_bytes())


class _ObjectOutput(OutputFile):
    """An object that appears when its stream is closed. Its name has random digits, so it replaces no other object."""

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return _ObjectInput(self.location)

    def create(self, overwrite: bool = False) -> Any:
        return _ObjectStream(_locate(self.location))


class _ObjectStream(io.BytesIO):
    def __init__(self, place: ObjectPath) -> None:
        super().__init__()
        self._place = place

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is None:
            self.close()
        else:  # half an object is of no use
            super().close()

    def close(self) -> None:
        if not self.closed:
            content, place = self.getvalue(), self._place
            super().close()
            translate_errors(place, lambda: obstore.put(open_store(place.root), place.key, content))


class ObjectFileIO(FileIO):
    """The file access of PyIceberg for lakes in object stores."""

    def new_input(self, location: str) -> InputFile:
        """Return an object for reading."""
        return _ObjectInput(location)

    def new_output(self, location: str) -> OutputFile:
        """Return an object for writing."""
        return _ObjectOutput(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete an object, if there is one."""
        _locate(location if isinstance(location, str) else location.location).unlink()


def _locate(location: str) -> ObjectPath:
    parts = urlsplit(location)
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    return ObjectPath(f"{scheme}://{parts.netloc}", parts.path.strip("/"))
