"""Erasure of documents from all files of a lake: tables, indexes and dead letters.

An erasure holds the lake's lock, so no run writes meanwhile. First it stores the identities of the documents in
`_erasure.parquet`. So if it is killed, the next erasure completes it: a condition would no longer find a document whose
matching versions are erased already. The last step removes that file.

Pending changes are merged before anything is erased. So current and the indexes never read a replaced file of the
changelog. Sinks may be away. A sink that has not read a replaced file before vacuum gets all documents again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.dependents.dependent import DocumentIndex, catch_up
from penstock.spark.dependents.registry import list_stored_dependents
from penstock.spark.lake.changelog.changelog_delta import IDENTITY_SCHEMA, LOOKUP_COLUMNS
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.document_table import CURRENT
from penstock.spark.lake.current.typed_table import list_document_tables, list_typed_tables
from penstock.spark.lake.maintenance.erased_documents import ErasedDocuments
from penstock.spark.lake.maintenance.lake_erasure import (
    ErasedPart,
    count_documents,
    erase_changelog,
    erase_letters,
    erase_table,
    list_changelog_paths,
    trim_foreign_log,
)
from penstock.spark.lake.reading.lake_readers import scan_current
from penstock.spark.lake.tables.data_files import open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection, has_collection, select_documents
from penstock.spark.pipeline.state.lake_files import ERASURE, REMOVED_PREFIX, remove_drafts
from penstock.spark.pipeline.state.run_state import erase_texts
from penstock.spark.storage.full_disk import translate_full_disk
from penstock.spark.storage.object_files import read_parquet, replace_parquet
from penstock.spark.storage.object_path import LakePath
from penstock.spark.storage.stored_documents import remove_tree
from penstock.wire.columns.schema import CHANGE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """The result of an erasure.

    Attributes:
        documents: number of documents.
        existing: number of these documents that the current table still had. The bucket may have them.
        parts: the erased parts of tables, indexes and dead letters.
        missing_keys: the given keys that no document has.
        has_collection: whether the changelog has changes of the given collection; True if none was given.
        is_done: False if the erasure only counted.
    """

    documents: int
    existing: int
    parts: tuple[ErasedPart, ...]
    missing_keys: tuple[bytes, ...]
    has_collection: bool
    is_done: bool


def erase_documents(
    lake: LakeDirectory,
    selection: DocumentSelection,
    letters: Iterable[LakePath] = (),
    *,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    after_step: Callable[[str], None] = lambda name: None,
) -> ErasureReport:
    """Erase documents from the files of a lake, and complete an earlier erasure that was killed.

    Raises LakeRefused while a run writes the lake, and if another program changed its changelog. Raises DiskFull if a
    disk has no room; a later call goes on.

    Args:
        lake: the lake.
        selection: the documents; an empty selection completes an earlier erasure.
        letters: directories of dead letters of the lake's sinks.
        dry_run: only count the documents and their rows.
        spark: the session for a condition in SQL; None to start one.
        after_step: called after each step with its name.

    Returns:
        The erased parts.

    Raises:
        UsageError: the selection is empty, and no earlier erasure is left.
    """
    if not lake.changelog_table.path.is_dir():
        raise UsageError(f"there is no table at {lake.changelog_table.path}; expected the lake of a pipeline that ran")
    with translate_full_disk(str(lake.path)), hold_lock(lake.path, 0) as lock:

        def end_step(name: str) -> None:
            lock.raise_if_lost()
            after_step(name)

        if selection.is_empty and not (lake.path / ERASURE).exists():
            raise UsageError("no documents are named; expected keys or a condition")
        erased = _add_unfinished(lake, select_documents(lake, selection, spark))
        report = _prepare_report(lake, selection, erased)
        if dry_run:
            return _complete_report(report, _count_rows(lake, erased), is_done=False)
        _store_unfinished(lake, erased)
        end_step("stored")
        parts = _erase_parts(lake, erased, letters, end_step)
        (lake.path / ERASURE).unlink()
    return _complete_report(report, parts, is_done=True)


def _prepare_report(lake: LakeDirectory, selection: DocumentSelection, erased: ErasedDocuments) -> ErasureReport:
    """Return the report of an erasure before its first step: the documents, and the names that match nothing."""
    found = set(erased.identities["key"].to_pylist())
    missing = tuple(key for key in dict.fromkeys(selection.keys) if key not in found)
    is_known = bool(found) or selection.collection is None or has_collection(lake, selection.collection)
    return ErasureReport(erased.identities.num_rows, 0, (), missing, is_known, is_done=False)


def _complete_report(report: ErasureReport, parts: tuple[ErasedPart, ...], *, is_done: bool) -> ErasureReport:
    existing = sum(part.rows for part in parts if part.table == CURRENT)
    return replace(report, existing=existing, parts=parts, is_done=is_done)


def _erase_parts(
    lake: LakeDirectory, erased: ErasedDocuments, letters: Iterable[LakePath], after_step: Callable[[str], None]
) -> tuple[ErasedPart, ...]:
    """Erase documents from all parts of a lake; after each step, a repetition completes the erasure.

    Returns:
        The erased parts.
    """
    indexes, tables = find_index_parts(lake), list_document_tables(lake)
    merge_tables(tables)
    for _, _, index in indexes:
        catch_up(index, lake)
    after_step("merged")
    parts = [erase_changelog(lake, erased)]
    after_step("changelog")
    for target in tables:
        parts.append(erase_table(target, erased))
        after_step(target.name)
    for kind, name, index in indexes:
        parts.append(ErasedPart(name, kind, *index.erase_documents(erased.to_delta())))
        after_step(name)
    for table in (lake.changelog_table, *(target.table for target in tables)):
        trim_foreign_log(table)
    parts += [erase_letters(directory, erased) for directory in letters if directory.is_dir()]
    for leftover in lake.path.glob(f"{REMOVED_PREFIX}*"):  # of a reset that was killed
        remove_tree(leftover)
    remove_drafts(lake)
    erase_texts(lake)
    return tuple(parts)


def find_index_parts(lake: LakeDirectory) -> list[tuple[str, str, DocumentIndex]]:
    """Return kind, name and object of each index that has files in a lake, declared or not."""
    found = []
    for kind, name in list_stored_dependents(lake):
        index = kind.open_stored(lake, name)
        if index is not None:
            found.append((kind.kind, name, index))
    return found


def _add_unfinished(lake: LakeDirectory, erased: ErasedDocuments) -> ErasedDocuments:
    """Return the documents, with those of an earlier erasure that has not ended."""
    path = lake.path / ERASURE
    if not path.exists():
        return erased
    earlier = read_parquet(path).cast(IDENTITY_SCHEMA)
    return ErasedDocuments.collect(pa.concat_tables([erased.identities, earlier]))


def _store_unfinished(lake: LakeDirectory, erased: ErasedDocuments) -> None:
    draft = lake.path / f"{ERASURE}.draft"
    replace_parquet(lake.path / ERASURE, [erased.identities], IDENTITY_SCHEMA, draft)


def _count_rows(lake: LakeDirectory, erased: ErasedDocuments) -> tuple[ErasedPart, ...]:
    """Return the numbers of rows that an erasure would remove from the tables."""
    delta, keys = erased.to_delta(), erased.identities["key"].unique()
    changes = open_dataset(list_changelog_paths(lake), CHANGE_SCHEMA).to_table(
        columns=[*IDENTITY_SCHEMA.names, "event"], filter=pc.field("key").isin(keys)
    )
    parts = [ErasedPart("changelog", "changelog", int(erased.mark_changes(changes).sum()))]
    if lake.current_table.open() is not None:
        documents = scan_current(lake, LOOKUP_COLUMNS)
        parts.append(ErasedPart(CURRENT, CURRENT, delta.mark_outdated(documents).true_count))
    for typed in list_typed_tables(lake):  # without pending changes
        target, opened = typed.describe(), typed.open()
        files = target.table.list_files(opened) if opened is not None else []
        parts.append(ErasedPart(target.name, target.kind, sum(count_documents(target, f, delta) for f in files)))
    return tuple(parts)
