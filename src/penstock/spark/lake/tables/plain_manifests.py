"""Manifests of a changelog of plain Parquet files: each names the files of one batch."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import UsageError
from penstock.spark.storage.object_path import LakePath

BATCHES = "_batches"
"""The directory of the manifests."""


def find_newest_batch(root: LakePath) -> int | None:
    """Return the newest batch in the changelog at `root`, None if there is none."""
    directory = root / BATCHES
    names = [entry.stem for entry in directory.glob("*.json")] if directory.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=None)


def list_files(root: LakePath, batch_id: int) -> list[tuple[str, int]]:
    """Return path and number of rows of each file of a batch; paths are relative to the changelog at `root`."""
    return [(path, rows) for path, rows in read_manifest(root, batch_id)["files"]]


def find_writer(root: LakePath) -> tuple[str, int] | None:
    """Return the query that wrote the changelog at `root`, and its newest batch; None if there is no changelog.

    Returns:
        The query's id and the number of the batch.

    Raises:
        UsageError: the path holds something else.
    """
    newest = find_newest_batch(root)
    if newest is not None:
        return str(read_manifest(root, newest)["query"]), newest
    if root.exists() and (not root.is_dir() or (root / "_delta_log").exists()):
        raise UsageError(f"{root} is a file or a Delta table; expected a changelog of plain Parquet files, or nothing")
    return None


def locate_manifest(root: LakePath, batch_id: int) -> LakePath:
    """Return the path of a batch's manifest. The number has leading zeros, so that names sort by batch."""
    return root / BATCHES / f"{batch_id:020d}.json"


def read_manifest(root: LakePath, batch_id: int) -> dict[str, Any]:
    """Return the content of a batch's manifest."""
    found: dict[str, Any] = json.loads(locate_manifest(root, batch_id).read_text())
    return found
