"""The changelog, written exactly once per micro-batch.

Tasks write the batch's rows into new files. One Delta commit on the driver then makes them part of the table and
records (query id, batch id), so that a batch that is run again after a crash is recognised: its commit does nothing but
remove the files of the second attempt. Up to that commit, nothing that was written counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.errors import LakeRefused
from penstock.spark.lake.tables.delta_table import RANGES, DataFile, RangeWriter
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.wire.columns.schema import CHANGE_SCHEMA

POOL_BYTES = 64 << 20
"""What a task holds in memory, over all ranges, before it writes a row group that is not full."""


GATHERED_ROWS, GATHERED_BYTES = 16_384, 16 << 20
"""What is cut into ranges at once, about: to do so costs a batch more than its rows."""

VBUCKETS = "penstock.vbuckets"
"""The key, in the table's metadata of `vbucket_range`, of the bucket's number of vbuckets."""


def vbucket_ranges(vbuckets: pa.Array, count: int) -> np.ndarray:
    """Return the range, 0 to 15, of each of `vbuckets`, out of `count` in the bucket."""
    return np.asarray(vbuckets).astype(np.int64) * RANGES // count


def split(batch: pa.RecordBatch, vbuckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a batch into its vbucket ranges; rows of one range keep their order."""
    if not batch.num_rows:
        return
    ranges = vbucket_ranges(batch["vbucket"], vbuckets)
    if (np.diff(ranges) < 0).any():
        order = np.argsort(ranges, kind="stable")
        batch, ranges = batch.take(pa.array(order)), ranges[order]
    starts = [0, *(np.flatnonzero(np.diff(ranges)) + 1).tolist(), len(ranges)]
    for start, end in pairwise(starts):
        yield int(ranges[start]), batch.slice(start, end - start)


def write_files(batches: Iterable[pa.RecordBatch], root: Path, vbuckets: int) -> list[DataFile]:
    """Write rows of CHANGE_SCHEMA into new files of the changelog at `root`; none is in the table yet.

    vbuckets: how many the bucket has. If this raises, it has removed its files.
    """
    writers: dict[int, RangeWriter] = {}
    with ExitStack() as stack:
        for batch in _gathered(batches):
            for part, rows in split(batch, vbuckets):
                if part not in writers:
                    writers[part] = stack.enter_context(RangeWriter(root, part, CHANGE_SCHEMA))
                writers[part].write(pa.Table.from_batches([_in_order(rows)]))
            while sum(writer.pending_bytes for writer in writers.values()) > POOL_BYTES:
                max(writers.values(), key=lambda writer: writer.pending_bytes).flush()
        return [file for writer in writers.values() for file in writer.close()]


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the same rows in fewer batches: Spark hands them over a few hundred at a time."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        nbytes += batch.get_total_buffer_size()
        if rows >= GATHERED_ROWS or nbytes >= GATHERED_BYTES:
            yield pa.concat_batches(held)
            held, rows, nbytes = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows if rows.schema.equals(CHANGE_SCHEMA) else rows.select(CHANGE_SCHEMA.names).cast(CHANGE_SCHEMA)


def commit(lake: LakeDirectory, query: str, batch_id: int, files: Sequence[DataFile], *, vbuckets: int) -> bool:
    """Make a batch's files part of the changelog; return False, and remove them, if that batch is in it already.

    vbuckets: as for `write_files`. Raises LakeRefused if another query wrote the changelog, or for a bucket of another
    size.
    """
    table = lake.changelog_table.open()
    if table is not None:
        _check(lake, table, query, vbuckets)
    if not _holds(table, query, batch_id):
        try:
            lake.changelog_table.commit(table, (query, batch_id), files, note={VBUCKETS: str(vbuckets)})
            return True
        except DeltaError:
            # Another process may have come first with the same batch: a driver that was thought dead.
            if not _holds(lake.changelog_table.open(), query, batch_id):
                raise
    abort(lake, files)
    return False


def append_changes(
    lake: LakeDirectory, query: str, batch_id: int, batches: Iterable[pa.RecordBatch], *, vbuckets: int
) -> bool:
    """Write changes to the changelog as one batch, without Spark; return False if the changelog has that batch.

    Args:
        lake: where the changelog is, or will be.
        query: the name of the writer; a changelog has one.
        batch_id: the number of the batch, rising.
        batches: rows of CHANGE_SCHEMA, as `read_changes` gives them.
        vbuckets: how many the bucket has.

    Raises:
        LakeRefused: another writer wrote the changelog, or the bucket has another size.
    """
    return commit(lake, query, batch_id, write_files(batches, lake.changelog_table.path, vbuckets), vbuckets=vbuckets)


def abort(lake: LakeDirectory, files: Sequence[DataFile]) -> None:
    """Remove those of `files` that are not in the table.

    Spark aborts also a batch whose commit raised after it had landed, and hands over the very files that are now the
    table's: the table decides, never the caller.
    """
    lake.changelog_table.abandon(files)


def _check(lake: LakeDirectory, table: DeltaTable, query: str, vbuckets: int) -> None:
    if table.transaction_version(query) is None:
        raise LakeRefused(f"{lake.changelog_table.path} was written by another query; choose another directory")
    before = table.schema().fields[-1].metadata.get(VBUCKETS)
    if before != str(vbuckets):
        # The same vbucket would fall into two ranges, and its documents twice into the current table.
        raise LakeRefused(
            f"{lake.changelog_table.path} is that of a bucket with {before} vbuckets, and this one has {vbuckets};"
            " choose another directory"
        )


def _holds(table: DeltaTable | None, query: str, batch_id: int) -> bool:
    newest = table.transaction_version(query) if table is not None else None
    return newest is not None and newest >= batch_id
