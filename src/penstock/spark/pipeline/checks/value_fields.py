"""The fields of a source's values: for its filter, and to report documents with other fields."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa

from penstock.errors import UsageError
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import SourceDefinition
from penstock.spark.source.source_options import INFERRED
from penstock.spark.source.source_schema import infer_fields
from penstock.spark.storage.object_files import open_parquet
from penstock.spark.storage.stored_documents import replace_document
from penstock.spark.values.json_columns import evolution
from penstock.spark.values.json_types import from_ddl

__all__ = ["ValueFields", "find_fields", "load_fields"]

SCHEMA_NAME = "_schema.json"
"""The file in the lake with the inferred fields."""
SAMPLE_VALUES = 1_000
"""Values of the newly written changes that are compared with the fields."""
MAX_CHANGES = 100
"""Differences that are reported, the first ones."""


class ValueFields:
    """The fields of a source's values.

    Attributes:
        ddl: the fields for Spark, as DDL.
        changes: differences that values had so far, as phrases.
    """

    def __init__(self, ddl: str) -> None:
        self.ddl = ddl
        self.changes: tuple[str, ...] = ()
        self._known = from_ddl(ddl)

    def compare_values(self, paths: Iterable[str]) -> None:
        """Compare values in files of the changelog with the fields."""
        values, remaining = [], SAMPLE_VALUES
        for path in paths:
            with open_parquet(path) as file:
                first = next(file.iter_batches(remaining, columns=["value"]), None)
            if first is not None:
                values.append(first["value"].drop_null())
                remaining -= first.num_rows
            if remaining <= 0:
                break
        found = evolution(self._known, pa.chunked_array(values, pa.binary()).combine_chunks())
        self._known = found.schema  # each difference is reported once
        changes = [f"the new field {field}" for field in found.new_fields] + [f"{each}" for each in found.conflicts]
        self.changes = tuple(dict.fromkeys((*self.changes, *changes)))[:MAX_CHANGES]


def find_fields(source: SourceDefinition, lake: LakeDirectory) -> str | None:
    """Return the fields of a source's values as DDL: those that it declares, or those that its lake keeps.

    Args:
        source: the source.
        lake: its lake.

    Returns:
        None if they must be inferred from the bucket.

    Raises:
        UsageError: the kept fields are damaged.
    """
    if source.value_schema not in (None, INFERRED):
        return str(source.value_schema)
    path = lake.path / SCHEMA_NAME
    try:
        return str(json.loads(path.read_text())["ddl"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is damaged; expected the inferred fields as JSON") from None


def load_fields(source: SourceDefinition, lake: LakeDirectory, inferred: str | None) -> ValueFields | None:
    """Return the fields of a source's values; the lake keeps inferred ones.

    Args:
        source: the source.
        lake: its lake.
        inferred: the fields that a check has inferred from the bucket, as DDL.

    Returns:
        The fields. None if the source has neither a filter nor a schema.
    """
    if source.value_schema is None and source.where is None:
        return None
    ddl = find_fields(source, lake)
    if ddl is None:
        ddl = inferred or infer_fields(source.parse_options())
        replace_document(lake.path / SCHEMA_NAME, json.dumps({"ddl": ddl}))
    return ValueFields(ddl)
