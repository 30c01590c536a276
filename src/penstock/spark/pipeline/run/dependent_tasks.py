"""The tasks of a run for dependent runners: the current table and all dependents of a source's changelog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from penstock.spark.dependents.dependent import Dependent, catch_up
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.lake.current.current_table import merge_tables, read_merged_version
from penstock.spark.lake.current.document_table import DocumentTable, describe_current
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.merged_state import retry_missing_files
from penstock.spark.lake.current.misfit_table import MisfitTable
from penstock.spark.lake.current.typed_table import KIND, TypedTable
from penstock.spark.lake.maintenance.lake_compaction import maintain_changelog
from penstock.spark.lake.reading.lake_readers import count_rows
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.run.conflict_log import ConflictLog
from penstock.spark.pipeline.run.dependent_runner import DependentTask
from penstock.spark.pipeline.run.retention_timer import RetentionTimer
from penstock.spark.pipeline.run.spark_failure import translate_errors
from penstock.spark.storage.object_path import ObjectPath
from penstock.spark.tables.misfits import RestReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["create_table_tasks", "create_tasks", "initialize_task"]

MOST_FIELDS = 20
"""Fields of a table that the progress of a run, and so its metrics, name. The others are counted together."""


def create_tasks(
    definition: PipelineDefinition,
    source: SourceDefinition,
    lake: LakeDirectory,
    spark: SparkSession | None = None,
    guard: Callable[[], None] = lambda: None,
) -> list[DependentTask]:
    """Return the tasks of a source's changelog: the tables of documents, then the other dependents.

    Args:
        definition: the pipeline.
        source: the source.
        lake: the source's lake.
        spark: the session for dependents with SQL.
        guard: called before pending changes are applied; raises LakeRefused once another run has taken over.

    Returns:
        Tasks with their pending changes set.
    """
    policy = definition.current.policy
    retention = RetentionTimer(lake, definition.tables.retention)
    declared = definition.list_dependents(source)
    tables = [each for each in declared if each.kind == KIND]
    targets: list[Callable[[], DocumentTable]] = [partial(describe_current, lake)] if definition.tables.current else []
    targets += _list_targets(each.open(lake) for each in tables)
    others = [each for each in declared if each not in tables]
    return create_table_tasks(targets, policy, retention, guard) + [
        create_dependent_task(each, lake, policy, spark, guard) for each in others
    ]


def _list_targets(tables: Iterable[Dependent]) -> Iterator[Callable[[], DocumentTable]]:
    """Yield the functions that describe tables. A typed table comes before its dead letters."""
    typed: dict[str, TypedTable | InferredTable] = {}
    for each in tables:
        if isinstance(each, MisfitTable):
            # By one object, because the description of the typed table infers the fields of both.
            yield MisfitTable(typed[each.parent.name]).describe
        else:
            assert isinstance(each, TypedTable | InferredTable)
            typed[each.name] = each
            yield each.describe


def create_table_tasks(
    targets: Sequence[Callable[[], DocumentTable]],
    policy: MergePolicy,
    retention: RetentionTimer | None = None,
    guard: Callable[[], None] = lambda: None,
) -> list[DependentTask]:
    """Return the tasks that merge the tables of documents, and maintain the changelog.

    The first task that is due merges all tables, so that they share the read of the changelog.

    Args:
        targets: return the tables of one lake, with the columns that their next merge gives them.
        policy: decides when a merge is due.
        retention: drops old versions of the changelog; None for no limit.
        guard: called before each merge; raises LakeRefused once another run has taken over.

    Returns:
        A task for each table, with its pending changes set.
    """

    def merge(at: int) -> int:
        guard()
        tables = [describe() for describe in targets]
        version = merge_tables(tables)[at].version
        # After the merge, because only applied files may be joined.
        maintain_changelog(tables[at].lake)
        if retention is not None:
            retention.apply()
        return version

    return [_create_table_task(describe(), partial(merge, at), policy) for at, describe in enumerate(targets)]


def _create_table_task(target: DocumentTable, merge: Callable[[], int], policy: MergePolicy) -> DependentTask:
    rows = partial(count_rows, target.table)
    rest = partial(_report_rest, target, ConflictLog(target.name)) if target.kind == KIND else lambda: None
    task = DependentTask(target.name, target.kind, merge, policy, table_rows=rows, report_rest=rest, is_vital=True)
    return initialize_task(task, target.lake, read_merged_version(target.lake, target.table, target.table.open()))


def _report_rest(target: DocumentTable, conflicts: ConflictLog) -> RestReport | None:
    """Return the values that no column of a typed table has, for the progress of a run; None before its first commit.

    The table may have other columns than at the start of the run, so it is opened with its own.
    """

    def report() -> RestReport | None:
        found = TypedTable.find(target.lake, target.name)
        return None if found is None else found.report_rest()

    found = retry_missing_files(report)
    conflicts.add(found)
    return None if found is None else found.shorten(MOST_FIELDS)


def create_dependent_task(
    declared: DependentKind,
    lake: LakeDirectory,
    policy: MergePolicy,
    spark: SparkSession | None,
    guard: Callable[[], None] = lambda: None,
) -> DependentTask:
    dependent = declared.open(lake, spark)
    # In an object store every local dependent rewrites whole objects, so all wait until enough changes are pending.
    is_rewritten = declared.is_local and isinstance(lake.path, ObjectPath)

    def apply() -> int:
        guard()
        # The query of a remote dependent fails with exceptions of Spark.
        with nullcontext() if declared.is_local else translate_errors():
            return catch_up(dependent, lake)

    task = DependentTask(
        dependent.name,
        declared.kind,
        apply,
        policy if is_rewritten else declared.choose_policy(policy),
        table_rows=dependent.count_rows if declared.is_local else None,
        is_local=declared.is_local,
    )
    return initialize_task(task, lake, dependent.position())


def initialize_task(task: DependentTask, lake: LakeDirectory, known: tuple[str, int] | None) -> DependentTask:
    """Return the task with its pending changes set.

    Args:
        task: the task.
        lake: the lake of the changelog.
        known: id and version of the changelog that were applied, None if nothing was applied.

    Returns:
        The same task.
    """
    delta = find_delta(lake, known)
    if delta is not None:
        task.set_position(-1 if delta.is_full or known is None else known[1], delta.version, delta.files)
    return task
