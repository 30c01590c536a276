"""The files of an Iceberg table: their entries in manifests, and which of them the snapshots of a table need."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.spark.lake.tables.data_files import (
    RANGE_COLUMN,
    DataFile,
    number_fields,
    parse_joined_name,
    parse_write_time,
)
from penstock.spark.lake.tables.iceberg.iceberg_catalog import locate
from penstock.spark.storage.object_path import LakePath

if TYPE_CHECKING:
    from pyiceberg import manifest
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

PROPERTIES = {
    "format-version": "2",
    # PyIceberg would repeat a commit without the checks of Penstock.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"
"""Iceberg's property for the age at which a snapshot may expire."""
KEEP_MINUTES = 10
"""Age at which the snapshots of a table without SNAPSHOT_AGE expire."""


def describe_snapshot_age(age: timedelta) -> dict[str, str]:
    """Return the property of a table whose snapshots expire at an age."""
    return {SNAPSHOT_AGE: str(int(age.total_seconds() * 1000))}


def read_snapshot_age(metadata: TableMetadata) -> timedelta:
    """Return the age at which the snapshots of a table expire."""
    text = metadata.properties.get(SNAPSHOT_AGE, "")
    return timedelta(milliseconds=int(text)) if text.isdecimal() else timedelta(minutes=KEEP_MINUTES)


def describe_table(schema: pa.Schema, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return schema, partitions and properties of a new table."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    columns = pyarrow_to_schema(number_fields(schema))
    source = columns.find_field(RANGE_COLUMN).field_id
    part = PartitionField(source_id=source, field_id=1000, transform=IdentityTransform(), name=RANGE_COLUMN)
    return {"schema": columns, "partition_spec": PartitionSpec(part), "properties": PROPERTIES | dict(properties)}


def describe_file(root: LakePath, numbers: Mapping[str, int], schema: pa.Schema, file: DataFile) -> manifest.DataFile:
    """Return the entry of an own file of a table, with its statistics.

    Args:
        root: the place of the table.
        numbers: the ids of its columns.
        schema: its columns.
        file: the file.
    """
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile as Entry
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.typedef import Record
    from pyiceberg.types import IntegerType, LongType

    nulls = json.loads(file.stats)["nullCount"]

    def convert(name: str, value: int) -> tuple[int, bytes]:
        kind = LongType() if schema.field(name).type == pa.int64() else IntegerType()
        return numbers[name], to_bytes(kind, value)

    return Entry.from_args(
        content=DataFileContent.DATA,
        file_path=f"{locate(root)}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(file.vbucket_range),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        spec_id=0,
        value_counts={numbers[name]: file.rows for name in nulls},
        null_value_counts={numbers[name]: count for name, count in nulls.items()},
        lower_bounds=dict(convert(name, least) for name, least, _ in file.bounds),
        upper_bounds=dict(convert(name, greatest) for name, _, greatest in file.bounds),
    )


def parse_entry(root: LakePath, schema: pa.Schema, entry: manifest.ManifestEntry) -> DataFile:
    """Return a file of the table at `root` from its entry; its time is that of its name."""
    found = entry.data_file
    path = found.file_path.removeprefix(f"{locate(root)}/")
    nulls = found.null_value_counts or {}
    version, modified = parse_joined_name(path) or ((entry.sequence_number or 0) - 1, parse_write_time(path))
    return DataFile(
        path,
        found.file_size_in_bytes,
        found.record_count,
        int(found.partition[0]),
        modified=modified,
        keyless_rows=nulls.get(schema.get_field_index("key") + 1, -1),
        version=version,
    )


def list_used_files(table: Table) -> Iterator[str]:
    """Yield the URI of each file that some snapshot of a table needs, and those of its metadata."""
    yield table.metadata_location
    yield from (each.metadata_file for each in table.metadata.metadata_log)
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for each in snapshot.manifests(table.io):
            if each.manifest_path not in seen:
                seen.add(each.manifest_path)
                yield each.manifest_path
                entries = each.fetch_manifest_entry(table.io, discard_deleted=True)
                yield from (one.data_file.file_path for one in entries)


def expire_snapshots(table: Table, keep: timedelta, least: int) -> None:
    """Expire the snapshots that are older than `keep`, if there are at least so many of them.

    If another commit comes first, they expire later.
    """
    from pyiceberg.exceptions import CommitFailedException

    limit = datetime.now(UTC) - keep
    old = [each for each in table.metadata.snapshots if each.timestamp_ms < limit.timestamp() * 1000]
    if len(old) >= least:
        with suppress(CommitFailedException):
            table.maintenance.expire_snapshots().older_than(limit).commit()
