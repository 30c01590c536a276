"""The directory of a lake: a pipeline's tables, `changelog` and `current`, and its query's checkpoint.

Spark names a query by the id in its checkpoint's metadata. The changelog's commits carry that id, so a lake is known to
belong to a query whatever the two directories are called and wherever they are moved.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from penstock.errors import LakeRefused, UsageError
from penstock.spark.lake.tables import plain_manifests
from penstock.spark.lake.tables.delta_table import LakeTable
from penstock.spark.lake.tables.schemas import CHANGELOG_SCHEMA, CURRENT_SCHEMA

# Opening a table reads its newest checkpoint and the commits after that, and lists the log's directory: both stay
# short. A version that is not merged into `current` when its log entry expires costs a merge of the whole changelog.
# A removed file is remembered for longer than vacuum keeps it, which removes only remembered files.
CHANGELOG_PROPERTIES = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 6 hours",
    "delta.deletedFileRetentionDuration": "interval 2 hours",
}
# Every merge rewrites files, and the log remembers a removed file for this long.
CURRENT_PROPERTIES = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 5 minutes",
}


class LakeDirectory:
    """The places in a lake's directory: tables and checkpoint. Raises UsageError if `path` cannot be a local directory.

    Attributes:
        path: the lake's directory, absolute.
        checkpoint: the directory of the query's checkpoint.
        changelog_table: the changelog as a Delta table.
        current_table: the current table.
    """

    def __init__(self, path: str | Path) -> None:
        text = str(path)
        if not text or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
            raise UsageError(f"the lake is {text!r}; expected a directory on this machine, such as ./lake")
        self.path = Path(text).expanduser().absolute()
        if re.search(r"\\|%[0-9A-Fa-f]{2}", str(self.path)):
            raise UsageError(f"the lake is {self.path}; expected a path without backslashes and percent escapes")
        self.checkpoint = self.path / "_checkpoint"
        self.changelog_table = LakeTable(self.path / "changelog", CHANGELOG_SCHEMA, CHANGELOG_PROPERTIES)
        self.current_table = LakeTable(self.path / "current", CURRENT_SCHEMA, CURRENT_PROPERTIES)

    def query_id(self) -> str | None:
        """Return the id of the query whose checkpoint lies in the lake, or None if there is no checkpoint."""
        return query_id(self.checkpoint)

    def check_owner(self, table_format: str = "delta") -> None:
        """Make the directory, and raise LakeRefused unless checkpoint and changelog belong together.

        They do if one query wrote both and every batch whose end the checkpoint knows is in the changelog, and every
        batch there is known to the checkpoint: of a batch planned anew that counts as written, rows would be lost.
        table_format: delta, or parquet for a changelog of plain files.
        Raises UsageError if the directory cannot be made or holds something else in a table's place.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be made a lake's directory: {error.strerror}") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UsageError(f"{self.path} cannot be written; expected a directory of one's own")
        query = self.query_id()
        exists, written = self._written(query, table_format)
        table, remedy = self.changelog_table.path, f"remove {self.path} to begin anew, or choose another directory"
        if exists and query is None:
            raise LakeRefused(f"{table} was written by a query whose checkpoint {self.checkpoint} is gone: {remedy}")
        if exists and written is None:
            raise LakeRefused(f"{table} was not written by the query of {self.checkpoint}: {remedy}")
        ended, planned = _newest(self.checkpoint / "commits"), _newest(self.checkpoint / "offsets")
        batch = -1 if written is None else written
        if not ended <= batch <= planned:
            raise LakeRefused(
                f"{table} ends with batch {batch}, and {self.checkpoint} knows {ended} to have ended and {planned}"
                f" to have begun, so one of them is an old copy: {remedy}"
            )

    def _written(self, query: str | None, table_format: str) -> tuple[bool, int | None]:
        """Return whether there is a changelog, and the newest batch in it, None unless that query wrote it."""
        if table_format == "parquet":
            found = plain_manifests.written_by(self.changelog_table.path)
            return found is not None, found[1] if found is not None and found[0] == query else None
        changelog = self.changelog_table.open()
        self.current_table.open()
        if changelog is None:
            return False, None
        return True, changelog.transaction_version(query) if query is not None else None


def query_id(checkpoint: Path) -> str | None:
    """Return the id in a Spark checkpoint's metadata, or None if there is none. Raises UsageError if it is broken."""
    path = checkpoint / "metadata"
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds {text[:80]!r}; expected a Spark query's metadata with its id") from error


def _newest(log: Path) -> int:
    """Return the newest batch in one of a checkpoint's logs, or -1. Spark logs a batch before it runs, and after."""
    names = [entry.name for entry in log.iterdir()] if log.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)
