"""Erasure: removes documents from the files of a lake's tables.

The caller holds the lake's lock, so no run writes meanwhile. Every step may be repeated, and a step that finds nothing
to erase changes nothing. So an erasure that was killed is completed by the same erasure. Replaced files stay on disk
until vacuum removes them, since readers may have them open.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.changelog.changelog_delta import RangeDelta
from penstock.spark.lake.current.document_table import DocumentTable
from penstock.spark.lake.maintenance.erased_documents import ErasedDocuments
from penstock.spark.lake.maintenance.lake_compaction import (
    make_maintenance_transaction,
    make_merge_transaction,
    rewrite_ranges,
)
from penstock.spark.lake.tables.data_files import STATISTICS, DataFile, RangeWriter, match_types, parse_write_time
from penstock.spark.lake.tables.delta_table import DeltaLakeTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable, TableVersion
from penstock.spark.storage.object_client import repeat_cut_request
from penstock.spark.storage.object_files import open_parquet, read_parquet, replace_parquet
from penstock.spark.storage.object_path import LakePath, ObjectPath
from penstock.wire.columns.schema import CHANGE_SCHEMA

_MARK_COLUMNS = ["vbucket", "collection_id", "key", "event"]
_POSITION_NAMES = {prefix + name for prefix in ("", "_") for name in STATISTICS}
"""Columns of Penstock's own statistics, in the changelog, in current, and in typed tables."""
_LOG_NAME = re.compile(r"(\d{20})\.")
"""The start of the name of a commit or a checkpoint in a Delta log."""


@dataclass(frozen=True, slots=True)
class ErasedPart:
    """The part of an erasure in one table or index.

    Attributes:
        table: "changelog", "current", the name of the typed table or index, or the directory of dead letters.
        kind: its kind.
        rows: erased rows.
        files: files that were rewritten.
    """

    table: str
    kind: str
    rows: int = 0
    files: int = 0


def list_changelog_paths(lake: LakeDirectory) -> list[str]:
    """Return the paths of the changelog's files, of Delta or plain Parquet; empty without a changelog."""
    if _is_plain(lake):
        return sorted(map(str, lake.changelog_table.path.glob("vbucket_range=*/*.parquet")))
    opened = lake.changelog_table.open()
    return [] if opened is None else lake.changelog_table.list_paths(lake.changelog_table.list_files(opened))


def _is_plain(lake: LakeDirectory) -> bool:
    return not lake.changelog_table.has_versions


# The changelog


def erase_changelog(lake: LakeDirectory, erased: ErasedDocuments) -> ErasedPart:
    """Put erased rows in the place of the documents' changes. Numbers and places of rows stay the same.

    The commits declare that no row changed, as those of a compaction do, so dependents get no changes of documents.

    Args:
        lake: the lake of the changelog.
        erased: the documents.

    Returns:
        Rows and files.
    """
    if _is_plain(lake):
        return _erase_plain_changelog(lake, erased)
    table = lake.changelog_table

    def count_rows(file: DataFile) -> int:
        return _count_changes(table.path / file.path, erased)

    times: dict[Path, int] = {}

    def rewrite(table: AnyTable, group: Sequence[DataFile]) -> list[DataFile]:
        (file,) = group
        made = _blank_file(table, file, erased)
        if isinstance(table.path, Path):
            written = (table.path / file.path).stat().st_mtime_ns
            times.update((table.path / new.path, written) for new in made)
        return made

    part = _erase_ranges(table, "changelog", count_rows, rewrite, make_maintenance_transaction)
    # States of the past by time depend on it: a file that is newer than its commit counts as joined. An object has its
    # time in its name. After the commits, because vacuum removes old files that no commit names.
    for path, nanoseconds in times.items():
        with suppress(FileNotFoundError):  # an attempt that lost a race
            os.utime(path, ns=(nanoseconds, nanoseconds))
    return part


def _erase_ranges(
    table: AnyTable,
    name: str,
    count_rows: Callable[[DataFile], int],
    rewrite: Callable[[AnyTable, Sequence[DataFile]], list[DataFile]],
    transaction: Callable[[TableVersion], tuple[str, int]],
    *,
    rows_change: bool = False,
) -> ErasedPart:
    """Rewrite the files of a table that hold erased rows, one commit for each range.

    Args:
        table: the table.
        name: its name in the result.
        count_rows: returns the number of a file's rows to erase.
        rewrite: returns new files.
        transaction: returns application id and version for a commit.
        rows_change: whether readers of the table's changes must see the commits.

    Returns:
        Rows and files.
    """
    counts: dict[str, int] = {}
    rewritten: set[str] = set()

    def choose_groups(opened: TableVersion) -> list[list[DataFile]]:
        groups = []
        for file in table.list_files(opened):
            if file.path not in counts:
                counts[file.path] = count_rows(file)
            if counts[file.path]:
                rewritten.add(file.path)
                groups.append([file])
        return groups

    opened = table.open()
    found = choose_groups(opened) if opened is not None else []
    for part in sorted({file.vbucket_range for (file,) in found}):
        rewrite_ranges(table, {part}, choose_groups, rewrite, transaction, rows_change=rows_change)
    return ErasedPart(name, name, sum(counts[path] for path in rewritten), len(rewritten))


def _count_changes(path: LakePath, erased: ErasedDocuments) -> int:
    rows = match_types(read_parquet(path, _MARK_COLUMNS), CHANGE_SCHEMA)
    return int(erased.mark_changes(rows).sum())


def _blank_file(table: AnyTable, file: DataFile, erased: ErasedDocuments) -> list[DataFile]:
    """Write a file of the changelog with erased rows into new files.

    Returns:
        The new files, with the commit time of the old file.
    """
    # Objects have the time of writing in their names alone.
    written = parse_write_time(file.path) if isinstance(table.path, ObjectPath) else 0
    with RangeWriter(table.path, file.vbucket_range, CHANGE_SCHEMA, written=written or None) as writer:
        with open_parquet(table.path / file.path) as old:
            for group in range(old.num_row_groups):
                rows = match_types(old.read_row_group(group, columns=CHANGE_SCHEMA.names), CHANGE_SCHEMA)
                writer.write(erased.blank_changes(rows))
        return [replace(new, modified=file.modified) for new in writer.close()]


def _erase_plain_changelog(lake: LakeDirectory, erased: ErasedDocuments) -> ErasedPart:
    """Replace plain files in place: erased rows keep their number, so that the manifests stay true.

    Returns:
        Rows and files.
    """
    root, pending = lake.changelog_table.path, lake.changelog_table.write_root
    # This moves the files of a batch whose process was killed between its manifest and the move.
    lake.changelog_table.discard_uncommitted([])
    pending.mkdir(exist_ok=True)
    rows = files = 0
    paths: list[LakePath] = [*root.glob("vbucket_range=*/*.parquet")]
    for path in sorted(paths, key=str):
        if found := _count_changes(path, erased):
            with open_parquet(path) as old:
                schema = old.schema_arrow
                groups = (old.read_row_group(number) for number in range(old.num_row_groups))
                blanked = (erased.blank_changes(group).cast(schema) for group in groups)
                replace_parquet(path, blanked, schema, pending / "erased.parquet")
            rows, files = rows + found, files + 1
    # Batches that were never committed: no run is active.
    for leftover in pending.rglob("*.parquet"):
        leftover.unlink()
    return ErasedPart("changelog", "changelog", rows, files)


# The tables of documents


def count_documents(target: DocumentTable, file: DataFile, delta: RangeDelta) -> int:
    """Return the number of rows of a file that a delta voids."""
    with open_parquet(target.table.path / file.path) as opened:
        return int(delta.mark_outdated(target.read_lookup(opened)).true_count)


def erase_table(target: DocumentTable, erased: ErasedDocuments) -> ErasedPart:
    """Remove the documents from a table of documents, which must have merged the whole changelog.

    Args:
        target: the table.
        erased: the documents.

    Returns:
        Rows and files.
    """
    delta = erased.to_delta()

    def count_rows(file: DataFile) -> int:
        return count_documents(target, file, delta)

    def rewrite(table: AnyTable, group: Sequence[DataFile]) -> list[DataFile]:
        columns, numbered = target.columns, table.number_columns(target.columns)
        with RangeWriter(table.path, group[0].vbucket_range, numbered, layout=target.layout) as writer:
            for file in group:
                with open_parquet(table.path / file.path) as old:
                    for number in range(old.num_row_groups):
                        rows = match_types(old.read_row_group(number, columns=columns.names), columns)
                        writer.write(rows.filter(pc.invert(delta.mark_outdated(target.rename_lookup(rows)))))
            return writer.close()

    transaction = partial(make_merge_transaction, target)
    return _erase_ranges(target.table, target.name, count_rows, rewrite, transaction, rows_change=True)


# Logs and dead letters


def remove_old_logs(table: DeltaLakeTable) -> None:
    """Remove the log of all versions but the newest: statistics of removed files hold values of documents.

    A reader of a changelog's deltas that has not applied the newest version reads the whole changelog afterwards.

    Args:
        table: the table.
    """
    opened = table.open()
    if opened is None:
        return
    repeat_cut_request(opened.create_checkpoint)
    for path in (table.path / "_delta_log").iterdir():
        named = _LOG_NAME.match(path.name)
        if named is not None and int(named[1]) < opened.version():
            path.unlink(missing_ok=True)


def trim_foreign_log(table: AnyTable) -> None:
    """Remove old logs if another program has joined files: it writes statistics of keys and values.

    Penstock's own commits of these tables have statistics of numbers alone.

    Args:
        table: the changelog, or a table of documents.
    """
    if not isinstance(table, DeltaLakeTable):
        return
    log = table.path / "_delta_log"
    if any(_has_value_statistics(path) for path in (*log.glob("*.json"), *log.glob("*.parquet"))):
        remove_old_logs(table)


def _has_value_statistics(path: LakePath) -> bool:
    """Return whether a file of a log has the least or greatest value of a column beyond those of positions."""
    if path.name.endswith(".json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        found = [action["add"].get("stats") for action in actions if "add" in action]
    else:
        found = read_parquet(path, ["add.stats"])["add"].combine_chunks().field("stats").to_pylist()
    statistics = [json.loads(text) for text in found if text]
    names = {name for each in statistics for kind in ("minValues", "maxValues") for name in each.get(kind) or ()}
    return not names <= _POSITION_NAMES


def erase_letters(directory: LakePath, erased: ErasedDocuments) -> ErasedPart:
    """Remove rows with the documents' keys from dead letters, in all vbuckets and collections.

    A sink's SQL may leave out the columns of a document's identity except the key.

    Args:
        directory: the directory of the dead letters.
        erased: the documents.

    Returns:
        Rows and files.
    """
    keys = erased.identities["key"]
    rows = files = 0
    paths: list[LakePath] = [*directory.rglob("*.parquet")]
    for path in sorted(paths, key=str):
        letters = read_parquet(path)
        if "key" not in letters.column_names:
            continue
        is_erased = pc.is_in(letters["key"].cast(pa.binary()), value_set=keys)
        found = int(pc.sum(is_erased).as_py() or 0)
        if not found:
            continue
        if found == letters.num_rows:
            path.unlink()
        else:
            kept = letters.filter(pc.invert(is_erased))
            replace_parquet(path, [kept], kept.schema, path.parent / f"{path.stem}.draft")
        rows, files = rows + found, files + 1
    return ErasedPart(str(directory), "dead letters", rows, files)
