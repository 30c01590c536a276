"""Objects as files of Arrow: Parquet files are read by ranges and written in parts, without a copy on this machine."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from obstore.exceptions import BaseError

from penstock.spark.storage.object_client import is_cut, open_store, translate_errors
from penstock.spark.storage.object_path import LakePath, ObjectPath, is_remote_path, parse_place
from penstock.spark.storage.stored_documents import replace_file

PART_BYTES = 8 << 20
"""Bytes of one part of an upload. A smaller object is one request."""
WHOLE_BYTES = 2 << 20
"""Size up to which an object is read whole: a request takes as long as the transfer of about a megabyte."""


class _ObjectReader(io.RawIOBase):
    """The bytes of an object. Raises FileNotFoundError if there is no such object.

    The request that opens a small object also fetches it. Of a large object each read fetches its range.
    """

    def __init__(self, place: ObjectPath) -> None:
        self._place = place
        self._at = 0
        self._size, self._content = translate_errors(place, self._open)

    def _open(self) -> tuple[int, bytes | None]:
        """Return the size of the object, and its content unless the object is large."""
        found: Any = obstore.get(open_store(self._place.root), self._place.key)
        size = int(found.meta["size"])
        # The body of a large object is not read, so its transfer ends with `found`.
        return size, bytes(found.bytes()) if size <= WHOLE_BYTES else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        start, self._at = self._at, end
        return self._content[start:end] if self._content is not None else self._fetch(start, end)

    def _fetch(self, start: int, end: int) -> bytes:
        store, key = open_store(self._place.root), self._place.key
        return translate_errors(self._place, lambda: bytes(obstore.get_range(store, key, start=start, end=end)))


class _ObjectSink(io.RawIOBase):
    """A new object. It appears when it is closed, whole; a killed process leaves nothing that readers see."""

    def __init__(self, place: ObjectPath) -> None:
        self._place = place
        self._writer: Any = obstore.open_writer(open_store(place.root), place.key, buffer_size=PART_BYTES)
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = int(translate_errors(self._place, lambda: self._writer.write(data), repeats=False))
        self._size += written
        return written

    def close(self) -> None:
        if not self.closed:
            super().close()
            translate_errors(self._place, self._complete, repeats=False)

    def _complete(self) -> None:
        """End the upload. If the answer ends within its body, the store may have completed the upload.

        Raises:
            BaseError: the object does not exist, or has another size.
        """
        try:
            self._writer.close()
        except BaseError as error:
            if not (is_cut(error) and self._place.is_file() and self._place.stat().st_size == self._size):
                raise


class _ObjectHandler(pafs.FileSystemHandler):  # type: ignore[misc]
    """The objects of one bucket as Arrow's file system, for reading only."""

    def __init__(self, root: str) -> None:
        self._root = root

    def get_type_name(self) -> str:
        return "penstock"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Iterable[str]) -> list[pafs.FileInfo]:
        return [self._find_info(path) for path in paths]

    def _find_info(self, path: str) -> pafs.FileInfo:
        try:
            return pafs.FileInfo(path, pafs.FileType.File, size=ObjectPath(self._root, path).stat().st_size)
        except FileNotFoundError:
            return pafs.FileInfo(path, pafs.FileType.NotFound)

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(_ObjectReader(ObjectPath(self._root, path)), mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError("this file system only reads")

    get_file_info_selector = open_output_stream = open_append_stream = create_dir = delete_dir = _refuse
    delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _refuse


def open_parquet(path: LakePath | str, *, is_sequential: bool = False) -> pq.ParquetFile:
    """Return a Parquet file for reading; it is to be closed. Raises FileNotFoundError if there is none.

    Args:
        path: the file.
        is_sequential: True if whole row groups are read in turn. Local files are then not read ahead.
    """
    place = parse_place(path) if isinstance(path, str) and is_remote_path(path) else path
    if not isinstance(place, ObjectPath):
        return pq.ParquetFile(place, pre_buffer=not is_sequential)
    # Columns of a row group lie side by side: with pre_buffer they are one request instead of one each.
    return pq.ParquetFile(pa.PythonFile(_ObjectReader(place), mode="r"), pre_buffer=True)


def read_parquet(path: LakePath | str, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a Parquet file, in some of its columns. Raises FileNotFoundError if there is none."""
    with open_parquet(path) as file:
        return file.read(columns)


def replace_parquet(path: LakePath, batches: Iterable[pa.Table], schema: pa.Schema, draft: LakePath) -> None:
    """Replace a Parquet file: readers see the old file or the new one.

    Args:
        path: the file.
        batches: the new rows.
        schema: the schema of the rows.
        draft: a file of the same lake for the rows until the file is whole.
    """
    sink = open_sink(draft)
    try:
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for rows in batches:
                writer.write_table(rows)
    finally:
        close_sink(sink)
    replace_file(draft, path)


def count_parquet_rows(path: LakePath) -> int:
    """Return the number of rows in a Parquet file, from its footer."""
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)


def open_sink(path: LakePath) -> Any:
    """Return where a Parquet writer writes a new file: the path, or an object's file to close after the writer."""
    return _ObjectSink(path) if isinstance(path, ObjectPath) else path


def close_sink(sink: Any) -> None:
    """Close the result of `open_sink`."""
    if isinstance(sink, _ObjectSink):
        sink.close()


def discard_sink(sink: Any) -> None:
    """Close the result of `open_sink` after an error; the object may exist afterwards."""
    with suppress(Exception):
        close_sink(sink)


def select_filesystem(paths: list[str]) -> tuple[list[str], pafs.FileSystem | None]:
    """Return paths for Arrow's datasets, and the file system that has them; None for this machine's.

    Args:
        paths: paths or URLs of one lake.
    """
    if not paths or not is_remote_path(paths[0]):
        return paths, None
    places = [place for path in paths if isinstance(place := parse_place(path), ObjectPath)]
    return [place.key for place in places], pafs.PyFileSystem(_ObjectHandler(places[0].root))
