"""The status of all sources of a pipeline: of the file, and of those that were removed from it."""

from __future__ import annotations

from dataclasses import replace

from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition
from penstock.spark.pipeline.state.lake_status import LakeStatus, read_status
from penstock.spark.pipeline.state.source_lakes import SourceLake, SourceLakes, find_source_lakes

__all__ = ["read_pipeline_status", "read_removed_status", "read_source_status"]


def read_pipeline_status(definition: PipelineDefinition) -> list[LakeStatus]:
    """Return the status of each source of a file, and then of each removed source that has tables."""
    lakes = find_source_lakes(definition)
    return [read_source_status(definition, each) for each in lakes.declared] + read_removed_status(lakes)


def read_source_status(definition: PipelineDefinition, place: SourceLake) -> LakeStatus:
    """Return the status of a source of a file."""
    source = place.source
    names = [each.name for each in definition.list_dependents(source)]
    return replace(read_status(LakeDirectory(place.path), source.name, names), paused=source.paused)


def read_removed_status(lakes: SourceLakes) -> list[LakeStatus]:
    """Return the status of each source that has tables, and that the file no longer declares."""
    return [replace(read_status(LakeDirectory(each.path), each.source, ()), declared=False) for each in lakes.removed]
