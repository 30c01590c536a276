"""A lake: the directory that holds a pipeline's tables, `changelog` and `current`, and its query's checkpoint.

Spark names a query by the id in its checkpoint's metadata. The changelog's commits carry that id, so a lake is known to
belong to a query whatever the two directories are called and wherever they are moved.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import LakeRefused, UsageError
from penstock.spark.lake import plain
from penstock.spark.lake.delta import Table
from penstock.spark.lake.schemas import CHANGELOG_SCHEMA, CURRENT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.documents.mutation_tokens import MutationToken
    from penstock.spark.lake.positions import LakePosition
    from penstock.spark.source.offsets import Offset

# Opening a table reads its newest checkpoint and the commits after that, and lists the log's directory: both stay
# short. A version that `current` has not folded when its log entry expires costs a fold of the whole changelog.
# A removed file is remembered for longer than upkeep keeps it, which removes only what is remembered.
CHANGELOG_PROPERTIES = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 6 hours",
    "delta.deletedFileRetentionDuration": "interval 2 hours",
}
# Every fold rewrites files, and the log remembers a removed file for this long.
CURRENT_PROPERTIES = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 5 minutes",
}


class Lake:
    """The places in a lake's directory. Raises UsageError if `path` cannot be a local directory."""

    def __init__(self, path: str | Path) -> None:
        text = str(path)
        if not text or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
            raise UsageError(f"the lake is {text!r}; expected a directory on this machine, such as ./lake")
        self.path = Path(text).expanduser().absolute()
        if re.search(r"\\|%[0-9A-Fa-f]{2}", str(self.path)):
            raise UsageError(f"the lake is {self.path}; expected a path without backslashes and percent escapes")
        self.checkpoint = self.path / "_checkpoint"
        self.changelog_table = Table(self.path / "changelog", CHANGELOG_SCHEMA, CHANGELOG_PROPERTIES)
        self.current_table = Table(self.path / "current", CURRENT_SCHEMA, CURRENT_PROPERTIES)

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
            found = plain.written_by(self.changelog_table.path)
            return found is not None, found[1] if found is not None and found[0] == query else None
        changelog = self.changelog_table.open()
        self.current_table.open()
        if changelog is None:
            return False, None
        return True, changelog.transaction_version(query) if query is not None else None

    def current(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        """Return the documents as of the changelog's newest version, in `columns` of CURRENT_COLUMNS, in no order.

        What the current table has not taken in yet is merged into what is read. where: an Arrow expression over these
        columns. Raises UsageError if the lake has no changelog.
        """
        from penstock.spark.lake import reading

        return reading.current(self, columns, where)

    def changelog(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        """Return the changelog's rows, in `columns` of CHANGE_SCHEMA, in no order; otherwise as `current`."""
        from penstock.spark.lake import reading

        return reading.changelog(self, columns, where)

    def current_frame(self, spark: SparkSession) -> DataFrame:
        """Return what `current` does as a Spark frame, of the tables as they are now.

        Its files are on disk for some minutes after a merge has replaced them; an action later than that fails, and
        the frame is made anew.
        """
        from penstock.spark.lake import frames

        return frames.current_frame(self, spark)

    def changelog_frame(self, spark: SparkSession) -> DataFrame:
        """Return the changelog as a Spark frame, of the table as it is now."""
        from penstock.spark.lake import frames

        return frames.changelog_frame(self, spark)

    def position(self, batch: int | None = None) -> LakePosition | None:
        """Return where the changelog ends, or ended with an older batch; None before its first batch.

        Raises UsageError for a batch that there is not, or that the checkpoint has forgotten.
        """
        from penstock.spark.lake import positions

        return positions.position(self, batch)

    def wait_for(self, tokens: Iterable[MutationToken], timeout: float = 60.0) -> None:
        """Return once both tables, as `current` and `changelog` read them, hold the writes that tokens stand for.

        tokens: of `Bucket.tokens`. timeout: seconds. Raises OperationTimeout after that, WriteLost at once for a write
        that was rolled back, UsageError for tokens of another bucket.
        """
        from penstock.spark.lake import positions

        positions.wait_for(self, tokens, timeout)

    def as_of(self, at: LakePosition | Offset | datetime) -> pa.Table:
        """Return the documents of a consistent state of the past, in CURRENT_COLUMNS and no order.

        Of each vbucket that is its newest boundary not behind the position, or that the changelog had at the time; see
        penstock.spark.lake.views.
        """
        from penstock.spark.lake import views

        return views.as_of(self, at)

    def as_of_frame(self, spark: SparkSession, at: LakePosition | Offset | datetime) -> DataFrame:
        """Return what `as_of` does as a Spark frame."""
        from penstock.spark.lake import views

        return views.as_of_frame(self, spark, at)

    def json_view(self, schema: pa.Schema | str | None = None) -> pa.Table:
        """Return the documents, as `current` does, with typed columns of their JSON and what did not fit in `_rest`.

        schema: of Arrow or as Spark's DDL; None: inferred. See penstock.spark.lake.views.
        """
        from penstock.spark.lake import views

        return views.json_view(self, schema)

    def json_frame(self, spark: SparkSession, schema: pa.Schema | str | None = None) -> DataFrame:
        """Return what `json_view` does as a Spark frame."""
        from penstock.spark.lake import views

        return views.json_frame(self, spark, schema)


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
