"""The file formats of dumps: JSON lines, Parquet and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.client.dumps.json_changes import read_json_lines, write_json_rows
from penstock.errors import UsageError
from penstock.text_files import LineReader
from penstock.wire.columns.schema import CHANGE_SCHEMA

_NEEDED_COLUMNS = ("key", "value", "cas", "rev_seqno")
"""The columns without which a row is no change."""

_READ_ROWS = 8192
"""Rows that are read at once: with large values, more of them would fill the memory."""


class DumpRows(NamedTuple):
    """The rows of a dump.

    Attributes:
        batches: the rows, each batch with the size that was read so far.
        size: the size of everything, in rows or in bytes.
    """

    batches: Iterator[tuple[pa.RecordBatch, int]]
    size: int


class DumpFormat(NamedTuple):
    """A format of dumps.

    Attributes:
        write: writes tables of CHANGE_SCHEMA into a new file.
        read: returns the rows of a file. The iterator closes it.
        suffixes: the ends of file names.
    """

    write: Callable[[Path, Iterable[pa.Table]], None]
    read: Callable[[Path], DumpRows]
    suffixes: tuple[str, ...]


def choose_format(path: Path, name: str | None) -> DumpFormat:
    """Return the format with a name; without a name, that of the file's suffix. Raises UsageError without either."""
    for known, each in FORMATS.items():
        if name == known or (name is None and path.suffix in each.suffixes):
            return each
    suffixes = ", ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)
    raise UsageError(f"{path} has the suffix {path.suffix!r}, expected one of {suffixes}, or the option format")


def _write_json(path: Path, tables: Iterable[pa.Table]) -> None:
    with path.open("wb") as file:
        for table in tables:
            for batch in table.to_batches():
                file.write(write_json_rows(batch))


def _read_json(path: Path) -> DumpRows:
    def read() -> Iterator[tuple[pa.RecordBatch, int]]:
        with path.open("rb") as file:
            yield from read_json_lines(LineReader(file, str(path)), str(path))

    return DumpRows(read(), path.stat().st_size)


def _write_parquet(path: Path, tables: Iterable[pa.Table]) -> None:
    with pq.ParquetWriter(path, CHANGE_SCHEMA, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)


def _read_parquet(path: Path) -> DumpRows:
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise UsageError(f"{path}: {error}, expected a file of Parquet") from None
    _check_columns(path, file.schema_arrow)
    return DumpRows(_count_rows(path, file, file.iter_batches(_READ_ROWS)), file.metadata.num_rows)


def _write_arrow(path: Path, tables: Iterable[pa.Table]) -> None:
    with pa.ipc.new_file(path, CHANGE_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for table in tables:
            writer.write_table(table)


def _read_arrow(path: Path) -> DumpRows:
    source = pa.memory_map(str(path))
    try:
        file = pa.ipc.open_file(source)
        _check_columns(path, file.schema)
        batches = (file.get_batch(number) for number in range(file.num_record_batches))
        return DumpRows(_count_rows(path, source, batches), file.count_rows())
    except pa.ArrowException as error:
        source.close()
        raise UsageError(f"{path}: {error}, expected a file of Arrow") from None


def _check_columns(path: Path, schema: pa.Schema) -> None:
    if missing := [name for name in _NEEDED_COLUMNS if name not in schema.names]:
        raise UsageError(f"{path} has no column {missing[0]!r}, expected the columns of `penstock dump`")


def _count_rows(
    path: Path, file: pq.ParquetFile | pa.NativeFile, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches with the rows so far, and close the file at the end."""
    rows = 0
    with closing(file):
        try:
            for batch in batches:
                rows += batch.num_rows
                yield batch, rows
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{path} is damaged: {error}") from None


FORMATS = {
    "jsonl": DumpFormat(_write_json, _read_json, (".jsonl", ".ndjson", ".json")),
    "parquet": DumpFormat(_write_parquet, _read_parquet, (".parquet",)),
    "arrow": DumpFormat(_write_arrow, _read_arrow, (".arrow", ".feather")),
}
"""Name -> format."""
