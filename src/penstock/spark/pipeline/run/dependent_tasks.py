"""The tasks of a run: the current table and all dependents of a source's changelog, for dependent runners."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.changelog.changelog_delta import delta_since
from penstock.spark.lake.current import current_table
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.maintenance.lake_compaction import maintain_changelog
from penstock.spark.lake.reading.lake_readers import count_rows
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition, Source
from penstock.spark.pipeline.run.dependent_runner import DependentTask
from penstock.spark.pipeline.run.spark_failure import in_one_sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["begun", "current_task", "tasks_of"]


def tasks_of(
    definition: PipelineDefinition, source: Source, lake: LakeDirectory, spark: SparkSession | None = None
) -> list[DependentTask]:
    """Return the tasks behind a source's changelog: the current table, then the dependents.

    spark: the session for dependents with SQL.
    """
    policy = definition.current.policy
    tasks = [current_task(lake, policy)] if definition.tables.current else []
    return tasks + [_dependent_task(each, lake, policy, spark) for each in definition.dependents_of(source)]


def current_task(lake: LakeDirectory, policy: MergePolicy) -> DependentTask:
    """Return the task that keeps the current table."""

    def table_rows() -> int:
        return count_rows(lake.current_table)

    def merge() -> int:
        version = current_table.merge_current(lake).version
        maintain_changelog(lake)
        return version

    task = DependentTask("current", "current", merge, policy, table_rows=table_rows, vital=True)
    return begun(task, lake, current_table.merged_version(lake, lake.current_table.open()))


def _dependent_task(
    declared: DependentKind, lake: LakeDirectory, policy: MergePolicy, spark: SparkSession | None
) -> DependentTask:
    dependent = declared.open(lake, spark)

    def apply() -> int:
        with nullcontext() if declared.is_local else in_one_sentence():  # where it has a query, Spark may be what fails
            return catch_up(dependent, lake)

    task = DependentTask(
        dependent.name,
        declared.kind,
        apply,
        declared.policy(policy),
        table_rows=dependent.rows,
        is_local=declared.is_local,
    )
    return begun(task, lake, dependent.position())


def begun(task: DependentTask, lake: LakeDirectory, known: tuple[str, int] | None) -> DependentTask:
    """Return the task with its pending changes set. known: the changelog's id and the version that was applied."""
    delta = delta_since(lake, known)
    if delta is not None:
        task.begins(-1 if delta.everything or known is None else known[1], delta.version, delta.files)
    return task
