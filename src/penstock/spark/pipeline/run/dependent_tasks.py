"""The tasks of a run for dependent runners: the tables of documents, and the dependents of a source's changelog."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.typed_table import KIND
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.run.dependent_runner import DependentTask, initialize_task
from penstock.spark.pipeline.run.retention_timer import RetentionTimer
from penstock.spark.pipeline.run.spark_failure import translate_errors
from penstock.spark.pipeline.run.table_tasks import TableTargets, TableTasks
from penstock.spark.storage.object_path import ObjectPath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_tasks(
    definition: PipelineDefinition,
    source: SourceDefinition,
    lake: LakeDirectory,
    spark: SparkSession | None = None,
    guard: Callable[[], None] = lambda: None,
) -> list[DependentTask | TableTasks]:
    """Return the tasks of a source's changelog: the tables of documents, then the other dependents.

    Args:
        definition: the pipeline.
        source: the source.
        lake: the source's lake.
        spark: the session for dependents with SQL.
        guard: called before pending changes are applied; raises LakeRefused once another run has taken over.

    Returns:
        One task for all tables of documents, and one for each other dependent, with their pending changes set.
    """
    policy = definition.current.policy
    declared = definition.list_dependents(source)
    tables = [each for each in declared if each.kind == KIND]
    has_current, is_inferring = definition.tables.current, definition.infers_tables(source)
    others: list[DependentTask | TableTasks] = [
        create_dependent_task(each, lake, policy, spark, guard) for each in declared if each not in tables
    ]
    if not has_current and not tables:
        return others
    targets = TableTargets(lake, declared, has_current=has_current, is_inferring=is_inferring)
    retention = RetentionTimer(lake, definition.tables.retention)
    return [TableTasks(lake, targets, policy, retention, guard), *others]


def create_dependent_task(
    declared: DependentKind,
    lake: LakeDirectory,
    policy: MergePolicy,
    spark: SparkSession | None,
    guard: Callable[[], None] = lambda: None,
) -> DependentTask:
    """Return the task that keeps a declared dependent of a lake."""
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
