"""The fields of a source's values: for its filter, and to report documents with other fields."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import SourceDefinition
from penstock.spark.source.source_options import INFERRED
from penstock.spark.source.source_schema import infer_fields
from penstock.spark.storage.object_files import open_parquet
from penstock.spark.storage.object_path import LakePath
from penstock.spark.storage.stored_documents import replace_document
from penstock.spark.tables.inference import add_fields
from penstock.spark.tables.json_columns import evolution
from penstock.spark.values.json_types import from_ddl, to_ddl
from penstock.wire.columns.schema import Event

SCHEMA_NAME = "_schema.json"
"""The file in the lake with the inferred fields."""
BATCH_ROWS = 4_096
"""Rows that are compared at once. New fields of a batch count as known in the next one, which is then parsed faster."""
MAX_CHANGES = 100
"""Differences that are reported. Beyond them no values are compared: names of fields are probably data."""


class ValueFields:
    """The fields of a source's values, and the documents with other fields.

    A runner compares the values of all documents that the run writes, on a thread of its own.

    Args:
        ddl: the fields for Spark, as DDL.
        keep: stores the fields with the new ones, as DDL; None for declared fields.

    Attributes:
        ddl: as above; it stays the same during a run.
        changes: differences that values had so far, as phrases.
    """

    def __init__(self, ddl: str, keep: Callable[[str], None] | None = None) -> None:
        self.ddl = ddl
        self.changes: tuple[str, ...] = ()
        self._known = from_ddl(ddl)
        self._kept = self._known
        self._keep = keep
        self._paths: deque[str] = deque()
        self._lock = threading.Lock()

    def add_pending(self, paths: Iterable[str]) -> None:
        """Add files of the changelog, whose values are then compared."""
        with self._lock:
            self._paths.extend(paths)

    def is_due(self, now: float) -> bool:
        """Return whether files wait. The time is ignored."""
        del now
        return self.is_behind

    @property
    def is_behind(self) -> bool:
        """Whether files wait."""
        return bool(self._paths)

    def run(self) -> None:
        """Compare the values in all files that wait."""
        while self._paths:
            with self._lock:
                path = self._paths.popleft()
            try:
                self._compare_file(path)
            except FileNotFoundError:  # a compaction has replaced the file, long after it was added
                self._report(["changes that were compacted before they could be compared"])

    def _compare_file(self, path: str) -> None:
        with open_parquet(path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=["event", "value"]):
                if len(self.changes) > MAX_CHANGES:
                    return
                # Events of collections have values too, which are no documents.
                documents = batch["value"].filter(pc.equal(batch["event"], str(Event.MUTATION)))
                self._compare_values(documents.drop_null())

    def _compare_values(self, values: pa.Array) -> None:
        found = evolution(self._known, values)
        self._known = found.schema  # each difference is reported once
        others = ["values that are no JSON objects"] if found.has_others else []
        self._report([*(f"the new field {field}" for field in found.new_fields), *found.conflicts, *others])
        if found.new_fields and self._keep is not None:
            kept = add_fields(self._kept, found.schema).fields
            if kept != self._kept:
                self._kept = kept
                self._keep(to_ddl(kept))

    def _report(self, phrases: Iterable[str]) -> None:
        changes = tuple(dict.fromkeys((*self.changes, *phrases)))
        if len(changes) > MAX_CHANGES:
            changes = (*changes[:MAX_CHANGES], "more differences than these, and are no longer compared")
        self.changes = changes


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


def load_fields(
    source: SourceDefinition, lake: LakeDirectory, inferred: str | None, guard: Callable[[], None] = lambda: None
) -> ValueFields | None:
    """Return the fields of a source's values; the lake keeps inferred ones.

    A run adds the fields that it finds to the inferred ones, for the runs after it.

    Args:
        source: the source.
        lake: its lake.
        inferred: the fields that a check has inferred from the bucket, as DDL.
        guard: called before fields are stored; raises LakeRefused once another run has taken over.

    Returns:
        The fields. None if the source has neither a filter nor a schema.
    """
    if source.value_schema is None and source.where is None:
        return None
    ddl = find_fields(source, lake)
    path = lake.path / SCHEMA_NAME

    def keep(ddl: str) -> None:
        guard()
        _store_fields(path, ddl)

    if ddl is None:
        ddl = inferred or infer_fields(source.parse_options())
        _store_fields(path, ddl)
    return ValueFields(ddl, keep if source.value_schema in (None, INFERRED) else None)


def _store_fields(path: LakePath, ddl: str) -> None:
    replace_document(path, json.dumps({"ddl": ddl}))
