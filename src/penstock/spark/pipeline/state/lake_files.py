"""The files of a lake: the one table of all files that the product writes there. Reset, erasure and vacuum use it.

A test runs a pipeline with files of all kinds, and fails for a file that no row explains.
"""

from __future__ import annotations

import fnmatch
import time
from dataclasses import dataclass

from penstock.spark.dependents.registry import list_kinds
from penstock.spark.lake.changelog.found_collections import COLLECTIONS
from penstock.spark.lake.changelog.idle_positions import IDLE_POSITIONS
from penstock.spark.lake.current.typed_table import DIRECTORY
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.iceberg.iceberg_catalog import MARKER, OWN_CATALOG
from penstock.spark.lake.tables.lake_lock import LOCK_NAME
from penstock.spark.storage.object_path import LakePath

ERASURE = "_erasure.parquet"
"""The file in the lake with the documents of an erasure that has not ended."""
REMOVED_PREFIX = "_reset-"
"""The prefix of files that are being removed. If a crash leaves some of them, the next reset removes them."""

DRAFTS = ".*.draft"


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file or a directory of a lake.

    Attributes:
        pattern: its name in the lake; `*` stands for any text.
        content: its content.
        documents: the parts of documents that it may hold: "all", "keys", "names of fields", or "none".
        erasure: how an erasure removes these parts; empty if there are none.
        is_backed_up: whether a copy of the lake needs it.
        is_run_file: whether a reset of the whole lake removes it beside tables and dependents.
    """

    pattern: str
    content: str
    documents: str = "none"
    erasure: str = ""
    is_backed_up: bool = True
    is_run_file: bool = True


_TABLE = "rewrites the files; vacuum removes the old ones"

_FILES = (
    LakeFile("changelog", "the changelog", "all", _TABLE, is_run_file=False),
    LakeFile("current", "the current table", "all", _TABLE, is_run_file=False),
    LakeFile(DIRECTORY, "the typed tables", "all", _TABLE, is_run_file=False),
    LakeFile("_checkpoint", "Spark's checkpoint: positions of the query"),
    LakeFile("_pending", "plain Parquet files of a batch that is not committed", "all", "vacuum removes them"),
    LakeFile("_schema.json", "the inferred fields of values", "names of fields", "keeps it: a later run needs it"),
    LakeFile("_content.json", "the options that decide about the rows"),
    LakeFile(COLLECTIONS, "the collections of the changelog, for inferred tables"),
    LakeFile(IDLE_POSITIONS, "the positions of tables without changes since their last commit"),
    LakeFile("_run.json", "state and last error of the newest run", "all", "removes the errors", is_backed_up=False),
    LakeFile("_stop", "the request to end a run", is_backed_up=False),
    LakeFile("_resnapshot.json", "requests to read vbuckets again"),
    LakeFile(ERASURE, "an erasure that has not ended", "keys", "removes it at its end"),
    LakeFile(f"{ERASURE}.draft", "the same, while it is written", "keys", "removes it at its end", is_backed_up=False),
    LakeFile(MARKER, "the catalog of Iceberg tables"),
    LakeFile(OWN_CATALOG, "the lake's own catalog of Iceberg tables"),
    LakeFile(f"{OWN_CATALOG}-*", "SQLite's files beside that catalog"),
    LakeFile(LOCK_NAME, "the lock of the lake, in an object store the lease", is_backed_up=False, is_run_file=False),
    LakeFile(f"{REMOVED_PREFIX}*", "files of a reset that was killed", "all", "removes them", is_backed_up=False),
    LakeFile(DRAFTS, "small files of a process that was killed", "all", "removes them", is_backed_up=False),
)


def list_lake_files() -> tuple[LakeFile, ...]:
    """Return all files and directories that a lake may have, with those of the dependents' kinds."""
    directories = dict.fromkeys(kind.directory for kind in list_kinds() if kind.directory != DIRECTORY)
    return _FILES + tuple(
        LakeFile(name, "indexes, and positions of sinks", "all", _TABLE, is_run_file=False) for name in directories
    )


def explain_file(name: str) -> LakeFile | None:
    """Return the row of a file or directory directly in a lake, None for a file of another program."""
    return next((each for each in list_lake_files() if fnmatch.fnmatchcase(name, each.pattern)), None)


def remove_drafts(lake: LakeDirectory, keep_hours: int = 0) -> None:
    """Remove the small files that killed processes have left.

    Args:
        lake: the lake. Without `keep_hours` the caller holds its lock.
        keep_hours: hours since their last change; younger ones may belong to a running process.
    """
    before = time.time_ns() - keep_hours * 3600 * 10**9
    for draft in _list_drafts(lake):
        if draft.stat().st_mtime_ns <= before:
            draft.unlink(missing_ok=True)


def _list_drafts(lake: LakeDirectory) -> list[LakePath]:
    return [*lake.path.rglob(DRAFTS)]
