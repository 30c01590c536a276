"""The changelog as plain Parquet files, for readers without Delta: `changelog/vbucket_range=N/*.parquet`.

Tasks write files into a separate directory, `_pending`. The commit of a batch creates one manifest,
`changelog/_batches/BATCH.json`, which names the files of the batch. Then the files move to the directories that readers
list. A batch that runs again finds its manifest. It moves the files that a crash left in `_pending`, and adds nothing.

Plain files have no versions. So there is no current table, no index and no view: all of these need versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import LakeRefused
from penstock.spark.lake.tables.data_files import DataFile, remove_files
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.plain_manifests import (
    create_file,
    find_newest_batch,
    find_writer,
    locate_manifest,
    read_manifest,
)

KEPT_BATCHES = 100
"""Manifests that stay on disk. All files of a batch are in place before Spark starts the next batch."""


def locate_pending(lake: LakeDirectory) -> Path:
    """Return the directory for files of batches that are not committed."""
    return lake.path / "_pending"


def commit_batch(lake: LakeDirectory, query: str, batch_id: int, files: Sequence[DataFile], *, vbuckets: int) -> bool:
    """Add a batch's files to the changelog.

    If the changelog has the batch already, the files are removed. Raises LakeRefused if another query wrote the
    changelog, or for a bucket of another size. Raises UsageError if the directory holds something else.

    Args:
        lake: the lake of the changelog.
        query: the id of the query.
        batch_id: the number of the batch, rising.
        files: the files of the batch, in the pending directory.
        vbuckets: number of vbuckets in the bucket.

    Returns:
        False if the changelog has the batch already.
    """
    root = lake.changelog_table.path
    writer = find_writer(root)
    newest = writer[1] if writer is not None else None
    if newest is not None:
        _check_manifest(root, read_manifest(root, newest), query, vbuckets)
    content = {"query": query, "vbuckets": vbuckets, "files": [[file.path, file.rows] for file in files]}
    if (newest is None or newest < batch_id) and create_file(locate_manifest(root, batch_id), json.dumps(content)):
        _publish_batch(lake, batch_id)
        locate_manifest(root, batch_id - KEPT_BATCHES).unlink(missing_ok=True)
        return True
    abort_batch(lake, files)
    # An earlier attempt may have ended between its manifest and the move of its files.
    _publish_batch(lake, batch_id if newest is None else max(newest, batch_id))
    return False


def abort_batch(lake: LakeDirectory, files: Iterable[DataFile]) -> None:
    """Remove the given files unless a manifest names them: Spark may abort a batch whose commit has landed."""
    root = lake.changelog_table.path
    newest = find_newest_batch(root)
    named = {path for path, _ in read_manifest(root, newest)["files"]} if newest is not None else set()
    remove_files(locate_pending(lake), [file for file in files if file.path not in named])


def _check_manifest(root: Path, manifest: dict[str, Any], query: str, vbuckets: int) -> None:
    """Check that this query wrote the changelog, for a bucket of the same size.

    Raises:
        LakeRefused: another query wrote it, or the number of vbuckets differs.
    """
    if manifest["query"] != query:
        raise LakeRefused(f"{root} was written by another query; choose another directory")
    if manifest["vbuckets"] != vbuckets:
        raise LakeRefused(
            f"{root} is that of a bucket with {manifest['vbuckets']} vbuckets, and this one has {vbuckets};"
            " choose another directory"
        )


def _publish_batch(lake: LakeDirectory, batch_id: int) -> None:
    """Move the files of a batch to the directories that readers list, if they are not there yet."""
    root = lake.changelog_table.path
    for path, _ in read_manifest(root, batch_id)["files"]:
        (root / path).parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # an earlier attempt has moved this file
            (locate_pending(lake) / path).rename(root / path)
