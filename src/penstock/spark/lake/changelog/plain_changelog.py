"""The changelog as plain Parquet files, for who wants no Delta: `changelog/vbucket_range=N/*.parquet` and nothing else.

Tasks write files into a directory of their own, `_pending`. The commit of a batch is one manifest,
`changelog/_batches/BATCH.json`, which names its files and is made once or not at all; then they move to where readers
look. A batch that is run again finds its manifest, moves the files if a crash came between, and adds nothing.

There are no versions here: no current table, no indexes and no views, which all need to know what came when.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import LakeRefused
from penstock.spark.lake.tables.delta_table import DataFile, discard
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.plain_manifests import (
    create_file,
    manifest_path,
    newest_batch,
    read_manifest,
    written_by,
)

KEPT_BATCHES = 100
"""Manifests that stay. All files of a batch have their names before Spark begins the next one."""


def pending(lake: LakeDirectory) -> Path:
    """Return the directory for files of batches that are not committed."""
    return lake.path / "_pending"


def commit(lake: LakeDirectory, query: str, batch_id: int, files: Sequence[DataFile], *, vbuckets: int) -> bool:
    """Make a batch's files part of the changelog; return False, and remove them, if that batch is in it already.

    files: in `pending`. vbuckets: how many the bucket has. Raises LakeRefused if another
    query wrote the changelog, or for a bucket of another size; UsageError if something else is there.
    """
    root = lake.changelog_table.path
    found = written_by(root)
    newest = found[1] if found is not None else None
    if newest is not None:
        _check(root, read_manifest(root, newest), query, vbuckets)
    content = {"query": query, "vbuckets": vbuckets, "files": [[file.path, file.rows] for file in files]}
    if (newest is None or newest < batch_id) and create_file(manifest_path(root, batch_id), json.dumps(content)):
        _publish(lake, batch_id)
        manifest_path(root, batch_id - KEPT_BATCHES).unlink(missing_ok=True)
        return True
    abort(lake, files)
    _publish(lake, batch_id if newest is None else max(newest, batch_id))
    return False


def abort(lake: LakeDirectory, files: Iterable[DataFile]) -> None:
    """Remove those of `files` that no manifest names: Spark may abort a batch whose commit has landed."""
    root = lake.changelog_table.path
    newest = newest_batch(root)
    named = {path for path, _ in read_manifest(root, newest)["files"]} if newest is not None else set()
    discard(pending(lake), [file for file in files if file.path not in named])


def _check(root: Path, manifest: dict[str, Any], query: str, vbuckets: int) -> None:
    if manifest["query"] != query:
        raise LakeRefused(f"{root} was written by another query; choose another directory")
    if manifest["vbuckets"] != vbuckets:
        raise LakeRefused(
            f"{root} is that of a bucket with {manifest['vbuckets']} vbuckets, and this one has {vbuckets};"
            " choose another directory"
        )


def _publish(lake: LakeDirectory, batch_id: int) -> None:
    """Move a batch's files to where readers look, as far as they are not there yet."""
    root = lake.changelog_table.path
    for path, _ in read_manifest(root, batch_id)["files"]:
        (root / path).parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            (pending(lake) / path).rename(root / path)
