"""Rows that a bucket refused, kept as parquet files in a directory that the driver and all workers see.

A task writes what it has to tell into a file of its own under `_staging`, which nobody reads. The commit of the batch
gives these files their names, `batch-<number>-part-<number>.parquet`, and takes away what an earlier try of the same
batch left under such names: a batch that is run again has its rows here once.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.sink.bucket_writes import RefusedRows
from penstock.wire.codec.frame import status_name

__all__ = ["LETTER_COLUMNS", "LetterFile", "abort", "commit"]

LETTER_COLUMNS = pa.schema(
    [
        ("error_status", pa.int32()),
        ("error", pa.string()),
        ("error_message", pa.string()),
        ("error_time", pa.timestamp("us", tz="UTC")),
        ("error_batch", pa.string()),
    ]
)
"""What a refused row has behind its own columns. error_status: as on the wire, -1 where no answer came; error: its
name. error_batch: the number of the micro-batch, of a batch job its id."""

_STAGING = "_staging"


class LetterFile:
    """The refused rows of one task, in one file; none where there are none. `close` returns its path.

    A context manager: if its block raises, the file is removed.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory / _STAGING / run
        self._path = self._directory / f"{uuid.uuid4().hex}.parquet"
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> LetterFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close()
        if kind is not None:
            self._path.unlink(missing_ok=True)

    def write(self, refused: RefusedRows) -> None:
        rows = _letters(refused, datetime.now(UTC))
        if self._writer is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._path, rows.schema, compression="zstd")
        self._writer.write_table(rows)

    def close(self) -> Path | None:
        if self._writer is None:
            return None
        self._writer.close()
        return self._path


def _letters(refused: RefusedRows, now: datetime) -> pa.Table:
    rows, faults = refused.rows, refused.faults
    names = [status_name(fault.status) if fault.status >= 0 else "NO_ANSWER" for fault in faults]
    found = {
        "error_status": pa.array([fault.status for fault in faults], pa.int32()),
        "error": pa.array(names, pa.string()),
        "error_message": pa.array([fault.text for fault in faults], pa.string()),
        "error_time": pa.array([now] * len(faults), LETTER_COLUMNS.field("error_time").type),
        "error_batch": pa.nulls(len(faults), pa.string()),
    }
    for field in LETTER_COLUMNS:
        rows = rows.append_column(field, found[field.name])
    return rows


def commit(directory: Path, run: str, batch: str, files: Sequence[Path]) -> None:
    """Make the tasks' files those of a batch. run: what the staging of all of them is under.

    May be called again for the same batch, with files of another run.
    """
    named = []
    for number, path in enumerate(files):
        rows = pq.read_table(path)
        at = rows.schema.get_field_index("error_batch")
        rows = rows.set_column(at, LETTER_COLUMNS.field("error_batch"), pa.repeat(pa.scalar(batch), rows.num_rows))
        whole = path.with_suffix(".whole")
        pq.write_table(rows, whole, compression="zstd")
        named.append((whole, directory / f"batch-{batch}-part-{number:05}.parquet"))
    for whole, final in named:
        os.replace(whole, final)
    kept = {final for _, final in named}
    if directory.is_dir():
        for old in directory.glob(f"batch-{batch}-part-*.parquet"):
            if old not in kept:
                old.unlink(missing_ok=True)
    _clear(directory, run)


def abort(directory: Path, run: str) -> None:
    """Remove what the tasks of a failed batch have written; not what an earlier try of the batch has committed."""
    _clear(directory, run)


def _clear(directory: Path, run: str) -> None:
    shutil.rmtree(directory / _STAGING / run, ignore_errors=True)
    staging = directory / _STAGING
    if staging.is_dir() and not any(staging.iterdir()):
        staging.rmdir()
