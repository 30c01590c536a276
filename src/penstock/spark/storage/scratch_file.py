"""Scratch files: Arrow tables on disk for as long as one computation needs them."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from penstock.spark.storage.full_disk import translate_full_disk
from penstock.spark.storage.object_path import LakePath

ScratchPlace = tuple[int, int]
"""Offset and size of a table in the file."""


class ScratchFile:
    """A file without a name, in which tables are written once and read in any order.

    The operating system removes the file when it is closed, and also when the process is killed.

    Args:
        directory: where the file lies, created if needed. Files for an object store lie in the temporary directory.
    """

    def __init__(self, directory: LakePath) -> None:
        self._directory = directory if isinstance(directory, Path) else Path(tempfile.gettempdir())
        with translate_full_disk(str(self._directory)):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(prefix=".scratch-", dir=self._directory)  # noqa: SIM115 - closed by close()
        self._size = 0

    def write(self, rows: pa.Table) -> ScratchPlace:
        """Append a table.

        Raises DiskFull if the disk has no room.

        Args:
            rows: the table.

        Returns:
            The place to read it from.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_table(rows)
        content = sink.getvalue()
        place = self._size, content.size
        with translate_full_disk(str(self._directory)):
            self._file.seek(self._size)
            self._file.write(content)
            self._file.flush()
        self._size += content.size
        return place

    def read(self, place: ScratchPlace) -> pa.Table:
        """Return the table that was written at a place."""
        offset, size = place
        self._file.seek(offset)
        return pa.ipc.open_stream(self._file.read(size)).read_all()

    def close(self) -> None:
        """Close the file, and free its space on the disk."""
        with suppress(OSError):  # after a write that failed on a full disk, it writes again
            self._file.close()
