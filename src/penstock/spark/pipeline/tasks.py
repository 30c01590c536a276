"""What a definition wants to be kept behind a source's changelog, as tasks for a keeper."""

from __future__ import annotations

from penstock.spark.derived import Follower, catch_up
from penstock.spark.lake import Lake, current
from penstock.spark.lake.news import news_since
from penstock.spark.lake.policy import MergePolicy
from penstock.spark.lake.reading import count_rows
from penstock.spark.pipeline.definition import Definition, Source
from penstock.spark.pipeline.keeper import Task

__all__ = ["current_task", "follower_task", "tasks_of"]


def tasks_of(definition: Definition, source: Source, lake: Lake) -> list[Task]:
    """Return what is kept on this machine: the current table, then the indexes, in the order of the file."""
    policy = definition.current.policy
    tasks = [current_task(lake, policy)] if definition.tables.current else []
    return tasks


def current_task(lake: Lake, policy: MergePolicy) -> Task:
    """Return the task that keeps the current table."""

    def table_rows() -> int:
        return count_rows(lake.current_table)

    task = Task("current", "current", lambda: current.catch_up(lake).version, policy, table_rows=table_rows, vital=True)
    return begun(task, lake, current.folded_version(lake, lake.current_table.open()))


def follower_task(follower: Follower, kind: str, lake: Lake, policy: MergePolicy) -> Task:
    """Return the task that keeps anything else."""
    task = Task(follower.name, kind, lambda: catch_up(follower, lake), policy)
    return begun(task, lake, follower.position())


def begun(task: Task, lake: Lake, known: tuple[str, int] | None) -> Task:
    """Tell a task what is pending for it. known: the changelog's id and the version that was taken in."""
    news = news_since(lake, known)
    if news is not None:
        task.begins(-1 if news.everything or known is None else known[1], news.version, news.files)
    return task
