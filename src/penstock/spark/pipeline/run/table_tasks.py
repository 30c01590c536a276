"""The tables of documents in a run. They are merged together, because they share the read of the changelog.

A merge may find collections that have no table yet. Their tables appear in it, and in the progress of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.spark.dependents.dependent import Dependent
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.changelog.found_collections import FoundCollections, find_collections, read_collections
from penstock.spark.lake.current.current_table import merge_tables, read_merged_version
from penstock.spark.lake.current.document_table import CURRENT, DocumentTable, describe_current
from penstock.spark.lake.current.inferred_table import InferredTable, open_sample
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.merged_state import retry_missing_files
from penstock.spark.lake.current.misfit_table import MisfitTable
from penstock.spark.lake.current.typed_table import KIND, TypedTable
from penstock.spark.lake.maintenance.lake_compaction import join_added_files, maintain_changelog
from penstock.spark.lake.reading.lake_readers import count_rows
from penstock.spark.lake.tables.data_files import DataFile
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.run.conflict_log import ConflictLog
from penstock.spark.pipeline.run.dependent_runner import DependentTask, initialize_task
from penstock.spark.pipeline.run.retention_timer import RetentionTimer
from penstock.spark.pipeline.state.kept_tables import infer_tables
from penstock.spark.pipeline.state.lake_status import list_applied_versions
from penstock.spark.pipeline.state.run_progress import DependentProgress
from penstock.spark.tables.misfits import RestReport

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

MOST_FIELDS = 20
"""Fields of a table that the progress of a run, and so its metrics, name. The others are counted together."""


class TableTargets:
    """The tables of documents of a source.

    Args:
        lake: the source's lake.
        declared: the declared tables and other dependents.
        has_current: whether `current` is one.
        is_inferring: whether each collection with JSON objects has a table.
    """

    def __init__(
        self, lake: LakeDirectory, declared: Iterable[DependentKind], *, has_current: bool, is_inferring: bool
    ) -> None:
        self._lake = lake
        self._has_current = has_current
        self._is_inferring = is_inferring
        self._declared = tuple(declared)

    def describe(self, find: Callable[[LakeDirectory], FoundCollections] = find_collections) -> list[DocumentTable]:
        """Return the tables with the columns that their next merge gives them.

        Raises UsageError for a table of another shape.

        Args:
            find: returns the collections: `find_collections` for those of all changes, `read_collections` for those
                that are known.
        """
        inferred = infer_tables(find(self._lake), self._declared) if self._is_inferring else ()
        typed = [each for each in self._declared if each.kind == KIND]
        tables = [describe_current(self._lake)] if self._has_current else []
        return [*tables, *_describe_tables(self._lake, [each.open(self._lake) for each in (*inferred, *typed)])]


class TableTasks:
    """The tasks of all tables of documents of a source; the runner's thread sees one task.

    A merge is due as soon as it is for one table. It then merges all tables.

    Args:
        lake: the source's lake.
        targets: the tables.
        policy: decides when a merge is due.
        retention: drops old versions of the changelog; None for no limit.
        guard: called before each merge; raises LakeRefused once another run has taken over.

    Attributes:
        tasks: a task for each table that is known so far.
    """

    is_local = True

    def __init__(
        self,
        lake: LakeDirectory,
        targets: TableTargets,
        policy: MergePolicy,
        retention: RetentionTimer | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self.tasks: tuple[DependentTask, ...] = ()
        self._lake = lake
        self._targets = targets
        self._policy = policy
        self._retention = retention
        self._guard = guard
        self._versions: dict[tuple[str, str], int] = {}
        self._add_tasks(targets.describe(read_collections))

    def list_progress(self) -> list[DependentProgress]:
        """Return the progress of each table. People query the typed tables, so `current` is the last one."""
        return sorted((task.progress for task in self.tasks), key=lambda each: each.kind == CURRENT)

    def add_pending(self, version: int, files: Sequence[DataFile], spans: Sequence[SpanContext] = ()) -> None:
        """Add files that the changelog has gained, for all tables."""
        for task in self.tasks:
            task.add_pending(version, files, spans)

    def is_due(self, now: float) -> bool:
        """Return whether a merge is due for one of the tables, at a time in seconds since the epoch."""
        return any(task.is_due(now) for task in self.tasks)

    @property
    def is_behind(self) -> bool:
        """Whether a table lacks versions of the changelog."""
        return any(task.is_behind for task in self.tasks)

    def run(self) -> None:
        """Merge all tables. The span and the time of the merge are those of the first table that lacks changes."""
        first = next((task for task in self.tasks if task.is_behind), self.tasks[0])
        first.run()
        for task in self.tasks:
            if task is not first:
                task.record_applied(self._versions[_identify(task.progress)])

    def _merge(self, name: tuple[str, str]) -> int:
        """Merge all tables, also those of collections that are found now.

        Returns:
            The version that the table of this kind and name has reached.
        """
        self._guard()
        tables = self._targets.describe()
        self._add_tasks(tables)
        for target, merged in zip(tables, merge_tables(tables), strict=True):
            self._versions[_identify(target)] = merged.version
        # After the merge, because only applied files may be joined.
        maintain_changelog(self._lake, list_applied_versions(self._lake))
        join_added_files(tables)
        if self._retention is not None:
            self._retention.apply()
        return self._versions[name]

    def _add_tasks(self, tables: Iterable[DocumentTable]) -> None:
        """Add a task for each table that has none. Another thread may use the other tasks meanwhile."""
        known = {_identify(task.progress) for task in self.tasks}
        new = [self._create_task(target) for target in tables if _identify(target) not in known]
        self.tasks = (*self.tasks, *new)

    def _create_task(self, target: DocumentTable) -> DependentTask:
        rest = partial(_report_rest, target, ConflictLog(target.name)) if target.kind == KIND else lambda: None
        task = DependentTask(
            target.name,
            target.kind,
            partial(self._merge, _identify(target)),
            self._policy,
            table_rows=partial(count_rows, target.table),
            report_rest=rest,
            is_vital=True,
        )
        return initialize_task(task, self._lake, read_merged_version(self._lake, target.table, target.table.open()))


def _describe_tables(lake: LakeDirectory, tables: Iterable[Dependent]) -> Iterator[DocumentTable]:
    """Yield tables with the columns of their next merge. A typed table comes before its dead letters."""
    typed: dict[str, TypedTable | InferredTable] = {}
    sample = open_sample(lake)
    for each in tables:
        if isinstance(each, MisfitTable):
            # By one object, because the description of the typed table infers the fields of both.
            yield MisfitTable(typed[each.parent.name]).describe()
        else:
            assert isinstance(each, TypedTable | InferredTable)
            typed[each.name] = each
            yield each.describe(sample) if isinstance(each, InferredTable) else each.describe()


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


def _identify(table: DocumentTable | DependentProgress) -> tuple[str, str]:
    return table.kind, table.name
