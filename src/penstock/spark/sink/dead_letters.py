"""Rows that a bucket refused, kept as Parquet files in a place that the driver and all workers share.

A task writes its rows into its own file under `_staging`, which readers ignore. The commit of the batch moves these
files to `batch-<number>-part-<number>.parquet`. It also removes files of an earlier attempt of the same batch. So a
repeated batch has its rows here once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.client.documents.window_writer import RefusedRows
from penstock.errors import UsageError
from penstock.spark.storage.object_files import close_sink, open_parquet, open_sink
from penstock.spark.storage.object_path import LakePath, ObjectPath
from penstock.spark.storage.stored_documents import create_document, replace_file
from penstock.wire.codec.frame import name_status

LETTER_COLUMNS = pa.schema(
    [
        ("error_status", pa.int32()),
        ("error", pa.string()),
        ("error_message", pa.string()),
        ("error_time", pa.timestamp("us", tz="UTC")),
        ("error_batch", pa.string()),
    ]
)
"""The columns after the row's own columns.

error_status is the status on the wire, -1 without an answer. error is its name. error_batch is the number of the
micro-batch, or the id of a batch job."""

_STAGING = "_staging"
_OWNER = "_checkpoint"
"""The file with the checkpoint of the streaming query that a directory belongs to."""


class DeadLetterFile:
    """The file with the refused rows of one task. Without refused rows there is no file.

    It is a context manager: if its block raises an exception, the file is removed.
    """

    def __init__(self, directory: LakePath, run: str) -> None:
        self._directory = directory / _STAGING / run
        self._path = self._directory / f"{uuid.uuid4().hex}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._sink: Any = None

    def __enter__(self) -> DeadLetterFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close()
        if kind is not None:
            self._path.unlink(missing_ok=True)

    def write(self, refused: RefusedRows, names: Mapping[int, str] | None = None) -> None:
        """Append refused rows to the file.

        Args:
            refused: the rows.
            names: the names of the faults' statuses; None: those of the key-value protocol.
        """
        rows = _make_letters(refused, names, datetime.now(UTC))
        if self._writer is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._sink = open_sink(self._path)
            self._writer = pq.ParquetWriter(self._sink, rows.schema, compression="zstd")
        self._writer.write_table(rows)

    def close(self) -> LakePath | None:
        """Return the path of the file after closing it; None without a file."""
        if self._writer is None:
            return None
        self._writer.close()
        close_sink(self._sink)
        return self._path


def _make_letters(refused: RefusedRows, names: Mapping[int, str] | None, now: datetime) -> pa.Table:
    rows, faults = refused.rows, refused.faults
    shown = [_name_status(fault.status) if names is None else names[fault.status] for fault in faults]
    found = {
        "error_status": pa.array([fault.status for fault in faults], pa.int32()),
        "error": pa.array(shown, pa.string()),
        "error_message": pa.array([fault.text for fault in faults], pa.string()),
        "error_time": pa.array([now] * len(faults), LETTER_COLUMNS.field("error_time").type),
        "error_batch": pa.nulls(len(faults), pa.string()),
    }
    for field in LETTER_COLUMNS:
        rows = rows.append_column(field, found[field.name])
    return rows


def _name_status(status: int) -> str:
    return name_status(status) if status >= 0 else "NO_ANSWER"


def claim_directory(directory: LakePath, checkpoint: str) -> str:
    """Keep a directory for one streaming query.

    The batches of two queries have the same numbers, so the commit of one would remove dead letters of the other.

    Args:
        directory: the directory of dead letters.
        checkpoint: the location of the query's checkpoint.

    Returns:
        The name of the staging directory of all runs of the query.

    Raises:
        UsageError: the directory belongs to another query.
    """
    owner = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
    if not create_document(directory / _OWNER, owner) and (found := (directory / _OWNER).read_text()) != owner:
        raise UsageError(
            f"deadLetterPath {directory} has the refused rows of the query with checkpoint {found!r}, expected a"
            f" directory of its own for the query with checkpoint {owner!r}"
        )
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def commit_letters(directory: LakePath, run: str, batch: str, files: Sequence[LakePath]) -> None:
    """Move the files of tasks to the names of a batch.

    A repeated batch calls this again with files of another run.

    Args:
        directory: the directory of dead letters.
        run: the name of the staging directory of all tasks. Its parent, if it has one, is that of all runs of a query.
        batch: the batch, for file names and the column error_batch.
        files: the files of the tasks.
    """
    named = []
    for number, path in enumerate(files):
        with open_parquet(path) as file:
            rows = file.read()
        at = rows.schema.get_field_index("error_batch")
        rows = rows.set_column(at, LETTER_COLUMNS.field("error_batch"), pa.repeat(pa.scalar(batch), rows.num_rows))
        whole = path.parent / f"{path.stem}.whole"
        sink = open_sink(whole)
        pq.write_table(rows, sink, compression="zstd")
        close_sink(sink)
        named.append((whole, directory / f"batch-{batch}-part-{number:05}.parquet"))
    for whole, final in named:
        replace_file(whole, final)
    kept = {final for _, final in named}
    if directory.is_dir():
        for old in directory.glob(f"batch-{batch}-part-*.parquet"):
            if old not in kept:
                old.unlink(missing_ok=True)
    _remove_staging(directory, run.partition("/")[0])  # with the files of runs that were killed


def discard_letters(directory: LakePath, run: str) -> None:
    """Remove the staged files of a failed batch. Files that an earlier attempt has committed stay."""
    _remove_staging(directory, run)


def _remove_staging(directory: LakePath, run: str) -> None:
    staging = directory / _STAGING
    if isinstance(staging, ObjectPath):
        (staging / run).remove_tree()
        return
    shutil.rmtree(staging / run, ignore_errors=True)
    if staging.is_dir() and not any(staging.iterdir()):
        staging.rmdir()
