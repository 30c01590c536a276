"""The checks of a lake against a pipeline's declaration: a run raises their errors, and a plan shows them.

The checks need neither Spark nor the bucket, and write nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import Error, LakeRefused, UsageError
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import describe_held_lake
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.run_state import check_content

__all__ = ["check_lake", "find_refusal"]

LakeCheck = Callable[[PipelineDefinition, SourceDefinition, LakeDirectory], None]


def _check_source_count(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    """Check that several sources do not write into the lake of one source.

    Raises:
        UsageError: the directory has tables.
    """
    count = len(definition.sources)
    if count > 1 and LakeDirectory(definition.lake).changelog_table.path.exists():
        raise UsageError(
            f"the lake {definition.lake} holds the tables of one source;"
            f" expected a directory without tables for {count} sources"
        )


def _check_owner(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    lake.check_owner()


def _check_content(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    check_content(lake, source.list_content_options())


def _check_dependents(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    """Raise the error of a dependent whose files belong to another declaration, or are damaged."""
    for each in definition.list_dependents(source):
        each.open(lake).position()


_CHECKS: tuple[LakeCheck, ...] = (_check_source_count, _check_owner, _check_content, _check_dependents)
"""In the order in which a run makes them."""


def check_lake(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    """Check that a run of this declaration can continue the tables of a lake.

    Raises LakeRefused and UsageError for tables of another declaration or query, and Error for a damaged file.

    Args:
        definition: the pipeline.
        source: the source of the lake.
        lake: the lake.
    """
    for check in _CHECKS:
        check(definition, source, lake)


def find_refusal(
    definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory, *, is_running: bool
) -> Error | None:
    """Return the error with which a run would end before it reads the bucket.

    Args:
        definition: the pipeline.
        source: the source of the lake.
        lake: the lake.
        is_running: whether a run holds the lake.

    Returns:
        The error; None if the run would start.
    """
    try:
        check_lake(definition, source, lake)
    except Error as refusal:
        return refusal
    return LakeRefused(describe_held_lake(lake.path)) if is_running else None
