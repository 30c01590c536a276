"""What a definition wants to be kept behind a source's changelog, as tasks for a keeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.kinds.fulltext import FullText
from penstock.spark.dependents.kinds.invalidation import Invalidation
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.dependents.kinds.xdcr_target import XdcrTarget
from penstock.spark.lake.changelog.changelog_delta import delta_since
from penstock.spark.lake.current import current_table as current
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.maintenance.lake_compaction import maintain_changelog
from penstock.spark.lake.reading.lake_readers import count_rows
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import BucketSink, PipelineDefinition, Source
from penstock.spark.pipeline.run.dependent_runner import AT_ONCE, DependentTask
from penstock.spark.pipeline.run.spark_failure import in_one_sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["begun", "current_task", "tasks_of"]


def tasks_of(
    definition: PipelineDefinition, source: Source, lake: LakeDirectory, spark: SparkSession | None = None
) -> list[DependentTask]:
    """Return what is kept behind a changelog: the current table, indexes, sinks, in the order of the file.

    spark: the session for what sinks say in SQL.
    """
    policy = definition.current.policy
    tasks = [current_task(lake, policy)] if definition.tables.current else []
    for index in definition.of(source, definition.indexes):
        tasks.append(_index_task(SecondaryIndex(lake, index.name, index.path, index.type), "index", lake, policy))
    for text in definition.of(source, definition.fulltexts):
        # Its searches find what it has taken in, so it waits for nothing; what it costs is told by the changes alone.
        tasks.append(_index_task(FullText(lake, text.name, text.paths), "fulltext", lake, AT_ONCE))
    for sink in definition.of(source, definition.sinks):
        if isinstance(sink, BucketSink):
            replica = XdcrTarget(lake, sink.name, sink.options(), transform=sink.sql, lost=sink.lost, spark=spark)
            tasks.append(_sink_task(replica, "bucket"))
        else:
            tasks.append(_sink_task(Invalidation(lake, **sink.arguments()), "invalidate"))
    return tasks


def current_task(lake: LakeDirectory, policy: MergePolicy) -> DependentTask:
    """Return the task that keeps the current table."""

    def table_rows() -> int:
        return count_rows(lake.current_table)

    def merge() -> int:
        version = current.catch_up(lake).version
        maintain_changelog(lake)
        return version

    task = DependentTask("current", "current", merge, policy, table_rows=table_rows, vital=True)
    return begun(task, lake, current.merged_version(lake, lake.current_table.open()))


def _index_task(index: SecondaryIndex | FullText, kind: str, lake: LakeDirectory, policy: MergePolicy) -> DependentTask:
    task = DependentTask(index.name, kind, lambda: catch_up(index, lake), policy, table_rows=index.rows)
    return begun(task, lake, index.position())


def _sink_task(sink: Invalidation | XdcrTarget, kind: str) -> DependentTask:
    """Return the task that tells somebody else, which may be slow or away."""

    def tell() -> int:
        with in_one_sentence():  # where it has a query, Spark may be what fails
            return catch_up(sink, sink.lake)

    task = DependentTask(sink.name, kind, tell, AT_ONCE, is_local=False)
    return begun(task, sink.lake, sink.position())


def begun(task: DependentTask, lake: LakeDirectory, known: tuple[str, int] | None) -> DependentTask:
    """Tell a task what is pending for it. known: the changelog's id and the version that was taken in."""
    delta = delta_since(lake, known)
    if delta is not None:
        task.begins(-1 if delta.everything or known is None else known[1], delta.version, delta.files)
    return task
