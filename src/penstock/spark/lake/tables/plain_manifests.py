"""The batches of a changelog of plain Parquet files: one manifest a batch, which names the batch's files."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from penstock.errors import UsageError

__all__ = ["create_file", "files_of", "manifest_path", "newest_batch", "read_manifest", "written_by"]

BATCHES = "_batches"


def newest_batch(root: Path) -> int | None:
    """Return the newest batch in the changelog at `root`, None if there is none."""
    directory = root / BATCHES
    names = [entry.stem for entry in directory.glob("*.json")] if directory.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=None)


def files_of(root: Path, batch_id: int) -> list[tuple[str, int]]:
    """Return path, relative to the changelog at `root`, and rows of each file of a batch that is in it."""
    return [(path, rows) for path, rows in read_manifest(root, batch_id)["files"]]


def written_by(root: Path) -> tuple[str, int] | None:
    """Return the query that wrote the changelog at `root`, and its newest batch; None if there is nothing.

    Raises UsageError if something else is there.
    """
    newest = newest_batch(root)
    if newest is not None:
        return str(read_manifest(root, newest)["query"]), newest
    if root.exists() and (not root.is_dir() or (root / "_delta_log").exists()):
        raise UsageError(f"{root} is a file or a Delta table; expected a changelog of plain Parquet files, or nothing")
    return None


def manifest_path(root: Path, batch_id: int) -> Path:
    return root / BATCHES / f"{batch_id:020d}.json"


def read_manifest(root: Path, batch_id: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(manifest_path(root, batch_id).read_text())
    return found


def create_file(path: Path, text: str) -> bool:
    """Make a file, whole and on disk; return False if it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{uuid.uuid4().hex}.draft")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
