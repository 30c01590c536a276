"""Typed tables: one collection of a bucket as a plain Delta table with a column for each field.

Each row is a document that exists, or a deleted document if the table marks deletions. The rows are a function of the
changelog and of the shape. Only `_loaded_at` and `_batch` say when a merge wrote the row. They are the watermark of
jobs that read new rows, so a row that a rollback brings back has new values there.

A change feed (`delta.enableChangeDataFeed`) has only the rows that differ.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from penstock.errors import UsageError
from penstock.spark.lake.changelog.merge_rules import to_key_columns
from penstock.spark.lake.current.current_table import MergeProgress, merge_table, read_merged_version
from penstock.spark.lake.current.document_table import DocumentTable, LoadStamp
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.tables.data_files import RANGE_COLUMN, ParquetLayout
from penstock.spark.lake.tables.delta_table import DeltaLakeTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.values.json_columns import parse
from penstock.spark.values.json_types import to_ddl
from penstock.wire.columns.schema import Event

__all__ = ["DIRECTORY", "TypedShape", "TypedTable"]

DIRECTORY = "tables"
"""The directory of a lake that holds its typed tables."""
SHAPE = "penstock.shape"
"""The metadata key of the last column for the shape."""
PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
"""A job that reads the table, its past or its change feed once a day finds all files."""
OLDEST_CAS = 10**18
"""The cas of 2001 in nanoseconds. A bucket of a server before 4.6 has random numbers, mostly far from the present."""
NEWEST_CAS = 4 * 10**18
LOOKUP = ("_vbucket", "_collection_id", "_key", "_key_bytes")
POSITION = ("_vbucket", "_history", "_seqno")
METADATA = pa.schema(
    [
        ("_rest", pa.string()),
        ("_changed_at", pa.timestamp("us", "UTC")),
        ("_loaded_at", pa.timestamp("us", "UTC")),
        ("_batch", pa.int64()),
        ("_key_bytes", pa.binary()),
        ("_collection_id", pa.int64()),
        ("_vbucket", pa.int32()),
        ("_history", pa.int32()),
        ("_seqno", pa.int64()),
    ]
)
"""The columns of every typed table behind those of the fields. `_key` is the first column."""
MARKS = pa.schema([("_deleted", pa.bool_()), ("_deleted_at", pa.timestamp("us", "UTC"))])
LAYOUT = ParquetLayout(None, {}, (), ("_vbucket", "_history", "_seqno"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedShape:
    """The collection and the columns of a typed table.

    Attributes:
        name: the table's name, unique in a lake.
        fields: fields of the documents with their types.
        scope, collection: the collection.
        deletes: "remove" to remove the rows of deleted documents, "mark" to keep them with `_deleted` and without
            values.
    """

    name: str
    fields: pa.Schema
    scope: str = "_default"
    collection: str = "_default"
    deletes: Literal["remove", "mark"] = "remove"

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, without the partition."""
        marks = MARKS if self.deletes == "mark" else []
        return pa.schema([("_key", pa.string()), *self.fields, *marks, *METADATA])

    def to_json(self) -> str:
        """Return collection, columns and deletions as the table's metadata hold them."""
        return json.dumps(
            {
                "collection": f"{self.scope}.{self.collection}",
                "fields": to_ddl(self.fields),
                "deletes": self.deletes,
            }
        )

    def select_documents(self, changes: pa.Table) -> pa.Table:
        """Return the changes that have a row in the table."""
        is_default = pc.equal(changes["collection_id"], 0)
        names = [
            pc.if_else(is_default, pc.fill_null(changes[name], "_default"), changes[name])
            for name in ("scope", "collection")
        ]
        is_member = pc.and_(pc.equal(names[0], self.scope), pc.equal(names[1], self.collection))
        if self.deletes == "remove":
            is_member = pc.and_(is_member, pc.equal(changes["event"], Event.MUTATION))
        return changes.filter(is_member)

    def to_rows(self, changes: pa.Table, stamp: LoadStamp) -> pa.Table:
        """Return the rows of the newest changes of documents.

        Args:
            changes: rows in MERGE_SCHEMA.
            stamp: the merge that writes the rows.

        Returns:
            Rows with `columns`.
        """
        changes = self.select_documents(changes)
        is_deleted = pc.not_equal(changes["event"], Event.MUTATION)
        values = pc.if_else(is_deleted, pa.scalar(None, pa.binary()), changes["value"]).combine_chunks()
        fields, rest = parse(values, self.fields)
        changed_at = _read_times(changes["cas"])
        key, key_bytes = to_key_columns(changes)
        found = {
            "_key": key,
            "_rest": rest,
            "_changed_at": changed_at,
            "_loaded_at": pa.repeat(pa.scalar(stamp.at, pa.timestamp("us", "UTC")), changes.num_rows),
            "_batch": pa.repeat(pa.scalar(stamp.batch, pa.int64()), changes.num_rows),
            "_key_bytes": key_bytes,
            "_collection_id": changes["collection_id"],
            "_vbucket": changes["vbucket"],
            "_history": changes["history"],
            "_seqno": changes["seqno"],
            "_deleted": is_deleted,
            "_deleted_at": pc.if_else(is_deleted, changed_at, pa.scalar(None, changed_at.type)),
        }
        found |= dict(zip(self.fields.names, fields.flatten(), strict=True))
        return pa.table([found[name] for name in self.columns.names], schema=self.columns)


def _read_times(cas: pa.ChunkedArray) -> pa.Array:
    """Return the times of hybrid clocks, null for all other numbers. The low 16 bits are a counter."""
    clocks = pc.fill_null(cas, 0).to_numpy()
    is_time = (clocks > OLDEST_CAS) & (clocks < NEWEST_CAS)
    return pa.array((clocks & ~0xFFFF) // 1000, pa.timestamp("us", "UTC"), mask=~is_time, from_pandas=False)


class TypedTable:
    """The typed table of a collection in a lake.

    Args:
        lake: the lake of the changelog.
        shape: the collection and the columns.

    Attributes:
        table: the Delta table.
    """

    def __init__(self, lake: LakeDirectory, shape: TypedShape) -> None:
        self.lake = lake
        self.shape = shape
        taken = sorted({*shape.fields.names} & {"_key", RANGE_COLUMN, *METADATA.names, *MARKS.names})
        if taken:
            raise UsageError(f"table {shape.name} has a field {taken[0]!r}, which is a column that Penstock adds")
        schema = shape.columns.append(pa.field(RANGE_COLUMN, pa.int32()))
        self.table = DeltaLakeTable(lake.path / DIRECTORY / shape.name, schema, PROPERTIES)

    def open(self) -> DeltaTable | None:
        """Return the newest version of the table, None before its first commit.

        Returns:
            The table as deltalake opens it.

        Raises:
            UsageError: the table has another shape.
        """
        opened = self.table.open()
        if opened is None:
            return None
        found = self.table.read_note(opened, SHAPE)
        if found != self.shape.to_json():
            raise UsageError(
                f"{self.table.path} is a table of {found}, expected {self.shape.to_json()}; choose another name, or"
                " remove the directory to build the table again"
            )
        return opened

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that the table has merged, None if nothing was merged."""
        return read_merged_version(self.lake, self.table, self.open())

    def describe(self) -> DocumentTable:
        """Return the table as a document table, for merges."""
        return DocumentTable(
            self.lake,
            self.table,
            self.shape.columns,
            self.shape.to_rows,
            LOOKUP,
            POSITION,
            LAYOUT,
            {SHAPE: self.shape.to_json()},
        )

    def merge(self, policy: MergePolicy | None = None) -> MergeProgress:
        """Merge the changes that the changelog has gained. Also raises the errors of `merge_table`.

        Args:
            policy: decides whether a merge is due; None to merge in any case.

        Returns:
            The progress, also if no merge was due.
        """
        self.open()
        return merge_table(self.describe(), policy)
