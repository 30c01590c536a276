"""The changelog writer: writes each micro-batch of a query to the changelog exactly once.

Tasks write the rows of a batch into new files. Then one commit on the driver adds the files to the table, and records
the query id and the batch id. A batch that runs again after a crash is recognised by these ids. Its commit
changes nothing and removes the files of the second attempt. Files that no commit names are not part of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.errors import LakeRefused
from penstock.spark.lake.tables.data_files import DataFile, RangeWriter
from penstock.spark.lake.tables.delta_table import RANGE_COUNT
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import CommitFailed, TableVersion
from penstock.spark.storage.object_path import LakePath
from penstock.wire.columns.schema import CHANGE_SCHEMA

POOL_BYTES = 64 << 20
"""Bytes that a task holds in memory over all ranges; above that it writes a row group that is not full."""


GATHERED_ROWS, GATHERED_BYTES = 16_384, 16 << 20
"""Rows, and about how many bytes, that are divided into ranges at once. Per call, dividing costs more than per row."""

VBUCKETS = "penstock.vbuckets"
"""The changelog's note for the number of vbuckets of the bucket."""


def compute_ranges(vbuckets: pa.Array, count: int) -> np.ndarray:
    """Return the range of each vbucket, 0 to 15, in a bucket with `count` vbuckets."""
    return np.asarray(vbuckets).astype(np.int64) * RANGE_COUNT // count


def split_by_range(batch: pa.RecordBatch, vbuckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a batch by vbucket range; rows of one range keep their order."""
    if not batch.num_rows:
        return
    ranges = compute_ranges(batch["vbucket"], vbuckets)
    if (np.diff(ranges) < 0).any():
        order = np.argsort(ranges, kind="stable")
        batch, ranges = batch.take(pa.array(order)), ranges[order]
    starts = [0, *(np.flatnonzero(np.diff(ranges)) + 1).tolist(), len(ranges)]
    for start, end in pairwise(starts):
        yield int(ranges[start]), batch.slice(start, end - start)


def write_files(batches: Iterable[pa.RecordBatch], root: LakePath, vbuckets: int) -> list[DataFile]:
    """Write rows of CHANGE_SCHEMA into new files of the changelog at `root`. The files are not in the table yet.

    If this raises an error, the files were removed.

    Args:
        batches: the rows.
        root: the directory in which the table's files are written.
        vbuckets: number of vbuckets in the bucket.

    Returns:
        The finished files.
    """
    writers: dict[int, RangeWriter] = {}
    with ExitStack() as stack:
        for batch in _gather_batches(batches):
            for part, rows in split_by_range(batch, vbuckets):
                if part not in writers:
                    writers[part] = stack.enter_context(RangeWriter(root, part, CHANGE_SCHEMA))
                writers[part].write(pa.Table.from_batches([_match_schema(rows)]))
            while sum(writer.pending_bytes for writer in writers.values()) > POOL_BYTES:
                max(writers.values(), key=lambda writer: writer.pending_bytes).flush()
        return [file for writer in writers.values() for file in writer.close()]


def _gather_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches: Spark passes a few hundred rows at a time."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        nbytes += batch.get_total_buffer_size()
        if rows >= GATHERED_ROWS or nbytes >= GATHERED_BYTES:
            yield _join_batches(held)
            held, rows, nbytes = [], 0, 0
    if held:
        yield _join_batches(held)


def _join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the batches as one, a single one without a copy."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _match_schema(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with the columns and types of CHANGE_SCHEMA. Columns that were not read are null."""
    if rows.schema.equals(CHANGE_SCHEMA):
        return rows
    known = {*rows.schema.names}
    arrays = [
        rows[each.name].cast(each.type) if each.name in known else pa.nulls(rows.num_rows, each.type)
        for each in CHANGE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def commit_batch(lake: LakeDirectory, query: str, batch_id: int, files: Sequence[DataFile], *, vbuckets: int) -> bool:
    """Add a batch's files to the changelog.

    If the changelog has the batch already, the files are removed. Raises LakeRefused if another query wrote the
    changelog, if another program changed its rows, or if the bucket has another number of vbuckets. Raises UsageError
    if the directory holds something else.

    Args:
        lake: the lake of the changelog.
        query: the id of the query.
        batch_id: the number of the batch, rising.
        files: the files of the batch, as `write_files` returns them.
        vbuckets: number of vbuckets in the bucket.

    Returns:
        False if the changelog has the batch already.

    Raises:
        CommitFailed: the commit failed, and no other process has committed the batch.
    """
    table = lake.changelog_table.open()
    if table is not None:
        _check_writer(lake, table, query, vbuckets)
        lake.changelog_table.refuse_foreign_changes(table)
    if not _has_batch(table, query, batch_id):
        try:
            lake.changelog_table.commit(table, (query, batch_id), files, notes={VBUCKETS: str(vbuckets)})
            return True
        except CommitFailed:
            # Another driver, which was believed dead, may have committed the same batch first.
            newest = lake.changelog_table.open()
            if not _has_batch(newest, query, batch_id):
                if newest is not None:
                    lake.changelog_table.refuse_foreign_changes(newest)
                raise
    abort_batch(lake, files)
    return False


@check_arguments
def append_changes(
    lake: LakeDirectory, query: str, batch_id: int, batches: Iterable[pa.RecordBatch], *, vbuckets: int
) -> bool:
    """Write changes to the changelog as one batch, without Spark.

    Raises LakeRefused if another writer wrote the changelog, or if the bucket has another number of vbuckets.

    Args:
        lake: the lake with the changelog. The first batch creates the changelog.
        query: the name of the writer; a changelog has one writer.
        batch_id: the number of the batch, rising.
        batches: rows of CHANGE_SCHEMA, as `read_changes` returns them.
        vbuckets: number of vbuckets in the bucket.

    Returns:
        False if the changelog has the batch already.
    """
    return commit_batch(
        lake, query, batch_id, write_files(batches, lake.changelog_table.write_root, vbuckets), vbuckets=vbuckets
    )


def abort_batch(lake: LakeDirectory, files: Sequence[DataFile]) -> None:
    """Remove the given files unless the table has them.

    Spark also aborts a batch whose commit has landed and then raised an error, and passes the files that the table now
    has. So the table decides which files are removed, not the caller.
    """
    lake.changelog_table.discard_uncommitted(files)


def _check_writer(lake: LakeDirectory, table: TableVersion, query: str, vbuckets: int) -> None:
    """Check that this query wrote the table, for a bucket of the same size.

    Raises:
        LakeRefused: another query wrote it, or the number of vbuckets differs.
    """
    if table.transaction_version(query) is None:
        raise LakeRefused(f"{lake.changelog_table.path} was written by another query; choose another directory")
    before = lake.changelog_table.read_note(table, VBUCKETS)
    if before != str(vbuckets):
        # A vbucket would belong to two ranges, and the current table would have its documents twice.
        raise LakeRefused(
            f"{lake.changelog_table.path} is that of a bucket with {before} vbuckets, and this one has {vbuckets};"
            " choose another directory"
        )


def _has_batch(table: TableVersion | None, query: str, batch_id: int) -> bool:
    """Return whether the table has a batch of the query."""
    newest = table.transaction_version(query) if table is not None else None
    return newest is not None and newest >= batch_id
