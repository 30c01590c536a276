"""Retyping: typed tables get the schema that the pipeline's file declares now. The bucket is not read.

The rows are computed again from the changelog, into new files beside the old ones. One commit replaces the files and
the columns. So readers see the old table until then, and a process that is killed leaves the old table or the new one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.errors import UsageError
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.document_table import DocumentTable, LoadStamp
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.merged_state import retry_missing_files
from penstock.spark.lake.current.misfit_table import MisfitTable
from penstock.spark.lake.current.shape_changes import list_shape_changes, select_declared_columns
from penstock.spark.lake.current.typed_table import KIND, TypedTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import HeldLock, hold_lock
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.kept_tables import list_kept
from penstock.spark.pipeline.state.source_lakes import find_source_lakes
from penstock.spark.storage.full_disk import translate_full_disk
from penstock.spark.tables.misfits import RestReport
from penstock.spark.values.json_types import format_type


@dataclass(frozen=True, slots=True)
class TableState:
    """A typed table at one moment.

    Attributes:
        columns: type by column, without the columns that Penstock adds.
        rows: number of rows.
        rest: the rows with values that no column has.
    """

    columns: dict[str, str]
    rows: int
    rest: RestReport


@dataclass(frozen=True, slots=True)
class RetypedTable:
    """A typed table after `retype`.

    Attributes:
        source: the name of its source.
        name: its name.
        changes: the differences between both declarations, in words. None means that the table was not built again.
        before, after: the table.
    """

    source: str | None
    name: str
    changes: tuple[str, ...]
    before: TableState
    after: TableState


@check_arguments
def retype_tables(
    definition: PipelineDefinition,
    names: Collection[str] = (),
    *,
    source: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> list[RetypedTable]:
    """Build typed tables again whose declaration has changed, from the changelog.

    A table with inferred fields gets those of all documents in the changelog. Raises LakeRefused while a run writes
    the lake, and DiskFull if a disk has no room; the tables then stay as they were.

    Args:
        definition: the pipeline.
        names: the tables; none for all that exist.
        source: the source of the tables; None for all sources.
        report: called with the state of the work, in words.

    Returns:
        The tables, also those that are as declared.

    Raises:
        UsageError: the pipeline has no such source or table, or a named table does not exist yet.
    """
    sources = [each.name for each in definition.sources]
    if source is not None and source not in sources:
        raise UsageError(f"source is {source!r}, expected {', '.join(map(str, sources))}")
    places = [each for each in find_source_lakes(definition).declared if source in (None, each.source.name)]
    kept = [(place, definition.open_lake(place.path)) for place in places]
    tables = [(place.source.name, lake, _list_tables(definition, place.source, lake)) for place, lake in kept]
    _check_names(names, [each.name for _, _, some in tables for each in some])
    found: list[RetypedTable] = []
    for name, lake, some in tables:
        chosen = [each for each in some if not names or each.name in names]
        if chosen and lake.changelog_table.open() is not None:
            with translate_full_disk(definition.lake), hold_lock(lake.path, 0) as lock:
                found += _retype_lake(name, lake, chosen, lock, report)
    if missing := [name for name in names if name not in {each.name for each in found}]:
        raise UsageError(f"table {missing[0]!r} does not exist yet; penstock pipeline run builds it")
    return found


def _list_tables(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> list[DependentKind]:
    return [each for each in list_kept(definition, source, lake) if each.kind == KIND]


def _check_names(names: Collection[str], known: Collection[str]) -> None:
    """Check that the pipeline keeps the named tables.

    Raises:
        UsageError: it does not.
    """
    if missing := [name for name in names if name not in known]:
        expected = ", ".join(dict.fromkeys(known)) or "a [[table]] in the file"
        raise UsageError(f"the pipeline declares no table {missing[0]!r}, expected {expected}")


def _retype_lake(
    source: str | None,
    lake: LakeDirectory,
    declared: Sequence[DependentKind],
    lock: HeldLock,
    report: Callable[[str], None],
) -> list[RetypedTable]:
    """Build the tables of a lake again that differ from their declaration. They share the read of the changelog.

    Returns:
        The tables that exist.
    """
    known = {each.name: found for each in declared if (found := TypedTable.find(lake, each.name)) is not None}
    wanted: dict[str, TypedTable] = {}
    for each in declared:
        if each.name in known:
            wanted[each.name] = _find_wanted(each, lake, wanted, report)
    changes = {name: tuple(list_shape_changes(known[name].shape, table.shape)) for name, table in wanted.items()}
    before = {name: _read_state(table) for name, table in known.items()}
    targets = [table.describe_replacement() for name, table in wanted.items() if changes[name]]
    progress = _RetypeProgress(lock, report)
    if targets:
        merge_tables([progress.watch(each) for each in targets])
    return [
        RetypedTable(source, name, changes[name], before[name], _read_state(table) if changes[name] else before[name])
        for name, table in wanted.items()
    ]


def _find_wanted(
    declared: DependentKind, lake: LakeDirectory, wanted: Mapping[str, TypedTable], report: Callable[[str], None]
) -> TypedTable:
    """Return a table as it is declared. Dead letters come after their typed table, whose fields they have."""
    table = declared.open(lake)
    if isinstance(table, TypedTable):
        return table
    if isinstance(table, MisfitTable):
        parent = wanted.get(table.parent.name)
        return table.take_fields(table.parent.find_next_fields() if parent is None else parent.shape.fields)
    assert isinstance(table, InferredTable)
    report(f"Inferring the fields of {table.name}")
    return table.infer_again()


def _read_state(table: TypedTable) -> TableState:
    columns = {each.name: format_type(each.type) for each in select_declared_columns(table.shape)}
    return TableState(columns, table.count_rows(), retry_missing_files(table.report_rest))


class _RetypeProgress:
    """Reports the rows that a merge has computed, and ends it if another run has taken over the lake."""

    def __init__(self, lock: HeldLock, report: Callable[[str], None]) -> None:
        self._lock = lock
        self._report = report
        self._counting = threading.Lock()  # ranges are merged on several threads
        self._rows: dict[str, int] = {}

    def watch(self, target: DocumentTable) -> DocumentTable:
        """Return a table for a merge that calls this object with its rows."""

        def to_rows(changes: pa.Table, stamp: LoadStamp) -> pa.Table:
            self._lock.raise_if_lost()
            rows = target.to_rows(changes, stamp)
            with self._counting:
                self._rows[target.name] = self._rows.get(target.name, 0) + rows.num_rows
                done = ", ".join(f"{name} {count:,} rows" for name, count in self._rows.items())
            self._report(f"Building {done}")
            return rows

        return replace(target, to_rows=to_rows)
