"""Restores of dumps: their changes, with metadata, in a bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock.client.bucket import Bucket
from penstock.client.documents.bulk import BulkWriter
from penstock.client.documents.meta_requests import prepare_meta_writes
from penstock.client.documents.window_writer import AcceptedStatuses, WindowResult, WindowWriter
from penstock.client.dumps.bucket_dump import TransferProgress
from penstock.client.dumps.dump_formats import DumpFormat
from penstock.errors import UsageError

_MOST_EXAMPLES = 10


@dataclass(slots=True)
class RestoreCounts:
    """The numbers of a restore.

    Attributes:
        rows: the changes in the file.
        written: changes that the bucket has stored.
        kept: changes of documents whose version in the bucket is as new or newer.
        missing: deletions of documents that the bucket did not have.
        refused: changes that the bucket refused for another reason.
        refusals: key and reason of the first refused changes.
    """

    rows: int = 0
    written: int = 0
    kept: int = 0
    missing: int = 0
    refused: int = 0
    refusals: list[str] = field(default_factory=list)


class BucketRestore:
    """Writes the changes of a dump into a bucket, with their metadata.

    The bucket compares each version with its own, and keeps the newer one. So a second restore changes nothing.

    Args:
        bucket: the connected bucket.
        path: the file.
        file_format: its format.
        is_forced: whether the version in the file always replaces that in the bucket.

    Attributes:
        counts: the numbers so far.
    """

    def __init__(self, bucket: Bucket, path: Path, file_format: DumpFormat, *, is_forced: bool = False) -> None:
        self.counts = RestoreCounts()
        self._bucket = bucket
        self._path = path
        self._format = file_format
        self._is_forced = is_forced
        self._done = self._size = 0

    @property
    def progress(self) -> TransferProgress:
        """The progress: the changes, and the part of the file that was read."""
        return TransferProgress(self.counts.rows, self._done, self._size)

    async def run(self) -> RestoreCounts:
        """Write all changes. The counts are complete then.

        Raises:
            UsageError: the file cannot be read, or is no dump.
            UnknownCollection, UnknownScope: the bucket does not have a collection of the file.
            Error, OSError: as BulkWriter.write raises them.
        """
        try:
            batches, self._size = self._format.read(self._path)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read: {error.strerror or error}, expected a dump") from error
        config = await self._bucket.stats("config")
        prepare = partial(
            prepare_meta_writes,
            conflict_resolution=config.get("ep_conflict_resolution_type", "seqno"),
            is_forced=self._is_forced,
        )
        async with BulkWriter(self._bucket.address) as bulk:
            writer = WindowWriter(bulk, prepare, accepted=AcceptedStatuses(missing=True, older=True))
            try:
                await self._write(writer, batches)
            finally:
                await writer.close()
        return self.counts

    async def _write(self, writer: WindowWriter, batches: Iterator[tuple[pa.RecordBatch, int]]) -> None:
        while (found := await asyncio.to_thread(next, batches, None)) is not None:
            batch, done = found
            if batch.num_rows:
                self._count(await writer.submit(pa.Table.from_batches([batch])))
            self.counts.rows += batch.num_rows
            self._done = done
        self._count(await writer.finish())

    def _count(self, result: WindowResult | None) -> None:
        if result is None:
            return
        found = result.counts
        counts = self.counts
        counts.written += found.written
        counts.kept += found.older
        counts.missing += found.missing
        counts.refused += found.failed
        if result.refused is not None and len(counts.refusals) < _MOST_EXAMPLES:
            counts.refusals += result.refused.describe(_MOST_EXAMPLES - len(counts.refusals))
