"""The changelog as plain Parquet files, for who wants no Delta: `changelog/vbucket_range=N/*.parquet` and nothing else.

Tasks write files into a directory of their own, `_pending`. The commit of a batch is one manifest,
`changelog/_batches/BATCH.json`, which names its files and is made once or not at all; then they move to where readers
look. A batch that is run again finds its manifest, moves the files if a crash came between, and adds nothing.

There are no versions here: no current table, no indexes and no views, which all need to know what came when.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import LakeRefused, UsageError
from penstock.spark.lake.delta import DataFile, discard

if TYPE_CHECKING:
    from penstock.spark.lake.tables import Lake

BATCHES = "_batches"
KEPT_BATCHES = 100
"""Manifests that stay. All files of a batch have their names before Spark begins the next one."""


def pending(lake: Lake) -> Path:
    """Return the directory for files of batches that are not committed."""
    return lake.path / "_pending"


def commit(lake: Lake, query: str, batch_id: int, files: Sequence[DataFile], *, vbuckets: int) -> bool:
    """Make a batch's files part of the changelog; return False, and remove them, if that batch is in it already.

    files: in `pending`. vbuckets: how many the bucket has. Raises LakeRefused if another
    query wrote the changelog, or for a bucket of another size; UsageError if something else is there.
    """
    root = lake.changelog_table.path
    found = written_by(root)
    newest = found[1] if found is not None else None
    if newest is not None:
        _check(root, _manifest(root, newest), query, vbuckets)
    content = {"query": query, "vbuckets": vbuckets, "files": [[file.path, file.rows] for file in files]}
    if (newest is None or newest < batch_id) and _create(_path(root, batch_id), json.dumps(content)):
        _publish(lake, batch_id)
        _path(root, batch_id - KEPT_BATCHES).unlink(missing_ok=True)
        return True
    abort(lake, files)
    _publish(lake, batch_id if newest is None else max(newest, batch_id))
    return False


def abort(lake: Lake, files: Iterable[DataFile]) -> None:
    """Remove those of `files` that no manifest names: Spark may abort a batch whose commit has landed."""
    root = lake.changelog_table.path
    newest = newest_batch(root)
    named = {path for path, _ in _manifest(root, newest)["files"]} if newest is not None else set()
    discard(pending(lake), [file for file in files if file.path not in named])


def newest_batch(root: Path) -> int | None:
    """Return the newest batch in the changelog at `root`, None if there is none."""
    directory = root / BATCHES
    names = [entry.stem for entry in directory.glob("*.json")] if directory.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=None)


def files_of(root: Path, batch_id: int) -> list[tuple[str, int]]:
    """Return path, relative to the changelog at `root`, and rows of each file of a batch that is in it."""
    return [(path, rows) for path, rows in _manifest(root, batch_id)["files"]]


def written_by(root: Path) -> tuple[str, int] | None:
    """Return the query that wrote the changelog at `root`, and its newest batch; None if there is nothing.

    Raises UsageError if something else is there.
    """
    newest = newest_batch(root)
    if newest is not None:
        return str(_manifest(root, newest)["query"]), newest
    if root.exists() and (not root.is_dir() or (root / "_delta_log").exists()):
        raise UsageError(f"{root} is a file or a Delta table; expected a changelog of plain Parquet files, or nothing")
    return None


def _check(root: Path, manifest: dict[str, Any], query: str, vbuckets: int) -> None:
    if manifest["query"] != query:
        raise LakeRefused(f"{root} was written by another query; choose another directory")
    if manifest["vbuckets"] != vbuckets:
        raise LakeRefused(
            f"{root} is that of a bucket with {manifest['vbuckets']} vbuckets, and this one has {vbuckets};"
            " choose another directory"
        )


def _path(root: Path, batch_id: int) -> Path:
    return root / BATCHES / f"{batch_id:020d}.json"


def _manifest(root: Path, batch_id: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_path(root, batch_id).read_text())
    return found


def _create(path: Path, text: str) -> bool:
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


def _publish(lake: Lake, batch_id: int) -> None:
    """Move a batch's files to where readers look, as far as they are not there yet."""
    root = lake.changelog_table.path
    for path, _ in _manifest(root, batch_id)["files"]:
        (root / path).parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            (pending(lake) / path).rename(root / path)
