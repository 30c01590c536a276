"""The fields of a source's values: for its filter, and to tell when documents bring others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import UsageError
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import Source
from penstock.spark.source.source_options import INFERRED
from penstock.spark.source.source_schema import inferred_fields
from penstock.spark.values.json_columns import evolution
from penstock.spark.values.json_types import from_ddl

__all__ = ["Fields", "fields_of"]

NAME = "_schema.json"
SAMPLE_VALUES = 1_000
"""Values of what was written since the last look that are compared with the fields."""
MOST_CHANGES = 100
"""Differences that are told, the first ones."""


class Fields:
    """ddl: the fields, for Spark. changes: what values had beside them so far, in words."""

    def __init__(self, ddl: str) -> None:
        self.ddl = ddl
        self.changes: tuple[str, ...] = ()
        self._known = from_ddl(ddl)

    def look(self, paths: Iterable[str]) -> None:
        """Compare values in files of the changelog with the fields."""
        values, left = [], SAMPLE_VALUES
        for path in paths:
            with pq.ParquetFile(path) as file:
                first = next(file.iter_batches(left, columns=["value"]), None)
            if first is not None:
                values.append(first["value"].drop_null())
                left -= first.num_rows
            if left <= 0:
                break
        found = evolution(self._known, pa.chunked_array(values, pa.binary()).combine_chunks())
        self._known = found.schema  # what was told once is known
        told = [f"the new field {field}" for field in found.new_fields] + [f"{each}" for each in found.conflicts]
        self.changes = tuple(dict.fromkeys((*self.changes, *told)))[:MOST_CHANGES]


def fields_of(source: Source, lake: LakeDirectory) -> Fields | None:
    """Return the fields that a source declares, or that were inferred when its lake was new; None if it says nothing.

    A filter without a schema infers one. Raises UsageError where there is nothing to infer from, and what asking the
    bucket raises.
    """
    if source.value_schema is None and source.where is None:
        return None
    if source.value_schema not in (None, INFERRED):
        return Fields(str(source.value_schema))
    path = lake.path / NAME
    try:
        return Fields(str(json.loads(path.read_text())["ddl"]))
    except FileNotFoundError:
        ddl = inferred_fields(source.options())
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not what a run writes; expected the fields that it inferred, as JSON") from None
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"ddl": ddl}))
    draft.replace(path)
    return Fields(ddl)
