"""The JSON of the commands of `penstock pipeline` that maintain tables."""

from __future__ import annotations

from typing import TypedDict

from penstock.cli.outputs.pipeline_outputs import TableRest


class MaintainedTable(TypedDict):
    """Files and bytes of a table before and after.

    Attributes:
        files_before: number of files before.
        files_after: number of files after.
        bytes_before: bytes before.
        bytes_after: bytes after.
    """

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


class MaintenanceLine(TypedDict):
    """The files and bytes of the tables of one source.

    Attributes:
        source: name of the source; null without a file.
        changelog: the changelog.
        current: the current table.
        tables: name -> typed table.
        indexes: name -> index, where indexes were maintained too.
    """

    source: str | None
    changelog: MaintainedTable
    current: MaintainedTable
    tables: dict[str, MaintainedTable]
    indexes: dict[str, MaintainedTable]


class RetentionLine(TypedDict):
    """The effect of a retention on the changelog of one source.

    Attributes:
        source: name of the source; null without a file.
        rows_before: rows before.
        rows_after: rows after.
        bytes_before: bytes of the files before.
        bytes_after: bytes of the files after.
        oldest: the oldest state that is left, in ISO 8601; null if all are.
        is_done: whether rows were dropped.
    """

    source: str | None
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    oldest: str | None
    is_done: bool


class ErasedTable(TypedDict):
    """The erased part of a table, an index or dead letters.

    Attributes:
        table: its name.
        kind: changelog, current, the kind of a dependent, or dead letters.
        rows: number of rows.
        files: number of replaced files.
    """

    table: str
    kind: str
    rows: int
    files: int


class ErasureLine(TypedDict):
    """The result of an erasure for one source.

    Attributes:
        source: name of the source; null without a file.
        documents: number of documents.
        existing: number of these documents that current still had.
        parts: the erased parts.
        missing_keys: the given keys that no document of the source has; bytes that are not UTF-8 as hex escapes.
        has_collection: whether the source has changes of --collection; true without it.
        is_done: whether documents were erased: without --dry-run.
    """

    source: str | None
    documents: int
    existing: int
    parts: list[ErasedTable]
    missing_keys: list[str]
    has_collection: bool
    is_done: bool


class CollectionSnapshotLine(TypedDict):
    """The result of penstock pipeline resnapshot --collection.

    Attributes:
        source: name of the source.
        collections: the collections, as scope.name.
        documents: number of changes that the bucket sent.
        added: number of these that the tables lacked.
        removed: number of documents that the bucket no longer has.
    """

    source: str | None
    collections: list[str]
    documents: int
    added: int
    removed: int


class RetypedState(TypedDict):
    """A typed table before or after it was built again.

    Attributes:
        columns: type by column, without the columns that Penstock adds.
        rows: number of rows.
        rest: rows with values that no column has.
    """

    columns: dict[str, str]
    rows: int
    rest: TableRest


class RetypedLine(TypedDict):
    """A typed table after penstock pipeline retype.

    Attributes:
        source: name of the source.
        name: its name.
        changes: the differences between both declarations; without any, the table was not built again.
        before: the table before.
        after: the table after.
    """

    source: str | None
    name: str
    changes: list[str]
    before: RetypedState
    after: RetypedState
