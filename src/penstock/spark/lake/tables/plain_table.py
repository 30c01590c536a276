"""The changelog as plain Parquet files, for readers without Delta: `changelog/vbucket_range=N/*.parquet`.

Tasks write files into a separate directory, `_pending`. The commit of a batch creates one manifest,
`changelog/_batches/BATCH.json`, which names the files of the batch. Then the files move to the directories that readers
list. A batch that runs again finds its manifest. It moves the files that a crash left in `_pending`, and adds nothing.

The number of a batch is the version. Manifests are removed, so the rows of an older version are unknown. So there is no
current table, no index and no view: all of these need versions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.errors import UsageError
from penstock.spark.lake.tables.data_files import RANGE_COLUMN, DataFile, remove_files
from penstock.spark.lake.tables.lake_table import CommitFailed, LakeTable
from penstock.spark.lake.tables.plain_manifests import (
    find_newest_batch,
    find_writer,
    list_files,
    locate_manifest,
    read_manifest,
)
from penstock.spark.storage.object_files import count_parquet_rows
from penstock.spark.storage.object_path import LakePath
from penstock.spark.storage.stored_documents import create_document, replace_file

KEPT_BATCHES = 100
"""Manifests that stay on disk. All files of a batch are in place before Spark starts the next batch."""
_BATCH_KEYS = ("query", "files")
"""The keys of a manifest that are not notes."""


@dataclass(frozen=True, slots=True)
class PlainVersion:
    """The newest batch of a table of plain files, with its manifest."""

    batch: int
    manifest: Mapping[str, Any]

    def version(self) -> int:
        """Return the number of the batch."""
        return self.batch

    def transaction_version(self, app_id: str, /) -> int | None:
        """Return the newest batch of a query, None if another query wrote the table."""
        return self.batch if self.manifest["query"] == app_id else None


class PlainTable(LakeTable[PlainVersion]):
    """A table of plain Parquet files, which only grows."""

    format = "parquet"
    has_versions = False

    @property
    def write_root(self) -> LakePath:
        """The directory for files of batches that are not committed, which readers do not list."""
        return self.path.parent / "_pending"

    def open(self) -> PlainVersion | None:
        """Return the newest batch, None before the first.

        Returns:
            The batch.

        Raises:
            UsageError: the path holds something else.
        """
        found = find_writer(self.path)
        if found is None and (self.path / "metadata").exists():
            raise UsageError(
                f"{self.path} is an Iceberg table; expected a changelog of plain Parquet files, or nothing"
            )
        return None if found is None else PlainVersion(found[1], read_manifest(self.path, found[1]))

    def read_id(self, opened: PlainVersion) -> str:
        """Return the id of the query that writes the table."""
        return str(opened.manifest["query"])

    def read_note(self, opened: PlainVersion, name: str) -> str | None:
        """Return a note, which each manifest has."""
        found = opened.manifest.get(name.removeprefix("penstock."))
        return None if found is None else str(found)

    def commit(
        self,
        opened: PlainVersion | None,
        transaction: tuple[str, int],
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        notes: Mapping[str, str] | None = None,
        *,
        rows_change: bool = True,
        changed: Sequence[DataFile] = (),
        is_replacement: bool = False,
    ) -> None:
        """Add the files of a batch.

        Args:
            opened: the newest batch before.
            transaction: the query's id and the number of the batch.
            added: files in the directory of files that are not committed.
            removed: must be empty.
            notes: notes for a new table.
            rows_change: must be True.
            changed: not used; only Delta has files of changes.
            is_replacement: not supported by this format.

        Raises:
            CommitFailed: the batch is there already.
        """
        if removed or not rows_change:
            self.check_versions()
        query, batch = transaction
        kept = {} if opened is None else {name: opened.manifest[name] for name in opened.manifest.keys() - _BATCH_KEYS}
        given = {name.removeprefix("penstock."): _parse_note(text) for name, text in (notes or {}).items()}
        content = {"query": query} | given | kept | {"files": [[file.path, file.rows] for file in added]}
        if not create_document(locate_manifest(self.path, batch), json.dumps(content)):
            raise CommitFailed(f"{self.path} has batch {batch} already")
        self._publish_batch(batch)
        locate_manifest(self.path, batch - KEPT_BATCHES).unlink(missing_ok=True)

    def discard_uncommitted(self, files: Iterable[DataFile]) -> None:
        """Remove the given files unless a manifest names them: Spark may abort a batch whose commit has landed.

        An earlier attempt may have ended between its manifest and the move of its files, so they move now.
        """
        newest = find_newest_batch(self.path)
        named = {path for path, _ in list_files(self.path, newest)} if newest is not None else set()
        remove_files(self.write_root, [file for file in files if file.path not in named])
        if newest is not None:
            self._publish_batch(newest)

    def _publish_batch(self, batch: int) -> None:
        """Move the files of a batch to the directories that readers list, if they are not there yet."""
        for path, _ in list_files(self.path, batch):
            (self.path / path).parent.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # an earlier attempt has moved this file
                replace_file(self.write_root / path, self.path / path)

    def list_files(self, opened: PlainVersion) -> list[DataFile]:
        """Return every file of the table. Plain files do not have the time of their commit."""
        paths: list[LakePath] = [*self.path.glob(f"{RANGE_COLUMN}=*/*.parquet")]
        return [
            DataFile(
                f"{path.parent.name}/{path.name}",
                path.stat().st_size,
                count_parquet_rows(path),
                int(path.parent.name.partition("=")[2]),
            )
            for path in sorted(paths, key=str)
        ]

    def list_added_since(self, opened: PlainVersion, version: int) -> list[DataFile] | None:
        """Return the files of the batches after `version`, None if a manifest was removed."""
        now = time.time_ns() // 1_000_000  # plain files do not have the time of their commit
        try:
            return [
                DataFile(path, (self.path / path).stat().st_size, rows, -1, modified=now)
                for batch in range(version + 1, opened.batch + 1)
                for path, rows in list_files(self.path, batch)
            ]
        except FileNotFoundError:
            return None

    def list_files_at(self, opened: PlainVersion, when: datetime) -> list[DataFile]:
        """Raise UsageError, because older versions are unknown.

        Returns:
            Never.
        """
        self.check_versions()
        return []

    def has_grown(self, version: int) -> bool:
        """Return whether there is a newer batch."""
        return (find_newest_batch(self.path) or 0) > version

    def is_intact(self, opened: PlainVersion) -> bool:
        """Return True: other programs cannot commit."""
        return True

    def refuse_foreign_changes(self, opened: PlainVersion) -> None:
        """Do nothing: other programs cannot commit."""

    def remove_unused_files(self, keep_hours: float | None = None, *, only_replaced: bool = False) -> None:
        """Raise UsageError, because no file is ever replaced."""
        self.check_versions()


def _parse_note(text: str) -> str | int:
    return int(text) if text.isdecimal() else text
