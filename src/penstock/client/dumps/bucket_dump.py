"""Dumps of a bucket: its changes up to now in a file, continued after a kill."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.client.bucket import Bucket
from penstock.client.consumers.commit_policy import CommitPolicy
from penstock.client.consumers.consumer import Consumer
from penstock.client.documents.window_writer import divide_into_windows
from penstock.client.dumps.dump_formats import DumpFormat
from penstock.client.dumps.partial_dump import PartialDump
from penstock.client.filters.unreadable_changes import UnreadableChanges
from penstock.client.streams.stream_choice import ChangeOptions, FirstStart
from penstock.errors import Error, UsageError
from penstock.store.disk.bucket_files import Directory

_COMMIT = CommitPolicy(changes=200_000, seconds=1.0, idle_seconds=1.0)


class TransferProgress(NamedTuple):
    """The progress of a dump or a restore.

    Attributes:
        rows: the changes so far.
        done: the part that is done, in any unit.
        total: all of it, in the same unit.
    """

    rows: int
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpChoice:
    """The changes of a dump.

    Attributes:
        start: where to start.
        vbuckets: the vbuckets; None for all.
        options: the options of the stream.
    """

    start: FirstStart = "beginning"
    vbuckets: tuple[int, ...] | None = None
    options: ChangeOptions

    def describe(self) -> dict[str, Any]:
        """Return the choice as JSON values. A dump only continues with the same choice."""
        described = {name: list(value) if isinstance(value, tuple) else value for name, value in self.options.items()}
        vbuckets = None if self.vbuckets is None else list(self.vbuckets)
        return {**described, "vbuckets": vbuckets, "start": str(self.start)}


class BucketDump:
    """Writes the changes of documents of a bucket into a file, up to the current end of the bucket.

    The file appears when the dump is complete. A process that was killed leaves `FILE.partial` and `FILE.positions`,
    and the next dump with the same arguments continues there. A document that changes meanwhile may have several rows
    in order; the last one is its newest version. Changes that a rollback makes void are left out.

    Args:
        bucket: the connected bucket.
        path: the file.
        file_format: its format.
        choice: the changes.
        is_replacing: whether to replace an existing file, and to start over instead of continuing a dump.

    Attributes:
        unreadable: the changes of this process whose documents the filter could not read. They are not in the file.
    """

    def __init__(
        self, bucket: Bucket, path: Path, file_format: DumpFormat, choice: DumpChoice, *, is_replacing: bool = False
    ) -> None:
        self._bucket = bucket
        self._path = path
        self._format = file_format
        self._choice = choice
        self._is_replacing = is_replacing
        self._consumer: Consumer | None = None
        self._first: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._written = 0
        self._partial: PartialDump | None = None
        self.unreadable = UnreadableChanges()

    @property
    def is_continued(self) -> bool:
        """Whether the dump has the rows of an earlier process."""
        return self._partial is not None and self._partial.is_continued

    @property
    def progress(self) -> TransferProgress:
        """The progress: the changes, and the seqnos that were passed."""
        rows = 0 if self._partial is None else self._partial.rows
        now = {} if self._consumer is None else self._consumer.positions
        first = self._first
        total = sum(max(end - first.get(vb, 0), 0) for vb, end in self._ends.items())
        done = sum(max(each.seqno - first.get(vb, 0), 0) for vb, each in now.items() if vb in self._ends)
        return TransferProgress(rows, min(done, total), total)

    async def run(self) -> int:
        """Write the dump, and return the number of its rows.

        Raises:
            UsageError: the file exists, another process writes it, or a partial dump has other arguments.
            Error, OSError: as Consumer raises them, and for files that cannot be written.
        """
        self._partial = partial = PartialDump(self._path, self._choice.describe())
        try:
            if self._is_replacing:
                await partial.discard()
            await self._collect(partial)
            await asyncio.to_thread(self._finish, partial)
            await partial.remove()
        finally:
            partial.close()
        return self._written

    async def _collect(self, partial: PartialDump) -> None:
        """Read the changes up to the current end of the bucket into the file of rows."""
        chosen, bucket = self._choice, self._bucket
        ends = await bucket.high_seqnos()
        self._ends = {vb: end for vb, end in ends.items() if chosen.vbuckets is None or vb in chosen.vbuckets}
        async with Consumer(
            bucket,
            partial,
            start=chosen.start,
            stop="now",
            vbuckets=chosen.vbuckets,
            commit=_COMMIT,
            **chosen.options,
        ) as consumer:
            if not partial.is_continued and self._path.exists() and not self._is_replacing:
                await partial.remove()
                raise UsageError(f"{self._path} exists, expected a new file; the option replace replaces it")
            self._first = {vb: each.seqno for vb, each in consumer.positions.items()}
            self._consumer = consumer
            async for batch in consumer.batches():
                partial.append(batch)
            if chosen.options.get("filter_value") is not None:
                self.unreadable = (await consumer.report()).counts.unreadable

    def _finish(self, partial: PartialDump) -> None:
        """Write the file in its format, and give it its name when it is on disk."""
        draft = self._path.with_name(f".{self._path.name}.new")
        try:
            self._format.write(draft, self._count_rows(divide_into_windows(partial.read_batches())))
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(self._path)
            Directory(self._path.parent).sync_names()
        except OSError as error:
            raise Error(f"{self._path} cannot be written: {error.strerror or error}") from error

    def _count_rows(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self._written += table.num_rows
            yield table
