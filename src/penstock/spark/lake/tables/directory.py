"""The place of a lake: the tables `changelog` and `current`, and the checkpoint of the query that writes them.

Spark identifies a query by the id in its checkpoint's metadata, and the changelog's commits carry that id. So a lake
belongs to its query even if both directories are renamed or moved.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.errors import LakeRefused, UsageError
from penstock.names import escape_text
from penstock.spark.lake.tables.delta_store import DEFAULT_HOURS, REPLACED_HOURS, make_table_properties
from penstock.spark.lake.tables.delta_table import DeltaLakeTable
from penstock.spark.lake.tables.iceberg.iceberg_catalog import MARKER, IcebergCatalog
from penstock.spark.lake.tables.iceberg.iceberg_table import IcebergTable
from penstock.spark.lake.tables.lake_table import AnyTable
from penstock.spark.lake.tables.plain_manifests import find_newest_batch
from penstock.spark.lake.tables.plain_table import PlainTable
from penstock.spark.lake.tables.schemas import CHANGELOG_SCHEMA, CURRENT_SCHEMA
from penstock.spark.storage.object_path import LakePath, ObjectPath, parse_place


def check_lake_path(path: LakePath, table_format: str | None) -> None:
    """Check that a lake can be at a place: table formats store places as URLs.

    Args:
        path: the place.
        table_format: the format of the tables; None if it is not known yet.

    Raises:
        UsageError: no lake of that format can be there.
    """
    if isinstance(path, ObjectPath):
        return
    shown = escape_text(str(path))
    if re.search(r"\\|%[0-9A-Fa-f]{2}", str(path)):
        raise UsageError(f"the lake is {path}; expected a path without backslashes and percent escapes")
    if re.search(r"[\x00-\x1f\x7f]", str(path)):
        raise UsageError(f"the lake is {shown}; expected a path without control characters")
    if table_format == "iceberg" and any(sign in str(path) for sign in "#?"):
        raise UsageError(f"the lake is {path}; expected a path without # and ? for Iceberg tables")


@check_arguments
class LakeDirectory:
    """The files of a lake: tables and checkpoint. Raises UsageError if `path` cannot be the place of a lake.

    Args:
        path: a directory, or a URL with file, s3, abfss or gs.
        table_format: the format of its tables; None for the format that the lake has, and Delta in a new lake.
        catalog: the catalog of Iceberg tables; None for the one that the lake has, and its own in a new lake.
        keep_hours: hours for which past versions of typed tables, and the commits of the changelog, can be read.

    Attributes:
        path: the lake's place: an absolute directory, or a prefix in an object store.
        checkpoint: the directory of the query's checkpoint.
        catalog: the given catalog.
        keep_hours: the given hours.
    """

    def __init__(
        self,
        path: str | LakePath,
        table_format: str | None = None,
        catalog: str | None = None,
        keep_hours: int = DEFAULT_HOURS,
    ) -> None:
        text = str(path)
        if not text:
            raise UsageError("the lake is ''; expected a directory such as ./lake, or a URL such as s3://bucket/lake")
        try:
            self.path: LakePath = parse_place(text)
        except UsageError as error:
            raise UsageError(f"the lake cannot be used: {error}") from None
        check_lake_path(self.path, table_format)
        self.checkpoint = self.path / "_checkpoint"
        self._given_format = table_format
        self.catalog = catalog
        self.keep_hours = keep_hours
        self._detected_at = 0.0
        self._tables: tuple[AnyTable, AnyTable] | None = None
        self._iceberg: IcebergCatalog | None = None

    @property
    def changelog_table(self) -> AnyTable:
        """The changelog."""
        return self._find_tables()[0]

    @property
    def current_table(self) -> AnyTable:
        """The current table."""
        return self._find_tables()[1]

    def _find_tables(self) -> tuple[AnyTable, AnyTable]:
        """Return the tables. Another process may create them, in any format, while this object lives."""
        found = self._given_format or self._detect_format()
        if self._tables is None or self._tables[0].format != found:
            changelog = self.path / "changelog"
            self._tables = (
                PlainTable(changelog, CHANGELOG_SCHEMA)
                if found == "parquet"
                else self._make_table(found, changelog, CHANGELOG_SCHEMA, REPLACED_HOURS, is_changelog=True),
                self._make_table(found, self.path / "current", CURRENT_SCHEMA, REPLACED_HOURS),
            )
        return self._tables

    def make_table(self, path: LakePath, schema: pa.Schema, properties: Mapping[str, Mapping[str, str]]) -> AnyTable:
        """Return a further table in the format of the lake; Delta in a lake of plain Parquet files.

        Args:
            path: the place of the table in the lake.
            schema: the columns, `vbucket_range` last. A table with other columns is not refused.
            properties: properties of a new table, by format.
        """
        table_format = self.changelog_table.format
        own = properties.get(table_format, {})
        return self._make_table(table_format, path, schema, self.keep_hours, own, checks_columns=False)

    def _make_table(
        self,
        table_format: str,
        path: LakePath,
        schema: pa.Schema,
        file_hours: int,
        properties: Mapping[str, str] = MappingProxyType({}),
        *,
        checks_columns: bool = True,
        is_changelog: bool = False,
    ) -> AnyTable:
        if table_format != "iceberg":
            # Dependents that are late need the commits of the changelog.
            log_hours = self.keep_hours if is_changelog else file_hours
            own = {**properties, **make_table_properties(log_hours, file_hours)}
            return DeltaLakeTable(path, schema, own, checks_columns=checks_columns)
        self._iceberg = self._iceberg or IcebergCatalog(self.path, self.catalog)
        # Each batch of a changelog is a snapshot in the table's metadata, which every commit writes whole.
        hours = None if is_changelog else file_hours
        return IcebergTable(path, schema, self._iceberg, keep_hours=hours, checks_columns=checks_columns)

    def _detect_format(self) -> str:
        """Return the format of the tables in the lake, Delta if there are none."""
        # Looking costs an object store a request, so it is done at most once a second.
        if self._tables is None or isinstance(self.path, Path) or time.monotonic() - self._detected_at > 1:
            self._detected_at = time.monotonic()
            if (self.path / MARKER).is_file():
                return "iceberg"
            return "parquet" if find_newest_batch(self.path / "changelog") is not None else "delta"
        return self._tables[0].format

    def read_query_id(self) -> str | None:
        """Return the id of the query whose checkpoint lies in the lake, None without a checkpoint."""
        return read_query_id(self.checkpoint)

    def create(self) -> None:
        """Create the directory. Raises UsageError if that is impossible. An object store needs none."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._make_place_error(error.strerror) from error

    def check_place(self) -> None:
        """Check that the directory can be created and written, without creating it.

        Raises:
            UsageError: a file is in its place, or this user may not write there.
        """
        if isinstance(self.path, ObjectPath):
            self.path.is_dir()  # raises an error if the store does not answer, or refuses the credentials
            return
        found = next(each for each in (self.path, *self.path.parents) if os.path.exists(each))
        if not found.is_dir():
            raise self._make_place_error("File exists" if found == self.path else "Not a directory")
        if not os.access(found, os.W_OK | os.X_OK):
            if found == self.path:
                raise UsageError(f"{self.path} cannot be written; expected a directory that this user may write")
            raise self._make_place_error("Permission denied")

    def _make_place_error(self, reason: str | None) -> UsageError:
        return UsageError(f"cannot create the lake's directory {self.path}: {reason}")

    def find_newest_batch(self) -> int | None:
        """Return the newest batch of the changelog that this lake's query wrote, None before the first."""
        return self._find_newest_written(self.read_query_id())[1]

    def check_owner(self) -> None:
        """Check that checkpoint and changelog belong together, without writing anything.

        They belong together if one query wrote both and neither is an older copy. Then the changelog has every batch
        that the checkpoint lists as ended, and the checkpoint lists every batch of the changelog as planned. Otherwise
        Spark would plan a batch again that the changelog counts as written, and its rows would be lost.

        Raises UsageError for a directory that cannot be used, or if a table's place holds something else.

        Raises:
            LakeRefused: checkpoint and changelog do not belong together.
        """
        self.check_place()
        query = self.read_query_id()
        exists, written = self._find_newest_written(query)
        table, remedy = self.changelog_table.path, f"remove {self.path} to start again, or choose another directory"
        if exists and query is None:
            raise LakeRefused(
                f"{table} was written by a query, but its checkpoint {self.checkpoint} is missing: {remedy}"
            )
        if exists and written is None:
            raise LakeRefused(f"{table} was not written by the query of {self.checkpoint}: {remedy}")
        ended, planned = (
            _find_newest_batch(self.checkpoint / "commits"),
            _find_newest_batch(self.checkpoint / "offsets"),
        )
        batch = -1 if written is None else written
        if not ended <= batch <= planned:
            raise LakeRefused(
                f"{table} ends with batch {batch}, but in {self.checkpoint} the newest ended batch is {ended} and the"
                f" newest planned batch is {planned}, so one of them is an old copy: {remedy}"
            )

    def _find_newest_written(self, query: str | None) -> tuple[bool, int | None]:
        """Return whether there is a changelog, and its newest batch; the batch is None if another query wrote it."""
        changelog = self.changelog_table.open()
        self.current_table.open()
        if changelog is None:
            return False, None
        self.changelog_table.refuse_foreign_changes(changelog)
        return True, changelog.transaction_version(query) if query is not None else None


def read_query_id(checkpoint: LakePath) -> str | None:
    """Return the id in the metadata of a Spark checkpoint, None if there is no metadata.

    Returns:
        The id that Spark gave the query.

    Raises:
        UsageError: the metadata cannot be read.
    """
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


def _find_newest_batch(log: LakePath) -> int:
    """Return the newest batch in one of a checkpoint's logs, or -1.

    Spark writes `offsets` before a batch runs, and `commits` after it.
    """
    names = [entry.name for entry in log.iterdir()] if log.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)
