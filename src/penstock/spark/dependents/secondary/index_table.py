"""The Delta table of a secondary index: what it is defined by, and how a changelog delta is merged into it."""

from __future__ import annotations

import json

from deltalake import DeltaTable

from penstock.errors import UsageError
from penstock.spark.dependents.checks import checked_name, missing_index
from penstock.spark.dependents.json_paths import parse_path
from penstock.spark.dependents.secondary.entries import PendingEntries, entry_schema
from penstock.spark.dependents.secondary.entry_files import EntryWriter, merged, parts_within
from penstock.spark.dependents.value_types import value_type_of
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta
from penstock.spark.lake.current.current_table import merged_version
from penstock.spark.lake.tables.delta_table import LakeTable
from penstock.spark.lake.tables.directory import LakeDirectory

__all__ = ["DIRECTORY", "IndexTable", "stored_definition"]

DIRECTORY = "indexes"
"""The directory of a lake that holds its indexes."""
DEFINITION = "penstock.index"
"""The key, in the metadata of the table's last column, of the index's path and type."""
PROPERTIES = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 5 minutes",
}
VACUUM_EVERY = 50
"""Commits after which files that no longer belong to the table are removed from the disk."""


class IndexTable:
    """The table of the index `name`, sorted by value.

    Attributes:
        path: the JSON path of the indexed values.
        names: the same, as the names of fields.
        kind: the type of the indexed values.
        table: the Delta table.
    """

    def __init__(self, lake: LakeDirectory, name: str, path: str, type: str) -> None:  # noqa: A002
        self.lake = lake
        self.name = checked_name(name)
        self.path = path
        self.kind = value_type_of(type)
        self.names = parse_path(path)
        self.table = LakeTable(lake.path / DIRECTORY / name, entry_schema(self.kind), PROPERTIES)

    @property
    def definition(self) -> str:
        """Path and type, as the table's metadata holds them."""
        return json.dumps({"path": self.path, "type": self.kind.name})

    def open(self) -> DeltaTable | None:
        """Return the table as it is now, None before its first commit. Raises UsageError if it is another index."""
        table = self.table.open()
        if table is not None:
            found = table.schema().fields[-1].metadata.get(DEFINITION)
            if found != self.definition:
                raise UsageError(
                    f"{self.table.path} is an index of {found}, and {self.definition} was asked for;"
                    " choose another name, or remove the directory to build it anew"
                )
        return table

    def position(self) -> tuple[str, int] | None:
        """Return the changelog's id and the version of it that the table has applied, None if nothing."""
        return merged_version(self.lake, self.open())

    def rows(self) -> int:
        """Return the number of entries in the table's files."""
        table = self.open()
        return sum(file.rows for file in self.table.files(table)) if table is not None else 0

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Merge a delta into the table, in one commit with the version that it reaches."""
        table = self.open()
        pending = PendingEntries.of(delta, self.names, self.kind)
        before = self.table.files(table) if table is not None else []
        replaced = [file.path for file in before]
        with EntryWriter(self.table.path) as writer:
            if delta.everything:
                writer.write(pending.entries)
            else:
                replaced = merged(parts_within(self.table.path, replaced, None, None), pending, writer)
            added = writer.close()
        removed = [file for file in before if file.path in set(replaced)]
        try:
            note = {DEFINITION: self.definition}
            self.table.commit(table, (delta.changelog_id, delta.version), added, removed, note)
        except BaseException:
            self.table.abandon(added)
            raise
        opened = self.table.open()
        if opened is not None and opened.version() % VACUUM_EVERY == VACUUM_EVERY - 1:
            opened.vacuum(dry_run=False, full=True)


def stored_definition(lake: LakeDirectory, name: str) -> dict[str, str]:
    """Return path and type of the index that a lake has under a name. Raises UsageError if it has none."""
    there = sorted(log.parent.name for log in (lake.path / DIRECTORY).glob("*/_delta_log"))
    if name not in there:
        raise missing_index("index", name, lake, there)
    path = lake.path / DIRECTORY / name
    text = DeltaTable(path).schema().fields[-1].metadata.get(DEFINITION)
    if text is None:
        raise UsageError(f"{path} is a table, but no index")
    definition: dict[str, str] = json.loads(str(text))
    return definition
