"""The documents that an erasure selects: by key, or by a condition in SQL on their values."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.lake.changelog.changelog_delta import IDENTITY_SCHEMA
from penstock.spark.lake.maintenance.erased_documents import ErasedDocuments
from penstock.spark.lake.maintenance.lake_erasure import list_changelog_paths
from penstock.spark.lake.tables.data_files import open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.tables.inference import infer_fields
from penstock.spark.values.json_types import to_ddl
from penstock.text_files import read_text, read_text_file, split_lines
from penstock.wire.codec.constants import MAX_KEY
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMES = ["scope", "collection"]
_MOST_LIST_BYTES = 1 << 30
"""Limit of a list: four million of the longest keys."""
_NOT_PLAIN = {"\r", "\0", "\ufeff"}
"""Characters that a plain line has by mistake: line ends of other systems, another encoding, joined files."""


@dataclass(frozen=True, slots=True)
class DocumentSelection:
    """Documents of a lake. A document with one of the keys, or with one version that meets the condition, is selected.

    Attributes:
        keys: the keys.
        where: a condition in Spark's SQL on the fields of the JSON value; None without one.
        value_schema: these fields as DDL; None to infer them from the changelog.
        collection: SCOPE.COLLECTION, or the name of a collection in the default scope; None for all collections.
    """

    keys: tuple[bytes, ...] = ()
    where: str | None = None
    value_schema: str | None = None
    collection: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the selection names no documents at all."""
        return not self.keys and self.where is None


def read_keys_file(path: str) -> tuple[bytes, ...]:
    """Return the keys in a file, one a line. Blank lines are left out; other blanks belong to a key.

    A line that begins with a quotation mark is a JSON string. So a key can have line ends or begin with such a mark.

    Args:
        path: the file; `-` is standard input.

    Raises:
        UsageError: the file cannot be read, is not UTF-8 or has no key, or a line is no key.
    """
    expected = "a list with one key a line"
    if path == "-":
        text = read_text(sys.stdin.buffer, "standard input", expected, _MOST_LIST_BYTES)
    else:
        text = read_text_file(path, expected, _MOST_LIST_BYTES)
    keys = tuple(_read_key(line, f"{path} line {at}") for at, line in enumerate(split_lines(text), 1) if line)
    if not keys:
        raise UsageError(f"{path} has no key, expected {expected}")
    return keys


def _read_key(line: str, place: str) -> bytes:
    """Return the key in a line of a list.

    Raises:
        UsageError: the line is no key.
    """
    key = line
    if line.startswith('"'):
        try:
            key = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{place} begins with a quotation mark, expected a JSON string: {error}") from None
    elif found := next((one for one in line if one in _NOT_PLAIN), None):
        raise UsageError(
            f"{place} has {found!r} in it, which neither ends a line nor can be in a plain key; "
            f'expected another line end, or a JSON string such as "a{ascii(found)[1:-1]}b"'
        )
    try:
        octets = key.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{place} has half a surrogate pair, expected a key that UTF-8 can encode") from None
    if not 0 < len(octets) <= MAX_KEY:
        raise UsageError(f"{place} has {len(octets)} bytes, expected a key of 1 to {MAX_KEY} bytes")
    return octets


def select_documents(
    lake: LakeDirectory, selection: DocumentSelection, spark: SparkSession | None = None
) -> ErasedDocuments:
    """Return the documents of a lake's changelog that a selection names.

    Raises UsageError for a condition that is none on the fields of the values.

    Args:
        lake: the lake.
        selection: keys and condition.
        spark: the session for the condition; None to start one, and stop it afterwards.

    Returns:
        The documents.
    """
    paths = list_changelog_paths(lake)
    found = [IDENTITY_SCHEMA.empty_table()]
    if selection.keys:
        found.append(_select_by_key(paths, selection.keys, selection.collection))
    if selection.where is not None and paths:
        schema = selection.value_schema or _infer_fields(paths)
        with _open_session(spark) as session:
            found.append(_select_by_condition(session, paths, selection.where, schema, selection.collection))
    return ErasedDocuments.collect(pa.concat_tables(found))


def has_collection(lake: LakeDirectory, collection: str) -> bool:
    """Return whether a lake's changelog has a change in a collection."""
    batches = open_dataset(list_changelog_paths(lake), CHANGE_SCHEMA).to_batches(columns=_NAMES)
    return any(_keep_collection(pa.table(batch), collection).num_rows for batch in batches)


def _select_by_key(paths: list[str], keys: Collection[bytes], collection: str | None) -> pa.Table:
    columns = [*IDENTITY_SCHEMA.names, "event", *_NAMES]
    is_wanted = pc.field("key").isin(pa.array(keys, pa.binary()))
    rows = open_dataset(paths, CHANGE_SCHEMA).to_table(columns=columns, filter=is_wanted)
    return ErasedDocuments.collect(_keep_collection(rows, collection)).identities


def _keep_collection(rows: pa.Table, collection: str | None) -> pa.Table:
    if collection is None:
        return rows
    scope, _, name = collection.rpartition(".")
    wanted = {"scope": scope or DEFAULT_NAME, "collection": name}
    masks = [pc.equal(pc.fill_null(rows[column], DEFAULT_NAME), text) for column, text in wanted.items()]
    return rows.filter(pc.and_(*masks))


def _infer_fields(paths: list[str]) -> str:
    """Return the fields of all values of a changelog, as DDL.

    Raises:
        UsageError: no value is a JSON object.
    """
    is_document = pc.field("event") == str(Event.MUTATION)
    batches = open_dataset(paths, CHANGE_SCHEMA).to_batches(columns=["value"], filter=is_document)
    fields = infer_fields(value for batch in batches for value in batch["value"].to_pylist())
    if not len(fields):
        raise UsageError("the lake has no JSON objects, so no condition can select documents; expected keys")
    return to_ddl(fields)


def _select_by_condition(
    session: SparkSession, paths: list[str], where: str, value_schema: str, collection: str | None
) -> pa.Table:
    from penstock.spark.lake.reading.spark_frames import read_paths
    from penstock.spark.pipeline.run.changelog_rows import select_matches
    from penstock.spark.pipeline.run.spark_failure import translate_errors

    with translate_errors():
        matches = select_matches(read_paths(session, paths, CHANGE_SCHEMA), where, value_schema)
        rows = matches.select(*IDENTITY_SCHEMA.names, *_NAMES).distinct().toArrow()
    return ErasedDocuments.collect(_keep_collection(rows, collection)).identities


@contextmanager
def _open_session(given: SparkSession | None) -> Iterator[SparkSession]:
    """Yield the given session, or a new one that is stopped at the end."""
    if given is not None:
        yield given
        return
    from penstock.spark.runtime.spark_session import local_session

    session = local_session()
    try:
        yield session
    finally:
        session.stop()
